//! Notifications to systemd: readiness, reloads, the watchdog, and the shutdown.

use std::os::unix::net::UnixDatagram;

use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, file};

#[test]
fn systemd_is_told_of_start_reload_life_and_end() {
    let scratch = TempFolder::new("notified");
    let policy = file(&scratch, "policy.yaml", "limits: [{name: all, rate: 10/s}]");
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(LONG)).expect("a timeout");
    let told = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    };
    let beyond_life = || loop {
        let event = told();
        if event != "WATCHDOG=1" {
            return event;
        }
    };
    let mut options = vec![policy.to_str().expect("text")];
    options.extend(ANY);
    let service = Service::with(&options, |command| {
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "20000");
    });
    assert_eq!(told(), "READY=1\nSTATUS=serving");
    assert_eq!([told(), told()], ["WATCHDOG=1", "WATCHDOG=1"]);
    service.signal("HUP");
    assert_eq!(beyond_life(), "RELOADING=1\nSTATUS=reading the policy");
    assert_eq!(beyond_life(), "READY=1\nSTATUS=serving");
    assert!(service.end("TERM").success());
    assert_eq!(beyond_life(), "STOPPING=1\nSTATUS=draining");
}

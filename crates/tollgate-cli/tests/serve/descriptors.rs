//! A service with few file descriptors: clients beyond the limit are rejected, and operators can always connect.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, file};

#[test]
fn connections_that_take_all_descriptors_keep_no_operator_out() {
    let scratch = TempFolder::new("descriptors");
    let policy = file(&scratch, "policy.yaml", "limits: [{name: all, rate: 10/s}]");
    let mut options = vec![policy.to_str().expect("text")];
    options.extend(ANY);
    let service = Service::with_descriptors(&options, 256);
    let said = "warning: fewer file descriptors than --max-connections needs: raise the limit (LimitNOFILE, ulimit -n), \
        or lower --max-connections descriptors=256 reserved=64 for_clients=192 wanted=10000\n";
    wait_until(LONG, "a warning", || service.warned().contains(said));
    let address = service.ready["resp"]
        .as_str()
        .expect("an address")
        .to_owned();
    let mut idle: Vec<_> = (0..400)
        .map(|_| TcpStream::connect(&address).expect("a connection"))
        .collect();
    // The first ones are served, and the last is told.
    let mut answer = [0; 7];
    idle[0].write_all(b"PING\r\n").expect("written");
    idle[0].read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"+PONG\r\n");
    let mut told = String::new();
    let mut last = idle.pop().expect("one");
    last.set_read_timeout(Some(LONG)).expect("a timeout");
    last.read_to_string(&mut told).expect("an answer");
    assert_eq!(told, "-ERR max number of clients reached\r\n");
    // So is another listener's client.
    let http = service.ready["http"].as_str().expect("an address");
    let mut other = TcpStream::connect(http).expect("a connection");
    other.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut told = String::new();
    other.read_to_string(&mut told).expect("an answer");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    for path in ["/readyz", "/healthz", "/metrics"] {
        assert_eq!(service.get("admin", path).0, 200, "{path}");
    }
    assert!(
        service.warned().contains("kind=rejected"),
        "{}",
        service.warned()
    );
    // Files are read meanwhile.
    fs::write(&policy, "limits: [{name: all, rate: 20/s}]").expect("a file");
    wait_until(LONG, "a reload", || {
        service.logged().contains("policy reloaded")
    });
    // Whoever comes once others have left is served.
    drop(idle);
    wait_until(LONG, "room", || {
        let mut client = TcpStream::connect(&address).expect("a connection");
        let mut first = [0; 1];
        client.write_all(b"PING\r\n").is_ok()
            && client.read_exact(&mut first).is_ok()
            && first == *b"+"
    });
}

/// Lets a process have files of numbers below this one, from now on.
fn limit_files(service: &Service, most: u64) {
    let pid = service.pid().to_string();
    let limit = format!("--nofile={most}:");
    let done = Command::new("prlimit")
        .args(["--pid", &pid, &limit])
        .status();
    assert!(done.expect("prlimit runs").success());
}

#[test]
fn a_policy_that_no_descriptor_was_left_for_is_read_as_soon_as_there_is_one() {
    let scratch = TempFolder::new("descriptors-reload");
    // A file by itself, and a folder, which needs a descriptor before its files do.
    for (name, file_name) in [("policy.yaml", "policy.yaml"), ("folder", "folder/a.yaml")] {
        fs::create_dir_all(scratch.path("folder")).expect("a folder");
        let path = file(&scratch, file_name, "limits: [{name: all, rate: 10/s}]");
        let policy = scratch.path(name);
        let mut options = vec![policy.to_str().expect("text")];
        options.extend(ANY);
        let service = Service::start(&options);
        // All files that are open stay open, and there are no more.
        limit_files(&service, 3);
        fs::write(&path, "limits: [{name: all, rate: 20/s}]").expect("a file");
        wait_until(LONG, "an error", || {
            service
                .warned()
                .contains("policy not reloaded, the one before stays in force")
        });
        let said = service.warned();
        assert!(said.contains("Too many open files"), "{said}");
        let told = "raise the limit of open files (LimitNOFILE, ulimit -n)";
        assert!(said.contains(told), "{said}");
        // Nothing happens to the file any more.
        limit_files(&service, 1_024);
        wait_until(LONG, "a reload", || {
            service.logged().contains("policy reloaded")
        });
    }
}

//! Shutdown of the command: health checks and logs on the way, timeouts, and a second signal.

use std::io::{Read, Write};
use std::net::TcpStream;

use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service};

fn serve(more: &[&str]) -> Service {
    let mut options = ANY.to_vec();
    options.extend(more);
    Service::start(&options)
}

fn connect(service: &Service, listener: &str) -> TcpStream {
    let address = service.ready[listener].as_str().expect("an address");
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream
}

/// A client that has begun a request, and doesn't go on.
fn hangs(service: &Service) -> TcpStream {
    let mut stream = connect(service, "resp");
    let mut pong = [0; 7];
    stream.write_all(b"PING\r\n*2\r\n").expect("written");
    stream.read_exact(&mut pong).expect("an answer");
    stream
}

#[test]
fn probes_hear_of_the_end_before_clients_do() {
    // Longer than anything that is asked below: it is over by a second signal.
    let service = serve(&["--drain-delay", "10m", "--drain-time", "10m"]);
    let ready = |listener: &str| {
        let mut stream = connect(&service, listener);
        let request = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    assert!(ready("admin").starts_with("HTTP/1.1 200 "));
    service.signal("TERM");
    service.warns("draining: clients should go elsewhere delay=600s time=600s");
    for listener in ["admin", "http"] {
        let told = ready(listener);
        assert!(told.starts_with("HTTP/1.1 503 "), "{listener}: {told}");
        assert!(told.contains("the service ends"), "{listener}: {told}");
    }
    let question = r#"{"facts": {"user": "ada"}}"#;
    assert_eq!(service.post("/v1/check", question).0, 200, "still taken");
    assert!(!service.warned().contains("no more clients are taken"));
    assert_eq!(service.end("TERM").code(), Some(143));
}

#[test]
fn after_the_delay_nobody_is_taken_and_it_ends_as_soon_as_all_are_answered() {
    // Longer than is waited for below: it ends because all are done, not because its time is up.
    let service = serve(&["--drain-delay", "10ms", "--drain-time", "10m"]);
    let ready_file = service.scratch.path("ready.json");
    assert!(ready_file.exists());
    service.signal("TERM");
    service.warns("draining: clients should go elsewhere delay=0.01s time=600s");
    service.warns("draining: no more clients are taken");
    service.warns("drained: all clients were answered");
    wait_until(LONG, "the ready file to be removed", || {
        !ready_file.exists()
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let service = serve(&["--drain-time", "10m"]);
        let stuck = hangs(&service);
        service.signal("TERM");
        service.warns("draining: no more clients are taken connections=1");
        assert_eq!(service.end(signal).code(), Some(code));
        drop(stuck);
    }
}

#[test]
fn who_isnt_done_in_time_is_cut_and_that_is_a_good_end() {
    let service = serve(&["--drain-time", "500ms"]);
    let mut stuck = hangs(&service);
    assert_eq!(service.end("TERM").code(), Some(0));
    assert_eq!(stuck.read(&mut [0; 9]).unwrap_or(0), 0, "it is closed");
}

#[test]
fn sockets_and_a_ready_file_of_another_are_left() {
    let scratch = TempFolder::new("handed-over");
    let socket = format!("unix:{}", scratch.path("http").display());
    let options = [
        "--http", &socket, "--grpc", "off", "--resp", "off", "--admin", "off",
    ];
    let service = Service::start(&options);
    let ready_file = service.scratch.path("ready.json");
    std::fs::write(&ready_file, "{\"pid\":1}").expect("another's");
    service.signal("TERM");
    service.warns("drained: all clients were answered");
    wait_until(LONG, "the socket to be removed", || {
        !scratch.path("http").exists()
    });
    assert!(ready_file.exists(), "it is another's");
}

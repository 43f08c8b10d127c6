//! Pipelines in which a request waits in a queue: the answers before it are written meanwhile, over HTTP and RESP.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use tollgate_testkit::redis::wait_until;

use crate::hostile::{PROTOCOLS, Protocol};
use crate::kit::{Client, Running};

const POLICY: &str = "limits: [{name: slow, key: user, rate: 1/h, over: wait 2h}]";
/// What happens at all happens within this.
const LONG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A request of each protocol that may wait, and how its answer begins if it passes.
const CHECKS: [(&str, &str); 2] = [
    ("TG.CHECK user=ada\r\n", "*12\r\n$7\r\nallowed\r\n:1\r\n"),
    (
        "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n{\"facts\":{\"user\": \"ada\"}}",
        "HTTP/1.1 200 OK\r\n",
    ),
];

/// A service whose queue every check joins.
fn start() -> Running {
    let running = Running::new(POLICY, |_| {});
    running.resp().expect(CHECKS[0].0, CHECKS[0].1);
    running
}

/// Waits until so many requests wait.
fn until_waiters(running: &Running, waiters: usize) {
    let line = format!("\ntollgate_waiters {waiters}\n");
    wait_until(LONG, &line, || {
        let (_, told) = running.admin().request("GET", "/metrics", "", "");
        told.contains(&line)
    });
}

/// A client that sends three requests in one write, of which the second waits.
fn pipeline(running: &Running, protocol: &Protocol, check: &str) -> Client {
    let mut client = (protocol.connect)(running);
    let said = [protocol.request, check, protocol.request].concat();
    client.0.write_all(said.as_bytes()).expect("written");
    client
}

#[test]
fn answers_before_a_request_that_waits_come_at_once_and_in_order() {
    for (protocol, (check, passes)) in PROTOCOLS.iter().zip(CHECKS) {
        let running = start();
        let mut client = pipeline(&running, protocol, check);
        client.expect("", protocol.answer);
        until_waiters(&running, 1);
        // It is still there, and may say more.
        client
            .0
            .write_all(protocol.request.as_bytes())
            .expect("written");
        running.clock.advance(HOUR);
        client.expect("", passes);
        let both = protocol.answer.repeat(2);
        let mut rest = String::new();
        while !rest.ends_with(&both) {
            rest += &client.ask("", 1);
        }
        until_waiters(&running, 0);
    }
}

#[test]
fn who_closes_its_side_while_a_request_waits_gets_the_answers_before_it() {
    for (protocol, (check, _)) in PROTOCOLS.iter().zip(CHECKS) {
        let running = start();
        let mut client = pipeline(&running, protocol, check);
        client.0.shutdown(Shutdown::Write).expect("closed");
        assert_eq!(client.rest(), protocol.answer);
        // What waited has left the queue, and is charged nothing.
        until_waiters(&running, 0);
        running.clock.advance(HOUR);
        running.resp().expect(CHECKS[0].0, CHECKS[0].1);
    }
}

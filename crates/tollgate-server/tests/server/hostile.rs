//! Hostile HTTP and RESP clients: slow, silent or half-closed ones, and clients that send many requests and read no
//! response.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};

use crate::kit::{Client, Running};

pub(crate) const POLICY: &str =
    "limits: [{name: per-user, key: user, rate: 1000000/h burst 1000000}]";

/// What more memory a client that reads nothing may cost, in bytes.
const MOST_UNREAD: usize = 1 << 20;
/// What more memory a pipeline of any depth may cost, in bytes: the client's side is in this process, too.
const MOST_DEEP: usize = 4 << 20;
/// The memory of a connection that has sent much and then rests, in bytes, with a build for tests.
const MOST_RESTING: usize = 16 << 10;

/// A protocol: how to connect, and its requests.
pub(crate) struct Protocol {
    pub(crate) connect: fn(&Running) -> Client,
    /// A request, and its answer.
    pub(crate) request: &'static str,
    pub(crate) answer: &'static str,
    /// The error for a client that took too long.
    too_slow: &'static str,
    /// A short request whose answer is long.
    long: &'static str,
}

pub(crate) const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        connect: Running::resp,
        request: "*1\r\n$4\r\nPING\r\n",
        answer: "+PONG\r\n",
        too_slow: "-ERR the command wasn't sent within 10 s\r\n",
        long: "TG.RULES\r\n",
    },
    Protocol {
        connect: Running::http,
        request: "GET /healthcheck HTTP/1.1\r\nhost: here\r\n\r\n",
        answer: "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nOK\n",
        too_slow: "HTTP/1.1 408 Request Timeout\r\n",
        long: "GET /openapi.json HTTP/1.1\r\nhost: here\r\n\r\n",
    },
];

/// The times that clients have by default.
const REQUEST_TIME: Duration = Duration::from_secs(10);
const IDLE_TIME: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

/// Others are served as if nothing were.
#[track_caller]
pub(crate) fn others_are_served(running: &Running) {
    for protocol in &PROTOCOLS {
        (protocol.connect)(running).expect(protocol.request, protocol.answer);
    }
}

#[test]
fn who_writes_byte_by_byte_has_the_time_of_one_request() {
    let running = Running::in_still_time(POLICY, |_| {});
    for protocol in &PROTOCOLS {
        let (first, rest) = protocol.request.split_at(1);
        // The answer to a request tells that the byte behind it was read.
        let begin = || {
            let mut client = (protocol.connect)(&running);
            client.expect(&[protocol.request, first].concat(), protocol.answer);
            for byte in &rest.as_bytes()[..9] {
                running.pass(SECOND);
                client.0.write_all(&[*byte]).expect("written");
            }
            client
        };
        begin().expect(&rest[9..], protocol.answer);
        let mut late = begin();
        running.pass(SECOND);
        let told = late.rest();
        assert!(told.starts_with(protocol.too_slow), "{told:?}");
        others_are_served(&running);
    }
}

#[test]
fn who_says_nothing_is_let_go() {
    let running = Running::in_still_time(POLICY, |_| {});
    for protocol in &PROTOCOLS {
        let mut silent = (protocol.connect)(&running);
        let mut idle = (protocol.connect)(&running);
        idle.expect(protocol.request, protocol.answer);
        running.pass(IDLE_TIME - MOMENT);
        idle.expect(protocol.request, protocol.answer);
        running.pass(MOMENT);
        assert_eq!(silent.rest(), "", "it came before the other spoke");
        running.pass(IDLE_TIME - MOMENT - MOMENT);
        idle.expect(protocol.request, protocol.answer);
        running.pass(IDLE_TIME);
        assert_eq!(idle.rest(), "");
        others_are_served(&running);
    }
}

#[test]
fn who_has_no_more_to_say_hears_the_rest() {
    let running = Running::new(POLICY, |_| {});
    for protocol in &PROTOCOLS {
        let mut client = (protocol.connect)(&running);
        let half = &protocol.request[..protocol.request.len() / 2];
        let said = protocol.request.repeat(1_000) + half;
        client.0.write_all(said.as_bytes()).expect("written");
        client.0.shutdown(Shutdown::Write).expect("half closed");
        assert_eq!(client.rest(), protocol.answer.repeat(1_000));
    }
}

/// Writes until nothing more is taken: the service waits until what it answered is read.
fn write_and_never_read(running: &Running, protocol: &Protocol, said: &str) -> Client {
    let mut client = (protocol.connect)(running);
    client.0.set_nonblocking(true).expect("a flag");
    let said = said.repeat(16 * 1_024 / said.len());
    let mut stalled = 0;
    for _ in 0..20_000 {
        match client.0.write(said.as_bytes()) {
            Ok(_) => stalled = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stalled += 1;
                others_are_served(running);
            }
            Err(error) => panic!("{error}"),
        }
        if stalled == 20 {
            client.0.set_nonblocking(false).expect("a flag");
            return client;
        }
    }
    panic!("hundreds of megabytes of requests were taken, and nothing was read");
}

#[test]
fn who_reads_nothing_costs_little_and_is_let_go() {
    if !is_isolated() {
        return;
    }
    // Many rules, so that a few bytes ask for many.
    let rules = (0..2_000).map(|number| format!("{{name: rule-{number}, key: user, rate: 5/s}}"));
    let policy = format!("limits: [{}]", rules.collect::<Vec<_>>().join(","));
    let running = Running::in_still_time(&policy, |settings| settings.bounds.max_connections = 11);
    for protocol in &PROTOCOLS {
        others_are_served(&running);
        let before = held_bytes();
        let clients = (0..10).map(|_| write_and_never_read(&running, protocol, protocol.long));
        let clients: Vec<_> = clients.collect();
        let each = held_bytes().saturating_sub(before) / clients.len();
        assert!(each < MOST_UNREAD, "{each} bytes a connection");
        running.pass(REQUEST_TIME);
        for mut client in clients {
            // All that the system kept of it, and then its end.
            client.rest();
        }
        others_are_served(&running);
    }
}

#[test]
fn a_connection_that_rests_keeps_little_of_what_it_did() {
    if !is_isolated() {
        return;
    }
    const MANY: usize = 500;
    let running = Running::new(POLICY, |settings| settings.bounds.max_batch = 10_000);
    let words = "*1000\r\n$7\r\nTG.PEEK\r\n".to_owned() + &"$3\r\na=b\r\n".repeat(999);
    let checks = "[".to_owned() + &"{},".repeat(999) + "{}]";
    let list = format!(
        "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{checks}",
        checks.len()
    );
    for (protocol, said) in PROTOCOLS.iter().zip([words, list]) {
        others_are_served(&running);
        let answer = answer_to(&mut (protocol.connect)(&running), protocol, &said);
        let before = held_bytes();
        let clients = (0..MANY).map(|_| {
            let mut client = (protocol.connect)(&running);
            client.expect(&(said.clone() + protocol.request), &answer);
            client
        });
        let clients: Vec<_> = clients.collect();
        let each = held_bytes().saturating_sub(before) / clients.len();
        assert!(each < MOST_RESTING, "{each} bytes a connection");
    }
}

/// What is answered to something, up to the answer to a short request behind it.
fn answer_to(client: &mut Client, protocol: &Protocol, said: &str) -> String {
    let said = said.to_owned() + protocol.request;
    client.0.write_all(said.as_bytes()).expect("written");
    let mut answer = String::new();
    let mut bytes = [0; 4_096];
    while !answer.ends_with(protocol.answer) {
        let read = client.0.read(&mut bytes).expect("an answer");
        answer += std::str::from_utf8(&bytes[..read]).expect("text");
    }
    answer
}

const DEPTH: usize = 100_000;

/// One of many commands, and its answer, which has its number.
fn throttle(number: usize) -> (String, String) {
    let (limit, left, reset) = (DEPTH + 1, DEPTH - number, number + 1);
    (
        format!("*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$6\r\n{DEPTH}\r\n$1\r\n1\r\n$1\r\n1\r\n"),
        format!("*5\r\n:0\r\n:{limit}\r\n:{left}\r\n:-1\r\n:{reset}\r\n"),
    )
}

/// The same of HTTP.
fn path(number: usize) -> (String, String) {
    let body = format!(
        "{{\"type\":\"about:blank\",\"title\":\"Not Found\",\"status\":404,\"detail\":\"nothing is at /{number}: see GET /openapi.json\"}}"
    );
    let length = body.len();
    (
        format!("GET /{number} HTTP/1.1\r\nhost: here\r\n\r\n"),
        format!(
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\ncache-control: no-store\r\n\r\n{body}"
        ),
    )
}

#[test]
fn a_pipeline_of_any_depth_is_answered_in_order() {
    if !is_isolated() {
        return;
    }
    const PART: usize = 1_000;
    let running = Running::new(POLICY, |_| {});
    let each: [fn(usize) -> (String, String); 2] = [throttle, path];
    for (protocol, one) in PROTOCOLS.iter().zip(each) {
        others_are_served(&running);
        let before = held_bytes();
        let mut client = (protocol.connect)(&running);
        let mut writer = client.0.try_clone().expect("a connection");
        let writes = std::thread::spawn(move || {
            for start in (0..DEPTH).step_by(PART) {
                let said: String = (start..start + PART).map(|number| one(number).0).collect();
                writer.write_all(said.as_bytes()).expect("written");
            }
        });
        for start in (0..DEPTH).step_by(PART) {
            let answers: String = (start..start + PART).map(|number| one(number).1).collect();
            client.expect("", &answers);
            if start == DEPTH / 2 {
                others_are_served(&running);
            }
        }
        writes.join().expect("written");
        let more = held_bytes().saturating_sub(before);
        assert!(more < MOST_DEEP, "{more} bytes more");
    }
}

//! A reload under load: each answer follows the old policy or the new one, on every protocol, never a mixture.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate_testkit::redis::wait_until;

use crate::kit::{Running, read};
use crate::rls_client::{Grpc, SHOULD};

const LONG: Duration = Duration::from_secs(60);
/// How often another policy is put in force.
const RELOADS: u64 = 300;

/// Two policies whose answers differ in everything: the rule, its limit, and the remaining tokens.
const POLICIES: [&str; 2] = [
    "limits: [{name: early, key: user, rate: 1000000/h}]",
    "limits: [{name: later, key: user, rate: 2000000/h}]",
];

/// How often each policy has answered.
#[derive(Default)]
struct Seen([AtomicU64; 2]);

impl Seen {
    /// An answer that names a rule, and the limit that it has.
    fn note(&self, by: [bool; 2], answer: &str) {
        assert!(by[0] != by[1], "by neither, or by both: {answer}");
        self.0[usize::from(by[1])].fetch_add(1, Ordering::Relaxed);
    }

    fn both(&self, least: u64) -> bool {
        self.0
            .iter()
            .all(|count| count.load(Ordering::Relaxed) >= least)
    }
}

/// Asks one by one, by text that is answered by text.
fn ask(address: SocketAddr, request: &str, (end, forms): (&str, [[&str; 2]; 2]), run: &Run) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut bytes = [0; 4_096];
    while !run.is_over.load(Ordering::Relaxed) {
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        while !answer.contains(end) || !answer.ends_with(['}', '\n']) {
            let read = stream.read(&mut bytes).expect("an answer");
            assert!(read > 0, "closed after {answer:?}");
            answer += std::str::from_utf8(&bytes[..read]).expect("text");
        }
        let by = forms.map(|form| form.iter().all(|part| answer.contains(part)));
        run.seen.note(by, &answer);
    }
}

/// What all who ask share.
#[derive(Default)]
struct Run {
    seen: Seen,
    is_over: AtomicBool,
}

#[test]
fn each_answer_is_by_one_policy() {
    let running = Running::new(POLICIES[0], |_| {});
    let server = running.server.as_ref().expect("a service");
    let runs: [Run; 3] = Default::default();
    let body = r#"{"facts": {"user": "ada"}}"#;
    let post = format!(
        "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let http = [
        [
            "\"rule\":\"early\",\"limit\":1000000,",
            "\"early\";q=1000000;w=3600",
        ],
        [
            "\"rule\":\"later\",\"limit\":2000000,",
            "\"later\";q=2000000;w=3600",
        ],
    ];
    let resp = [
        ["\r\nearly\r\n", "\r\n:1000000\r\n"],
        ["\r\nlater\r\n", "\r\n:2000000\r\n"],
    ];
    std::thread::scope(|scope| {
        let (to_http, to_resp) = (running.http_address(), running.resp_address());
        let (post, command) = (&post, "TG.CHECK user=ada\r\n");
        let [by_http, by_resp, by_grpc] = &runs;
        scope.spawn(move || ask(to_http, post, ("reset_after", http), by_http));
        scope.spawn(move || ask(to_resp, command, ("reset_after", resp), by_resp));
        scope.spawn(|| call(&running, by_grpc));
        let mut reloads = 0;
        wait_until(LONG, "answers by both policies, on every protocol", || {
            reloads += 1;
            let next = POLICIES[usize::from(reloads % 2 == 1)];
            server.apply_policy(read(next)).expect("a policy");
            reloads >= RELOADS && runs.iter().all(|run| run.seen.both(20))
        });
        for run in &runs {
            run.is_over.store(true, Ordering::Relaxed);
        }
    });
}

/// The same request as Envoy sends it: names, and the limit as a protobuf number.
fn call(running: &Running, run: &Run) {
    let mut client = Grpc::to(running);
    let message = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada";
    while !run.is_over.load(Ordering::Relaxed) {
        let answer = client.call(SHOULD, message).expect("an answer");
        let has = |part: &[u8]| answer.windows(part.len()).any(|some| some == part);
        // requests_per_unit, then the unit and the name.
        let is_early = has(b"\x08\xc0\x84\x3d\x10\x03\x1a\x05early");
        let is_later = has(b"\x08\x80\x89\x7a\x10\x03\x1a\x05later");
        let shown = answer.escape_ascii().to_string();
        run.seen.note([is_early, is_later], &shown);
    }
}

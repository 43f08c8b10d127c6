//! What one connection may hold, and for how long; and commands that aren't requests.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use tollgate_testkit::redis::wait_until;

use crate::kit::Running;
use crate::metrics::{scraped, value};
use crate::rls_client::{Failed, Grpc, SHOULD, framed};
use crate::rls_raw::{ADA, HEADERS, RST_STREAM, Raw, TREE, call, frame, others_are_served};

const WATCH: &str = "/grpc.health.v1.Health/Watch";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const TIMEOUTS: &str = "tollgate_protocol_errors_total{protocol=\"grpc\",kind=\"timeout\"}";
const LONG: Duration = Duration::from_secs(60);
/// The time that clients have by default.
const REQUEST_TIME: Duration = Duration::from_secs(10);

#[test]
fn http_1_0_stays_open_for_who_asks_for_that_and_is_told() {
    let running = Running::new(TREE, |_| {});
    let mut client = running.http();
    // As `ab -k` sends it: it waits for ever unless it is told that the connection goes on.
    let asked = "GET /healthz HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: here\r\n\r\n";
    let mut answers = Vec::new();
    for _ in 0..3 {
        client.0.write_all(asked.as_bytes()).expect("written");
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            client.0.read_exact(&mut byte).expect("a head");
            answer.push(byte[0]);
        }
        let head = String::from_utf8(answer).expect("text");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(head.matches("\r\nconnection: keep-alive\r\n").count(), 1);
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length = length.lines().next().and_then(|text| text.parse().ok());
        let mut body = vec![0; length.expect("a number")];
        client.0.read_exact(&mut body).expect("a body");
        answers.push((head, body));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    // Who doesn't ask is served once.
    let once = "GET /healthz HTTP/1.0\r\nHost: here\r\n\r\n";
    client.0.write_all(once.as_bytes()).expect("written");
    let last = client.rest();
    assert!(last.contains("\r\nconnection: close\r\n"), "{last}");
}

#[test]
fn a_connection_watches_and_reflects_by_eight_calls_at_most() {
    let running = Running::new(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let watch = |client: &mut Grpc<'_>| {
        let (response, mut send) = client.begin(WATCH);
        send.send_data(framed(&[]), true).expect("sent");
        (response, send)
    };
    let mut watching: Vec<_> = (0..5).map(|_| watch(&mut client)).collect();
    let reflecting: Vec<_> = (0..3).map(|_| client.begin(REFLECTION)).collect();
    client.call(HEALTH, &[]).expect("an answer");
    let too_many = Failed {
        code: 8,
        why: "a connection has 8 calls at most that watch or reflect".to_owned(),
    };
    assert_eq!(client.call(WATCH, &[]), Err(too_many.clone()));
    assert_eq!(client.call(REFLECTION, &[]), Err(too_many));
    // Decisions go on, and so do other connections.
    assert!(client.call(SHOULD, ADA).is_ok());
    let mut other = Grpc::to(&running);
    let mut talk = other.talk(REFLECTION);
    talk.say(framed(&[7 << 3 | 2, 0]));
    assert!(talk.hear().is_ok());
    // One that ends makes room.
    drop(reflecting);
    wait_until(LONG, "room", || {
        let (response, mut send) = client.begin(REFLECTION);
        send.send_data(framed(&[7 << 3 | 2, 0]), true)
            .expect("sent");
        client.answer(response).is_ok()
    });
    watching.clear();
}

#[test]
fn a_client_that_reads_nothing_is_cut_after_the_time_of_a_request() {
    let running = Running::in_still_time(TREE, |_| {});
    let most = i32::MAX.unsigned_abs();
    let mut raw = Raw::greeted(&running, &[(4, most)]);
    raw.say(&frame(8, 0, 0, &(most - 65_535).to_be_bytes()));
    raw.0.set_nonblocking(true).expect("a flag");
    let (mut stalled, mut next) = (0, 0_u32);
    let mut rest: Vec<u8> = Vec::new();
    // In the end the socket is full in both directions.
    while stalled < 200 {
        if rest.is_empty() {
            let streams = (next..next + 100).map(|number| 2 * number + 1);
            rest = streams
                .flat_map(|stream| call(stream, SHOULD, ADA))
                .collect();
            next += 100;
        }
        match raw.0.write(&rest) {
            Ok(count) => {
                rest.drain(..count);
                stalled = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stalled += 1;
                others_are_served(&running);
            }
        }
        assert!(next < 10_000_000, "all was taken");
    }
    assert_eq!(value(&scraped(&running), TIMEOUTS), "0");
    running.pass(REQUEST_TIME);
    wait_until(LONG, "an end", || {
        value(&scraped(&running), TIMEOUTS) == "1"
    });
    raw.0.set_nonblocking(false).expect("a flag");
    assert_eq!(raw.hear_until(|_| false), None);
    others_are_served(&running);
}

#[test]
fn a_call_ends_when_its_client_says_that_it_waits_no_longer() {
    let too_late = Failed {
        code: 4,
        why: "the deadline of the call has passed".to_owned(),
    };
    // Its message doesn't come.
    let running = Running::in_still_time(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let (response, _send) = client.begin_with(SHOULD, &[("grpc-timeout", "3S")]);
    client.call(HEALTH, &[]).expect("an answer");
    running.pass(Duration::from_secs(3));
    assert_eq!(client.answer(response), Err(too_late));
    // It stands in a queue: it is denied before its client gives it up, as a proxy would let it pass then.
    let policy = "limits: [{name: slow, rate: 1/h, over: wait 2h}]";
    let running = Running::in_still_time(policy, |_| {});
    others_are_served(&running);
    let mut client = Grpc::to(&running);
    let (response, mut send) = client.begin_with(SHOULD, &[("grpc-timeout", "20000m")]);
    send.send_data(framed(ADA), true).expect("sent");
    client.call(HEALTH, &[]).expect("an answer");
    running.pass(Duration::from_secs(16));
    assert_eq!(client.answer(response).expect("an answer")[..2], [8, 2]);
}

#[test]
fn who_compresses_is_told_what_to_send_and_who_accepts_more_gets_plain_messages() {
    let running = Running::new(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let accepts = [("grpc-accept-encoding", "gzip,deflate")];
    let (response, mut send) = client.begin_with(SHOULD, &accepts);
    send.send_data(framed(ADA), true).expect("sent");
    assert_eq!(client.answer(response).expect("an answer")[..2], [8, 1]);
    let compresses = [("grpc-encoding", "gzip")];
    let (response, mut send) = client.begin_with(SHOULD, &compresses);
    let compressed = [&[1, 0, 0, 0, 2][..], b"\x1f\x8b"].concat();
    send.send_data(compressed.into(), true).expect("sent");
    let response = running.block_on(response).expect("an answer");
    let told = |name: &str| response.headers().get(name).map(|value| value.as_bytes());
    assert_eq!(told("grpc-status"), Some(&b"12"[..]));
    assert_eq!(told("grpc-accept-encoding"), Some(&b"identity"[..]));
    let why = b"compressed messages aren't understood: send identity";
    assert_eq!(told("grpc-message"), Some(&why[..]));
}

#[test]
fn metadata_of_more_than_64_kb_is_told_so_and_others_go_on() {
    let running = Running::new(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let too_long = Failed {
        code: 8,
        why: "metadata of more than the 65536 bytes that are taken".to_owned(),
    };
    for (bytes, outcome) in [
        // Envoy takes 60 KiB of headers, and its tracers copy some of them here.
        (9_000, Ok(())),
        (65_000, Ok(())),
        (66_000, Err(&too_long)),
    ] {
        let long = "x".repeat(bytes);
        let (response, mut send) = client.begin_with(SHOULD, &[("x-long", &long)]);
        // It is answered before its message comes.
        let _ = send.send_data(framed(ADA), true);
        let answer = client.answer(response);
        assert_eq!(answer.as_ref().map(drop), outcome, "{bytes}");
    }
    // What is longer than that by far is reset, and other calls of the connection go on.
    let far = "x".repeat(40_000);
    let far: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, &*far)).to_vec();
    let (response, _send) = client.begin_with(SHOULD, &far);
    let refused = running.block_on(response);
    assert!(
        refused
            .as_ref()
            .map_or(true, |answer| answer.status() == 431),
        "{refused:?}"
    );
    assert!(client.call(SHOULD, ADA).is_ok());
}

#[test]
fn answers_that_nobody_reads_are_kept_up_to_a_bound_of_all_connections() {
    let running = Running::in_still_time(TREE, |_| {});
    // No room for a byte of any answer.
    let ask = |count: u32| {
        let mut raw = Raw::greeted(&running, &[(4, 0)]);
        let streams = (0..count).map(|number| 2 * number + 1);
        let calls = streams.flat_map(|stream| call(stream, SHOULD, ADA));
        raw.say(&calls.collect::<Vec<_>>());
        raw
    };
    let kept: Vec<_> = (0..64)
        .map(|_| {
            let mut raw = ask(256);
            for _ in 0..256 {
                assert!(raw.hear_until(|(kind, ..)| *kind == HEADERS).is_some());
            }
            raw
        })
        .collect();
    // Whoever comes then has few.
    let mut last = ask(8);
    for _ in 0..4 {
        let reset = last.hear_until(|(kind, ..)| *kind == RST_STREAM);
        let (_, stream, payload) = reset.expect("a reset");
        assert!(stream > 8, "{stream}");
        assert_eq!(payload, 8_u32.to_be_bytes(), "CANCEL");
    }
    let refused = "tollgate_protocol_errors_total{protocol=\"grpc\",kind=\"rejected\"}";
    assert_eq!(value(&scraped(&running), refused), "4");
    others_are_served(&running);
    // What is given up makes room.
    drop(kept);
    wait_until(LONG, "room", || {
        let mut raw = ask(16);
        let last = raw.hear_until(|(kind, stream, _)| *kind == RST_STREAM || *stream == 31);
        last.is_some_and(|(kind, ..)| kind == HEADERS)
    });
}

//! Clients that reset their calls: the calls are decided and charged, other calls of the connection are answered, and
//! the cost is small.

use std::io::Write;
use std::net::Shutdown;

use h2::Reason;
use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};
use tollgate_testkit::redis::Server;

use crate::kit::Running;
use crate::metrics::{scraped, value};
use crate::rls_client::{Grpc, SHOULD};
use crate::rls_raw::{
    ADA, DATA, Frame, GOAWAY, HEADERS, Raw, TREE, call, frame, head, others_are_served, reset,
};

const RESETS: &str = "tollgate_grpc_resets_total";
/// A hundred requests an hour.
const HUNDRED: &str =
    "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 100}}]";
/// `overall_code` of an answer.
const OK: [u8; 2] = [8, 1];
const OVER_LIMIT: [u8; 2] = [8, 2];

/// What more memory a hostile client may cost, in bytes: its own side is in this process, too.
const MOST_MEMORY: usize = 64 << 20;

fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

/// Reads the answers of so many streams from this one on, and nothing that ends the connection.
fn answers(raw: &mut Raw, from: u32, count: usize) -> Vec<Frame> {
    let mut answers = Vec::new();
    while answers.len() < count {
        let (kind, stream, payload) = raw.hear().expect("an answer");
        assert_ne!(kind, GOAWAY, "{payload:?} after {} answers", answers.len());
        if kind == DATA && stream >= from {
            answers.push((kind, stream, payload));
        }
    }
    answers
}

/// The code of the next call by another client.
fn next_code(running: &Running) -> [u8; 2] {
    let answer = Grpc::to(running).call(SHOULD, ADA).expect("an answer");
    [answer[0], answer[1]]
}

#[test]
fn streams_that_are_reset_before_their_message_end_no_other() {
    let running = Running::new(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    let gone = streams(200).flat_map(|stream| [head(stream, SHOULD), reset(stream)].concat());
    let asked = streams(250)
        .skip(200)
        .flat_map(|stream| call(stream, SHOULD, ADA));
    raw.say(&gone.chain(asked).collect::<Vec<_>>());
    for (_, stream, payload) in answers(&mut raw, 401, 50) {
        assert_eq!(payload[5..7], OK, "{stream}");
    }
    // They are counted, and nothing was charged for them.
    assert_eq!(value(&scraped(&running), RESETS), "200");
}

#[test]
fn a_message_that_is_complete_is_charged_though_its_stream_is_reset() {
    let running = Running::new(HUNDRED, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    let gone = streams(99).flat_map(|stream| [call(stream, SHOULD, ADA), reset(stream)].concat());
    raw.say(&[gone.collect(), call(199, SHOULD, ADA)].concat());
    answers(&mut raw, 199, 1);
    assert_eq!(next_code(&running), OVER_LIMIT);
    assert_eq!(value(&scraped(&running), RESETS), "0");
}

#[test]
fn a_message_that_is_complete_is_charged_though_its_client_leaves() {
    let running = Running::new(HUNDRED, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    let asked = streams(100).flat_map(|stream| call(stream, SHOULD, ADA));
    raw.say(&asked.collect::<Vec<_>>());
    raw.0.shutdown(Shutdown::Both).expect("closed");
    drop(raw);
    // Whoever comes next may be served before the end of the first was seen.
    while next_code(&running) == OK {}
    let text = scraped(&running);
    assert_eq!(
        value(&text, "tollgate_allowed_total{limiter=\"edge/user\"}"),
        "100"
    );
}

#[test]
fn on_a_store_what_was_reset_is_charged_too() {
    let store = Server::start();
    let running = Running::on_store(HUNDRED, &store.url(), |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    let gone = streams(60).flat_map(|stream| [call(stream, SHOULD, ADA), reset(stream)].concat());
    raw.say(&[gone.collect(), call(121, SHOULD, ADA)].concat());
    answers(&mut raw, 121, 1);
    // And so is what a client leaves behind.
    let mut leaving = Raw::greeted(&running, &[]);
    let asked = streams(39).flat_map(|stream| call(stream, SHOULD, ADA));
    leaving.say(&asked.collect::<Vec<_>>());
    leaving.0.shutdown(Shutdown::Both).expect("closed");
    drop(leaving);
    while next_code(&running) == OK {}
    let text = scraped(&running);
    assert_eq!(
        value(&text, "tollgate_allowed_total{limiter=\"edge/user\"}"),
        "100"
    );
}

#[test]
fn thousands_of_streams_that_are_reset_cost_little_and_end_nothing() {
    if !is_isolated() {
        return;
    }
    let running = Running::new(TREE, |_| {});
    let mut other = Grpc::to(&running);
    let before = held_bytes();
    for _ in 0..10 {
        let mut raw = Raw::greeted(&running, &[]);
        let said =
            streams(10_000).flat_map(|stream| [head(stream, SHOULD), reset(stream)].concat());
        raw.say(&said.collect::<Vec<_>>());
        raw.say(&call(20_001, SHOULD, ADA));
        answers(&mut raw, 20_001, 1);
        let more = held_bytes().saturating_sub(before);
        assert!(more < MOST_MEMORY, "{more} bytes more");
    }
    assert!(other.call(SHOULD, ADA).is_ok());
    others_are_served(&running);
    assert_eq!(value(&scraped(&running), RESETS), "100000");
}

#[test]
fn more_streams_in_one_write_than_may_be_open_are_all_answered() {
    let running = Running::new(TREE, |_| {});
    // A client that doesn't know the bound yet begins more than that.
    let mut raw = Raw::greeted(&running, &[]);
    let asked = streams(1_000).flat_map(|stream| call(stream, SHOULD, ADA));
    raw.say(&asked.collect::<Vec<_>>());
    answers(&mut raw, 1, 1_000);
}

#[test]
fn a_flood_of_control_frames_ends_its_connection_and_no_other() {
    let running = Running::new(TREE, |_| {});
    let mut other = Grpc::to(&running);
    let floods: [(&str, Vec<u8>); 7] = [
        ("PING", frame(6, 0, 0, &[7; 8])),
        ("SETTINGS", frame(4, 0, 0, &[])),
        ("acknowledged SETTINGS", frame(4, 1, 0, &[])),
        ("PRIORITY", frame(2, 0, 1, &[0; 5])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &1_u32.to_be_bytes())),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("unknown", frame(0x77, 0, 0, &[0; 4])),
    ];
    for (number, (name, control)) in floods.iter().enumerate() {
        let mut raw = Raw::greeted(&running, &[]);
        raw.say(&head(1, SHOULD));
        // It may be closed before all is said.
        let _ = raw.0.write_all(&control.repeat(20_000));
        if let Some((_, _, payload)) = raw.hear_until(|(kind, ..)| *kind == GOAWAY) {
            let calm = u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes();
            // SETTINGS that nobody sent can't be acknowledged.
            if *name != "acknowledged SETTINGS" {
                assert_eq!(payload[4..8], calm, "{name}");
            }
        }
        assert!(other.call(SHOULD, ADA).is_ok(), "{name}");
        let text = scraped(&running);
        let floods = value(
            &text,
            "tollgate_protocol_errors_total{protocol=\"grpc\",kind=\"flood\"}",
        );
        let broken = value(
            &text,
            "tollgate_protocol_errors_total{protocol=\"grpc\",kind=\"malformed\"}",
        );
        let found: usize = floods.parse::<usize>().unwrap() + broken.parse::<usize>().unwrap();
        assert!(found > number, "{name}: {text}");
    }
}

#[test]
fn as_many_control_frames_as_calls_explain_are_taken() {
    let running = Running::new(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    for stream in streams(3_000) {
        let ping = frame(6, 0, 0, &[7; 8]);
        let window = frame(8, 0, 0, &100_u32.to_be_bytes());
        raw.say(&[call(stream, SHOULD, ADA), ping, window].concat());
        answers(&mut raw, stream, 1);
    }
    assert!(
        raw.hear_until(|(kind, ..)| *kind == HEADERS || *kind == 6)
            .is_some()
    );
}

//! Hostile gRPC clients: stream resets, responses that nobody reads, abandoned connections.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::time::Duration;

use h2::Reason;
use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};

use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD, framed};
use crate::rls_raw::{
    ADA, DATA, HEADERS, PING, RST_STREAM, Raw, SETTINGS, TREE, call, frame, head, others_are_served,
};
use crate::seeds;

const WATCH: &str = "/grpc.health.v1.Health/Watch";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// The times that clients have by default.
const REQUEST_TIME: Duration = Duration::from_secs(10);
const IDLE_TIME: Duration = Duration::from_secs(600);

/// What more memory a hostile client may cost, in bytes: its own side is in this process, too.
const MOST_MEMORY: usize = 64 << 20;

#[test]
fn a_call_that_its_client_gave_up_waits_no_longer() {
    let policy = "limits: [{name: slow, rate: 1/s, over: wait 1h}]";
    let running = Running::new(policy, |_| {});
    others_are_served(&running);
    let mut leaving = Grpc::to(&running);
    let waiting = (0..20).map(|_| {
        let (response, mut send) = leaving.begin(SHOULD);
        send.send_data(framed(ADA), true).expect("sent");
        (response, send)
    });
    let waiting: Vec<_> = waiting.collect();
    // What is answered after them tells that they were taken, and that they are gone.
    leaving.call(HEALTH, &[]).expect("an answer");
    for (_, mut send) in waiting {
        send.send_reset(Reason::CANCEL);
    }
    leaving.call(HEALTH, &[]).expect("an answer");
    let mut client = Grpc::to(&running);
    let (response, mut send) = client.begin(SHOULD);
    send.send_data(framed(ADA), true).expect("sent");
    client.call(HEALTH, &[]).expect("an answer");
    running.clock.advance(Duration::from_secs(1));
    let answer = client.answer(response).expect("an answer");
    assert_eq!(answer[..2], [8, 1], "the first in line");
}

#[test]
fn a_client_that_never_reads_holds_no_more_than_its_streams() {
    let running = Running::new(TREE, |settings| settings.bounds.max_streams = 16);
    // No room for a byte of any answer.
    let mut raw = Raw::greeted(&running, &[(4, 0)]);
    let streams = (0..64).map(|number| 2 * number + 1);
    raw.say(
        &streams
            .flat_map(|stream| call(stream, SHOULD, ADA))
            .collect::<Vec<_>>(),
    );
    // Beyond its streams each is refused, and those are still open.
    let refused = u32::from(Reason::REFUSED_STREAM).to_be_bytes();
    // Messages of such streams may be told, too, that those are closed.
    let closed = u32::from(Reason::STREAM_CLOSED).to_be_bytes();
    let mut told = BTreeSet::new();
    while told.len() < 48 {
        let reset = raw.hear_until(|(kind, ..)| *kind == RST_STREAM);
        let (_, stream, payload) = reset.expect("a reset");
        assert!(stream > 31, "{stream} {payload:?}");
        if payload != refused {
            assert!(
                told.contains(&stream) && payload == closed,
                "{stream} {payload:?}"
            );
        } else {
            assert!(told.insert(stream), "{stream} is refused twice");
        }
    }
    others_are_served(&running);
    // As soon as there is room, they are answered.
    raw.say(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
    for _ in 0..16 {
        let answer = raw.hear_until(|(kind, _, payload)| *kind == DATA && !payload.is_empty());
        assert!(answer.is_some());
    }
}

#[test]
fn a_client_that_only_speaks_is_heard_no_longer() {
    if !is_isolated() {
        return;
    }
    let running = Running::new(TREE, |_| {});
    let before = held_bytes();
    let mut raw = Raw::greeted(&running, &[]);
    raw.0.set_nonblocking(true).expect("a flag");
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(1_000);
    // Each wants an answer that nobody reads: in the end nothing more is taken.
    let mut stalled = 0;
    for _ in 0..100_000 {
        match raw.0.write(&pings) {
            Ok(_) => stalled = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stalled += 1;
                others_are_served(&running);
            }
            Err(_) => stalled = 100,
        }
        if stalled == 100 {
            break;
        }
    }
    assert_eq!(stalled, 100, "all of 1.7 GB was taken");
    let more = held_bytes().saturating_sub(before);
    assert!(more < MOST_MEMORY, "{more} bytes more");
}

#[test]
fn messages_over_the_limit_are_told_so_and_not_kept() {
    if !is_isolated() {
        return;
    }
    let running = Running::new(TREE, |settings| settings.bounds.request_bytes = 1_000);
    let before = held_bytes();
    for _ in 0..100 {
        let mut client = Grpc::to(&running);
        let (response, mut send) = client.begin(SHOULD);
        // The other side may have ended the stream before all is handed over.
        let _ = send.send_data(framed(&vec![0; 1 << 20]), true);
        let failed = client.answer(response).expect_err("a failure");
        assert_eq!(failed.code, 8);
        assert_eq!(
            failed.why,
            "a message of more than the 4000 bytes that are taken"
        );
    }
    others_are_served(&running);
    let more = held_bytes().saturating_sub(before);
    assert!(more < MOST_MEMORY, "{more} bytes more");
}

#[test]
fn what_is_begun_and_left_ends() {
    let running = Running::in_still_time(TREE, |_| {});
    // Nothing at all, a greeting, an answer that nobody takes, a stream without an end: the other side closes each.
    let mut silent = Raw::to(&running);
    let greeted = Raw::greeted(&running, &[]);
    let mut unread = Raw::greeted(&running, &[(4, 0)]);
    unread.say(&call(1, SHOULD, ADA));
    let mut watching = Raw::greeted(&running, &[]);
    watching.say(&call(1, WATCH, &[]));
    let mut client = Grpc::to(&running);
    let (response, _send) = client.begin(SHOULD);
    // An answer tells that what was said before it was read.
    client.call(HEALTH, &[]).expect("an answer");
    running.pass(REQUEST_TIME);
    assert_eq!(silent.hear_until(|_| false), None);
    // A message that isn't sent is told so before.
    let failed = client.answer(response).expect_err("a failure");
    assert_eq!(
        (failed.code, failed.why.as_str()),
        (4, "the message wasn't sent within 10 s")
    );
    // What is left is asked to leave, or whether it is there, and has time for that.
    running.pass(IDLE_TIME - REQUEST_TIME);
    running.pass(REQUEST_TIME);
    for mut raw in [greeted, unread, watching] {
        assert_eq!(raw.hear_until(|_| false), None);
    }
    others_are_served(&running);
}

#[test]
fn a_conversation_whose_answers_nobody_takes_ends() {
    let running = Running::in_still_time(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[(4, 0)]);
    // All services, by their names.
    let question = frame(DATA, 0, 1, &framed(&[7 << 3 | 2, 0]));
    raw.say(&[head(1, REFLECTION), question].concat());
    let begun = raw.hear_until(|(kind, ..)| *kind == HEADERS);
    assert!(begun.is_some());
    others_are_served(&running);
    running.pass(REQUEST_TIME);
    let ended = raw.hear_until(|(kind, ..)| [HEADERS, DATA].contains(kind));
    let (kind, stream, _) = ended.expect("an end");
    assert_eq!((kind, stream), (HEADERS, 1), "fields behind no answer");
    // The connection goes on.
    raw.say(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
    raw.say(&call(3, SHOULD, ADA));
    let answer = raw.hear_until(|(kind, stream, _)| (*kind, *stream) == (DATA, 3));
    assert!(answer.is_some());
}

#[test]
fn a_client_that_watches_and_is_there_stays() {
    let running = Running::new(TREE, |settings| {
        settings.bounds.idle_timeout = Duration::from_millis(1);
        settings.bounds.request_timeout = Duration::from_secs(60);
    });
    let mut raw = Raw::greeted(&running, &[]);
    raw.say(&call(1, WATCH, &[]));
    // It is asked whether it is there, says so, and is asked again.
    for _ in 0..5 {
        let ping = raw.hear_until(|(kind, ..)| *kind == PING);
        let (_, _, payload) = ping.expect("a ping");
        raw.say(&frame(PING, 1, 0, &payload));
    }
    raw.say(&call(3, SHOULD, ADA));
    let answer = raw.hear_until(|(kind, stream, _)| (*kind, *stream) == (DATA, 3));
    assert!(answer.is_some());
}

#[test]
fn any_message_has_an_answer_or_a_status() {
    let running = Running::new(TREE, |_| {});
    let mut client = Grpc::to(&running);
    for (name, seed) in seeds::of("rls") {
        for end in 0..=seed.len() {
            let code = client
                .call(SHOULD, &seed[..end])
                .map_err(|failed| failed.code);
            assert!(
                matches!(code, Ok(_) | Err(3)),
                "{name} up to {end}: {code:?}"
            );
        }
    }
}

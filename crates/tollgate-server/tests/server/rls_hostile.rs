//! Clients that do what no proxy should: streams that are reset, answers that nobody reads, connections that are left.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2::Reason;
use tollgate_testkit::memory::{alone, held};

use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD, framed};
use crate::seeds;

const TREE: &str = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// The times that clients have by default.
const REQUEST_TIME: Duration = Duration::from_secs(10);
const IDLE_TIME: Duration = Duration::from_secs(600);

/// `{domain: edge, descriptors: [{entries: [{key: user, value: ada}]}]}`
const ADA: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada";

/// What more memory a hostile client may cost, in bytes: its own side is in this process, too.
const MOST_MEMORY: usize = 64 << 20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection of HTTP/2 whose frames are written by hand.
struct Raw(TcpStream);

/// A frame: its kind, its stream, and what it carries.
type Frame = (u8, u32, Vec<u8>);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a call, in HPACK's plainest form.
fn head(stream: u32, path: &str) -> Vec<u8> {
    // POST, http, then fields of the static table with values of their own.
    let mut block = vec![0x83, 0x86];
    let media = "application/grpc";
    for (name, value) in [
        (&[0x04][..], path),
        (&[0x01], "here"),
        (&[0x0f, 0x10], media),
    ] {
        block.extend(name);
        block.push(u8::try_from(value.len()).expect("short"));
        block.extend(value.as_bytes());
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A whole call.
fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &framed(message));
    [head(stream, path), data].concat()
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

impl Raw {
    fn to(running: &Running) -> Self {
        let stream = TcpStream::connect(running.grpc()).expect("a connection");
        let long = Some(Duration::from_secs(60));
        stream.set_read_timeout(long).expect("a timeout");
        Self(stream)
    }

    /// With the first words said, and settings: pairs of a name and a number.
    fn greeted(running: &Running, settings: &[(u16, u32)]) -> Self {
        let mut raw = Self::to(running);
        let pairs = settings.iter().flat_map(|(name, value)| {
            [name.to_be_bytes().to_vec(), value.to_be_bytes().to_vec()].concat()
        });
        let settings = frame(SETTINGS, 0, 0, &pairs.collect::<Vec<_>>());
        raw.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.say(&settings);
        raw
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("written");
    }

    /// The next frame; none if the other side closed.
    fn hear(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("a length");
        let mut payload = vec![0; length];
        self.read(&mut payload)?;
        Some((kind, u32::from_be_bytes(stream), payload))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.0.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) => {
                let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(ends.contains(&error.kind()), "{error}");
                None
            }
        }
    }

    /// Hears until a frame is one that is waited for; none if the other side closed before.
    fn hear_until(&mut self, is_it: impl Fn(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.hear()?;
            if is_it(&frame) {
                return Some(frame);
            }
        }
    }
}

/// Others are served as if nothing were.
#[track_caller]
fn others_are_served(running: &Running) {
    let answer = Grpc::to(running).call(SHOULD, ADA).expect("an answer");
    assert_eq!(answer[..2], [8, 1], "OK");
}

#[test]
fn thousands_of_streams_that_are_reset_end_their_connection_and_no_other() {
    if !alone() {
        return;
    }
    let running = Running::new(TREE, |_| {});
    let mut other = Grpc::to(&running);
    let before = held();
    for _ in 0..20 {
        let mut raw = Raw::greeted(&running, &[]);
        let streams = (0..5_000).map(|number| 2 * number + 1);
        let said = streams.flat_map(|stream| [call(stream, SHOULD, ADA), reset(stream)].concat());
        // It may be closed before all is said.
        let _ = raw.0.write_all(&said.collect::<Vec<_>>());
        if let Some((_, _, payload)) = raw.hear_until(|(kind, ..)| *kind == GOAWAY) {
            assert_eq!(
                payload[4..8],
                u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes()
            );
        }
    }
    assert!(other.call(SHOULD, ADA).is_ok());
    others_are_served(&running);
    let more = held().saturating_sub(before);
    assert!(more < MOST_MEMORY, "{more} bytes more");
}

#[test]
fn a_stream_that_is_reset_ends_no_other_of_its_connection() {
    let running = Running::new(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    let gone = [call(1, SHOULD, ADA), reset(1), head(3, SHOULD), reset(3)].concat();
    raw.say(&[gone, call(5, SHOULD, ADA)].concat());
    let answer = raw.hear_until(|(kind, stream, _)| (*kind, *stream) == (DATA, 5));
    let (_, _, payload) = answer.expect("an answer");
    assert_eq!(payload[5..7], [8, 1], "OK");
}

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
    let running = Running::new(TREE, |settings| settings.bounds.streams = 16);
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
    for _ in 16..64 {
        let reset = raw.hear_until(|(kind, ..)| *kind == RST_STREAM);
        let (_, stream, payload) = reset.expect("a reset");
        assert!(stream > 31 && payload == refused, "{stream} {payload:?}");
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
    if !alone() {
        return;
    }
    let running = Running::new(TREE, |_| {});
    let before = held();
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
    let more = held().saturating_sub(before);
    assert!(more < MOST_MEMORY, "{more} bytes more");
}

#[test]
fn messages_over_the_limit_are_told_so_and_not_kept() {
    if !alone() {
        return;
    }
    let running = Running::new(TREE, |settings| settings.bounds.request_bytes = 1_000);
    let before = held();
    for _ in 0..100 {
        let mut client = Grpc::to(&running);
        let (response, mut send) = client.begin(SHOULD);
        // The other side may have ended the stream before all is handed over.
        let _ = send.send_data(framed(&vec![0; 1 << 20]), true);
        let failed = client.answer(response).expect_err("a failure");
        assert_eq!(failed.code, 8);
        assert_eq!(
            failed.why,
            "a message of more than the 1000 bytes that are taken"
        );
    }
    others_are_served(&running);
    let more = held().saturating_sub(before);
    assert!(more < MOST_MEMORY, "{more} bytes more");
}

/// A field of bytes, whose length has two bytes.
fn long(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    let low = u8::try_from(length & 0x7f).expect("seven bits");
    let high = u8::try_from(length >> 7).expect("a byte");
    let mut out = vec![number << 3 | 2, low | 0x80, high];
    out.extend(bytes);
    out
}

#[test]
fn a_fact_that_is_too_long_is_no_refusal() {
    let forms = [
        (TREE, "an entry of a descriptor has 1001 bytes"),
        (
            "limits: [{name: a, key: user, rate: 1/s}]",
            "the fact \"user\" has 1001 bytes",
        ),
    ];
    for (policy, why) in forms {
        let running = Running::new(policy, |settings| settings.bounds.key_bytes = 1_000);
        let ask = |length: usize| {
            let entry = [b"\x0a\x04user".to_vec(), long(2, &vec![b'k'; length])].concat();
            let descriptor = long(2, &long(1, &entry));
            Grpc::to(&running).call(SHOULD, &[b"\x0a\x04edge".to_vec(), descriptor].concat())
        };
        assert_eq!(ask(1_000).expect("an answer")[..2], [8, 1]);
        let failed = ask(1_001).expect_err("a failure");
        assert_eq!(failed.code, 3);
        assert!(failed.why.starts_with(why), "{failed:?}");
    }
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
        settings.bounds.idle_time = Duration::from_millis(1);
        settings.bounds.request_time = Duration::from_secs(60);
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

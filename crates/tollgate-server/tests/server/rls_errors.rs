//! Protocol errors of gRPC clients: tolerated where they do no harm, else counted and logged.

use std::io::Write;
use std::time::Duration;

use tollgate_server::{Log, LogFormat};

use crate::kit::{Running, Said};
use crate::metrics::{scraped, value};
use crate::rls_client::{SHOULD, framed};
use crate::rls_raw::{
    ADA, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, TREE, call, frame, head_with,
};

/// A whole call to an authority.
fn call_to(stream: u32, authority: &[u8]) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &framed(ADA));
    [head_with(stream, SHOULD, authority), data].concat()
}

#[test]
fn any_authority_is_served() {
    let running = Running::new(TREE, |_| {});
    let authorities: [&[u8]; 8] = [
        b"rate_limit_service",
        b"outbound|8081||limits.default.svc.cluster.local",
        b"%2Ftmp%2Flimits.sock",
        b"",
        b"a b",
        b"user@",
        b"[::1",
        b"caf\xc3\xa9\xff",
    ];
    let mut raw = Raw::greeted(&running, &[]);
    for (number, authority) in (0..).zip(authorities) {
        let stream = 2 * number + 1;
        raw.say(&call_to(stream, authority));
        let answer = raw.hear_until(|(kind, ..)| [DATA, RST_STREAM].contains(kind));
        let (kind, of, payload) = answer.expect("an answer");
        assert_eq!((kind, of), (DATA, stream), "{}", authority.escape_ascii());
        assert_eq!(payload[5..7], [8, 1]);
    }
}

#[test]
fn an_authority_in_the_clients_table_is_served_again() {
    let running = Running::new(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[]);
    // `outbound|8081||a`, added to both tables; then 62, its place there.
    let mut block = vec![0x83, 0x86, 0x41, 16];
    block.extend(b"outbound|8081||a");
    let again = [0x83, 0x86, 0xbe];
    for (stream, start) in [(1, &block[..]), (3, &again), (5, &again)] {
        let mut block = start.to_vec();
        for (name, value) in [(&[0x04][..], SHOULD), (&[0x0f, 0x10], "application/grpc")] {
            block.extend(name);
            block.push(u8::try_from(value.len()).expect("short"));
            block.extend(value.as_bytes());
        }
        let head = frame(HEADERS, END_HEADERS, stream, &block);
        let data = frame(DATA, END_STREAM, stream, &framed(ADA));
        raw.say(&[head, data].concat());
        let answer = raw.hear_until(|(kind, ..)| [DATA, RST_STREAM].contains(kind));
        assert_eq!(answer.map(|(kind, of, _)| (kind, of)), Some((DATA, stream)));
    }
}

#[test]
fn errors_are_counted_and_logged_on_every_listener() {
    let said = Said::default();
    let running = Running::in_still_time(TREE, |settings| {
        settings.log = Log::to_writer(said.clone(), LogFormat::Text);
    });
    // A stream without a method, HTTP/1 where HTTP/2 is spoken, and the other way round.
    let mut raw = Raw::greeted(&running, &[]);
    raw.say(&frame(HEADERS, END_HEADERS, 1, &[0x86, 0x84]));
    assert!(raw.hear_until(|(kind, ..)| *kind == RST_STREAM).is_some());
    let mut lost = Raw::to(&running);
    lost.say(b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n");
    while lost.hear().is_some() {}
    let mut http = running.http();
    http.0
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .expect("written");
    http.rest();
    let mut long = running.http();
    let line = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9_000));
    long.0.write_all(line.as_bytes()).expect("written");
    long.rest();
    let mut resp = running.resp();
    resp.0.write_all(b"*1\r\n:5\r\n").expect("written");
    resp.rest();
    let mut admin = running.admin();
    admin.0.write_all(b"no request\r\n\r\n").expect("written");
    admin.rest();
    let mut slow = running.resp();
    slow.expect("PING\r\n*2\r\n", "+PONG\r\n");
    running.pass(Duration::from_secs(10));
    slow.rest();
    let text = scraped(&running);
    for (protocol, kind, count) in [
        ("grpc", "malformed", "2"),
        ("http", "malformed", "1"),
        ("http", "too_large", "1"),
        ("resp", "malformed", "1"),
        ("resp", "timeout", "1"),
        ("admin", "malformed", "1"),
        ("metrics", "malformed", "0"),
    ] {
        let series =
            format!("tollgate_protocol_errors_total{{protocol=\"{protocol}\",kind=\"{kind}\"}}");
        assert_eq!(value(&text, &series), count, "{series}");
    }
    let lines = said.text();
    let lines: Vec<_> = lines
        .lines()
        .filter(|line| line.contains("protocol error"))
        .collect();
    assert_eq!(lines.len(), 6, "{lines:#?}");
    let grpc = "warning: protocol error listener=grpc kind=malformed peer=127.0.0.1:";
    assert!(lines[0].contains(grpc), "{lines:#?}");
    let detail = "detail=a stream was reset: unspecific protocol error detected count=1";
    assert!(lines[0].ends_with(detail), "{lines:#?}");
}

#[test]
fn an_answer_that_nobody_reads_is_given_up_in_time() {
    let running = Running::in_still_time(TREE, |_| {});
    let mut raw = Raw::greeted(&running, &[(4, 0)]);
    raw.say(&call(1, SHOULD, ADA));
    assert!(raw.hear_until(|(kind, ..)| *kind == HEADERS).is_some());
    running.pass(Duration::from_secs(10));
    let end = raw.hear_until(|(kind, ..)| *kind == RST_STREAM);
    assert_eq!(end, Some((RST_STREAM, 1, 8_u32.to_be_bytes().to_vec())));
    // The connection goes on.
    raw.say(&frame(4, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
    raw.say(&call(3, SHOULD, ADA));
    assert!(
        raw.hear_until(|(kind, stream, _)| (*kind, *stream) == (DATA, 3))
            .is_some()
    );
    let text = scraped(&running);
    let timeouts = "tollgate_protocol_errors_total{protocol=\"grpc\",kind=\"timeout\"}";
    assert_eq!(value(&text, timeouts), "1");
}

//! Malformed HTTP: ambiguous requests, and bodies longer than declared. Each gets one error, and nothing behind it is
//! read.

use std::io::Write;
use std::net::Shutdown;

use crate::hostile::{POLICY, others_are_served};
use crate::kit::{Client, Running};

/// Sends bytes and reads everything: the status, and the body.
fn said(running: &Running, said: &[u8]) -> (u16, String) {
    let mut client = running.http();
    // It may be closed before all is said.
    let _ = client.0.write_all(said);
    let _ = client.0.shutdown(Shutdown::Write);
    heard(&mut client)
}

fn heard(client: &mut Client) -> (u16, String) {
    let answer = client.rest();
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer:?}")), answer)
}

/// What a request would do that is hidden in another.
const HIDDEN: &str = "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n{\"facts\":{\"user\":\"ada\"}}\n";

#[test]
fn what_two_readers_could_read_in_two_ways_is_refused_once() {
    let running = Running::new(POLICY, |_| {});
    let long = "x".repeat(70_000);
    let field = format!("x: {long}\r\n\r\n");
    let many = "x: y\r\n".repeat(65) + "\r\n";
    let chunks = "1;".to_owned() + &"x".repeat(250) + "\r\n\n\r\n";
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{}", chunks.repeat(1_000));
    let plain = format!(
        "transfer-encoding: chunked\r\n\r\n{}",
        "1\r\n \r\n".repeat(60_000)
    );
    for (fields, status) in [
        ("content-length: 2\r\ncontent-length: 2\r\n\r\n{}", 400),
        ("content-length: 0\r\ncontent-length: 102\r\n\r\n", 400),
        ("content-length: 0, 102\r\n\r\n", 400),
        ("content-length: -1\r\n\r\n", 400),
        ("content-length: 0x10\r\n\r\n", 400),
        ("content-length:\r\n\r\n", 400),
        ("content-length: 18446744073709551616\r\n\r\n", 400),
        ("content-length: 99999999999999\r\n\r\n", 413),
        ("content-length: 65537\r\n\r\n", 413),
        (
            "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
        ("transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        ("transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        ("transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        ("transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n", 400),
        ("transfer-encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
        (
            "transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            413,
        ),
        (
            "transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            400,
        ),
        ("transfer-encoding: chunked\r\n\r\n1\n \r\n0\r\n\r\n", 400),
        // A line that goes on in the next.
        ("x: y\r\n z\r\n\r\n", 400),
        ("content-length: 1\r\n 02\r\n\r\n", 400),
        (" content-length: 0\r\n\r\n", 400),
        // Lines that end without CR.
        ("x: y\ncontent-length: 0\r\n\r\n", 400),
        ("content-length: 0\r\n\n", 400),
        ("content-length: 0\n\n", 400),
        ("x: y\rcontent-length: 0\r\n\r\n", 400),
        ("x: \0\r\n\r\n", 400),
        ("host: there\r\n\r\n", 400),
        // More than is taken.
        (&field, 431),
        (&many, 431),
        (&chunked, 413),
        (&plain, 413),
    ] {
        let text = format!(
            "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n{fields}{HIDDEN}"
        );
        let (found, answer) = said(&running, text.as_bytes());
        let shown = &fields[..fields.len().min(80)];
        assert_eq!(found, status, "{shown:?}: {answer}");
        assert_eq!(
            answer.matches("\r\ncontent-length: ").count(),
            1,
            "{shown:?}: {answer}"
        );
        assert!(
            answer.contains("application/problem+json"),
            "{shown:?}: {answer}"
        );
        assert!(answer.contains("connection: close"), "{shown:?}: {answer}");
        others_are_served(&running);
    }
    let look = "{\"facts\":{\"user\":\"ada\"}}";
    let json = "content-type: application/json\r\n";
    let (_, left) = running.http().request("POST", "/v1/peek", json, look);
    assert!(
        left.contains("\"remaining\":1000000"),
        "one was decided: {left}"
    );
}

#[test]
fn first_lines_that_arent_are_refused() {
    let running = Running::new(POLICY, |_| {});
    for (line, status) in [
        ("GET  /healthcheck HTTP/1.1", 400),
        ("GET /healthcheck", 400),
        ("GET /healthcheck HTTP/2.0", 505),
        ("GET /healthcheck HTTP/1.2", 505),
        ("GET /health check HTTP/1.1", 505),
        ("\0GET /healthcheck HTTP/1.1", 400),
        ("*1", 400),
    ] {
        let text = format!("{line}\r\nhost: here\r\n\r\n");
        let (found, answer) = said(&running, text.as_bytes());
        assert_eq!(found, status, "{line:?}: {answer}");
        others_are_served(&running);
    }
    // TLS, where none is spoken.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    assert_eq!(said(&running, &hello).0, 400);
}

#[test]
fn a_body_that_is_too_long_is_told_though_all_of_it_is_sent() {
    let running = Running::new(POLICY, |_| {});
    let head = "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n";
    let body = " ".repeat(4 << 20);
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    for _ in 0..50 {
        let (status, answer) = said(&running, text.as_bytes());
        assert_eq!(status, 413, "{answer}");
        assert!(answer.contains("the body is longer than the 65536 bytes that are taken"));
    }
    // A client that asks first sends none of it.
    let asks = format!("{head}expect: 100-continue\r\ncontent-length: 65537\r\n\r\n");
    assert_eq!(said(&running, asks.as_bytes()).0, 413);
    others_are_served(&running);
}

#[test]
fn facts_are_as_long_as_a_request_has_room_for() {
    let json = "content-type: application/json\r\n";
    let check = |running: &Running, length: usize| {
        let body = format!("{{\"facts\":{{\"user\":\"{}\"}}}}", "k".repeat(length));
        running.http().request("POST", "/v1/check", json, &body)
    };
    let running = Running::new(POLICY, |_| {});
    for length in [8_192, 8_193, 65_000] {
        assert_eq!(check(&running, length).0, 200);
    }
    assert_eq!(check(&running, 65_536).0, 413);
    let running = Running::new(POLICY, |settings| {
        settings.bounds.request_bytes = 70_000;
    });
    assert_eq!(check(&running, 65_536).0, 200);
}

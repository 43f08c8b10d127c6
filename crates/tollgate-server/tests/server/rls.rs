//! Envoy's protocol, by a client of plain HTTP/2.

use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD};

const TREE: &str = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2, name: users}}]";

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
    out.extend(bytes);
    out
}

fn request(domain: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(key, value)| {
        field(
            1,
            &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat(),
        )
    });
    let descriptor: Vec<u8> = entries.collect();
    [field(1, domain.as_bytes()), field(2, &descriptor)].concat()
}

/// Calls a method: the status and what was answered.
fn call(running: &Running, path: &str, message: &[u8]) -> (String, Vec<u8>) {
    let mut client = Grpc::to(running);
    match client.call(path, message) {
        Ok(answer) => ("0".to_owned(), answer),
        Err(failed) => (failed.code.to_string(), Vec::new()),
    }
}

#[test]
fn a_tree_decides_and_tells_what_is_left() {
    let running = Running::new(TREE, |_| {});
    let ask = |user| call(&running, SHOULD, &request("edge", &[("user", user)]));
    let limit = field(2, &[&[8, 2, 16, 3][..], &field(3, b"users")].concat());
    let status = |code: u8, left: &[u8], reset: &[u8]| {
        let status = [&[8, code][..], &limit, left, &field(4, reset)].concat();
        [&[8, code][..], &field(2, &status)].concat()
    };
    let (ok, answer) = ask("ada");
    assert_eq!(ok, "0");
    let expected = status(1, &[24, 1], &[8, 0x90, 0x1c]);
    assert_eq!(answer[..expected.len()], expected, "{answer:?}");
    let _ = ask("ada");
    let (ok, answer) = ask("ada");
    let expected = status(2, &[], &[8, 0x90, 0x1c]);
    assert_eq!(
        (ok.as_str(), &answer[..expected.len()]),
        ("0", &expected[..]),
        "{answer:?}"
    );
    assert_eq!(ask("bob").1[..2], [8, 1]);
}

#[test]
fn rules_answer_too() {
    let running = Running::new("limits: [{name: per-user, key: user, rate: 1/min}]", |_| {});
    let ask = || {
        call(
            &running,
            SHOULD,
            &request("any", &[("user", "ada"), ("user", "bob")]),
        )
    };
    assert_eq!(ask().1[..2], [8, 1]);
    let (ok, answer) = ask();
    assert_eq!((ok.as_str(), &answer[..2]), ("0", &[8, 2][..]));
    let name = answer
        .windows(8)
        .filter(|bytes| *bytes == b"per-user")
        .count();
    assert_eq!(name, 2, "as the limit, and in the metadata");
}

#[test]
fn what_cant_be_answered_has_a_status() {
    let running = Running::new(TREE, |settings| settings.bounds.request_bytes = 100);
    for (path, message, status) in [
        (SHOULD, &[0xff][..], "3"),
        (SHOULD, &[], "3"),
        (SHOULD, &field(1, b"edge"), "3"),
        (SHOULD, &[0; 401], "8"),
        (
            "/envoy.service.ratelimit.v3.RateLimitService/Other",
            &[],
            "12",
        ),
        ("/grpc.health.v1.Health/Check", &[], "0"),
        ("/grpc.health.v1.Health/Check", &field(1, b"other"), "5"),
        ("/grpc.health.v1.Health/Check", &[0xff], "3"),
        (
            "/grpc.health.v1.Health/Check",
            &field(1, b"envoy.service.ratelimit.v3.RateLimitService"),
            "0",
        ),
    ] {
        assert_eq!(
            call(&running, path, message).0,
            status,
            "{path} {message:?}"
        );
    }
    assert_eq!(
        call(&running, "/grpc.health.v1.Health/Check", &[]).1,
        [8, 1]
    );
}

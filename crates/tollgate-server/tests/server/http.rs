//! HTTP and JSON.

use std::time::Duration;

use crate::kit::Running;

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 2/min}]";
const JSON: &str = "content-type: application/json\r\n";

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a body").1
}

#[test]
fn a_request_is_decided_with_fields_that_tell_what_is_left() {
    let running = Running::new(POLICY, |_| {});
    let check = r#"{"facts": {"user": "ada"}}"#;
    let (status, answer) = running.http().request("POST", "/v1/check", JSON, check);
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer.contains(
            "\r\nratelimit-policy: \"per-user\";q=2;w=60\r\nratelimit: \"per-user\";r=1;t=30\r\n"
        ),
        "{answer}"
    );
    assert_eq!(
        body(&answer),
        r#"{"allowed":true,"rule":"per-user","limit":2,"remaining":1,"retry_after":0,"reset_after":30}"#
    );
    running.clock.advance(Duration::from_millis(500));
    let two = r#"{"facts": {"user": "ada"}, "cost": 2}"#;
    let (status, answer) = running.http().request("POST", "/v1/check", JSON, two);
    assert_eq!(status, 429, "{answer}");
    assert!(answer.contains("\r\nretry-after: 30\r\n"), "{answer}");
    assert_eq!(
        body(&answer),
        r#"{"allowed":false,"rule":"per-user","limit":2,"remaining":1,"retry_after":29.5,"reset_after":29.5}"#
    );
    let (status, answer) = running.http().request("POST", "/v1/peek", JSON, check);
    assert_eq!(
        (status, body(&answer)),
        (
            200,
            r#"{"allowed":true,"rule":"per-user","limit":2,"remaining":1,"retry_after":0,"reset_after":29.5}"#
        )
    );
}

#[test]
fn a_list_is_decided_in_order() {
    let running = Running::new(POLICY, |settings| settings.bounds.batch = 3);
    let list =
        r#"[{"facts":{"user":"ada"}},{"facts":{"user":7}},{"facts":{"user":"ada"},"cost":2}]"#;
    let (status, answer) = running.http().request("POST", "/v1/check", JSON, list);
    assert_eq!(status, 200);
    let allowed: Vec<_> = body(&answer).match_indices("\"allowed\":true").collect();
    assert_eq!(
        (allowed.len(), body(&answer).contains("\"allowed\":false")),
        (2, true),
        "{answer}"
    );
    let (status, answer) = running
        .http()
        .request("POST", "/v1/check", JSON, "[{},{},{},{}]");
    assert_eq!(status, 413, "{answer}");
}

#[test]
fn what_is_wrong_is_named() {
    let running = Running::new(POLICY, |_| {});
    for (method, path, fields, text, status, says) in [
        (
            "POST",
            "/v1/check",
            JSON,
            r#"{"facts": {"user": []}}"#,
            400,
            "facts.user: invalid type: sequence",
        ),
        (
            "POST",
            "/v1/check",
            JSON,
            r#"{"facts": {}, "cost": "x"}"#,
            400,
            "cost: invalid type: string",
        ),
        (
            "POST",
            "/v1/check",
            JSON,
            r#"{"fact": {}}"#,
            400,
            "unknown field `fact`",
        ),
        ("POST", "/v1/check", JSON, "{", 400, "EOF while parsing"),
        (
            "POST",
            "/v1/check",
            "",
            "{}",
            415,
            "send Content-Type: application/json",
        ),
        (
            "POST",
            "/v1/check",
            "content-type: application/json\r\norigin: http://evil\r\n",
            "{}",
            403,
            "other origins",
        ),
        ("GET", "/v1/check", "", "", 405, "/v1/check takes POST"),
        (
            "POST",
            "/v1/chekc",
            JSON,
            "{}",
            404,
            "nothing is at /v1/chekc",
        ),
        (
            "POST",
            "/v1/refund",
            JSON,
            "{}",
            403,
            "start the service with --http-token-file",
        ),
        ("GET", "/healthz", "", "", 404, "nothing is at /healthz"),
    ] {
        let (found, answer) = running.http().request(method, path, fields, text);
        assert_eq!(found, status, "{path}: {answer}");
        assert!(body(&answer).contains(says), "{says}: {answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
    }
}

#[test]
fn one_connection_serves_many_requests() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.http();
    let one = "GET /healthcheck HTTP/1.1\r\nhost: here\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nOK\n";
    client.expect(one, answer);
    client.expect(&one.repeat(20), &answer.repeat(20));
    client.expect(
        "HEAD /healthcheck HTTP/1.1\r\nhost: here\r\n\r\n",
        answer.strip_suffix("OK\n").expect("a body"),
    );
}

#[test]
fn probes_ask_the_admin_listener() {
    let running = Running::new(POLICY, |_| {});
    for path in ["/healthz", "/readyz"] {
        assert_eq!(running.admin().request("GET", path, "", "").0, 200);
    }
    assert_eq!(
        running.admin().request("POST", "/v1/check", JSON, "{}").0,
        404
    );
}

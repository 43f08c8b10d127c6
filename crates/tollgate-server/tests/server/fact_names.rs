//! Header names are case-insensitive, on every protocol.

use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD};

/// Nothing passes that has this header; others have no limit.
const POLICY: &str =
    "limits: [{name: free, match: {header.X-Plan: free}, key: header.X-Team, rate: 1/h}]";
const JSON: &str = "content-type: application/json\r\n";

#[test]
fn a_header_is_found_however_resp_writes_it() {
    for (first, second) in [
        (
            "header.X-Plan=free header.X-Team=a",
            "header.x-plan=free header.x-team=a",
        ),
        (
            "header.x-plan=free header.X-TEAM=a",
            "header.X-PLAN=free header.X-Team=a",
        ),
    ] {
        let running = Running::new(POLICY, |_| {});
        let mut client = running.resp();
        let allowed = "*12\r\n$7\r\nallowed\r\n:1\r\n$4\r\nrule\r\n$4\r\nfree\r\n";
        let denied = "*16\r\n$7\r\nallowed\r\n:0\r\n$4\r\nrule\r\n$4\r\nfree\r\n";
        for (facts, begins) in [(first, allowed), (second, denied)] {
            let answer = client.ask(&format!("TG.CHECK {facts}\r\n"), begins.len());
            assert!(answer.starts_with(begins), "{facts}: {answer}");
            client = running.resp();
        }
        // What isn't a header keeps its case, and what isn't text stays what it is.
        let mut client = running.resp();
        let none = "*12\r\n$7\r\nallowed\r\n:1\r\n$4\r\nrule\r\n$-1\r\n";
        let answer = client.ask(
            "TG.CHECK Header.X-Plan=free header.X-Team=a\r\n",
            none.len(),
        );
        assert!(answer.starts_with(none), "{answer}");
        // Two spellings are one fact, which can't have two values.
        running.resp().expect(
            "TG.CHECK header.X-Plan=free header.x-plan=paid\r\n",
            "-ERR the fact \"header.x-plan\" has two values: send one\r\n",
        );
    }
}

#[test]
fn a_header_is_found_however_http_writes_it() {
    let running = Running::new(POLICY, |_| {});
    for (facts, status) in [
        (r#"{"header.X-Plan": "free", "header.X-Team": "a"}"#, 200),
        (r#"{"header.x-plan": "free", "header.X-TEAM": "a"}"#, 429),
        (
            r#"{"header.X-\u0050lan": "free", "header.x-team": "a"}"#,
            429,
        ),
    ] {
        let body = format!(r#"{{"facts": {facts}}}"#);
        let (found, answer) = running.http().request("POST", "/v1/check", JSON, &body);
        assert_eq!(found, status, "{facts}: {answer}");
    }
    let (status, answer) = running.http().request(
        "POST",
        "/v1/check",
        JSON,
        r#"{"facts": {"header.X-Plan": "free", "header.x-plan": "paid"}}"#,
    );
    let why = r#"facts: \"header.x-plan\" has two values: send one"#;
    assert!(status == 400 && answer.contains(why), "{answer}");
    let (status, answer) = running.http().request(
        "GET",
        "/v1/usage?header.X-Plan=free&header.X-Team=a",
        "",
        "",
    );
    assert!(
        status == 200 && answer.contains(r#""rule":"free""#),
        "{answer}"
    );
}

#[test]
fn a_header_is_found_however_rls_writes_it() {
    let running = Running::new(POLICY, |_| {});
    // Two entries of one descriptor.
    let asked = |plan: &[u8], team: &[u8]| {
        let entry = |key: &[u8], value: &[u8]| {
            let pair = [
                &[0x0a, u8::try_from(key.len()).expect("short")],
                key,
                &[0x12, u8::try_from(value.len()).expect("short")],
                value,
            ]
            .concat();
            [&[0x0a, u8::try_from(pair.len()).expect("short")], &pair[..]].concat()
        };
        let entries = [entry(plan, b"free"), entry(team, b"a")].concat();
        let length = u8::try_from(entries.len()).expect("short");
        [&b"\x0a\x04edge\x12"[..], &[length], &entries[..]].concat()
    };
    let mut client = Grpc::to(&running);
    let first = client.call(SHOULD, &asked(b"header.X-Plan", b"header.X-Team"));
    assert_eq!(first.expect("an answer")[..2], [8, 1], "OK");
    let second = client.call(SHOULD, &asked(b"header.x-plan", b"header.X-TEAM"));
    assert_eq!(second.expect("an answer")[..2], [8, 2], "OVER_LIMIT");
}

//! Clients that disconnect, send too much, or send ambiguous requests: their cost to other clients.

use std::io::Write;
use std::time::Duration;

use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};
use tollgate_testkit::redis::Server;

use crate::hostile_review::{JSON, ask, post, used};
use crate::kit::{Running, secret};
use crate::rls_client::Grpc;

/// Each fact is compared with those before it: a client must not choose how often.
#[test]
fn facts_are_bounded() {
    let running = Running::new("limits: [{name: all, key: user, rate: 9/h}]", |_| {});
    let facts = |count: usize| (0..count).map(|number| format!(r#""a{number}": 1"#));
    let asked = |count: usize| {
        let facts: Vec<_> = facts(count).collect();
        format!(r#"{{"facts": {{{}}}}}"#, facts.join(","))
    };
    assert_eq!(post(&running, "/v1/check", &asked(1_024)).0, 200);
    for path in ["/v1/check", "/v1/peek", "/v1/permits", "/v1/reserve"] {
        let named = asked(1_025).replacen('{', r#"{"id": "x","#, 1);
        let asked = if path.starts_with("/v1/r") || path.starts_with("/v1/perm") {
            named
        } else {
            asked(1_025)
        };
        let (status, told) = post(&running, path, &asked);
        assert_eq!(status, 400, "{path}: {told}");
        let why = "facts: 1025 of them, more than the 1024 that are taken";
        assert_eq!(told["detail"], why);
    }
    let (status, told) = post(&running, "/v1/check", &format!("[{}]", asked(1_025)));
    assert_eq!((status, &told[0]["allowed"]), (200, &false.into()));
    let entries = |count: usize| {
        let entries: Vec<_> = (0..count)
            .map(|number| format!(r#"{{"key": "a{number}", "value": "1"}}"#))
            .collect();
        format!(r#"{{"entries": [{}]}}"#, entries.join(","))
    };
    assert!(ask(&running, &entries(1_024)).is_ok());
    let told = ask(&running, &entries(1_025)).map_err(|failed| failed.code);
    assert_eq!(told, Err(3));
    let query = |facts: usize, values: usize| {
        let facts = (0..facts).map(|number| format!("a{number}=1"));
        let values = (0..values).map(|number| format!("user={number}"));
        let all: Vec<_> = facts.chain(values).collect();
        running
            .http()
            .request("GET", &format!("/v1/usage?{}", all.join("&")), "", "")
            .0
    };
    assert_eq!((query(63, 300), query(64, 2)), (200, 400));
}

/// An idle connection frees its buffers, however large its responses were.
#[test]
fn connections_on_which_nothing_happens_keep_next_to_nothing() {
    if !is_isolated() {
        return;
    }
    let rules: Vec<_> = (0..30)
        .map(|number| format!("{{name: rule-{number}, key: user, rate: 9/h}}"))
        .collect();
    let running = Running::new(&format!("limits: [{}]", rules.join(", ")), |_| {});
    let values: Vec<_> = (0..300).map(|number| format!("user={number}")).collect();
    let say = format!(
        "GET /v1/usage?{} HTTP/1.1\r\nhost: x\r\n\r\n",
        values.join("&")
    );
    let ask = || {
        let mut client = running.http();
        let head = client.ask(&say, 100);
        let length = head.split_once("content-length: ").expect("a length").1;
        let length: usize = length
            .split('\r')
            .next()
            .expect("a line")
            .parse()
            .expect("a number");
        let (head, start) = head.split_once("\r\n\r\n").expect("a body");
        assert!(
            head.starts_with("HTTP/1.1 200") && length > 900_000,
            "{head}"
        );
        client.ask("", length - start.len());
        client
    };
    drop(ask());
    let before = held_bytes();
    let clients: Vec<_> = (0..100).map(|_| ask()).collect();
    let more = held_bytes().saturating_sub(before);
    assert!(more < 32 << 20, "{more} bytes for {}", clients.len());
}

/// Short questions with long answers: only so many are answered before some of them are read.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    if !is_isolated() {
        return;
    }
    let rules: Vec<_> = (0..2_000)
        .map(|number| format!("{{name: rule-{number}, key: user, rate: 9/h}}"))
        .collect();
    let running = Running::new(&format!("limits: [{}]", rules.join(", ")), |_| {});
    let openapi = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    for (mut client, say) in [(running.resp(), "TG.RULES\r\n"), (running.http(), openapi)] {
        let before = held_bytes();
        client
            .0
            .write_all(say.repeat(16_000 / say.len()).as_bytes())
            .expect("written");
        assert_eq!(client.ask("", 4).len(), 4);
        let more = held_bytes().saturating_sub(before);
        assert!(more < 4 << 20, "{more} bytes for {say:?}");
    }
}

/// Who waits and is gone doesn't stand in the way of those who come after.
#[test]
fn a_client_that_leaves_frees_its_place_in_line() {
    for is_http in [false, true] {
        let policy = "limits: [{name: calls, key: user, rate: 1/m, over: wait 1h}]";
        let running = Running::new(policy, |_| {});
        let passed = "*12\r\n$7\r\nallowed\r\n:1\r\n";
        assert_eq!(
            running.resp().ask("TG.CHECK user=ada\r\n", passed.len()),
            passed
        );
        let wait =
            || post(&running, "/v1/peek", r#"{"facts": {"user": "ada"}}"#).1["retry_after"].clone();
        assert_eq!(wait(), 60);
        let mut gone = if is_http {
            running.http()
        } else {
            running.resp()
        };
        let say = if is_http {
            "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n{\"facts\":{\"user\":\"ada\"}} "
        } else {
            "PING\r\nTG.CHECK user=ada\r\n"
        };
        gone.0.write_all(say.as_bytes()).expect("written");
        let until = |told: u64| (0..3_000).any(|_| wait() == told);
        assert!(until(120), "it waits");
        drop(gone);
        assert!(until(60), "it is gone: http {is_http}");
    }
}

/// A call that is reset while the store hangs leaks no permit.
#[test]
fn a_slot_of_a_call_that_was_given_up_is_free() {
    let server = Server::start();
    let policy = "limits: [{name: jobs, key: user, concurrency: 3}]";
    let running = Running::on_store(policy, &server.url(), |_| {});
    assert_eq!(used(&running, "user=ada"), [0]);
    for _ in 0..3 {
        server.pause();
        let mut grpc = Grpc::to(&running);
        let mut calls = Vec::new();
        for _ in 0..3 {
            let (response, mut send) = grpc.begin(crate::rls_client::SHOULD);
            let ada = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada";
            let framed = crate::rls_client::framed(ada);
            send.send_data(framed, true).expect("sent");
            calls.push((response, send));
        }
        // Health is answered: so the calls before it are under way.
        let health = grpc.call("/grpc.health.v1.Health/Check", b"");
        assert!(health.is_ok());
        for (_, send) in &mut calls {
            send.send_reset(h2::Reason::CANCEL);
        }
        let health = grpc.call("/grpc.health.v1.Health/Check", b"");
        assert!(health.is_ok());
        server.resume();
        assert!((0..2_000).any(|_| used(&running, "user=ada") == [0]));
    }
    assert_eq!(used(&running, "user=ada"), [0]);
}

#[test]
fn chunks_that_can_be_read_in_two_ways_are_refused() {
    let running = Running::new("limits: [{name: all, rate: 100/h}]", |_| {});
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in [
        // No size at all, which isn't the last chunk.
        "2\r\n{}\r\n\r\n\r\n",
        "2\r\n{}\r\n;a\r\n\r\n",
        "2\r\n{}\r\n \r\n\r\n",
        // Some end a line here.
        "2;a\nx\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}\r\n0;a\nx\r\n\r\n",
    ] {
        let mut client = running.http();
        client
            .0
            .write_all(format!("{head}{body}").as_bytes())
            .expect("written");
        let told = client.rest();
        assert!(told.starts_with("HTTP/1.1 400 "), "{body:?}: {told}");
    }
}

#[test]
fn what_is_around_chunks_is_bounded() {
    let running = Running::new("limits: [{name: all, rate: 100/h}]", |_| {});
    let mut client = running.http();
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    client.0.write_all(head.as_bytes()).expect("written");
    let chunk = format!("1;{}\r\n \r\n", "x".repeat(200));
    let mut sent = 0;
    // 64 KiB are taken: far more around them than that is no request.
    while sent < 1 << 20 {
        match client.0.write_all(chunk.as_bytes()) {
            Ok(()) => sent += chunk.len(),
            Err(_) => break,
        }
    }
    let mut first = [0; 12];
    let read = std::io::Read::read_exact(&mut client.0, &mut first);
    assert!(
        read.is_err() || first == *b"HTTP/1.1 413",
        "{:?}",
        String::from_utf8_lossy(&first)
    );
}

/// A page of another site can have its own name lead to this machine: then its requests look like those of its own
/// origin.
#[test]
fn a_name_that_leads_here_isnt_our_own() {
    let running = Running::new("limits: [{name: all, rate: 9/h}]", |_| {});
    for (host, origin, status) in [
        ("evil.example", "http://evil.example", 403),
        ("evil.example:8080", "http://evil.example:8080", 403),
        (
            "localhost.evil.example",
            "http://localhost.evil.example",
            403,
        ),
        (
            "127.0.0.1.evil.example",
            "http://127.0.0.1.evil.example",
            403,
        ),
        ("127.0.0.1:8080", "http://evil.example", 403),
        ("localhost:8080", "null", 403),
        ("127.0.0.1:8080", "http://127.0.0.1:8080", 200),
        ("localhost", "http://localhost", 200),
        ("[::1]:8080", "http://[::1]:8080", 200),
    ] {
        let mut client = running.http();
        let text = format!(
            "POST /v1/check HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: close\r\n\
             {JSON}content-length: 2\r\n\r\n{{}}"
        );
        client.0.write_all(text.as_bytes()).expect("written");
        let told = client.rest();
        assert!(
            told.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host} {origin}: {told}"
        );
    }
}

#[test]
fn the_scheme_of_a_token_may_be_written_as_one_likes() {
    let running = Running::new("limits: [{name: all, rate: 9/h}]", |settings| {
        settings.http_operator_token = Some(secret("t"));
    });
    for (field, status) in [
        ("Bearer t", 200),
        ("bearer t", 200),
        ("BEARER  t", 200),
        ("Basic t", 401),
        ("Bearert", 401),
        ("t", 401),
        ("Bearer T", 401),
        ("Bearer t x", 401),
    ] {
        let fields = format!("{JSON}authorization: {field}\r\n");
        let (told, answer) = running.http().request("POST", "/v1/refund", &fields, "{}");
        assert_eq!(told, status, "{field}: {answer}");
    }
}

/// A short query may match many limits: the response is bounded all the same.
#[test]
fn usage_is_bounded() {
    let rules: Vec<_> = (0..100)
        .map(|number| format!("{{name: rule-{number}, key: u, rate: 9/h}}"))
        .collect();
    let running = Running::new(&format!("limits: [{}]", rules.join(", ")), |_| {});
    let query = |values: usize| {
        let values: Vec<_> = (0..values).map(|number| format!("u={number}")).collect();
        let path = format!("/v1/usage?{}", values.join("&"));
        running.http().request("GET", &path, "", "")
    };
    assert_eq!(query(500).0, 200);
    let (status, told) = query(1_000);
    assert_eq!(status, 413);
    assert!(
        told.ends_with(
            r#""detail":"more than the 8388608 bytes of one response: send fewer values"}"#
        ),
        "{told}"
    );
}

/// What comes while a command waits is answered after it, wherever it was cut.
#[test]
fn what_is_said_while_one_waits_is_heard_in_its_order() {
    let policy = "limits: [{name: calls, key: user, rate: 1/m, over: wait 1h}]";
    let running = Running::new(policy, |_| {});
    let peek =
        || post(&running, "/v1/peek", r#"{"facts": {"user": "ada"}}"#).1["retry_after"].clone();
    let mut client = running.resp();
    let passed = "*12\r\n$7\r\nallowed\r\n:1\r\n$4\r\nrule\r\n$5\r\ncalls\r\n$5\r\nlimit\r\n:1\r\n$9\r\nremaining\r\n:0\r\n\
        $11\r\nretry_after\r\n$1\r\n0\r\n$11\r\nreset_after\r\n$2\r\n60\r\n";
    client.expect("TG.CHECK user=ada\r\n", passed);
    let long = "x".repeat(20_000);
    let parts = [
        "TG.CHECK user=ada\r\nEC",
        "HO one\r\nECHO ",
        "two\r\nECHO ",
        &long,
        "\r",
        "\nPI",
    ];
    for (number, part) in parts.into_iter().enumerate() {
        client.0.write_all(part.as_bytes()).expect("written");
        // The first of them waits from now on.
        assert!((0..3_000).any(|_| peek() == 120), "{number}");
    }
    running.clock.advance(Duration::from_secs(60));
    client.expect("", passed);
    client.expect(
        "",
        &format!("$3\r\none\r\n$3\r\ntwo\r\n$20000\r\n{long}\r\n"),
    );
    client.expect("NG\r\n", "+PONG\r\n");
}

#[test]
fn a_proxy_that_leaves_frees_its_places_in_line() {
    let policy = "limits: [{name: calls, key: user, rate: 1/m, over: wait 1h}]";
    let running = Running::new(policy, |_| {});
    let peek =
        || post(&running, "/v1/peek", r#"{"facts": {"user": "ada"}}"#).1["retry_after"].clone();
    assert_eq!(
        post(&running, "/v1/check", r#"{"facts": {"user": "ada"}}"#).0,
        200
    );
    let mut grpc = Grpc::to(&running);
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let (response, mut send) = grpc.begin(crate::rls_client::SHOULD);
            let ada = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada";
            let framed = crate::rls_client::framed(ada);
            send.send_data(framed, true).expect("sent");
            (response, send)
        })
        .collect();
    assert!((0..3_000).any(|_| peek() == 240), "they wait");
    drop((calls, grpc));
    assert!((0..3_000).any(|_| peek() == 60), "they are gone");
}

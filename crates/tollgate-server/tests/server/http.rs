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
        r#"{"allowed":false,"rule":"per-user","limit":2,"remaining":1,"retry_after":29.5,"reset_after":29.5,"reason":"rate","limited_by":"2/m"}"#
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
fn descriptors_are_decided_in_place_of_facts() {
    let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 2}}]";
    let running = Running::new(tree, |_| {});
    let ask = |path: &str, cost: &str| {
        let ada =
            r#""domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]"#;
        let text = format!("{{{ada}{cost}}}");
        running.http().request("POST", path, JSON, &text)
    };
    let told = |allowed: bool, remaining: u64, retry_after: u64, reset_after: u64| {
        format!(
            r#"{{"allowed":{allowed},"rule":"edge/user","limit":2,"remaining":{remaining},"retry_after":{retry_after},"reset_after":{reset_after}}}"#
        )
    };
    let (status, answer) = ask("/v1/check", "");
    assert_eq!((status, body(&answer)), (200, &*told(true, 1, 0, 60)));
    assert!(answer.contains("\r\nratelimit: "), "{answer}");
    // Neither of both charges anything.
    for (path, cost) in [("/v1/peek", ""), ("/v1/check", r#", "cost": 0"#)] {
        let (status, answer) = ask(path, cost);
        assert_eq!(
            (status, body(&answer)),
            (200, &*told(true, 1, 0, 60)),
            "{path}"
        );
    }
    let (status, answer) = ask("/v1/check", r#", "cost": 2"#);
    let denied = told(false, 1, 60, 60);
    let denied = denied.replace("60}", r#"60,"reason":"rate","limited_by":"2/m"}"#);
    assert_eq!((status, body(&answer)), (429, &*denied));
    assert!(answer.contains("\r\nretry-after: 60\r\n"), "{answer}");
    let list = r#"[{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}, {"facts": {"user": "ada"}}]"#;
    let (status, answer) = running.http().request("POST", "/v1/check", JSON, list);
    let free = r#"{"allowed":true,"rule":null,"limit":null,"remaining":null,"retry_after":0,"reset_after":0}"#;
    let both = format!("[{},{free}]", told(true, 0, 0, 60));
    assert_eq!((status, body(&answer)), (200, &*both));
}

#[test]
fn a_request_has_facts_or_descriptors() {
    let running = Running::new(POLICY, |_| {});
    for (text, said) in [
        (
            r#"{"facts": {"user": "ada"}, "domain": "edge", "descriptors": []}"#,
            "descriptors: they are the facts of the request, so send one of both",
        ),
        (
            r#"{"facts": {"user": "ada"}, "domain": "edge"}"#,
            "domain: it goes with descriptors",
        ),
        (r#"{"descriptors": []}"#, "the domain is empty"),
        (
            r#"{"domain": "edge", "descriptors": [], "cost": 4294967296}"#,
            "cost: at most 4294967295 if there are descriptors",
        ),
    ] {
        let (status, answer) = running.http().request("POST", "/v1/check", JSON, text);
        assert_eq!(status, 400, "{text}: {answer}");
        assert!(body(&answer).contains(said), "{text}: {answer}");
    }
}

#[test]
fn a_list_is_decided_in_order() {
    let running = Running::new(POLICY, |settings| settings.bounds.max_batch = 3);
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
            "cost: invalid type: string \\\"x\\\", expected a whole number that isn't negative at line 1",
        ),
        (
            "POST",
            "/v1/check",
            JSON,
            "null",
            400,
            "invalid type: null, expected an object at line 1",
        ),
        (
            "POST",
            "/v1/check",
            JSON,
            r#"{"fact": {}}"#,
            400,
            "unknown field `fact`",
        ),
        ("POST", "/v1/check", JSON, "{", 400, "\"EOF while parsing"),
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
        ("GET", "/metrics", "", "", 404, "nothing is at /metrics"),
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
    // By no name that isn't the listener's own, and nothing of what is decided.
    let own = format!("127.0.0.1:{}", running.admin_address().port());
    for (host, status) in [("here", 403), (own.as_str(), 404)] {
        let text = format!(
            "POST /v1/check HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2\r\n{JSON}\r\n{{}}"
        );
        let begin = format!("HTTP/1.1 {status} ");
        running.admin().expect(&text, &begin);
    }
}

const JOBS: &str = "limits: [{name: jobs, key: tenant, concurrency: 1}, \
    {name: tokens, match: {path: /llm}, rate: 1000/h, cost: {fact: max_tokens, settle_within: 60s}}]";

fn post(running: &Running, path: &str, text: &str) -> (u16, String) {
    let (status, answer) = running.http().request("POST", path, JSON, text);
    (status, body(&answer).to_owned())
}

#[test]
fn a_permit_is_held_until_it_is_released_however_often_it_is_asked_for() {
    let running = Running::new(JOBS, |_| {});
    let first = r#"{"id": "a", "facts": {"tenant": "acme"}}"#;
    let (status, told) = post(&running, "/v1/permits", first);
    assert_eq!(
        (status, told.contains("\"rule\":\"jobs\"")),
        (200, true),
        "{told}"
    );
    assert_eq!(post(&running, "/v1/permits", first), (200, told));
    let second = r#"{"id": "b", "facts": {"tenant": "acme"}}"#;
    assert_eq!(post(&running, "/v1/permits", second).0, 429);
    assert_eq!(
        post(&running, "/v1/permits/renew", r#"{"id": "a", "ttl": 5}"#),
        (200, r#"{"renewed":true,"ttl":5}"#.to_owned())
    );
    assert_eq!(
        post(&running, "/v1/permits/release", r#"{"id": "a"}"#).1,
        r#"{"released":true}"#
    );
    assert_eq!(
        post(&running, "/v1/permits/release", r#"{"id": "a"}"#).1,
        r#"{"released":true}"#
    );
    assert_eq!(
        post(&running, "/v1/permits/release", r#"{"id": "never"}"#).1,
        r#"{"released":false}"#
    );
    assert_eq!(post(&running, "/v1/permits/renew", r#"{"id": "a"}"#).0, 404);
    assert_eq!(post(&running, "/v1/permits", second).0, 200);
}

#[test]
fn a_permit_that_isnt_renewed_is_free_again() {
    let running = Running::in_still_time(JOBS, |_| {});
    let short = r#"{"id": "a", "facts": {"tenant": "acme"}, "ttl": 5}"#;
    assert_eq!(post(&running, "/v1/permits", short).0, 200);
    let other = r#"{"id": "b", "facts": {"tenant": "acme"}}"#;
    let renew = r#"{"id": "a", "ttl": 3}"#;
    running.pass(Duration::from_secs(4));
    assert_eq!(post(&running, "/v1/permits/renew", renew).0, 200);
    running.pass(Duration::from_millis(2_999));
    assert_eq!(post(&running, "/v1/permits", other).0, 429);
    running.pass(Duration::from_millis(1));
    assert_eq!(post(&running, "/v1/permits", other).0, 200);
    assert_eq!(post(&running, "/v1/permits/renew", renew).0, 404);
    // Whoever doesn't say for how long has a minute.
    running.pass(Duration::from_secs(60));
    assert_eq!(post(&running, "/v1/permits", short).0, 200);
}

#[test]
fn what_is_reserved_is_settled_once_it_is_known() {
    let running = Running::new(JOBS, |_| {});
    let left = || {
        let (_, told) = post(
            &running,
            "/v1/peek",
            r#"{"facts": {"path": "/llm", "max_tokens": "1"}}"#,
        );
        let left = told
            .split("\"remaining\":")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .map(str::to_owned);
        left.unwrap_or_else(|| panic!("{told}"))
    };
    let reserve = r#"{"id": "r1", "facts": {"path": "/llm", "max_tokens": "400"}}"#;
    assert_eq!(post(&running, "/v1/reserve", reserve).0, 200);
    assert_eq!(post(&running, "/v1/reserve", reserve).0, 200);
    assert_eq!(left(), "600");
    assert_eq!(
        post(&running, "/v1/settle", r#"{"id": "r1", "spent": 150}"#).0,
        200
    );
    assert_eq!(left(), "850");
    assert_eq!(
        post(&running, "/v1/settle", r#"{"id": "r1", "spent": 150}"#),
        (200, r#"{"settled":true}"#.to_owned())
    );
    assert_eq!(left(), "850");
    assert_eq!(
        post(&running, "/v1/settle", r#"{"id": "never", "spent": 150}"#).0,
        404
    );
    for (text, says) in [
        (r#"{"id": "r2"}"#, "spent: it is missing"),
        (r#"{"id": "", "spent": 1}"#, "id: it is empty"),
        (r#"{"spent": 1}"#, "missing field `id`"),
    ] {
        let (status, told) = post(&running, "/v1/settle", text);
        assert!(status == 400 && told.contains(says), "{says}: {told}");
    }
}

#[test]
fn envoys_question_is_answered_as_json() {
    let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2, name: users}}]";
    let running = Running::new(tree, |_| {});
    let asked = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}], "hitsAddend": "2"}]}"#;
    let status = |code, left: &str| {
        format!(
            r#"{{"overallCode":"{code}","statuses":[{{"code":"{code}","currentLimit":{{"requestsPerUnit":2,"unit":"HOUR","name":"users"}}{left},"durationUntilReset":"3600s"}}],"dynamicMetadata":{{"rule":"edge/user"}}}}"#
        )
    };
    let first = asked.replace("\"2\"", "1");
    assert_eq!(
        post(&running, "/json", &first),
        (200, status("OK", ",\"limitRemaining\":1"))
    );
    assert_eq!(
        post(&running, "/json", asked),
        (
            429,
            status("OVER_LIMIT", "").replace(
                r#""edge/user"}"#,
                r#""edge/user","reason":"rate","limited_by":"2/h"}"#
            )
        )
    );
    let back = asked.replace("\"2\"", "\"1\", \"isNegativeHits\": true");
    assert_eq!(post(&running, "/json", &back).0, 200);
    assert_eq!(post(&running, "/json", asked).0, 200);
    for (text, says) in [
        (r#"{"domain": ""}"#, "the domain is empty"),
        (r#"{"domain": "edge"}"#, "there are no descriptors"),
        (
            r#"{"domain": "edge", "descriptors": [{"entires": []}]}"#,
            "descriptors[0].entires: unknown field `entires`",
        ),
        (r#"{"domian": "edge"}"#, "unknown field `domian`"),
        (
            r#"{"domain": "edge", "descriptors": [{"limit": {"unit": "EON"}}]}"#,
            "unknown variant `EON`",
        ),
    ] {
        let (status, told) = post(&running, "/json", text);
        assert!(status == 400 && told.contains(says), "{says}: {told}");
    }
}

#[test]
fn what_was_used_is_told_by_rule_and_tenant() {
    let policy = "limits: [{name: calls, key: tenant, rate: 10/min}, {name: month, key: tenant, quota: 1000/day}]";
    let running = Running::new(policy, |_| {});
    for tenant in ["acme", "acme", "big co"] {
        let text = format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#);
        assert_eq!(post(&running, "/v1/check", &text).0, 200);
    }
    let usage = |query: &str| {
        let (status, answer) = running
            .http()
            .request("GET", &format!("/v1/usage{query}"), "", "");
        (status, body(&answer).to_owned())
    };
    let (status, lines) = usage("?tenant=acme&tenant=big+co&tenant=%6eew&format=lines");
    assert_eq!(status, 200);
    let told = |tenant: &str, rule: &str| {
        let line = lines
            .lines()
            .find(|line| line.contains(&format!("\"{tenant}\"")) && line.contains(rule));
        let line = line.unwrap_or_else(|| panic!("{tenant}, {rule}: {lines}"));
        line.split("\"used\":")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .map(str::to_owned)
    };
    assert_eq!(lines.lines().count(), 6);
    for (tenant, used) in [("acme", "2"), ("big co", "1"), ("new", "0")] {
        for rule in ["calls", "month"] {
            assert_eq!(
                told(tenant, rule).as_deref(),
                Some(used),
                "{tenant}, {rule}: {lines}"
            );
        }
    }
    assert_eq!(usage("").1, "[]");
    let (_, list) = usage("?tenant=acme");
    assert!(list.starts_with(r#"[{"facts":{"tenant":"acme"},"rule":"calls","limit":"10/m","of":10,"used":2,"remaining":8,"reset_after":12},"#), "{list}");
    assert_eq!(usage("?tenant=%zz").0, 400);
    assert_eq!(usage("?tenant=a&tenant=b&user=c&user=d").0, 400);
}

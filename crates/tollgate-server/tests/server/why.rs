//! A denial has its reason and the denying limit, in the same words over every protocol; and a reservation has its time
//! to live.

use std::time::Duration;

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate_server::ShadowVisibility;

use crate::kit::Running;
use crate::rls_client::Grpc;

const JSON: &str = "content-type: application/json\r\n";

/// Limits of every sort, each on a path of its own.
const POLICY: &str = "
block: [{path: /blocked}]
limits:
- {name: rates, match: {path: /rate}, rate: [100/m, 1/h]}
- {name: totals, match: {path: /quota}, quota: 1/day}
- {name: slots, match: {path: /slots}, concurrency: 1}
- {name: large, match: {path: /large}, rate: 5/h, cost: {fact: units}}
";

/// Each path, why the second request there is denied, and by what.
const DENIED: [(&str, &str, Option<&str>); 5] = [
    ("/rate", "rate", Some("1/h")),
    ("/quota", "quota", Some("1/day")),
    ("/slots", "concurrency", Some("1 concurrent")),
    ("/large", "too_large", Some("5/h")),
    ("/blocked", "blocked", None),
];

fn post(running: &Running, path: &str, text: &Value) -> (u16, Value) {
    let (status, answer) = running
        .http()
        .request("POST", path, JSON, &text.to_string());
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, serde_json::from_str(body).expect("JSON"))
}

fn told(answer: &Value) -> (&str, Option<&str>) {
    (
        answer["reason"].as_str().expect("a reason"),
        answer["limited_by"].as_str(),
    )
}

#[test]
fn http_says_why() {
    let running = Running::new(POLICY, |_| {});
    for (path, reason, limit) in DENIED {
        let facts = json!({"facts": {"path": path, "units": 9}});
        let (_, first) = post(&running, "/v1/check", &facts);
        let is_first = first["allowed"] == true;
        assert_eq!(first.get("reason").is_none(), is_first, "{first}");
        let (_, answer) = post(&running, "/v1/check", &facts);
        assert_eq!(told(&answer), (reason, limit), "{answer}");
        let (status, answer) = post(&running, "/v1/peek", &facts);
        assert_eq!((status, told(&answer)), (200, (reason, limit)), "{answer}");
        let (_, answers) = post(&running, "/v1/check", &json!([facts]));
        assert_eq!(told(&answers[0]), (reason, limit), "{answers}");
    }
}

#[test]
fn envoy_is_told_why_in_metadata() {
    let running = Running::new(POLICY, |_| {});
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    for (path, reason, limit) in DENIED {
        let question = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": path}, {"key": "units", "value": "9"}]}]});
        let ask = || Grpc::to(&running).call_json(&pool, method, &question.to_string());
        let _ = ask();
        let answer = ask().expect("an answer");
        assert_eq!(answer["overallCode"], "OVER_LIMIT");
        assert_eq!(
            told(&answer["dynamicMetadata"]),
            (reason, limit),
            "{answer}"
        );
        let (status, answer) = post(&running, "/json", &question);
        assert_eq!(
            (status, told(&answer["dynamicMetadata"])),
            (429, (reason, limit))
        );
    }
    let tree = "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1, concurrency: 5}}]";
    let running = Running::new(tree, |_| {});
    let question =
        json!({"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": "/"}]}]});
    let ask = || Grpc::to(&running).call_json(&pool, method, &question.to_string());
    let _ = ask();
    let answer = ask().expect("an answer");
    let metadata = json!({"rule": "edge/path", "reason": "rate", "limited_by": "1/h"});
    assert_eq!(answer["dynamicMetadata"], metadata);
}

#[test]
fn a_redis_client_is_told_why() {
    let running = Running::new(POLICY, |_| {});
    for (path, reason, limit) in DENIED {
        let mut client = running.resp();
        let both =
            format!("TG.CHECK path={path} units=9\r\nTG.CHECK path={path} units=9\r\nQUIT\r\n");
        let answer = client.ask(&both, 1) + &client.rest();
        let mut expect = format!("$6\r\nreason\r\n${}\r\n{reason}\r\n", reason.len());
        if let Some(limit) = limit {
            expect += &format!("$10\r\nlimited_by\r\n${}\r\n{limit}\r\n", limit.len());
        }
        assert!(answer.ends_with(&format!("{expect}+OK\r\n")), "{answer}");
    }
}

/// Clients see the rules in shadow mode that would have denied them, if an operator enables that.
#[test]
fn every_protocol_names_limits_in_shadow_if_that_is_wanted() {
    let rules = "limits: [{name: trial, key: user, rate: 1/h, mode: shadow}]";
    let tree = "domain: edge\ndescriptors: [{key: user, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    for (policy, name) in [(rules, "trial"), (tree, "edge/user")] {
        for wanted in [ShadowVisibility::Shown, ShadowVisibility::Hidden] {
            let running = Running::new(policy, |settings| settings.shadow_visibility = wanted);
            let is_shown = wanted == ShadowVisibility::Shown;
            let question = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]});
            let (_, first) = post(&running, "/v1/check", &question);
            assert_eq!(first.get("shadow"), None);
            let (_, answer) = post(&running, "/v1/check", &question);
            let expect = json!([name]);
            assert_eq!(
                answer.get("shadow"),
                is_shown.then_some(&expect),
                "{answer}"
            );
            let answer = Grpc::to(&running).call_json(&pool, method, &question.to_string());
            let answer = answer.expect("an answer");
            let expect = json!(name);
            let metadata = &answer["dynamicMetadata"];
            assert_eq!(answer["overallCode"], "OK");
            assert_eq!(
                metadata.get("shadow"),
                is_shown.then_some(&expect),
                "{answer}"
            );
        }
    }
    for wanted in [ShadowVisibility::Shown, ShadowVisibility::Hidden] {
        let running = Running::new(rules, |settings| settings.shadow_visibility = wanted);
        let mut client = running.resp();
        let all = "TG.CHECK user=bob\r\nTG.CHECK user=bob\r\nTG.PEEK user=bob\r\nQUIT\r\n";
        let answer = client.ask(all, 1) + &client.rest();
        let told = answer.matches("$6\r\nshadow\r\n*1\r\n$5\r\ntrial\r\n");
        let expect = if wanted == ShadowVisibility::Shown {
            2
        } else {
            0
        };
        assert_eq!(told.count(), expect, "{answer}");
        assert!(answer.ends_with("+OK\r\n"), "{answer}");
    }
}

#[test]
fn two_values_of_a_fact_are_an_error_and_two_equal_ones_are_one() {
    let running = Running::new("limits: [{name: per-user, key: user, rate: 1/h}]", |_| {});
    let twice = |one: &str, other: &str| {
        let text = format!(r#"{{"facts": {{"user": "{one}", "user": "{other}"}}}}"#);
        running.http().request("POST", "/v1/check", JSON, &text)
    };
    let (status, answer) = twice("ada", "bob");
    assert_eq!(status, 400);
    assert!(
        answer.contains(r#""detail":"facts: \"user\" has two values: send one""#),
        "{answer}"
    );
    assert_eq!(twice("ada", "ada").0, 200);
    let mut client = running.resp();
    client.expect(
        "TG.CHECK user=ada user=bob\r\n",
        "-ERR the fact \"user\" has two values: send one\r\n",
    );
    // Nobody was charged for it.
    assert!(
        running
            .resp()
            .ask("TG.CHECK user=bob user=bob\r\n", 22)
            .ends_with(":1\r\n")
    );
    assert!(
        running
            .resp()
            .ask("TG.CHECK user=bob\r\n", 22)
            .ends_with(":0\r\n")
    );
}

#[test]
fn a_hold_that_is_asked_for_again_lives_longer_and_says_how_long() {
    let running = Running::in_still_time("limits: [{name: slots, concurrency: 1}]", |_| {});
    let begin =
        |ttl: u64| post(&running, "/v1/permits", &json!({"id": "a", "ttl": ttl})).1["ttl"].clone();
    assert_eq!(begin(30), 30);
    running.pass(Duration::from_secs(10));
    assert_eq!(begin(60), 60);
    running.pass(Duration::from_secs(30));
    // A shorter life leaves it as it is.
    assert_eq!(begin(10), 30);
    let other = json!({"id": "b"});
    assert_eq!(post(&running, "/v1/permits", &other).0, 429);
    assert_eq!(
        post(
            &running,
            "/v1/permits/renew",
            &json!({"id": "a", "ttl": 40})
        )
        .1,
        json!({"renewed": true, "ttl": 40})
    );
    running.pass(Duration::from_secs(41));
    assert_eq!(post(&running, "/v1/permits", &other).0, 200);
}

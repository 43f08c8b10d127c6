//! Undecided requests are reported as such. Without reservation capacity, a permit that can't be held is an error,
//! never an allowed request without a permit. With an unreachable store, a list says so for each request, too.

use std::time::Duration;

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate_server::{RlsFailureMode, Settings};
use tollgate_testkit::redis::{Server, wait_until};

use crate::kit::{Running, read};
use crate::metrics::{scraped, value};
use crate::rls_client::{Failed, Grpc};

/// A permit, a cost and an estimate, each of which would show what an undecided request leaves behind.
const RULES: &str = "limits: [{name: jobs, key: tenant, rate: 10/h, concurrency: 5}, \
    {name: tokens, key: tenant, rate: 1000/h, cost: {fact: max_tokens, default: 100, settle_within: 60s}}]";

const TREE: &str = "domain: edge\ndescriptors: [{key: tenant, rate_limit: \
    {unit: hour, requests_per_unit: 10, concurrency: 5}}]";

const WHY: &str =
    "no more may be held: 1 already are (--max-holds), so nothing was decided or charged";

const JSON: &str = "content-type: application/json\r\n";

fn one_hold(settings: &mut Settings) {
    settings.bounds.max_reservations = 1;
}

fn post(running: &Running, path: &str, text: &str) -> (u16, String) {
    let (status, answer) = running.http().request("POST", path, JSON, text);
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, body.to_owned())
}

/// A tenant's usage of each limit: requests, permits, tokens.
fn used(running: &Running, tenant: &str) -> Vec<u64> {
    let path = format!("/v1/usage?tenant={tenant}");
    let (status, answer) = running.http().request("GET", &path, "", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let told: Vec<Value> = serde_json::from_str(body).expect("JSON");
    let each = told.iter().map(|one| one["used"].as_u64());
    each.map(|used| used.expect("a number")).collect()
}

fn ask(running: &Running, tenant: &str, more: &str) -> Result<Value, Failed> {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let question = format!(
        r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "tenant", "value": "{tenant}"}}]{more}}}]}}"#
    );
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    Grpc::to(running).call_json(&pool, method, &question)
}

#[test]
fn a_redis_client_is_told_that_no_more_may_be_held() {
    let password = std::env::temp_dir().join(format!("tollgate-full-{}", std::process::id()));
    std::fs::write(&password, "secret\n").expect("a file");
    let running = Running::new(RULES, |settings| {
        one_hold(settings);
        settings.resp_operator_password = tollgate_server::Secret::from_file(&password).ok();
    });
    std::fs::remove_file(&password).expect("removed");
    let mut client = running.resp();
    let passed = "*12\r\n$7\r\nallowed\r\n:1\r\n";
    assert_eq!(client.ask("TG.CHECK tenant=a\r\n", passed.len()), passed);
    let mut client = running.resp();
    client.expect("TG.CHECK tenant=b\r\n", &format!("-UNAVAILABLE {WHY}\r\n"));
    assert_eq!(used(&running, "b"), [0, 0, 0]);
    assert_eq!(used(&running, "a"), [1, 1, 100], "the other keeps its own");
    // Nothing was lost: once there is room, it passes.
    client.expect("AUTH secret\r\nTG.REFUND tenant=a\r\n", "+OK\r\n+OK\r\n");
    assert_eq!(client.ask("TG.CHECK tenant=b\r\n", passed.len()), passed);
    assert_eq!(used(&running, "b"), [1, 1, 100]);
}

#[test]
fn a_client_of_http_is_told_that_no_more_may_be_held() {
    let running = Running::new(RULES, one_hold);
    let [a, b] = ["a", "b"].map(|tenant| format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#));
    assert_eq!(post(&running, "/v1/check", &a).0, 200);
    let (status, told) = post(&running, "/v1/check", &b);
    assert_eq!(status, 503, "{told}");
    assert!(told.contains(WHY), "{told}");
    let (_, whole) = running.http().request("POST", "/v1/check", JSON, &b);
    assert!(whole.contains("\r\nretry-after: 1\r\n"), "{whole}");
    let list = format!(r#"[{b}, {{"facts": {{}}}}]"#);
    let (status, told) = post(&running, "/v1/check", &list);
    let told: Vec<Value> = serde_json::from_str(&told).expect("JSON");
    assert_eq!((status, told.len()), (200, 2));
    assert_eq!(told[0]["allowed"], false);
    assert_eq!(told[0]["error"], WHY);
    assert_eq!(
        (&told[1]["allowed"], told[1].get("error")),
        (&json!(true), None)
    );
    // A call with a name gets no more than one without, and ends nothing of another's.
    let named = r#"{"id": "job", "facts": {"tenant": "a"}}"#;
    let (status, told) = post(&running, "/v1/permits", named);
    assert_eq!(status, 503, "{told}");
    assert!(told.contains(WHY), "{told}");
    assert_eq!(used(&running, "b"), [0, 0, 0]);
    assert_eq!(used(&running, "a"), [1, 1, 100]);
}

#[test]
fn envoy_is_told_that_no_more_may_be_held() {
    for policy in [RULES, TREE] {
        let running = Running::new(policy, one_hold);
        assert_eq!(
            ask(&running, "a", "").expect("an answer")["overallCode"],
            "OK"
        );
        let full = Failed {
            code: 8,
            why: WHY.to_owned(),
        };
        for _ in 0..20 {
            assert_eq!(ask(&running, "b", ""), Err(full.clone()), "{policy}");
        }
        let json = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "tenant", "value": "b"}]}]}"#;
        let (status, told) = post(&running, "/json", json);
        assert_eq!((status, told.contains(WHY)), (503, true), "{told}");
        // Ten an hour would be spent by now, had any of them been charged.
        let back = ask(&running, "a", r#", "isNegativeHits": true"#);
        assert_eq!(back.expect("an answer")["overallCode"], "OK");
        assert_eq!(
            ask(&running, "b", "").expect("an answer")["overallCode"],
            "OK"
        );
    }
}

#[test]
fn envoy_is_refused_with_the_reason_if_one_wants_no_errors() {
    for policy in [RULES, TREE] {
        let running = Running::new(policy, |settings| {
            one_hold(settings);
            settings.rls_failure_mode = RlsFailureMode::Deny;
        });
        assert_eq!(
            ask(&running, "a", "").expect("an answer")["overallCode"],
            "OK"
        );
        let refused = json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [{"code": "OVER_LIMIT"}],
            "dynamicMetadata": {"failure": WHY},
        });
        assert_eq!(ask(&running, "b", ""), Ok(refused));
    }
}

#[test]
fn what_the_rules_took_comes_back_if_the_trees_slot_cant_be_kept() {
    let mut both = read("limits: [{name: calls, key: tenant, rate: 10/h}]");
    both.domains = read(TREE).domains;
    let running = Running::by(both, one_hold);
    assert_eq!(
        ask(&running, "a", "").expect("an answer")["overallCode"],
        "OK"
    );
    for _ in 0..20 {
        assert_eq!(ask(&running, "b", "").map_err(|failed| failed.code), Err(8));
    }
    assert_eq!(used(&running, "b"), [0]);
}

#[test]
fn on_a_store_nothing_is_left_of_what_couldnt_be_held() {
    let server = Server::start();
    let running = Running::on_store(RULES, &server.url(), one_hold);
    let [a, b] = ["a", "b"].map(|tenant| format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#));
    assert_eq!(post(&running, "/v1/check", &a).0, 200);
    for _ in 0..20 {
        assert_eq!(post(&running, "/v1/check", &b).0, 503);
    }
    assert_eq!(ask(&running, "b", "").map_err(|failed| failed.code), Err(8));
    // Slots and estimates are given back behind the answer.
    let long = Duration::from_secs(60);
    wait_until(long, "all to be given back", || {
        used(&running, "b") == [0, 0, 0]
    });
    assert_eq!(used(&running, "a"), [1, 1, 100]);
}

#[test]
fn a_list_tells_that_the_store_is_gone() {
    let server = Server::start();
    let policy = "limits: [{name: daily, key: user, quota: 5/day}]";
    let running = Running::on_store(policy, &server.url(), |_| {});
    let ada = r#"{"facts": {"user": "ada"}}"#;
    assert_eq!(post(&running, "/v1/check", ada).0, 200);
    server.kill();
    let why = "the store can't be asked about \"daily\", and nothing passes without it";
    let (status, told) = post(&running, "/v1/check", &format!("[{ada}]"));
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((status, &told[0]["error"]), (200, &json!(why)));
}

/// A rule that holds something, and one that doesn't.
const JOBS: &str = "limits: [{name: jobs, match: {tenant: [a, b]}, key: tenant, rate: 100/h, concurrency: 5}, \
    {name: free, match: {tenant: free}, key: tenant, rate: 100/h}]";

/// How many requests a rule allowed, as operators see it.
fn allowed(running: &Running, rule: &str) -> String {
    let series = format!("tollgate_allowed_total{{limiter=\"{rule}\"}}");
    value(&scraped(running), &series).to_owned()
}

#[test]
fn nothing_is_decided_without_room_and_what_holds_nothing_needs_none() {
    let running = Running::new(JOBS, one_hold);
    let check = |tenant: &str| {
        let text = format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#);
        post(&running, "/v1/check", &text).0
    };
    let named = |tenant: &str, id: &str| {
        let text = format!(r#"{{"id": "{id}", "facts": {{"tenant": "{tenant}"}}}}"#);
        post(&running, "/v1/permits", &text).0
    };
    assert_eq!(check("a"), 200);
    for number in 0..5 {
        assert_eq!(check("b"), 503);
        assert_eq!(named("b", &format!("b{number}")), 503);
        assert!(ask(&running, "b", "").is_err());
        let full = format!("-UNAVAILABLE {WHY}\r\n");
        running.resp().expect("TG.CHECK tenant=b\r\n", &full);
    }
    assert_eq!(allowed(&running, "jobs"), "1");
    assert_eq!(used(&running, "b"), [0, 0]);
    assert_eq!((check("free"), named("free", "f")), (200, 200));
    assert!(ask(&running, "free", "").is_ok());
    assert_eq!(allowed(&running, "free"), "3");
}

/// The client gets the reason, and operators see it too.
#[test]
fn operators_see_that_no_more_may_be_held_until_there_is_room() {
    let running = Running::in_still_time(RULES, |settings| {
        one_hold(settings);
        settings.bounds.reservation_timeout = Duration::from_secs(60);
    });
    let look = Duration::from_secs(5);
    let ready = || running.admin().request("GET", "/readyz", "", "").1;
    let is_well = |answer: String| answer.ends_with("{\"status\":\"ready\",\"reasons\":{}}\n");
    let check = |tenant: &str| {
        let text = format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#);
        post(&running, "/v1/check", &text).0
    };
    running.pass(look);
    assert_eq!(check("a"), 200);
    running.pass(look);
    assert!(is_well(ready()));
    assert_eq!([check("b"), check("c")], [503, 503]);
    running.pass(look);
    let why =
        "2 requests weren't decided in the last five seconds: 1 are held, which is --max-holds";
    let expected = format!("{{\"status\":\"degraded\",\"reasons\":{{\"holds\":\"{why}\"}}}}\n");
    let answer = ready();
    assert!(answer.ends_with(&expected), "{answer}");
    let metrics = scraped(&running);
    assert_eq!(value(&metrics, "tollgate_holds_full_total"), "2");
    assert_eq!(value(&metrics, r#"tollgate_concern{concern="holds"}"#), "1");
    running.pass(look);
    assert!(is_well(ready()));
}

//! Rules and a tree of descriptors in one policy: a request is charged to all of them, or to none.

use prost_reflect::DescriptorPool;
use serde_json::Value;
use tollgate_engine::Policy;
use tollgate_testkit::redis::Server;

use crate::kit::{Running, read, secret};
use crate::rls_client::Grpc;

/// A policy of these rules, and of a tree that lets so many of a tenant pass in a day.
fn both(rules: &str, requests: u32) -> Policy {
    let tree = format!(
        "domain: edge\ndescriptors: [{{key: tenant, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]"
    );
    let mut both = read(&format!("limits: [{rules}]"));
    both.domains = read(&tree).domains;
    both
}

const TENANT: &str = r#"{"entries": [{"key": "tenant", "value": "a"}]}"#;

/// How many of so many requests pass.
fn passed(running: &Running, requests: usize) -> usize {
    let pass = |_: &usize| passes(running, TENANT);
    (0..requests).filter(pass).count()
}

/// Whether a request of these descriptors passes.
fn passes(running: &Running, descriptors: &str) -> bool {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let question = format!(r#"{{"domain": "edge", "descriptors": [{descriptors}]}}"#);
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    let said = Grpc::to(running).call_json(&pool, method, &question);
    said.expect("an answer")["overallCode"] == "OK"
}

/// What the tenant has used of each rule.
fn used(running: &Running) -> Vec<u64> {
    let (status, answer) = running.http().request("GET", "/v1/usage?tenant=a", "", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let told: Vec<Value> = serde_json::from_str(body).expect("JSON");
    let each = told.iter().map(|one| one["used"].as_u64());
    each.map(|used| used.expect("a number")).collect()
}

#[test]
fn what_a_tree_denies_is_charged_to_no_rule() {
    let server = Server::start();
    for counting in ["leased", "exact"] {
        server.command(&["FLUSHALL"]);
        let rule = format!("{{name: calls, key: tenant, rate: 1000/d, counting: {counting}}}");
        let running = Running::on_store_by(both(&rule, 6), &server.url());
        assert_eq!(passed(&running, 100), 6, "{counting}");
        assert_eq!(used(&running), [6], "{counting}");
    }
}

#[test]
fn what_a_rule_denies_is_charged_to_no_tree() {
    let running = Running::by(both("{name: calls, key: tenant, rate: 3/h}", 5), |_| {});
    assert_eq!(passed(&running, 50), 3);
    // The two that are left of the tree are there when the rule has room.
    running.clock.advance(std::time::Duration::from_secs(3_600));
    assert_eq!(passed(&running, 50), 2);
}

#[test]
fn a_rule_in_shadow_gets_back_nothing_that_it_never_paid() {
    let rules = "{name: calls, key: tenant, rate: 100/d}, {name: next, key: tenant, rate: 2/d, mode: shadow}";
    let running = Running::by(both(rules, 5), |_| {});
    assert_eq!(passed(&running, 5), 5);
    let before = used(&running);
    assert_eq!(passed(&running, 50), 0);
    assert_eq!(used(&running), before);
    assert_eq!(before[0], 5);
}

#[test]
fn a_request_that_takes_and_refunds_frees_no_permit_of_one_that_runs() {
    let rule = "{name: jobs, key: tenant, concurrency: 1}";
    let running = Running::by(both(rule, 100), |_| {});
    let refunds = r#"{"entries": [{"key": "job", "value": "b"}], "isNegativeHits": true}"#;
    let mixed = format!("{TENANT}, {refunds}");
    assert!(passes(&running, &mixed));
    assert!(!passes(&running, &mixed));
}

#[test]
fn a_refund_by_facts_frees_the_permit_of_a_request_that_a_tree_limits_too() {
    let rule = "{name: jobs, key: tenant, concurrency: 1}";
    let running = Running::by(both(rule, 100), |settings| {
        settings.http_operator_token = Some(secret("t"));
    });
    assert_eq!(passed(&running, 2), 1);
    let facts = r#"{"facts": {"tenant": "a"}}"#;
    let fields = "content-type: application/json\r\nauthorization: Bearer t\r\n";
    let refund = (running.http()).request("POST", "/v1/refund", fields, facts);
    assert_eq!(refund.0, 200, "{}", refund.1);
    assert_eq!(passed(&running, 2), 1);
}

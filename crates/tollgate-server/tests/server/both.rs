//! Rules and a tree of descriptors in one policy: a request is charged to all of them, or to none.

use prost_reflect::DescriptorPool;
use serde_json::Value;
use tollgate_engine::Policy;
use tollgate_testkit::redis::Server;

use crate::kit::{Running, read};
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

/// How many of so many requests pass.
fn passed(running: &Running, requests: usize) -> usize {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let question =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "tenant", "value": "a"}]}]}"#;
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    let pass = |_: &usize| {
        let said = Grpc::to(running).call_json(&pool, method, question);
        said.expect("an answer")["overallCode"] == "OK"
    };
    (0..requests).filter(pass).count()
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

//! What a reviewer with bad intentions tried: each of these once gave a wrong answer, or cost others something.

use std::io::Write;

use prost_reflect::DescriptorPool;
use serde_json::Value;
use tollgate_testkit::redis::Server;

use crate::kit::{Running, read, secret};
use crate::rls_client::{Failed, Grpc};

const JSON: &str = "content-type: application/json\r\n";

fn post(running: &Running, path: &str, text: &str) -> (u16, Value) {
    let (status, answer) = running.http().request("POST", path, JSON, text);
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, serde_json::from_str(body).expect("JSON"))
}

/// What is used of each limit.
fn used(running: &Running, query: &str) -> Vec<u64> {
    let path = format!("/v1/usage?{query}");
    let (status, answer) = running.http().request("GET", &path, "", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let told: Vec<Value> = serde_json::from_str(body).expect("JSON");
    let each = told.iter().map(|one| one["used"].as_u64());
    each.map(|used| used.expect("a number")).collect()
}

/// Asks as Envoy does: about descriptors of one entry.
fn ask(running: &Running, descriptors: &str) -> Result<Value, Failed> {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let question = format!(r#"{{"domain": "edge", "descriptors": [{descriptors}]}}"#);
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    Grpc::to(running).call_json(&pool, method, &question)
}

fn one(key: &str, value: &str, more: &str) -> String {
    format!(r#"{{"entries": [{{"key": "{key}", "value": "{value}"}}]{more}}}"#)
}

const TOKENS: &str = "limits: [{name: tokens, key: tenant, rate: 1000/h, \
    cost: {fact: max_tokens, default: 100, settle_within: 60s}}]";

#[test]
fn an_id_is_of_one_request() {
    let policy = "limits: [{name: jobs, key: tenant, concurrency: 1}]";
    let running = Running::new(policy, |_| {});
    let job = |tenant: &str, more: &str| {
        format!(r#"{{"id": "job", "facts": {{"tenant": "{tenant}"}}{more}}}"#)
    };
    let (status, first) = post(&running, "/v1/permits", &job("a", ""));
    assert_eq!((status, &first["allowed"]), (200, &true.into()));
    assert_eq!(post(&running, "/v1/permits", &job("a", "")), (200, first));
    assert_eq!(used(&running, "tenant=a"), [1]);
    for other in [job("b", ""), job("a", r#", "cost": 2"#)] {
        let (status, told) = post(&running, "/v1/permits", &other);
        assert_eq!(status, 409, "{told}");
    }
    assert_eq!(used(&running, "tenant=b"), [0]);
}

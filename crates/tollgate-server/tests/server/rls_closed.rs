//! An unreachable store: Envoy's answers for limits whose fallback is closed.

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate_server::RlsFailureMode;
use tollgate_testkit::redis::Server;

use crate::kit::Running;
use crate::rls_client::{Failed, Grpc};

/// The same in both forms: a policy, and the limit by its name.
const CLOSED: [(&str, &str); 2] = [
    (
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: closed}}]",
        "edge/user",
    ),
    ("limits: [{name: daily, key: user, quota: 5/day}]", "daily"),
];

fn ask(running: &Running) -> Result<Value, Failed> {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let service = "envoy.service.ratelimit.v3.RateLimitService";
    let question =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}"#;
    Grpc::to(running).call_json(&pool, (service, "ShouldRateLimit"), question)
}

/// The answers on a store that is there, and after it was killed.
fn before_and_after(policy: &str, closed: RlsFailureMode) -> [Result<Value, Failed>; 2] {
    let server = Server::start();
    let running = Running::on_store(policy, &server.url(), |settings| {
        settings.rls_failure_mode = closed;
    });
    let before = ask(&running);
    server.kill();
    [before, ask(&running)]
}

#[test]
fn what_cant_be_decided_is_an_error_so_that_the_proxy_decides() {
    for (policy, name) in CLOSED {
        let [before, after] = before_and_after(policy, RlsFailureMode::default());
        assert_eq!(before.expect("an answer")["overallCode"], "OK", "{name}");
        let why = format!("the store can't be asked about {name:?}, and nothing passes without it");
        assert_eq!(after, Err(Failed { code: 14, why }));
    }
}

#[test]
fn what_cant_be_decided_is_refused_if_one_wants_it() {
    for (policy, name) in CLOSED {
        let [before, after] = before_and_after(policy, RlsFailureMode::Deny);
        let before = before.expect("an answer");
        assert_eq!(before["overallCode"], "OK", "{name}");
        assert_eq!(before["dynamicMetadata"], json!({"rule": name}));
        let refused = json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [{"code": "OVER_LIMIT"}],
            "dynamicMetadata": {"reason": "store", "store_failure": name},
        });
        assert_eq!(after, Ok(refused));
    }
}

#[test]
fn what_is_decided_here_goes_on_without_the_store() {
    let policy = "limits: [{name: quick, key: user, rate: 5/s}]";
    for closed in [RlsFailureMode::Error, RlsFailureMode::Deny] {
        let [before, after] = before_and_after(policy, closed);
        for answer in [before, after] {
            assert_eq!(answer.expect("an answer")["overallCode"], "OK");
        }
    }
}

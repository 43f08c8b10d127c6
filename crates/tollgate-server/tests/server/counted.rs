//! Requests of all protocols in a random order: metrics, rules and top count what clients saw.

use std::collections::BTreeMap;

use prost_reflect::DescriptorPool;
use serde_json::Value;
use tollgate_engine::Policy;
use tollgate_server::{AdminToken, Settings};
use tollgate_testkit::redis::Server;

use crate::kit::{Running, read, secret};
use crate::metrics::{scraped, value};
use crate::rls_client::Grpc;

const TOKEN: &str = "a-token-of-an-operator";
const JSON: &str = "content-type: application/json\r\n";
const TENANTS: [&str; 3] = ["a", "b", "c"];

/// A rule, one in shadow, and a tree.
fn policy() -> Policy {
    let rules = "limits: [{name: calls, key: tenant, rate: 12/h}, \
        {name: trial, key: tenant, rate: 4/h, mode: shadow}]";
    let tree =
        "domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 5}}]";
    let mut policy = read(rules);
    policy.domains = read(tree).domains;
    policy
}

fn with_token(settings: &mut Settings) {
    settings.admin_token = AdminToken::Given(secret(TOKEN));
}

/// What clients saw: by limiter, what passed and what was denied for which reason.
#[derive(Debug, Default)]
struct Seen {
    allowed: BTreeMap<String, u64>,
    denied: BTreeMap<(String, &'static str), u64>,
    passed: u64,
}

impl Seen {
    fn pass(&mut self, limiters: &[&str]) {
        self.passed += 1;
        for limiter in limiters {
            *self.allowed.entry((*limiter).to_owned()).or_default() += 1;
        }
    }

    fn deny(&mut self, limiter: &str, reason: &'static str) {
        let limiter = (limiter.to_owned(), reason);
        *self.denied.entry(limiter).or_default() += 1;
    }
}

/// One client of every protocol.
struct Clients<'r> {
    running: &'r Running,
    pool: DescriptorPool,
    seen: Seen,
}

impl<'r> Clients<'r> {
    fn new(running: &'r Running) -> Self {
        let set = include_bytes!("../../src/rls/descriptors.bin");
        Self {
            running,
            pool: DescriptorPool::decode(&set[..]).expect("descriptors"),
            seen: Seen::default(),
        }
    }

    fn http(&mut self, tenant: &str) {
        let facts = format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#);
        let mut client = self.running.http();
        match client.request("POST", "/v1/check", JSON, &facts) {
            (200, _) => self.seen.pass(&["calls"]),
            (429, _) => self.seen.deny("calls", "rate"),
            (503, _) => self.seen.deny("calls", "store"),
            (status, answer) => panic!("{status}: {answer}"),
        }
    }

    fn resp(&mut self, tenant: &str) {
        let length = "*12\r\n$7\r\nallowed\r\n:1\r\n".len();
        let mut client = self.running.resp();
        let answer = client.ask(&format!("TG.CHECK tenant={tenant}\r\n"), length);
        if answer.starts_with("-UNAVAILABLE") {
            self.seen.deny("calls", "store");
        } else if answer.ends_with(":1\r\n") {
            self.seen.pass(&["calls"]);
        } else {
            assert!(answer.ends_with(":0\r\n"), "{answer}");
            self.seen.deny("calls", "rate");
        }
    }

    /// One of two tokens if there are more than three, which never passes.
    fn throttle(&mut self, tenant: &str, quantity: u64) {
        let command = format!("CL.THROTTLE {tenant} 2 3 3600 {quantity}\r\n");
        let answer = self.running.resp().ask(&command, "*5\r\n:0\r\n".len());
        match &*answer {
            // It only looked.
            _ if quantity == 0 => {}
            "*5\r\n:0\r\n" => self.seen.pass(&["(throttle)"]),
            "*5\r\n:1\r\n" if quantity > 3 => self.seen.deny("(throttle)", "too_large"),
            "*5\r\n:1\r\n" => self.seen.deny("(throttle)", "rate"),
            _ if answer.starts_with("-UNAVAIL") => self.seen.deny("(throttle)", "store"),
            _ => panic!("{answer}"),
        }
    }

    fn envoy(&mut self, tenant: &str) {
        let question = format!(
            r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "tenant", "value": "{tenant}"}}]}}]}}"#
        );
        let method = (
            "envoy.service.ratelimit.v3.RateLimitService",
            "ShouldRateLimit",
        );
        let answer = Grpc::to(self.running).call_json(&self.pool, method, &question);
        let answer = answer.expect("an answer");
        if answer["overallCode"] == "OK" {
            self.seen.pass(&["calls", "edge/tenant"]);
        } else {
            let rule = answer["dynamicMetadata"]["rule"].as_str().expect("a rule");
            self.seen.deny(rule, "rate");
        }
    }

    fn operator(&self, path: &str) -> Value {
        let fields = format!("authorization: Bearer {TOKEN}\r\n");
        let (status, answer) = self.running.admin().request("GET", path, &fields, "");
        assert_eq!(status, 200, "{answer}");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        serde_json::from_str(body).expect("JSON")
    }

    /// Metrics, rules and top tell what clients saw.
    fn compare(&self) {
        let metrics = scraped(self.running);
        let count = |series: String| value(&metrics, &series).parse::<u64>().expect("a number");
        let rules = self.operator("/admin/rules");
        let rules = rules["rules"].as_array().expect("a list");
        let mut by_limiter: BTreeMap<&str, u64> = BTreeMap::new();
        for ((limiter, reason), denied) in &self.seen.denied {
            let series =
                format!("tollgate_denied_total{{limiter=\"{limiter}\",reason=\"{reason}\"}}");
            assert_eq!(count(series), *denied, "{limiter} {reason}");
            *by_limiter.entry(limiter).or_default() += denied;
        }
        for (limiter, allowed) in &self.seen.allowed {
            let series = format!("tollgate_allowed_total{{limiter=\"{limiter}\"}}");
            assert_eq!(count(series), *allowed, "{limiter}");
            let rule = rules.iter().find(|rule| rule["name"] == **limiter);
            let rule = rule.expect("a rule");
            let denied = by_limiter.get(&**limiter).copied().unwrap_or(0);
            assert_eq!(rule["allowed"], *allowed, "{limiter}");
            assert_eq!(rule["denied"], denied, "{limiter}");
        }
        let mut top: BTreeMap<String, u64> = BTreeMap::new();
        let told = self.operator("/admin/top");
        for key in told["keys"].as_array().expect("a list") {
            if key["shadow"] == false {
                let rule = key["rule"].as_str().expect("a name").to_owned();
                *top.entry(rule).or_default() += key["denied"].as_u64().expect("a number");
            }
        }
        let by_limiter = by_limiter.into_iter();
        let by_limiter: BTreeMap<_, _> = by_limiter
            .map(|(limiter, denied)| (limiter.to_owned(), denied))
            .collect();
        assert_eq!(top, by_limiter);
    }
}

#[test]
fn every_protocol_is_counted_once_everywhere() {
    let running = Running::by(policy(), with_token);
    let mut clients = Clients::new(&running);
    let mut state = 7_u64;
    for _ in 0..250 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (kind, tenant) = ((state >> 33) % 5, TENANTS[(state >> 40) as usize % 3]);
        match kind {
            0 => clients.http(tenant),
            1 => clients.resp(tenant),
            2 => clients.throttle(tenant, (state >> 50) % 5),
            _ => clients.envoy(tenant),
        }
    }
    assert!(clients.seen.passed > 30 && clients.seen.denied.len() == 4);
    clients.compare();
    // Each request that passed by the rule was asked of the one in shadow once.
    let metrics = scraped(&running);
    let of_trial = |name: &str| {
        let series = format!("tollgate_{name}_total{{limiter=\"trial\"}}");
        value(&metrics, &series).parse::<u64>().expect("a number")
    };
    assert_eq!(
        of_trial("allowed") + of_trial("shadow_denied"),
        clients.seen.allowed["calls"]
    );
}

#[test]
fn a_store_that_fails_is_counted_as_that() {
    let server = Server::start();
    let closed = "limits: [{name: calls, key: tenant, rate: 12/h, on_store_failure: closed}]";
    let running = Running::on_store(closed, &server.url(), |settings| {
        with_token(settings);
        settings.throttle_on_store_failure = tollgate_engine::policy::OnStoreFailure::Closed;
    });
    let mut clients = Clients::new(&running);
    for number in 0..30 {
        if number == 15 {
            server.kill();
        }
        clients.http("a");
        clients.resp("b");
        clients.throttle("c", 1);
    }
    let denied = &clients.seen.denied;
    assert!(denied.contains_key(&("calls".to_owned(), "store")));
    assert!(denied.contains_key(&("(throttle)".to_owned(), "store")));
    clients.compare();
}

//! Requests of all protocols in a random order: metrics, rules and top keys agree with the clients' answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;
use tollgate_engine::Policy;
use tollgate_server::{AdminToken, Settings};
use tollgate_testkit::redis::{Server, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{Running, read, secret};
use crate::metrics::{scraped, value};
use crate::rls_client::{Grpc, framed};

const TOKEN: &str = "a-token-of-an-operator";
const JSON: &str = "content-type: application/json\r\n";
const TENANTS: [&str; 3] = ["a", "b", "c"];

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const LONG: Duration = Duration::from_secs(60);

/// Rules with so many calls an hour: one in shadow, permits, a rule that waits, and requests that no rule decides.
fn rules(calls: u64) -> String {
    format!(
        "exempt: [{{tenant: staff}}]\nblock: [{{tenant: banned}}]\nlimits:\n\
         - {{name: calls, key: tenant, rate: {calls}/h}}\n\
         - {{name: trial, key: tenant, rate: 4/h, mode: shadow}}\n\
         - {{name: jobs, key: job, concurrency: 2}}\n\
         - {{name: slow, key: slow, rate: 1/h, over: wait 2h}}\n"
    )
}

/// These rules beside a tree.
fn rules_and_tree() -> Policy {
    let tree =
        "domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 5}}]";
    let mut policy = read(&rules(12));
    policy.domains = read(tree).domains;
    policy
}

fn with_token(settings: &mut Settings) {
    settings.admin_token = AdminToken::File(secret(TOKEN));
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
    /// The limiters that count a request of Envoy that passes.
    limiters_of_envoy: &'static [&'static str],
    /// Permits that are held, and how many were taken.
    held: Vec<String>,
    taken: u64,
    /// The keys of the rule that waits which have spent their token.
    spent: BTreeSet<String>,
    cancelled: u64,
    seen: Seen,
}

impl<'r> Clients<'r> {
    fn new(running: &'r Running) -> Self {
        let set = include_bytes!("../../src/rls/descriptors.bin");
        Self {
            running,
            pool: DescriptorPool::decode(&set[..]).expect("descriptors"),
            limiters_of_envoy: &["calls"],
            held: Vec::new(),
            taken: 0,
            spent: BTreeSet::new(),
            cancelled: 0,
            seen: Seen::default(),
        }
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.running.http().request("POST", path, JSON, body)
    }

    fn http(&mut self, tenant: &str) {
        let facts = format!(r#"{{"facts": {{"tenant": "{tenant}"}}}}"#);
        match self.post("/v1/check", &facts) {
            (200, _) if tenant == "staff" => self.seen.pass(&["(exempt)"]),
            (403 | 429, _) if tenant == "banned" => self.seen.deny("(block)", "blocked"),
            (200, _) => self.seen.pass(&["calls"]),
            (429, _) => self.seen.deny("calls", "rate"),
            (503, _) => self.seen.deny("calls", "store"),
            (status, answer) => panic!("{status}: {answer}"),
        }
    }

    /// Takes a permit, which is held on.
    fn take(&mut self, job: &str) {
        self.taken += 1;
        let id = format!("job-{}", self.taken);
        let body = format!(r#"{{"id": "{id}", "facts": {{"job": "{job}"}}}}"#);
        match self.post("/v1/permits", &body) {
            (200, _) => {
                self.seen.pass(&["jobs"]);
                self.held.push(id);
            }
            (429, _) => self.seen.deny("jobs", "concurrency"),
            (status, answer) => panic!("{status}: {answer}"),
        }
    }

    /// Releases a permit, which is no request.
    fn release(&mut self) {
        if let Some(id) = self.held.pop() {
            let (status, answer) =
                self.post("/v1/permits/release", &format!(r#"{{"id": "{id}"}}"#));
            assert_eq!(status, 200, "{answer}");
        }
    }

    /// The first request of a key passes. All others wait, and are cancelled.
    fn wait(&mut self, key: &str) {
        let request = request_of_envoy("slow", key);
        if self.spent.insert(key.to_owned()) {
            let answer = Grpc::to(self.running).call_json(
                &self.pool,
                (SERVICE, "ShouldRateLimit"),
                &request,
            );
            assert_eq!(answer.expect("an answer")["overallCode"], "OK");
            return self.seen.pass(&["slow"]);
        }
        let waiters = |wanted: &str| {
            wait_until(LONG, wanted, || {
                value(&scraped(self.running), "tollgate_waiters") == wanted
            });
        };
        let service = self.pool.get_service_by_name(SERVICE).expect("a service");
        let method = service
            .methods()
            .find(|own| own.name() == "ShouldRateLimit");
        let input = method.expect("a method").input();
        let mut json = serde_json::Deserializer::from_str(&request);
        let message = DynamicMessage::deserialize(input, &mut json).expect("a message");
        let mut client = Grpc::to(self.running);
        let (response, mut send) = client.begin(&format!("/{SERVICE}/ShouldRateLimit"));
        let message = framed(&message.encode_to_vec());
        send.send_data(message, true).expect("sent");
        waiters("1");
        drop((response, send));
        waiters("0");
        self.cancelled += 1;
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
        let request = request_of_envoy("tenant", tenant);
        let answer =
            Grpc::to(self.running).call_json(&self.pool, (SERVICE, "ShouldRateLimit"), &request);
        let Ok(answer) = answer else {
            return self.seen.deny("calls", "store");
        };
        if answer["overallCode"] == "OK" {
            self.seen.pass(self.limiters_of_envoy);
        } else {
            let rule = answer["dynamicMetadata"]["rule"].as_str().expect("a rule");
            self.seen.deny(rule, "rate");
        }
    }

    /// Requests of all protocols in a random order; `between` is done before some of them.
    fn play(&mut self, requests: usize, mut between: impl FnMut(u64)) {
        let mut state = 7_u64;
        for _ in 0..requests {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let tenant = TENANTS[(state >> 40) as usize % 3];
            match (state >> 33) % 14 {
                0..=2 => self.http(tenant),
                3 | 4 => self.resp(tenant),
                5 | 6 => self.throttle(tenant, (state >> 50) % 5),
                7 | 8 => self.envoy(tenant),
                9 => self.http(["staff", "banned"][(state >> 50) as usize % 2]),
                10 => self.take(tenant),
                11 => self.release(),
                12 => self.wait(tenant),
                _ => between(state >> 50),
            }
        }
    }

    fn operator(&self, path: &str) -> Value {
        let fields = format!("authorization: Bearer {TOKEN}\r\n");
        let (status, answer) = self.running.admin().request("GET", path, &fields, "");
        assert_eq!(status, 200, "{answer}");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        serde_json::from_str(body).expect("JSON")
    }

    /// Metrics, rules and top keys agree with the clients' answers.
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
        // The policy's list of whom it blocks has no key that could be among the top.
        let with_keys = by_limiter
            .into_iter()
            .filter(|(limiter, _)| *limiter != "(block)");
        let by_limiter: BTreeMap<_, _> = with_keys
            .map(|(limiter, denied)| (limiter.to_owned(), denied))
            .collect();
        assert_eq!(top, by_limiter);
    }
}

/// A request of Envoy with one entry.
fn request_of_envoy(key: &str, value: &str) -> String {
    format!(
        r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "{key}", "value": "{value}"}}]}}]}}"#
    )
}

#[test]
fn every_protocol_is_counted_once_everywhere() {
    let running = Running::by(rules_and_tree(), with_token);
    let mut clients = Clients::new(&running);
    clients.limiters_of_envoy = &["calls", "edge/tenant"];
    clients.play(400, |_| {});
    let denied = |limiter: &str, reason| {
        let limiter = (limiter.to_owned(), reason);
        clients.seen.denied.get(&limiter).copied().unwrap_or(0)
    };
    assert!(clients.seen.passed > 60 && clients.cancelled > 5);
    for (limiter, reason) in [
        ("calls", "rate"),
        ("edge/tenant", "rate"),
        ("jobs", "concurrency"),
        ("(block)", "blocked"),
        ("(throttle)", "rate"),
        ("(throttle)", "too_large"),
    ] {
        assert!(denied(limiter, reason) > 0, "{limiter} {reason}");
    }
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
fn reloads_change_no_count() {
    let scratch = TempFolder::new("counted-reloads");
    let path = scratch.path("limits.yaml");
    let write = |path: &Path, calls: u64| fs::write(path, rules(calls)).expect("written");
    write(&path, 12);
    let policy = Policy::from_path(&path).expect("a policy").policy;
    let running = Running::by(policy, |settings| {
        with_token(settings);
        settings.policy_path = Some(path.clone());
    });
    let mut clients = Clients::new(&running);
    let mut reloads = 0;
    clients.play(300, |chance| {
        write(&path, 12 + chance % 3);
        let server = running.server.as_ref().expect("a service");
        running.block_on(server.reload("a test")).expect("reloaded");
        reloads += 1;
    });
    assert!(reloads > 10 && clients.cancelled > 5 && clients.seen.denied.len() == 5);
    clients.compare();
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
    for number in 0..20 {
        // Before any limit is reached: a denial that is known is repeated without the store.
        if number == 2 {
            server.kill();
        }
        clients.http("a");
        clients.resp("b");
        clients.throttle("c", 1);
        clients.envoy("d");
    }
    let denied = &clients.seen.denied;
    assert!(denied.contains_key(&("calls".to_owned(), "store")));
    assert!(denied.contains_key(&("(throttle)".to_owned(), "store")));
    clients.compare();
}

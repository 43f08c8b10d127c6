//! One table of requests through the layer, in memory and on Redis: the answers are the engine's own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{Request, Response};
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
use tollgate_http::{DecisionAnswer, fields, http_status_of, retry_after};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;
use tollgate_tower::{ExtraFacts, HeaderDialect, PolicyLimits, RateLimitLayer, RequestHead};
use tower::ServiceExt;

use crate::kit::{ask, from};

/// 1 June 2024, noon: where every scenario begins.
const NOON: Duration = Duration::from_secs(1_717_243_200);

/// The cost of a scenario's request, if it has one.
#[derive(Clone, Copy)]
struct Costs(u64);

/// A policy, and what is asked of it in this order: `[+seconds] [xtimes] [fact=value …] [cost n] [held]`. What is held is
/// held until the end.
type Scenario = (&'static str, &'static [&'static str]);

/// The same of every algorithm: a burst, time, more than is left, and more than there ever is.
const RATES: &[&str] = &[
    "x4 user=ada",
    "user=bob cost 3",
    "user=ada cost 3",
    "+7 x2 user=ada cost 2",
    "user=ada cost 6",
    "user=ada cost 0",
    "x3 user=ada",
    "+31 x6 user=bob",
    "+600 x6 user=bob",
    "plan=none",
];

const ALGORITHMS: [&str; 6] = [
    "gcra",
    "token-bucket",
    "leaky",
    "fixed-window",
    "sliding-window",
    "sliding-log",
];

#[rustfmt::skip]
const OTHERS: &[Scenario] = &[
    ("limits: [{name: wide, key: user, rate: 10/h}, {name: narrow, match: {path: /narrow}, key: user, rate: 2/h}, {name: all, rate: 12/h}]",
     &["x3 user=1 path=/narrow", "x4 user=1", "user=2 path=/narrow cost 2", "x5 user=2", "plan=none", "+1200 x3 user=1 path=/narrow"]),
    ("limits: [{name: real, key: user, rate: 3/h}, {name: trial, key: user, rate: 1/h, mode: shadow}]", &["x5 user=ada"]),
    ("exempt: [{path: /healthz}]\nblock: [{user: mallory}]\nlimits: [{name: root, match: {user: root}, unlimited: true, replaces: [all]}, \
       {name: none, match: {path: /none}, rate: zero}, {name: all, key: user, rate: 1/h}]",
     &["x3 user=root", "x2 user=ada", "user=ada path=/healthz", "user=mallory", "user=mallory path=/healthz", "user=eve path=/none"]),
    ("tiers: {free: {rate: 2/m, quota: 5/day}, pro: {rate: [20/m, 30/h]}, own: {unlimited: true}}\ntenants: {acme: pro, us: own}\ntier_fact: plan\ndefault_tier: free",
     &["x3 tenant=new", "x3 tenant=acme cost 9", "tenant=us cost 1000", "x2 tenant=payer plan=pro cost 11", "+60 x2 tenant=new", "+60 x2 tenant=new", "+43200 tenant=new"]),
    ("limits: [{name: tokens, key: user, rate: 100/m, cost: {fact: tokens, default: 7}}, {name: calls, key: user, rate: 5/m}]",
     &["user=ada tokens=40", "user=ada tokens=60", "user=ada tokens=101", "user=ada tokens=x", "+3 user=ada tokens=60", "user=ada tokens=0"]),
    ("limits: [{name: daily, key: user, quota: 3/day}, {name: hourly, key: user, quota: 2 in any 1h}]",
     &["x3 user=ada", "+3660 x2 user=ada", "+43200 x2 user=ada"]),
    ("limits: [{name: jobs, key: user, concurrency: 2}, {name: calls, key: user, rate: 10/h}]",
     &["x3 user=ada held", "user=bob held", "x2 user=ada"]),
];

/// One line of a scenario.
#[derive(Default)]
struct Step {
    after: Duration,
    times: usize,
    facts: Vec<(&'static str, &'static str)>,
    cost: Option<u64>,
    is_held: bool,
}

impl Step {
    fn read(line: &'static str) -> Self {
        let mut step = Self {
            times: 1,
            ..Self::default()
        };
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            let number = |text: &str| text.parse::<u64>().expect("a number");
            if word == "cost" {
                step.cost = words.next().map(number);
            } else if word == "held" {
                step.is_held = true;
            } else if let Some(fact) = word.split_once('=') {
                step.facts.push(fact);
            } else if let Some(seconds) = word.strip_prefix('+') {
                step.after = Duration::from_secs(number(seconds));
            } else {
                let times = word.strip_prefix('x').expect("how often");
                step.times = times.parse().expect("a number");
            }
        }
        step
    }

    fn request(&self) -> Request<axum::body::Body> {
        let mut request = from("192.0.2.1", "/");
        let facts = self.facts.iter();
        let more = facts.fold(ExtraFacts::default(), |more, (name, value)| {
            more.with(name, value)
        });
        request.extensions_mut().insert(more);
        if let Some(cost) = self.cost {
            request.extensions_mut().insert(Costs(cost));
        }
        request
    }
}

/// A client's response: the status, and the header fields about limits.
type Told = (u16, Vec<String>);

/// What the engine answers by itself.
fn by_engine(policy: &str, steps: &[Step]) -> Vec<Told> {
    let clock = Arc::new(Manual::new());
    clock.advance(NOON);
    let memory = Memory::builder()
        .clock(Arc::clone(&clock))
        .wall(Arc::clone(&clock));
    let engine = Engine::new(read(policy), memory.build()).expect("an engine");
    let mut held: Vec<Permits> = Vec::new();
    let mut answers = Vec::new();
    for step in steps {
        clock.advance(step.after);
        let mut facts: Facts<'_> = step.facts.iter().copied().collect();
        facts.set(
            "path",
            step.facts
                .iter()
                .find(|fact| fact.0 == "path")
                .map_or("/", |fact| fact.1),
        );
        facts.set("method", "GET");
        if let Some(cost) = step.cost {
            facts.set_cost(cost);
        }
        for _ in 0..step.times {
            let verdict = engine.decide_listing_limits(&facts);
            answers.push(told(&verdict));
            if let (RequestDecision::Allowed(passed), true) = (verdict, step.is_held) {
                held.push(passed.into_permits());
            }
        }
    }
    answers
}

fn told(verdict: &RequestDecision<'_>) -> Told {
    let answered = DecisionAnswer::of(verdict, verdict.denied().is_none());
    let mut lines = Vec::new();
    answered.with_limits(|limits| {
        fields::write(&[HeaderDialect::Draft8], limits, 0, |name, value| {
            lines.push(format!("{name}: {value}"));
        });
    });
    if answered.is_allowed {
        return (200, lines);
    }
    if let Some(seconds) = retry_after(&answered.decision) {
        lines.push(format!("retry-after: {seconds}"));
    }
    (http_status_of(answered.reason()), lines)
}

fn read(policy: &str) -> Policy {
    let read = Policy::from_text(policy, Format::Yaml);
    read.expect("a policy").policy
}

/// A service on this engine, with the cost that a request has, if any.
fn app<B: tollgate_engine::backend::Backend + 'static>(
    limits: PolicyLimits<B>,
    steps: &[Step],
) -> Router {
    let mut layer = RateLimitLayer::new(limits);
    if steps.iter().any(|step| step.cost.is_some()) {
        let costs = |head: &RequestHead| head.extensions().get().map_or(1, |costs: &Costs| costs.0);
        layer = layer.configure(|guard| guard.cost(costs));
    }
    let hello = || async { "hello" };
    Router::new().route("/", get(hello)).layer(layer)
}

/// What the layer answers.
async fn by_layer(app: Router, clock: &Manual, steps: &[Step]) -> Vec<Told> {
    let mut held: Vec<Response<axum::body::Body>> = Vec::new();
    let mut answers = Vec::new();
    for step in steps {
        clock.advance(step.after);
        for _ in 0..step.times {
            if step.is_held {
                let response = app.clone().oneshot(step.request()).await;
                let response = response.expect("an answer");
                let fields = crate::kit::fields(response.headers());
                answers.push((response.status().as_u16(), about_limits(&fields)));
                held.push(response);
            } else {
                let answer = ask(&app, step.request()).await;
                answers.push((answer.status, about_limits(&answer.fields)));
            }
        }
    }
    answers
}

fn about_limits(fields: &[String]) -> Vec<String> {
    let is_ours = |line: &&String| line.starts_with("ratelimit") || line.starts_with("retry-after");
    fields.iter().filter(is_ours).cloned().collect()
}

async fn compare(policy: &str, lines: &[&'static str], store: &Server) {
    let steps: Vec<_> = lines.iter().map(|line| Step::read(line)).collect();
    let expected = by_engine(policy, &steps);
    assert!(expected.iter().any(|one| one.0 == 200), "admits: {policy}");
    assert!(expected.iter().any(|one| one.0 != 200), "refuses: {policy}");
    let clock = || {
        let clock = Arc::new(Manual::new());
        clock.advance(NOON);
        clock
    };

    let here = clock();
    let memory = Memory::builder()
        .clock(Arc::clone(&here))
        .wall(Arc::clone(&here));
    let engine = Engine::new(read(policy), memory.build()).expect("an engine");
    let found = by_layer(app(PolicyLimits::in_memory(engine), &steps), &here, &steps).await;
    assert_eq!(found, expected, "in memory: {policy}");

    store.command(&["FLUSHALL"]);
    let there = clock();
    let redis = Redis::builder(&store.url()).expect("a server's own URL");
    let redis = redis
        .clock(Arc::clone(&there))
        .timeout(Duration::from_secs(30))
        // A clock that leaps gives nobody time to renew.
        .permit_ttl(Duration::from_secs(1_000_000))
        // It would tell of the refusal that it knows, of several.
        .deny_cache(0)
        .node_count(1);
    let engine = Engine::new(read(policy), redis.build().expect("a runtime"));
    let engine = engine.expect("an engine");
    let found = by_layer(app(PolicyLimits::new(engine), &steps), &there, &steps).await;
    assert_eq!(found, expected, "on Redis: {policy}");
}

#[tokio::test]
async fn every_algorithm_answers_alike_in_memory_and_on_redis() {
    let store = Server::start();
    for algorithm in ALGORITHMS {
        let policy = format!("limits: [{{name: a, key: user, algorithm: {algorithm}, rate: 5/m}}]");
        compare(&policy, RATES, &store).await;
    }
}

#[tokio::test]
async fn every_word_of_a_policy_answers_alike_in_memory_and_on_redis() {
    let store = Server::start();
    for (policy, lines) in OTHERS {
        compare(policy, lines, &store).await;
    }
}

/// An unreachable store is no client's fault: the rule's fallback decides, and no answer looks like a limit's denial.
#[tokio::test]
async fn a_store_that_fails_behaves_as_its_rule_says() {
    for (on_failure, expected) in [
        ("open", [200, 200, 200]),
        ("closed", [503, 503, 503]),
        ("local", [200, 200, 429]),
    ] {
        let policy = format!(
            "limits: [{{name: all, key: user, rate: 2/h, on_store_failure: {on_failure}}}]"
        );
        let store = Server::start();
        let redis = Redis::builder(&store.url()).expect("a server's own URL");
        let redis = redis.node_count(1).build().expect("a runtime");
        let engine = Engine::new(read(&policy), redis).expect("an engine");
        let app = app(PolicyLimits::new(engine), &[]);
        let step = |user| Step::read(user).request();
        let before = ask(&app, step("user=before")).await;
        assert_eq!(before.status, 200);
        store.kill();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let answer = ask(&app, step("user=ada")).await;
            if answer.status == 503 {
                assert!(answer.body.contains(r#""reason":"store""#), "{answer:?}");
                assert!(
                    answer.body.contains("temporary-reduced-capacity"),
                    "{answer:?}"
                );
                let has_wait = answer
                    .fields
                    .iter()
                    .any(|line| line.starts_with("retry-after"));
                assert!(has_wait, "{answer:?}");
            }
            seen.push(answer.status);
        }
        assert_eq!(seen, expected, "{on_failure}");
    }
}

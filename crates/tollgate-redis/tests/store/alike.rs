//! The engine decides alike in memory and in Redis: the same requests at the same times get the same answers, to the
//! microsecond, whatever the policy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use crate::common::{PATIENT, eventually, is_soak};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError, TestRunner};
use tollgate::clock::Manual;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::verdict::{AllowedRequest, RequestDecision};
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

/// 1 June 2024, noon.
const NOON: u64 = 1_717_243_200;

/// A request, after some microseconds, that runs for so many more.
#[derive(Clone, Debug)]
struct RequestAt {
    after: u64,
    facts: Vec<(&'static str, &'static str)>,
    runs: usize,
}

/// A request's answer: whether it passed, the deciding rule, and the decision.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    allowed: bool,
    cause: String,
    decision: Decision,
}

fn seen(verdict: &RequestDecision<'_>) -> Seen {
    assert_eq!(verdict.fallback(), None);
    let mut decision = *verdict.decision();
    decision.set_wait(told(decision.wait_or_max()));
    decision.reset_after = told(decision.reset_after);
    Seen {
        allowed: verdict.denied().is_none(),
        cause: verdict.cause().to_string(),
        decision,
    }
}

/// A duration with the resolution of Redis: in microseconds, rounded up. In memory, the sliding counter has a finer
/// one.
fn told(time: Duration) -> Duration {
    match time {
        Duration::MAX => time,
        time => time + Duration::from_nanos(u64::from(1000 - time.subsec_nanos() % 1000) % 1000),
    }
}

/// How many permits are held in a server: members of sets that are no hits of a log.
const HELD: &str = "local held = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'zset' then
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if string.find(member, '/', 1, true) then held = held + 1 end
    end
  end
end
return held";

/// The suite: the same on any backend that goes by this clock.
async fn run<B: Backend<Error = Infallible>>(
    engine: &Engine<B>,
    clock: &Manual,
    steps: &[RequestAt],
    settled: impl AsyncFn(),
) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut running: VecDeque<Vec<_>> = VecDeque::new();
    for step in steps {
        clock.advance(Duration::from_micros(step.after));
        let ended = running.pop_front().unwrap_or_default();
        if !ended.is_empty() {
            drop(ended);
            // What they held is given back before anything else is asked.
            settled().await;
        }
        let mut facts = Facts::new();
        for (name, value) in &step.facts {
            facts.set(name, value);
        }
        let Ok(verdict) = engine.decide_async(&facts).await;
        all.push(seen(&verdict));
        if running.len() <= step.runs {
            running.resize_with(step.runs + 1, Vec::new);
        }
        running[step.runs].push(verdict.allowed().map(AllowedRequest::into_permits));
    }
    drop(running);
    settled().await;
    all
}

/// Runs a policy on both, and compares.
async fn alike(server: &Server, text: &str, steps: &[RequestAt]) -> Result<u64, TestCaseError> {
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let at = Timestamp::from_secs(NOON);
    let clock = Manual::starting_at(at);
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let memory = Engine::new(policy.clone(), memory.build()).expect("a policy");
    let in_memory = run(&memory, &clock, steps, async || ()).await;

    for near in [0, 1000] {
        server.command(&["FLUSHALL"]);
        let clock = Manual::starting_at(at);
        let redis = Redis::builder(&server.url())
            .expect("a URL")
            .timeout(PATIENT);
        let redis = redis
            // A clock that leaps gives nobody time to renew.
            .permit_ttl(Duration::from_secs(1_000_000))
            .deny_cache(near)
            .node_count(1)
            .clock(clock.clone())
            .build()
            .expect("a runtime");
        let engine = Engine::new(policy.clone(), redis).expect("a policy");
        let client = RefCell::new(server.client().expect("a server"));
        let settled = async || {
            let held = || engine.backend().stats().permits;
            if !text.contains("concurrency") {
                return;
            }
            eventually("slots to be given back", async || {
                let there = client.borrow_mut().command(&["EVAL", HELD, "0"]);
                there.expect("a count").integer() == i64::try_from(held()).ok()
            })
            .await;
        };
        let in_redis = run(&engine, &clock, steps, settled).await;
        for (number, (one, other)) in in_memory.iter().zip(&in_redis).enumerate() {
            // Of several refusals, the near cache tells of the one that it knows.
            let is_same = if near == 0 {
                one == other
            } else {
                one.allowed == other.allowed
            };
            prop_assert!(
                is_same,
                "{number}: {one:#?} in memory, {other:#?} in Redis, near {near}"
            );
        }
        prop_assert_eq!(engine.backend().stats().round_trip_errors, 0);
    }
    let refused = in_memory.iter().filter(|one| !one.allowed).count();
    Ok(u64::try_from(refused).unwrap_or(0))
}

/// Many requests of one user, evenly spaced.
fn even(count: usize, after: u64) -> Vec<RequestAt> {
    let facts = vec![("user", "1"), ("path", "/a"), ("tokens", "2")];
    let step = RequestAt {
        after,
        facts,
        runs: 3,
    };
    vec![step; count]
}

#[tokio::test]
async fn scenarios() {
    let server = Server::start();
    let algorithms = [
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ];
    let table: [(&str, u64); 8] = [
        ("rate: 5/s", 50_000),
        ("rate: 10/s", 60_001),
        ("rate: [10/s, 20/minute]", 90_000),
        ("rate: 4 per 250ms, cost: {fact: tokens}", 40_000),
        ("rate: 60/minute, quota: 20/hour", 1_000_000),
        ("quota: 9 in any 1h, rate: 100/s", 120_000_000),
        ("rate: 100/s, concurrency: 2", 1_000),
        ("rate: zero", 1_000),
    ];
    for algorithm in algorithms {
        for (limits, after) in table {
            let text =
                format!("limits: [{{name: a, key: user, algorithm: {algorithm}, {limits}}}]");
            let refused = alike(&server, &text, &even(60, after)).await;
            let refused = refused.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(refused > 0, "{text} refuses nothing");
        }
    }
}

fn rule() -> impl Strategy<Value = String> {
    // Intervals are whole microseconds, so that both are exact.
    let rate = prop::sample::select(vec![
        "1/s",
        "2/s",
        "5/s",
        "10/s",
        "4 per 250ms",
        "60/minute",
        "6/h",
    ]);
    let algorithm = prop::sample::select(vec![
        "gcra",
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ]);
    let key = prop::sample::select(vec!["[]", "user", "path", "[user, path]"]);
    let quota = prop::option::weighted(
        0.2,
        prop::sample::select(vec!["20/hour", "30/day", "15 in any 1h"]),
    );
    let concurrency = prop::option::weighted(0.2, 1..4u32);
    let matches = prop::sample::select(vec!["{}", "{path: /a}", "{user: \"1\"}"]);
    let more = (quota, concurrency, matches, any::<bool>());
    (prop::collection::vec(rate, 1..3), algorithm, key, more).prop_map(
        |(rates, algorithm, key, (quota, concurrency, matches, priced))| {
            let mut rule = format!(
                "match: {matches}, key: {key}, algorithm: {algorithm}, rate: [{}]",
                rates.join(", ")
            );
            if let Some(quota) = quota {
                rule += &format!(", quota: {quota}");
            }
            if let Some(most) = concurrency {
                rule += &format!(", concurrency: {most}");
            }
            if priced {
                rule += ", cost: {fact: tokens}";
            }
            rule
        },
    )
}

fn step() -> impl Strategy<Value = RequestAt> {
    let one = |name: &'static str, values: &[&'static str]| {
        let value = prop::sample::select(values.to_vec());
        prop::option::weighted(0.9, value.prop_map(move |value| (name, value)))
    };
    let facts = (
        one("user", &["1", "1", "2"]),
        one("path", &["/a", "/a", "/b"]),
        one("tokens", &["1", "2", "3", "0"]),
    );
    let after = prop_oneof![
        10 => Just(0),
        5 => 0..50_000u64,
        3 => 0..2_000_000u64,
        1 => 0..4_000_000_000u64,
    ];
    (after, facts, 0..5usize).prop_map(|(after, (user, path, tokens), runs)| RequestAt {
        after,
        facts: [user, path, tokens].into_iter().flatten().collect(),
        runs,
    })
}

#[test]
fn any_policy() {
    let regressions = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/proptest-regressions/alike.txt"
    );
    let config = ProptestConfig {
        cases: if is_soak() { 1_000 } else { 60 },
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        ..ProptestConfig::default()
    };
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let rules = prop::collection::vec(rule(), 1..5);
    let steps = prop::collection::vec(step(), 1..150);
    let ran = TestRunner::new(config).run(&(rules, steps), |(rules, steps)| {
        let rules = rules.iter().enumerate();
        let rules: Vec<_> = rules
            .map(|(number, rule)| format!("{{name: r{number}, {rule}}}"))
            .collect();
        let text = format!("limits: [{}]", rules.join(",\n"));
        runtime.block_on(alike(&server, &text, &steps)).map(|_| ())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

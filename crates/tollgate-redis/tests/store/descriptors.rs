//! Descriptor requests, Envoy's form, decided through a store as in memory.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::DescriptorDecision;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::{Engine, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

const FILE: &str = "
domain: edge
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4}
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: tenant
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- {key: site, rate_limit: {rate: [4/h, 7/d]}}
- {key: plan, rate_limit: {quota: 6/day}}
- {key: slot, rate_limit: {concurrency: 1}}
- {key: q1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: q2, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 4}}
";

/// Lists of entries, and what they cost.
type Request = (Vec<Vec<(&'static str, &'static str)>>, u32);

/// The answer for each descriptor, as far as both can give it.
fn told(verdict: &DescriptorDecision) -> String {
    let each = verdict.statuses.iter().map(|status| {
        let decision = status
            .decision
            .map(|decision| (decision.outcome, decision.remaining));
        format!(
            "{:?} {:?} {:?} {}",
            status.code, status.limit, decision, status.would_deny
        )
    });
    let each: Vec<_> = each.collect();
    let decider = (verdict.decider, verdict.retry_after.as_secs());
    let refused = verdict.denied().is_some();
    format!("{refused} by {decider:?}: {}", each.join("; "))
}

/// The part of an answer that holds although a cached denial is repeated.
fn codes(verdict: &DescriptorDecision) -> String {
    let each: Vec<_> = verdict.statuses.iter().map(|status| status.code).collect();
    format!("{}: {each:?}", verdict.denied().is_some())
}

/// What a server does with it.
fn on_any_thread<F: Future + Send>(future: F) -> F {
    future
}

/// The same policy in a store of its own and in memory, at one time.
struct Both {
    /// How many denials the store's client has cached.
    near: usize,
    stored: Engine<Redis>,
    held: Engine<Memory<Manual, Manual>>,
    _server: Server,
}

impl Both {
    fn new(file: &str) -> Self {
        Self::with_near(file, 0)
    }

    fn with_near(file: &str, near: usize) -> Self {
        let server = Server::start();
        let clock = Manual::starting_at(Timestamp::from_secs(1_717_243_200));
        let builder = Redis::builder(&server.url())
            .expect("a URL")
            .clock(clock.clone());
        let builder = builder.timeout(Duration::from_secs(5)).deny_cache(near);
        let redis = builder.build().expect("a runtime");
        let policy = || {
            Policy::from_text(file, Format::Yaml)
                .expect("their form")
                .policy
        };
        let memory = Memory::builder().clock(clock.clone()).wall(clock).build();
        Self {
            near,
            stored: Engine::new(policy(), redis).expect("a policy"),
            held: Engine::new(policy(), memory).expect("a policy"),
            _server: server,
        }
    }

    /// What both say, if it is the same.
    async fn ask(&self, descriptors: &[Descriptor<'_>], hits: u32) -> DescriptorDecision {
        let (stored, held) = (&self.stored, &self.held);
        let by_store = stored.decide_descriptors_async("edge", descriptors, hits);
        let by_store = on_any_thread(by_store).await.expect("an answer");
        let by_memory = held.decide_descriptors("edge", descriptors, hits);
        let told = if self.near == 0 { told } else { codes };
        assert_eq!(told(&by_store), told(&by_memory), "{descriptors:?}");
        by_store
    }
}

#[tokio::test]
async fn descriptors_are_decided_alike_in_memory_and_in_a_store() {
    let both = Both::new(FILE);
    let requests: Vec<Request> = vec![
        (vec![vec![("user", "ada")]], 1),
        (vec![vec![("user", "ada")], vec![("path", "/files/a")]], 2),
        (vec![vec![("path", "/files/b")]], 1),
        (vec![vec![("tenant", "acme"), ("user", "ada")]], 1),
        (vec![vec![("shadow", "x")], vec![("user", "grace")]], 1),
        (vec![vec![("nothing", "here")]], 1),
    ];
    for _ in 0..4 {
        for (entries, hits) in &requests {
            let descriptors: Vec<_> = entries.iter().map(|list| Descriptor::new(list)).collect();
            drop(both.ask(&descriptors, *hits).await);
        }
    }
    // A limit that the request brings along, by another unit, counts apart.
    let entries = [("user", "ada")];
    let own = Descriptor {
        limit: Some((1, Unit::Minute)),
        ..Descriptor::new(&entries)
    };
    let mut passed = 0;
    for _ in 0..3 {
        passed += u32::from(both.ask(&[own], 1).await.denied().is_none());
    }
    assert_eq!(passed, 1);
}

#[tokio::test]
async fn hits_on_one_counter_add_up_in_a_store() {
    for (limit, most) in [(1, 0), (2, 1)] {
        let both = Both::new(&format!(
            "domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]"
        ));
        let ann = Descriptor::new(&[("user", "ann")]);
        let mut passed = 0;
        for _ in 0..20 {
            passed += u32::from(both.ask(&[ann, ann], 1).await.denied().is_none());
        }
        assert_eq!(passed, most, "at {limit}/hour");
        assert_eq!(both.ask(&[ann], 1).await.denied().is_none(), limit == 1);
    }
    // A request runs once, however often its slot is named.
    let both = Both::new(FILE);
    let slot = Descriptor::new(&[("slot", "x")]);
    assert!(both.ask(&[slot, slot], 1).await.denied().is_none());
}

#[tokio::test]
async fn lists_that_differ_far_behind_count_apart_in_a_store() {
    let both = Both::new(FILE);
    let keys: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
    let mut entries: Vec<_> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    let mut passed = Vec::new();
    for (place, value) in [(32, "x"), (32, "y"), (99, "y"), (99, "y"), (99, "x")] {
        entries[place].1 = value;
        let asked = Descriptor {
            limit: Some((1, Unit::Day)),
            ..Descriptor::new(&entries)
        };
        passed.push(both.ask(&[asked], 1).await.denied().is_none());
    }
    assert_eq!(passed, [true, true, true, false, false]);
}

/// A descriptor: its entry, its cost, whether it is a refund, and the limit that it brings along.
type Part = (
    (&'static str, &'static str),
    Option<u64>,
    bool,
    Option<(u32, Unit)>,
);

/// Requests whose descriptors repeat and overlap.
fn requests() -> impl Strategy<Value = Vec<(Vec<Part>, u32)>> {
    let entry = select(vec![
        ("user", "ann"),
        ("user", "bob"),
        ("path", "/files/a"),
        ("path", "/files/b"),
        ("site", "x"),
        ("plan", "x"),
        ("q1", "x"),
        ("q2", "x"),
        ("shadow", "x"),
        ("nothing", "x"),
    ]);
    let cost = select(vec![None, None, None, Some(0), Some(2), Some(9)]);
    let asks = select(vec![
        None,
        None,
        Some((2, Unit::Hour)),
        Some((6, Unit::Hour)),
        Some((2, Unit::Day)),
    ]);
    let part = (entry, cost, prop::bool::weighted(0.08), asks);
    vec((vec(part, 1..6), 1..3u32), 1..30)
}

async fn all_alike(both: &Both, requests: &[(Vec<Part>, u32)]) {
    for (parts, hits) in requests {
        let entries: Vec<_> = parts.iter().map(|part| [part.0]).collect();
        let descriptors = parts.iter().zip(&entries);
        let descriptors: Vec<_> = descriptors
            .map(|((_, cost, refund, asks), entry)| Descriptor {
                limit: *asks,
                cost: *cost,
                refund: *refund,
                ..Descriptor::new(entry)
            })
            .collect();
        drop(both.ask(&descriptors, *hits).await);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        ..ProptestConfig::default()
    })]

    /// The model that memory is held against is in the engine's tests.
    #[test]
    fn repeated_and_overlapping_descriptors_are_decided_alike(
        requests in requests(),
        (charging, near) in select(vec![("all-or-none", 0), ("each", 0), ("all-or-none", 100)]),
    ) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let file = FILE.replace("domain: edge", &format!("domain: edge\ncharging: {charging}"));
            all_alike(&Both::with_near(&file, near), &requests).await;
        });
    }
}

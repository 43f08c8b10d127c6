//! The policies and requests for the comparison of the engine with the slow oracle.

use proptest::prelude::*;
use tollgate::core::WindowAlignment;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};
use tollgate_engine::policy::{
    Cost, KeyPart, Limits, MatchConditions, Mode, OnMissingKey, OnStoreFailure, Pattern, Policy,
    Rule,
};

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) facts: Vec<(&'static str, &'static str)>,
    pub(super) after_millis: u64,
    /// How many requests later it ends.
    pub(super) runs: usize,
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    let one = |name: &'static str, texts: &[&'static str]| {
        let fact = prop::sample::select(texts.to_vec()).prop_map(move |text| (name, text));
        prop::option::weighted(0.8, fact)
    };
    let facts = (
        one("path", &["/api/a", "/api/a", "/api/b", "/healthz"]),
        one("user", &["1", "1", "1", "2"]),
        one("ip", &["10.0.0.1", "10.0.0.2", "2001:db8::1"]),
        one("tokens", &["1", "2", "3", "many", "0"]),
    );
    // Mostly in quick succession, so that limits are met.
    let millis = prop_oneof![
        12 => Just(0),
        6 => 0..50u64,
        3 => 0..2_000u64,
        1 => Just(3_600_000),
    ];
    (facts, millis, 0..6usize).prop_map(|((path, user, ip, tokens), after_millis, runs)| {
        let facts = [path, user, ip, tokens];
        Request {
            facts: facts.into_iter().flatten().collect(),
            after_millis,
            runs,
        }
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![
        Algorithm::Gcra,
        Algorithm::Gcra,
        Algorithm::Gcra,
        Algorithm::Gcra,
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::default()),
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
    ])
}

fn limits() -> impl Strategy<Value = Limits> {
    let rate = prop::sample::select(vec![
        "3/s",
        "1/s",
        "2/s",
        "5 per 250ms",
        "7/minute",
        "4/minute",
        "6/h",
        "3/s",
        "5 per 250ms",
        "zero",
    ])
    .prop_map(|rate| rate.parse::<Rate>().expect("a rate"));
    (
        prop::collection::vec(rate, 0..4),
        prop::option::weighted(0.15, 1..20u64),
        prop::option::weighted(0.15, 1..4u32),
    )
        .prop_map(|(rates, quota, concurrency)| Limits {
            rates,
            quota: quota.map(Quota::per_hour),
            concurrency,
            unlimited: false,
        })
}

fn conditions() -> impl Strategy<Value = Vec<(String, Pattern)>> {
    let condition = prop::sample::select(vec![
        ("path", Pattern::Present),
        ("path", Pattern::Glob("/api/**".to_owned())),
        ("path", Pattern::Prefix("/api/a".to_owned())),
        ("user", Pattern::Exact("1".to_owned())),
        ("ip", Pattern::Cidr("10.0.0.0/31".to_owned())),
        ("user", Pattern::Absent),
    ]);
    let own = condition.prop_map(|(fact, pattern)| (fact.to_owned(), pattern));
    prop::collection::vec(own, 0..2)
}

fn part(fact: &str) -> KeyPart {
    match fact {
        "ip" => KeyPart::Network {
            fact: fact.to_owned(),
            bits: 30,
        },
        fact => KeyPart::Fact(fact.to_owned()),
    }
}

fn rule() -> impl Strategy<Value = Rule> {
    let key = prop::sample::subsequence(vec!["user", "ip", "path"], 0..3);
    let mode = prop::sample::select(vec![
        Mode::Enforce,
        Mode::Enforce,
        Mode::Enforce,
        Mode::Enforce,
        Mode::Shadow,
        Mode::Off,
    ]);
    let fallbacks = prop::sample::subsequence(vec!["ip", "path", "tokens"], 0..3);
    let missing = prop::option::of(prop::sample::select(OnMissingKey::ALL.to_vec()));
    let key = (key, prop::option::weighted(0.4, fallbacks), missing);
    let shape = (conditions(), key, limits(), algorithm());
    (
        shape,
        any::<bool>(),
        mode,
        prop::option::weighted(0.3, 0..5usize),
    )
        .prop_map(
            |((conditions, key, limits, algorithm), priced, mode, replaces)| Rule {
                matches: MatchConditions {
                    conditions,
                    ..MatchConditions::default()
                },
                fallback_keys: match key.0.as_slice() {
                    [] => Vec::new(),
                    _ => Vec::from_iter(key.1.iter().flatten().map(|fact| vec![part(fact)])),
                },
                on_missing_key: key.2.filter(|_| !key.0.is_empty()),
                key: key.0.into_iter().map(part).collect(),
                algorithm,
                cost: Cost {
                    fact: priced.then(|| "tokens".to_owned()),
                    ..Cost::default()
                },
                mode,
                on_store_failure: OnStoreFailure::Local.into(),
                replaces: replaces
                    .map(|number| number.to_string())
                    .into_iter()
                    .collect(),
                ..Rule::new("", limits)
            },
        )
}

/// Conditions that aren't for all.
fn some() -> impl Strategy<Value = Vec<MatchConditions>> {
    let own = conditions().prop_filter("not for all", |all| !all.is_empty());
    let own = own.prop_map(|conditions| MatchConditions {
        conditions,
        ..MatchConditions::default()
    });
    prop::option::weighted(0.15, own).prop_map(Vec::from_iter)
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    let mode = prop::sample::select(vec![
        Mode::Enforce,
        Mode::Enforce,
        Mode::Enforce,
        Mode::Shadow,
    ]);
    (prop::collection::vec(rule(), 1..5), mode, some(), some()).prop_map(
        |(mut rules, mode, exempt, block)| {
            let count = rules.len();
            for (number, rule) in rules.iter_mut().enumerate() {
                rule.name = number.to_string();
                rule.replaces
                    .retain(|name| name.parse::<usize>().is_ok_and(|number| number < count));
            }
            Policy {
                rules,
                mode,
                exempt,
                block,
                near_limit_percent: 80,
                ..Policy::default()
            }
        },
    )
}

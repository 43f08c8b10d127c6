//! Random policies in which every field differs now and then.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tollgate::core::WindowAlignment;
use tollgate::{Algorithm, Timestamp};
use tollgate_adaptive::AdaptiveAlgorithm;
use tollgate_adaptive::shed::CriticalityShares;
use tollgate_engine::document::{Node, Span, Value};
use tollgate_engine::facts::Unit;
use tollgate_engine::policy::{
    Adaptive, Charging, Cost, Counting, DescriptorLimit, DescriptorRule, Domain, KeyPart, Limits,
    MatchConditions, Mode, OnMissingKey, OnStoreFailure, OverLimitAction, Pattern, Policy, Rule,
    Settlement, Shedding, Tier, UnsettledAction,
};

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
];

/// Names that are easily taken for others once they are text.
fn name() -> impl Strategy<Value = String> {
    let odd = vec![
        "a", "b", "a, b", "a=b", "\"a\"", "\\", "true", "[a]", "a: b", "*", "a*", "null", "1", "",
    ];
    prop_oneof![
        select(odd).prop_map(str::to_owned),
        (0..40u8).prop_map(|number| format!("n{number}")),
    ]
}

/// Few, or more than anybody reads.
fn names() -> impl Strategy<Value = Vec<String>> {
    let many = (0..40usize, 0..40u8).prop_map(|(odd, other)| {
        let mut names: Vec<_> = (0..40u8).map(|number| format!("n{number}")).collect();
        names[odd] = format!("other{other}");
        names
    });
    prop_oneof![prop::collection::vec(name(), 0..3), many]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let leaf = prop_oneof![
        name().prop_map(Pattern::Exact),
        name().prop_map(Pattern::Glob),
        name().prop_map(Pattern::Prefix),
        name().prop_map(Pattern::Regex),
        name().prop_map(Pattern::Cidr),
        Just(Pattern::Present),
        Just(Pattern::Absent),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Pattern::OneOf),
            inner.prop_map(|inner| Pattern::Not(Box::new(inner))),
        ]
    })
}

fn matches() -> impl Strategy<Value = MatchConditions> {
    let facts = select(vec!["ip", "path", "user"]).prop_map(str::to_owned);
    prop::collection::btree_map(facts, pattern(), 0..3).prop_map(|conditions| MatchConditions {
        conditions: conditions.into_iter().collect(),
        span: Span::default(),
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let rate = select(vec![
        "5/s",
        "5/s burst 9",
        "5/1s500ms",
        "300/m",
        "unlimited",
        "zero",
    ]);
    let quota = select(vec![
        "5/day",
        "5/month",
        "5 in any 24h",
        "5/day in Europe/Berlin",
        "6/day",
    ]);
    let rates = prop::collection::vec(rate, 0..3);
    let all = (
        rates,
        prop::option::of(quota),
        prop::option::of(1..3u32),
        any::<bool>(),
    );
    all.prop_map(|(rates, quota, concurrency, unlimited)| Limits {
        rates: rates.iter().filter_map(|rate| rate.parse().ok()).collect(),
        quota: quota.and_then(|quota| quota.parse().ok()),
        concurrency,
        unlimited,
    })
}

fn cost() -> impl Strategy<Value = Cost> {
    let unsettled = select(vec![UnsettledAction::Charge, UnsettledAction::Refund]);
    let settle = (1..3u64, unsettled).prop_map(|(seconds, unsettled)| Settlement {
        within: Duration::from_secs(seconds),
        unsettled,
    });
    let all = (prop::option::of(name()), 0..3u64, prop::option::of(settle));
    all.prop_map(|(fact, default, settle)| Cost {
        fact,
        default,
        settle,
    })
}

fn kept() -> impl Strategy<Value = (Counting, OnStoreFailure)> {
    let counting = select(vec![Counting::Exact, Counting::Leased, Counting::Local]);
    let failure = select(vec![
        OnStoreFailure::Open,
        OnStoreFailure::Closed,
        OnStoreFailure::Local,
        OnStoreFailure::CircuitBreak,
    ]);
    (counting, failure)
}

fn over() -> impl Strategy<Value = OverLimitAction> {
    let wait = select(vec![1_000_000u64, 1_000_000_000, 1_000_000_001]);
    let wait = wait.prop_map(|nanos| OverLimitAction::Wait(Duration::from_nanos(nanos)));
    prop_oneof![Just(OverLimitAction::Deny), wait]
}

fn mode() -> impl Strategy<Value = Mode> {
    select(vec![Mode::Enforce, Mode::Shadow, Mode::Off])
}

fn adaptive() -> impl Strategy<Value = Adaptive> {
    let law = select(vec![
        AdaptiveAlgorithm::Little,
        AdaptiveAlgorithm::Gradient2,
    ]);
    (law, 1..3u32, 3..5u32).prop_map(|(law, min, max)| Adaptive {
        algorithm: law,
        min,
        max,
    })
}

fn shed() -> impl Strategy<Value = Shedding> {
    (name(), 50..52u8, 60..62u8).prop_map(|(by, sheddable, default)| Shedding {
        by,
        shares: CriticalityShares::new(sheddable, default),
    })
}

type Keys = (Vec<KeyPart>, Vec<Vec<KeyPart>>, Option<OnMissingKey>);

/// The keys of a rule: only one that has a key has others to fall back to, or anything that is missing.
fn keys(part: impl Strategy<Value = KeyPart> + Clone) -> impl Strategy<Value = Keys> {
    let key = prop::collection::vec(part.clone(), 0..3);
    let fallbacks = prop::collection::vec(prop::collection::vec(part, 1..3), 0..2);
    let missing = prop::option::of(select(OnMissingKey::ALL.to_vec()));
    (key, fallbacks, missing).prop_map(|(key, fallbacks, missing)| {
        if key.is_empty() {
            (key, Vec::new(), None)
        } else {
            (key, fallbacks, missing)
        }
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let part = prop_oneof![
        // What has a slash is a network in every file.
        name()
            .prop_filter("a fact", |name| !name.contains('/'))
            .prop_map(KeyPart::Fact),
        (64..66u8).prop_map(|bits| KeyPart::Network {
            fact: "ip".to_owned(),
            bits,
        }),
    ];
    let what = (
        select(vec!["one", "two", "three"]),
        matches(),
        keys(part),
        limits(),
        select(ALGORITHMS.to_vec()),
        cost(),
    );
    let how = (
        mode(),
        99..=100u8,
        prop::option::of((1..3u64).prop_map(Duration::from_secs)),
        over(),
        kept(),
        prop::option::of(name()),
        names(),
        prop::option::of(name()),
        (prop::option::of(adaptive()), prop::option::of(shed())),
    );
    (what, how).prop_map(|(what, how)| {
        let (name, matches, (key, fallback_keys, on_missing_key), limits, algorithm, cost) = what;
        let (mode, enforced_percent, warm_up, over, kept, slot, replaces, shared, overload) = how;
        let (adaptive, shed) = overload;
        Rule {
            name: name.to_owned(),
            matches,
            key,
            fallback_keys,
            on_missing_key,
            limits,
            adaptive,
            shed,
            algorithm,
            cost,
            mode,
            enforced_percent,
            warm_up,
            over,
            on_store_failure: kept.1.into(),
            counting: kept.0,
            hash_tag: slot,
            replaces,
            shared,
            span: Span::default(),
        }
    })
}

fn tier() -> impl Strategy<Value = Tier> {
    let all = (
        limits(),
        select(ALGORITHMS.to_vec()),
        cost(),
        kept(),
        over(),
    );
    all.prop_map(|(limits, algorithm, cost, kept, over)| Tier {
        limits,
        algorithm,
        cost,
        counting: kept.0,
        over,
        on_store_failure: kept.1.into(),
        span: Span::default(),
    })
}

fn descriptor_limit() -> impl Strategy<Value = DescriptorLimit> {
    let all = (
        prop::option::of(name()),
        limits(),
        prop::option::of(select(vec![Unit::Second, Unit::Day])),
        select(ALGORITHMS.to_vec()),
        kept(),
        any::<[bool; 2]>(),
        names(),
    );
    all.prop_map(
        |(name, limits, unit, algorithm, kept, [shadow, quota_mode], replaces)| DescriptorLimit {
            name,
            limits,
            unit,
            algorithm,
            counting: kept.0,
            on_store_failure: kept.1.into(),
            shadow,
            quota_mode,
            replaces,
            span: Span::default(),
        },
    )
}

fn metadata() -> impl Strategy<Value = Value> {
    let node = |value| Node {
        span: Span::default(),
        value,
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (0..3i64).prop_map(Value::Integer),
        select(vec![0.5, -0.5, 1e300]).prop_map(Value::Float),
        name().prop_map(Value::Text),
    ];
    leaf.prop_recursive(2, 6, 3, move |inner| {
        let inner = inner.prop_map(node);
        let field = (name().prop_map(Value::Text).prop_map(node), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(Value::List),
            prop::collection::vec(field, 0..3).prop_map(Value::Map),
        ]
    })
}

fn descriptors() -> impl Strategy<Value = Vec<DescriptorRule>> {
    let leaf = (
        (name(), prop::option::of(name())),
        prop::option::of(descriptor_limit()),
        any::<[bool; 3]>(),
        prop::option::of(metadata()),
    );
    let leaf = leaf.prop_map(|((key, value), limit, flags, metadata)| DescriptorRule {
        key,
        value,
        limit,
        share_threshold: flags[0],
        detailed_metric: flags[1],
        value_to_metric: flags[2],
        metadata,
        descriptors: Vec::new(),
        span: Span::default(),
    });
    let tree = leaf.prop_recursive(2, 6, 3, |inner| {
        let below = prop::collection::vec(inner.clone(), 0..3);
        (inner, below).prop_map(|(rule, below)| DescriptorRule {
            descriptors: only_once(below),
            ..rule
        })
    });
    prop::collection::vec(tree, 0..4).prop_map(only_once)
}

/// No two with one key and value: such files are rejected.
fn only_once(mut rules: Vec<DescriptorRule>) -> Vec<DescriptorRule> {
    let mut seen = Vec::new();
    rules.retain(|rule| {
        let own = (rule.key.clone(), rule.value.clone());
        let is_new = !seen.contains(&own);
        seen.push(own);
        is_new
    });
    rules
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    let tiers = select(vec!["free", "paid"]).prop_map(str::to_owned);
    let charging = select(vec![Charging::AllOrNone, Charging::Each]);
    let domain = (charging, descriptors()).prop_map(|(charging, descriptors)| Domain {
        charging,
        descriptors,
    });
    let lists = (
        prop::collection::vec(rule(), 0..4),
        names(),
        prop::collection::btree_map(tiers.clone(), tier(), 0..2),
        prop::collection::btree_map(name(), tiers, 0..2),
    );
    let rest = (
        prop::option::of(name()),
        prop::option::of(name()),
        [
            prop::collection::vec(matches(), 0..3),
            prop::collection::vec(matches(), 0..3),
        ],
        mode(),
        79..82u8,
        prop::collection::btree_map(name(), domain, 0..2),
    );
    (lists, rest).prop_map(|((mut rules, facts, tiers, tenants), rest)| {
        let (tier_fact, default_tier, [exempt, block], mode, near_limit_percent, domains) = rest;
        let mut seen = Vec::new();
        rules.retain(|rule: &Rule| {
            let is_new = !seen.contains(&rule.name);
            seen.push(rule.name.clone());
            is_new
        });
        Policy {
            rules,
            facts,
            tiers,
            tenants,
            tier_fact,
            default_tier,
            exempt,
            block,
            mode,
            near_limit_percent,
            domains,
        }
    })
}

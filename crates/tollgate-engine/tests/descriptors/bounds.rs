//! Bounds on one request, which no thread's stack is too small for.

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::verdict::{BoundExceeded, Cause};
use tollgate_engine::{Bounds, Engine, Facts, Policy};

type TestEngine = Engine<Memory<Manual, Manual>>;

const BOUNDLESS: Bounds = Bounds {
    descriptors: usize::MAX,
    max_checks: usize::MAX,
    fact_bytes: usize::MAX,
    max_waiters: usize::MAX,
};

fn engine(text: &str) -> TestEngine {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock).build();
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    Engine::new(policy.policy, memory).expect("a policy")
}

/// Many rules for every request, whose limits are charged one by one.
fn rules(count: usize) -> String {
    let rules = (0..count)
        .map(|number| format!("- {{name: r{number}, rate: 5/h, algorithm: sliding-log}}\n"));
    format!("limits:\n{}", rules.collect::<String>())
}

#[test]
fn a_request_of_ten_thousand_descriptors_is_refused_with_a_reason() {
    let text = "domain: edge\ndescriptors: [{key: user, rate_limit: {rate: 1/h}}]";
    let users: Vec<_> = (0..10_000).map(|user| user.to_string()).collect();
    let entries: Vec<_> = users.iter().map(|user| [("user", user.as_str())]).collect();
    let descriptors: Vec<_> = entries.iter().map(|own| Descriptor::new(own)).collect();
    let engine = engine(text);
    let refused = engine.decide_descriptors("edge", &descriptors, 1);
    let (found, most) = (10_000, 64);
    let many = BoundExceeded::Descriptors { found, most };
    assert_eq!(refused.too_much, Some(many));
    assert!(refused.denied().is_some() && refused.statuses.is_empty());
    assert!(
        engine
            .decide_descriptors("edge", &descriptors[..64], 1)
            .denied()
            .is_none()
    );
    // Nothing was charged by the one that was refused, and with room for it, it is decided.
    let engine = engine.with_bounds(BOUNDLESS);
    assert!(
        engine
            .decide_descriptors("edge", &descriptors[64..], 1)
            .denied()
            .is_none()
    );
    let again = engine.decide_descriptors("edge", &descriptors, 1);
    assert!(again.denied().is_some() && again.too_much.is_none());
    assert_eq!(again.statuses.len(), 10_000);
    let long = "x".repeat(9_000);
    let entry = [("user", long.as_str())];
    // Any length is taken unless somebody says otherwise.
    let engine = engine.with_bounds(Bounds::default());
    let taken = engine.decide_descriptors("edge", &[Descriptor::new(&entry)], 1);
    assert!(taken.too_much.is_none() && taken.denied().is_none());
    let bounds = Bounds {
        fact_bytes: 8_192,
        ..Bounds::default()
    };
    let engine = engine.with_bounds(bounds);
    let refused = engine.decide_descriptors("edge", &[Descriptor::new(&entry)], 1);
    let (bytes, most) = (9_000, bounds.fact_bytes);
    assert_eq!(refused.too_much, Some(BoundExceeded::Entry { bytes, most }));
}

#[test]
fn eight_thousand_rules_for_one_request_overflow_no_stack() {
    let engine = engine(&rules(8_000));
    let facts = Facts::new();
    let refused = engine.decide(&facts);
    let (found, most) = (8_000, 256);
    assert_eq!(
        refused.cause(),
        Cause::TooMuch(BoundExceeded::Checks { found, most })
    );
    assert_eq!(
        refused.cause().to_string(),
        "8000 limits to be asked, more than the 256 that may be"
    );
    drop(refused);
    let engine = engine.with_bounds(BOUNDLESS);
    assert_eq!(
        (0..9)
            .filter(|_| engine.decide(&facts).allowed().is_some())
            .count(),
        5
    );
}

#[test]
fn a_request_beyond_the_bounds_passes_a_policy_in_shadow_and_is_told() {
    let engine = engine(&format!("mode: shadow\n{}", rules(300)));
    let facts = Facts::new();
    let verdict = engine.decide(&facts);
    assert!(verdict.denied().is_none());
    let (found, most) = (300, 256);
    let many = Cause::TooMuch(BoundExceeded::Checks { found, most });
    let told: Vec<_> = verdict
        .shadow_denials()
        .map(|refusal| refusal.cause)
        .collect();
    assert_eq!((verdict.cause(), told), (Cause::Nothing, vec![many]));
}

#[test]
fn only_facts_that_the_policy_asks_for_may_be_too_long() {
    let engine = engine("limits: [{name: a, match: {path: '/**'}, key: user, rate: 5/h}]");
    let engine = engine.with_bounds(Bounds {
        fact_bytes: 8_192,
        ..Bounds::default()
    });
    let long = format!("/{}", "x".repeat(8_192));
    let unasked = Facts::new()
        .with("path", "/")
        .with("user", "1")
        .with("agent", &long);
    assert!(engine.decide(&unasked).allowed().is_some());
    for name in ["path", "user"] {
        let facts = Facts::new()
            .with("path", "/")
            .with("user", "1")
            .with(name, &long);
        let (bytes, most) = (8_193, 8_192);
        let cause = Cause::TooMuch(BoundExceeded::Fact { name, bytes, most });
        assert_eq!(engine.decide(&facts).cause(), cause);
    }
    let fits = Facts::new().with("path", &long[..8_192]).with("user", "1");
    assert!(engine.decide(&fits).allowed().is_some());
}

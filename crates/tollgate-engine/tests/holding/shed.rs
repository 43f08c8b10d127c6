//! `shed`: which requests an overload denies first, by a fact.

use tollgate::clock::Manual;
use tollgate_engine::verdict::{Cause, DenyReason};
use tollgate_engine::{Facts, RequestDecision};

use super::{TestEngine, engine, policy};

/// As many of a class as pass, which hold their places.
fn fill<'f>(engine: &TestEngine, facts: &'f Facts<'f>) -> Vec<RequestDecision<'f>> {
    let asked = (0..1_000).map(|_| engine.decide(facts));
    asked
        .take_while(|verdict| verdict.denied().is_none())
        .collect()
}

fn of(class: &'static str) -> Facts<'static> {
    Facts::new().with("priority", class)
}

const BOTH: [&str; 2] = ["10", "{adaptive: aimd, min: 10, max: 10}"];

#[test]
fn sheddable_requests_go_first_and_critical_ones_last() {
    for slots in BOTH {
        let clock = Manual::new();
        let engine = engine(
            &format!("limits: [{{name: api, concurrency: {slots}, shed: priority}}]"),
            &clock,
        );
        let [sheddable, default, critical] = ["sheddable", "default", "critical"].map(of);
        let cheap = fill(&engine, &sheddable);
        let usual = fill(&engine, &default);
        let dear = fill(&engine, &critical);
        assert_eq!([cheap.len(), usual.len(), dear.len()], [7, 2, 1], "{slots}");
        assert_eq!(cheap[0].decision().limit, 7);
        for facts in [&sheddable, &default, &critical] {
            let verdict = engine.decide(facts);
            assert_eq!(verdict.cause(), Cause::Rule("api"));
            assert_eq!(verdict.reason(), Some(DenyReason::Shed), "{slots}");
        }
        drop(dear);
        assert!(engine.decide(&sheddable).denied().is_some());
        assert!(engine.decide(&default).denied().is_some());
        assert!(engine.decide(&critical).allowed().is_some());
        drop(cheap);
        assert!(engine.peek(&sheddable).decision().is_allowed());
    }
}

#[test]
fn a_class_that_is_unknown_or_missing_is_the_default_one() {
    for slots in BOTH {
        let clock = Manual::new();
        let text = format!(
            "limits: [{{name: api, concurrency: {slots}, shed: {{by: priority, sheddable: 10%, default: 50%}}}}]"
        );
        let engine = engine(&text, &clock);
        for facts in [
            Facts::new(),
            of("urgent"),
            of(""),
            of("CRITICAL"),
            of("default"),
        ] {
            assert_eq!(fill(&engine, &facts).len(), 5, "{facts:?}");
        }
        assert_eq!(fill(&engine, &of("sheddable")).len(), 1);
        assert_eq!(fill(&engine, &of("critical")).len(), 10);
    }
}

#[test]
fn one_passes_of_each_class_while_nothing_runs() {
    for slots in ["1", "{adaptive: aimd, max: 1}"] {
        let clock = Manual::new();
        let engine = engine(
            &format!("limits: [{{name: api, concurrency: {slots}, shed: priority}}]"),
            &clock,
        );
        for class in ["sheddable", "default", "critical"] {
            assert_eq!(fill(&engine, &of(class)).len(), 1, "{class} of {slots}");
        }
    }
}

#[test]
fn keys_of_plain_slots_are_shed_each_by_itself() {
    let clock = Manual::new();
    let text = "limits: [{name: api, key: user, concurrency: 10, shed: priority}]";
    let engine = engine(text, &clock);
    let by = |user: &'static str| of("sheddable").with("user", user);
    let (ada, bob) = (by("ada"), by("bob"));
    let held = fill(&engine, &ada);
    assert_eq!((held.len(), fill(&engine, &bob).len()), (7, 7));
}

#[test]
fn other_shares_count_from_the_next_request_on() {
    let clock = Manual::new();
    for slots in BOTH {
        let text = |sheddable: u8| {
            format!(
                "limits: [{{name: api, concurrency: {slots}, shed: {{by: priority, sheddable: {sheddable}%}}}}]"
            )
        };
        let engine = engine(&text(20), &clock);
        let facts = of("sheddable");
        let held = fill(&engine, &facts);
        engine.reload(policy(&text(60))).expect("a policy");
        let more = fill(&engine, &facts);
        assert_eq!((held.len(), more.len()), (2, 4), "{slots}");
        let without = format!("limits: [{{name: api, concurrency: {slots}}}]");
        engine.reload(policy(&without)).expect("a policy");
        assert_eq!(fill(&engine, &facts).len(), 4, "{slots}");
    }
}

#[test]
fn an_operator_who_changes_the_slots_changes_them_for_all_classes() {
    use std::time::Duration;
    use tollgate_engine::overrides::{NewOverride, OverrideAction, ReplacementLimits, Target};

    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: api, concurrency: 10, shed: priority}]",
        &clock,
    );
    let fewer = OverrideAction::Limit(ReplacementLimits {
        concurrency: Some(4),
        ..ReplacementLimits::default()
    });
    let order = NewOverride::new(fewer, Target::rule("api"), Duration::from_secs(60));
    engine.add_override(order).expect("an order");
    assert_eq!(fill(&engine, &of("sheddable")).len(), 4);
}

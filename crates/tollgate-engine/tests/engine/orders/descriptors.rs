//! Overrides for descriptors.

use super::*;

#[test]
fn descriptors_are_blocked_bypassed_and_overridden() {
    let clock = Manual::new();
    let engine = engine(read(TREE), &clock).with_counters(10);
    let many = |name: &str| {
        (0..10)
            .filter(|_| descriptors_pass(&engine, &[("user", name)]))
            .count()
    };
    let target = |name: &str| Target::descriptor("edge", [("user", name)]);
    order(&engine, OverrideAction::Block, target("eve"));
    assert_eq!((many("eve"), many("bob")), (0, 2));
    let both = [
        Descriptor::new(&[("plan", "free")]),
        Descriptor::new(&[("user", "eve")]),
    ];
    let verdict = engine.decide_descriptors("edge", &both, 1);
    let refused = verdict.denied().expect("it is blocked");
    assert_eq!((refused.decider, refused.retry_after), (Some(1), MINUTE));
    assert_eq!(refused.statuses[0].remaining, 5);
    assert_eq!(refused.statuses[0].charged, 0);
    let tally = engine
        .counters()
        .into_iter()
        .find(|own| &*own.limiter == "edge/user");
    assert_eq!(tally.expect("counted").denied(DenyReason::Blocked), 11);

    order(&engine, rate("4/h"), target("carl"));
    let told = engine.decide_descriptors("edge", &[Descriptor::new(&[("user", "carl")])], 1);
    let current = told.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(current.requests_per_unit, 4);
    assert_eq!(many("carl"), 3);

    order(&engine, OverrideAction::Bypass, Target::rule("edge/user"));
    assert_eq!((many("dora"), many("eve")), (10, 0));
    clock.advance(MINUTE);
    assert_eq!((many("dora"), many("eve")), (2, 2));
    // By the name of the limit and its key, as lists show them.
    order(
        &engine,
        OverrideAction::Block,
        Target::key("edge/user", [("user", "eve")]),
    );
    assert_eq!(many("eve"), 0);
    let error = engine.add_override(of(
        OverrideAction::Block,
        Target::key("edge/user", [("path", "/")]),
    ));
    let told = "the key of \"edge/user\" is made of the fact \"user\": say user=…";
    assert_eq!(error.expect_err("another key").to_string(), told);
}

#[test]
fn a_descriptor_in_shadow_is_told_of_a_block_and_passes() {
    let clock = Manual::new();
    let engine = engine(read(TREE), &clock);
    let made = order(
        &engine,
        OverrideAction::Block,
        Target::descriptor("edge", [("trial", "x")]),
    );
    assert_eq!(made.effect, OverrideStatus::InShadow);
    let descriptor = [Descriptor::new(&[("trial", "x")])];
    let verdict = engine.decide_descriptors("edge", &descriptor, 1);
    assert!(verdict.denied().is_none());
    assert!(verdict.statuses[0].would_deny);
}

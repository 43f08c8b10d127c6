//! Reports to operators: why an override is rejected, the keys and limiters, the keys with the most denials; and what a
//! restart keeps.

use super::*;
use tollgate_engine::engine::ResetScope;

#[test]
fn an_address_names_its_network() {
    let clock = Manual::new();
    let engine = engine(
        read("limits: [{name: nets, key: ip/24, rate: 9/s}]"),
        &clock,
    );
    order(
        &engine,
        OverrideAction::Block,
        Target::key("nets", [("ip", "203.0.113.7")]),
    );
    let from = |ip| passes(&engine, &Facts::new().with("ip", ip));
    assert!(!from("203.0.113.200") && from("203.0.114.7"));
    let found = engine.find(&Target::key("nets", [("ip", "203.0.113.9")]));
    let found = found.expect("a network");
    assert_eq!(found[0].key, "ip=203.0.113.0/24");
    assert_eq!(found[0].orders.len(), 1);
}

#[test]
fn what_cannot_be_carried_out_is_said() {
    let clock = Manual::new();
    let mut off = rule("off", rates(&["1/s"]));
    off.mode = Mode::Off;
    let engine = engine(policy(vec![rule("users", rates(&["5/s"])), off]), &clock);
    let key = || Target::key("users", [("user", "ada")]);
    let nothing = OverrideAction::Limit(ReplacementLimits::default());
    let quota = OverrideAction::Limit(ReplacementLimits {
        quota: Some(1),
        ..ReplacementLimits::default()
    });
    let long = NewOverride::new(OverrideAction::Block, key(), MAX_OVERRIDE_DURATION + MINUTE);
    let table = [
        (
            of(OverrideAction::Block, Target::rule("user")),
            "no rule, tier or limit of a tree is called \"user\": did you mean \"users\"?",
        ),
        (
            of(OverrideAction::Block, Target::rule("off")),
            "\"off\" is off",
        ),
        (
            of(OverrideAction::Block, Target::all_requests()),
            "that would be for all requests: name a rule, or the facts of a key",
        ),
        (
            of(OverrideAction::Block, Target::key("users", [("ip", "::1")])),
            "the key of \"users\" is made of the fact \"user\": say user=…",
        ),
        (
            of(
                OverrideAction::Block,
                Target::key("users", [("user", "ada"), ("path", "/")]),
            ),
            "the key of \"users\" isn't made of the fact \"path\": leave it out",
        ),
        (
            of(
                OverrideAction::Block,
                Target::descriptor("edge", [("user", "ada")]),
            ),
            "no limit of the domain is for this descriptor",
        ),
        (
            of(nothing, key()),
            "say the limit: a rate, a quota, or how many concurrent requests",
        ),
        (
            of(rate("1/s"), Target::facts([("user", "ada")])),
            "name the rule whose limit is to be another",
        ),
        (of(quota, key()), "\"users\" has no quota"),
        (
            NewOverride::new(OverrideAction::Block, key(), Duration::ZERO),
            "an override needs a duration: say how long it lasts",
        ),
        (
            long,
            "an override lasts at most 30 days, not 31: change the policy instead",
        ),
        (
            of(OverrideAction::Block, key()).author("x".repeat(300)),
            "the name of the author has 300 bytes, more than the 256 that are kept",
        ),
    ];
    for (order, told) in table {
        assert_eq!(
            engine.add_override(order).expect_err(told).to_string(),
            told
        );
    }
    assert!(engine.overrides().is_empty());
}

#[test]
fn a_key_is_found_and_reset_by_its_rule_or_by_all_that_know_it() {
    let clock = Manual::new();
    let mut by_path = rule("paths", rates(&["9/h"]));
    by_path.key.push(KeyPart::Fact("path".to_owned()));
    let one_path = Rule {
        matches: only("path", "/x"),
        ..rule("x", rates(&["3/h"]))
    };
    let everybody = Rule {
        key: Vec::new(),
        matches: MatchConditions::default(),
        ..rule("all", rates(&["100/h"]))
    };
    let rules = vec![rule("users", rates(&["5/h"])), by_path, one_path, everybody];
    let engine = engine(policy(rules), &clock);
    let ada = user("ada").with("path", "/x");
    assert_eq!(of_ten(&engine, &ada), 3);
    let left = |target: &Target| -> Vec<_> {
        let found = engine.find(target).expect("a key").into_iter();
        found
            .map(|found| format!("{} {}", found.rule, found.limits[0].decision.remaining))
            .collect()
    };
    let known = Target::facts([("user", "ada")]);
    assert_eq!(left(&known), ["users 2", "x 0"]);
    assert_eq!(left(&Target::rule("all")), ["all 97"]);
    let reset = engine
        .reset(&Target::key("x", [("user", "ada")]), ResetScope::Rates)
        .expect("a key");
    assert_eq!(reset.rules[0].rule, "x");
    assert_eq!(left(&known), ["users 2", "x 3"]);
    let nobody = engine
        .find(&Target::facts([("ip", "::1")]))
        .expect_err("no key");
    assert_eq!(nobody, OverrideError::NoKey);
}

#[test]
fn orders_go_on_after_a_restart_until_they_end() {
    let (clock, folder) = (Manual::new(), TempFolder::new("engine-orders"));
    let path = folder.path("state");
    let text = "limits: [{name: a, key: user, rate: 5/h, quota: 9/day, concurrency: 3}]";
    let before = engine(with_tree(text), &clock);
    let all = OverrideAction::Limit(ReplacementLimits {
        rates: vec![Rate::per_hour(7).burst(2)],
        quota: Some(3),
        concurrency: Some(1),
    });
    order(&before, all, Target::key("a", [("user", "ada")]));
    order(
        &before,
        OverrideAction::Bypass,
        Target::descriptor("edge", [("user", "bob")]),
    );
    order(&before, OverrideAction::Bypass, Target::all_requests());
    let short = NewOverride::new(
        OverrideAction::Block,
        Target::rule("a"),
        Duration::from_secs(10),
    );
    before.add_override(short).expect("an order");
    order(
        &before,
        OverrideAction::Block,
        Target::facts([("user", "eve"), ("path", "/")]),
    );
    clock.advance(Duration::from_secs(5));
    let listed = before.overrides();
    let mut file = SnapshotWriter::create(&path, b"teststst", 1).expect("a file");
    before.save(&mut file).expect("written");
    file.finish().expect("written");
    let restored = |policy: Policy| {
        let mut file = SnapshotReader::open(&path, b"teststst", 1).expect("a file");
        let builder = Memory::builder().clock(clock.clone()).wall(clock.clone());
        let restored = Engine::restore(
            policy,
            builder,
            tollgate_engine::RestoreOptions::default(),
            &mut file,
        );
        restored.expect("a snapshot").0
    };
    assert_eq!(restored(with_tree(text)).overrides(), listed);
    clock.advance(Duration::from_secs(5));
    let other = restored(read("limits: [{name: b, rate: 1/s}]")).with_counters(10);
    let ids: Vec<_> = other.overrides().iter().map(|order| order.id).collect();
    assert_eq!(ids, [1, 2, 3, 5]);
    assert!(matches!(
        other.overrides()[0].effect,
        OverrideStatus::Idle(_)
    ));
    assert!(!passes(&other, &user("eve").with("path", "/")));
    assert_eq!(
        order(&other, OverrideAction::Block, Target::rule("b")).id,
        6
    );
    clock.advance(MINUTE);
    assert!(restored(with_tree(text)).overrides().is_empty());
}

#[test]
fn limiters_tell_what_they_are_and_who_waits() {
    let clock = Manual::starting_at(tollgate::Timestamp::from_secs(7));
    let text = "
tiers: {free: {rate: 1/h}}
limits:
- {name: a, key: [user, ip/24], rate: [5/s burst 9, 1/h], over: wait 2h}
- {name: trial, mode: shadow, rate: 5/s, algorithm: sliding-log}
";
    let engine = engine(read(text), &clock);
    order(&engine, OverrideAction::Bypass, Target::rule("trial"));
    let facts = user("ada").with("ip", "203.0.113.1");
    assert!(passes(&engine, &facts));
    let mut waiting = Box::pin(engine.decide_async(&facts));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let states = engine.limiter_states();
    let told: Vec<_> = states
        .iter()
        .map(|own| {
            let limits: Vec<_> = own.limits.iter().map(ToString::to_string).collect();
            let (sort, key) = (own.sort.name(), own.key.join(","));
            format!(
                "{} {sort} {key} {limits:?} {:?} {} {}",
                own.name, own.mode, own.waiting, own.overrides
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "a rule user,ip [\"5/s burst 9\", \"1/h\"] Enforce 1 0",
            "trial rule  [\"5/s\"] Shadow 0 1",
            "free tier tenant [\"1/h\"] Enforce 0 0",
        ]
    );
    assert_eq!(states[0].since, tollgate::Timestamp::from_secs(7));
}

#[test]
fn the_keys_that_are_refused_most_are_told_with_their_limiter() {
    let clock = Manual::new();
    let text = "limits: [{name: a, key: [user, path], rate: 1/h}]\nblock: [{path: /x}]";
    let engine = engine(with_tree(text), &clock).with_top_keys(5);
    order(
        &engine,
        OverrideAction::Block,
        Target::descriptor("edge", [("user", "bob")]),
    );
    for (name, times) in [("eve", 6), ("bob", 3), ("ada", 1)] {
        of_times(times, || passes(&engine, &user(name).with("path", "/")));
    }
    of_times(2, || descriptors_pass(&engine, &[("user", "bob")]));
    // What no rule refuses has no key.
    of_times(9, || passes(&engine, &Facts::new().with("path", "/x")));
    let top = engine.top_keys().expect("it is counted");
    let told: Vec<_> = top
        .keys
        .iter()
        .map(|key| format!("{} {} {}", key.limiter, key.key, key.denied))
        .collect();
    let expected = [
        "a user=eve path=/ 5",
        "a user=bob path=/ 2",
        "edge/user user=bob 2",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_clock_that_is_set_back_makes_no_order_last_longer_than_was_ordered() {
    let (clock, wall) = (
        Manual::new(),
        Manual::starting_at(tollgate::Timestamp::from_secs(1_000_000)),
    );
    let memory = Memory::builder().clock(clock).wall(wall.clone()).build();
    let engine = Engine::new(policy(vec![rule("a", rates(&["1/h"]))]), memory);
    let engine = engine.expect("a policy");
    let made = order(&engine, OverrideAction::Bypass, Target::rule("a"));
    let ada = user("ada");
    let all_pass = || (0..10).all(|_| engine.decide(&ada).allowed().is_some());
    // A little less says nothing: threads read the clock at times of their own.
    wall.set(tollgate::Timestamp::from_secs(999_999));
    assert!(all_pass());
    let listed = engine.overrides().remove(0);
    assert_eq!(
        (listed.id, listed.made_at, listed.until),
        (made.id, made.made_at, made.until)
    );
    wall.set(tollgate::Timestamp::from_secs(500));
    assert!(all_pass());
    let until = tollgate::Timestamp::from_secs(560);
    assert_eq!(engine.overrides()[0].until, until);
    wall.set(until);
    assert!(!all_pass() && engine.overrides().is_empty());
}

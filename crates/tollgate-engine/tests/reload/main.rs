//! A policy that changes under traffic: spent tokens stay spent, permits stay valid, and no window has more than the
//! bound of the looser version.

#[path = "../common/mod.rs"]
mod common;
mod diff;
mod diff_fields;
mod restart;
mod returning;
mod rollout;
mod state;
mod state_forms;
mod waits;
mod warm_up;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{TestEngine, engine, policy, rates, rule};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::clock::Manual;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate, Timestamp, concurrency::PermitOutcome};
use tollgate_engine::Facts;
use tollgate_engine::policy::{Limits, Policy, Tier};
use tollgate_engine::verdict::AllowedRequest;

fn version(rate: &str) -> Policy {
    policy(vec![rule("api", rates(&[rate]))])
}

#[test]
fn threads_never_get_more_than_the_looser_version_allows() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let engine = engine(version("10/s burst 50"), &clock);
    let (admitted, deciding) = (AtomicU64::new(0), AtomicU64::new(3));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let facts = Facts::new().with("user", "1");
                for _ in 0..3_000 {
                    if engine.decide(&facts).allowed().is_some() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
                deciding.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for round in 0.. {
            let rate = ["5/s burst 20", "2/s burst 50", "10/s burst 50"][round % 3];
            engine.reload(version(rate)).unwrap();
            if deciding.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
    });
    assert!(admitted.load(Ordering::Relaxed) <= 50);
    assert!(admitted.load(Ordering::Relaxed) >= 20);
}

/// A policy with this many permits.
fn slots(limit: u32) -> Policy {
    let slots = Limits {
        concurrency: Some(limit),
        ..Limits::default()
    };
    policy(vec![rule("slots", slots)])
}

#[test]
fn permits_outlive_a_reload_and_count_in_the_next_policy() {
    let clock = Manual::new();
    let engine = engine(slots(10), &clock);
    let facts = Facts::new().with("user", "1");
    let held: Vec<_> = (0..10)
        .filter_map(|_| engine.decide(&facts).allowed())
        .map(AllowedRequest::into_permits)
        .collect();
    engine.reload(slots(8)).unwrap();
    assert!(engine.decide(&facts).denied().is_some());
    let mut held = held.into_iter();
    held.by_ref()
        .take(2)
        .for_each(|permits| permits.end(PermitOutcome::Success));
    assert!(
        engine.decide(&facts).denied().is_some(),
        "eight are in flight still"
    );
    drop(held.next());
    let ninth = engine.decide(&facts);
    assert!(ninth.denied().is_none());
    engine.reload(policy(Vec::new())).unwrap();
    drop((held, ninth));
    assert_eq!(engine.backend().keys_in_flight(), 0);
}

#[test]
fn threads_with_permits_never_exceed_the_looser_limit_and_lose_none() {
    let clock = Manual::new();
    let engine = engine(slots(3), &clock);
    let (running, most, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                engine.reload(slots([2, 3][round % 2])).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        for _ in 0..6 {
            scope.spawn(|| {
                let facts = Facts::new().with("user", "1");
                while !stop.load(Ordering::Relaxed) {
                    if let Some(passed) = engine.decide(&facts).allowed() {
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        passed.into_permits().end(PermitOutcome::Success);
                    }
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    assert_eq!(engine.backend().keys_in_flight(), 0);
}

#[test]
fn a_policy_that_cant_be_put_in_force_changes_nothing() {
    let clock = Manual::new();
    let engine = engine(version("1/h"), &clock);
    let facts = Facts::new().with("user", "1");
    assert!(engine.decide(&facts).allowed().is_some());
    let mut wrong = version("5/s");
    wrong.rules[0].replaces.push("nobody".to_owned());
    let error = engine.reload(wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"api\" replaces \"nobody\", and no rule has that name; name a rule of this policy, or \
         leave it out"
    );
    assert!(engine.decide(&facts).denied().is_some());
}

#[test]
fn what_was_spent_stays_spent_when_other_rules_come_and_go() {
    let clock = Manual::new();
    let engine = engine(version("2/h"), &clock);
    let facts = Facts::new().with("user", "1");
    assert!(engine.decide(&facts).allowed().is_some());
    let both = policy(vec![
        rule("new", rates(&["9/h"])),
        rule("api", rates(&["2/h"])),
    ]);
    engine.reload(both).unwrap();
    assert_eq!(engine.decide(&facts).decision().remaining, 0);
    engine.reload(version("100/h")).unwrap();
    assert_eq!(engine.decide(&facts).decision().remaining, 97);
}

const VERSIONS: [&str; 9] = [
    "10/s burst 1",
    "2/s burst 40",
    "10/s burst 5",
    "10/s burst 20",
    "4/s burst 10",
    "9/s",
    "1/s burst 30",
    "9/s burst 1",
    "zero",
];

/// One step of a run: so many milliseconds pass, then perhaps another version, then so many requests.
type BurstAfter = (u64, Option<usize>, usize);

/// Plays steps against one key, from the first version on, and checks that no window sees more than the
/// largest burst and the fastest rate of the versions in it allow together.
fn holds(
    algorithm: Algorithm,
    versions: &[&str],
    steps: &[BurstAfter],
) -> Result<(), TestCaseError> {
    let version = |rate| {
        let mut policy = version(rate);
        policy.rules[0].algorithm = algorithm;
        policy
    };
    let start = Timestamp::from_secs(1);
    let clock = Manual::starting_at(start);
    let rates: Vec<Rate> = versions
        .iter()
        .map(|version| version.parse().expect("a rate"))
        .collect();
    let engine = engine(version(versions[0]), &clock);
    // When each passed, and how many changes came before it.
    let mut admitted: Vec<(u64, usize)> = Vec::new();
    let mut in_force = vec![rates[0]];
    let (mut now, facts) = (0, Facts::new().with("user", "1"));
    for (millis, change, asks) in steps {
        now += millis;
        clock.set(start + Duration::from_millis(now));
        if let Some(change) = change {
            let change = change % versions.len();
            let reloaded = engine.reload(version(versions[change]));
            prop_assert!(reloaded.is_ok());
            in_force.push(rates[change]);
        }
        for _ in 0..*asks {
            if engine.decide(&facts).allowed().is_some() {
                admitted.push((now, in_force.len() - 1));
            }
        }
    }
    for (first, (from, since)) in admitted.iter().enumerate() {
        for (last, (to, until)) in admitted.iter().enumerate().skip(first) {
            let versions = &in_force[*since..=*until];
            let burst = versions.iter().map(|rate| rate.burst_size()).max();
            let count = versions.iter().map(|rate| rate.count()).max();
            let passed = (last - first + 1) as u64;
            let bound = burst.unwrap_or(0) * 1_000 + count.unwrap_or(0) * (to - from);
            prop_assert!(
                passed * 1_000 <= bound,
                "{} from {} to {} by {:?}",
                passed,
                from,
                to,
                versions
            );
        }
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<BurstAfter>> {
    let change = prop::option::weighted(0.2, 0..VERSIONS.len());
    prop::collection::vec((0..400u64, change, 0..12usize), 1..80)
}

/// Found by the property below.
#[test]
fn chains_that_once_saw_too_much_keep_their_bound() -> Result<(), TestCaseError> {
    // What admits nothing in between wiped what was spent.
    let versions = ["10/s burst 20", "zero", "1/s burst 30"];
    let steps = [(0, None, 17), (0, Some(1), 0), (0, Some(2), 14)];
    holds(Algorithm::Gcra, &versions, &steps)?;
    // More was owed than the last burst.
    let versions = ["10/s burst 1", "4/s burst 10", "zero", "9/s"];
    let steps = [
        (0, Some(1), 6),
        (0, Some(0), 0),
        (0, Some(2), 0),
        (112, Some(3), 16),
    ];
    holds(Algorithm::Gcra, &versions, &steps)
}

const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/reload.txt"
);

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_window_sees_more_than_the_looser_version_allows(
        steps in steps(),
        versions in prop::sample::subsequence(VERSIONS.to_vec(), 2).prop_shuffle(),
    ) {
        holds(Algorithm::Gcra, &versions, &steps)?;
    }

    #[test]
    fn no_window_sees_more_than_the_loosest_of_a_chain_of_versions_allows(
        algorithm in prop_oneof![
            2 => Just(Algorithm::Gcra),
            1 => Just(Algorithm::LeakyBucket),
            1 => Just(Algorithm::TokenBucket),
        ],
        steps in steps(),
        versions in prop::sample::subsequence(VERSIONS.to_vec(), 3..=VERSIONS.len()).prop_shuffle(),
    ) {
        holds(algorithm, &versions, &steps)?;
    }
}

#[test]
fn who_has_spent_a_slow_rate_waits_no_longer_than_a_faster_one_says() {
    let start = Timestamp::from_secs(1);
    for other in [&[][..], &["5/h"]] {
        let clock = Manual::starting_at(start);
        let rules = |rate: &str| {
            let mut rules = vec![rule("api", rates(&[rate]))];
            let mut log = rule("log", rates(&["1000000/d"]));
            log.algorithm = Algorithm::SlidingLog;
            rules.extend((!other.is_empty()).then_some(log));
            policy(rules)
        };
        let engine = engine(rules("10/h"), &clock);
        let facts = Facts::new().with("user", "1");
        assert!((0..10).all(|_| engine.decide(&facts).allowed().is_some()));
        engine.reload(rules("100/s burst 5")).unwrap();
        let refused = engine.decide(&facts);
        assert!(refused.denied().is_some());
        let wait = refused.decision().wait_or_max();
        assert_eq!(wait, Duration::from_millis(60), "{other:?}");
        clock.set(start + (wait - Duration::from_nanos(1)));
        assert!(engine.decide(&facts).denied().is_some(), "{other:?}");
        clock.set(start + wait);
        assert!(engine.decide(&facts).allowed().is_some(), "{other:?}");
    }
}

/// An engine with two tiers of these limits, chosen by a fact.
fn seen_in_two_tiers(limits: [Limits; 2], start: Timestamp) -> (TestEngine, Manual) {
    let clock = Manual::starting_at(start);
    let mut all = policy(Vec::new());
    for (name, limits) in ["free", "paid"].into_iter().zip(limits) {
        all.tiers.insert(name.to_owned(), Tier::new(limits));
    }
    all.tier_fact = Some("tier".to_owned());
    (engine(all, &clock), clock)
}

/// How many pass of so many requests that come in turn.
fn pass_in_turn(engine: &TestEngine, asks: usize) -> usize {
    let seen = |tier| Facts::new().with("tenant", "acme").with("tier", tier);
    let asks = ["free", "paid"].into_iter().cycle().take(asks);
    asks.filter(|tier| engine.decide(&seen(tier)).allowed().is_some())
        .count()
}

#[test]
fn a_tenant_that_is_seen_in_two_tiers_gets_no_more_than_the_larger_of_them() {
    for rates_of in [["10/h", "100/h"], ["10/s burst 40", "1/h burst 100"]] {
        let limits = rates_of.map(|rate| rates(&[rate]));
        let (engine, _) = seen_in_two_tiers(limits, Timestamp::from_secs(1));
        assert_eq!(pass_in_turn(&engine, 2_000), 100, "{rates_of:?}");
    }
}

fn quota(quota: Quota) -> Limits {
    Limits {
        quota: Some(quota),
        ..Limits::default()
    }
}

#[test]
fn a_tenant_that_is_seen_in_tiers_by_the_month_and_by_the_day_gets_each_once() {
    let june = Timestamp::from_secs(1_717_200_000);
    let limits = [Quota::per_month(1_000), Quota::per_day(50)].map(quota);
    let (engine, clock) = seen_in_two_tiers(limits, june);
    let mut passed = 0;
    for _ in 0..30 {
        passed += pass_in_turn(&engine, 2_000);
        clock.advance(Duration::from_secs(86_400));
    }
    assert_eq!(passed, 1_000 + 29 * 50);
}

#[test]
fn a_quota_whose_period_changes_to_and_fro_forgets_nothing() {
    let june = Timestamp::from_secs(1_717_200_000);
    let clock = Manual::starting_at(june);
    let version = |version: Quota| policy(vec![rule("monthly", quota(version))]);
    let engine = engine(version(Quota::per_month(100)), &clock);
    let facts = Facts::new().with("user", "1");
    let passed = || {
        (0..200)
            .filter(|_| engine.decide(&facts).allowed().is_some())
            .count()
    };
    assert_eq!(passed(), 100);
    for _ in 0..5 {
        engine.reload(version(Quota::per_hour(10))).unwrap();
        passed();
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(passed(), 10);
        engine.reload(version(Quota::per_month(100))).unwrap();
        assert_eq!(passed(), 0);
    }
}

#[test]
fn who_has_spent_a_larger_burst_is_told_how_long_that_takes() {
    let start = Timestamp::from_secs(1);
    let clock = Manual::starting_at(start);
    let engine = engine(version("1/s burst 30"), &clock);
    let facts = Facts::new().with("user", "1");
    let passed = (0..40).filter(|_| engine.decide(&facts).allowed().is_some());
    assert_eq!(passed.count(), 30);
    engine.reload(version("1/s burst 1")).unwrap();
    let wait = engine.decide(&facts).decision().wait_or_max();
    assert_eq!(wait, Duration::from_secs(30));
    clock.set(start + (wait - Duration::from_nanos(1)));
    assert!(engine.decide(&facts).denied().is_some());
    clock.set(start + wait);
    assert!(engine.decide(&facts).allowed().is_some());
    // At ten a second the thirty that were spent take three.
    clock.advance(Duration::from_secs(60));
    engine.reload(version("1/s burst 30")).unwrap();
    let passed = (0..40).filter(|_| engine.decide(&facts).allowed().is_some());
    assert_eq!(passed.count(), 30);
    engine.reload(version("10/s burst 5")).unwrap();
    let wait = engine.decide(&facts).decision().wait_or_max();
    assert_eq!(wait, Duration::from_millis(2_600));
}

#[test]
fn stricter_versions_in_a_row_keep_the_bound_of_the_fastest() {
    let start = Timestamp::from_secs(1);
    let clock = Manual::starting_at(start);
    let engine = engine(version("10/s"), &clock);
    let facts = Facts::new().with("user", "1");
    let mut admitted = 0;
    for step in 0..200u64 {
        let millis = step * 50;
        clock.set(start + Duration::from_millis(millis));
        if let rate @ 1..=9 = 10 - step.min(10) {
            engine
                .reload(version(&format!("{rate}/s burst 10")))
                .unwrap();
        }
        admitted += (0..20)
            .filter(|_| engine.decide(&facts).allowed().is_some())
            .count() as u64;
        assert!(admitted * 1_000 <= 10_000 + 10 * millis, "at {millis} ms");
    }
    // The last of them, at one a second, is what decides in the end.
    assert!(admitted >= 20, "{admitted}");
}

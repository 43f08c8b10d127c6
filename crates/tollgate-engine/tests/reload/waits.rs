//! The wait that a denial reports, whatever was reloaded and whether denials are cached.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Outcome, Timestamp, core::WindowAlignment};
use tollgate_engine::Facts;
use tollgate_engine::policy::{Cost, Policy};

use super::common::engine;
use super::{VERSIONS, config, version};

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// Rates by periods that differ, of which a window's burst is its count.
const PERIODS: [&str; 9] = [
    "10/s",
    "2/s",
    "9/s",
    "3/m",
    "40/m",
    "5 per 250ms",
    "100/h",
    "7/h",
    "zero",
];

/// One step: so many milliseconds pass, then perhaps another version, then a request of this cost.
type CostAfter = (u64, Option<usize>, u64);

fn asks() -> impl Strategy<Value = Vec<CostAfter>> {
    let millis = prop_oneof![6 => Just(0), 3 => 0..400u64, 1 => 0..60_000u64, 1 => 0..4_000_000u64];
    let change = prop::option::weighted(0.15, 0..PERIODS.len());
    let cost = prop_oneof![6 => Just(1u64), 2 => 1..5u64];
    prop::collection::vec((millis, change, cost), 1..60)
}

/// An engine for one key, whose cost is a fact.
fn costly(algorithm: Algorithm, rate: &str) -> Policy {
    let mut policy = version(rate);
    policy.rules[0].algorithm = algorithm;
    policy.rules[0].cost = Cost {
        fact: Some("cost".to_owned()),
        default: 1,
        settle: None,
    };
    policy
}

/// Plays steps against an engine that caches denials and one that doesn't: their answers are equal, and the reported
/// wait is exact.
fn tells_the_wait(
    algorithm: Algorithm,
    versions: &[&str],
    steps: &[CostAfter],
) -> Result<(), TestCaseError> {
    let start = Timestamp::from_secs(1_000_000);
    let clock = Manual::starting_at(start);
    let plain = engine(costly(algorithm, versions[0]), &clock);
    let cached = engine(costly(algorithm, versions[0]), &clock).with_deny_cache(64);
    let ask = |cost: u64| {
        let cost = cost.to_string();
        let facts = Facts::new().with("user", "1").with("cost", &cost);
        let decided = [&plain, &cached].map(|engine| *engine.decide(&facts).decision());
        let [one, other] = decided;
        prop_assert_eq!(one.is_allowed(), other.is_allowed(), "{:?}", decided);
        Ok(one)
    };
    let mut now = start;
    for (millis, change, cost) in steps {
        now += Duration::from_millis(*millis);
        clock.set(now);
        if let Some(change) = change {
            for engine in [&plain, &cached] {
                let version = costly(algorithm, versions[change % versions.len()]);
                prop_assert!(engine.reload(version).is_ok());
            }
        }
        let said = ask(*cost)?;
        if said.outcome != Outcome::Denied {
            continue;
        }
        let wait = said.wait_or_max();
        prop_assert!(wait > Duration::ZERO);
        // A counter of two windows tells an upper bound.
        if algorithm != Algorithm::SlidingCounter {
            clock.set(now + (wait - Duration::from_nanos(1)));
            let early = ask(*cost)?;
            prop_assert!(!early.is_allowed(), "sooner than in {:?}", wait);
        }
        now += wait;
        clock.set(now);
        prop_assert!(ask(*cost)?.is_allowed(), "not in {:?}", wait);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_wait_told_is_the_wait_whatever_was_reloaded_and_remembered(
        algorithm in prop::sample::select(ALGORITHMS.to_vec()),
        steps in asks(),
        versions in prop::sample::subsequence(PERIODS.to_vec(), 2..=PERIODS.len()).prop_shuffle(),
    ) {
        tells_the_wait(algorithm, &versions, &steps)?;
    }

    #[test]
    fn the_wait_told_is_the_wait_of_buckets_with_other_bursts(
        algorithm in prop::sample::select(ALGORITHMS[..3].to_vec()),
        steps in asks(),
        versions in prop::sample::subsequence(VERSIONS.to_vec(), 2..=VERSIONS.len()).prop_shuffle(),
    ) {
        tells_the_wait(algorithm, &versions, &steps)?;
    }
}

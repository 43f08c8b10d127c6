//! Every law of the arithmetic for one key of an exact-key table, and many keys against one oracle
//! each.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Align, AtCap, Decision, ExactKey, ExactKeyedLimiter, Rate, Reservation, Timestamp,
};
use tollgate_testkit::laws::{Adjustable, Lender, Subject};
use tollgate_testkit::oracle::Kind;
use tollgate_testkit::traffic::Random;

#[macro_use]
mod common;

type Table<K> = ExactKeyedLimiter<K, Manual>;
type Slot = Reservation<ExactKey<'static, String, str, Manual>>;

/// One key of a table that lives for ever, so that its reservations can be kept.
struct OneKey(&'static Table<String>);

impl OneKey {
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self(Box::leak(Box::new(table(algorithm, rate, 4))))
    }
}

fn table<K>(algorithm: Algorithm, rate: Rate, capacity: usize) -> Table<K> {
    ExactKeyedLimiter::builder(rate, capacity)
        .algorithm(algorithm)
        .at_cap(AtCap::DenyNew)
        .longest_wait(Duration::MAX)
        .clock(Manual::new())
        .build()
        .expect("a rate that fits")
}

impl Subject for OneKey {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.0.check_at(now, "key", cost)
    }
}

impl Lender for OneKey {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Slot>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.0.key("key").reserve_at(now, cost).ok()?;
        Some((slot.act_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

impl Adjustable for OneKey {
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        self.0.set_rate_at(now, rate).expect("a rate that fits");
    }
}

every_law!(crate::OneKey::new);

/// Keys that come and go, each compared with an oracle that forgets nothing.
fn many_keys(kind: Kind, algorithm: Algorithm, seed: u64) -> Result<(), TestCaseError> {
    let mut random = Random::new(seed);
    let rate = Rate::per_second(1 + random.below(6));
    let limiter = table(algorithm, rate, 60);
    let mut oracles = HashMap::new();
    let mut now = Timestamp::from_nanos(random.below(5_000_000_000));
    for _ in 0..30 {
        // 60 keys of 300 a round: the table is full of the last round's, which all are idle, unless
        // the same keys go on without a rest.
        let first = random.below(240);
        for _ in 0..1 + random.below(3) {
            for _ in 0..200 {
                let (key, cost) = (first + random.below(60), random.below(4));
                let oracle = oracles.entry(key).or_insert_with(|| kind.oracle(rate));
                let expect = oracle.decide(now, cost);
                let got = limiter.check_at(now, &key, cost);
                prop_assert_eq!(got.outcome, expect.outcome, "{:?} {} {}", kind, key, now);
                prop_assert_eq!(
                    got.remaining,
                    expect.remaining,
                    "{:?} {} {}",
                    kind,
                    key,
                    now
                );
                prop_assert_eq!(got.retry_after, expect.retry_after);
                now = now.plus_nanos(random.below(10_000_000));
            }
            now = now.plus_nanos(random.below(2_000_000_000));
        }
        now = now.plus_nanos(2_000_000_001);
    }
    let stats = limiter.stats();
    prop_assert_eq!((stats.overflowed, stats.evicted), (0, 0));
    prop_assert!(stats.expired > 60 && stats.slots <= 60);
    Ok(())
}

#[test]
fn many_keys_equal_one_oracle_each() {
    let aligned = Align::Boundary(Timestamp::ZERO);
    for (kind, algorithm) in [
        (Kind::Gcra, Algorithm::Gcra),
        (Kind::TokenBucket, Algorithm::TokenBucket),
        (Kind::LeakyBucket, Algorithm::LeakyBucket),
        (Kind::FixedWindow(aligned), Algorithm::FixedWindow(aligned)),
        (
            Kind::FixedWindow(Align::FirstHit),
            Algorithm::FixedWindow(Align::FirstHit),
        ),
        (Kind::SlidingLog, Algorithm::SlidingLog),
        (Kind::SlidingCounter, Algorithm::SlidingCounter),
    ] {
        for seed in 0..10 {
            many_keys(kind, algorithm, seed).unwrap();
        }
    }
}

//! The final charge is the actual cost, for every limiter that takes an estimate, and wherever it is settled.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    CompositeLimiter, ConcurrencyLimiter, KeyedLimiter, Limit, Limiter, Rate, StoredKeyLimiter,
    stack::{CostReservation, ReservationTerms},
};

use super::subject::{Keeper, Subject};
use super::world::ALGORITHMS;

/// 59 requests of which each is thought to cost 500: 29,500 in all.
const REQUESTS: u64 = 59;
const ESTIMATE: u64 = 500;
/// What they really cost.
const USED: u64 = 16_547;
const MOST: u64 = 30_000;

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// What each request costs: some more than was thought.
fn costs(numbers: &mut Numbers) -> Vec<u64> {
    let (mean, rest) = (USED / REQUESTS, USED % REQUESTS);
    let pairs = (0..REQUESTS / 2).flat_map(|_| {
        let more = numbers.below(mean);
        [mean + more, mean - more]
    });
    let costs: Vec<u64> = pairs.chain([mean + rest]).collect();
    assert_eq!(costs.iter().sum::<u64>(), USED);
    costs
}

/// Holds and settles at random times, and returns what was charged: in a year less than one token drains.
fn charged(
    numbers: &mut Numbers,
    advance: impl Fn(Duration),
    hold: impl Fn() -> CostReservation<'static>,
    left: impl Fn() -> u64,
) -> u64 {
    let mut open: Vec<(CostReservation<'static>, u64)> = Vec::new();
    for cost in costs(numbers) {
        open.push((hold(), cost));
        while numbers.below(3) > 0
            && let Some(last) = u64::try_from(open.len()).ok().filter(|len| *len > 0)
        {
            let index = usize::try_from(numbers.below(last)).expect("an index");
            let (hold, cost) = open.swap_remove(index);
            hold.settle(cost);
        }
        advance(Duration::from_millis(numbers.below(9_000)));
    }
    for (hold, cost) in open {
        advance(Duration::from_millis(numbers.below(900)));
        hold.settle(cost);
    }
    MOST - left()
}

fn places() -> impl Iterator<Item = Keeper> {
    let limiters = ALGORITHMS.into_iter().map(Keeper::Limiter);
    let exact = ALGORITHMS.into_iter().map(Keeper::Exact);
    limiters.chain(exact).chain([Keeper::Striped])
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

#[test]
fn what_is_charged_is_what_was_used() {
    for seed in 0..20 {
        for place in places() {
            let subject = Subject::new(place, Rate::new(MOST, YEAR));
            let terms = ReservationTerms::for_at_most(Duration::from_secs(3_600));
            let charged = charged(
                &mut Numbers(seed),
                |time| subject.clock.advance(time),
                || subject.hold_on(ESTIMATE, terms).expect("room"),
                || subject.left(),
            );
            assert_eq!(charged, USED, "{place:?} {seed}");
        }
    }
}

#[cfg(feature = "quota")]
#[test]
fn what_is_charged_to_a_quota_is_what_was_used() {
    use tollgate::{Quota, QuotaLimiter};

    for quota in ["30000/day", "30000/month", "30000/week"] {
        let quota: Quota = quota.parse().expect("a quota");
        for seed in 0..20 {
            let clock = Manual::starting_at(super::world::START);
            let builder = QuotaLimiter::builder(quota.clone(), 1_000_000);
            let limiter = Arc::new(builder.clock(clock.clone()).build().unwrap());
            let levels = [Limit::estimated(
                "quota",
                limiter.key_owned("acme"),
                ESTIMATE,
            )];
            let stack = CompositeLimiter::new();
            let charged = charged(
                &mut Numbers(seed),
                |time| clock.advance(time),
                || {
                    let held = stack.hold(&levels, Duration::from_secs(3_600));
                    held.expect("room")
                },
                || limiter.peek("acme").remaining,
            );
            assert_eq!(charged, USED, "{quota:?} {seed}");
        }
    }
}

/// A stack of limits that are all shared.
struct Shared {
    limiter: Arc<Limiter<Manual>>,
    exact: Arc<StoredKeyLimiter<String, Manual>>,
    keyed: Arc<KeyedLimiter<Manual>>,
    slots: Arc<ConcurrencyLimiter>,
}

impl Shared {
    fn new() -> Self {
        let (clock, rate) = (Manual::new(), Rate::per_hour(100));
        let exact = StoredKeyLimiter::builder(rate, 8).clock(clock.clone());
        let keyed = KeyedLimiter::builder(rate, 8).clock(clock.clone());
        Self {
            limiter: Arc::new(Limiter::with_clock(rate, clock)),
            exact: Arc::new(exact.build().expect("a rate that fits")),
            keyed: Arc::new(keyed.build().expect("a rate that fits")),
            slots: Arc::new(ConcurrencyLimiter::new(3)),
        }
    }

    fn hold(&self, terms: ReservationTerms) -> CostReservation<'static> {
        // Of what is borrowed here nothing is left when the hold is.
        let tenant = String::from("acme");
        let levels = [
            Limit::estimated("limiter", Arc::clone(&self.limiter), 10),
            Limit::estimated("exact", self.exact.key_owned(&tenant), 10),
            Limit::new("keyed", self.keyed.key_owned(&tenant)).cost(10),
            Limit::new("slots", Arc::clone(&self.slots)),
        ];
        CompositeLimiter::new().hold(&levels, terms).expect("room")
    }

    fn left(&self) -> [u64; 4] {
        [
            self.limiter.peek().remaining,
            self.exact.key("acme").peek().remaining,
            self.keyed.key("acme").peek().remaining,
            u64::from(self.slots.available()),
        ]
    }
}

#[test]
fn a_hold_of_shared_limits_is_settled_in_another_thread() {
    let (shared, minute) = (
        Shared::new(),
        ReservationTerms::for_at_most(Duration::from_secs(60)),
    );
    let there = |end: fn(CostReservation<'static>), terms| {
        let hold = shared.hold(terms);
        assert_eq!(shared.left()[3], 2);
        thread::spawn(move || end(hold)).join().expect("no panic");
        shared.left()
    };
    assert_eq!(
        there(
            |hold| {
                hold.settle(4);
            },
            minute
        ),
        [96, 96, 90, 3]
    );
    assert_eq!(there(CostReservation::cancel, minute), [96, 96, 90, 3]);
    // A task that is gone has spent what it held, unless the terms say otherwise.
    assert_eq!(there(drop, minute.refund_on_drop()), [96, 96, 90, 3]);
    assert_eq!(there(drop, minute), [86, 86, 80, 3]);
    assert_eq!(there(|hold| drop(hold.keep()), minute), [76, 76, 70, 3]);
}

#[test]
fn limits_outlive_what_is_held_of_them() {
    let shared = Shared::new();
    let limiter = Arc::downgrade(&shared.limiter);
    let hold = shared.hold(ReservationTerms::for_at_most(Duration::from_secs(60)));
    drop(shared);
    assert!(limiter.upgrade().is_some());
    hold.settle(1);
    assert!(limiter.upgrade().is_none());
}

/// Who thinks that it costs nothing, and is wrong, owes what it cost.
#[test]
fn an_estimate_of_nothing_is_settled_too() {
    let exact = ALGORITHMS.map(Keeper::Exact);
    let single = ALGORITHMS.map(Keeper::Limiter);
    for place in exact.into_iter().chain(single).chain([Keeper::Striped]) {
        let subject = Subject::new(place, Rate::per_second(10));
        subject.hold(0, 1_000).expect("room").settle(4);
        assert_eq!(subject.left(), 6, "{place:?}");
        subject.hold(0, 1_000).expect("room").settle(0);
        drop(subject.hold(0, 1_000));
        assert_eq!(subject.left(), 6, "{place:?}");
    }
}

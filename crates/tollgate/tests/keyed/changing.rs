//! Limits that change, with each call or of a whole limiter, in any order: no window has more than the largest burst
//! and the fastest rate requested in it, and a reported wait is always sufficient.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Clock, Decision, KeyedLimiter, Limiter, Outcome, Rate, StoredKeyLimiter, Tier,
    Timestamp, core::WindowAlignment,
};

use crate::BASE;

const SECOND: Duration = Duration::from_secs(1);
const KEY: &str = "key";

/// One key, and the limits of its requests.
struct Table {
    holder: Holder,
    rates: Vec<Rate>,
    /// The one that a whole limiter has now.
    live: Cell<Option<usize>>,
}

enum Holder {
    Keyed(Box<KeyedLimiter<Manual>>, Vec<Tier>),
    Exact(Box<StoredKeyLimiter<String, Manual>>, Vec<Tier>),
    One(Box<Limiter<Manual>>),
}

/// The limiter, its algorithm, and whether a limit comes with each call or is changed live.
#[derive(Clone, Copy, Debug)]
enum Sort {
    Keyed,
    Exact(Algorithm),
    LiveKeyed,
    LiveExact(Algorithm),
    Live(Algorithm),
    LiveStriped,
}

impl Sort {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::Keyed | Self::LiveKeyed | Self::LiveStriped => Algorithm::Gcra,
            Self::Exact(algorithm) | Self::LiveExact(algorithm) | Self::Live(algorithm) => {
                algorithm
            }
        }
    }
}

impl Table {
    fn new(sort: Sort, rates: &[Rate], clock: &Manual) -> Self {
        let (clock, own) = (clock.clone(), Rate::per_second(1));
        let algorithm = sort.algorithm();
        let holder = match sort {
            Sort::Keyed | Sort::LiveKeyed => {
                let limiter = KeyedLimiter::builder(own, 100).clock(clock);
                let compile =
                    |rate: &Rate| Tier::new(Algorithm::Gcra, *rate).expect("a rate that fits");
                Holder::Keyed(
                    Box::new(limiter.build().expect("a rate that fits")),
                    rates.iter().map(compile).collect(),
                )
            }
            Sort::Exact(_) | Sort::LiveExact(_) => {
                let limiter = StoredKeyLimiter::builder(own, 100)
                    .algorithm(algorithm)
                    .clock(clock)
                    .build()
                    .expect("a rate that fits");
                let compile =
                    |rate: &Rate| Tier::new(limiter.algorithm(), *rate).expect("a rate that fits");
                let tiers = rates.iter().map(compile).collect();
                Holder::Exact(Box::new(limiter), tiers)
            }
            Sort::Live(_) | Sort::LiveStriped => {
                let mut builder = Limiter::builder(own).algorithm(algorithm);
                if matches!(sort, Sort::LiveStriped) {
                    builder = builder.stripes(4);
                }
                let limiter = builder.clock(clock).build();
                Holder::One(Box::new(limiter.expect("a rate that fits")))
            }
        };
        let live = matches!(sort, Sort::Keyed | Sort::Exact(_));
        Self {
            holder,
            rates: rates.to_vec(),
            live: Cell::new((!live).then_some(usize::MAX)),
        }
    }

    fn check(&self, limit: usize, cost: u64) -> Decision {
        let rate = self.rates[limit];
        let changed = self.live.get().filter(|live| *live != limit).is_some();
        let is_live = self.live.get().is_some();
        if changed {
            self.live.set(Some(limit));
        }
        match &self.holder {
            Holder::Keyed(table, _) if is_live => {
                if changed {
                    table.set_rate(rate).expect("a rate that fits");
                }
                table.check_n(KEY, cost)
            }
            Holder::Exact(table, _) if is_live => {
                if changed {
                    table.set_rate(rate).expect("a rate that fits");
                }
                table.check_n(KEY, cost)
            }
            Holder::One(limiter) => {
                if changed {
                    limiter.set_rate(rate).expect("a rate that fits");
                }
                limiter.check_n(cost)
            }
            Holder::Keyed(table, limits) => table
                .key(KEY)
                .at(&limits[limit])
                .expect("what it can do")
                .check_n(cost),
            Holder::Exact(table, tiers) => table
                .key(KEY)
                .at(&tiers[limit])
                .expect("what it can do")
                .check_n(cost),
        }
    }
}

/// So many requests of a limit at one time, and what passed of them.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Timestamp,
    rate: Rate,
    passed: u64,
}

/// One step of a history: time passes, then a limit is asked so often, and if it refuses, perhaps once
/// more after the wait that it told.
#[derive(Clone, Copy, Debug)]
struct Visit {
    gap: Duration,
    limit: usize,
    asks: u64,
    cost: u64,
    waits: bool,
}

/// Plays a history against one key, and looks at every window of it.
fn holds(sort: Sort, rates: &[Rate], steps: &[Visit]) -> Result<(), TestCaseError> {
    let clock = Manual::starting_at(BASE);
    let table = Table::new(sort, rates, &clock);
    let mut asked = Vec::new();
    for step in steps {
        clock.advance(step.gap);
        let limit = step.limit % rates.len();
        let (mut passed, mut refused) = (0, None);
        for _ in 0..step.asks {
            let decision = table.check(limit, step.cost);
            if decision.is_allowed() {
                passed += step.cost;
            } else {
                refused = Some(decision);
            }
        }
        let at = clock.now();
        let rate = rates[limit];
        asked.push(Asked { at, rate, passed });
        let Some(refused) = refused.filter(|refused| refused.outcome == Outcome::Denied) else {
            continue;
        };
        if step.waits && !rate.is_zero() {
            clock.advance(refused.wait_or_max());
            let later = table.check(limit, step.cost);
            prop_assert!(later.is_allowed(), "{step:?}: {refused:?}, then {later:?}");
            asked.push(Asked {
                at: clock.now(),
                rate,
                passed: step.cost,
            });
        }
    }
    for first in 0..asked.len() {
        for last in first..asked.len() {
            within(sort, &asked[first..=last])?;
        }
    }
    Ok(())
}

/// The algorithm's bound for one window.
fn within(sort: Sort, window: &[Asked]) -> Result<(), TestCaseError> {
    let rates = || window.iter().map(|asked| asked.rate);
    if rates().any(|rate| rate.is_unlimited()) {
        return Ok(());
    }
    let passed: u64 = window.iter().map(|asked| asked.passed).sum();
    let burst = rates().map(|rate| rate.burst_size()).max().unwrap_or(0);
    let (Some(first), Some(last)) = (window.first(), window.last()) else {
        return Ok(());
    };
    let width = last.at - first.at;
    let holds = match sort.algorithm() {
        Algorithm::FixedWindow(_) | Algorithm::SlidingCounter => {
            // Each of the two windows that it may reach into holds no more than the largest count.
            passed <= 2 * burst || width >= shortest(window)
        }
        Algorithm::SlidingLog => passed <= burst || width >= shortest(window),
        _ => {
            rates()
                .filter_map(|rate| Some((u128::from(rate.count()), rate.period()?.as_nanos())))
                .any(|(count, period)| {
                    u128::from(passed.saturating_sub(burst)) * period <= count * width.as_nanos()
                })
                || passed == 0
        }
    };
    prop_assert!(holds, "{passed} passed in {width:?} of {window:?}");
    Ok(())
}

fn shortest(window: &[Asked]) -> Duration {
    let periods = window.iter().filter_map(|asked| asked.rate.period());
    periods.min().unwrap_or(Duration::ZERO)
}

fn bucket() -> impl Strategy<Value = Rate> {
    let period = prop::sample::select(vec![SECOND / 100, SECOND, 60 * SECOND, 3_600 * SECOND]);
    prop_oneof![
        20 => (1..20u64, period, 1..60u64)
            .prop_map(|(count, period, burst)| Rate::new(count, period).burst(burst)),
        1 => Just(Rate::zero()),
        1 => Just(Rate::unlimited()),
    ]
}

/// Limits of windows, of one length most of the time.
fn windows() -> impl Strategy<Value = Vec<Rate>> {
    let period = || prop::sample::select(vec![SECOND, 60 * SECOND, 3_600 * SECOND]);
    let other = prop::option::weighted(0.1, period());
    let rate = (
        other,
        prop_oneof![20 => 1..60u64, 1 => Just(0), 1 => Just(u64::MAX)],
    );
    (period(), prop::collection::vec(rate, 2..=4)).prop_map(|(period, rates)| {
        let rate = |(other, count): (Option<Duration>, u64)| match count {
            u64::MAX => Rate::unlimited(),
            count => Rate::new(count, other.unwrap_or(period)),
        };
        rates.into_iter().map(rate).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Visit>> {
    let short = (0..31u32, any::<u64>())
        .prop_map(|(shift, bits)| Duration::from_nanos(bits % (1 << shift)));
    let gap = prop_oneof![
        4 => Just(Duration::ZERO),
        4 => short,
        2 => (1..400u64).prop_map(|tenths| SECOND * u32::try_from(tenths).unwrap_or(1) / 10),
        1 => (1..20_000u64).prop_map(Duration::from_secs),
    ];
    let asks = prop_oneof![3 => 1..4u64, 1 => 1..80u64];
    let step = (gap, 0..4usize, asks, 1..4u64, prop::bool::weighted(0.2));
    let step = step.prop_map(|(gap, limit, asks, cost, waits)| Visit {
        gap,
        limit,
        asks,
        cost,
        waits,
    });
    prop::collection::vec(step, 1..40)
}

const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/changing.txt"
);

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if crate::soak() { 60_000 } else { 1_500 },
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn limits_in_any_order_keep_the_bound_of_the_largest_and_the_fastest(
        sort in prop_oneof![
            3 => Just(Sort::Keyed),
            1 => Just(Sort::Exact(Algorithm::Gcra)),
            1 => Just(Sort::Exact(Algorithm::TokenBucket)),
            1 => Just(Sort::Exact(Algorithm::LeakyBucket)),
        ],
        rates in prop::collection::vec(bucket(), 2..=4),
        steps in steps(),
    ) {
        holds(sort, &rates, &steps)?;
    }

    #[test]
    fn live_changes_in_any_order_keep_the_bound_of_the_largest_and_the_fastest(
        sort in prop::sample::select(vec![
            Sort::LiveKeyed,
            Sort::LiveExact(Algorithm::Gcra),
            Sort::LiveExact(Algorithm::TokenBucket),
            Sort::LiveExact(Algorithm::LeakyBucket),
            Sort::Live(Algorithm::Gcra),
            Sort::Live(Algorithm::TokenBucket),
            Sort::Live(Algorithm::LeakyBucket),
            Sort::LiveStriped,
        ]),
        rates in prop::collection::vec(bucket(), 2..=4),
        steps in steps(),
    ) {
        holds(sort, &rates, &steps)?;
    }

    #[test]
    fn windows_in_any_order_keep_the_bound_of_the_largest_count_and_the_shortest(
        algorithm in prop::sample::select(vec![
            Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
            Algorithm::FixedWindow(WindowAlignment::FirstHit),
            Algorithm::SlidingLog,
            Algorithm::SlidingCounter,
        ]),
        sort in prop::sample::select(vec![Sort::Exact, Sort::LiveExact, Sort::Live]),
        rates in windows(),
        steps in steps(),
    ) {
        holds(sort(algorithm), &rates, &steps)?;
    }
}

const EVERY_SORT: [Sort; 8] = [
    Sort::Keyed,
    Sort::Exact(Algorithm::Gcra),
    Sort::Exact(Algorithm::TokenBucket),
    Sort::Exact(Algorithm::LeakyBucket),
    Sort::Exact(Algorithm::FixedWindow(WindowAlignment::Boundary(
        Timestamp::ZERO,
    ))),
    Sort::Exact(Algorithm::FixedWindow(WindowAlignment::FirstHit)),
    Sort::Exact(Algorithm::SlidingLog),
    Sort::Exact(Algorithm::SlidingCounter),
];

#[test]
fn two_bursts_in_turn_at_one_instant_get_the_larger_of_them() {
    for sort in &EVERY_SORT[..4] {
        let clock = Manual::starting_at(BASE);
        let rates = [10, 100].map(|burst| Rate::per_minute(1).burst(burst));
        let table = Table::new(*sort, &rates, &clock);
        let passed = (0..5_000).filter(|turn| table.check(turn % 2, 1).is_allowed());
        assert_eq!(passed.count(), 100, "{sort:?}");
    }
    for sort in EVERY_SORT {
        let clock = Manual::starting_at(BASE);
        let table = Table::new(sort, &[10, 100].map(Rate::per_minute), &clock);
        let passed = (0..5_000).filter(|turn| table.check(turn % 2, 1).is_allowed());
        assert_eq!(passed.count(), 100, "{sort:?}");
    }
}

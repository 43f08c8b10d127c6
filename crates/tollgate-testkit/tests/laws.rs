//! Every law for every core algorithm, over rates and traffic that proptest picks.
//!
//! A failing case is written to `proptest-regressions/laws.txt`, which is committed: every later run starts with it.
//! `PROPTEST_CASES` sets the number of cases for each law, 256 by default.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use tollgate_core::{
    Arithmetic, FixedWindow, Gcra, LeakyBucket, LimitLedger, Rate, SlidingCounter, SlidingLog,
    TatState, Timestamp, TokenBucket, WindowAlignment, units,
};
use tollgate_testkit::laws::{self, LawViolation};
use tollgate_testkit::oracle::OracleKind;
use tollgate_testkit::traffic::TimeOrder;

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

fn broken(broken: LawViolation) -> TestCaseError {
    TestCaseError::fail(broken.to_string())
}

/// Periods that a count rarely divides, from a nanosecond to three hundred years.
fn periods() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => Just(Duration::from_secs(1)),
        2 => (1u64..2_000).prop_map(Duration::from_nanos),
        2 => (1u64..100_000).prop_map(Duration::from_micros),
        2 => (1u64..1_000_000).prop_map(Duration::from_secs),
        1 => (1u64..u64::MAX / 2).prop_map(Duration::from_nanos),
    ]
}

/// Paces that every bucket takes, but for the slowest ones and largest bursts in one word.
fn bucket_rates() -> impl Strategy<Value = Rate> {
    let bursts = prop_oneof![4 => 0u64..20, 1 => 0u64..10_000, 1 => 0u64..1 << 40];
    let edges = prop_oneof![
        Just(Rate::new(1, Duration::from_secs(1_000_000_000_000_000))),
        Just(Rate::new(30, Duration::from_nanos(1))),
        Just(Rate::per_second(30_000_000_000)),
        Just(Rate::per_second(29_999_999_999)),
        Just(Rate::new(u64::MAX, Duration::from_secs(1 << 30))),
        Just(Rate::new(7, Duration::from_nanos(u64::MAX))),
    ];
    let paces = prop_oneof![
        8 => (1u64..1_000, periods()).prop_map(|(count, period)| Rate::new(count, period)),
        2 => edges,
    ];
    prop_oneof![
        20 => (paces, bursts).prop_map(|(rate, burst)| rate.burst(burst)),
        1 => Just(Rate::unlimited()),
        1 => Just(Rate::unlimited().burst(3)),
        1 => (0u64..20).prop_map(|burst| Rate::zero().burst(burst)),
    ]
}

/// Counts that a window takes, small ones most of the time.
fn window_rates() -> impl Strategy<Value = Rate> {
    let counts = prop_oneof![6 => 1u64..20, 2 => 1u64..10_000, 1 => u64::MAX - 3..=u64::MAX];
    prop_oneof![
        20 => (counts, periods()).prop_map(|(count, period)| Rate::new(count, period)),
        1 => Just(Rate::unlimited()),
        1 => (0u64..20).prop_map(|burst| Rate::zero().burst(burst)),
    ]
}

/// The same, lent up to half a count more.
fn counter_rates() -> impl Strategy<Value = Rate> {
    (window_rates(), 0u64..=4).prop_map(|(rate, eighths)| {
        let lent = rate.count() / 8 * eighths;
        if rate.period().is_none() {
            return rate;
        }
        rate.burst(rate.count().saturating_add(lent))
    })
}

fn orders() -> impl Strategy<Value = TimeOrder> {
    prop_oneof![Just(TimeOrder::Forward), Just(TimeOrder::Set)]
}

/// One module an algorithm, one test a law.
macro_rules! every_law {
    ($name:ident, $kind:expr, $rates:expr, $limit:expr) => {
        mod $name {
            use super::*;

            const KIND: OracleKind = $kind;

            fn rates() -> impl Strategy<Value = Rate> {
                $rates.prop_filter("the algorithm takes the rate", |rate| $limit(*rate).is_ok())
            }

            fn make(rate: Rate) -> LimitLedger<impl Arithmetic> {
                LimitLedger::new($limit(rate).unwrap())
            }

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn law_1_equals_the_oracle(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..50,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_1_equals_the_oracle(KIND, rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_2_bound(rate in rates(), seed: u64, length in 1usize..80) {
                    let asks = laws::requests(KIND, rate, TimeOrder::Forward, seed, length);
                    laws::law_2_bound(KIND, rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_3_retry_is_tight(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..40,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_3_retry_is_tight(KIND, rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_4_denied_writes_nothing(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..50,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_4_denied_writes_nothing(rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_4_denied_leaves_the_state_as_it_was(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..50,
                ) {
                    use laws::Subject as _;
                    let mut book = make(rate);
                    for ask in laws::requests(KIND, rate, order, seed, length) {
                        let before = book.state().clone();
                        if !book.decide_at(ask.at, ask.cost).is_allowed() || ask.cost == 0 {
                            prop_assert_eq!(book.state(), &before);
                        }
                    }
                }

                #[test]
                fn law_5_stale_times_grant_nothing(
                    rate in rates(), seed: u64, length in 1usize..50,
                ) {
                    let asks = laws::requests(KIND, rate, TimeOrder::Set, seed, length);
                    laws::law_5_stale_times_grant_nothing(KIND, rate, make, &asks)
                        .map_err(broken)?;
                }

                #[test]
                fn law_6_costs_add_up(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..40,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_6_costs_add_up(rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_7_idle_is_never_seen(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..40,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_7_idle_is_never_seen(KIND, rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_8_remaining_is_true(
                    rate in rates(), order in orders(), seed: u64, length in 1usize..40,
                ) {
                    let asks = laws::requests(KIND, rate, order, seed, length);
                    laws::law_8_remaining_is_true(rate, make, &asks).map_err(broken)?;
                }

                #[test]
                fn law_9_bound_of_what_was_kept(
                    rate in rates(), seed: u64, length in 1usize..80,
                ) {
                    laws::law_9_bound_of_what_was_kept(KIND, rate, make, seed, length)
                        .map_err(broken)?;
                }

                #[test]
                fn law_9_reverse_order_restores(
                    rate in rates(), seed: u64, length in 1usize..50,
                ) {
                    let asks = laws::requests(KIND, rate, TimeOrder::Forward, seed, length);
                    laws::law_9_reverse_order_restores(rate, make, &asks).map_err(broken)?;
                }
            }
        }
    };
}

/// A boundary that no period meets at the origin.
const OFFSET: WindowAlignment = WindowAlignment::Boundary(Timestamp::from_nanos(1_234_567_891));

every_law!(
    token_bucket,
    OracleKind::TokenBucket,
    bucket_rates(),
    TokenBucket::new
);
every_law!(
    leaky_bucket,
    OracleKind::LeakyBucket,
    bucket_rates(),
    LeakyBucket::new
);
every_law!(gcra, OracleKind::Gcra, bucket_rates(), Gcra::new);
every_law!(
    fixed_window,
    OracleKind::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    window_rates(),
    FixedWindow::new
);
every_law!(
    fixed_window_offset,
    OracleKind::FixedWindow(OFFSET),
    window_rates(),
    |rate| FixedWindow::new(rate).map(|limit| limit.with_alignment(OFFSET))
);
every_law!(
    fixed_window_from_first_hit,
    OracleKind::FixedWindow(WindowAlignment::FirstHit),
    window_rates(),
    |rate| FixedWindow::new(rate).map(|limit| limit.with_alignment(WindowAlignment::FirstHit))
);
every_law!(
    sliding_log,
    OracleKind::SlidingLog,
    window_rates(),
    SlidingLog::new
);
every_law!(
    sliding_counter,
    OracleKind::SlidingCounter,
    counter_rates(),
    SlidingCounter::new
);

/// Paces moderate enough that two of them have one common unit within 128 bits.
fn moderate_rates() -> impl Strategy<Value = Rate> {
    let periods = (1u64..10_000_000).prop_map(Duration::from_micros);
    let paces = (1u64..1_000, periods, 0u64..50);
    prop_oneof![
        10 => paces.prop_map(|(count, period, burst)| Rate::new(count, period).burst(burst)),
        1 => Just(Rate::unlimited()),
        1 => (0u64..20).prop_map(|burst| Rate::zero().burst(burst)),
    ]
}

/// The same without a burst of its own, as windows have it.
fn moderate_windows() -> impl Strategy<Value = Rate> {
    moderate_rates().prop_map(|rate| {
        let burst = rate.count();
        rate.burst(burst)
    })
}

/// Law 2 when the rate changes in the middle of a run; the traffic aims at the edges of the first.
macro_rules! live_change {
    ($name:ident, $kind:expr, $rates:expr, $algorithm:ty) => {
        proptest! {
            #![proptest_config(config())]

            #[test]
            fn $name(old in $rates, new in $rates, seed: u64, length in 2usize..80) {
                let asks = laws::requests($kind, old, TimeOrder::Forward, seed, length);
                let make = |rate| LimitLedger::new(<$algorithm>::new(rate).unwrap());
                laws::law_2_live_change($kind, [old, new], make, &asks).map_err(broken)?;
            }
        }
    };
}

mod law_2_at_a_live_change {
    use super::*;

    const ALIGNED: OracleKind = OracleKind::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO));

    live_change!(
        token_bucket,
        OracleKind::TokenBucket,
        moderate_rates(),
        TokenBucket
    );
    live_change!(
        leaky_bucket,
        OracleKind::LeakyBucket,
        moderate_rates(),
        LeakyBucket
    );
    live_change!(gcra, OracleKind::Gcra, moderate_rates(), Gcra);
    live_change!(fixed_window, ALIGNED, moderate_windows(), FixedWindow);
    live_change!(
        sliding_log,
        OracleKind::SlidingLog,
        moderate_windows(),
        SlidingLog
    );
    live_change!(
        sliding_counter,
        OracleKind::SlidingCounter,
        moderate_windows(),
        SlidingCounter
    );
}

mod one_word {
    use super::*;

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn law_1_exact_form_admits_it_too(
            rate in bucket_rates().prop_filter("fits a word", |rate| Gcra::new(*rate).is_ok()),
            order in orders(),
            seed: u64,
            length in 1usize..80,
        ) {
            let asks = laws::requests(OracleKind::Gcra, rate, order, seed, length);
            let make = |rate| LimitLedger::new(Gcra::new(rate).unwrap());
            laws::law_1_exact_form_admits_it_too(rate, make, &asks).map_err(broken)?;
        }

        /// The oracle rounds the interval by itself; it must round to what the word holds.
        #[test]
        fn the_rounded_interval_is_the_least_that_is_not_too_short(
            count in 1u64..1_000_000_000,
            nanos in 1u64..1 << 40,
        ) {
            let rate = Rate::new(count, Duration::from_nanos(nanos)).burst(1);
            if let Ok(limit) = Gcra::new(rate) {
                let units = u128::from(limit.interval_units()) * u128::from(count);
                let exact = u128::from(nanos) * u128::from(units::PER_NANO);
                prop_assert!(units >= exact && units - exact < u128::from(count));
            }
        }
    }

    /// Plain subtraction would leave the TAT in the past here, and 11 would pass at 20 s.
    #[test]
    fn what_others_were_built_on_is_not_given_back() {
        let limit = Gcra::new(Rate::per_second(1).burst(10)).unwrap();
        let mut tat = TatState::default();
        let (start, later) = (Timestamp::ZERO, Timestamp::from_secs(20));
        let five = limit.charge(&mut tat, start, start, 5);
        limit.charge(&mut tat, later, later, 1);
        let before = tat;
        limit.cancel(&mut tat, later, &five, tollgate_core::LaterCharges::Others);
        assert_eq!(tat, before);
        let pass = (0..20).filter(|_| limit.decide(&mut tat, later, 1).is_allowed());
        assert_eq!(pass.count(), 9);
    }
}

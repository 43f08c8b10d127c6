//! Every law of the arithmetic again, for the places where a `Limiter` keeps its state.
//!
//! The lock and the word keep them all; the striped form keeps 2, 4, 5 and 6 (law 10 is in
//! `threads.rs` and in the loom models).

use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use tollgate::clock::Manual;
use tollgate::{Algorithm, Align, Builder, Decision, Limiter, Rate, Reservation, Timestamp};
use tollgate_testkit::laws::{self, Adjustable, Broken, Lender, Subject};
use tollgate_testkit::oracle::Kind;
use tollgate_testkit::traffic::Order;

/// A limiter that lives for ever, so that its reservations can be kept.
struct Shared(&'static Limiter<Manual>);

impl Shared {
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).algorithm(algorithm))
    }

    fn striped(rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).stripes(2))
    }

    fn build(builder: Builder) -> Self {
        let limiter = builder.clock(Manual::new()).build();
        Self(Box::leak(Box::new(limiter.expect("a rate that fits"))))
    }
}

impl Subject for Shared {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.0.check_at(now, cost)
    }
}

impl Lender for Shared {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Reservation<&'static Limiter<Manual>>>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.0.reserve_at(now, cost).ok()?;
        Some((slot.act_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

impl Adjustable for Shared {
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        self.0.set_rate_at(now, rate).expect("a rate that fits");
    }
}

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

fn broken(broken: Broken) -> TestCaseError {
    TestCaseError::fail(broken.to_string())
}

fn window_rates() -> impl Strategy<Value = Rate> {
    let periods = prop_oneof![
        (10u64..2_000).prop_map(Duration::from_nanos),
        (1u64..100_000).prop_map(Duration::from_micros),
        (1u64..5_000).prop_map(Duration::from_secs),
    ];
    prop_oneof![
        20 => (1u64..200, periods).prop_map(|(count, period)| Rate::new(count, period)),
        1 => Just(Rate::zero()),
        1 => Just(Rate::unlimited()),
    ]
}

fn bucket_rates() -> impl Strategy<Value = Rate> {
    (window_rates(), 0u64..50).prop_map(|(rate, burst)| {
        if rate.is_unlimited() {
            rate
        } else {
            rate.burst(burst)
        }
    })
}

/// One module a place, one test for laws 1 to 8, one for law 9, one for live changes.
macro_rules! every_law {
    ($name:ident, $kind:expr, $algorithm:expr, $rates:expr) => {
        mod $name {
            use super::*;

            const KIND: Kind = $kind;

            fn make(rate: Rate) -> Shared {
                Shared::new($algorithm, rate)
            }

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn laws_1_to_8(rate in $rates, seed: u64) {
                    laws::all(KIND, rate, make, seed).map_err(broken)?;
                }

                #[test]
                fn law_9(rate in $rates, seed: u64) {
                    laws::all_of_lending(KIND, rate, make, seed).map_err(broken)?;
                }

                #[test]
                fn law_2_at_a_live_change(
                    old in $rates, new in $rates, seed: u64, length in 2usize..80,
                ) {
                    let asks = laws::requests(KIND, old, Order::Forward, seed, length);
                    laws::law_2_live_change(KIND, [old, new], make, &asks).map_err(broken)?;
                }
            }
        }
    };
}

const ALIGNED: Align = Align::Boundary(Timestamp::ZERO);

every_law!(word, Kind::Gcra, Algorithm::Gcra, bucket_rates());
every_law!(
    token_bucket,
    Kind::TokenBucket,
    Algorithm::TokenBucket,
    bucket_rates()
);
every_law!(
    leaky_bucket,
    Kind::LeakyBucket,
    Algorithm::LeakyBucket,
    bucket_rates()
);
every_law!(
    fixed_window,
    Kind::FixedWindow(ALIGNED),
    Algorithm::FixedWindow(ALIGNED),
    window_rates()
);
every_law!(
    fixed_window_from_first_hit,
    Kind::FixedWindow(Align::FirstHit),
    Algorithm::FixedWindow(Align::FirstHit),
    window_rates()
);
every_law!(
    sliding_log,
    Kind::SlidingLog,
    Algorithm::SlidingLog,
    window_rates()
);
every_law!(
    sliding_counter,
    Kind::SlidingCounter,
    Algorithm::SlidingCounter,
    window_rates()
);

mod striped {
    use super::*;

    /// Fast enough for a stripe to hold several tokens.
    fn rates() -> impl Strategy<Value = Rate> {
        (1u64..1_000, 1u64..20_000)
            .prop_map(|(count, burst)| Rate::new(count, Duration::from_micros(1)).burst(burst))
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn laws_2_4_5_and_6(rate in rates(), seed: u64, length in 1usize..60) {
            let make = Shared::striped;
            for order in [Order::Forward, Order::Tangled] {
                let asks = laws::requests(Kind::Gcra, rate, order, seed, length);
                laws::law_2_bound(Kind::Gcra, rate, make, &asks).map_err(broken)?;
                laws::law_4_denied_writes_nothing(rate, make, &asks).map_err(broken)?;
                laws::law_5_stale_times_grant_nothing(Kind::Gcra, rate, make, &asks).map_err(broken)?;
                // Law 6 without its end state: what is left may lie in a stripe.
                for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.cost > 1) {
                    let (mut whole, mut parts) = (make(rate), make(rate));
                    for earlier in &asks[..index] {
                        whole.decide_at(earlier.at, earlier.cost);
                        parts.decide_at(earlier.at, earlier.cost);
                    }
                    if whole.decide_at(ask.at, ask.cost).is_allowed() {
                        let first = 1 + seed % (ask.cost - 1);
                        prop_assert!(parts.decide_at(ask.at, first).is_allowed());
                        prop_assert!(parts.decide_at(ask.at, ask.cost - first).is_allowed());
                    }
                }
            }
        }
    }
}

//! Shared by the law tests of every limiter: rates, and the laws for each algorithm.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use tollgate::Rate;
use tollgate_testkit::laws::LawViolation;

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

/// A failing case is kept and committed, and every later run starts with it.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

pub(crate) fn broken(broken: LawViolation) -> TestCaseError {
    TestCaseError::fail(broken.to_string())
}

pub(crate) fn window_rates() -> impl Strategy<Value = Rate> {
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

pub(crate) fn bucket_rates() -> impl Strategy<Value = Rate> {
    (window_rates(), 0u64..50).prop_map(|(rate, burst)| {
        if rate.is_unlimited() {
            rate
        } else {
            rate.burst(burst)
        }
    })
}

/// One module an algorithm, for the holder that `$make` builds of it: laws 1 to 8, law 9, and law 2
/// at a live change.
macro_rules! every_law {
    ($make:expr) => {
        every_law!($make, gcra, Gcra, bucket_rates());
        every_law!($make, token_bucket, TokenBucket, bucket_rates());
        every_law!($make, leaky_bucket, LeakyBucket, bucket_rates());
        every_law!(
            $make,
            fixed_window,
            FixedWindow(tollgate::core::WindowAlignment::Boundary(tollgate::Timestamp::ZERO)),
            window_rates()
        );
        every_law!(
            $make,
            fixed_window_from_first_hit,
            FixedWindow(tollgate::core::WindowAlignment::FirstHit),
            window_rates()
        );
        every_law!($make, sliding_log, SlidingLog, window_rates());
        every_law!($make, sliding_counter, SlidingCounter, window_rates());
    };
    ($make:expr, $name:ident, $algorithm:ident $(($align:expr))?, $rates:expr) => {
        mod $name {
            use proptest::prelude::*;
            use tollgate::{Algorithm, Rate};
            use tollgate_testkit::laws::{self, Adjustable, Lender};
            use tollgate_testkit::oracle::OracleKind;
            use tollgate_testkit::traffic::TimeOrder;

            #[allow(unused_imports, reason = "an algorithm takes one kind of rate")]
            use crate::common::{broken, bucket_rates, config, window_rates};

            const KIND: OracleKind = OracleKind::$algorithm $(($align))?;

            fn make(rate: Rate) -> impl Lender + Adjustable {
                $make(Algorithm::$algorithm $(($align))?, rate)
            }

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn laws_1_to_8(rate in $rates, seed: u64) {
                    laws::check_all(KIND, rate, make, seed).map_err(broken)?;
                }

                #[test]
                fn law_9(rate in $rates, seed: u64) {
                    laws::check_all_reservations(KIND, rate, make, seed).map_err(broken)?;
                }

                #[test]
                fn law_2_at_a_live_change(
                    old in $rates, new in $rates, seed: u64, length in 2usize..80,
                ) {
                    let asks = laws::requests(KIND, old, TimeOrder::Forward, seed, length);
                    laws::law_2_live_change(KIND, [old, new], make, &asks).map_err(broken)?;
                }
            }
        }
    };
}

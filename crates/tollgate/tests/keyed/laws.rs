//! The laws of the arithmetic, for one key of a table among others.

use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use tollgate::clock::Manual;
use tollgate::{Decision, KeyedLimiter, Rate, Reservation, Timestamp, keyed};
use tollgate_testkit::laws::{self, LawViolation, Lender, Subject};
use tollgate_testkit::oracle::OracleKind;

const YEAR: Duration = Duration::from_secs(31_536_000);

/// One key of a table that lives for ever, so that its reservations can be kept. The table counts
/// from when it was made, so it is made shortly before the first time that it is asked about.
struct OneKey {
    rate: Rate,
    table: Option<&'static KeyedLimiter<Manual>>,
}

impl OneKey {
    fn new(rate: Rate) -> Self {
        Self { rate, table: None }
    }

    fn key(&mut self, now: Timestamp) -> keyed::Key<'static, Manual> {
        let rate = self.rate;
        let table = self.table.get_or_insert_with(|| {
            let anchor = Timestamp::from_nanos(now.as_nanos().saturating_sub(crate::nanos(YEAR)));
            let table = KeyedLimiter::builder(rate, 4)
                .longest_wait(YEAR)
                .clock(Manual::starting_at(anchor))
                .build();
            Box::leak(Box::new(table.expect("a rate that fits")))
        });
        table.key("the key")
    }
}

impl Subject for OneKey {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.key(now).check_at(now, cost)
    }
}

impl Lender for OneKey {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Reservation<keyed::Key<'static, Manual>>>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.key(now).reserve_at(now, cost).ok()?;
        Some((slot.ready_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

fn rates() -> impl Strategy<Value = Rate> {
    let periods = prop_oneof![
        (10u64..2_000).prop_map(Duration::from_nanos),
        (1u64..100_000).prop_map(Duration::from_micros),
        (1u64..5_000).prop_map(Duration::from_secs),
    ];
    prop_oneof![
        20 => (1u64..200, periods, 0u64..50)
            .prop_map(|(count, period, burst)| Rate::new(count, period).burst(burst)),
        1 => Just(Rate::zero()),
        1 => Just(Rate::unlimited()),
    ]
}

fn broken(broken: LawViolation) -> TestCaseError {
    TestCaseError::fail(broken.to_string())
}

const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/keyed.txt"
);

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        cases: 48,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn laws_1_to_8(rate in rates(), seed: u64) {
        laws::check_all(OracleKind::Gcra, rate, OneKey::new, seed).map_err(broken)?;
    }

    #[test]
    fn law_9(rate in rates(), seed: u64) {
        laws::check_all_reservations(OracleKind::Gcra, rate, OneKey::new, seed).map_err(broken)?;
    }
}

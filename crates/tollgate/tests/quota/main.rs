//! Quotas: calendars and rolling periods against oracles, verbs, restarts, damage, and kill -9.
#![cfg(feature = "quota")]

mod calendar;
mod kill;
mod restart;
mod rolling;
mod scratch;
mod set_back;
mod switching;
mod text;
mod verbs;

use proptest::test_runner::{Config, FileFailurePersistence};

const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/quota.txt"
);

/// A failing case is kept and committed, and every later run starts with it.
fn config(cases: u32) -> Config {
    Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..Config::with_cases(cases)
    }
}

//! Composite limiters: all or none, lost races, holds, and threads.

mod awaited;
mod bound;
mod holds;
mod kinds;
mod laws;
mod lost_race;
mod mixed;
mod races;
mod settled;
mod settled_kinds;
mod striped;
mod subject;
mod threads;
mod used;
mod word;
mod world;

use proptest::test_runner::{Config, FileFailurePersistence};

/// Where failing cases are kept, so that every later run tries them first.
const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/stack.txt"
);

/// The number of cases, or that of `PROPTEST_CASES`.
fn cases(cases: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let asked = asked.and_then(|count| count.parse().ok());
    Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..Config::with_cases(asked.unwrap_or(cases))
    }
}

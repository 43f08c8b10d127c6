//! Tools for testing rate limits: a slow and obvious oracle, traffic that aims at the edges, the laws that
//! every implementation must keep, and recorded traces of other limiters.
//!
//! - [`oracle`] keeps every admitted hit and answers by counting.
//! - [`traffic`] makes the same requests from the same seed, on and around every boundary.
//! - [`laws`] test any implementation with both, one function a law.
//! - [`fairness`] measures how evenly something was shared.
//! - [`allocation_counter`] counts allocations, [`threads`] start together, [`temp_folder`] is a test's own
//!   folder.
//! - [`certificates`] are for servers and clients with TLS, including invalid ones.
//! - [`redis`] starts real servers and injects faults, [`envoy_process`] starts a real Envoy;
//!   [`external_programs`] finds these programs.
//! - `world` simulates a fleet: a store in memory runs the real scripts, with time, faults and randomness from
//!   a seed.
//! - [`test_vectors`] reads the recorded answers of other limiters.
//!
//! ```
//! use tollgate_core::{Arithmetic, LimitLedger, Rate, SlidingLog};
//! use tollgate_testkit::laws;
//! use tollgate_testkit::oracle::OracleKind;
//!
//! let make = |rate| LimitLedger::new(SlidingLog::new(rate).expect("a log takes any count"));
//! for seed in 0..10 {
//!     laws::check_all(OracleKind::SlidingLog, Rate::per_second(5), make, seed)?;
//! }
//! # Ok::<(), laws::LawViolation>(())
//! ```

pub mod allocation_counter;
pub mod certificates;
pub mod envoy_process;
pub mod external_programs;
pub mod fairness;
pub mod laws;
pub mod oracle;
pub mod redis;
pub mod snapshot_corruption;
pub mod temp_folder;
pub mod test_vectors;
pub mod threads;
pub mod traffic;
#[cfg(feature = "world")]
pub mod world;

/// The example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! What rate limits are tested with: a slow obvious oracle, traffic that aims at the edges, the
//! laws that every holder of state must keep, and recorded traces of other limiters.
//!
//! - [`oracle`] keeps every admitted hit and answers by counting.
//! - [`traffic`] makes the same requests from the same seed, on and around every boundary.
//! - [`laws`] put any holder of state through both, one function a law.
//! - [`fairness`] says as a number how evenly something was shared.
//! - [`memory`] counts what is allocated, [`threads`] begin together, [`scratch`] is a test's own
//!   folder.
//! - [`certificates`] are for servers and clients with TLS, wrong ones too.
//! - [`redis`] starts real servers and hurts them, [`envoy`] a real Envoy; [`programs`] says where such are.
//! - [`world`] is a store in memory that runs the real scripts, with its time, its faults and its luck
//!   given from outside.
//! - [`vectors`] replay what other limiters were seen to answer.
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

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Exact rate-limit arithmetic as pure functions.
//!
//! Every limit is a function `(state, limit, now, cost) → (state', decision)`. The crate reads no clock, takes no lock
//! and depends on no other crate. Threads, key tables, Redis scripts and the simulator store the state; they share
//! this one version of the arithmetic.
//!
//! ```
//! use core::time::Duration;
//! use tollgate_core::{Arithmetic, Rate, Timestamp, TokenBucket};
//!
//! // 10/s, burst 20: ten at 0 s, thirty at 1 s; ten of those wait and have all passed by 2 s.
//! let limit = TokenBucket::new(Rate::per_second(10).burst(20))?;
//! let mut bucket = Default::default();
//! for _ in 0..10 {
//!     assert!(limit.decide(&mut bucket, Timestamp::ZERO, 1).is_allowed());
//! }
//! let second = Timestamp::from_secs(1);
//! let at_once = (0..30).filter(|_| limit.decide(&mut bucket, second, 1).is_allowed()).count();
//! assert_eq!(at_once, 20);
//! assert_eq!(limit.earliest(&bucket, second, 10), Some(Timestamp::from_secs(2)));
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```
//!
//! | algorithm | state | choose it when |
//! |---|---|---|
//! | [`Gcra`] | one 64-bit word | almost always: smooth, smallest, lock-free |
//! | [`TokenBucket`] | debt, time, latest reservation | reservations are cancelled out of order; rates are extreme |
//! | [`LeakyBucket`] | exact level and time | the fill level itself is of interest |
//! | [`FixedWindow`] | a count and a start | "n per calendar minute", and up to 2n around a boundary is fine |
//! | [`SlidingLog`] | every admitted hit | "never more than n in any window", exactly |
//! | [`SlidingCounter`] | two counts | the same, approximately, in constant memory |

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arithmetic;
mod decision;
mod deny_reason;
mod error;
mod exact_units;
mod ledger;
mod limit_ledger;
mod rate;
mod time;
pub mod units;
mod wide_math;
mod window_length;
mod window_states;

mod fixed_window;
mod gcra;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

pub use arithmetic::{Arithmetic, BookedUntil, Charge, LaterCharges};
pub use decision::{Decision, Outcome};
pub use deny_reason::DenyReason;
pub use error::LimitError;
pub use exact_units::BucketLevel;
pub use fixed_window::{FixedWindow, WindowAlignment};
pub use gcra::{Gcra, GcraParams, TatState};
pub use leaky_bucket::LeakyBucket;
pub use ledger::{Booking, BookingError, Ledger};
pub use limit_ledger::LimitLedger;
pub use rate::{Rate, RateParseError, TIME_UNITS};
pub use sliding_counter::SlidingCounter;
pub use sliding_log::{HitLog, SlidingLog};
pub use time::Timestamp;
pub use token_bucket::{Bucket, TokenBucket};
pub use window_states::{SlidingCounts, WindowCount};

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Rate limits in one process: check, reserve or wait.
//!
//! ```
//! use tollgate::{Limiter, Rate};
//!
//! # fn serve() {}
//! let limiter = Limiter::new(Rate::per_second(100).burst(200));
//! if limiter.allow() {
//!     serve(); // drop on overflow
//! }
//! let decision = limiter.check_n(5); // remaining, retry_after, reset_after
//! assert_eq!(decision.limit, 200);
//! let reservation = limiter.reserve(5)?; // read reservation.delay(), then wait or cancel
//! reservation.cancel();
//! limiter.acquire().wait_blocking()?; // first come first served
//! # Ok::<(), tollgate::RateDenied>(())
//! ```
//!
//! Any executor can await a wait: `limiter.acquire().await?`, `reservation.wait().await`.
//!
//! Which verb to use:
//!
//! | you want | verb |
//! |---|---|
//! | to deny a request that exceeds the limit | [`allow`](Limiter::allow), [`check`](Limiter::check) |
//! | to wait until the request fits | [`acquire`](Limiter::acquire) |
//! | to know the delay before you decide to wait | [`reserve`](Limiter::reserve) |
//!
//! [`ConcurrencyLimiter`] limits how many requests are in flight, instead of how often they come.
//!
//! A denial is a value: [`Decision`] or [`RateDenied`]. The short forms read the limiter's [`Clock`];
//! the `*_at` forms take the time. A [`Limiter`] is GCRA in one atomic word, unless
//! [`builder`](Limiter::builder) selects another algorithm.
//!
//! The crate root has the limiters and the types that they share. The module of each limiter has its builder,
//! handles, permits, statistics and errors ([`keyed::Key`], [`concurrency::Permit`],
//! [`stack::CostReservation`]). The module [`wait`] has the futures.
//!
//! # Features
//! * `tsc` (default): read the CPU's time stamp counter where the kernel trusts it.
//! * `quota`: totals over days, weeks and months, saved in a file: `QuotaLimiter`.
//! * `tokio`: waits inside a tokio runtime use tokio's timer; adds the clock `clock::Tokio`.

#![deny(unsafe_code)]

mod acquire;
mod algorithm;
mod cell;
pub mod clock;
mod clock_steps;
pub mod concurrency;
pub mod fair;
mod holds;
pub mod key_handle;
mod key_table;
pub mod keyed;
pub mod lanes;
pub mod limiter;
mod missing_key;
mod patience;
mod queued_limit;
#[cfg(feature = "quota")]
pub mod quota;
mod reservation;
mod sharding;
pub mod snapshot;
pub mod stack;
pub mod stored_keys;
/// Counters that the crates of this project share; they are no limits.
#[doc(hidden)]
pub mod striped_counters;
mod sync;
mod tier;
#[cfg(feature = "quota")]
pub mod tiers;
pub mod tree;
pub mod wait;
mod wait_error;
mod wait_queue;
mod when_full;

pub use algorithm::Algorithm;
pub use clock::Clock;
pub use concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter};
pub use fair::FairLimiter;
pub use keyed::KeyedLimiter;
pub use lanes::Lanes;
pub use limiter::Limiter;
pub use missing_key::OnMissingKey;
#[cfg(feature = "quota")]
pub use quota::{Quota, QuotaLimiter};
pub use reservation::Reservation;
pub use stack::{CompositeLimiter, Limit};
pub use stored_keys::StoredKeyLimiter;
pub use tier::Tier;
#[cfg(feature = "quota")]
pub use tiers::Tiers;
pub use tollgate_core as core;
pub use tollgate_core::{Decision, DenyReason, LimitError, Outcome, Rate, Timestamp};
pub use tree::ClassTree;
pub use wait_error::RateDenied;
pub use when_full::WhenFull;

/// Lock and wake-up helpers that the crates of this project share.
#[doc(hidden)]
pub mod internal {
    pub use crate::patience::thread_waker;
    pub use crate::sync::ignore_poison;
}

/// Protocols of this crate that only model checkers see.
#[cfg(loom)]
#[doc(hidden)]
pub mod models {
    pub use crate::clock::upkeep::UpkeepState;
}

/// The examples of `docs/guides/testing.md`. One of them uses tokio's time.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/testing.md")]
struct Testing;

/// The examples of `docs/guides/migrate/governor.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/governor.md")]
struct FromGovernor;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

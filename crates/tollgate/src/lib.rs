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
//! let slot = limiter.reserve(5)?; // look at slot.delay(), then wait for it, or cancel
//! slot.cancel();
//! limiter.acquire().wait_blocking()?; // pace politely, first come first served
//! # Ok::<(), tollgate::RateDenied>(())
//! ```
//!
//! Waits are awaited on any executor: `limiter.acquire().await?`, `slot.wait().await`.
//!
//! Which verb?
//!
//! | you want | verb |
//! |---|---|
//! | to drop or reject what is too much | [`allow`](Limiter::allow), [`check`](Limiter::check) |
//! | to slow down until it fits | [`acquire`](Limiter::acquire) |
//! | to know the delay first, and maybe think again | [`reserve`](Limiter::reserve) |
//!
//! How many at once, instead of how often, is what [`ConcurrencyLimiter`] limits.
//!
//! A refusal is a value: [`Decision`] or [`RateDenied`]. Short forms read the limiter's [`Clock`];
//! `*_at` forms take the time. A [`Limiter`] is GCRA in one atomic word unless
//! [`builder`](Limiter::builder) says otherwise.
//!
//! Here are the limits themselves and the words that all of them share. What belongs to one of them is in
//! the module of its name: its builder, handles, permits, statistics and errors ([`keyed::TargetedKey`],
//! [`concurrency::Permit`], [`stack::CostReservation`]); what is awaited is in [`wait`].
//!
//! # Features
//! * `tsc` (default): read the CPU's time stamp counter where the kernel trusts it.
//! * `quota`: totals over days, weeks and months, kept in a file: `QuotaLimiter`.
//! * `tokio`: waits inside a tokio runtime end on its timer; and the clock `clock::Tokio`.

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
/// Not of limits, but what the crates of this project count by.
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

/// What the crates of this project lock and wake by.
#[doc(hidden)]
pub mod internal {
    pub use crate::patience::thread_waker;
    pub use crate::sync::ignore_poison;
}

/// What only models of the crate's own protocols see.
#[cfg(loom)]
#[doc(hidden)]
pub mod models {
    pub use crate::clock::upkeep::UpkeepState;
}

/// The examples of `docs/guides/testing.md`, of which one has tokio's time.
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

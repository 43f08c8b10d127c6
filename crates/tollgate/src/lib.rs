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
//! # Ok::<(), tollgate::Refused>(())
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
//! A refusal is a value: [`Decision`] or [`Refused`]. Short forms read the limiter's [`Clock`];
//! `*_at` forms take the time. A [`Limiter`] is GCRA in one atomic word unless
//! [`builder`](Limiter::builder) says otherwise.
//!
//! # Features
//! * `tsc` (default): read the CPU's time stamp counter where the kernel trusts it.
//! * `quota`: totals over days, weeks and months, kept in a file: `QuotaLimiter`.
//! * `tokio`: waits inside a tokio runtime end on its timer; and the clock `clock::Tokio`.

#![deny(unsafe_code)]

mod acquire;
mod cell;
pub mod clock;
mod concurrency;
mod exact_keyed;
mod fair;
mod holds;
mod home;
mod keyed;
mod lanes;
mod limiter;
mod line;
mod mode;
mod patience;
#[cfg(feature = "quota")]
pub mod quota;
mod refused;
mod reservation;
mod snapshot;
mod stack;
mod steps;
mod sync;
#[cfg(feature = "quota")]
mod tiers;
mod tree;

pub use acquire::Acquire;
#[cfg(not(any(loom, shuttle)))]
pub use acquire::Acquiring;
pub use clock::Clock;
#[cfg(not(any(loom, shuttle)))]
pub use concurrency::AcquiringPermit;
pub use concurrency::{
    AcquirePermit, ConcurrencyBuilder, ConcurrencyKey, ConcurrencyLimiter, ConcurrencyRefused,
    ConcurrencyStats, Ended, Ending, KeySlot, KeyedConcurrency, KeyedConcurrencyBuilder,
    KeyedPermit, Observer, Occupancy, Overflow, OwnedKeyedPermit, OwnedPermit, Permit, PermitHome,
};
pub use exact_keyed::{
    ActiveExactKey, ExactKey, ExactKeyedBuilder, ExactKeyedLimiter, OwnedExactKey, Tier,
};
pub use fair::{FairBuilder, FairLimiter};
pub use home::Home;
#[doc(hidden)]
pub use keyed::prefetch;
pub use keyed::{
    ActiveKey, AtCap, Key, KeyedBuilder, KeyedLimiter, KeyedStats, NoSlot, OwnedKey, RatedBy,
    Together,
};
pub use lanes::{Lane, Lanes, LanesBuilder, LanesError};
pub use limiter::{Algorithm, Builder, DefaultClock, Limiter};
pub use line::Turn;
#[cfg(not(any(loom, shuttle)))]
pub use line::Turning;
pub use mode::Mode;
#[cfg(feature = "quota")]
pub use quota::{Quota, QuotaLimiter};
pub use refused::Refused;
pub use reservation::Reservation;
pub use snapshot::SnapshotError;
pub use stack::{
    AnyLimit, Hold, Kind, Level, Pass, Passed, Refusal, Settled, Settles, Stack, Terms, Verdict,
};
#[cfg(feature = "quota")]
pub use tiers::{
    Allowance, AllowanceParseError, TenantUsage, TierError, Tiers, TiersBuilder, TiersStats, Usage,
};
pub use tollgate_core as core;
pub use tollgate_core::{Align, Decision, LimitError, Outcome, Rate, RateParseError, Timestamp};
pub use tree::{
    Branch, Class, Leaf, Leaves, NodeId, Receipt, Ruling, Tree, TreeBuilder, TreeError, TreeLevel,
};

/// What only models of the crate's own protocols see.
#[cfg(loom)]
#[doc(hidden)]
pub mod models {
    pub use crate::clock::upkeep::Upkeep;
}

/// The examples of `docs/testing.md`, of which one has tokio's time.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/testing.md")]
struct Testing;

/// The examples of `docs/from-governor.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/from-governor.md")]
struct FromGovernor;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

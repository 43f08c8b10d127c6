//! Events that should wait, merge or fire once: the complement of rate limiting.
//!
//! | you want | use |
//! |---|---|
//! | an exact output rate for any input, with a bounded queue | [`WorkPacer`] |
//! | one action after a quiet period | [`Debounce`] |
//! | at most one action per interval | [`Throttle`] |
//! | one of these for each key | [`Debounce::keyed`] |
//! | one call for many items | [`Coalesce`] |
//! | fewer log lines of each place in the source | `LogThrottle` (feature `log`) |
//!
//! ```
//! use std::time::Duration;
//! use tollgate::clock::Manual;
//! use tollgate_shape::Debounce;
//!
//! let clock = Manual::new();
//! let save = Debounce::new(Duration::from_millis(300))
//!     .clock(clock.clone()) // in a test; without this it is real time
//!     .build(|text: &str| println!("saved {text:?}"));
//! save.call("t");
//! save.call("to");
//! clock.advance(Duration::from_millis(300)); // saved "to"
//! assert_eq!(save.stats().fired, 1);
//! ```
//!
//! No timer runs while nothing waits. Actions run on any executor: as a task of the tokio runtime
//! (feature `tokio`), on the executor of `spawn_with`, or else on a few threads that end when they are
//! idle. On a [`clock::Manual`](tollgate::clock::Manual) they run inside of `advance`, so that a test
//! sees the result immediately.
//!
//! # Features
//! * `tokio`: actions run as tasks of the tokio runtime that they are built in.
//! * `log`: a layer for `tracing_subscriber`, `LogThrottle`.

#![forbid(unsafe_code)]
#![cfg_attr(
    any(loom, shuttle),
    allow(dead_code, reason = "models drive by hand, and await nothing")
)]

mod builder;
mod coalesce;
mod debounce;
#[cfg(not(any(loom, shuttle)))]
mod executor;
mod keyed;
#[cfg(all(feature = "log", not(any(loom, shuttle))))]
mod log;
#[cfg(not(any(loom, shuttle)))]
mod pacer;
mod runner;
mod sync;
mod timeline;

#[cfg(not(any(loom, shuttle)))]
pub use builder::Driver;
pub use builder::{ShaperBuilder, ShaperHandle};
#[cfg(not(any(loom, shuttle)))]
pub use coalesce::AddFuture;
pub use coalesce::{AddDenied, AddError, Batch, Coalesce, Coalescer, FlushOutcome};
pub use debounce::{Debounce, Debouncer, Throttle, WeakDebouncer};
pub use keyed::{KeyedDebounce, KeyedDebouncer, TooManyKeys, WhenFull};
#[cfg(all(feature = "log", not(any(loom, shuttle))))]
pub use log::{LogThrottle, LogThrottleBuilder};
#[cfg(not(any(loom, shuttle)))]
pub use pacer::{
    PaceDenied, PaceFuture, PaceWait, PacedStream, PacerBuilder, SubmittedWork, WorkLost, WorkPacer,
};
pub use runner::{DrainTimeout, Stats};
pub use timeline::Edge;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of `docs/guides/shaping.md`, one of which needs tokio's time and one the layer for
/// logs.
#[cfg(all(doctest, feature = "tokio", feature = "log"))]
#[doc = include_str!("../docs/shaping.md")]
struct Shaping;

//! Where time comes from: one method, and the only files that read a clock.
//!
//! | clock | cost of a read | choose it |
//! |---|---|---|
//! | [`Monotonic`] | about 10 ns (TSC), 25–40 ns (std) | by default |
//! | `Cached` | about 1 ns | when 1 ms of staleness is fine |
//! | [`Manual`] | about 1 ns | in tests |
//! | [`Wall`] | 25–40 ns | for quotas, which follow the calendar |
//! | `Tokio` (feature `tokio`) | as std | when `tokio::time::pause` drives the test |
//!
//! # Code that is tested on another clock
//! Take the clock as a type parameter with a default. Each clock is compiled into separate code, so this costs nothing,
//! and production code doesn't have to name the clock.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::clock::{Clock, Manual, Monotonic};
//! use tollgate::{Limiter, Rate, RateDenied};
//!
//! struct Mailer<C: Clock = Monotonic> {
//!     pace: Limiter<C>,
//! }
//!
//! impl Mailer {
//!     fn new() -> Self {
//!         Self::with_clock(Monotonic::new())
//!     }
//! }
//!
//! impl<C: Clock> Mailer<C> {
//!     fn with_clock(clock: C) -> Self {
//!         let pace = Limiter::with_clock(Rate::per_minute(60).burst(1), clock);
//!         Self { pace }
//!     }
//!
//!     async fn send(&self) -> Result<(), RateDenied> {
//!         self.pace.acquire().await?;
//!         Ok(())
//!     }
//! }
//!
//! let production: Mailer = Mailer::new();
//! // A test moves the time by hand; `advance` wakes whoever awaits it.
//! let clock = Manual::new();
//! let tested = Mailer::with_clock(clock.clone());
//! assert!(tested.pace.allow() && !tested.pace.allow());
//! clock.advance(Duration::from_secs(1));
//! assert!(tested.pace.allow());
//! # let _ = (production.send(), tested.send());
//! ```

use std::ops::Deref;
use std::task::Waker;

use tollgate_core::Timestamp;

use crate::sync::park_timeout;

#[cfg(not(any(loom, shuttle)))]
pub(crate) mod alarm;
#[cfg(not(any(loom, shuttle)))]
mod cached;
mod clocked;
#[cfg(all(unix, not(any(loom, shuttle))))]
pub(crate) mod fork;
mod manual;
mod monotonic;
#[cfg(not(any(loom, shuttle)))]
mod sleep;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(not(shuttle))]
pub(crate) mod upkeep;
mod wakeup;
mod wall;

#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;
#[cfg(not(any(loom, shuttle)))]
pub use cached::Cached;
pub use clocked::{ClockChoice, DefaultClock, WithClock};
pub use manual::Manual;
pub use monotonic::Monotonic;
#[cfg(not(any(loom, shuttle)))]
pub use sleep::{Sleep, sleep_until};
pub use wakeup::Wakeup;
pub use wall::Wall;

/// A source of time. Implement [`now`](Self::now); the other methods have defaults.
///
/// A clock may stand still or step back: no limit grants extra tokens because of it.
///
/// ```
/// use tollgate::{Clock, Limiter, Rate, Timestamp};
///
/// /// A clock for a simulation that owns its time.
/// struct Frozen;
///
/// impl Clock for Frozen {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_secs(42)
///     }
/// }
///
/// let limiter = Limiter::with_clock(Rate::per_second(2), Frozen);
/// assert!(limiter.allow() && limiter.allow() && !limiter.allow());
/// ```
pub trait Clock: Send + Sync {
    /// Nanoseconds since an origin that never changes for this clock.
    fn now(&self) -> Timestamp;

    /// A number that is equal for clocks that always show the same time. A request to several limits reads such clocks
    /// only once. By default all clocks are different.
    fn source_id(&self) -> Option<usize> {
        None
    }

    /// Blocks the calling thread until the clock shows `at`. The default sleeps on real time.
    fn sleep_until_time(&self, at: Timestamp) {
        loop {
            let left = at - self.now();
            if left.is_zero() {
                return;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "this is the one place where a blocking wait sleeps"
            )]
            std::thread::sleep(left);
        }
    }

    /// Blocks the calling thread until the clock shows `at`, or until [`Thread::unpark`] is called on it. It may return
    /// early, so callers must check again. The default parks on real time.
    ///
    /// [`Thread::unpark`]: std::thread::Thread::unpark
    fn park_until_woken(&self, at: Timestamp) {
        let left = at - self.now();
        if !left.is_zero() {
            park_timeout(left);
        }
    }

    /// Wakes a task once the clock shows `at`, immediately if it already does. The default is `None`, for a clock that
    /// follows the system's time, so that a timer can wake the task: tokio's inside a tokio runtime, and one thread of
    /// this crate elsewhere.
    fn schedule_wakeup(&self, _at: Timestamp, _waker: &Waker) -> Option<Wakeup> {
        None
    }
}

/// A pointer to a clock is a clock: a reference, an `Arc`, a `Box`.
impl<P: Deref<Target: Clock> + Send + Sync> Clock for P {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn source_id(&self) -> Option<usize> {
        (**self).source_id()
    }

    fn sleep_until_time(&self, at: Timestamp) {
        (**self).sleep_until_time(at);
    }

    fn park_until_woken(&self, at: Timestamp) {
        (**self).park_until_woken(at);
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        (**self).schedule_wakeup(at, waker)
    }
}

//! A clock that moves only when it is told to, for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate_core::Timestamp;

use super::Clock;

/// A clock that a test advances by hand. Clones share one time.
///
/// It drives decisions and blocking waits. Awaited waits sleep on tokio's time instead: such a test
/// pauses that and uses `clock::Tokio`.
///
/// A blocking wait stays blocked until [`advance`](Self::advance) reaches its time:
///
/// ```
/// use std::sync::Arc;
/// use std::thread;
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = Arc::new(Limiter::with_clock(Rate::per_second(1), clock.clone()));
/// assert!(limiter.allow());
///
/// let waiter = {
///     let limiter = Arc::clone(&limiter);
///     thread::spawn(move || limiter.acquire().wait_blocking())
/// };
/// while clock.parked() == 0 {
///     thread::yield_now(); // until the waiter has parked
/// }
/// assert!(!waiter.is_finished());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(waiter.join().unwrap(), Ok(Duration::from_secs(1)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Manual {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    nanos: AtomicU64,
    parked: Mutex<usize>,
    moved: Condvar,
}

impl Manual {
    /// A clock that stands at the origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that stands at `now`.
    pub fn starting_at(now: Timestamp) -> Self {
        let clock = Self::new();
        clock.set(now);
        clock
    }

    /// Moves time forward and wakes every thread whose time has come.
    pub fn advance(&self, by: Duration) {
        let parked = self.lock();
        let now = self.now() + by;
        self.shared.nanos.store(now.as_nanos(), Ordering::Release);
        drop(parked);
        self.shared.moved.notify_all();
    }

    /// Moves time to any point, also back, as a faulty clock would.
    pub fn set(&self, now: Timestamp) {
        let parked = self.lock();
        self.shared.nanos.store(now.as_nanos(), Ordering::Release);
        drop(parked);
        self.shared.moved.notify_all();
    }

    /// How many threads are blocked in a wait on this clock.
    pub fn parked(&self) -> usize {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.shared
            .parked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Manual {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.shared.nanos.load(Ordering::Acquire))
    }

    fn park_until(&self, at: Timestamp) {
        let mut parked = self.lock();
        *parked += 1;
        while self.now() < at {
            parked = self
                .shared
                .moved
                .wait(parked)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *parked -= 1;
    }
}

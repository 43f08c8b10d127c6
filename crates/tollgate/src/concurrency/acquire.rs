//! Waiting for a permit: a queue position that is left however the wait ends.

use std::task::Waker;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::gate::{Grant, JoinOutcome};
use super::permit_source::PermitSource;
use super::stats::Counter;
use super::{Permit, PermitDenied};
use crate::clock::Clock;
use crate::patience::{ClockAwareDeadline, WaitLimit, thread_waker};
use crate::wait_queue::waiter_places::WaiterId;

#[cfg(not(any(loom, shuttle)))]
mod future;

#[cfg(not(any(loom, shuttle)))]
pub use future::PermitFuture;

/// A wait for a permit: await it, or call [`wait_blocking`](Self::wait_blocking).
///
/// Permits are granted in the order in which the waits started, whatever their weight: a heavy waiter
/// isn't overtaken by lighter ones that would fit. A request that doesn't wait
/// ([`try_acquire`](super::ConcurrencyLimiter::try_acquire)) doesn't overtake either.
///
/// Dropping the future leaves the queue, and passes a permit that was granted meanwhile on to the next
/// waiter. A permit that was granted in time is delivered, however late the wake-up.
///
/// Without a timeout the wait is unbounded. It can be awaited on any executor. A timeout uses the same
/// timers as a wait for a rate, and panics where [`Acquire`](crate::wait::Acquire) does.
#[cfg_attr(
    feature = "tokio",
    doc = r#"
```
use std::time::Duration;
use tollgate::{ConcurrencyLimiter, concurrency::PermitDenied, clock::Tokio};

# #[tokio::main(flavor = "current_thread", start_paused = true)]
# async fn main() {
let limiter = ConcurrencyLimiter::builder(1).clock(Tokio::new()).build();
let permit = limiter.acquire().await.unwrap();

let hasty = limiter.acquire().timeout(Duration::from_millis(50)).await;
assert!(matches!(hasty, Err(PermitDenied::DeadlineExceeded(_))));

drop(permit);
assert!(limiter.acquire().await.is_ok());
# }
```
"#
)]
#[must_use = "no wait begins until this is awaited, or `wait_blocking` is called"]
#[derive(Debug)]
pub struct Acquire<H: PermitSource> {
    /// Or why the key has no gate.
    home: Result<H, PermitDenied>,
    weight: u32,
    wait_limit: WaitLimit,
}

/// The state of a wait after its start.
enum StartedAcquire<H: PermitSource> {
    Acquired(Permit<H>),
    Waiting {
        place: QueuedAcquire<H>,
        until: Option<ClockAwareDeadline>,
    },
}

impl<H: PermitSource> Acquire<H> {
    pub(super) fn new(home: Result<H, PermitDenied>, weight: u32) -> Self {
        Self {
            home,
            weight,
            wait_limit: WaitLimit::Default,
        }
    }

    /// Fails if the wait takes longer than this. Zero tries once and doesn't wait.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.wait_limit = WaitLimit::Timeout(timeout);
        self
    }

    /// Fails if the wait isn't over by this time on the limiter's clock, and immediately if that time
    /// has passed, even if there is room. If the clock is set back by more than a minute during the
    /// wait, the deadline moves with it.
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.wait_limit = WaitLimit::Deadline(deadline);
        self
    }

    /// Blocks the thread until the permit is acquired.
    ///
    /// # Errors
    /// [`PermitDenied`]: immediately if it can never pass, the queue is full or the deadline has
    /// passed; later if the deadline passes, or the limit falls below the weight.
    ///
    /// ```
    /// use std::thread;
    /// use tollgate::ConcurrencyLimiter;
    ///
    /// let limiter = ConcurrencyLimiter::new(1);
    /// let permit = limiter.try_acquire()?;
    /// thread::scope(|scope| {
    ///     let waiter = scope.spawn(|| limiter.acquire().wait_blocking().is_ok());
    ///     while limiter.peek().waiting == 0 {
    ///         thread::yield_now(); // until the waiter is queued
    ///     }
    ///     permit.success();
    ///     assert!(waiter.join().unwrap());
    /// });
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn wait_blocking(self) -> Result<Permit<H>, PermitDenied> {
        let (mut place, mut until) = match self.start()? {
            StartedAcquire::Acquired(permit) => return Ok(permit),
            StartedAcquire::Waiting { place, until } => (place, until),
        };
        let waker = thread_waker();
        loop {
            if let Some(result) = place.poll_grant(&waker) {
                return result;
            }
            let Some(clock) = place.clock() else {
                return place.expire();
            };
            let now = clock.now();
            let at = until.as_mut().map_or(Timestamp::MAX, |until| until.at(now));
            if now >= at {
                return place.expire();
            }
            clock.park_until_woken(at);
        }
    }

    /// Acquires immediately, joins the queue, or returns why it can do neither.
    fn start(self) -> Result<StartedAcquire<H>, PermitDenied> {
        let (home, weight) = (self.home?, self.weight);
        let until = match self.wait_limit {
            WaitLimit::Default => home.context().timeout.map(|timeout| home.now() + timeout),
            WaitLimit::Timeout(timeout) => Some(home.now() + timeout),
            WaitLimit::Deadline(deadline) => {
                if deadline < home.now() {
                    return Err(deny(&home, PermitDenied::DeadlineExceeded));
                }
                Some(deadline)
            }
        };
        if let Some(in_flight) = home.gate().try_enter(weight) {
            return Ok(StartedAcquire::Acquired(Permit::new(
                home, weight, in_flight,
            )));
        }
        if until.is_some_and(|until| until <= home.now()) {
            let why = match super::permit::deny(&home, weight) {
                PermitDenied::Full(occupancy) => PermitDenied::DeadlineExceeded(occupancy),
                other => other,
            };
            return Err(why);
        }
        if !home.context().enter_wait() {
            return Err(deny(&home, PermitDenied::QueueFull));
        }
        let place = match home.gate().enqueue(weight, home.context().max_waiters) {
            JoinOutcome::Queued { place } => place,
            other => {
                home.context().leave_wait();
                return match other {
                    JoinOutcome::Entered { in_flight } => Ok(StartedAcquire::Acquired(
                        Permit::new(home, weight, in_flight),
                    )),
                    JoinOutcome::QueueFull => Err(deny(&home, PermitDenied::QueueFull)),
                    JoinOutcome::Never | JoinOutcome::Queued { .. } => {
                        Err(deny(&home, PermitDenied::ExceedsLimit))
                    }
                };
            }
        };
        let until = until.map(|at| ClockAwareDeadline::new(at, home.now()));
        let home = Some(home);
        Ok(StartedAcquire::Waiting {
            place: QueuedAcquire {
                home,
                waiter: place,
                weight,
            },
            until,
        })
    }
}

fn deny<H: PermitSource>(home: &H, why: fn(super::Occupancy) -> PermitDenied) -> PermitDenied {
    home.context().counters.increment(Counter::Denied);
    home.refusal(why(home.gate().occupancy()))
}

/// A position in the queue; dropping it leaves the queue.
#[derive(Debug)]
struct QueuedAcquire<H: PermitSource> {
    /// Taken out once the wait has ended.
    home: Option<H>,
    waiter: WaiterId,
    weight: u32,
}

impl<H: PermitSource> QueuedAcquire<H> {
    /// The result of the wait; none while it lasts, and then this waker is woken when it ends.
    fn poll_grant(&mut self, waker: &Waker) -> Option<Result<Permit<H>, PermitDenied>> {
        let told = self.home.as_ref()?.gate().poll_grant(self.waiter, waker)?;
        let home = self.take_home()?;
        Some(self.permit_result(home, told))
    }

    /// Leaves the queue after the deadline, unless the wait ended just before.
    fn expire(mut self) -> Result<Permit<H>, PermitDenied> {
        let Some(home) = self.take_home() else {
            unreachable!("a queue position is left once: by its result, its deadline or its drop");
        };
        match home.gate().abandon(self.waiter) {
            Some(told) => self.permit_result(home, told),
            None => Err(deny(&home, PermitDenied::DeadlineExceeded)),
        }
    }

    fn permit_result(&self, home: H, told: Grant) -> Result<Permit<H>, PermitDenied> {
        match told {
            Grant::Granted { in_flight } => Ok(Permit::new(home, self.weight, in_flight)),
            Grant::Never => Err(deny(&home, PermitDenied::ExceedsLimit)),
        }
    }

    fn take_home(&mut self) -> Option<H> {
        let home = self.home.take()?;
        home.context().leave_wait();
        Some(home)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.home.as_ref().map(|home| &home.context().clock)
    }
}

impl<H: PermitSource> Drop for QueuedAcquire<H> {
    fn drop(&mut self) {
        let Some(home) = self.take_home() else {
            return;
        };
        home.context().counters.increment(Counter::Abandoned);
        if let Some(Grant::Granted { .. }) = home.gate().abandon(self.waiter) {
            home.gate().release(self.weight);
        }
    }
}

//! Client-side throttling: calls that would be rejected anyway aren't sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::Timestamp;
use tollgate::clock::{Clock, Monotonic};

use crate::breaker::FailureWindow;
use crate::breaker::window::{CallResult, CallWindow};
use crate::random::{SplitMix64, random_seed};

/// Rejects calls locally with a probability that rises as the backend accepts fewer of them.
///
/// Over the last two minutes, up to `k` × the accepted requests may be sent: with `k` = 2, a backend
/// that accepts half of them or more sees all, and one that accepts none sees next to none. A rejection
/// costs a backend something, too; this spares it that, without any signal but its answers (as in
/// Google's "Site Reliability Engineering").
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_adaptive::protect::ClientThrottle;
///
/// let throttle = ClientThrottle::with_clock(2.0, Manual::new());
/// let mut sent = 0;
/// for _ in 0..1_000 {
///     if let Ok(attempt) = throttle.try_call() {
///         sent += 1;
///         attempt.rejected(); // by a backend that is down
///     }
/// }
/// assert!(sent < 30, "{sent}");
/// assert!(throttle.probability() > 0.99);
/// ```
#[derive(Debug)]
pub struct ClientThrottle<C: Clock = Monotonic> {
    times: f64,
    window: CallWindow,
    chance: AtomicU64,
    clock: C,
}

/// A call that was rejected before it was sent.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq)]
#[display(
    "not sent: the backend rejects so much that {:.0} % of calls are kept back",
    probability * 100.0
)]
pub struct Throttled {
    /// The probability of that.
    pub probability: f64,
}

/// A call that may be sent. Report what the backend did; a drop reports nothing.
#[derive(Debug)]
#[must_use = "an attempt that is dropped reports nothing"]
pub struct Attempt<'a, C: Clock> {
    throttle: &'a ClientThrottle<C>,
}

impl ClientThrottle {
    /// Lets up to this multiple of the accepted calls through: 2 is usual, less spares the backend
    /// more.
    pub fn new(times: f64) -> Self {
        Self::with_clock(times, Monotonic::new())
    }
}

impl<C: Clock> ClientThrottle<C> {
    /// The same on this clock. A value below 1 becomes 1, because otherwise a healthy backend would be
    /// throttled.
    pub fn with_clock(times: f64, clock: C) -> Self {
        Self {
            times: if times >= 1.0 { times } else { 1.0 },
            window: CallWindow::new(FailureWindow::Time(Duration::from_secs(120))),
            chance: AtomicU64::new(random_seed()),
            clock,
        }
    }

    /// Seeds the random decisions, so that each run has the same. By default each process has its own
    /// seed, so that a fleet doesn't hold back and send at the same times.
    ///
    /// ```
    /// use tollgate_adaptive::protect::ClientThrottle;
    ///
    /// let throttle = ClientThrottle::new(2.0).seed(7);
    /// assert!(throttle.try_call().is_ok());
    /// ```
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.chance.store(seed, Ordering::Relaxed);
        self
    }

    /// Decides whether a call may be sent.
    ///
    /// # Errors
    /// [`Throttled`]: it isn't sent, and counts as a request that wasn't accepted.
    pub fn try_call(&self) -> Result<Attempt<'_, C>, Throttled> {
        let now = self.clock.now();
        let probability = self.probability_at(now);
        let drawn = SplitMix64::new(self.chance.fetch_add(1, Ordering::Relaxed)).next_fraction();
        if drawn < probability {
            self.window.count(now, CallResult::Failed);
            return Err(Throttled { probability });
        }
        Ok(Attempt { throttle: self })
    }

    /// The probability that a call is rejected here.
    pub fn probability(&self) -> f64 {
        self.probability_at(self.clock.now())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "two minutes have fewer than 2^53 calls"
    )]
    fn probability_at(&self, now: Timestamp) -> f64 {
        let counts = self.window.counts(now);
        let requests = counts.calls as f64;
        let accepted = (counts.calls - counts.failed.min(counts.calls)) as f64;
        ((requests - self.times * accepted) / (requests + 1.0)).max(0.0)
    }
}

impl<C: Clock> Attempt<'_, C> {
    /// The backend accepted it, whatever the result.
    pub fn accepted(self) {
        self.count(CallResult::Succeeded);
    }

    /// The backend rejected it for overload, or is unreachable.
    pub fn rejected(self) {
        self.count(CallResult::Failed);
    }

    fn count(&self, result: CallResult) {
        let ClientThrottle { window, clock, .. } = self.throttle;
        window.count(clock.now(), result);
    }
}

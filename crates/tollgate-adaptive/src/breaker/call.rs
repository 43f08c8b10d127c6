//! A call that a breaker let through, and the denial of one.

use std::fmt;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Clock;

use super::{AdmittedCall, CircuitBreaker};

/// A call that a breaker let through. Report its outcome. A drop, as when its caller gave up, isn't a
/// failure; but calls that are never answered count as [silence](super::Thresholds::silent_for), and a
/// dropped probe keeps the circuit open.
///
/// ```
/// use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
///
/// # fn fetch() -> Result<u32, &'static str> { Err("404: no such page") }
/// let breaker = CircuitBreaker::new(Thresholds::default());
/// let call = breaker.try_call()?;
/// match fetch() {
///     Ok(_) => call.success(),
///     Err(error) if error.starts_with("404") => call.ignored(), // the request was wrong
///     Err(_) => call.failure(),
/// }
/// # Ok::<(), tollgate_adaptive::breaker::CircuitOpen>(())
/// ```
#[must_use = "a call that is dropped counts as one without an answer"]
#[derive(derive_more::Debug)]
pub struct BreakerCall<'a, C: Clock> {
    #[debug(skip)]
    pub(super) breaker: &'a CircuitBreaker<C>,
    pub(super) entry: AdmittedCall,
    #[debug(skip)]
    pub(super) started: Timestamp,
    #[debug(skip)]
    pub(super) is_reported: bool,
}

impl<C: Clock> BreakerCall<'_, C> {
    /// It succeeded; if it took longer than [`slow_after`](super::Thresholds::slow_after), it counts as
    /// slow.
    #[inline]
    pub fn success(mut self) {
        let now = self.mark_reported();
        let circuit = &self.breaker.circuit;
        let happened = circuit.record_answer(self.entry, now, now - self.started);
        self.breaker.notify(happened);
    }

    /// It failed.
    #[inline]
    pub fn failure(mut self) {
        let now = self.mark_reported();
        let happened = self.breaker.circuit.record_failure(self.entry, now);
        self.breaker.notify(happened);
    }

    /// It ended with an outcome that has no information about the backend, or wasn't made at all. If it
    /// was a probe, the next call becomes the probe.
    pub fn ignored(mut self) {
        self.is_reported = true;
        self.breaker.circuit.abandon(self.entry);
    }

    /// Returns the time; from now on its drop reports nothing.
    #[inline]
    fn mark_reported(&mut self) -> Timestamp {
        self.is_reported = true;
        self.breaker.clock.now()
    }
}

impl<C: Clock> Drop for BreakerCall<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_reported {
            // The outcome is unknown.
            let now = self.breaker.clock.now();
            self.breaker
                .notify(self.breaker.circuit.record_drop(self.entry, now));
        }
    }
}

/// A call that wasn't made, because the circuit is open.
#[derive(Clone, Copy, Debug, derive_more::Error, PartialEq, Eq)]
pub struct CircuitOpen {
    /// How long it stays open; `None` if it was forced open.
    pub wait: Option<Duration>,
}

impl fmt::Display for CircuitOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            Some(wait) if wait.is_zero() => {
                f.write_str("the circuit is open, and its probes are under way")
            }
            Some(wait) => write!(f, "the circuit is open for {wait:?} more"),
            None => f.write_str("the circuit is held open"),
        }
    }
}

//! A call that a breaker let through, and the refusal of one.

use std::fmt;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Clock;

use super::{Breaker, Entry, Failed};

/// A call that a breaker let through. Say how it ended. Dropped, as when its caller waited no longer, it is no failure; but
/// what never answers is [silent](super::Thresholds::silent_for), and a probe that is dropped keeps the circuit open.
///
/// ```
/// use tollgate_adaptive::breaker::{Breaker, Thresholds};
///
/// # fn fetch() -> Result<u32, &'static str> { Err("404: no such page") }
/// let breaker = Breaker::new(Thresholds::default());
/// let call = breaker.try_call()?;
/// match fetch() {
///     Ok(_) => call.success(),
///     Err(error) if error.starts_with("404") => call.ignored(), // what was asked was wrong
///     Err(_) => call.failure(),
/// }
/// # Ok::<(), tollgate_adaptive::breaker::Open>(())
/// ```
#[must_use = "a call that is dropped counts as one without an answer"]
pub struct Call<'a, C: Clock> {
    breaker: &'a Breaker<C>,
    entry: Entry,
    started: Timestamp,
    is_told: bool,
}

impl<'a, C: Clock> Call<'a, C> {
    #[inline]
    pub(super) fn new(breaker: &'a Breaker<C>, entry: Entry, started: Timestamp) -> Self {
        Self {
            breaker,
            entry,
            started,
            is_told: false,
        }
    }

    /// It succeeded; if it took longer than the terms say, it was slow.
    #[inline]
    pub fn success(mut self) {
        self.is_told = true;
        self.breaker.record(self.entry, self.started, Failed::No);
    }

    /// It failed.
    #[inline]
    pub fn failure(mut self) {
        self.is_told = true;
        self.breaker.record(self.entry, self.started, Failed::Yes);
    }

    /// It ended in a way that says nothing about what was called, or wasn't made at all: if it was a probe, the next call is one.
    pub fn ignored(mut self) {
        self.is_told = true;
        self.breaker.circuit.gives_up(self.entry);
    }
}

impl<C: Clock> Drop for Call<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_told {
            self.breaker.dropped(self.entry);
        }
    }
}

/// A call that was let through and isn't made yet: if it never is, that says nothing.
pub(crate) struct NotMade<'a, C: Clock>(pub(crate) Option<Call<'a, C>>);

impl<'a, C: Clock> NotMade<'a, C> {
    /// It is made now.
    pub(crate) fn made(mut self) -> Option<Call<'a, C>> {
        self.0.take()
    }
}

impl<C: Clock> Drop for NotMade<'_, C> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.ignored();
        }
    }
}

impl<C: Clock> fmt::Debug for Call<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("entry", &self.entry)
            .finish_non_exhaustive()
    }
}

/// A call that wasn't made, because the circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// How long it stays open; `None` if somebody holds it.
    pub wait: Option<Duration>,
}

impl fmt::Display for Open {
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

impl std::error::Error for Open {}

//! What all builders have in common: the settings of their limiter, and the clock that it will read.

use super::{Clock, Monotonic};

/// Stands for [`Monotonic`](super::Monotonic) until a limiter is built, so that a builder that is given another
/// clock never calibrates this one.
#[derive(Clone, Copy, Debug)]
pub struct DefaultClock(());

/// What a builder may have as its clock when it is built: one that it was given, or the default one.
pub trait ClockChoice {
    /// What is read.
    type Clock: Clock;

    /// The clock itself.
    fn into_clock(self) -> Self::Clock;
}

impl<C: Clock> ClockChoice for C {
    type Clock = Self;

    fn into_clock(self) -> Self {
        self
    }
}

impl ClockChoice for DefaultClock {
    type Clock = Monotonic;

    fn into_clock(self) -> Monotonic {
        Monotonic::new()
    }
}

/// The settings `S` of a limiter that is to be built, and the clock that it will read: what every `Builder` is.
///
/// ```
/// use tollgate::clock::{WithClock, Manual};
/// use tollgate::{Limiter, Rate, limiter};
///
/// let builder: WithClock<limiter::LimiterSettings> = Limiter::builder(Rate::per_second(10)).max_waiters(100);
/// let limiter: Limiter<Manual> = builder.clock(Manual::new()).build()?;
/// assert!(limiter.allow());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct WithClock<S, C = DefaultClock> {
    pub(crate) settings: S,
    pub(crate) clock: C,
}

impl<S> WithClock<S> {
    pub(crate) const fn from_settings(settings: S) -> Self {
        Self {
            settings,
            clock: DefaultClock(()),
        }
    }
}

impl<S, C> WithClock<S, C> {
    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> WithClock<S, D> {
        WithClock {
            settings: self.settings,
            clock,
        }
    }
}

impl<S, C: ClockChoice> WithClock<S, C> {
    /// The same with the clock that is read.
    pub(crate) fn resolve_clock(self) -> WithClock<S, C::Clock> {
        WithClock {
            settings: self.settings,
            clock: self.clock.into_clock(),
        }
    }
}

//! The common part of all builders: the settings of a limiter, and its clock.

use super::{Clock, Monotonic};

/// A placeholder for [`Monotonic`](super::Monotonic) until a limiter is built, so that a builder with another clock
/// never calibrates that one.
#[derive(Clone, Copy, Debug)]
pub struct DefaultClock(());

/// The clock of a builder when it is built: a given clock, or the default one.
pub trait ClockChoice {
    /// The type of the clock.
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

/// The settings `S` of a limiter and its clock. Every `Builder` is this type.
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
    /// Sets the clock of the limiter, instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> WithClock<S, D> {
        WithClock {
            settings: self.settings,
            clock,
        }
    }
}

impl<S, C: ClockChoice> WithClock<S, C> {
    /// The same settings with the clock that the limiter will read.
    pub(crate) fn resolve_clock(self) -> WithClock<S, C::Clock> {
        WithClock {
            settings: self.settings,
            clock: self.clock.into_clock(),
        }
    }
}

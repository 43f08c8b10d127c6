//! What all builders have in common: the settings of their limiter, and the clock that it will read.

use crate::clock::Clock;
use crate::limiter::DefaultClock;

/// The settings `S` of a limiter that is to be built, and its clock. Each kind of limiter has a `Builder` of this
/// form.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Clocked<S, C = DefaultClock> {
    pub(crate) settings: S,
    pub(crate) clock: C,
}

impl<S> Clocked<S> {
    pub(crate) const fn of(settings: S) -> Self {
        Self {
            settings,
            clock: DefaultClock::new(),
        }
    }
}

impl<S, C> Clocked<S, C> {
    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Clocked<S, D> {
        Clocked {
            settings: self.settings,
            clock,
        }
    }
}

//! Tells a clock that was set back from times that come a little out of order.
//!
//! A thread may be stopped between reading the clock and asking, so a time that is a little behind others
//! grants nothing extra. But if it is behind by more than any state lasts, the clock was set back, and states
//! must follow it: otherwise a wall clock that was a year ahead for three minutes would cause refusals for a
//! year.

use std::time::Duration;

use tollgate_core::{Arithmetic, Timestamp};

/// How far behind a time may be, beyond what states last, and still count as out of order.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// The latest time that anything was charged at, and how far behind it a time may be.
#[derive(Debug)]
pub(crate) struct LatestTime {
    latest: Timestamp,
    reach: Duration,
}

impl LatestTime {
    /// For states under this limit.
    pub(crate) fn new<A: Arithmetic>(limit: &A) -> Self {
        let mut latest = Self {
            latest: Timestamp::ZERO,
            reach: CLOCK_SLACK,
        };
        latest.extend_reach(limit);
        latest
    }

    /// States are kept under this limit too.
    pub(crate) fn extend_reach<A: Arithmetic>(&mut self, limit: &A) {
        self.reach = self
            .reach
            .max(limit.state_lifetime().saturating_add(CLOCK_SLACK));
    }

    /// The latest time that anything was asked to be charged at.
    pub(crate) const fn at(&self) -> Timestamp {
        self.latest
    }

    /// How far behind a time may be and still count as out of order.
    pub(crate) fn max_lookahead(&self) -> Duration {
        self.reach
    }

    /// What the clock showed before it was set back to this time, if it was: from now on this is the latest.
    #[inline]
    pub(crate) fn detect_set_back(&mut self, now: Timestamp) -> Option<Timestamp> {
        (self.latest - now > self.reach).then(|| std::mem::replace(&mut self.latest, now))
    }

    /// Times count from another origin: what was `from` is `to` now.
    pub(crate) fn shift(&mut self, from: Timestamp, to: Timestamp) {
        self.latest = self.latest.shifted(from, to);
    }

    /// Something was asked to be charged at this time. Looks may be at later ones.
    #[inline]
    pub(crate) fn advance_to(&mut self, now: Timestamp) {
        self.latest = self.latest.max(now);
    }
}

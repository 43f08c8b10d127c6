//! Distinguishes a clock that was set back from times that come a little out of order.
//!
//! A thread may be stopped between reading the clock and checking the limit, so a time that is a little behind others
//! is normal, and grants nothing extra. But a time that is behind by more than the lifetime of any state means that the
//! clock was set back. States must follow it then: otherwise a wall clock that was a year ahead for three minutes would
//! cause denials for a year.

use std::time::Duration;

use tollgate_core::{Arithmetic, Timestamp};

/// How far behind a time may be, beyond the lifetime of states, and still count as out of order.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// The latest time of a charge, and how far behind it a time may be.
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

    /// Also allows for states under this limit.
    pub(crate) fn extend_reach<A: Arithmetic>(&mut self, limit: &A) {
        self.reach = self
            .reach
            .max(limit.state_lifetime().saturating_add(CLOCK_SLACK));
    }

    /// The latest time of any request.
    pub(crate) const fn at(&self) -> Timestamp {
        self.latest
    }

    /// How far behind a time may be and still count as out of order.
    pub(crate) fn max_lookahead(&self) -> Duration {
        self.reach
    }

    /// The time that the clock showed before it was set back to `now`; `None` if it wasn't. From then on `now` is the
    /// latest time.
    #[inline]
    pub(crate) fn detect_set_back(&mut self, now: Timestamp) -> Option<Timestamp> {
        (self.latest - now > self.reach).then(|| std::mem::replace(&mut self.latest, now))
    }

    /// Moves to a clock that shows `to` when this one shows `from`.
    pub(crate) fn shift(&mut self, from: Timestamp, to: Timestamp) {
        self.latest = self.latest.shifted(from, to);
    }

    /// Records a request at this time. Peeks, which may be at later times, don't count.
    #[inline]
    pub(crate) fn advance_to(&mut self, now: Timestamp) {
        self.latest = self.latest.max(now);
    }
}

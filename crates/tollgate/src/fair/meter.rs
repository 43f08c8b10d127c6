//! The limit that all clients share, with its state, on any clock and for any uptime.

use tollgate_core::{Arithmetic, Charge, Decision, Gcra, Since, Tat, Timestamp};

use crate::clock_steps::LatestTime;

/// How far behind the clock the anchor is put, so that times a little out of order are told apart: a day.
const BEHIND: u64 = 86_400 * 1_000_000_000;
/// How far after the anchor it is moved: a year.
const SPAN: u64 = 365 * BEHIND;

/// A limit in one word, whose time counts from an anchor that follows the clock.
#[derive(Debug)]
pub(super) struct Meter {
    limit: Gcra,
    tat: Tat,
    anchor: u64,
    latest: LatestTime,
}

impl Meter {
    /// A limit that has all to give.
    pub(super) fn new(limit: Gcra, now: Timestamp) -> Self {
        Self {
            limit,
            tat: Tat::default(),
            anchor: now.as_nanos().saturating_sub(BEHIND),
            latest: LatestTime::new(&limit),
        }
    }

    /// The same with nothing to give at `now`.
    pub(super) fn drained(mut self, now: Timestamp) -> Self {
        self.tat = self.limit.empty(self.local(now));
        self
    }

    pub(super) const fn limit(&self) -> &Gcra {
        &self.limit
    }

    /// Follows the clock: forth once a year, and back when it was set; then says what it showed before.
    pub(super) fn follow(&mut self, now: Timestamp) -> Option<Timestamp> {
        let before = self.latest.set_back(now);
        if let Some(from) = before {
            self.count_from(now, self.local(from));
        } else if now.as_nanos().saturating_sub(self.anchor) > SPAN {
            self.count_from(now, self.local(now));
        }
        self.latest.pass(now);
        before
    }

    /// Puts the anchor close behind `now`, which the word so far counts as `from`. A charge from before isn't
    /// given back then.
    fn count_from(&mut self, now: Timestamp, from: Timestamp) {
        self.anchor = now.as_nanos().saturating_sub(BEHIND);
        let to = self.local(now);
        self.limit.shift(&mut self.tat, from, to);
    }

    /// When this cost first passes.
    pub(super) fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let local = self.local(now);
        let at = self.limit.earliest(&self.tat, local, cost)?;
        Some(now.plus_nanos(at.nanos_since(local)))
    }

    pub(super) fn charge(&mut self, now: Timestamp, cost: u64) -> Charge {
        let now = self.local(now);
        self.limit.charge(&mut self.tat, now, now, cost)
    }

    pub(super) fn give_back(&mut self, now: Timestamp, charge: &Charge) {
        let now = self.local(now);
        self.limit
            .give_back(&mut self.tat, now, charge, Since::Nothing);
    }

    pub(super) fn report(&self, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let local = self.local(now);
        let at = at.map(|at| local.plus_nanos(at.nanos_since(now)));
        self.limit.report(&self.tat, local, at)
    }

    /// A time as the word counts it.
    fn local(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.anchor))
    }
}

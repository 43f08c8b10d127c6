//! The limit that all clients share, with its state, on any clock and for any uptime.

use tollgate_core::{Arithmetic, Charge, Decision, Gcra, LaterCharges, TatState, Timestamp};

use crate::clock_steps::LatestTime;

/// How far behind the clock the anchor is put, so that slightly reordered times stay distinct: a day.
const ANCHOR_OFFSET_NANOS: u64 = 86_400 * 1_000_000_000;
/// How far the clock may be past the anchor before the anchor moves: a year.
const MAX_ANCHOR_AGE_NANOS: u64 = 365 * ANCHOR_OFFSET_NANOS;

/// A limit whose state is one word. Its time counts from an anchor that follows the clock.
#[derive(Debug)]
pub(super) struct AnchoredBucket {
    limit: Gcra,
    tat: TatState,
    anchor: u64,
    latest: LatestTime,
}

impl AnchoredBucket {
    /// A bucket with a full burst.
    pub(super) fn new(limit: Gcra, now: Timestamp) -> Self {
        Self {
            limit,
            tat: TatState::default(),
            anchor: now.as_nanos().saturating_sub(ANCHOR_OFFSET_NANOS),
            latest: LatestTime::new(&limit),
        }
    }

    /// The same bucket, empty at `now`.
    pub(super) fn emptied(mut self, now: Timestamp) -> Self {
        self.tat = self.limit.empty(self.anchored_time(now));
        self
    }

    pub(super) const fn limit(&self) -> &Gcra {
        &self.limit
    }

    /// Follows the clock: forward once a year, and back when it was set back; then returns the time
    /// before.
    pub(super) fn follow_clock(&mut self, now: Timestamp) -> Option<Timestamp> {
        let before = self.latest.detect_set_back(now);
        if let Some(from) = before {
            self.move_anchor(now, self.anchored_time(from));
        } else if now.as_nanos().saturating_sub(self.anchor) > MAX_ANCHOR_AGE_NANOS {
            self.move_anchor(now, self.anchored_time(now));
        }
        self.latest.advance_to(now);
        before
    }

    /// Puts the anchor shortly before `now`, which the word so far counts as `from`. Earlier charges
    /// can't be refunded afterwards.
    fn move_anchor(&mut self, now: Timestamp, from: Timestamp) {
        self.anchor = now.as_nanos().saturating_sub(ANCHOR_OFFSET_NANOS);
        let to = self.anchored_time(now);
        self.limit.move_to_clock(&mut self.tat, from, to);
    }

    /// When this cost first passes.
    pub(super) fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let local = self.anchored_time(now);
        let at = self.limit.earliest(&self.tat, local, cost)?;
        Some(now.plus_nanos(at.nanos_since(local)))
    }

    pub(super) fn charge(&mut self, now: Timestamp, cost: u64) -> Charge {
        let now = self.anchored_time(now);
        self.limit.charge(&mut self.tat, now, now, cost)
    }

    pub(super) fn refund(&mut self, now: Timestamp, charge: &Charge) {
        let now = self.anchored_time(now);
        self.limit
            .cancel(&mut self.tat, now, charge, LaterCharges::Nothing);
    }

    pub(super) fn report(&self, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let local = self.anchored_time(now);
        let at = at.map(|at| local.plus_nanos(at.nanos_since(now)));
        self.limit.decision_at(&self.tat, local, at)
    }

    /// A time relative to the anchor, as the word counts it.
    fn anchored_time(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.anchor))
    }
}

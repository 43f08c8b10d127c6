//! How states count time where they don't use the clock's own: from an anchor, which moves so that uptime has no end.

use tollgate_core::Timestamp;

use super::super::kept::Kept;
use super::{Shared, Table, lock};
use crate::sync::Ordering;

/// How states count time, where that isn't as the clock does.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Timeline {
    /// When the clock shows this …
    pub(in super::super) anchor: Timestamp,
    /// … states are at this time.
    pub(in super::super) start: Timestamp,
    /// The last time that states can count. Once they are half-way there, or before the first, all are moved to
    /// another anchor.
    pub(in super::super) last: Timestamp,
}

impl Timeline {
    /// Whether states are so late, or so early, that they should count from another anchor.
    fn is_far(&self, local: Timestamp) -> bool {
        let is_late = local.as_nanos() > self.last.as_nanos() / 2;
        self.last != Timestamp::MAX && (is_late || local == Timestamp::ZERO)
    }
}

impl<K, A: Kept> Table<K, A> {
    /// A time as the states count it.
    pub(in super::super) fn local_time(&self, now: Timestamp) -> Timestamp {
        match self.timeline {
            None => now,
            Some(Timeline { start, last, .. }) => {
                let anchor = Timestamp::from_nanos(self.anchor.load(Ordering::Relaxed));
                now.shifted(anchor, start).min(last)
            }
        }
    }

    /// Lets states count from this time of the clock, once they are half-way to the last that they can tell,
    /// or before the first: each keeps what it has left, or what a clock that was set back leaves it.
    #[cold]
    pub(super) fn move_anchor(&self, now: Timestamp) {
        let mut shared = lock(&self.shared.0);
        let mut shards: Vec<_> = self.shards.iter().map(|shard| lock(&shard.0)).collect();
        let (from, Some(timeline)) = (self.local_time(now), self.timeline) else {
            return;
        };
        // Another thread may have done it already.
        if !timeline.is_far(from) {
            return;
        }
        shared.move_to(from, timeline.start);
        for shard in &mut shards {
            shard.move_to(from, timeline.start);
        }
        self.anchor.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether states should count from another anchor.
    #[inline]
    pub(super) fn is_far(&self, local: Timestamp) -> bool {
        self.timeline.is_some_and(|timeline| timeline.is_far(local))
    }
}

impl<A: Kept> Shared<A> {
    /// Counts from another anchor.
    fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.keep_pace(from);
        self.ledger.shift(&self.counted_by, from, to);
        self.latest.shift(from, to);
    }
}

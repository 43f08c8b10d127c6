//! Carrying keys over to a changed rate: each as it is met, and a few more with every call.

use std::collections::VecDeque;

use tollgate_core::Timestamp;

use super::super::kept::Kept;
use super::other::carry_over;
use super::{Shard, next_birth};

/// How many keys each call carries over to a new rate, besides its own.
const FOLLOWERS_A_CALL: usize = 2;
/// How many limits are kept for keys that are behind.
pub(super) const CHANGES_KEPT: usize = 16;

impl<K, A: Kept> Shard<K, A> {
    /// Changes the limiter's own rate. Keys are carried over later, as of this time. A rate that counts nothing
    /// leaves them as they are, for the next rate that counts.
    pub(in super::super) fn change(&mut self, at: Timestamp, limit: A) {
        if !limit.counts() {
            self.uncounted = Some(limit);
            return;
        }
        self.uncounted = None;
        self.keep_pace(at);
        self.latest.pass(at);
        // If the clock is a little behind the latest time, what it went back isn't something that was spent.
        let at = self.latest.at().max(at);
        self.latest.keep(&limit);
        if self.changes.len() == CHANGES_KEPT {
            self.follow_all();
        }
        if self.changes.is_empty() {
            self.changes.push_back((Timestamp::ZERO, self.limit));
        }
        self.changes.push_back((at, limit));
        self.limit = limit;
        self.version = self.version.wrapping_add(1);
        self.followed = 0;
    }

    /// Carries a few keys over to the limit in force, so that none stays behind for ever.
    #[inline]
    pub(super) fn follow_some(&mut self) {
        if !self.changes.is_empty() {
            self.follow_next();
        }
    }

    /// Carries all keys over to the limit in force.
    pub(super) fn follow_all(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        for slot in 0..self.entries.slots() {
            self.follow(slot);
        }
        self.changes.clear();
    }

    #[cold]
    fn follow_next(&mut self) {
        for _ in 0..FOLLOWERS_A_CALL {
            if self.followed >= self.entries.slots() {
                self.changes = VecDeque::new();
                return;
            }
            self.follow(self.followed);
            self.followed += 1;
        }
    }

    /// Carries one key over to the limit in force, as of the times of the changes.
    #[inline]
    pub(super) fn follow(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get(slot)
            && entry.follows != self.version
        {
            self.catch_up(slot);
        }
    }

    #[cold]
    fn catch_up(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let behind = self.version.wrapping_sub(entry.follows);
        entry.follows = self.version;
        if entry.tier.is_some() {
            // Only keys at the limiter's own rate follow it.
            return;
        }
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let known = self.changes.len().saturating_sub(behind.saturating_add(1));
        let from = self.changes.iter().skip(known);
        for ((_, old), (at, new)) in from.clone().zip(from.skip(1)) {
            // Holds that were over by then were spent at the old rate.
            if let Some(holds) = self.held.get_mut(&slot) {
                holds.pass_time(&mut entry.ledger, old, *at);
            }
            carry_over(&mut entry.ledger, old, new, *at);
            if new.counts() {
                entry.ledger.forget_late_bookings(new, *at);
            }
        }
        // Bookings from before were promised at another rate, and others may have been told to act before them
        // since.
        entry.birth = next_birth(&mut self.births);
        self.settle(slot);
    }
}

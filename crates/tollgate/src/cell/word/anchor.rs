//! The time that a word counts from. It moves forward after four years, so that the uptime is unbounded, and back when
//! the clock is set back, so that a clock that was far ahead causes no denials afterwards.
//!
//! It moves as in a change of the rate: under the lock, with the sequence odd, and with another TAT. So a check reads
//! anchor and TAT together, and a check that read them before the move loses its compare-and-swap.
//!
//! # Detecting a clock that was set back
//! A request that passes leaves a TAT at most a full bucket ahead of its time. A reservation records the TAT that it
//! left, and its time. So a TAT further ahead than both, or a reservation made at a later time than now, was charged
//! while the clock showed a later time.

use tollgate_core::{TatState, Timestamp, units};

use super::{GcraWord, WordAttempt, evaluate_view};
use crate::sync::{Ordering, fence};

/// Times up to here after the anchor, four and a half years, certainly fit the word.
pub(super) const NEAR_NANOS: u64 = 1 << 57;
/// The last time that a word can represent.
const LAST: u64 = 2 * NEAR_NANOS - 1;
/// How far behind the clock the anchor is put, so that times a little out of order stay distinct: a day. A time that is
/// no further behind than this and a full bucket is out of order.
const ANCHOR_LAG: u64 = 86_400 * 1_000_000_000;
/// The same in word units.
pub(super) const SLACK: u64 = units::from_nanos(ANCHOR_LAG);

/// The latest TAT that is before every time that a word can count.
pub(super) const BEFORE_ANY_TIME: u64 = units::from_nanos(1) - 1;

/// The owner of a word's anchor, which moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnchorOwner {
    /// The word itself.
    Word,
    /// The stripes around the word, which must return their leases first.
    Holder,
}

impl GcraWord {
    pub(super) fn anchor(&self) -> Timestamp {
        Timestamp::from_nanos(self.terms.anchor.load(Ordering::Relaxed))
    }

    /// Whether a time is after the anchor, and not far.
    #[inline]
    pub(crate) fn is_near(&self, now: Timestamp) -> bool {
        let anchor = self.terms.anchor.load(Ordering::Relaxed);
        now.as_nanos().wrapping_sub(anchor) < NEAR_NANOS
    }

    /// Whether a time is so far from the anchor that the anchor should move.
    pub(crate) fn is_far(&self, now: Timestamp) -> bool {
        if now >= self.anchor() {
            return !self.is_near(now);
        }
        let lasts = units::to_nanos_floor(self.terms.capacity.load(Ordering::Relaxed));
        self.anchor().nanos_since(now) > ANCHOR_LAG.saturating_add(lasts)
    }

    /// A time counted as in the word; the anchor is 1 ns.
    #[inline]
    pub(crate) fn time_since_anchor(&self, now: Timestamp) -> Timestamp {
        let nanos = now.nanos_since(self.anchor());
        Timestamp::from_nanos(nanos.min(LAST - 1) + 1)
    }

    /// The same time, or the nearest that the word can represent, after the anchor was moved if necessary.
    pub(crate) fn keep_near(&self, now: Timestamp) -> Timestamp {
        if self.is_near(now) {
            return now;
        }
        if self.terms.mover == AnchorOwner::Word && self.is_far(now) {
            self.move_anchor(now);
        }
        let anchor = self.anchor();
        now.clamp(anchor, anchor.plus_nanos(NEAR_NANOS - 1))
    }

    /// Moves the anchor close behind a time that is far from it.
    #[cold]
    #[inline(never)]
    pub(crate) fn move_anchor(&self, now: Timestamp) {
        let settings = self.settings();
        let anchor = self.anchor();
        if now >= anchor {
            // Another thread may have moved it.
            if !self.is_near(now) {
                let to = now.as_nanos().saturating_sub(ANCHOR_LAG);
                let by = units::from_nanos(to - anchor.as_nanos());
                let earlier = |time: u64| time.saturating_sub(by);
                self.rebase_to(to, now, |tat| earlier(tat.to_word()));
                for noted in [&self.latest_booking_tat, &self.refund_barrier] {
                    noted.store(earlier(noted.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
            }
            return;
        }
        let capacity = settings.counted_by.params().capacity;
        if anchor.nanos_since(now) > ANCHOR_LAG.saturating_add(units::to_nanos_floor(capacity)) {
            self.move_anchor_back(now, capacity);
        }
    }

    /// Moves the anchor before a time that is before it, and changes nothing else: for a live change, which must
    /// distinguish a clock that stepped back from spent tokens. The caller holds the lock.
    pub(super) fn extend_anchor_back(&self, now: Timestamp) {
        let anchor = self.anchor();
        if now >= anchor || self.terms.mover != AnchorOwner::Word {
            return;
        }
        let to = now.as_nanos().saturating_sub(ANCHOR_LAG);
        let by = units::from_nanos(anchor.as_nanos() - to);
        let later = |time: u64| time.saturating_add(by);
        // A TAT before every time stays before every time.
        self.rebase_to(to, now, |tat| match tat.to_word() {
            0..=BEFORE_ANY_TIME => 0,
            ahead => later(ahead),
        });
        for noted in [&self.latest_booking_tat, &self.refund_barrier] {
            noted.store(later(noted.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Follows a clock that was set back far. False if it wasn't, and the word is unchanged.
    #[cold]
    #[inline(never)]
    pub(super) fn follow_clock_back(&self, now: Timestamp) -> bool {
        // Slow rates have long waits in normal operation, so the lock is taken only if the word must change.
        if !self.is_ahead(now, self.terms.capacity.load(Ordering::Relaxed)) {
            return false;
        }
        let settings = self.settings();
        let capacity = settings.counted_by.params().capacity;
        let ahead = self.is_ahead(now, capacity);
        if ahead {
            self.move_anchor_back(now, capacity);
        }
        ahead
    }

    /// The result of an attempt to charge, after the word has followed the clock.
    #[cold]
    #[inline(never)]
    pub(super) fn evaluate_again(&self, now: Timestamp, cost: u64) -> WordAttempt {
        evaluate_view(self.view(now), cost)
    }

    fn is_ahead(&self, now: Timestamp, capacity: u64) -> bool {
        let (tat, local) = (
            self.tat.load(Ordering::Relaxed),
            units::from_time(self.time_since_anchor(now)),
        );
        let booked_at = self.latest_booking_time.load(Ordering::Relaxed);
        let is_booked = tat <= self.latest_booking_tat.load(Ordering::Relaxed)
            && booked_at <= now.as_nanos().saturating_add(ANCHOR_LAG);
        tat > local.saturating_add(capacity).saturating_add(SLACK) && !is_booked
    }

    /// Records a charge that acts later, or debt beyond a smaller bucket.
    pub(super) fn note_booking(&self, tat: TatState, now: Timestamp) {
        self.latest_booking_time
            .fetch_max(now.as_nanos(), Ordering::Relaxed);
        self.latest_booking_tat
            .fetch_max(tat.to_word(), Ordering::Relaxed);
    }

    /// Moves the anchor close behind this time, with at most an empty bucket. The caller holds the lock. The leases of
    /// stripes stay: they are a part of the one burst that a step of the clock may grant.
    fn move_anchor_back(&self, now: Timestamp, capacity: u64) {
        let to = now.as_nanos().saturating_sub(ANCHOR_LAG);
        let shift = units::signed_difference(Timestamp::from_nanos(to), self.anchor());
        let local = units::from_nanos(now.as_nanos() - to + 1);
        let empty = local.saturating_add(capacity);
        let moved = |time: u64| {
            let moved = i128::from(time) + shift;
            u64::try_from(moved.max(0)).map_or(empty, |time| time.min(empty))
        };
        self.rebase_to(to, now, |tat| moved(tat.to_word()));
        let sealed = self.refund_barrier.load(Ordering::Relaxed);
        self.refund_barrier.store(moved(sealed), Ordering::Relaxed);
        self.latest_booking_time.store(0, Ordering::Relaxed);
        self.latest_booking_tat.store(0, Ordering::Relaxed);
    }

    /// Stores an anchor, and the TAT counted from there. The caller holds the lock.
    fn rebase_to(&self, anchor: u64, now: Timestamp, moved: impl Fn(TatState) -> u64) {
        let before = self.terms.sequence.load(Ordering::Relaxed);
        self.terms.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.terms.anchor.store(anchor, Ordering::Relaxed);
        // The value must change in any case, so that a thread that read the old one loses its compare-and-swap.
        self.move_tat(self.time_since_anchor(now), |tat| match moved(tat) {
            same if same == tat.to_word() => TatState::from_word(same.saturating_add(1)),
            moved => TatState::from_word(moved),
        });
        self.terms.sequence.store(before + 2, Ordering::Release);
    }
}

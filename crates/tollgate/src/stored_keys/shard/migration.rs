//! Carrying keys over to another limit: to a changed rate, each as it is met and a few more with every call; and to the limit
//! that a request asks at. What a key owes stays owed. Its state is moved to the limit of a request if that lets the request pass,
//! or if that refuses it but is faster.

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate_core::{Decision, Ledger, Outcome, Timestamp};

use super::super::key_entry::KeyEntry;
use super::super::state_request::{StateAnswer, StateRequest};
use super::super::table_algorithm::TableAlgorithm;
use super::{LimitSource, NO_ENTRY, Shard, ShardAnswer, next_birth};

/// How many keys each call carries over to a new rate, besides its own.
const MIGRATED_PER_CALL: usize = 2;
/// How many limits are kept for keys that are behind.
pub(super) const MAX_PENDING_CHANGES: usize = 16;

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Changes the limiter's own rate. Keys are carried over later, as of this time. A rate that counts nothing
    /// leaves them as they are, for the next rate that counts.
    pub(in super::super) fn change(&mut self, at: Timestamp, limit: A) {
        if !limit.is_counting() {
            self.non_counting_limit = Some(limit);
            return;
        }
        self.non_counting_limit = None;
        self.follow_clock(at);
        self.latest_time.advance_to(at);
        // If the clock is a little behind the latest time, what it went back isn't something that was spent.
        let at = self.latest_time.at().max(at);
        self.latest_time.extend_reach(&limit);
        if self.pending_changes.len() == MAX_PENDING_CHANGES {
            self.migrate_all();
        }
        if self.pending_changes.is_empty() {
            self.pending_changes
                .push_back((Timestamp::ZERO, self.limit));
        }
        self.pending_changes.push_back((at, limit));
        self.limit = limit;
        self.rate_version = self.rate_version.wrapping_add(1);
        self.migrated_slots = 0;
    }

    /// Carries a few keys over to the limit in force, so that none stays behind for ever.
    #[inline]
    pub(super) fn migrate_some(&mut self) {
        if !self.pending_changes.is_empty() {
            self.migrate_next();
        }
    }

    /// Carries all keys over to the limit in force.
    pub(super) fn migrate_all(&mut self) {
        if self.pending_changes.is_empty() {
            return;
        }
        for slot in 0..self.entries.slots() {
            self.migrate_entry(slot);
        }
        self.pending_changes.clear();
    }

    #[cold]
    fn migrate_next(&mut self) {
        for _ in 0..MIGRATED_PER_CALL {
            if self.migrated_slots >= self.entries.slots() {
                self.pending_changes = VecDeque::new();
                return;
            }
            self.migrate_entry(self.migrated_slots);
            self.migrated_slots += 1;
        }
    }

    /// Carries one key over to the limit in force, as of the times of the changes.
    #[inline]
    pub(super) fn migrate_entry(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get(slot)
            && entry.rate_version != self.rate_version
        {
            self.apply_pending_changes(slot);
        }
    }

    #[cold]
    fn apply_pending_changes(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let behind = self.rate_version.wrapping_sub(entry.rate_version);
        entry.rate_version = self.rate_version;
        if entry.tier.is_some() {
            // Only keys at the limiter's own rate follow it.
            return;
        }
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let known = self
            .pending_changes
            .len()
            .saturating_sub(behind.saturating_add(1));
        let from = self.pending_changes.iter().skip(known);
        for ((_, old), (at, new)) in from.clone().zip(from.skip(1)) {
            // Holds that were over by then were spent at the old rate.
            if let Some(holds) = self.holds_by_slot.get_mut(&slot) {
                holds.expire_until(&mut entry.ledger, old, *at);
            }
            migrate_ledger(&mut entry.ledger, old, new, *at);
            if new.is_counting() {
                entry.ledger.cap_late_bookings(new, *at);
            }
        }
        // Bookings from before were promised at another rate, and others may have been told to act before them
        // since.
        entry.birth = next_birth(&mut self.last_birth);
        self.update_heap_position(slot);
    }
}

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Puts a question to the state of the key in this slot, which is there, at another limit.
    #[cold]
    pub(super) fn apply_at_other_limit<T: StateAnswer>(
        &mut self,
        slot: u32,
        change: LimitChange<A>,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        now: Timestamp,
        out: u64,
    ) -> ShardAnswer<T> {
        let LimitChange { tier, is_given } = change;
        let (own, in_force) = (self.limit, *self.limit_in_force());
        let Some(entry) = self.entries.get_mut(slot) else {
            // The caller has just found it.
            let mut fresh = Ledger::default();
            return ShardAnswer::Applied((act.apply)(&mut fresh, &in_force, now, 0), NO_ENTRY);
        };
        let old = *entry.tier.as_deref().unwrap_or(&own);
        let new = *tier.as_deref().unwrap_or(&in_force);
        let mut ledger = entry.ledger.clone();
        let mut birth = entry.birth;
        if old != new {
            if !new.is_counting() {
                // A limit that counts nothing doesn't touch what another has counted.
                return ShardAnswer::Applied((act.apply)(&mut ledger, &new, now, 0), NO_ENTRY);
            }
            migrate_ledger(&mut ledger, &old, &new, now);
            ledger.forget_bookings(&new, now);
            // What was booked before was booked at another price.
            birth = next_birth(&mut self.last_birth);
            // What is out is owed at the new price too.
            ledger.keep_outstanding(&new, now, out);
        }
        let answer = (act.apply)(&mut ledger, &new, now, out);
        let stored = match answer.outcome() {
            Outcome::Allowed => !act.is_peek(),
            // From now on the debt drains at the faster rate.
            Outcome::Denied => act.is_request() && new.rate().is_faster_than(old.rate()),
            Outcome::Never => false,
        };
        if !stored {
            let stays = old != new && !new.rate().is_faster_than(old.rate());
            let answer = if stays && !entry.ledger.is_idle(&old, now) {
                answer.map_denial(|decision| {
                    decision_under_old_limit(&entry.ledger, &old, &new, now, act.cost, decision)
                })
            } else {
                answer
            };
            return ShardAnswer::Applied(answer, u64::from(entry.birth.get()));
        }
        entry.ledger = ledger;
        entry.tier = tier;
        self.latest_time.extend_reach(&new);
        entry.birth = birth;
        entry.rate_version = self.rate_version;
        entry.place = entry.place.with_from_call(is_given);
        self.update_heap_position(slot);
        ShardAnswer::Applied(answer, u64::from(birth.get()))
    }
}

/// What happened to the clock that states count by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClockShift {
    /// It was set back: what was charged while it was ahead keeps what it had left.
    SetBack,
    /// States count from another anchor.
    Anchor,
}

/// Carrying all keys of a shard over to another time at once, which is seldom.
impl<K, A: TableAlgorithm> Shard<K, A> {
    /// If the clock was set back to this time, moves all keys back with it, so that none is refused until the
    /// clock has caught up. The time by which dropped keys were idle no longer matters then.
    #[inline]
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        if let Some(from) = self.latest_time.detect_set_back(now) {
            self.shift(from, now, ClockShift::SetBack);
            self.high_water = self.high_water.min(now);
        }
    }

    /// Counts from another anchor: every key keeps what it has left.
    pub(in super::super) fn move_to_clock(&mut self, from: Timestamp, to: Timestamp) {
        self.follow_clock(from);
        self.shift(from, to, ClockShift::Anchor);
        self.high_water = self.high_water.shifted(from, to);
        self.latest_time.shift(from, to);
    }

    #[cold]
    fn shift(&mut self, from: Timestamp, to: Timestamp, shift: ClockShift) {
        // Changes count from times of the clock as it was.
        self.migrate_all();
        for slot in 0..self.entries.slots() {
            self.change_holds(slot, |holds, ledger, limit| {
                holds.shift_clock(ledger, limit, from, to)
            });
            let Some(entry) = self.entries.get_mut(slot) else {
                continue;
            };
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            match shift {
                ClockShift::SetBack => entry.ledger.follow_clock_back(limit, from, to),
                ClockShift::Anchor => entry.ledger.move_to_clock(limit, from, to),
            }
            if !entry.place.is_blocked() {
                self.update_heap_position(slot);
                continue;
            }
            let until = self.blocked_heap.due(entry.place.number());
            if shift == ClockShift::SetBack && until - to <= self.latest_time.max_lookahead() {
                // The block may be from before the clock ran ahead.
            } else if until > from {
                // It lasts as long as it had left.
                self.leave_heap(slot);
                self.enter_heap(slot, until.shifted(from, to), true);
            } else {
                self.unblock(slot);
            }
        }
    }
}

/// The limit that a key changes to by a call: its tier, or none for the limiter's own rate, and where that comes from.
pub(super) struct LimitChange<A> {
    pub(super) tier: Option<Arc<A>>,
    pub(super) is_given: bool,
}

impl<A> LimitChange<A> {
    /// To the limiter's own rate.
    pub(super) const OWN: Self = Self::own(None);

    const fn own(tier: Option<Arc<A>>) -> Self {
        let is_given = false;
        Self { tier, is_given }
    }
}

/// What a key changes to by a call; nothing if it stays. An idle key must
/// answer as one never seen, whether it was dropped or not, so its tier is asked for again.
#[inline]
pub(super) fn limit_change<K, A: TableAlgorithm>(
    entry: &KeyEntry<K, A>,
    own: &A,
    under: &LimitSource<'_, K, A>,
    now: Timestamp,
) -> Option<LimitChange<A>> {
    let idle = || {
        let limit = entry.tier.as_deref().unwrap_or(own);
        entry.ledger.is_idle(limit, now)
    };
    match under {
        LimitSource::ByKey(rate_of) if rate_of.is_none() => {
            entry.tier.is_some().then_some(LimitChange::OWN)
        }
        LimitSource::Current(rate_of) if rate_of.is_none() => {
            (entry.tier.is_some() && idle()).then_some(LimitChange::OWN)
        }
        LimitSource::ByKey(rate_of) if entry.place.is_from_call() || idle() => {
            Some(LimitChange::own(rate_of.tier(&entry.key)))
        }
        LimitSource::Current(rate_of) if idle() => Some(LimitChange::own(rate_of.tier(&entry.key))),
        LimitSource::ByKey(_) | LimitSource::Current(_) => None,
        LimitSource::FromCall(given) => {
            let same = match &entry.tier {
                Some(tier) => Arc::ptr_eq(tier, given) || tier == *given,
                None => own == given.as_ref(),
            };
            (!same).then(|| LimitChange {
                tier: Some(Arc::clone(given)),
                is_given: true,
            })
        }
    }
}

/// What a refusal at a rate that isn't faster is told. Nothing is stored, so the debt goes on to drain at the rate that
/// it is counted by.
fn decision_under_old_limit<A: TableAlgorithm>(
    ledger: &Ledger<A>,
    old: &A,
    new: &A,
    now: Timestamp,
    cost: u64,
    refused: Decision,
) -> Decision {
    let mut told = refused;
    if let Some(at) = ledger.earliest_before_migration(old, new, now, cost) {
        told.set_wait(at - now);
    }
    told.reset_after = old.idle_at(ledger.state()) - now;
    told
}

/// Carries a state over to another limit; one that is idle is as one never seen, whether it was
/// dropped or not.
pub(super) fn migrate_ledger<A: TableAlgorithm>(
    ledger: &mut Ledger<A>,
    old: &A,
    new: &A,
    at: Timestamp,
) {
    if ledger.is_idle(old, at) {
        ledger.reset();
    } else {
        ledger.migrate_spent(old, new, at);
    }
}

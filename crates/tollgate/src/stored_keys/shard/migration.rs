//! Moves keys to another limit. To a changed rate, each key moves when it is used, and every call moves a few more. To
//! the limit of a request, a key moves if that lets the request pass, or if it denies the request but is faster. Debt
//! stays.

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate_core::{Decision, Ledger, Outcome, Timestamp};

use super::super::key_entry::KeyEntry;
use super::super::state_request::{StateAnswer, StateRequest};
use super::super::table_algorithm::TableAlgorithm;
use super::{LimitSource, NO_ENTRY, Shard, ShardAnswer, next_birth};

/// How many keys each call moves to a new rate, besides its own key.
const MIGRATED_PER_CALL: usize = 2;
/// How many old limits are kept for keys that have not moved yet.
pub(super) const MAX_PENDING_CHANGES: usize = 16;

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Changes the limiter's own rate. Keys move later, as of this time. A rate that counts nothing leaves them
    /// unchanged for the next rate that counts.
    pub(in super::super) fn change(&mut self, at: Timestamp, limit: A) {
        if !limit.is_counting() {
            self.non_counting_limit = Some(limit);
            return;
        }
        self.non_counting_limit = None;
        self.follow_clock(at);
        self.latest_time.advance_to(at);
        // At the latest time, if the clock is a little behind that: the step isn't spent tokens.
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

    /// Moves a few keys to the limit in force, so that no key stays behind forever.
    #[inline]
    pub(super) fn migrate_some(&mut self) {
        if !self.pending_changes.is_empty() {
            self.migrate_next();
        }
    }

    /// Moves all keys to the limit in force.
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

    /// Moves one key to the limit in force, as of the times of the changes.
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
            // Holds that had expired by then were spent at the old rate.
            if let Some(holds) = self.holds_by_slot.get_mut(&slot) {
                holds.expire_until(&mut entry.ledger, old, *at);
            }
            migrate_ledger(&mut entry.ledger, old, new, *at);
            if new.is_counting() {
                entry.ledger.cap_late_bookings(new, *at);
            }
        }
        // Earlier bookings were made at another rate, and others may have been promised earlier times since. A new
        // birth makes their tickets invalid.
        entry.birth = next_birth(&mut self.last_birth);
        self.update_heap_position(slot);
    }
}

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Runs a request on the state of the existing key in this slot, at another limit.
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
            // The caller has just found the entry, so this can't happen.
            let mut fresh = Ledger::default();
            return ShardAnswer::Applied((act.apply)(&mut fresh, &in_force, now, 0), NO_ENTRY);
        };
        let old = *entry.tier.as_deref().unwrap_or(&own);
        let new = *tier.as_deref().unwrap_or(&in_force);
        let mut ledger = entry.ledger.clone();
        let mut birth = entry.birth;
        if old != new {
            if !new.is_counting() {
                // A limit that counts nothing leaves the count of another limit unchanged.
                return ShardAnswer::Applied((act.apply)(&mut ledger, &new, now, 0), NO_ENTRY);
            }
            migrate_ledger(&mut ledger, &old, &new, now);
            ledger.forget_bookings(&new, now);
            // Earlier bookings were made at another price, so a new birth makes their tickets invalid.
            birth = next_birth(&mut self.last_birth);
            // Outstanding tokens are owed at the new price, too.
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

/// The change of the clock by which states count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClockShift {
    /// It was set back: charges made while it was ahead keep their remaining time.
    SetBack,
    /// States count from another anchor.
    Anchor,
}

/// Moving all keys of a shard to another time in one step, which is rare.
impl<K, A: TableAlgorithm> Shard<K, A> {
    /// If the clock was set back to this time, moves all keys back with it, so that none is denied until the clock has
    /// caught up. The high-water time of dropped keys is reset then.
    #[inline]
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        if let Some(from) = self.latest_time.detect_set_back(now) {
            self.shift(from, now, ClockShift::SetBack);
            self.high_water = self.high_water.min(now);
        }
    }

    /// Counts from another anchor. Every key keeps its remaining time.
    pub(in super::super) fn move_to_clock(&mut self, from: Timestamp, to: Timestamp) {
        self.follow_clock(from);
        self.shift(from, to, ClockShift::Anchor);
        self.high_water = self.high_water.shifted(from, to);
        self.latest_time.shift(from, to);
    }

    #[cold]
    fn shift(&mut self, from: Timestamp, to: Timestamp, shift: ClockShift) {
        // Pending changes have times of the old clock, so they are applied first.
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
                // The block may have been made before the clock ran ahead, so it stays.
            } else if until > from {
                // The block keeps its remaining time.
                self.leave_heap(slot);
                self.enter_heap(slot, until.shifted(from, to), true);
            } else {
                self.unblock(slot);
            }
        }
    }
}

/// The limit that a call moves a key to: a tier, or `None` for the limiter's own rate; and whether it came with the
/// call.
pub(super) struct LimitChange<A> {
    pub(super) tier: Option<Arc<A>>,
    pub(super) is_given: bool,
}

impl<A> LimitChange<A> {
    /// A change to the limiter's own rate.
    pub(super) const OWN: Self = Self::own(None);

    const fn own(tier: Option<Arc<A>>) -> Self {
        let is_given = false;
        Self { tier, is_given }
    }
}

/// The limit that a call moves a key to; `None` if the key stays. An idle key must behave as one never seen, whether it
/// was dropped or not, so its tier is selected again.
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

/// The decision for a denial at a rate that isn't faster. Nothing is stored, so the debt keeps draining at the rate by
/// which it counts.
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

/// Moves a state to another limit. An idle state becomes one never seen, whether it was dropped or not.
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

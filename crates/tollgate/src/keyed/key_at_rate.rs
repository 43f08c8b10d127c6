//! One key of a keyed limiter at the rate in force for it: its operations on the table.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, GcraParams, Outcome, TatState, Timestamp, units};

use super::anchor::{SLACK, TableTime};
use super::rate_cell::RateInForce;
use super::shard::{Shard, SlotNeed};
use super::slot::{ChargeRequest, ForeignWord, KeyWord, WordDecision};
use super::table::Candidates;
use super::{KeyedLimiter, SingleRate, TableFull};
use crate::cell::{CancelScope, ChargeTicket};
use crate::clock::{Clock, Monotonic};
use crate::key_handle::sealed::KeyOperations;
use crate::queued_limit::sealed::QueuedLimit;
use crate::wait_queue::fifo_queue::FifoQueue;
use crate::wait_queue::queue_limit::QueueLimit;
use crate::wait_queue::waiter_count::WaiterCount;
use crate::wait_queue::waiter_places::WaiterId;
use crate::wait_queue::{QueueState, WaitQueue};
use crate::{RateDenied, WhenFull};

/// A key at the rate in force for it now. Its handle, reservations and waits use it.
pub struct KeyAtRate<'a, C: Clock, T> {
    pub(super) limiter: &'a KeyedLimiter<C, T>,
    pub(crate) key: KeyRate,
}

/// A [`KeyAtRate`] without its limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRate {
    /// The fingerprint, without the tag of the rate's interval.
    pub(super) fingerprint: u64,
    pub(super) in_force: RateInForce,
    /// Whether `in_force` is the limiter's own rate, which may change while a request waits.
    pub(super) is_limiter_rate: bool,
}

/// The result of the [fast path](super::Key::try_fast_check): whether a request passed, and its decision for callers
/// that need it.
#[must_use = "a request that isn't allowed mustn't pass"]
pub struct FastCheck<'a, C: Clock = Monotonic, T = SingleRate> {
    rated: KeyAtRate<'a, C, T>,
    allowed: bool,
    /// The key's word, after the charge if there was one.
    word: KeyWord,
    moment: TableTime,
    cost: u64,
}

impl<'a, C: Clock, T> KeyAtRate<'a, C, T> {
    /// Decides a request if the fast path suffices.
    #[inline(always)]
    pub(super) fn check_at_a_glance(
        self,
        now: Timestamp,
        cost: u64,
    ) -> Option<FastCheck<'a, C, T>> {
        let moment = self.limiter.table.table_time(now);
        if self.is_marked() {
            return None;
        }
        let place = self.limiter.table.candidates(self.key.fingerprint);
        self.decide_fast(place, moment, cost)
    }

    /// Decides a request of a key that may be in these cache lines.
    #[inline(always)]
    pub(super) fn check_candidates(
        &self,
        place: Candidates<'_>,
        moment: TableTime,
        cost: u64,
    ) -> Decision {
        match self.decide_fast(place, moment, cost) {
            Some(glance) => glance.decision(),
            None => self.check_slowly(moment, cost),
        }
    }

    /// Decides and counts a request of a key that may be in these cache lines, if the fast path suffices.
    #[inline(always)]
    pub(super) fn decide_fast(
        &self,
        place: Candidates<'_>,
        moment: TableTime,
        cost: u64,
    ) -> Option<FastCheck<'a, C, T>> {
        let ask = self.charge_request(moment, cost, 0);
        let (allowed, word) = place.shard.try_pass(place.select(ask.fingerprint), &ask)?;
        if allowed || cost > 0 {
            self.count_decision(allowed);
        }
        Some(FastCheck {
            rated: *self,
            allowed,
            word,
            moment,
            cost,
        })
    }

    #[cold]
    #[inline(never)]
    fn check_slowly(&self, now: TableTime, cost: u64) -> Decision {
        let judged = self.charge(now, cost);
        if cost > 0 {
            self.count_decision(judged.outcome == Outcome::Allowed);
        }
        self.report(&judged, cost)
    }

    /// The content of the key's slot while its word counts by this rate's interval.
    #[inline(always)]
    pub(super) fn tagged(&self) -> u64 {
        self.key.in_force.tag.tagged(self.key.fingerprint)
    }

    #[inline(always)]
    pub(super) fn charge_request(
        &self,
        moment: TableTime,
        cost: u64,
        patience: u64,
    ) -> ChargeRequest<'a> {
        ChargeRequest {
            fingerprint: self.tagged(),
            tag: self.key.in_force.tag,
            pace: self.key.in_force.pace,
            time: moment,
            anchor: self.limiter.table.anchor(),
            cost,
            patience,
        }
    }

    /// An operator's request to the table, and the time on the clock.
    fn charge_request_now(&self) -> (Timestamp, ChargeRequest<'a>) {
        let clock = self.limiter.clock.now();
        (
            clock,
            self.charge_request(self.limiter.table.table_time(clock), 0, 0),
        )
    }

    fn shard(&self) -> &'a Shard {
        self.limiter.table.shard(self.key.fingerprint)
    }

    fn set(
        &self,
        ask: &ChargeRequest<'_>,
        need: SlotNeed,
        change: impl Fn(ForeignWord, Timestamp) -> KeyWord,
    ) -> Result<(), TableFull> {
        let is_set = self.shard().set_word(ask, need, change);
        is_set
            .then_some(())
            .ok_or(TableFull::new(self.limiter.capacity))
    }

    /// Charges the key, or its substitute when the table is full.
    pub(super) fn charge(&self, now: TableTime, cost: u64) -> WordDecision {
        let shard = self.shard();
        let ask = self.charge_request(self.limiter.table.follow_clock(shard, now), cost, 0);
        let judged = shard.charge(&ask, self.slot_need());
        judged.unwrap_or_else(|| self.limiter.charge_when_full(&ask))
    }

    /// As [`charge`](Self::charge), but exactly once, for a caller that may refund the charge.
    pub(super) fn charge_or_book(&self, now: TableTime, cost: u64, patience: u64) -> WordDecision {
        let shard = self.shard();
        let ask = self.charge_request(self.limiter.table.follow_clock(shard, now), cost, patience);
        let judged = shard.charge_or_book(&ask, self.slot_need());
        judged.unwrap_or_else(|| self.limiter.charge_when_full(&ask))
    }

    fn slot_need(&self) -> SlotNeed {
        match self.limiter.at_cap {
            WhenFull::EvictNearestIdle => SlotNeed::Evict,
            _ => SlotNeed::IdleOnly,
        }
    }

    /// The effect of a charge, as far as one read of the key's slot shows it.
    #[inline(always)]
    pub(super) fn peek_word(&self, now: TableTime, cost: u64) -> WordDecision {
        let place = self.limiter.table.candidates(self.key.fingerprint);
        let ask = self.charge_request(now, cost, 0);
        let judged = place.shard.peek(place.select(ask.fingerprint), &ask);
        if judged.wait > SLACK {
            return self.peek_word_again(now, cost);
        }
        judged
    }

    /// Handles a wait so long that the clock may have been set back.
    #[cold]
    #[inline(never)]
    fn peek_word_again(&self, now: TableTime, cost: u64) -> WordDecision {
        let place = self.limiter.table.candidates(self.key.fingerprint);
        let now = self.limiter.table.follow_clock(place.shard, now);
        let ask = self.charge_request(now, cost, 0);
        place.shard.peek(place.select(ask.fingerprint), &ask)
    }

    /// As [`peek_word`](Self::peek_word), for a request that is dropped if it doesn't pass. A denial at a faster rate
    /// than that of the key's word moves the word to that rate, so that the reported wait begins now.
    #[inline(always)]
    pub(super) fn evaluate_request(&self, now: TableTime, cost: u64) -> WordDecision {
        let judged = self.peek_word(now, cost);
        if judged.migrates {
            self.migrate_to_own_interval(now, cost);
        }
        judged
    }

    #[cold]
    #[inline(never)]
    fn migrate_to_own_interval(&self, now: TableTime, cost: u64) {
        let shard = self.shard();
        shard.migrate_interval(&self.charge_request(now, cost, 0));
    }

    pub(super) fn report(&self, judged: &WordDecision, cost: u64) -> Decision {
        let now = judged.now;
        let RateInForce { pace, burst, .. } = self.key.in_force;
        let wait = Duration::from_nanos(GcraParams::wait_nanos(judged.wait));
        let charged = judged.outcome == Outcome::Allowed && cost > 0 && pace.interval > 0;
        let word = if charged { judged.after } else { judged.before };
        let word = word.after_block(units::from_time(now));
        if word.is_blocked() {
            let reset_after =
                Duration::from_nanos(units::to_nanos(word.idle_at() - units::from_time(now)));
            return Decision::new(Outcome::Denied, burst, 0, wait, reset_after);
        }
        let retry_after = match judged.outcome {
            Outcome::Allowed => Duration::ZERO,
            Outcome::Denied => wait,
            Outcome::Never => Duration::MAX,
        };
        self.decision_from_word(judged.outcome, retry_after, word, now)
    }

    /// The decision for a key with this word, which isn't blocked.
    #[inline(always)]
    pub(super) fn decision_from_word(
        &self,
        outcome: Outcome,
        retry_after: Duration,
        word: KeyWord,
        now: Timestamp,
    ) -> Decision {
        let RateInForce { pace, burst, .. } = self.key.in_force;
        let tat = TatState::from_word(word.0);
        let reset_after = if pace.interval == 0 {
            Duration::ZERO
        } else {
            tat.time() - now
        };
        let remaining = pace.remaining(tat, now);
        Decision::new(outcome, burst, remaining, retry_after, reset_after)
    }
}

impl<C: Clock, T> KeyOperations for KeyAtRate<'_, C, T> {
    #[inline(always)]
    fn count_decision(&self, allowed: bool) {
        self.limiter.counters.count(allowed);
    }

    #[inline(always)]
    fn is_marked(&self) -> bool {
        self.limiter.lines.is_marked(self.key.fingerprint)
    }

    #[inline]
    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        if let Some(told) = self.decision_if_queued(now, cost) {
            return told;
        }
        let place = self.limiter.table.candidates(self.key.fingerprint);
        let now = self.limiter.table.table_time(now);
        self.check_candidates(place, now, cost)
    }

    fn refund(&self, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let (clock, ask) = self.charge_request_now();
        let refund = |found: ForeignWord, now: Timestamp| {
            let pace = found.pace_with(self.key.in_force.pace, self.key.in_force.burst);
            let word = found.word.after_block(units::from_time(now));
            (!word.is_blocked())
                .then(|| word.changed(|tat| pace.tat_after_final_refund(tat, now, tokens)))
        };
        self.refund_in_order(clock, || self.shard().update_any(&ask, refund));
    }

    fn penalize(&self, tokens: u64) -> Result<(), TableFull> {
        let RateInForce { pace, burst, .. } = self.key.in_force;
        if pace.interval == 0 || tokens == 0 {
            return Ok(());
        }
        self.set(
            &self.charge_request_now().1,
            SlotNeed::IdleOnly,
            |found, now| {
                let pace = found.pace_with(pace, burst);
                match found.word.after_block(units::from_time(now)) {
                    word if word.is_blocked() => word,
                    word => word.changed(|tat| pace.tat_after_penalty(tat, now, tokens)),
                }
            },
        )
    }

    fn reset(&self) {
        let (clock, ask) = self.charge_request_now();
        self.reset_in_order(clock, || self.shard().reset(&ask));
    }

    fn block_for(&self, duration: Duration) -> Result<(), TableFull> {
        if duration.is_zero() {
            return Ok(());
        }
        let (clock, ask) = self.charge_request_now();
        let set = self.set(&ask, SlotNeed::ForBlock, |found, now| {
            let until = units::from_time(now + duration);
            match found.word {
                word if word.is_blocked() && word.until() > until => word,
                word => KeyWord::blocked(until, word.idle_at()),
            }
        });
        // Waiters are denied, too.
        self.change_and_notify(clock, || ());
        set
    }
}

impl<C: Clock, T> Clone for KeyAtRate<'_, C, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Clock, T> Copy for KeyAtRate<'_, C, T> {}

impl<C: Clock, T> fmt::Debug for KeyAtRate<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl<C: Clock, T> WaitQueue for KeyAtRate<'_, C, T> {
    type Waits = FifoQueue<Option<RateInForce>>;

    fn clock(&self) -> &dyn Clock {
        &self.limiter.clock
    }

    fn visit<R>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<Self::Waits>) -> R,
    ) -> R {
        let key = (self.key.fingerprint, |(): &()| true);
        self.limiter.lines.visit(key, || (), present, change)
    }

    fn advance(&self, waits: &mut Self::Waits, now: Timestamp) {
        waits.advance(self, now);
    }

    fn leave(&self, waits: &mut Self::Waits, now: Timestamp, id: WaiterId) {
        waits.leave(self, now, id);
    }

    fn waiter_left(&self) {
        self.waiting().leave();
    }
}

impl<C: Clock, T> QueueLimit for KeyAtRate<'_, C, T> {
    /// `None` stands for the limiter's own rate.
    type Terms = Option<RateInForce>;

    fn peek(&self, terms: &Self::Terms, now: Timestamp, cost: u64) -> Decision {
        let (key, local) = (self.at_terms(terms), self.time_in_order(now));
        key.report(&key.evaluate_request(local, cost), 0)
    }

    fn book(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, RateDenied> {
        let (key, local) = (self.at_terms(terms), self.time_in_order(now));
        let patience = patience.min(self.max_booking_delay());
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let judged = key.charge_or_book(local, cost, patience);
        if !judged.is_charged {
            return Err(RateDenied::from_decision(key.report(&judged, cost)));
        }
        let wait = GcraParams::wait_nanos(judged.wait);
        let after = TatState::from_word(judged.after.0);
        let pace = key.key.in_force.pace;
        let charge = pace.charge_receipt(after, now.plus_nanos(wait), cost);
        Ok(ChargeTicket::Charged(charge))
    }

    fn max_booking_delay(&self) -> Duration {
        Duration::from_nanos(GcraParams::wait_nanos(self.limiter.longest_wait))
    }

    fn cancel(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        ticket: &ChargeTicket,
        undo: CancelScope,
    ) -> bool {
        let ChargeTicket::Charged(charge) = ticket else {
            return matches!(ticket, ChargeTicket::Free(_));
        };
        let now = self.limiter.table.table_time(now);
        let is_undone = std::cell::Cell::new(false);
        let update = |word: KeyWord, now| {
            let before = undo.cancel_tat(TatState::from_word(word.0), now, charge);
            is_undone.set(before.is_some());
            before.map(|tat| KeyWord(tat.to_word()))
        };
        let ask = self.at_terms(terms).charge_request(now, 0, 0);
        self.shard().update(&ask, update);
        is_undone.get()
    }

    fn clock_time(&self) -> Timestamp {
        self.limiter.clock.now()
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        let now = self.limiter.table.table_time(now);
        let judged = self.peek_word(now, 0);
        judged.before.is_blocked_at(units::from_time(judged.now))
    }

    fn drain_time(&self, terms: &Self::Terms, tokens: u128) -> Duration {
        self.at_terms(terms).key.in_force.pace.refill_time(tokens)
    }
}

impl<C: Clock, T> QueuedLimit for KeyAtRate<'_, C, T> {
    fn charge_terms(&self) -> Self::Terms {
        (!self.key.is_limiter_rate).then_some(self.key.in_force)
    }

    fn waiting(&self) -> &WaiterCount {
        &self.limiter.waiting
    }

    fn peek_unqueued(&self, now: Timestamp, cost: u64) -> Decision {
        let local = self.limiter.table.table_time(now);
        self.report(&self.peek_word(local, cost), 0)
    }

    fn visit_if_any<R>(&self, change: impl FnOnce(&mut QueueState<Self::Waits>) -> R) -> Option<R> {
        let key = (self.key.fingerprint, |(): &()| true);
        self.limiter.lines.visit_if_any(key, change)
    }
}

impl<C: Clock, T> KeyAtRate<'_, C, T> {
    /// The time at which a waiter became due, counted as in the words.
    fn time_in_order(&self, turn: Timestamp) -> TableTime {
        let (table, clock) = (&self.limiter.table, self.limiter.clock.now());
        table.table_time_in_order(self.key.fingerprint, turn, clock)
    }

    /// The same key under these terms.
    fn at_terms(&self, terms: &Option<RateInForce>) -> Self {
        let in_force = terms.unwrap_or_else(|| self.limiter.pace.read());
        Self {
            key: KeyRate {
                in_force,
                ..self.key
            },
            ..*self
        }
    }
}

/// The operations of a `CompositeLimiter` on a key.
impl<C: Clock, T> KeyAtRate<'_, C, T> {
    /// Starts to fetch the key's state into the cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.limiter
            .table
            .candidates(self.key.fingerprint)
            .prefetch();
    }

    /// Whether the cost would pass, for a request that is going to be charged.
    #[inline]
    pub(crate) fn fits(&self, now: Timestamp, cost: u64) -> bool {
        if self.is_marked()
            && let Some(behind) = self.decision_behind_waiters(now, cost)
        {
            return behind.is_allowed();
        }
        let local = self.limiter.table.table_time(now);
        self.evaluate_request(local, cost).outcome == Outcome::Allowed
    }

    /// Charges the cost if no request waits for the key and the fast path suffices. Returns the key's word afterwards
    /// and the rate. `None` means that nothing was decided. The clock is read only if no request waits.
    #[inline]
    pub(crate) fn charge_fast(
        &self,
        now: impl FnOnce() -> Timestamp,
        cost: u64,
    ) -> Option<(TatState, GcraParams)> {
        let limiter = self.limiter;
        if self.is_marked() {
            return None;
        }
        let ask = self.charge_request(limiter.table.table_time(now()), cost, 0);
        let place = limiter.table.candidates(self.key.fingerprint);
        let (passed, after) = place.shard.try_pass(place.select(ask.fingerprint), &ask)?;
        if !passed {
            return None;
        }
        limiter.counters.count(true);
        Some((TatState::from_word(after.0), ask.pace))
    }
}

impl<C: Clock, T> FastCheck<'_, C, T> {
    /// Whether the request passed.
    #[inline(always)]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The whole decision, with the remaining tokens and the time to retry.
    #[inline(always)]
    pub fn decision(&self) -> Decision {
        let now = self.moment.now;
        if self.allowed {
            let none = Duration::ZERO;
            self.rated
                .decision_from_word(Outcome::Allowed, none, self.word, now)
        } else {
            denial_of(self.rated, self.word, now, self.cost)
        }
    }
}

/// The decision for a denied key with this word. A separate function, so that an allowed request needs none of this in
/// memory.
#[inline(never)]
fn denial_of<C: Clock, T>(
    rated: KeyAtRate<'_, C, T>,
    word: KeyWord,
    now: Timestamp,
    cost: u64,
) -> Decision {
    rated.report(&word.evaluate(rated.key.in_force.pace, now, cost), cost)
}

impl<C: Clock, T> fmt::Debug for FastCheck<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Glance").field(&self.decision()).finish()
    }
}

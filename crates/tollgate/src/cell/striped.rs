//! One very hot limit: each thread spends from a small lease of its own, an interval of the shared word's TATs.
//!
//! A stripe owns the interval `[next, end)` that the shared word leased to it. Its tokens expire as time passes them
//! (`next = max(next, now)`), so a stripe can't hoard, and all leases lie within the word's own bound: the sum of all
//! stripes never admits more than one limiter would. Near the limit, when the word has no whole lease left, threads
//! take single tokens from it.
//!
//! # Memory ordering
//! Only the holder of `refilling` changes `end`, or moves `next` other than forward. Spenders load `next`, then `end`,
//! and swap `next` forward.
//!
//! * A refill changes `next` first and stores the new `end` after it (release). A thread that sees the new `end`
//!   (acquire) and then swaps from an older `next` fails. A thread that sees the new `next` with the old `end` finds
//!   the stripe empty, because the new lease begins where the old one ended or later.
//! * `next` may fall only after the rest of a lease was returned. `end` is zero by then (release), so between the fall
//!   and the new `end` there is nothing to spend. A late spender that still holds the very `next` at which the new
//!   lease begins spends less than a lease from there, and the stripe owns that again.
//! * `next` changes by read-modify-write only, so all threads see its changes in one order.

use std::time::Duration;

use tollgate_core::{
    Arithmetic, BookingError, Decision, Gcra, LimitError, Outcome, Rate, Timestamp, units,
};

use super::word::{AnchorOwner, GcraWord};
use super::{CancelScope, ChargeTicket, Outstanding};
use crate::cell::switch::Switch;
use crate::holds::HoldId;
use crate::sync::{AtomicBool, AtomicU64, Backoff, Ordering, Padded, thread_number};

/// How much of the TAT interval a stripe leases at a time: about a microsecond. More would mostly expire unused, less
/// would use the shared word too often.
const LEASE_UNITS: u64 = units::from_nanos(1_000);

#[derive(Debug)]
pub(crate) struct Striped {
    shared_word: GcraWord,
    stripes: Box<[Padded<Stripe>]>,
    /// How many tokens a stripe leases at a time; 0 or 1 means that stripes don't help.
    lease_tokens: AtomicU64,
}

#[derive(Debug)]
struct Stripe {
    next: AtomicU64,
    end: AtomicU64,
    refilling: AtomicBool,
}

impl Striped {
    /// `stripes` is rounded up to a power of two.
    pub(crate) fn new(limit: Gcra, anchor: Timestamp, stripes: usize) -> Self {
        let count = stripes.max(1).next_power_of_two();
        let striped = Self {
            shared_word: GcraWord::new(limit, anchor, AnchorOwner::Holder),
            stripes: (0..count).map(|_| Padded(Stripe::empty())).collect(),
            lease_tokens: AtomicU64::new(0),
        };
        striped.update_lease_size(&limit);
        striped
    }

    /// Spends all tokens, as of the anchor.
    pub(crate) fn exhaust(&self) {
        self.shared_word.exhaust();
    }

    #[inline(never)]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        self.spend(now, cost)
            || self.spend_returning_unspent(now, cost)
            || (self.shared_at(now).allow(now, cost) && self.expire_own_stripe(now))
    }

    #[inline(never)]
    pub(crate) fn check(&self, now: Timestamp, cost: u64) -> Decision {
        if cost > 0 && (self.spend(now, cost) || self.spend_returning_unspent(now, cost)) {
            return self.shared_word.describe_outcome(now, Outcome::Allowed);
        }
        let decision = self.shared_at(now).check(now, cost);
        if decision.is_allowed() && cost > 0 {
            self.expire_own_stripe(now);
        }
        decision
    }

    /// Decides with the shared word alone, without charging.
    pub(crate) fn peek(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision {
        self.shared_at(now).peek(now, cost, out)
    }

    /// Whether a cost would pass with the shared word alone, from which [`reserve`](Self::reserve) takes it.
    pub(crate) fn would_pass(&self, now: Timestamp, cost: u64) -> bool {
        self.shared_at(now).would_pass(now, cost)
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<ChargeTicket, BookingError> {
        let ticket = self.shared_at(now).reserve(now, cost, patience, out)?;
        self.expire_own_stripe(now);
        Ok(ticket)
    }

    pub(crate) fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        self.shared_word.cancel(now, ticket, undo)
    }

    pub(crate) fn drain_time(&self, tokens: u128) -> Duration {
        self.shared_word.drain_time(tokens)
    }

    pub(crate) fn tokens(&self, now: Timestamp, out: Outstanding) -> f64 {
        self.shared_at(now).tokens(now, out)
    }

    pub(crate) fn rate(&self) -> Rate {
        self.shared_word.rate()
    }

    pub(crate) fn switch(&self) -> Switch {
        self.shared_word.switch()
    }

    pub(crate) fn change_rate(
        &self,
        now: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<(), LimitError> {
        self.shared_at(now);
        self.with_stripes_emptied(|| {
            let limit = self.shared_word.change_rate(now, change)?;
            self.update_lease_size(&limit);
            Ok(())
        })
    }

    pub(crate) fn set_switch(&self, now: Timestamp, mode: Switch) {
        self.with_stripes_emptied(|| self.shared_word.set_switch(now, mode));
    }

    /// Spends from this thread's stripe, refilling it if the shared word has a whole lease.
    #[inline]
    fn spend(&self, now: Timestamp, cost: u64) -> bool {
        let lease = self.lease_tokens.load(Ordering::Relaxed);
        if cost >= lease {
            return false;
        }
        self.shared_at(now);
        // No price (bypassed, or a peek), or a price beyond the word: the shared word handles both.
        let price = match self.shared_word.interval().checked_mul(cost) {
            None | Some(0) => return false,
            Some(price) => price,
        };
        let (stripe, local) = (self.own_stripe(), self.shared_word.time_since_anchor(now));
        stripe.spend(local, price)
            || (self.refill(stripe, now, lease) && stripe.spend(local, price))
    }

    /// Drops the expired tokens of this thread's stripe, after the shared word has admitted a request. Otherwise a
    /// thread whose clock steps back would find tokens again that had expired at its later time. Always true, to end a
    /// chain of attempts.
    fn expire_own_stripe(&self, now: Timestamp) -> bool {
        let now = units::from_time(self.shared_word.time_since_anchor(now));
        let stripe = self.own_stripe();
        let (next, end) = (
            stripe.next.load(Ordering::Relaxed),
            stripe.end.load(Ordering::Relaxed),
        );
        if next < now.min(end) {
            stripe.next.fetch_max(now, Ordering::AcqRel);
        }
        true
    }

    /// The shared word, with an anchor close to this time. If the anchor must move, the stripes give up their leases
    /// first.
    #[inline]
    fn shared_at(&self, now: Timestamp) -> &GcraWord {
        if !self.shared_word.is_near(now) && self.shared_word.is_far(now) {
            self.with_stripes_emptied(|| self.shared_word.move_anchor(now));
        }
        &self.shared_word
    }

    /// Takes an estimate. While tokens are outstanding, no stripe takes a lease: when tokens come back, the TAT falls,
    /// and a lease would lie beyond it.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError> {
        self.shared_at(now);
        if !self.shared_word.is_held() {
            self.with_stripes_emptied(|| self.lease_tokens.store(0, Ordering::Relaxed));
        }
        let held = self.shared_word.hold(now, cost, until);
        self.update_lease_size(&self.shared_word.limit());
        held
    }

    pub(crate) fn settle(&self, now: Timestamp, id: HoldId, spent: u64) {
        self.shared_at(now).settle(now, id, spent);
        self.update_lease_size(&self.shared_word.limit());
    }

    pub(crate) fn expire_holds(&self, now: Timestamp) -> bool {
        let held = self.shared_at(now).expire_holds(now);
        self.update_lease_size(&self.shared_word.limit());
        held
    }

    #[inline]
    fn own_stripe(&self) -> &Stripe {
        &self.stripes[thread_number() & (self.stripes.len() - 1)].0
    }

    /// Near the limit, before the shared word is charged the whole cost: returns the rest of this thread's lease, if no
    /// later charge relies on it and the cost passes then. Otherwise the cost would be charged behind the rest, which
    /// could then never be returned.
    fn spend_returning_unspent(&self, now: Timestamp, cost: u64) -> bool {
        let local = self.shared_word.time_since_anchor(now);
        let stripe = self.own_stripe();
        let rest = stripe.unspent(local);
        // A denial must write nothing, so peek before anything changes.
        if rest.0 >= rest.1
            || !self
                .shared_word
                .would_pass_after_return(now, cost, rest.0, rest.1)
            || !stripe.claim()
        {
            return false;
        }
        let returned = self.return_unspent(stripe, local);
        stripe.refilling.store(false, Ordering::Release);
        returned && self.shared_word.allow(now, cost)
    }

    /// Returns the rest of a stripe's lease to the shared word. The caller holds the stripe.
    fn return_unspent(&self, stripe: &Stripe, now: Timestamp) -> bool {
        let (next, end) = stripe.unspent(now);
        let seen = stripe.next.load(Ordering::Acquire);
        // The rest becomes unspendable here before it becomes spendable there.
        let emptied = next < end
            && seen <= next
            && stripe
                .next
                .compare_exchange(seen, end, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !emptied {
            return false;
        }
        let returned = self.shared_word.restore_tat(end, next);
        if returned {
            // The lease is no longer owned. This must be stored before a new lease lowers `next`.
            stripe.end.store(0, Ordering::Release);
        } else {
            // A later charge relies on it, so the rest stays here. No thread can have spent from the empty stripe.
            stripe.next.swap(next, Ordering::AcqRel);
        }
        returned
    }

    /// Takes a lease from the shared word. False if there is none, or another thread is refilling the same stripe.
    #[cold]
    fn refill(&self, stripe: &Stripe, now: Timestamp, lease: u64) -> bool {
        // A denial must write nothing, so peek before taking the flag.
        if self
            .shared_word
            .describe_outcome(now, Outcome::Allowed)
            .remaining
            < lease
            || !stripe.claim()
        {
            return false;
        }
        // A hold sets this to zero before it empties the stripes, so it must be read again after this stripe was
        // claimed.
        let stopped = self.lease_tokens.load(Ordering::Relaxed) == 0;
        let end = if stopped {
            None
        } else {
            self.shared_word.take_lease(now, lease)
        };
        if let Some(end) = end {
            let price = self.shared_word.interval().saturating_mul(lease);
            let start = end.to_word().saturating_sub(price);
            // A lease that continues the old one adds to its rest.
            if start != stripe.end.load(Ordering::Relaxed) {
                stripe.next.swap(start, Ordering::AcqRel);
            }
            stripe.end.store(end.to_word(), Ordering::Release);
        }
        stripe.refilling.store(false, Ordering::Release);
        end.is_some()
    }

    /// Keeps every stripe empty during a change, so that no token of the old rate remains.
    fn with_stripes_emptied<T>(&self, change: impl FnOnce() -> T) -> T {
        for stripe in &self.stripes {
            let mut backoff = Backoff::default();
            while !stripe.0.claim() {
                backoff.back_off();
            }
            stripe.0.end.store(0, Ordering::Release);
        }
        let result = change();
        for stripe in &self.stripes {
            stripe.0.refilling.store(false, Ordering::Release);
        }
        result
    }

    /// Sets the size of a lease: none while tokens are outstanding, otherwise about a microsecond of tokens, at most an
    /// eighth of a stripe's share of the burst.
    fn update_lease_size(&self, limit: &Gcra) {
        let by_time = LEASE_UNITS / limit.interval_units().max(1);
        let stripes = u64::try_from(self.stripes.len()).unwrap_or(u64::MAX);
        let by_burst = limit.limit() / stripes.saturating_mul(8);
        let none = limit.rate().is_unlimited() || self.shared_word.is_held();
        let lease = if none { 0 } else { by_time.min(by_burst) };
        self.lease_tokens.store(lease, Ordering::Relaxed);
    }
}

impl Stripe {
    fn empty() -> Self {
        Self {
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
            refilling: AtomicBool::new(false),
        }
    }

    #[inline]
    fn spend(&self, now: Timestamp, price: u64) -> bool {
        let mut next = self.next.load(Ordering::Acquire);
        loop {
            let after = next.max(units::from_time(now)).saturating_add(price);
            if after > self.end.load(Ordering::Acquire) {
                return false;
            }
            match self
                .next
                .compare_exchange_weak(next, after, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(seen) => next = seen,
            }
        }
    }

    /// The rest of the lease at `now`: `[next, end)`.
    fn unspent(&self, now: Timestamp) -> (u64, u64) {
        let next = self.next.load(Ordering::Acquire).max(units::from_time(now));
        (next, self.end.load(Ordering::Acquire))
    }

    fn claim(&self) -> bool {
        self.refilling
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

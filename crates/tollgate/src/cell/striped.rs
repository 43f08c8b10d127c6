//! One very hot limit: each thread spends from a small interval of the TAT line of its own.
//!
//! A stripe owns `[next, end)` of the line that the shared word handed out. Its tokens die as time
//! passes them (`next = max(next, now)`), so a stripe can't hoard, and what was handed out lies
//! within the word's own bound: the sum of all stripes never admits more than one limiter would.
//! Near the limit, when the word has no whole interval to give, threads take single tokens from it.
//!
//! # Memory ordering
//! Only the holder of `refilling` stores `next` and `end`; spenders swap `next` forward. `next`
//! never falls at one rate, so a swap that succeeds saw the latest value. A refill stores the new `next` first
//! and the new `end` after it (release): whoever sees the new `end` (acquire) and then swaps from
//! an older `next` fails, and whoever sees the new `next` with the old `end` finds the stripe
//! empty. Spenders therefore load `next` before `end`.

use std::cell::Cell as ThreadCell;
use std::time::Duration;

use tollgate_core::{Algorithm, Decision, Gcra, LimitError, Outcome, Rate, Timestamp};

use super::word::{Word, word_of};
use super::{Miss, Ticket};
use crate::Mode;
use crate::sync::{AtomicBool, AtomicU64, Backoff, Ordering, Padded};

/// How much of the TAT line a stripe takes at once: about a microsecond, in 1/64 ns. More would
/// mostly die unused, less would go to the shared word too often.
const LEASE_UNITS: u64 = 1_000 * 64;

#[derive(Debug)]
pub(crate) struct Striped {
    shared: Word,
    stripes: Box<[Padded<Stripe>]>,
    /// How many tokens a stripe takes at once; 0 or 1 means that stripes don't pay.
    lease: AtomicU64,
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
            shared: Word::new(limit, anchor),
            stripes: (0..count).map(|_| Padded(Stripe::empty())).collect(),
            lease: AtomicU64::new(0),
        };
        striped.size_leases(&limit);
        striped
    }

    /// Spends all that there is at the anchor.
    pub(crate) fn drain(&self) {
        self.shared.drain();
    }

    #[inline]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        self.spend(now, cost) || self.shared.allow(now, cost)
    }

    pub(crate) fn check(&self, now: Timestamp, cost: u64) -> Decision {
        if cost > 0 && self.spend(now, cost) {
            let local = self.shared.since_anchor(now);
            return self.shared.describe(local, Outcome::Allowed);
        }
        self.shared.check(now, cost)
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Miss> {
        self.shared.reserve(now, cost, patience)
    }

    pub(crate) fn give_back(&self, now: Timestamp, ticket: &Ticket) {
        self.shared.give_back(now, ticket);
    }

    pub(crate) fn tokens(&self, now: Timestamp) -> f64 {
        self.shared.tokens(now)
    }

    pub(crate) fn rate(&self) -> Rate {
        self.shared.rate()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.shared.mode()
    }

    pub(crate) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        let limit = Gcra::new(rate)?;
        self.with_stripes_emptied(|| {
            self.shared.set_rate(now, rate)?;
            self.size_leases(&limit);
            Ok(())
        })
    }

    pub(crate) fn set_mode(&self, now: Timestamp, mode: Mode) {
        self.with_stripes_emptied(|| self.shared.set_mode(now, mode));
    }

    /// Spends from this thread's stripe, refilling it if the shared word has a whole lease.
    #[inline]
    fn spend(&self, now: Timestamp, cost: u64) -> bool {
        let lease = self.lease.load(Ordering::Relaxed);
        if cost >= lease {
            return false;
        }
        let now = self.shared.since_anchor(now);
        let Some(price) = self.shared.interval().checked_mul(cost) else {
            return false;
        };
        let stripe = &self.stripes[thread_number() & (self.stripes.len() - 1)].0;
        stripe.spend(now, price) || (self.refill(stripe, now, lease) && stripe.spend(now, price))
    }

    /// Takes a lease from the shared word; no if there is none to be had, or another thread is at
    /// it for the same stripe.
    #[cold]
    fn refill(&self, stripe: &Stripe, now: Timestamp, lease: u64) -> bool {
        // A refusal must write nothing, so look before taking the flag.
        if self.shared.describe(now, Outcome::Allowed).remaining < lease || !stripe.claim() {
            return false;
        }
        let end = self.shared.lease(now, lease);
        if let Some(end) = end {
            let price = self.shared.interval().saturating_mul(lease);
            let start = end.to_word().saturating_sub(price);
            // An interval that continues the old one adds to what is left of it.
            if start != stripe.end.load(Ordering::Relaxed) {
                stripe.next.store(start, Ordering::Release);
            }
            stripe.end.store(end.to_word(), Ordering::Release);
        }
        stripe.refilling.store(false, Ordering::Release);
        end.is_some()
    }

    /// Keeps every stripe empty while a change is made, so that no token of the old pace remains.
    fn with_stripes_emptied<T>(&self, change: impl FnOnce() -> T) -> T {
        for stripe in &self.stripes {
            let mut backoff = Backoff::default();
            while !stripe.0.claim() {
                backoff.lost();
            }
            stripe.0.end.store(0, Ordering::Release);
        }
        let result = change();
        for stripe in &self.stripes {
            stripe.0.refilling.store(false, Ordering::Release);
        }
        result
    }

    /// About a microsecond of tokens, at most an eighth of a stripe's share of the burst.
    fn size_leases(&self, limit: &Gcra) {
        let by_time = LEASE_UNITS / limit.interval_units().max(1);
        let stripes = u64::try_from(self.stripes.len()).unwrap_or(u64::MAX);
        let by_burst = limit.limit() / stripes.saturating_mul(8);
        let unlimited = limit.rate().is_unlimited();
        let lease = if unlimited { 0 } else { by_time.min(by_burst) };
        self.lease.store(lease, Ordering::Relaxed);
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
            let after = next.max(word_of(now)).saturating_add(price);
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

    fn claim(&self) -> bool {
        self.refilling
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// A small number for the calling thread, handed out in order of first use.
#[inline]
fn thread_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: ThreadCell<usize> = const { ThreadCell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

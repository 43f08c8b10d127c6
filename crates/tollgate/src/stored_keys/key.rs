//! One key of a stored-key limiter: the content of its handle, its operations on the table, and its waits.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{BookingError, Decision, LimitError, Timestamp};

use super::StoredKeyLimiter;
use super::algorithm_table::{AlgorithmTable, each};
use super::shard::{KeyQuery, Lookup};
use super::state_request::RequestPurpose;
use crate::RateDenied;
use crate::Tier;
use crate::cell::locked::drain_time;
use crate::cell::{CancelScope, ChargeTicket};
use crate::clock::{Clock, Monotonic};
use crate::key_handle::KeyHandle;
use crate::key_handle::sealed::{KeyOperations, KeyTarget};
use crate::key_table::TableFull;
use crate::queued_limit::sealed::QueuedLimit;
use crate::sync::{Mutex, ignore_poison};
use crate::wait_queue::fifo_queue::FifoQueue;
use crate::wait_queue::queue_limit::QueueLimit;
use crate::wait_queue::waiter_count::WaiterCount;
use crate::wait_queue::waiter_places::WaiterId;
use crate::wait_queue::{QueueState, WaitQueue};

/// One key of a [`StoredKeyLimiter`], with a borrow of the limiter. [`StoredKeyLimiter::key`] makes it; [`KeyHandle`]
/// has the verbs.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{StoredKeyLimiter, Rate, clock::Manual};
///
/// let limiter = StoredKeyLimiter::builder(Rate::per_minute(5), 1_000)
///     .clock(Manual::new())
///     .build()?;
/// let user = limiter.key("user:42");
/// assert!(user.allow_n(3));
/// assert_eq!(user.check().remaining, 1);
/// assert_eq!(user.reserve(2)?.delay(), Duration::from_secs(12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Key<'a, K, Q, C = Monotonic> = KeyHandle<StoredKey<'a, K, Q, C>>;

/// One key of a [`StoredKeyLimiter`], with a shared pointer to the limiter: its reservations, waits and holds borrow
/// nothing. [`StoredKeyLimiter::key_owned`] makes it; [`KeyHandle`] has the verbs.
pub type OwnedKey<K, C = Monotonic> = KeyHandle<OwnedStoredKey<K, C>>;

/// A key of a table of stored keys, with a borrow of its limiter: the content of the handles of such keys.
pub struct StoredKey<'a, K, Q: ?Sized, C: Clock = Monotonic> {
    pub(super) limiter: &'a StoredKeyLimiter<K, C>,
    pub(super) key: &'a Q,
    pub(super) hash: u64,
    /// The tier that the handle selected, if any.
    pub(super) tier: Option<&'a Tier>,
    /// Where the charge of a wait is put, if it is a hold.
    pub(super) hold: Option<&'a Arc<WaitHold>>,
}

/// As [`StoredKey`], with a shared limiter.
pub struct OwnedStoredKey<K, C: Clock = Monotonic> {
    limiter: Arc<StoredKeyLimiter<K, C>>,
    key: K,
    hash: u64,
    tier: Option<Tier>,
    pub(crate) hold: Option<Arc<WaitHold>>,
}

impl<K, C: Clock> StoredKeyLimiter<K, C> {
    /// One key, with all verbs. [`at`](Key::at) selects another limit.
    #[inline]
    pub fn key<'a, Q>(&'a self, key: &'a Q) -> Key<'a, K, Q, C>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        KeyHandle(self.stored(key, self.hasher.fingerprint(key)))
    }

    /// One key, as [`key`](Self::key) returns it, for use in another task.
    pub fn key_owned<Q>(self: &Arc<Self>, key: &Q) -> OwnedKey<K, C>
    where
        K: Borrow<Q>,
        Q: Hash + ToOwned<Owned = K> + ?Sized,
    {
        KeyHandle(OwnedStoredKey {
            hash: self.hasher.fingerprint(key),
            limiter: Arc::clone(self),
            key: key.to_owned(),
            tier: None,
            hold: None,
        })
    }

    /// A key with this hash, under its own limit.
    #[inline]
    pub(super) fn stored<'a, Q: ?Sized>(&'a self, key: &'a Q, hash: u64) -> StoredKey<'a, K, Q, C> {
        StoredKey {
            limiter: self,
            key,
            hash,
            tier: None,
            hold: None,
        }
    }
}

impl<'a, K, Q: ?Sized, C: Clock> Key<'a, K, Q, C> {
    /// The same key under another limit: a plan, or an override.
    ///
    /// Each call may use another limit: spent tokens stay spent. So in any window no more passes than the largest burst
    /// and the fastest rate of the limits that were used in it, in any order. The key counts by the rate that last let
    /// it pass, or by a faster rate that denied it, and its debt is paid back at that rate. A peek and any other denial
    /// store nothing. A rate of zero or unlimited leaves the debt unchanged. A reservation made at another rate can't
    /// be cancelled. A block is independent of the rate. A refund counts by the rate by which the key counted before.
    ///
    /// Windows of one length share one count; the largest limit bounds it. The count of a window of another length
    /// moves into the window that is open, and expires with it. So if the length alternates, the largest count may pass
    /// in each of the shorter windows. If one user has limits of several lengths, make the length a part of the key.
    ///
    /// # Errors
    /// [`LimitError::TierAlgorithmMismatch`] if the tier has another algorithm than this limiter. The alignment of
    /// windows is no part of the algorithm: a tier has its own alignment.
    ///
    /// ```
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = StoredKeyLimiter::builder(Rate::per_minute(10), 1_000)
    ///     .algorithm(Algorithm::SlidingLog)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// let gold = Tier::new(Algorithm::SlidingLog, Rate::per_minute(100))?;
    /// assert!(limiter.check_n("user:42", 10).is_allowed());
    /// assert_eq!(limiter.key("user:42").at(&gold)?.check().remaining, 89);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn at(&self, tier: &'a Tier) -> Result<Self, LimitError> {
        tier.expect_algorithm(self.0.limiter.algorithm)?;
        let tier = Some(tier);
        Ok(Self(StoredKey { tier, ..self.0 }))
    }
}

impl<K: Eq + Clone, C: Clock> OwnedKey<K, C> {
    /// The same key under another limit, as [`Key::at`].
    ///
    /// # Errors
    /// [`LimitError::TierAlgorithmMismatch`] if the tier has another algorithm than this limiter.
    pub fn at(&self, tier: &Tier) -> Result<Self, LimitError> {
        tier.expect_algorithm(self.0.limiter.algorithm)?;
        Ok(Self(OwnedStoredKey {
            tier: Some(tier.clone()),
            ..self.0.clone()
        }))
    }
}

/// A stored key, with a borrow of its limiter or a shared pointer to it.
pub trait StoredKeyRef: Clone {
    type Key;
    type Query: KeyQuery<Self::Key> + ?Sized;
    type Clock: Clock;

    fn stored(&self) -> StoredKey<'_, Self::Key, Self::Query, Self::Clock>;
}

impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> StoredKeyRef for StoredKey<'_, K, Q, C> {
    type Key = K;
    type Query = Q;
    type Clock = C;

    #[inline]
    fn stored(&self) -> StoredKey<'_, K, Q, C> {
        *self
    }
}

impl<K: Eq + Clone, C: Clock> StoredKeyRef for OwnedStoredKey<K, C> {
    type Key = K;
    type Query = K;
    type Clock = C;

    fn stored(&self) -> StoredKey<'_, K, K, C> {
        StoredKey {
            tier: self.tier.as_ref(),
            hold: self.hold.as_ref(),
            ..self.limiter.stored(&self.key, self.hash)
        }
    }
}

impl<P: StoredKeyRef> KeyTarget for P {
    type Key<'a>
        = StoredKey<'a, P::Key, P::Query, P::Clock>
    where
        Self: 'a;

    #[inline]
    fn key(&self) -> StoredKey<'_, P::Key, P::Query, P::Clock> {
        self.stored()
    }

    #[inline]
    fn allow(&self, cost: u64) -> bool {
        self.stored().admit(cost)
    }

    fn nap_until(&self, at: Timestamp) {
        self.stored().limiter.clock.park_until_woken(at);
    }
}

impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> KeyOperations for StoredKey<'_, K, Q, C> {
    #[inline]
    fn count_decision(&self, allowed: bool) {
        self.limiter.counters.count(allowed);
    }

    #[inline]
    fn is_marked(&self) -> bool {
        self.limiter.lines.is_marked(self.hash)
    }

    #[inline]
    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        if let Some(told) = self.decision_if_queued(now, cost) {
            return told;
        }
        let (ask, charge) = (self.lookup(now), (cost, RequestPurpose::Charge));
        let decision = each!(&self.limiter.tables, table => {
            table.apply(&ask, self.tier, charge, |ledger, limit, now, _| ledger.decide(limit, now, cost))
        });
        if cost > 0 {
            self.count_decision(decision.is_allowed());
        }
        decision
    }

    fn refund(&self, tokens: u64) {
        let now = self.clock_time();
        self.refund_in_order(now, || {
            each!(&self.limiter.tables, table => table.with_entry(&self.lookup(now), false, |shard, slot, now| {
                shard.refund(slot, now, tokens);
            }));
        });
    }

    fn penalize(&self, tokens: u64) -> Result<(), TableFull> {
        let ask = self.lookup(self.clock_time());
        let done = each!(&self.limiter.tables, table => table.penalize(&ask, self.tier, tokens));
        self.limiter.table_full_unless(done)
    }

    fn reset(&self) {
        let now = self.clock_time();
        self.reset_in_order(now, || {
            each!(&self.limiter.tables, table => table.with_entry(&self.lookup(now), false, |shard, slot, _| {
                shard.reset(slot);
            }));
        });
    }

    fn block_for(&self, duration: Duration) -> Result<(), TableFull> {
        let now = self.clock_time();
        let done = each!(&self.limiter.tables, table => table.block(&self.lookup(now), duration));
        // Waiters are denied, too.
        self.change_and_notify(now, || ());
        self.limiter.table_full_unless(done)
    }
}

impl<'a, K, Q: KeyQuery<K> + ?Sized, C: Clock> StoredKey<'a, K, Q, C> {
    /// Charges and counts a request of this cost if it passes now.
    #[inline]
    fn admit(&self, cost: u64) -> bool {
        let now = self.limiter.clock.now();
        if let Some(told) = self.decision_if_queued(now, cost) {
            return told.is_allowed();
        }
        let (ask, charge) = (self.lookup(now), (cost, RequestPurpose::Charge));
        let allowed = each!(&self.limiter.tables, table => {
            table.apply(&ask, self.tier, charge, |ledger, limit, now, _| ledger.allow(limit, now, cost))
        });
        if cost > 0 {
            self.count_decision(allowed);
        }
        allowed
    }

    /// The decision for a request of this cost, without charging it.
    fn peek_with(
        &self,
        ask: &Lookup<'a, Q>,
        tier: Option<&Tier>,
        look: (u64, RequestPurpose),
    ) -> Decision {
        each!(&self.limiter.tables, table => {
            table.apply(ask, tier, look, |ledger, limit, now, _| ledger.peek(limit, now, look.0))
        })
    }

    /// The parameters with which the table finds the key.
    pub(super) fn lookup(&self, now: Timestamp) -> Lookup<'a, Q> {
        Lookup::new(self.key, self.hash, now)
    }

    /// As [`lookup`](Self::lookup), at the time at which a waiter became due, which may be long before the clock's
    /// time.
    fn lookup_in_order(&self, now: Timestamp) -> Lookup<'a, Q> {
        Lookup {
            clock_time: now.max(self.limiter.clock.now()),
            ..self.lookup(now)
        }
    }

    fn key_matcher(&self) -> impl Fn(&K) -> bool + use<'a, K, Q, C> {
        let key = self.key;
        move |known: &K| key.is_key(known)
    }
}

/// Charges that can be refunded: taken now, or held as estimates until they are settled.
impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> StoredKey<'_, K, Q, C> {
    pub(crate) fn clock(&self) -> &C {
        &self.limiter.clock
    }

    /// Charges an estimate, which is outstanding until it is settled or expires.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, Decision> {
        if let Some(told) = self.decision_if_queued(now, cost)
            && !told.is_allowed()
        {
            return Err(told);
        }
        let ask = self.lookup(now);
        let held = each!(&self.limiter.tables, table => table.hold(&ask, self.tier, cost, until));
        self.count_decision(held.is_ok());
        held.map_err(BookingError::decision)
    }

    /// Settles a charge or an estimate, of which `spent` tokens were spent.
    pub(crate) fn settle(&self, now: Timestamp, ticket: &ChargeTicket, spent: u64) {
        match ticket {
            ChargeTicket::Held { .. } => {
                self.change_and_notify(now, || self.settle_outstanding(now, ticket, spent));
            }
            // No hold to settle: a charge of which nothing was spent is refunded, any other stays.
            _ if spent == 0 => self.cancel_in_order(now, ticket),
            _ => {}
        }
    }

    fn settle_outstanding(&self, now: Timestamp, ticket: &ChargeTicket, spent: u64) {
        let ask = self.lookup(now);
        each!(&self.limiter.tables, table => table.settle(&ask, ticket, spent));
    }

    /// Extends an estimate.
    pub(crate) fn prolong(&self, ticket: &mut ChargeTicket, until: Timestamp) {
        let ask = self.lookup(self.clock_time());
        each!(&self.limiter.tables, table => table.prolong(&ask, ticket, until));
    }

    /// Charges a cost that is known late, as a debt.
    pub(crate) fn charge_overrun(&self, now: Timestamp, cost: u64) {
        let ask = self.lookup(now);
        each!(&self.limiter.tables, table => table.penalize(&ask, self.tier, cost));
    }
}

impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> WaitQueue for StoredKey<'_, K, Q, C> {
    type Waits = FifoQueue<WaitTerms>;

    fn clock(&self) -> &dyn Clock {
        &self.limiter.clock
    }

    fn visit<T>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<Self::Waits>) -> T,
    ) -> T {
        let (key, own) = ((self.hash, self.key_matcher()), || self.key.to_key());
        self.limiter.lines.visit(key, own, present, change)
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

impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> QueueLimit for StoredKey<'_, K, Q, C> {
    type Terms = WaitTerms;

    fn peek(&self, asks: &WaitTerms, now: Timestamp, cost: u64) -> Decision {
        self.peek_with(
            &self.lookup_in_order(now),
            asks.tier.as_ref(),
            (cost, RequestPurpose::WaitCheck),
        )
    }

    fn book(
        &self,
        asks: &WaitTerms,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, RateDenied> {
        let (ask, tier) = (self.lookup_in_order(now), asks.tier.as_ref());
        let booked = match &asks.hold {
            None => {
                let patience = patience.min(self.max_booking_delay());
                each!(&self.limiter.tables, table => table.reserve_request(&ask, tier, cost, patience))
            }
            // An estimate is held from the time at which it may be used. It can't be booked ahead, because it is
            // unknown how long other holds will last.
            Some(held) => {
                let until = held.until(now);
                let taken =
                    each!(&self.limiter.tables, table => table.hold(&ask, tier, cost, until));
                taken.inspect(|ticket| held.put(*ticket, until))
            }
        };
        booked.map_err(|unbooked| match unbooked {
            BookingError::TooFarAhead(decision) => RateDenied::TooFarAhead(decision),
            BookingError::Denied(decision) => RateDenied::from_decision(decision),
        })
    }

    fn max_booking_delay(&self) -> Duration {
        self.limiter.longest_wait
    }

    fn cancel(
        &self,
        _asks: &WaitTerms,
        now: Timestamp,
        ticket: &ChargeTicket,
        undo: CancelScope,
    ) -> bool {
        if let (ChargeTicket::Held { .. }, CancelScope::Unused) = (ticket, undo) {
            self.settle_outstanding(now, ticket, 0);
            return true;
        }
        let ask = self.lookup(now);
        each!(&self.limiter.tables, table => table.give_back(&ask, ticket, undo))
    }

    fn can_book_ahead(&self, asks: &WaitTerms) -> bool {
        // An estimate is held from the time at which it may be used.
        asks.hold.is_none()
    }

    fn clock_time(&self) -> Timestamp {
        self.limiter.clock.now()
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        let blocked = each!(&self.limiter.tables, table => {
            table.with_entry(&self.lookup(now), false, |shard, slot, now| shard.is_blocked(slot, now))
        });
        blocked.unwrap_or(false)
    }

    fn drain_time(&self, asks: &WaitTerms, tokens: u128) -> Duration {
        let rate = match &asks.tier {
            Some(tier) => Some(tier.rate()),
            None => self.limiter.tables.single_rate(),
        };
        let takes = |rate| drain_time(self.limiter.algorithm, rate, tokens);
        rate.map_or(Duration::ZERO, takes)
    }
}

impl<K, Q: KeyQuery<K> + ?Sized, C: Clock> QueuedLimit for StoredKey<'_, K, Q, C> {
    fn charge_terms(&self) -> WaitTerms {
        WaitTerms {
            tier: self.tier.cloned(),
            hold: self.hold.cloned(),
        }
    }

    fn waiting(&self) -> &WaiterCount {
        &self.limiter.waiting
    }

    fn peek_unqueued(&self, now: Timestamp, cost: u64) -> Decision {
        self.peek_with(&self.lookup(now), self.tier, (cost, RequestPurpose::Peek))
    }

    fn visit_if_any<T>(&self, change: impl FnOnce(&mut QueueState<Self::Waits>) -> T) -> Option<T> {
        let key = (self.hash, self.key_matcher());
        self.limiter.lines.visit_if_any(key, change)
    }
}

/// The terms under which a key is charged, stored for each waiter.
#[derive(Clone, Debug, Default)]
pub struct WaitTerms {
    /// `None` stands for the limiter's own rate, or the tier that its function selects.
    pub(super) tier: Option<Tier>,
    /// Where the hold is put; `None` for a plain charge.
    pub(super) hold: Option<Arc<WaitHold>>,
}

/// The hold of one waiter, since it passed.
#[derive(Debug)]
pub(crate) struct WaitHold {
    max_duration: Duration,
    /// Locked under the lock of a queue, or under no lock; no lock is taken under it.
    ticket: Mutex<Option<(ChargeTicket, Timestamp)>>,
}

impl WaitHold {
    /// Empty at first. A hold in it may be outstanding for at most `longest`.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            max_duration: longest,
            ticket: Mutex::new(None),
        }
    }

    /// The expiry of a hold that is taken at this time.
    fn until(&self, now: Timestamp) -> Timestamp {
        now + self.max_duration
    }

    fn put(&self, ticket: ChargeTicket, until: Timestamp) {
        *ignore_poison(self.ticket.lock()) = Some((ticket, until));
    }

    pub(crate) fn take(&self) -> Option<(ChargeTicket, Timestamp)> {
        ignore_poison(self.ticket.lock()).take()
    }
}

impl<K, Q: ?Sized, C: Clock> Clone for StoredKey<'_, K, Q, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, Q: ?Sized, C: Clock> Copy for StoredKey<'_, K, Q, C> {}

impl<K: Clone, C: Clock> Clone for OwnedStoredKey<K, C> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            key: self.key.clone(),
            hash: self.hash,
            tier: self.tier.clone(),
            hold: self.hold.clone(),
        }
    }
}

impl<K, Q: ?Sized, C: Clock> fmt::Debug for StoredKey<'_, K, Q, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl<K, C: Clock> fmt::Debug for OwnedStoredKey<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

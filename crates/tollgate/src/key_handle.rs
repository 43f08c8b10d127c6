//! One key of a keyed limiter, for both kinds of tables: the handle, with the verbs.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use crate::acquire::Acquire;
use crate::key_table::TableFull;
use crate::queued_limit::sealed::{LimitPointer, QueuedLimit as _};
use crate::wait_queue::queue_limit::QueueLimit as _;
use crate::{RateDenied, Reservation};
use sealed::{KeyOperations as _, KeyTarget};

/// One key of a [`KeyedLimiter`](crate::KeyedLimiter) or a [`StoredKeyLimiter`](crate::StoredKeyLimiter), hashed once,
/// with the verbs of a [`Limiter`](crate::Limiter).
///
/// A limiter's `key` makes a handle that borrows the limiter ([`keyed::Key`](crate::keyed::Key),
/// [`stored_keys::Key`](crate::stored_keys::Key)). `key_owned` makes a handle that shares the limiter's `Arc`
/// ([`keyed::OwnedKey`](crate::keyed::OwnedKey), [`stored_keys::OwnedKey`](crate::stored_keys::OwnedKey)): its
/// reservations and waits borrow nothing, so they can be moved into a task. `at` selects another limit for either.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{KeyedLimiter, Rate, clock::Manual};
///
/// let limiter = KeyedLimiter::builder(Rate::per_second(10), 1_000).clock(Manual::new()).build()?;
/// let user = limiter.key("user:42");
/// assert!(user.allow_n(8));
/// assert_eq!(user.peek().remaining, 2);
/// assert_eq!(user.reserve(3)?.delay(), Duration::from_millis(100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{StoredKeyLimiter, Rate};
///
/// let limiter = Arc::new(StoredKeyLimiter::<String>::new(Rate::per_second(10), 1_000));
/// let key = limiter.key_owned("user:42");
/// assert!(key.allow());
/// let wait = key.acquire_n(2);
/// std::thread::spawn(move || wait.wait_blocking()).join().unwrap()?;
/// # Ok::<(), tollgate::RateDenied>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeyHandle<P>(pub(crate) P);

pub(crate) mod sealed {
    use std::time::Duration;

    use tollgate_core::{Decision, Timestamp};

    use crate::cell::ChargeTicket;
    use crate::key_table::TableFull;
    use crate::queued_limit::sealed::QueuedLimit;

    /// The key and the limiter of a handle; the limiter is borrowed or shared.
    pub trait KeyTarget: Clone {
        type Key<'a>: KeyOperations
        where
            Self: 'a;

        /// The key at the limit in force for it now.
        fn key(&self) -> Self::Key<'_>;

        /// Charges and counts a request of this cost if it passes now.
        fn allow(&self, cost: u64) -> bool;

        /// Sleeps by the limiter's clock.
        fn nap_until(&self, at: Timestamp);
    }

    /// The operations of a table on a key, besides waiting.
    pub trait KeyOperations: QueuedLimit {
        /// Counts a decision.
        fn count_decision(&self, allowed: bool);

        /// Whether requests may be waiting for the key.
        fn is_marked(&self) -> bool;

        /// The counted decision if requests wait for the key; `None` if none wait.
        #[inline(always)]
        fn decision_if_queued(&self, now: Timestamp, cost: u64) -> Option<Decision> {
            if !self.is_marked() {
                return None;
            }
            let told = self.decision_behind_waiters(now, cost)?;
            if cost > 0 {
                self.count_decision(told.is_allowed());
            }
            Some(told)
        }

        /// Takes a cost now, or returns the denial.
        fn charge_now(&self, now: Timestamp, cost: u64) -> Result<ChargeTicket, Decision> {
            let booked = self.book_in_order(now, cost, Duration::ZERO);
            self.count_decision(booked.is_ok());
            booked.map_err(|refused| *refused.decision())
        }

        /// Decides and counts a request of this cost.
        fn check_at(&self, now: Timestamp, cost: u64) -> Decision;

        fn refund(&self, tokens: u64);

        fn penalize(&self, tokens: u64) -> Result<(), TableFull>;

        fn reset(&self);

        fn block_for(&self, duration: Duration) -> Result<(), TableFull>;
    }
}

impl<P: KeyTarget> KeyHandle<P> {
    /// Whether one request passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow(&self) -> bool {
        self.allow_n(1)
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow_n(&self, cost: u64) -> bool {
        self.0.allow(cost)
    }

    /// Decides one request, and returns the remaining tokens and the time to retry.
    #[inline]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n(&self, cost: u64) -> Decision {
        let key = self.0.key();
        key.check_at(key.clock_time(), cost)
    }

    /// Decides a request of this cost at a time on the limiter's clock.
    #[inline]
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.0.key().check_at(now, cost)
    }

    /// The remaining tokens, without charging anything.
    pub fn peek(&self) -> Decision {
        self.check_n(0)
    }

    /// The remaining tokens at a time on the limiter's clock, without charging anything.
    pub fn peek_at(&self, now: Timestamp) -> Decision {
        self.check_at(now, 0)
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// [`RateDenied::ExceedsBurst`] if the cost is above the burst. [`RateDenied::TooFarAhead`] if it would act further
    /// ahead than the limiter's longest wait, or than the algorithm can book (a sliding log: one window).
    /// [`RateDenied::Blocked`] if the key is blocked. [`RateDenied::QueueFull`] if it is new and the table is full.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, clock::Manual};
    ///
    /// let limiter = StoredKeyLimiter::builder(Rate::per_second(10).burst(1), 100)
    ///     .algorithm(Algorithm::TokenBucket)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// assert!(limiter.allow("user"));
    /// let reservation = limiter.key("user").reserve(1)?;
    /// assert_eq!(reservation.delay(), Duration::from_millis(100));
    /// reservation.cancel();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self, cost: u64) -> Result<Reservation<Self>, RateDenied> {
        self.reserve_at(self.0.key().clock_time(), cost)
    }

    /// Takes `cost` tokens at a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, now: Timestamp, cost: u64) -> Result<Reservation<Self>, RateDenied> {
        let ticket = self.0.key().reserve_in_order(now, cost)?;
        Ok(Reservation::new(self.clone(), ticket))
    }

    /// Waits for one token, first come first served. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire(&self) -> Acquire<Self> {
        self.acquire_n(1)
    }

    /// Waits for `cost` tokens, first come first served.
    pub fn acquire_n(&self, cost: u64) -> Acquire<Self> {
        Acquire::new(self.clone(), cost)
    }

    /// Refunds `tokens` to the key, whatever it was charged for, and at most what it has spent. A block stays.
    /// [`peek`](Self::peek) returns the tokens that remain then.
    ///
    /// A fixed window subtracts them from the window that is open, a sliding log removes the newest hits, and a sliding
    /// counter subtracts them from its current window first.
    ///
    /// ```
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, clock::Manual};
    ///
    /// let limiter = StoredKeyLimiter::builder(Rate::per_hour(10), 100)
    ///     .algorithm(Algorithm::SlidingLog)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// let user = limiter.key("user");
    /// assert!(user.allow_n(8));
    /// user.refund(5);
    /// assert_eq!(user.peek().remaining, 7);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn refund(&self, tokens: u64) {
        self.0.key().refund(tokens);
    }

    /// Takes `tokens` from the key without a request, at most until none remain, at the rate in force for the key. A
    /// blocked key stays unchanged.
    ///
    /// # Errors
    /// [`TableFull`] if the key is new and the table is full.
    ///
    /// ```
    /// use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_second(10), 1_000).clock(Manual::new()).build()?;
    /// let small = Tier::new(Algorithm::Gcra, Rate::per_second(3))?;
    /// let acme = limiter.key("acme").at(&small)?;
    /// acme.penalize(100)?;
    /// assert_eq!(acme.peek().remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn penalize(&self, tokens: u64) -> Result<(), TableFull> {
        self.0.key().penalize(tokens)
    }

    /// Forgets what the key has spent, and any block.
    pub fn reset(&self) {
        self.0.key().reset();
    }

    /// Denies every request of the key for this long, at every rate: checks, reservations and waits. A block is never
    /// shortened, and other keys can't push it out of the table. Earlier charges drain meanwhile. A
    /// [`KeyedLimiter`](crate::KeyedLimiter) has few bits for the debt that remains after the block: it rounds the debt
    /// up, to at most twice as much.
    ///
    /// # Errors
    /// [`TableFull`] if the key is new and the table is full, including the part that is reserved for blocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let limiter = KeyedLimiter::new(Rate::per_second(1_000), 100);
    /// limiter.key("203.0.113.7").block_for(Duration::from_secs(3600))?;
    /// assert!(!limiter.allow("203.0.113.7"));
    /// # Ok::<(), tollgate::keyed::TableFull>(())
    /// ```
    pub fn block_for(&self, duration: Duration) -> Result<(), TableFull> {
        self.0.key().block_for(duration)
    }
}

impl<P: KeyTarget> LimitPointer for KeyHandle<P> {
    type Limit<'a>
        = P::Key<'a>
    where
        Self: 'a;

    fn limit(&self) -> P::Key<'_> {
        self.0.key()
    }

    fn park_until_woken(&self, at: Timestamp) {
        self.0.nap_until(at);
    }
}

impl<P> fmt::Debug for KeyHandle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

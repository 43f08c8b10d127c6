//! One key of a keyed limiter: the handle, with the verbs.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Gcra, LimitError, Pace, Timestamp};

use super::glance::Glance;
use super::intervals::Tag;
use super::pace::InForce;
use super::rated::Rated;
use super::{KeyedLimiter, NoSlot, OneRate};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::table::hasher::KEY_BITS;
use crate::{Algorithm, Refused, Reservation, Tier};

/// One key of a [`KeyedLimiter`], hashed once, with the verbs of a [`Limiter`](crate::Limiter). Made by
/// [`KeyedLimiter::key`]; [`at`](Self::at) puts it under another limit.
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
pub struct Key<'a, C: Clock = Monotonic, T = OneRate> {
    pub(super) limiter: &'a KeyedLimiter<C, T>,
    /// Without the tag of the rate's interval.
    pub(super) fingerprint: u64,
    /// The tier that it is at; none for the rate that the limiter has when it is asked.
    pub(super) tier: Option<InForce>,
}

impl<'a, C: Clock, T> Key<'a, C, T> {
    /// What tells this key from others, as [`KeyedLimiter::fingerprint`].
    #[inline]
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint & KEY_BITS
    }

    /// The same key under another limit: a plan, or an override.
    ///
    /// It may be another with each call: what the key has spent stays spent, in tokens. So in
    /// any window no more passes than the largest burst and the fastest rate of those that were asked
    /// in it, in whatever order. What is owed is paid back at the rate that last let the key pass, or
    /// a faster one that refused it: an upgraded key waits until what it owes, at most the largest
    /// burst and what is booked ahead, is paid back at the new rate, and a downgraded one no longer
    /// than at the old.
    ///
    /// A limiter tells 1,023 distinct intervals between tokens apart. At those beyond, what was spent
    /// carries over as the time that it takes to refill, so that rates may add up.
    ///
    /// # Errors
    /// [`LimitError::OtherAlgorithm`] if the tier isn't one of GCRA.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(10), 100).clock(Manual::new()).build()?;
    /// assert!(limiter.key("tenant").allow_n(10));
    /// let gold = Tier::new(Algorithm::Gcra, Rate::per_second(10).burst(5))?;
    /// // Six of the ten have to be paid back before one fits a bucket of five: not an hour.
    /// let refused = limiter.key("tenant").at(&gold)?.check();
    /// assert_eq!(refused.wait(), Duration::from_millis(600));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn at(self, tier: &Tier) -> Result<Self, LimitError> {
        match tier.gcra() {
            Some(limit) => Ok(self.counted_by(limit)),
            None => Err(tier.not_for(Algorithm::Gcra)),
        }
    }

    /// The same key by this limit.
    #[inline]
    pub(crate) fn counted_by(self, limit: &Gcra) -> Self {
        Self {
            tier: Some(InForce::of(limit, self.limiter.table.intervals())),
            ..self
        }
    }

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
        let allowed = self.admit(cost);
        if cost > 0 {
            self.limiter.counters.count(allowed);
        }
        allowed
    }

    /// The same, but not counted.
    #[inline(always)]
    pub(super) fn admit(&self, cost: u64) -> bool {
        let limiter = self.limiter;
        limiter.admit(self.fingerprint, || self.pace(), cost)
    }

    /// What decides at the rate that is in force for the key.
    #[inline(always)]
    fn pace(&self) -> (Pace, Tag) {
        match self.tier {
            Some(InForce { pace, tag, .. }) => (pace, tag),
            None => self.limiter.pace.read_pace(),
        }
    }

    /// Decides one request, and says how much is left and when to come back.
    #[inline]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.check_at(self.limiter.clock.now(), cost)
    }

    /// Decides a request of this cost at a time on the limiter's clock, if it is known at one look what becomes of it. If not,
    /// nothing is charged or counted: ask by one of the other verbs then.
    ///
    /// This is for those who have little to say to a request that passes, and more to one that doesn't. Who reads the clock
    /// first, and then finds the key, waits for one while it does the other.
    ///
    /// ```
    /// use tollgate::{Clock, KeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(2), 100).clock(Manual::new()).build()?;
    /// let now = limiter.clock().now();
    /// let user = limiter.key("user");
    /// // A key that was never seen takes a closer look.
    /// assert!(user.check_at_a_glance(now, 1).is_none());
    /// assert!(user.check().is_allowed());
    /// let passed = user.check_at_a_glance(now, 1).expect("a key that was seen");
    /// assert!(passed.is_allowed() && passed.decision().remaining == 0);
    /// assert!(user.check_at_a_glance(now, 1).is_some_and(|refused| !refused.is_allowed()));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline(always)]
    pub fn check_at_a_glance(&self, now: Timestamp, cost: u64) -> Option<Glance<'a, C, T>> {
        let (limiter, rated) = (self.limiter, self.rated());
        let moment = limiter.table.since_anchor(now);
        if limiter.lines.is_marked(self.fingerprint) {
            return None;
        }
        rated.decide(limiter.table.place(self.fingerprint), moment, cost)
    }

    /// Decides a request of this cost at a time on the limiter's clock.
    #[inline]
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.rated().check_at(now, cost)
    }

    /// What is left, without charging anything.
    pub fn peek(&self) -> Decision {
        self.check_n(0)
    }

    /// What is left at a time on the limiter's clock.
    pub fn peek_at(&self, now: Timestamp) -> Decision {
        self.check_at(now, 0)
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// [`Refused::Never`] if the cost is above the burst, [`Refused::TooFarAhead`] if it would act
    /// further ahead than the limiter's longest wait, [`Refused::Blocked`] if the key is blocked,
    /// [`Refused::QueueFull`] if it is new and has no room.
    pub fn reserve(&self, cost: u64) -> Result<Reservation<Self>, Refused> {
        self.reserve_at(self.limiter.clock.now(), cost)
    }

    /// Takes `cost` tokens at a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, now: Timestamp, cost: u64) -> Result<Reservation<Self>, Refused> {
        let ticket = self.rated().reserve_in_turn(now, cost)?;
        Ok(Reservation::new(*self, ticket))
    }

    /// Waits for one token, first come first served. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire(self) -> Acquire<Self> {
        self.acquire_n(1)
    }

    /// Waits for `cost` tokens, first come first served.
    pub fn acquire_n(self, cost: u64) -> Acquire<Self> {
        Acquire::new(self, cost)
    }

    /// Gives the key `tokens` back: a gift, whatever it was charged for, and at most what it has spent. A
    /// block stays. [`peek`](Self::peek) tells what is left then.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(10), 100).clock(Manual::new()).build()?;
    /// let user = limiter.key("user");
    /// assert!(user.allow_n(8));
    /// user.refund(5);
    /// assert_eq!(user.peek().remaining, 7);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn refund(&self, tokens: u64) {
        self.rated().give(tokens);
    }

    /// Takes `tokens` from the key though no request asked for them, at most until it is empty, by the rate
    /// that it is at. A blocked key is left as it is.
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full.
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
    pub fn penalize(&self, tokens: u64) -> Result<(), NoSlot> {
        self.rated().take(tokens)
    }

    /// Forgets what the key has spent, and any block.
    pub fn reset(&self) {
        self.rated().forget();
    }

    /// Refuses the key everything for this long, whatever its rate. A block is never shortened, and
    /// no flood of other keys can push it out. What the key had spent before comes back meanwhile; if
    /// that takes longer than the block, the rest is owed after it, at most doubled, because a word
    /// has few bits for it.
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full, with the part that is kept for blocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let limiter = KeyedLimiter::new(Rate::per_second(1_000), 100);
    /// limiter.key("203.0.113.7").block_for(Duration::from_secs(3600))?;
    /// assert!(!limiter.allow("203.0.113.7"));
    /// # Ok::<(), tollgate::keyed::NoSlot>(())
    /// ```
    pub fn block_for(&self, duration: Duration) -> Result<(), NoSlot> {
        self.rated().block(duration)
    }

    /// Starts to bring the key's lines into the cache, for a check that is to come, and doesn't wait for
    /// them.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let limiter = KeyedLimiter::new(Rate::per_second(1), 1_000);
    /// let user = limiter.key("user:42");
    /// user.prefetch();
    /// // What else there is to do for this request.
    /// assert!(user.allow());
    /// ```
    #[inline]
    pub fn prefetch(&self) {
        self.limiter.table.place(self.fingerprint).prefetch();
    }

    /// The key at the rate that is in force for it now.
    #[inline(always)]
    pub(super) fn rated(&self) -> Rated<'a, C, T> {
        Rated {
            limiter: self.limiter,
            fingerprint: self.fingerprint,
            in_force: match self.tier {
                Some(tier) => tier,
                None => self.limiter.pace.read(),
            },
            is_own: self.tier.is_none(),
        }
    }
}

impl<C: Clock, T> Clone for Key<'_, C, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Clock, T> Copy for Key<'_, C, T> {}

impl<C: Clock, T> fmt::Debug for Key<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl<'k, C: Clock, T> Lends for Key<'k, C, T> {
    type Limit<'a>
        = Rated<'k, C, T>
    where
        Self: 'a;

    fn limit(&self) -> Rated<'k, C, T> {
        self.rated()
    }

    fn nap_until(&self, at: Timestamp) {
        self.limiter.clock.nap_until(at);
    }
}

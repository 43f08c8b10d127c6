//! One key of an exact-key limiter: the handle, with the verbs.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, LimitError, Timestamp, Unbooked};

use super::ExactKeyedLimiter;
use super::act::{Look, Purpose, Reserve};
use super::held::{Asks, Held};
use super::shard::Lookup;
use crate::acquire::Acquire;
use crate::cell::Ticket;
use crate::cell::locked::takes;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::line::meter::Meter;
use crate::line::places::Id;
use crate::line::single::Single;
use crate::line::waiting::Waiting;
use crate::line::{Post, State};
use crate::table::NoSlot;
use crate::{Refused, Reservation, Tier};

mod tickets;
mod waits;

/// One key of an [`ExactKeyedLimiter`], borrowed and hashed once, with the verbs of a
/// [`Limiter`](crate::Limiter). Made by [`ExactKeyedLimiter::key`]; [`at`](Self::at) puts it under another
/// limit.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{ExactKeyedLimiter, Rate, clock::Manual};
///
/// let limiter = ExactKeyedLimiter::builder(Rate::per_minute(5), 1_000)
///     .clock(Manual::new())
///     .build()?;
/// let user = limiter.key("user:42");
/// assert!(user.allow_n(3));
/// assert_eq!(user.check().remaining, 1);
/// assert_eq!(user.reserve(2)?.delay(), Duration::from_secs(12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Key<'a, K, Q: ?Sized, C: Clock = Monotonic> {
    pub(super) limiter: &'a ExactKeyedLimiter<K, C>,
    pub(super) key: &'a Q,
    pub(super) hash: u64,
    /// The tier that it was put at, if any.
    pub(super) tier: Option<&'a Tier>,
    /// Where what it waits for is put, if that is held.
    pub(super) held: Option<&'a Arc<Held>>,
}

impl<'a, K, Q, C> Key<'a, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
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
        let now = self.limiter.clock.now();
        if let Some(told) = self.told_to_wait(now, cost) {
            return told.is_allowed();
        }
        let ask = self.ask(now);
        let allowed = self.limiter.tables.allow(&ask, self.tier, cost);
        if cost > 0 {
            self.limiter.counters.count(allowed);
        }
        allowed
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

    /// Decides a request of this cost at a time on the limiter's clock.
    #[inline]
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        if let Some(told) = self.told_to_wait(now, cost) {
            return told;
        }
        let decision = self.limiter.tables.check(&self.ask(now), self.tier, cost);
        if cost > 0 {
            self.limiter.counters.count(decision.is_allowed());
        }
        decision
    }

    /// What is left, without charging anything.
    pub fn peek(&self) -> Decision {
        self.check_n(0)
    }

    /// What is left at a time on the limiter's clock.
    pub fn peek_at(&self, now: Timestamp) -> Decision {
        self.check_at(now, 0)
    }

    /// What a request is told that comes now, if others wait for the key already.
    #[inline(always)]
    pub(super) fn told_to_wait(&self, now: Timestamp, cost: u64) -> Option<Decision> {
        if self.limiter.lines.is_marked(self.hash) {
            self.told_behind(now, cost)
        } else {
            None
        }
    }

    #[cold]
    #[inline(never)]
    fn told_behind(&self, now: Timestamp, cost: u64) -> Option<Decision> {
        let told = self.behind(now, cost)?;
        if cost > 0 {
            self.limiter.counters.count(told.is_allowed());
        }
        Some(told)
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// [`Refused::Never`] if the cost is above the burst; [`Refused::TooFarAhead`] if it would act
    /// further ahead than the limiter's longest wait, or than the algorithm can book (a sliding log: one
    /// window); [`Refused::Blocked`] if the key is blocked; [`Refused::QueueFull`] if it is new and has no room.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = ExactKeyedLimiter::builder(Rate::per_second(10).burst(1), 100)
    ///     .algorithm(Algorithm::TokenBucket)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// assert!(limiter.allow("user"));
    /// let slot = limiter.key("user").reserve(1)?;
    /// assert_eq!(slot.delay(), Duration::from_millis(100));
    /// slot.cancel();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self, cost: u64) -> Result<Reservation<Self>, Refused> {
        self.reserve_at(self.limiter.clock.now(), cost)
    }

    /// Takes `cost` tokens at a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, now: Timestamp, cost: u64) -> Result<Reservation<Self>, Refused> {
        let ticket = self.reserve_in_turn(now, cost)?;
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

    /// Gives the key `tokens` back: a gift, whatever it was charged for, and at most what it has
    /// spent. A block stays. [`peek`](Self::peek) tells what is left then.
    ///
    /// A window uncounts them in the window that is open, a sliding log strikes out the newest hits,
    /// and a sliding counter takes them off its current window first.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = ExactKeyedLimiter::builder(Rate::per_hour(10), 100)
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
        let limiter = self.limiter;
        let now = limiter.clock.now();
        self.refund_in_turn(now, || limiter.tables.gift(&self.ask(now), tokens));
    }

    /// Takes `tokens` from the key though no request asked for them, at most until it is empty, by the rate
    /// that it is at. A blocked key is left as it is.
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let builder = ExactKeyedLimiter::builder(Rate::per_second(10), 1_000).clock(Manual::new());
    /// let limiter = builder.build()?;
    /// let small = Tier::new(Algorithm::Gcra, Rate::per_second(3))?;
    /// let acme = limiter.key("acme").at(&small)?;
    /// acme.penalize(100)?;
    /// assert_eq!(acme.peek().remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn penalize(&self, tokens: u64) -> Result<(), NoSlot> {
        let ask = self.ask(self.limiter.clock.now());
        let done = self.limiter.tables.penalize(&ask, self.tier, tokens);
        self.limiter.unless_full(done)
    }

    /// Forgets what the key has spent, and any block.
    pub fn reset(&self) {
        let limiter = self.limiter;
        let now = limiter.clock.now();
        self.reset_in_turn(now, || limiter.tables.reset(&self.ask(now)));
    }

    /// Refuses the key everything for this long, whatever its rate: checks, reservations and waits.
    /// A block is never shortened, and no flood of other keys can push it out. What the key had
    /// spent before runs on meanwhile.
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full, with the part that is kept for blocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{ExactKeyedLimiter, Rate};
    ///
    /// let limiter = ExactKeyedLimiter::new(Rate::per_second(1_000), 100);
    /// limiter.key("203.0.113.7").block_for(Duration::from_secs(3600))?;
    /// assert!(!limiter.allow("203.0.113.7"));
    /// # Ok::<(), tollgate::exact_keyed::NoSlot>(())
    /// ```
    pub fn block_for(&self, duration: Duration) -> Result<(), NoSlot> {
        let now = self.limiter.clock.now();
        let done = self.limiter.tables.block(&self.ask(now), duration);
        // Those who wait are refused too.
        self.improve(now, || ());
        self.limiter.unless_full(done)
    }
}

impl<'a, K, Q: ?Sized, C: Clock> Key<'a, K, Q, C> {
    /// The same key under another limit: a plan, or an override.
    ///
    /// Each call may come with another: what the key has spent stays spent, so in any window no more
    /// passes than the largest burst and the fastest rate of those that were asked in it, in whatever
    /// order. The key is counted by the rate that last let it pass, or a faster one that refused it:
    /// what it owes is paid back at that. A peek and any other refusal store nothing, a rate of zero or
    /// unlimited leaves what is owed where it is, and what was booked at another rate isn't given back.
    /// A block is independent of the rate. What a refund gives is counted by the rate that the key was
    /// counted by before.
    ///
    /// Windows of one length have one count; the largest limit bounds it. What was counted in a window
    /// of another length goes along into the one that is open, and is forgotten with it: so whoever
    /// changes the length to and fro may get the largest count in each of the shorter windows. Where one
    /// user has limits of several lengths, make the length a part of the key.
    ///
    /// # Errors
    /// [`LimitError::OtherAlgorithm`] if the tier was made for another algorithm than this limiter's. Where
    /// windows begin makes no other algorithm: a tier has its own alignment.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = ExactKeyedLimiter::builder(Rate::per_minute(10), 1_000)
    ///     .algorithm(Algorithm::SlidingLog)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// let gold = Tier::new(Algorithm::SlidingLog, Rate::per_minute(100))?;
    /// assert!(limiter.check_n("user:42", 10).is_allowed());
    /// assert_eq!(limiter.key("user:42").at(&gold)?.check().remaining, 89);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn at(self, tier: &'a Tier) -> Result<Self, LimitError> {
        self.limiter.tables.expect(tier)?;
        Ok(Self {
            tier: Some(tier),
            ..self
        })
    }

    /// What the table is asked for, to find the key.
    pub(super) fn ask(&self, now: Timestamp) -> Lookup<'a, Q> {
        Lookup {
            key: self.key,
            hash: self.hash,
            now,
            clock: now,
        }
    }

    /// The same at the time of a turn in the queue, which may have come long before the time that the clock shows.
    fn ask_in_turn(&self, now: Timestamp) -> Lookup<'a, Q> {
        Lookup {
            clock: now.max(self.limiter.clock.now()),
            ..self.ask(now)
        }
    }
}

impl<K, Q: ?Sized, C: Clock> Clone for Key<'_, K, Q, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, Q: ?Sized, C: Clock> Copy for Key<'_, K, Q, C> {}

impl<K, Q: ?Sized, C: Clock> fmt::Debug for Key<'_, K, Q, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl<'a, K, Q, C> Key<'a, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
    C: Clock,
{
    fn is_same(&self) -> impl Fn(&K) -> bool + use<'a, K, Q, C> {
        let key = self.key;
        move |known: &K| known.borrow() == key
    }
}

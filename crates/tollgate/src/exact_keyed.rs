//! `ExactKeyedLimiter`: a limit for each key by any algorithm, with the keys themselves stored.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use tollgate_core::{Decision, LimitError, Rate, Timestamp};

use crate::acquire::{Acquire, Waiting};
use crate::clock::{Clock, Monotonic};
use crate::keyed::counters::Counters;
use crate::keyed::hasher::KeyHasher;
use crate::line::of_keys::KeyLines;
use crate::{Refused, Reservation};

mod act;
mod builder;
mod entry;
pub(crate) mod heap;
pub(crate) mod index;
mod kept;
mod key;
mod level;
mod operator;
mod owned;
mod shard;
pub(crate) mod slab;
mod snapshot;
mod table;
mod tables;
mod tier;

pub use builder::Builder;
pub use key::Key;
pub use operator::ActiveKey;
pub use owned::OwnedKey;
pub use tier::Tier;

pub use crate::keyed::{NoSlot, Stats};
pub use crate::snapshot::SnapshotError;

use shard::Lookup;
use tables::Tables;

/// A limit for each key, by any [`Algorithm`](crate::Algorithm), in a table that stores the keys.
///
/// Choose it over [`KeyedLimiter`](crate::KeyedLimiter) where two keys may never share a limit, not
/// even with the tiny probability of equal fingerprints, where operators want to see the keys, or
/// where the limit is a window, a log or a bucket. It takes a lock a check, of one of up to 4,096
/// shards, and several times the memory, see [`memory_bound`](Self::memory_bound).
///
/// Keys are looked up by anything that they borrow as (`&str` for `String`), and only a key that is
/// new and was charged is cloned. A key whose state is idle is the same as one never seen: each new
/// key drops a few of those, the longest idle first, so there is no sweeper and no call scans the
/// table but [`len`](Self::len), [`for_each_active`](Self::for_each_active) and
/// [`snapshot`](Self::snapshot).
///
/// The capacity is the number of *active* keys (those with something spent) that are sure of a slot.
/// Beyond it [`AtCap`](crate::AtCap) says what happens to new keys. A table of more than 2,047 keys
/// has several shards, each with some room to spare, so it may hold up to 26 % more; another 64th is
/// kept for blocked keys. Keys that are there stay, blocked ones above all.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = ExactKeyedLimiter::builder(Rate::per_minute(2), 10_000)
///     .algorithm(Algorithm::SlidingLog)
///     .clock(clock.clone())
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// clock.advance(Duration::from_secs(20));
/// assert!(limiter.allow("user:42"));
/// assert_eq!(limiter.check("user:42").retry_after, Duration::from_secs(40));
/// assert!(limiter.allow("user:43"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct ExactKeyedLimiter<K, C: Clock = Monotonic> {
    tables: Tables<K>,
    hasher: KeyHasher,
    counters: Counters,
    capacity: usize,
    /// How far ahead a charge may act.
    longest_wait: Duration,
    lines: KeyLines<K, Option<Tier>>,
    waiting: Waiting,
    clock: C,
}

impl<K> ExactKeyedLimiter<K> {
    /// GCRA for each of at least `capacity` active keys, on the default clock.
    ///
    /// # Panics
    /// If GCRA can't represent the rate; [`builder`](Self::builder) returns the error instead.
    ///
    /// ```
    /// use tollgate::{ExactKeyedLimiter, Rate};
    ///
    /// let limiter = ExactKeyedLimiter::<(u32, String)>::new(Rate::per_minute(1), 1_000);
    /// let key = (7, String::from("/route"));
    /// assert!(limiter.allow(&key));
    /// assert!(!limiter.allow(&key));
    /// ```
    pub fn new(rate: Rate, capacity: usize) -> Self {
        match Self::builder(rate, capacity).build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// Chooses the algorithm, the policy at the cap, the clock, and the bounds on waiting.
    pub fn builder(rate: Rate, capacity: usize) -> Builder<K> {
        Builder::new(rate, capacity)
    }
}

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// Whether one request of this key passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).allow()
    }

    /// Decides one request of this key.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).check_n(1)
    }

    /// Decides a request of this key and cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).check_n(cost)
    }

    /// Decides a request at a time on the limiter's clock.
    pub fn check_at<Q>(&self, now: Timestamp, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).check_at(now, cost)
    }

    /// What this key has left, without charging anything.
    pub fn peek<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.check_n(key, 0)
    }

    /// Takes `cost` of this key's tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// [`Refused::Never`] if the cost is above the burst; [`Refused::TooFarAhead`] if it would act
    /// further ahead than the limiter's longest wait, or than the algorithm books (a sliding log one
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
    /// let slot = limiter.reserve("user", 1)?;
    /// assert_eq!(slot.delay(), Duration::from_millis(100));
    /// slot.cancel();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve<'a, Q>(
        &'a self,
        key: &'a Q,
        cost: u64,
    ) -> Result<Reservation<Key<'a, K, Q, C>>, Refused>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).reserve(cost)
    }

    /// Waits for one of this key's tokens, first come first served. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire<'a, Q>(&'a self, key: &'a Q) -> Acquire<Key<'a, K, Q, C>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).acquire_n(1)
    }

    /// Decides many requests at once, all at the time of the call, and locks a shard once for those of
    /// it in a row. The decisions replace what `decisions` held, in the same order.
    ///
    /// ```
    /// use tollgate::{ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let builder = ExactKeyedLimiter::<String>::builder(Rate::per_second(1), 1_000);
    /// let limiter = builder.clock(Manual::new()).build()?;
    /// let mut decisions = Vec::new();
    /// limiter.check_many(&[("a", 1), ("b", 1), ("a", 1)], &mut decisions);
    /// let allowed: Vec<_> = decisions.iter().map(|d| d.is_allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn check_many<Q>(&self, requests: &[(&Q, u64)], decisions: &mut Vec<Decision>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        decisions.clear();
        decisions.reserve(requests.len());
        let now = self.clock.now();
        if self.lines.is_any_marked() {
            // Each behind those who wait for its key.
            let each = |&(key, cost): &(&Q, u64)| self.key(key).check_at(now, cost);
            decisions.extend(requests.iter().map(each));
            return;
        }
        let asks = requests.iter().map(|&(key, cost)| {
            let hash = self.hasher.fingerprint(key);
            (
                Lookup {
                    key,
                    hash,
                    now,
                    clock: now,
                },
                cost,
            )
        });
        self.tables.check_many(asks, |decision, cost| {
            if cost > 0 {
                self.counters.count(decision.is_allowed());
            }
            decisions.push(decision);
        });
    }

    /// One key, to be asked more than once.
    #[inline]
    pub fn key<'a, Q>(&'a self, key: &'a Q) -> Key<'a, K, Q, C>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        Key {
            limiter: self,
            key,
            hash: self.hasher.fingerprint(key),
            tier: None,
        }
    }

    /// One key at a rate of its own: a plan, or an override.
    ///
    /// Each call may come with another: what the key has spent stays spent, so in any window no more
    /// passes than the largest burst and the fastest rate of those that were asked in it, in whatever
    /// order. The key is counted by the rate that last let it pass, or a faster one that refused it:
    /// what it owes is paid back at that. A look and any other refusal store nothing, a rate of zero or
    /// unlimited leaves what is owed where it is, and what was booked at another rate isn't given back.
    /// A block is independent of the rate. What [`refund`](Self::refund) and
    /// [`penalize`](Self::penalize) give and take is counted by the rate that the key is at.
    ///
    /// Windows of one length have one count; the largest limit bounds it. What was counted in a window
    /// of another length goes along into the one that is open, and is forgotten with it: so whoever
    /// changes the length to and fro may get the largest count in each of the shorter windows. Where one
    /// user has limits of several lengths, make the length a part of the key.
    ///
    /// # Panics
    /// If the tier was made for another algorithm than this limiter's.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = ExactKeyedLimiter::builder(Rate::per_minute(10), 1_000)
    ///     .algorithm(Algorithm::SlidingLog)
    ///     .clock(Manual::new())
    ///     .build()?;
    /// let gold = limiter.tier(Rate::per_minute(100))?;
    /// assert!(limiter.check_n("user:42", 10).is_allowed());
    /// assert_eq!(limiter.key_at_rate("user:42", &gold).check_n(1).remaining, 89);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn key_at_rate<'a, Q>(&'a self, key: &'a Q, tier: &'a Tier) -> Key<'a, K, Q, C>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.tables.expect(tier);
        Key {
            tier: Some(tier),
            ..self.key(key)
        }
    }

    /// A rate compiled for this limiter's algorithm, for [`key_at_rate`](Self::key_at_rate). Make it
    /// once and keep it.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn tier(&self, rate: Rate) -> Result<Tier, LimitError> {
        Tier::new(self.tables.algorithm(), rate)
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.tables.rate()
    }

    /// Changes the rate and keeps what every key has spent.
    ///
    /// Keys follow as they are used, as of the time of the change, so this takes no longer for a
    /// million keys than for one; only each sixteenth change in quick succession waits for them all.
    /// Keys at a tier stay at it.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate; then nothing changes.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = ExactKeyedLimiter::builder(Rate::per_hour(10), 100)
    ///     .algorithm(Algorithm::FixedWindow(Default::default()))
    ///     .clock(Manual::new())
    ///     .build()?;
    /// limiter.check_n("user", 4);
    /// limiter.set_rate(Rate::per_hour(100))?;
    /// assert_eq!(limiter.peek("user").remaining, 96);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn set_rate(&self, rate: Rate) -> Result<(), LimitError>
    where
        K: Eq + Clone,
    {
        self.set_rate_at(self.clock.now(), rate)
    }

    /// Changes the rate as of a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`set_rate`](Self::set_rate).
    pub fn set_rate_at(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError>
    where
        K: Eq + Clone,
    {
        fn at<'a, K, C: Clock>(
            limiter: &'a ExactKeyedLimiter<K, C>,
            (key, hash): (&'a K, u64),
        ) -> Key<'a, K, K, C> {
            Key {
                limiter,
                key,
                hash,
                tier: None,
            }
        }
        // Those who are due by now pass as before, and the others by what it is then.
        self.lines
            .visit_all(|hash, own: &K, state| state.waits.advance(&at(self, (own, hash)), now));
        self.tables.set_rate(now, rate)?;
        self.lines
            .visit_all(|hash, own: &K, state| state.waits.changed(&at(self, (own, hash)), now));
        Ok(())
    }

    /// How many are waiting now, on all keys.
    pub fn waiters(&self) -> usize {
        self.waiting.current()
    }

    /// The clock it reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

impl<K, C: Clock> fmt::Debug for ExactKeyedLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactKeyedLimiter")
            .field("rate", &self.rate())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

//! `StoredKeyLimiter`: a limit for each key by any algorithm, in a table that stores the keys.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use tollgate_core::{Decision, LimitError, Rate, Timestamp};

use crate::Algorithm;
use crate::clock::{Clock, Monotonic};
use crate::key_table::hasher::KeyHasher;
use crate::striped_counters::Counters;
use crate::wait_queue::key_queues::KeyQueues;
use crate::wait_queue::waiter_count::WaiterCount;

mod algorithm_table;
mod builder;
mod key;
mod key_entry;
mod shard;
mod snapshot;
mod state_request;
mod table;
mod table_algorithm;

pub use builder::{Builder, StoredKeySettings};
pub use key::{Key, OwnedKey, OwnedStoredKey, StoredKey};

pub use crate::key_table::{ActiveKey, Stats, TableFull, TableSettings};
pub use crate::snapshot::SnapshotError;
pub use snapshot::DecodedKey;

pub(crate) use key::{StoredKeyRef, WaitHold};

use algorithm_table::{AlgorithmTable, each};
use key::WaitTerms;

/// A limit for each key, by any [`Algorithm`], in a table that stores the keys.
///
/// Choose it over [`KeyedLimiter`](crate::KeyedLimiter) if two keys must never share a limit, not even with the tiny
/// probability of equal fingerprints; if operators want to see the keys; or if the limit is a window, a log or a
/// bucket. A check takes the lock of one of up to 4,096 shards, and a key takes several times the memory, see
/// [`memory_bound`](Self::memory_bound).
///
/// Keys are looked up by any borrowed form (`&str` for `String`). Only a key that is new and was charged is cloned. A
/// key whose state is idle is equivalent to one never seen. Each new key drops a few idle keys, the longest idle first,
/// so there is no sweeper, and no call scans the table but [`len`](Self::len),
/// [`for_each_active`](Self::for_each_active) and [`snapshot`](Self::snapshot).
///
/// The capacity is the number of *active* keys (keys that have spent tokens) that are guaranteed a slot. Beyond it,
/// [`WhenFull`](crate::WhenFull) selects what happens to new keys. A table of more than 2,047 keys has several shards,
/// each with some spare slots, so it may hold up to 26 % more. Another 64th is reserved for blocked keys. The keys in
/// the table stay, blocked keys above all.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, StoredKeyLimiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = StoredKeyLimiter::builder(Rate::per_minute(2), 10_000)
///     .algorithm(Algorithm::SlidingLog)
///     .clock(clock.clone())
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// clock.advance(Duration::from_secs(20));
/// assert!(limiter.allow("user:42"));
/// assert_eq!(limiter.check("user:42").wait_or_max(), Duration::from_secs(40));
/// assert!(limiter.allow("user:43"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct StoredKeyLimiter<K, C: Clock = Monotonic> {
    tables: AlgorithmTable<K>,
    algorithm: Algorithm,
    hasher: KeyHasher,
    counters: Counters,
    capacity: usize,
    /// How far ahead a charge may act.
    longest_wait: Duration,
    lines: KeyQueues<K, WaitTerms>,
    waiting: WaiterCount,
    clock: C,
}

impl<K> StoredKeyLimiter<K> {
    /// GCRA for each of at least `capacity` active keys, on the default clock.
    ///
    /// # Panics
    /// If GCRA can't represent the rate; [`builder`](Self::builder) returns the error instead.
    ///
    /// ```
    /// use tollgate::{StoredKeyLimiter, Rate};
    ///
    /// let limiter = StoredKeyLimiter::<(u32, String)>::new(Rate::per_minute(1), 1_000);
    /// let key = (7, String::from("/route"));
    /// assert!(limiter.allow(&key));
    /// assert!(!limiter.allow(&key));
    /// ```
    pub fn new(rate: Rate, capacity: usize) -> Self {
        let built = Self::builder(rate, capacity).build();
        built.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sets the algorithm, the policy for a full table, the clock, and the bounds on waiting.
    pub fn builder(rate: Rate, capacity: usize) -> Builder<K> {
        Builder::new(rate, capacity)
    }
}

impl<K, C: Clock> StoredKeyLimiter<K, C> {
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
        self.key(key).check()
    }

    /// Decides a request of this key with this cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).check_n(cost)
    }

    /// Decides many requests in one call, all at the time of the call. It locks a shard once for consecutive requests
    /// of the shard. The decisions replace the contents of `decisions`, in the same order.
    ///
    /// ```
    /// use tollgate::{StoredKeyLimiter, Rate, clock::Manual};
    ///
    /// let builder = StoredKeyLimiter::<String>::builder(Rate::per_second(1), 1_000);
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
            // Each is decided behind the waiters of its key.
            let each = |&(key, cost): &(&Q, u64)| self.key(key).check_at(now, cost);
            decisions.extend(requests.iter().map(each));
            return;
        }
        let asks = requests.iter();
        let asks = asks.map(|&(key, cost)| (self.key(key).0.lookup(now), cost));
        let count = |decision: Decision, cost| {
            if cost > 0 {
                self.counters.count(decision.is_allowed());
            }
            decisions.push(decision);
        };
        each!(&self.tables, table => table.check_many(asks, count));
    }

    /// The algorithm of the limiter.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.tables.rate()
    }

    /// Changes the rate. Spent tokens stay spent.
    ///
    /// Each key follows when it is next used, as of the time of the change, so this takes no longer for a million keys
    /// than for one. Only the sixteenth change in quick succession converts all keys first. Keys at a tier stay at it.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate. Nothing changes then.
    ///
    /// ```
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, clock::Manual};
    ///
    /// let limiter = StoredKeyLimiter::builder(Rate::per_hour(10), 100)
    ///     .algorithm(Algorithm::FixedWindow(Default::default()))
    ///     .clock(Manual::new())
    ///     .build()?;
    /// limiter.check_n("user", 4);
    /// limiter.set_rate(Rate::per_hour(100))?;
    /// assert_eq!(limiter.key("user").peek().remaining, 96);
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
        // Checked before any booking is cancelled, so that an error changes nothing.
        self.algorithm().check_rate(rate)?;
        // Waiters that are due by now pass at the old rate, the others are decided again at the new one.
        self.lines.visit_all(|hash, own: &K, state| {
            state.waits.advance(&self.stored(own, hash), now);
            state
                .waits
                .cancel_all_bookings(&self.stored(own, hash), now);
        });
        self.tables.set_rate(now, rate)?;
        self.lines.visit_all(|hash, own: &K, state| {
            state.waits.recheck_all(&self.stored(own, hash), now)
        });
        Ok(())
    }

    /// The number of requests that wait now, on all keys.
    pub fn waiters(&self) -> usize {
        self.waiting.current()
    }

    /// The clock that the limiter reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

/// Methods for operators, over the whole table.
impl<K, C: Clock> StoredKeyLimiter<K, C> {
    /// The number of active keys. It scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        self.tables.count(self.clock.now())
    }

    /// Whether no key is active now. It scans as [`len`](Self::len) does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every key that is active now. It scans the whole table, a shard at a time. The keys of a shard wait while
    /// they are cloned, but not while they are visited: `each` may take its time, and may call this limiter.
    ///
    /// ```
    /// use tollgate::{StoredKeyLimiter, Rate};
    ///
    /// let limiter = StoredKeyLimiter::new(Rate::per_hour(5), 1_000);
    /// limiter.check_n("busy", 5);
    /// limiter.check_n("looked at", 0);
    /// let mut active = Vec::new();
    /// limiter.for_each_active(|seen| active.push(seen.key.clone()));
    /// assert_eq!(active, ["busy"]);
    /// ```
    pub fn for_each_active(&self, each: impl FnMut(ActiveKey<&K>))
    where
        K: Clone,
    {
        self.tables.for_each(self.clock.now(), each);
    }

    /// How many active keys are guaranteed a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most bytes that the table ever uses, at the rate in force, without the memory that keys own (the text of a
    /// `String`). For GCRA that is about 90 bytes a key and the key's own size. The table grows only as keys come, and
    /// a full table uses about 70 bytes a key, because the bound has room for every key to be blocked and for shards
    /// that get more keys than others.
    ///
    /// A sliding log also has up to its count of hits a key, 16 bytes each, and as many again where a window is booked
    /// ahead. Keys at a tier have that tier's count of them. While a shard grows, one of its arrays exists twice for a
    /// moment.
    ///
    /// ```
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate};
    ///
    /// let builder = StoredKeyLimiter::<u64>::builder(Rate::per_second(10), 1_000_000);
    /// let limiter = builder.algorithm(Algorithm::SlidingCounter).build()?;
    /// assert!(limiter.memory_bound() < 140 << 20);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn memory_bound(&self) -> usize {
        each!(&self.tables, table => table.memory_bound())
    }

    /// The counters so far. Keys never move, so `moved` and `stashed` stay 0.
    pub fn stats(&self) -> Stats {
        let (allowed, denied) = self.counters.sums();
        let mut stats = each!(&self.tables, table => table.stats());
        (stats.allowed, stats.denied) = (allowed, denied);
        stats
    }

    fn table_full_unless(&self, done: bool) -> Result<(), TableFull> {
        done.then_some(()).ok_or(TableFull::new(self.capacity))
    }
}

impl<K, C: Clock> fmt::Debug for StoredKeyLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactKeyedLimiter")
            .field("rate", &self.rate())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

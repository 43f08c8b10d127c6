//! What an operator does to single keys, and sees of the whole table.

use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

use super::ExactKeyedLimiter;
use crate::clock::Clock;
use crate::home::sealed::Home;
use crate::keyed::{self, NoSlot};

/// A key that has something spent or is blocked; seen by [`ExactKeyedLimiter::for_each_active`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveKey<'a, K> {
    /// The key itself.
    pub key: &'a K,
    /// How long until it is as one never seen.
    pub idle_after: Duration,
    /// Whether it is blocked now.
    pub blocked: bool,
}

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// Forgets what the key has spent, and any block.
    pub fn reset<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = self.key(key);
        self.tables.reset(&key.ask(self.clock.now()));
        self.lines.wake(key.hash);
    }

    /// Gives the key `tokens` back: a gift, whatever it was charged for, and at most what it has
    /// spent. A block stays.
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
    /// limiter.check_n("user", 8);
    /// limiter.refund("user", 5);
    /// assert_eq!(limiter.peek("user").remaining, 7);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn refund<Q>(&self, key: &Q, tokens: u64)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = self.key(key);
        self.tables.gift(&key.ask(self.clock.now()), tokens);
        self.lines.wake(key.hash);
    }

    /// Takes `tokens` from the key though no request asked for them, at most until it is empty. A
    /// blocked key is left as it is.
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full.
    pub fn penalize<Q>(&self, key: &Q, tokens: u64) -> Result<(), NoSlot>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).penalize(tokens)
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
    /// limiter.block_for("203.0.113.7", Duration::from_secs(3600))?;
    /// assert!(!limiter.allow("203.0.113.7"));
    /// # Ok::<(), tollgate::keyed::NoSlot>(())
    /// ```
    pub fn block_for<Q>(&self, key: &Q, duration: Duration) -> Result<(), NoSlot>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (key, now) = (self.key(key), self.clock.now());
        let done = self.tables.block(&key.ask(now), duration);
        // Those who wait are refused too.
        key.improve(now, || ());
        self.unless_full(done)
    }

    /// How many keys are active now. Scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        let mut count = 0;
        self.for_each_active(|_| count += 1);
        count
    }

    /// Whether no key is active now. Scans as [`len`](Self::len) does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every key that is active now. Scans the whole table, a shard at a time, and holds the
    /// keys of that shard up meanwhile: `each` must not call this limiter.
    ///
    /// ```
    /// use tollgate::{ExactKeyedLimiter, Rate};
    ///
    /// let limiter = ExactKeyedLimiter::new(Rate::per_hour(5), 1_000);
    /// limiter.check_n("busy", 5);
    /// limiter.check_n("looked at", 0);
    /// let mut active = Vec::new();
    /// limiter.for_each_active(|seen| active.push(seen.key.clone()));
    /// assert_eq!(active, ["busy"]);
    /// ```
    pub fn for_each_active(&self, mut each: impl FnMut(ActiveKey<'_, K>)) {
        self.tables
            .for_each(self.clock.now(), |key, idle_after, blocked| {
                each(ActiveKey {
                    key,
                    idle_after,
                    blocked,
                });
            });
    }

    /// How many active keys are sure of a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most bytes that the table ever uses, at the rate in force and without what keys own
    /// themselves (the text of a `String`). For GCRA that is about 90 bytes a key and the key's own
    /// size; it gets there only as keys come, and a full table uses some 70, because the bound has
    /// room for every key to be blocked and for shards that get more keys than others.
    ///
    /// A sliding log also has up to its count of hits a key, 16 bytes each, and as many again where a
    /// window is booked ahead; keys at a tier have that tier's count of them. While a shard grows, one
    /// of its arrays is there twice for a moment.
    ///
    /// ```
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate};
    ///
    /// let builder = ExactKeyedLimiter::<u64>::builder(Rate::per_second(10), 1_000_000);
    /// let limiter = builder.algorithm(Algorithm::SlidingCounter).build()?;
    /// assert!(limiter.memory_bound() < 140 << 20);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn memory_bound(&self) -> usize {
        self.tables.memory_bound()
    }

    /// What was counted so far. Keys never move, so `moved` and `stashed` stay 0.
    pub fn stats(&self) -> keyed::Stats {
        let (allowed, denied) = self.counters.sums();
        let (work, overflowed) = self.tables.work();
        keyed::Stats {
            allowed,
            denied,
            overflowed,
            evicted: work.evicted,
            expired: work.expired,
            reset: work.reset,
            examined: work.examined,
            slots: work.slots,
            ..keyed::Stats::default()
        }
    }

    pub(super) fn unless_full(&self, done: bool) -> Result<(), NoSlot> {
        if done {
            Ok(())
        } else {
            Err(NoSlot::new(self.capacity))
        }
    }
}

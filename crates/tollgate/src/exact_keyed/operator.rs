//! What an operator does to single keys, and sees of the whole table.

use std::time::Duration;

use super::ExactKeyedLimiter;
use super::tables::{Tables, each};
use crate::clock::Clock;
use crate::table::{NoSlot, Stats};

/// A key that has something spent or is blocked; seen by [`ExactKeyedLimiter::for_each_active`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveKey<'a, K> {
    /// The key itself.
    pub key: &'a K,
    /// How long until it is like a key that was never seen.
    pub idle_after: Duration,
    /// Whether it is blocked now.
    pub blocked: bool,
}

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// How many keys are active now. Scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        self.tables.count(self.clock.now())
    }

    /// Whether no key is active now. Scans as [`len`](Self::len) does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every key that is active now. Scans the whole table, a shard at a time, and holds the
    /// keys of that shard up while they are cloned, but not while they are visited: `each` may take
    /// its time, and call this limiter.
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
    pub fn for_each_active(&self, mut each: impl FnMut(ActiveKey<'_, K>))
    where
        K: Clone,
    {
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
        each!(&self.tables, table => table.memory_bound())
    }

    /// What was counted so far. Keys never move, so `moved` and `stashed` stay 0.
    pub fn stats(&self) -> Stats {
        let (allowed, denied) = self.counters.sums();
        let (work, overflowed) = each!(&self.tables, table => table.work());
        Stats {
            allowed,
            denied,
            overflowed,
            evicted: work.evicted,
            expired: work.expired,
            reset: work.reset,
            examined: work.examined,
            slots: work.slots,
            ..Stats::default()
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

//! What an operator does to single keys, and sees of the whole table.

use std::hash::Hash;
use std::time::Duration;

use tollgate_core::{Timestamp, units};

use super::KeyedLimiter;
use crate::clock::Clock;
use crate::sync::Ordering;
use crate::table::Stats;
use crate::table::hasher::KEY_BITS;

/// A key that has something spent or is blocked. The table knows it only by its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveKey {
    /// The key's hash, see [`KeyedLimiter::fingerprint`].
    pub fingerprint: u64,
    /// How long until it is like a key that was never seen.
    pub idle_after: Duration,
    /// Whether it is blocked now.
    pub blocked: bool,
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// How many keys are active now. Scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        let now = self.table.since_anchor(self.clock.now());
        let mut count = 0;
        for shard in self.table.shards() {
            shard.for_each_active(self.table.anchor(), now, |_, _, _| count += 1);
        }
        count
    }

    /// Whether no key is active now. Scans as [`len`](Self::len) does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every key that is active now. Scans the whole table, a shard at a time, and holds
    /// new keys of that shard up while it is copied, but not while they are visited: `each` may take
    /// its time, and call this limiter.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(5), 1_000).clock(Manual::new()).build()?;
    /// limiter.check_n("busy", 5);
    /// limiter.key("looked at").peek();
    /// let mut active = Vec::new();
    /// limiter.for_each_active(|seen| active.push(seen.fingerprint));
    /// assert_eq!(active, [limiter.fingerprint("busy")]);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn for_each_active(&self, mut each: impl FnMut(ActiveKey)) {
        let now = self.table.since_anchor(self.clock.now());
        let mut active = Vec::new();
        for shard in self.table.shards() {
            shard.for_each_active(self.table.anchor(), now, |fingerprint, word, now| {
                active.push((fingerprint, word, now));
            });
            for (fingerprint, word, now) in active.drain(..) {
                let idle = Timestamp::from_nanos(units::to_nanos(word.idle_at()));
                each(ActiveKey {
                    fingerprint: fingerprint & KEY_BITS,
                    idle_after: idle - now,
                    blocked: word.is_blocked_at(units::of(now)),
                });
            }
        }
    }

    /// What tells this key from others, at whatever rate: 54 bits of its hash.
    pub fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.fingerprint(key) & KEY_BITS
    }

    /// How many active keys are sure of a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most bytes the table ever uses, rounded up to whole pages by the system: about 25 a key of
    /// the capacity, with what is spare and a stash of a 50th, and 16 kB for the rates. Below 32,768
    /// keys, where there is one shard, it is 136 a key, 4.5 MB at most, so that threads seldom write
    /// to the same cache line. Memory is reserved at once, but used only as keys come.
    pub fn memory_bound(&self) -> usize {
        self.table.reserved_bytes()
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        let (allowed, denied) = self.counters.sums();
        let mut stats = Stats {
            allowed,
            denied,
            overflowed: self.overflowed.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for shard in self.table.shards() {
            let work = shard.work();
            stats.evicted += work.evicted;
            stats.expired += work.expired;
            stats.reset += work.reset;
            stats.examined += work.examined;
            stats.moved += work.moved;
            stats.stashed += work.stashed;
            stats.slots += work.lines * 4;
        }
        stats
    }
}

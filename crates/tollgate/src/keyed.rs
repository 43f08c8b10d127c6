//! `KeyedLimiter`: a limit for each of millions of keys, in bounded memory.

use std::fmt;
use std::hash::Hash;

use tollgate_core::{Decision, GcraParams, LimitError, Outcome, Rate, Timestamp, units};

use crate::clock::{Clock, Monotonic};
use crate::key_handle::sealed::KeyOperations as _;
use crate::key_table::hasher::{KEY_BITS, KeyHasher};
use crate::queued_limit::sealed::QueuedLimit;
use crate::striped_counters::Counters;
use crate::sync::{AtomicU64, Backoff, Ordering};
use crate::wait_queue::key_queues::KeyQueues;
use crate::wait_queue::waiter_count::WaiterCount;
use crate::{Algorithm, Tier, WhenFull};

mod anchor;
mod builder;
mod check_all;
mod key;
mod key_at_rate;
mod memory;
mod rate_cell;
mod shard;
mod slot;
mod snapshot;
mod stash;
mod table;

pub use builder::{Builder, FingerprintSettings};
pub use check_all::CombinedDecision;
pub use key::{FingerprintKey, Key, OwnedKey};
pub use key_at_rate::FastCheck;
pub(crate) use key_at_rate::KeyRate;
pub use rate_cell::{SingleRate, TierByKey, TierOf};

pub use crate::key_table::{ActiveKey, Stats, TableFull, TableSettings};
pub use crate::snapshot::SnapshotError;

use anchor::TableTime;
use key_at_rate::KeyAtRate;
use rate_cell::{RateCell, RateInForce};
use slot::{ChargeRequest, KeyWord, WordDecision};
use table::Table;

/// A limit for each key: users, addresses, API keys, any `Hash` value by reference.
///
/// The state of a key is 16 bytes, a fingerprint and a TAT, and four keys share a cache line. So a check touches
/// one or two cache lines, takes no lock and allocates nothing. A key whose TAT lies in the past is equal to a key
/// never seen, so its slot can be reused at any moment: there is no sweeper, and forgetting such a key can't change a
/// decision.
///
/// The capacity is the number of *active* keys (keys that have spent tokens) that are guaranteed a slot. Beyond it,
/// [`WhenFull`] selects what happens to new keys. Memory never grows past [`memory_bound`](Self::memory_bound), and
/// the keys in the table stay, blocked keys above all.
///
/// # What a fingerprint means
/// A key is identified by a 64-bit hash with a random seed. Two of n active keys share a limit with probability
/// about n² / 2⁶⁵: 3 in 100 million for a million keys, 3 in a million for ten million. Keys at different rates
/// multiply that by the number of rates. The seed is drawn from the system for each limiter and enters every step of
/// the hash, so nobody can construct keys that share a limit. The hash is fast, not cryptographic.
///
/// ```
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
/// use tollgate::{KeyedLimiter, Rate, clock::Manual};
///
/// let limiter = KeyedLimiter::builder(Rate::per_second(2), 100_000)
///     .clock(Manual::new())
///     .build()?;
/// assert!(limiter.allow("user:42") && limiter.allow("user:42"));
/// let decision = limiter.check("user:42");
/// assert_eq!(decision.wait_or_max(), Duration::from_millis(500));
/// assert!(limiter.allow(&Ipv4Addr::LOCALHOST));
/// assert!(limiter.allow(&("tenant", "/route")));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct KeyedLimiter<C: Clock = Monotonic, T = SingleRate> {
    table: Table,
    pace: RateCell,
    hasher: KeyHasher,
    counters: Counters,
    at_cap: WhenFull,
    overflowed: AtomicU64,
    capacity: usize,
    /// How far ahead a charge may act, in units of the word.
    longest_wait: u64,
    lines: KeyQueues<(), Option<RateInForce>>,
    waiting: WaiterCount,
    clock: C,
    /// Returns the tier of a key.
    tier_of: T,
}

impl KeyedLimiter {
    /// A limit for each of at least `capacity` active keys, on the default clock.
    ///
    /// # Panics
    /// If GCRA can't represent the rate; [`builder`](Self::builder) returns the error instead.
    pub fn new(rate: Rate, capacity: usize) -> Self {
        let built = Self::builder(rate, capacity).build();
        built.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sets the policy for a full table, the clock, and the bounds on waiting.
    pub fn builder(rate: Rate, capacity: usize) -> Builder {
        Builder::new(rate, capacity)
    }
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Whether one request of this key passes now; it is charged if so.
    // Always inlined: the call and the registers that it saves would take a tenth of the time.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline(always)]
    pub fn allow<K: Hash + ?Sized>(&self, key: &K) -> bool
    where
        T: TierOf<K>,
    {
        let fingerprint = self.hasher.fingerprint(key);
        let allowed = self.admit(fingerprint, self.tier(key), 1);
        self.counters.count(allowed);
        allowed
    }

    /// Decides one request of this key.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Decision
    where
        T: TierOf<K>,
    {
        self.key(key).check()
    }

    /// Decides a request of this key with this cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision
    where
        T: TierOf<K>,
    {
        self.key(key).check_n(cost)
    }

    /// The tier of the key, from the `tier_of` function, if the limiter has one.
    #[inline(always)]
    fn tier<K: ?Sized>(&self, key: &K) -> Option<RateInForce>
    where
        T: TierOf<K>,
    {
        let tier = self.tier_of.tier_of(key).and_then(Tier::gcra);
        tier.map(|limit| RateInForce::of(limit, self.table.intervals()))
    }

    /// Decides many requests in one call. It hashes and prefetches sixteen requests at a time before it decides the
    /// first of them, so that the memory latencies overlap. The decisions replace the contents of `decisions`, in the
    /// same order.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let limiter = KeyedLimiter::new(Rate::per_second(1), 1_000);
    /// let mut decisions = Vec::new();
    /// limiter.check_many(&[("a", 1), ("b", 1), ("a", 1)], &mut decisions);
    /// let allowed: Vec<_> = decisions.iter().map(|d| d.is_allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// ```
    pub fn check_many<K: Hash>(&self, requests: &[(K, u64)], decisions: &mut Vec<Decision>)
    where
        T: TierOf<K>,
    {
        decisions.clear();
        decisions.reserve(requests.len());
        let time = self.clock.now();
        let now = self.table.table_time(time);
        let own = self.pace.read();
        for batch in requests.chunks(BATCH_SIZE) {
            let mut found = [(0, self.table.candidates(0)); BATCH_SIZE];
            for (found, (key, _)) in found.iter_mut().zip(batch) {
                let fingerprint = self.hasher.fingerprint(key);
                let place = self.table.candidates(fingerprint);
                place.prefetch();
                *found = (fingerprint, place);
            }
            let found = found.iter().zip(batch);
            decisions.extend(found.map(|(&(fingerprint, place), &(ref key, cost))| {
                let tier = self.tier(key);
                let key = self.rated(KeyRate {
                    fingerprint,
                    in_force: tier.unwrap_or(own),
                    is_limiter_rate: tier.is_none(),
                });
                match key.decision_if_queued(time, cost) {
                    Some(told) => told,
                    None => key.check_candidates(place, now, cost),
                }
            }));
        }
    }

    /// The limiter's own rate.
    pub fn rate(&self) -> Rate {
        self.pace.rate()
    }

    /// Changes the limiter's own rate. Spent tokens stay spent, as [`Key::at`] says.
    ///
    /// # Errors
    /// If GCRA can't represent the rate. Nothing changes then.
    pub fn set_rate(&self, rate: Rate) -> Result<(), LimitError> {
        // Checked before any booking is cancelled, so that an error changes nothing.
        Algorithm::Gcra.check_rate(rate)?;
        let now = self.clock.now();
        let key = |fingerprint| {
            self.rated(KeyRate {
                fingerprint,
                in_force: self.pace.read(),
                is_limiter_rate: true,
            })
        };
        // Waiters that are due by now pass at the old rate, the others are decided again at the new one.
        self.lines.visit_all(|fingerprint, (), state| {
            state.waits.advance(&key(fingerprint), now);
            state.waits.cancel_all_bookings(&key(fingerprint), now);
        });
        self.pace.set(rate, self.table.intervals())?;
        self.lines
            .visit_all(|fingerprint, (), state| state.waits.recheck_all(&key(fingerprint), now));
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

/// How many requests of a batch are prefetched together.
const BATCH_SIZE: usize = 16;

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Whether a request passes now. Few instructions and values kept in registers matter here: they let the processor
    /// start on the next key's cache lines while it waits for this key's.
    #[inline(always)]
    fn admit(&self, key: u64, tier: Option<RateInForce>, cost: u64) -> bool {
        // The cache lines of a key don't depend on the rate, so the rate and the clock are read while the lines are
        // being fetched.
        let place = self.table.candidates(key);
        let (pace, tag) = match tier {
            Some(RateInForce { pace, tag, .. }) => (pace, tag),
            None => self.pace.read_pace(),
        };
        if self.lines.is_marked(key)
            && let Some(passes) = self.passes_in_order(key, pace, cost)
        {
            return passes;
        }
        let fingerprint = tag.tagged(key);
        let slot = place.select(fingerprint);
        let now = self.table.table_time(self.clock.now());
        let ask = ChargeRequest {
            fingerprint,
            tag,
            pace,
            time: now,
            anchor: self.table.anchor(),
            cost,
            patience: 0,
        };
        match place.shard.try_pass(slot, &ask) {
            Some((allowed, _)) => allowed,
            None => self.admit_slowly(key, pace, now, cost),
        }
    }

    /// As [`admit`](Self::admit), for a key that is new, moved, or charged by another thread.
    #[cold]
    #[inline(never)]
    fn admit_slowly(&self, fingerprint: u64, pace: GcraParams, now: TableTime, cost: u64) -> bool {
        let key = self.key_at_params(fingerprint, pace);
        key.charge(now, cost).outcome == Outcome::Allowed
    }

    /// Whether a request passes, if requests wait for the key.
    #[cold]
    #[inline(never)]
    fn passes_in_order(&self, fingerprint: u64, pace: GcraParams, cost: u64) -> Option<bool> {
        let told = self.key_at_params(fingerprint, pace);
        let told = told.decision_behind_waiters(self.clock.now(), cost)?;
        Some(told.is_allowed())
    }

    /// A key for deciding alone; its tier isn't reported.
    fn key_at_params(&self, fingerprint: u64, pace: GcraParams) -> KeyAtRate<'_, C, T> {
        let in_force = RateInForce {
            pace,
            burst: 0,
            tag: self.table.intervals().tag(pace.interval),
        };
        self.rated(KeyRate {
            fingerprint,
            in_force,
            is_limiter_rate: false,
        })
    }

    #[inline]
    pub(crate) fn rated(&self, key: KeyRate) -> KeyAtRate<'_, C, T> {
        KeyAtRate { limiter: self, key }
    }

    /// Applies the policy for a full table to a new key.
    #[cold]
    #[inline(never)]
    fn charge_when_full(&self, ask: &ChargeRequest<'_>) -> WordDecision {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let fresh = KeyWord::NEW.evaluate(ask.pace, ask.now(), ask.cost);
        match self.at_cap {
            WhenFull::AdmitNew => WordDecision {
                after: KeyWord::NEW,
                is_charged: fresh.outcome == Outcome::Allowed,
                ..fresh
            },
            WhenFull::SharedBucket => self.charge_shared(ask),
            // An evicting table is full, too, if all candidate slots of the key belong to blocked keys.
            WhenFull::DenyNew | WhenFull::EvictNearestIdle => WordDecision {
                outcome: Outcome::Denied,
                wait: ask.pace.interval,
                ..fresh
            },
        }
    }

    /// Charges the bucket that all keys without a slot share at this rate.
    fn charge_shared(&self, ask: &ChargeRequest<'_>) -> WordDecision {
        let mut ask = *ask;
        let shared = self.table.intervals().shared(ask.tag);
        let mut backoff = Backoff::default();
        loop {
            let word = shared.load(Ordering::Acquire);
            if !ask.is_timely() {
                ask = ask.rebased();
                continue;
            }
            let judged = KeyWord(word).evaluate(ask.pace, ask.now(), ask.cost);
            let taken = slot::is_passed(&judged, &ask);
            // Relaxed is enough, as in a limiter of one key: the word publishes nothing else. Only its order with
            // the anchor matters, which the Acquire load above gives.
            if !taken
                || shared
                    .compare_exchange(word, judged.after.0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                return WordDecision {
                    is_charged: taken,
                    ..judged
                };
            }
            backoff.back_off();
        }
    }
}

/// Methods for operators, over the whole table.
impl<C: Clock, T> KeyedLimiter<C, T> {
    /// The number of active keys. It scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        let now = self.table.table_time(self.clock.now());
        let mut count = 0;
        for shard in self.table.shards() {
            shard.for_each_active(self.table.anchor(), now, |_, _, _| count += 1);
        }
        count
    }

    /// Whether no key is active now. It scans as [`len`](Self::len) does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every key that is active now. It scans the whole table, a shard at a time. New keys of a shard wait while
    /// the shard is copied, but not while its keys are visited: `each` may take its time, and may call this limiter.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(5), 1_000).clock(Manual::new()).build()?;
    /// limiter.check_n("busy", 5);
    /// limiter.key("looked at").peek();
    /// let mut active = Vec::new();
    /// limiter.for_each_active(|seen| active.push(seen.key));
    /// assert_eq!(active, [limiter.fingerprint("busy")]);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn for_each_active(&self, mut each: impl FnMut(ActiveKey<u64>)) {
        let now = self.table.table_time(self.clock.now());
        let mut active = Vec::new();
        for shard in self.table.shards() {
            shard.for_each_active(self.table.anchor(), now, |fingerprint, word, now| {
                active.push((fingerprint, word, now));
            });
            for (fingerprint, word, now) in active.drain(..) {
                let idle = Timestamp::from_nanos(units::to_nanos(word.idle_at()));
                each(ActiveKey {
                    key: fingerprint & KEY_BITS,
                    idle_after: idle - now,
                    blocked: word.is_blocked_at(units::from_time(now)),
                });
            }
        }
    }

    /// Identifies this key, at any rate: 54 bits of its hash.
    pub fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.fingerprint(key) & KEY_BITS
    }

    /// How many active keys are guaranteed a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most bytes that the table ever uses; the system rounds it up to whole pages. It is about 25 bytes a key of
    /// the capacity, spare slots and a stash of a 50th included, and 16 kB for the rates. Below 32,768 keys the table
    /// has one shard and takes 136 bytes a key, 4.5 MB at most, so that threads seldom write to the same cache line.
    /// The address space is reserved immediately, but memory is used only as keys come.
    pub fn memory_bound(&self) -> usize {
        self.table.reserved_bytes()
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        let (allowed, denied) = self.counters.sums();
        let mut stats = Stats {
            allowed,
            denied,
            overflowed: self.overflowed.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for shard in self.table.shards() {
            stats += shard.stats();
        }
        stats
    }
}

impl<C: Clock, T> fmt::Debug for KeyedLimiter<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter")
            .field("rate", &self.rate())
            .field("capacity", &self.capacity)
            .field("at_cap", &self.at_cap)
            .finish_non_exhaustive()
    }
}

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
/// Each key's state is 16 bytes, a fingerprint and a TAT, four to a cache line, so a check touches
/// one or two lines, takes no lock and allocates nothing. A key whose TAT lies in the past is the
/// same as one never seen, so its slot is reused at any moment: there is no sweeper, and what is
/// forgotten can't change a decision.
///
/// The capacity is the number of *active* keys (those with something spent) that are sure of a slot.
/// Beyond it [`WhenFull`] says what happens to new keys; memory never grows past
/// [`memory_bound`](Self::memory_bound), and keys that are there, blocked ones above all, stay.
///
/// # What a fingerprint means
/// Keys are told apart by a 64-bit hash with a random seed. Two of n keys that are active at once
/// share a limit with probability about n² / 2⁶⁵: 3 in 100 million for a million keys, 3 in a
/// million for ten million, and times as much as it is asked with different rates. The seed is drawn from the system for each limiter and enters every step of
/// the hash, so keys that share a limit can't be made up in advance; the hash is fast, not
/// cryptographic.
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
    /// How far ahead a charge may act, in word units.
    longest_wait: u64,
    lines: KeyQueues<(), Option<RateInForce>>,
    waiting: WaiterCount,
    clock: C,
    /// Which tiers keys are in.
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

    /// Chooses the policy at the cap, the clock, and the bounds on waiting.
    pub fn builder(rate: Rate, capacity: usize) -> Builder {
        Builder::new(rate, capacity)
    }
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Whether one request of this key passes now; it is charged if so.
    // Always inlined: a call and the registers it saves are a tenth of the whole.
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

    /// Decides a request of this key and cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision
    where
        T: TierOf<K>,
    {
        self.key(key).check_n(cost)
    }

    /// The tier that the function of the key says, if there is one.
    #[inline(always)]
    fn tier<K: ?Sized>(&self, key: &K) -> Option<RateInForce>
    where
        T: TierOf<K>,
    {
        let tier = self.tier_of.tier_of(key).and_then(Tier::gcra);
        tier.map(|limit| RateInForce::of(limit, self.table.intervals()))
    }

    /// Decides many requests at once: hashes and fetches the lines of sixteen at a time before the first
    /// of them is decided, so that the waits for memory overlap. The decisions replace what `decisions` held,
    /// in the same order.
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

    /// Changes the limiter's own rate; what keys have spent stays spent, as [`TargetedKey::at`] says.
    ///
    /// # Errors
    /// If GCRA can't represent the rate; then nothing changes.
    pub fn set_rate(&self, rate: Rate) -> Result<(), LimitError> {
        // Before anything that was booked is taken back for it.
        Algorithm::Gcra.check_rate(rate)?;
        let now = self.clock.now();
        let key = |fingerprint| {
            self.rated(KeyRate {
                fingerprint,
                in_force: self.pace.read(),
                is_limiter_rate: true,
            })
        };
        // Those who are due by now pass as before, and the others by what it is then.
        self.lines.visit_all(|fingerprint, (), state| {
            state.waits.advance(&key(fingerprint), now);
            state.waits.cancel_all_bookings(&key(fingerprint), now);
        });
        self.pace.set(rate, self.table.intervals())?;
        self.lines
            .visit_all(|fingerprint, (), state| state.waits.recheck_all(&key(fingerprint), now));
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

/// How many requests of a batch are fetched ahead.
const BATCH_SIZE: usize = 16;

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Whether a request passes now. Few instructions matter here, and that what is known stays in
    /// registers: then the processor gets to the next key's lines while it waits for this one's.
    #[inline(always)]
    fn admit(&self, key: u64, tier: Option<RateInForce>, cost: u64) -> bool {
        // Where the lines are doesn't depend on the rate: that and the clock are read while they are on
        // their way.
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

    /// The same for a key that is new, elsewhere, or charged by another thread.
    #[cold]
    #[inline(never)]
    fn admit_slowly(&self, fingerprint: u64, pace: GcraParams, now: TableTime, cost: u64) -> bool {
        let key = self.key_at_params(fingerprint, pace);
        key.charge(now, cost).outcome == Outcome::Allowed
    }

    /// Whether it passes, if somebody waits for the key.
    #[cold]
    #[inline(never)]
    fn passes_in_order(&self, fingerprint: u64, pace: GcraParams, cost: u64) -> Option<bool> {
        let told = self.key_at_params(fingerprint, pace);
        let told = told.decision_behind_waiters(self.clock.now(), cost)?;
        Some(told.is_allowed())
    }

    /// A key to decide about, not to tell of.
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

    /// What the policy says about a new key for which there is no slot.
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
            // Even an evicting table is full if all of a key's slots are blocked keys'.
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
            // One lone word, as in a limiter of one key: only its order with the anchor matters.
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

/// What operators see of the whole table.
impl<C: Clock, T> KeyedLimiter<C, T> {
    /// How many keys are active now. Scans the whole table: for operators, not for requests.
    pub fn len(&self) -> usize {
        let now = self.table.table_time(self.clock.now());
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

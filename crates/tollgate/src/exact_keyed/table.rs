//! All shards of one limiter and one algorithm, with the policy at the cap.

use std::borrow::Borrow;
use std::time::Duration;

use tollgate_core::{Algorithm, Book, Decision, Outcome, Rate, Timestamp, Unbooked};

use super::act::{Act, Penalize, Reserve};
use super::shard::{Answer, Ask, NOBODY, Need, Shard, Work};
use crate::AtCap;
use crate::cell::Ticket;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, PoisonError};

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 1_024;
/// Most shards: enough that threads rarely meet at one lock.
const MOST_SHARDS: usize = 256;
/// The last time that GCRA's word can tell from the next, nine years after the anchor. A state
/// charged then is never idle, so it is never dropped.
const LAST_NANO: u64 = (1 << 58) - 1;
/// The birth of what was booked in the bucket that keys without a slot share.
const SHARED: u64 = u64::MAX;

/// A shard with its lock, on cache lines of its own.
type Locked<K, A> = Padded<Mutex<Shard<K, A>>>;

/// A table of keys for one algorithm.
#[derive(Debug)]
pub(super) struct Table<K, A: Algorithm> {
    shards: Box<[Locked<K, A>]>,
    /// Shifts a hash so that its top bits are a shard's number.
    shift: u32,
    /// Times are counted from here, if the algorithm can't count from the clock's own origin.
    anchor: Option<Timestamp>,
    at_cap: AtCap,
    /// The bucket that keys without a slot share. Its lock is also held while the rate changes.
    shared: Padded<Mutex<Book<A>>>,
    overflowed: AtomicU64,
}

impl<K, A: Algorithm> Table<K, A> {
    pub(super) fn new(limit: A, capacity: usize, at_cap: AtCap, anchor: Option<Timestamp>) -> Self {
        let count = (capacity / SHARD_KEYS)
            .clamp(1, MOST_SHARDS)
            .next_power_of_two();
        // Keys spread over shards at random, so a shard may get more than its share: six standard
        // deviations more are as good as never.
        let share = capacity.div_ceil(count);
        let spread = if count == 1 { 0 } else { 6 * share.isqrt() };
        let shard = || Padded(Mutex::new(Shard::new(limit, share + spread)));
        Self {
            shards: (0..count).map(|_| shard()).collect(),
            shift: (u64::BITS - count.trailing_zeros()) % u64::BITS,
            anchor,
            at_cap,
            shared: Padded(Mutex::new(Book::new(limit))),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Puts a question to a key's state, or to what stands for it at the cap.
    #[inline]
    pub(super) fn act<Q, T>(&self, ask: &Ask<'_, Q>, act: &T) -> T::Answer
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
        T: Act<A>,
    {
        self.act_on(&self.local(ask), act).0
    }

    pub(super) fn reserve<Q>(&self, ask: &Ask<'_, Q>, act: &Reserve) -> Result<Ticket, Unbooked>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let local = self.local(ask);
        let (booked, birth) = self.act_on(&local, act);
        booked.map(|booked| Ticket::Entry {
            at: ask.now + (booked.at() - local.now),
            booked,
            birth,
        })
    }

    pub(super) fn give_back<Q>(&self, ask: &Ask<'_, Q>, ticket: &Ticket)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Ticket::Entry { booked, birth, .. } = ticket else {
            return;
        };
        let ask = self.local(ask);
        match *birth {
            NOBODY => {}
            SHARED => lock(&self.shared.0).give_back(ask.now, booked),
            birth => self.shard(ask.hash).give_back(&ask, booked, birth),
        }
    }

    pub(super) fn reset<Q>(&self, ask: &Ask<'_, Q>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.shard(ask.hash).reset(&self.local(ask));
    }

    pub(super) fn gift<Q>(&self, ask: &Ask<'_, Q>, tokens: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.shard(ask.hash).gift(&self.local(ask), tokens);
    }

    /// Takes tokens from a key; no if it is new and there is no slot for it.
    pub(super) fn penalize<Q>(&self, ask: &Ask<'_, Q>, tokens: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let need = Need {
            evict: false,
            block: false,
        };
        let mut shard = self.shard(ask.hash);
        let answer = shard.act(&self.local(ask), &Penalize(tokens), need);
        matches!(answer, Answer::Given(..))
    }

    /// Blocks a key; no if it is new and there is no slot for it.
    pub(super) fn block<Q>(&self, ask: &Ask<'_, Q>, duration: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let need = Need {
            evict: self.at_cap == AtCap::EvictNearestIdle,
            block: true,
        };
        let ask = self.local(ask);
        self.shard(ask.hash).block(&ask, ask.now + duration, need)
    }

    pub(super) fn rate(&self) -> Rate {
        self.limit().rate()
    }

    pub(super) fn limit(&self) -> A {
        *lock(&self.shared.0).limit()
    }

    pub(super) fn change(&self, now: Timestamp, limit: A) {
        let at = self.local_time(now);
        // Held until every shard has it, so that two changes come to all of them in one order.
        let mut shared = lock(&self.shared.0);
        shared.replace(at, limit);
        for shard in &self.shards {
            lock(&shard.0).change(at, limit);
        }
    }

    /// Visits every key that is active at `now`: how long until it is idle, whether it is blocked.
    pub(super) fn for_each(&self, now: Timestamp, mut each: impl FnMut(&K, Duration, bool)) {
        let now = self.local_time(now);
        for shard in &self.shards {
            lock(&shard.0).for_each(now, |key, due, blocked| each(key, due - now, blocked));
        }
    }

    /// What all shards have done, and how many new keys found no slot.
    pub(super) fn work(&self) -> (Work, u64) {
        let mut sum = Work::default();
        for shard in &self.shards {
            let work = lock(&shard.0).work();
            sum.evicted += work.evicted;
            sum.expired += work.expired;
            sum.slots += work.slots;
        }
        (sum, self.overflowed.load(Ordering::Relaxed))
    }

    fn act_on<Q, T>(&self, ask: &Ask<'_, Q>, act: &T) -> (T::Answer, u64)
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
        T: Act<A>,
    {
        let need = Need {
            evict: self.at_cap == AtCap::EvictNearestIdle,
            block: false,
        };
        // The shard's lock is given up before the shared bucket's is taken.
        let answer = self.shard(ask.hash).act(ask, act, need);
        match answer {
            Answer::Given(answer, birth) => (answer, birth),
            Answer::Full(fresh, now) => self.at_the_cap(act, fresh, now),
        }
    }

    /// What the policy says about a new key for which there is no slot.
    #[cold]
    fn at_the_cap<T: Act<A>>(&self, act: &T, fresh: T::Answer, now: Timestamp) -> (T::Answer, u64) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        match self.at_cap {
            AtCap::AdmitNew => (fresh, NOBODY),
            AtCap::ShareOne => (act.on(&mut lock(&self.shared.0), now), SHARED),
            // Even an evicting table is full if all of its keys are blocked.
            AtCap::DenyNew | AtCap::EvictNearestIdle => (act.refused(self.denied()), NOBODY),
        }
    }

    /// The refusal of a key that nothing is known about: one interval is as good a guess as any.
    fn denied(&self) -> Decision {
        let limit = self.limit();
        let period = limit.rate().period().unwrap_or(Duration::from_secs(1));
        let count = u32::try_from(limit.rate().count()).unwrap_or(u32::MAX);
        let wait = (period / count.max(1)).max(Duration::from_nanos(1));
        Decision::new(Outcome::Denied, limit.limit(), 0, wait, wait)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, A>> {
        let number = if self.shards.len() == 1 {
            0
        } else {
            hash >> self.shift
        };
        lock(&self.shards[usize::try_from(number).unwrap_or(0)].0)
    }

    fn local<'a, Q: ?Sized>(&self, ask: &Ask<'a, Q>) -> Ask<'a, Q> {
        Ask {
            key: ask.key,
            hash: ask.hash,
            now: self.local_time(ask.now),
        }
    }

    /// A time as the states count it.
    fn local_time(&self, now: Timestamp) -> Timestamp {
        match self.anchor {
            None => now,
            Some(anchor) => Timestamp::from_nanos(now.nanos_since(anchor).min(LAST_NANO)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The caller's code runs under the lock only where nothing is half done (comparing keys, cloning
    // a new one), so a poisoned lock holds a good table.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

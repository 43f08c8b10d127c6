//! The queues of requests that wait: one for each key of a limit that denied some, in this process.
//!
//! A waiter holds nothing. The first one checks all limits of its request when there may be room, and later ones stay
//! behind it: no request overtakes the queue. Other nodes have their own queues.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, Decision, Outcome, Timestamp};
use tollgate_adaptive::shed::Criticality;

use crate::limits::{Check, LimitKind};

/// The number of locks that all queues share.
const SHARDS: usize = 16;
/// A waiter that hasn't been polled for this long after its deadline is stalled, and is skipped.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// The shortest retry delay for a request behind one that is being checked, of a limit that has no room at present.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(10);

/// All queues of an engine.
pub(crate) struct WaitQueues {
    /// The number of waiters in all queues. New requests read it relaxed, to see whether they might overtake one: a
    /// late read has the same effect as if the request had come a moment earlier.
    waiting: AtomicUsize,
    /// The number of the next waiter.
    next: AtomicU64,
    /// How often something was released. A release is counted before it looks for a queue, and a request compares the
    /// count after it started a queue. Both are sequentially consistent with `waiting`, so at least one of the two
    /// sees the other, and no wake-up is lost.
    releases: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
}

/// The waiters for one key, in the order of their arrival.
struct WaitQueue {
    waiters: BTreeMap<u64, Waiter>,
    /// The total cost of all waiters.
    cost: u64,
    /// When the first waiter checks its limits again.
    next_attempt_at: Timestamp,
    /// Whether something was released since the first waiter began its check.
    was_released: bool,
    /// The last denial of the first waiter.
    last_denial: Decision,
}

struct Waiter {
    cost: u64,
    deadline: Timestamp,
    waker: Option<Waker>,
}

impl Waiter {
    /// From this time on the waiter counts as stalled: its task was leaked without a drop, or is starved.
    fn lost_at(&self) -> Timestamp {
        self.deadline + LOST_AFTER
    }
}

impl WaitQueue {
    fn first(&self) -> Option<u64> {
        self.waiters.keys().next().copied()
    }

    /// Takes the waker of the first waiter.
    fn wake(&mut self) -> Option<Waker> {
        let mut first = self.waiters.first_entry()?;
        first.get_mut().waker.take()
    }

    /// Lets the first waiter check immediately.
    fn release(&mut self) -> Option<Waker> {
        (self.next_attempt_at, self.was_released) = (Timestamp::ZERO, true);
        self.wake()
    }

    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let gone = self.waiters.remove(&number)?;
        self.cost = self.cost.saturating_sub(gone.cost);
        Some(gone)
    }

    /// Removes the stalled waiters directly before this one.
    fn remove_lost_before(&mut self, number: u64, now: Timestamp) -> Vec<Waiter> {
        let mut lost = Vec::new();
        while let Some((before, waiter)) = self.waiters.range(..number).next_back()
            && waiter.lost_at() < now
        {
            let before = *before;
            lost.extend(self.remove(before));
        }
        // The room that the stalled waiter waited for was there long ago.
        if !lost.is_empty() && self.first() == Some(number) {
            self.next_attempt_at = Timestamp::ZERO;
        }
        lost
    }

    /// Removes the stalled waiters at the head.
    fn remove_lost(&mut self, now: Timestamp) -> Vec<Waiter> {
        let here = self.waiters.values().map(Waiter::lost_at);
        let lost = here.take_while(|until| *until < now).count();
        match self.waiters.keys().nth(lost).copied() {
            Some(first) => self.remove_lost_before(first, now),
            None => std::mem::take(&mut self.waiters).into_values().collect(),
        }
    }

    /// The denial of a request that would join at the end.
    fn denial_at_end(&self, demand: &QueueDemand, now: Timestamp) -> Decision {
        let first = self.waiters.values().next().map_or(0, |first| first.cost);
        let ahead = self.cost.saturating_sub(first).saturating_add(demand.cost);
        let wait = (self.next_attempt_at - now).saturating_add(demand.refill_time(ahead));
        let mut denial = self.last_denial;
        let wait = match denial.wait_or_max() {
            Duration::ZERO => wait,
            _ => wait.max(MIN_RETRY_DELAY),
        };
        denial.outcome = Outcome::Denied;
        denial.set_wait(wait);
        denial
    }
}

/// A position in a queue, which the waiter leaves when this is dropped.
pub(crate) struct QueuePosition<'a> {
    turns: &'a WaitQueues,
    demand: QueueDemand,
    number: u64,
}

/// The denial of a request before it joins a queue, and its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRequest {
    pub(crate) said: Decision,
    /// When it checks again, if it is the first.
    pub(crate) asks_at: Timestamp,
    pub(crate) deadline: Timestamp,
    /// The [release count](WaitQueues::release_count) before the check that denied it.
    pub(crate) releases: u64,
}

/// What a waiter should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// It is the first, and checks its limits at this time.
    First(Timestamp),
    /// Another waiter is before it, and counts as stalled after this time.
    Behind(Timestamp),
    /// It was removed from the queue as stalled.
    Lost,
}

/// The queues that share a lock.
type Shard = HashMap<QueueKey, WaitQueue, FixedState>;

impl WaitQueues {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Whether any request waits.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How many requests wait.
    pub(crate) fn waiter_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How often something was released so far. A request reads it before its check, and passes it on if it joins a
    /// queue.
    pub(crate) fn release_count(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    fn shard(&self, spot: QueueKey) -> MutexGuard<'_, Shard> {
        let number = usize::try_from(spot.fingerprint[0] % SHARDS as u64).unwrap_or(0);
        self.shards[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The denial of a request at the end of a queue. `None` if there is no queue, or if the request can never be
    /// allowed.
    pub(crate) fn queue_denial(&self, demand: &QueueDemand, now: Timestamp) -> Option<Decision> {
        let mut shard = self.shard(demand.spot);
        let queue = shard.get_mut(&demand.spot)?;
        let lost = queue.remove_lost(now);
        let woken = (!lost.is_empty()).then(|| queue.wake()).flatten();
        let denial = queue.first().map(|_| queue.denial_at_end(demand, now));
        if denial.is_none() {
            shard.remove(&demand.spot);
        }
        drop(shard);
        self.remove_waiters(lost);
        woken.into_iter().for_each(Waker::wake);
        denial.filter(|denial| demand.cost <= denial.limit)
    }

    /// The denial of a new request at the end of the longest queue that it may not overtake: its own, or one of more
    /// critical requests.
    pub(crate) fn longest_queue_denial(
        &self,
        demand: &QueueDemand,
        now: Timestamp,
    ) -> Option<Decision> {
        let classes = Criticality::ALL.into_iter();
        let classes = classes.filter(|class| *class >= demand.spot.class);
        let queues = classes.filter_map(|class| self.queue_denial(&demand.of_class(class), now));
        queues.max_by_key(|said| said.wait_or_max())
    }

    /// Joins the end of a queue, unless too many requests wait.
    pub(crate) fn join(
        &self,
        demand: QueueDemand,
        coming: QueueRequest,
        most: usize,
    ) -> Option<QueuePosition<'_>> {
        let waiting = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |waiting| {
                (waiting < most).then_some(waiting + 1)
            });
        waiting.ok()?;
        let mut shard = self.shard(demand.spot);
        let queue = shard.entry(demand.spot).or_insert_with(|| WaitQueue {
            waiters: BTreeMap::new(),
            cost: 0,
            // If something was released after the check, it may be what the request lacks: check immediately.
            next_attempt_at: if self.release_count() == coming.releases {
                coming.asks_at
            } else {
                Timestamp::ZERO
            },
            was_released: false,
            last_denial: coming.said,
        });
        // Numbered under the lock, so that the numbers follow the order of arrival.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        queue.cost = queue.cost.saturating_add(demand.cost);
        let waiter = Waiter {
            cost: demand.cost,
            deadline: coming.deadline,
            waker: None,
        };
        queue.waiters.insert(number, waiter);
        Some(QueuePosition {
            turns: self,
            demand,
            number,
        })
    }

    /// Reports that something was released for this key: the first waiter of each class checks immediately, the most
    /// critical class first.
    pub(crate) fn poke(&self, spot: QueueKey) {
        self.releases.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        // The class isn't part of the shard's number, so the queues of all classes share this lock.
        let mut shard = self.shard(spot);
        let woken = Criticality::ALL.map(|class| {
            let line = shard.get_mut(&QueueKey { class, ..spot });
            line.and_then(WaitQueue::release)
        });
        drop(shard);
        woken.into_iter().rev().flatten().for_each(Waker::wake);
    }

    /// Reports that every limit may have changed: the first waiter of each queue checks immediately.
    pub(crate) fn release_all(&self) {
        self.releases.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let woken: Vec<_> = shard.values_mut().filter_map(WaitQueue::release).collect();
            drop(shard);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Removes a waiter, and wakes the one that is first then. `asks_at` gives the time of that one's check, if it is
    /// known.
    fn leave(
        &self,
        spot: QueueKey,
        number: u64,
        asks_at: impl FnOnce(&Waiter, &Waiter) -> Option<Timestamp>,
    ) {
        let mut shard = self.shard(spot);
        let Some(line) = shard.get_mut(&spot) else {
            return;
        };
        let was_first = line.first() == Some(number);
        let Some(gone) = line.remove(number) else {
            return;
        };
        let mut woken = None;
        match line.waiters.values().next() {
            None => {
                shard.remove(&spot);
            }
            Some(next) if was_first => {
                // A denial from before the release is outdated, so the next check stays immediate.
                if let Some(at) = asks_at(&gone, next).filter(|_| !line.was_released) {
                    line.next_attempt_at = at;
                }
                woken = line.wake();
            }
            Some(_) => {}
        }
        drop(shard);
        self.remove_waiters([gone]);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Drops waiters that were removed. The caller holds no lock: a waker may own the last reference to a task, whose
    /// drop may lock a queue itself.
    fn remove_waiters(&self, waiters: impl IntoIterator<Item = Waiter>) {
        for waiter in waiters {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            drop(waiter);
        }
    }
}

impl QueuePosition<'_> {
    pub(crate) fn queue_key(&self) -> QueueKey {
        self.demand.spot
    }

    /// What the waiter should do. Its task is woken when that changes. A first waiter that polls is about to check
    /// its limits.
    pub(crate) fn poll_status(&self, waker: &Waker, now: Timestamp) -> QueueStatus {
        let mut shard = self.turns.shard(self.demand.spot);
        let Some(line) = shard.get_mut(&self.demand.spot) else {
            return QueueStatus::Lost;
        };
        let Some(own) = line.waiters.get_mut(&self.number) else {
            return QueueStatus::Lost;
        };
        let mut replaced = None;
        if !own.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
            replaced = own.waker.replace(waker.clone());
        }
        let lost = line.remove_lost_before(self.number, now);
        let status = match line.waiters.range(..self.number).next_back() {
            Some((_, before)) => QueueStatus::Behind(before.lost_at()),
            None => {
                line.was_released = false;
                QueueStatus::First(line.next_attempt_at)
            }
        };
        drop(shard);
        // After the lock: a waker may own the last reference to a task, whose drop may lock a queue.
        drop(replaced);
        self.turns.remove_waiters(lost);
        status
    }

    /// Records that the first waiter was denied again, with the demand by the policy in force now, and sets the time
    /// of its next check. If something was released meanwhile, that check stays immediate.
    pub(crate) fn record_denial(
        &mut self,
        demand: QueueDemand,
        said: Decision,
        asks_at: Timestamp,
    ) {
        self.demand = demand;
        let mut shard = self.turns.shard(self.demand.spot);
        let line = shard.get_mut(&self.demand.spot);
        if let Some(line) = line.filter(|line| line.first() == Some(self.number)) {
            line.last_denial = said;
            if !line.was_released {
                line.next_attempt_at = asks_at;
            }
        }
    }

    /// Leaves the queue, and returns the time until the waiter would have reached the head, as far as that is known.
    pub(crate) fn time_to_head(self, now: Timestamp) -> Duration {
        let shard = self.turns.shard(self.demand.spot);
        let line = shard.get(&self.demand.spot);
        line.map_or(Duration::ZERO, |line| {
            let ahead = line.waiters.range(..=self.number).skip(1);
            let ahead = ahead.map(|(_, waiter)| waiter.cost);
            let ahead = ahead.fold(0, u64::saturating_add);
            (line.next_attempt_at - now).saturating_add(self.demand.refill_time(ahead))
        })
    }

    /// Leaves the queue after the request was allowed, with `left` units remaining: the next waiter checks when there
    /// may be enough for it.
    pub(crate) fn leave_after_pass(self, left: u64, now: Timestamp) {
        let demand = self.demand;
        self.turns.leave(demand.spot, self.number, |_, next| {
            let takes = demand.refill_time(next.cost.saturating_sub(left));
            // A gate expires, and the limit may refill faster after that: let the next waiter check now.
            Some(demand.until.map_or(now + takes, |_| now))
        });
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.turns
            .leave(self.demand.spot, self.number, |gone, next| {
                // The next waiter keeps the time of the check if it costs the same, and checks immediately otherwise.
                (gone.cost != next.cost).then_some(Timestamp::ZERO)
            });
    }
}

/// The key of a queue: a limit, the key of its counter, and the criticality of the waiters.
///
/// A class that may use the whole limit isn't held up by one that waits until less of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    limit: u64,
    fingerprint: [u64; 2],
    class: Criticality,
}

impl QueueKey {
    /// The queue of a limit that all classes may use fully.
    pub(crate) const fn new(limit: u64, fingerprint: [u64; 2]) -> Self {
        Self {
            limit,
            fingerprint,
            class: Criticality::Critical,
        }
    }

    pub(crate) fn of(check: &Check<'_>) -> Self {
        Self::new(check.limit.id, check.key.fingerprint())
    }
}

/// What a waiter needs from the limit that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueDemand {
    pub(crate) spot: QueueKey,
    cost: u64,
    /// How long one unit takes to refill. Zero if that isn't known, or for permits.
    pace: Duration,
    /// When that changes, if it does.
    pub(crate) until: Option<Timestamp>,
}

impl QueueDemand {
    pub(crate) fn of(check: &Check<'_>) -> Self {
        let pace = match check.limit.kind() {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket,
            } if !rate.is_zero() => rate.period().map_or(Duration::ZERO, |period| {
                let nanos = period.as_nanos() / u128::from(rate.count().max(1));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }),
            _ => Duration::ZERO,
        };
        Self {
            spot: QueueKey::of(check),
            cost: check.units(),
            pace,
            until: None,
        }
    }

    /// The same demand, of a request in this class.
    pub(crate) fn of_class(self, class: Criticality) -> Self {
        let spot = QueueKey { class, ..self.spot };
        Self { spot, ..self }
    }

    /// The same demand, in the queue of the rule's own limit. A gate stands beside that limit until `until`, and the
    /// queue has to outlive it.
    pub(crate) fn in_queue_of(self, limit: u64, until: Timestamp) -> Self {
        Self {
            spot: QueueKey { limit, ..self.spot },
            until: Some(until),
            ..self
        }
    }

    /// How long this many units take to refill.
    fn refill_time(&self, units: u64) -> Duration {
        let nanos = self.pace.as_nanos().saturating_mul(u128::from(units));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl WaitQueues {
    /// How many requests wait for one key of a limit.
    pub(crate) fn waiters_of_key(&self, spot: QueueKey) -> usize {
        let shard = self.shard(spot);
        shard.get(&spot).map_or(0, |line| line.waiters.len())
    }

    /// How many requests wait for each limit, over all its keys.
    pub(crate) fn waiters_by_limit(&self) -> HashMap<u64, usize, FixedState> {
        let mut all = HashMap::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (spot, line) in shard.iter() {
                *all.entry(spot.limit).or_default() += line.waiters.len();
            }
        }
        all
    }
}

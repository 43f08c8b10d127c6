//! Requests that wait for their turn: a line for each key of a limit that refused some, in this process.
//!
//! A request that waits in line holds nothing. The first asks for all that it needs when there may be room, and later
//! ones stand behind it: none passes the line. Other nodes have lines of their own.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, Decision, Outcome, Timestamp};
use tollgate_adaptive::shed::Criticality;

use crate::limits::{Check, LimitKind};

/// Lines whose lock is shared.
const SHARDS: usize = 16;
/// A request that hasn't looked so long after its time was over never will, and isn't waited for any more.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// A request behind one that is asking now, of a limit that has nothing at present, asks again after so long at
/// least.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(10);

/// All lines of an engine.
pub(crate) struct WaitQueues {
    /// How many stand in all lines. Read (relaxed) by requests that might pass one: if it is read late, it is as if the
    /// request had come just before.
    waiting: AtomicUsize,
    /// The number of the next request that comes to stand in a line.
    next: AtomicU64,
    /// How often something came back. It is counted before a line is looked for, and compared after one was begun
    /// (both in one order with `waiting`, hence sequentially consistent), so that one of the two sees the other.
    releases: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
}

/// The requests that wait for one key, in the order in which they came.
struct WaitQueue {
    waiters: BTreeMap<u64, Waiter>,
    /// What all of them ask for.
    cost: u64,
    /// When the first asks again.
    next_attempt_at: Timestamp,
    /// Something came back since it began to ask.
    was_released: bool,
    /// What it was told last.
    last_denial: Decision,
}

struct Waiter {
    cost: u64,
    deadline: Timestamp,
    waker: Option<Waker>,
}

impl Waiter {
    /// After this it is lost: its task is gone without a word, or starved.
    fn lost_at(&self) -> Timestamp {
        self.deadline + LOST_AFTER
    }
}

impl WaitQueue {
    fn first(&self) -> Option<u64> {
        self.waiters.keys().next().copied()
    }

    /// Lets the first look again.
    fn wake(&mut self) -> Option<Waker> {
        let mut first = self.waiters.first_entry()?;
        first.get_mut().waker.take()
    }

    /// The first asks at once.
    fn release(&mut self) -> Option<Waker> {
        (self.next_attempt_at, self.was_released) = (Timestamp::ZERO, true);
        self.wake()
    }

    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let gone = self.waiters.remove(&number)?;
        self.cost = self.cost.saturating_sub(gone.cost);
        Some(gone)
    }

    /// Takes out those that are lost and stand right before this one.
    fn remove_lost_before(&mut self, number: u64, now: Timestamp) -> Vec<Waiter> {
        let mut lost = Vec::new();
        while let Some((before, waiter)) = self.waiters.range(..number).next_back()
            && waiter.lost_at() < now
        {
            let before = *before;
            lost.extend(self.remove(before));
        }
        // What the first of them had waited for was there long ago.
        if !lost.is_empty() && self.first() == Some(number) {
            self.next_attempt_at = Timestamp::ZERO;
        }
        lost
    }

    /// Takes out those that are lost and stand at the head.
    fn remove_lost(&mut self, now: Timestamp) -> Vec<Waiter> {
        let here = self.waiters.values().map(Waiter::lost_at);
        let lost = here.take_while(|until| *until < now).count();
        match self.waiters.keys().nth(lost).copied() {
            Some(first) => self.remove_lost_before(first, now),
            None => std::mem::take(&mut self.waiters).into_values().collect(),
        }
    }

    /// What a request would be told at the end of it.
    fn denial_at_end(&self, demand: &QueueDemand, now: Timestamp) -> Decision {
        let first = self.waiters.values().next().map_or(0, |first| first.cost);
        let ahead = self.cost.saturating_sub(first).saturating_add(demand.cost);
        let wait = (self.next_attempt_at - now).saturating_add(demand.refill_time(ahead));
        let mut said = self.last_denial;
        let wait = match said.wait_or_max() {
            Duration::ZERO => wait,
            _ => wait.max(MIN_RETRY_DELAY),
        };
        said.outcome = Outcome::Denied;
        said.set_wait(wait);
        said
    }
}

/// A place in a line, left when this is dropped.
pub(crate) struct QueuePosition<'a> {
    turns: &'a WaitQueues,
    demand: QueueDemand,
    number: u64,
}

/// What a request was told before it came to stand in line, and until when it can wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRequest {
    pub(crate) said: Decision,
    /// When it asks again, if it is the first.
    pub(crate) asks_at: Timestamp,
    pub(crate) deadline: Timestamp,
    /// The [pokes](Turns::pokes) before it asked.
    pub(crate) releases: u64,
}

/// What a request in line is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// It is the first, and asks at this time.
    First(Timestamp),
    /// Another is before it, and isn't waited for after this.
    Behind(Timestamp),
    /// It came too late, and isn't waited for.
    Lost,
}

/// The lines whose lock is the same.
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

    /// Whether anybody waits.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How many wait.
    pub(crate) fn waiter_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How often something came back so far, for a request that is asked about now and may have to wait in line.
    pub(crate) fn release_count(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    fn shard(&self, spot: QueueKey) -> MutexGuard<'_, Shard> {
        let number = usize::try_from(spot.fingerprint[0] % SHARDS as u64).unwrap_or(0);
        self.shards[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request would be told at the end of a line; none if there is no line, or if it could never pass.
    pub(crate) fn queue_denial(&self, demand: &QueueDemand, now: Timestamp) -> Option<Decision> {
        let mut shard = self.shard(demand.spot);
        let line = shard.get_mut(&demand.spot)?;
        let lost = line.remove_lost(now);
        let woken = (!lost.is_empty()).then(|| line.wake()).flatten();
        let said = line.first().map(|_| line.denial_at_end(demand, now));
        if said.is_none() {
            shard.remove(&demand.spot);
        }
        drop(shard);
        self.remove_waiters(lost);
        woken.into_iter().for_each(Waker::wake);
        said.filter(|said| demand.cost <= said.limit)
    }

    /// What a newcomer would be told at the end of the longest line that it may not pass: its own, and those of requests that
    /// are more critical.
    pub(crate) fn longest_queue_denial(
        &self,
        demand: &QueueDemand,
        now: Timestamp,
    ) -> Option<Decision> {
        let classes = Criticality::ALL.into_iter();
        let classes = classes.filter(|class| *class >= demand.spot.class);
        let lines = classes.filter_map(|class| self.queue_denial(&demand.of_class(class), now));
        lines.max_by_key(|said| said.wait_or_max())
    }

    /// Stands at the end of a line, unless too many wait.
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
        let line = shard.entry(demand.spot).or_insert_with(|| WaitQueue {
            waiters: BTreeMap::new(),
            cost: 0,
            // What came back since it asked may be what it lacks.
            next_attempt_at: if self.release_count() == coming.releases {
                coming.asks_at
            } else {
                Timestamp::ZERO
            },
            was_released: false,
            last_denial: coming.said,
        });
        // Under the lock, so that they stand in this order.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        line.cost = line.cost.saturating_add(demand.cost);
        let waiter = Waiter {
            cost: demand.cost,
            deadline: coming.deadline,
            waker: None,
        };
        line.waiters.insert(number, waiter);
        Some(QueuePosition {
            turns: self,
            demand,
            number,
        })
    }

    /// Something that was held may be free: the first of a line asks at once, whatever its class, and the most critical
    /// first.
    pub(crate) fn poke(&self, spot: QueueKey) {
        self.releases.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        // Lines of all classes have the same lock.
        let mut shard = self.shard(spot);
        let woken = Criticality::ALL.map(|class| {
            let line = shard.get_mut(&QueueKey { class, ..spot });
            line.and_then(WaitQueue::release)
        });
        drop(shard);
        woken.into_iter().rev().flatten().for_each(Waker::wake);
    }

    /// All may be different: the first of each line asks at once.
    pub(crate) fn release_all(&self) {
        self.releases.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let woken: Vec<_> = shard.values_mut().filter_map(WaitQueue::release).collect();
            drop(shard);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Takes a request out of a line, and wakes the one that is first then, with when that asks, if it is known.
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
                // What came back while it asked isn't in what it was told.
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

    /// These don't stand anywhere any more. The caller holds no lock: a waker may be all that keeps a task, which
    /// may stand in line itself.
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

    /// What it is to do; the task is woken when that changes. The first that looks is about to ask.
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
        let stand = match line.waiters.range(..self.number).next_back() {
            Some((_, before)) => QueueStatus::Behind(before.lost_at()),
            None => {
                line.was_released = false;
                QueueStatus::First(line.next_attempt_at)
            }
        };
        drop(shard);
        drop(replaced);
        self.turns.remove_waiters(lost);
        stand
    }

    /// It asked, as the first, for what the policy makes of its request now, was told this, and asks again at that
    /// time, or at once if something came back meanwhile.
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

    /// How long it would have to stand on, as far as that is known. It leaves.
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

    /// It passed, with so much left then: the next one asks when there may be enough for it.
    pub(crate) fn leave_after_pass(self, left: u64, now: Timestamp) {
        let demand = self.demand;
        self.turns.leave(demand.spot, self.number, |_, next| {
            let takes = demand.refill_time(next.cost.saturating_sub(left));
            // What is slow for now may be faster by then: the next one asks.
            Some(demand.until.map_or(now + takes, |_| now))
        });
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.turns
            .leave(self.demand.spot, self.number, |gone, next| {
                // The next one waits for as long if it costs as much; if not, it asks at once.
                (gone.cost != next.cost).then_some(Timestamp::ZERO)
            });
    }
}

/// Whose line: a limit, the key that it is for, and how critical those are who stand there.
///
/// Who may use all of the slots isn't held up by who waits until less of them is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    limit: u64,
    fingerprint: [u64; 2],
    class: Criticality,
}

impl QueueKey {
    /// Where all may use all of it.
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

/// What a request asks of the limit that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueDemand {
    pub(crate) spot: QueueKey,
    cost: u64,
    /// How long one unit takes to come; zero if that isn't known, or if there are only some at once.
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

    /// The same demand of a request that is so critical.
    pub(crate) fn of_class(self, class: Criticality) -> Self {
        let spot = QueueKey { class, ..self.spot };
        Self { spot, ..self }
    }

    /// The same demand of a gate that stands until then beside this limit, in whose line it waits: that goes on when
    /// the gate is gone.
    pub(crate) fn in_queue_of(self, limit: u64, until: Timestamp) -> Self {
        Self {
            spot: QueueKey { limit, ..self.spot },
            until: Some(until),
            ..self
        }
    }

    /// How long so many units take to come.
    fn refill_time(&self, units: u64) -> Duration {
        let nanos = self.pace.as_nanos().saturating_mul(u128::from(units));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl WaitQueues {
    /// How many wait for one key of a limit.
    pub(crate) fn waiters_of_key(&self, spot: QueueKey) -> usize {
        let shard = self.shard(spot);
        shard.get(&spot).map_or(0, |line| line.waiters.len())
    }

    /// The same of all keys of each limit that anybody waits for.
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

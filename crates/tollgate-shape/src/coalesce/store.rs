//! All items of one coalescer, from when they are added until they are flushed.
//!
//! ```text
//! add ─► open ─► closed ─► running ─► done
//!                  again ◄────┘ failed
//! ```
//! `pending` counts the items of all these states, and an item is in exactly one of them.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tollgate::Timestamp;

use super::{AddDenied, Batch, FlushOutcome, NextBatch};
use crate::runner::{AfterChange, PendingStore};

/// When a batch that panicked is retried if the coalescer has no window or quiet time.
const RETRY_AFTER_PANIC: Duration = Duration::from_secs(1);

type WeighFn<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;
type MergeFn<K, V> = Box<dyn Fn(&K, &mut V, V) + Send + Sync>;

/// The settings of a coalescer.
#[derive(derive_more::Debug)]
pub struct BatchLimits<K, V> {
    /// From the first item of a batch.
    pub(super) max_wait: Option<Duration>,
    /// From its latest item.
    pub(super) quiet: Option<Duration>,
    pub(super) max_items: usize,
    pub(super) max_weight: u64,
    #[debug(skip)]
    pub(super) weigh: Option<WeighFn<K, V>>,
    #[debug(skip)]
    pub(super) merge: Option<MergeFn<K, V>>,
    pub(super) max_pending: usize,
}

#[derive(derive_more::Debug)]
#[debug("Batches {{ .. }}")]
pub struct BatchStore<K, V> {
    limits: BatchLimits<K, V>,
    open: OpenBatch<K, V>,
    /// Full batches, in order.
    closed: VecDeque<Batch<K, V>>,
    /// A failed batch, and when it is retried; it comes before all others.
    retry: Option<(Batch<K, V>, Timestamp)>,
    running: Option<Batch<K, V>>,
    pending: usize,
    intake: Intake,
    /// The batches that weren't flushed when it was stopped.
    leftover: Vec<Batch<K, V>>,
    /// The callers that wait for room, in order.
    waiters: VecDeque<(u64, Waker)>,
    next_waiter: u64,
    /// The waiters that may try again, to be woken after the lock is released.
    to_wake: Vec<Waker>,
}

/// Which items are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    All,
    /// No more items: it is about to be stopped.
    Nothing,
    /// It was stopped.
    Stopped,
}

impl<K: Hash + Eq, V> BatchStore<K, V> {
    pub(super) fn new(limits: BatchLimits<K, V>) -> Self {
        Self {
            limits,
            open: OpenBatch::new(),
            closed: VecDeque::new(),
            retry: None,
            running: None,
            pending: 0,
            intake: Intake::All,
            leftover: Vec::new(),
            waiters: VecDeque::new(),
            next_waiter: 0,
            to_wake: Vec::new(),
        }
    }

    pub(super) fn take_leftover(&mut self) -> Vec<Batch<K, V>> {
        std::mem::take(&mut self.leftover)
    }

    /// Adds an item; it stays in `item` if it can't be added. A caller that waits for room already has
    /// a number.
    #[inline]
    pub(super) fn add(
        &mut self,
        item: &mut Option<(K, V)>,
        waiter: Option<u64>,
        now: Timestamp,
    ) -> (Result<(), AddDenied>, NextBatch<K, V>) {
        let Some((key, value)) = item else {
            return (Ok(()), AfterChange::None);
        };
        if self.intake != Intake::All {
            return (Err(AddDenied::Stopped), AfterChange::None);
        }
        let most = self.limits.max_weight;
        let weigh = self.limits.weigh.as_ref();
        let weight = weigh.map_or(0, |weigh| weigh(key, value));
        if weight > most {
            return (Err(AddDenied::TooLarge { weight, most }), AfterChange::None);
        }
        let fits = self.open.weight.saturating_add(weight) <= most;
        if fits && let Some(then) = self.merge(item, weight, now) {
            return (Ok(()), then);
        }
        if !self.has_room(waiter) {
            let most = self.limits.max_pending;
            return (Err(AddDenied::Full { most }), AfterChange::None);
        }
        if !fits {
            self.close_open();
        }
        let is_first = self.open.is_empty();
        if let Some((key, value)) = item.take() {
            match self.limits.merge {
                Some(_) => self.open.push_indexed(key, value, now),
                None => self.open.push(key, value, now),
            }
        }
        self.pending += 1;
        self.open.weight += weight;
        self.open.last = now;
        let looks = self.close_if_full() || is_first || !fits;
        (
            Ok(()),
            if looks {
                AfterChange::WakeDriver
            } else {
                AfterChange::None
            },
        )
    }

    /// Merges an item into that of the same key, if there is one.
    fn merge(
        &mut self,
        item: &mut Option<(K, V)>,
        weight: u64,
        now: Timestamp,
    ) -> Option<NextBatch<K, V>> {
        let merge = self.limits.merge.as_ref()?;
        let (_, there) = self.open.find(&item.as_ref()?.0)?;
        let (key, value) = item.take()?;
        let weigh = self.limits.weigh.as_ref();
        let before = weigh.map_or(0, |weigh| weigh(&key, there));
        merge(&key, there, value);
        let after = weigh.map_or(weight, |weigh| weigh(&key, there));
        let others = self.open.weight.saturating_sub(before);
        self.open.weight = others.saturating_add(after);
        self.open.last = now;
        let is_closed = self.close_if_full();
        Some(if is_closed {
            AfterChange::WakeDriver
        } else {
            AfterChange::None
        })
    }

    /// Closes the open batch if nothing more fits, or no more items may come.
    fn close_if_full(&mut self) -> bool {
        let limits = &self.limits;
        let is_full = self.open.len() >= limits.max_items
            || (limits.weigh.is_some() && self.open.weight >= limits.max_weight)
            || self.pending >= limits.max_pending;
        if is_full {
            self.close_open();
        }
        is_full
    }

    fn close_open(&mut self) {
        if !self.open.is_empty() {
            self.closed.push_back(Batch::new(self.open.take()));
        }
    }

    /// Whether one more item may be held. Waiters have precedence, in order.
    fn has_room(&self, waiter: Option<u64>) -> bool {
        let room = self.limits.max_pending.saturating_sub(self.pending);
        let ahead = self.waiters.iter().take(room);
        // The waiters in front have that room already, even if they haven't run yet.
        room > ahead.filter(|(other, _)| Some(*other) != waiter).count()
    }

    /// Adds a waiter for room, or updates its waker. Returns its number.
    pub(super) fn join_queue(&mut self, waiter: Option<u64>, waker: &Waker) -> u64 {
        let known = waiter.and_then(|waiter| {
            let mut all = self.waiters.iter_mut();
            all.find(|(other, _)| *other == waiter)
        });
        if let Some((waiter, known)) = known {
            known.clone_from(waker);
            return *waiter;
        }
        let waiter = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.push_back((waiter, waker.clone()));
        waiter
    }

    /// Removes a waiter, because its item was added or it gave up.
    pub(super) fn leave_queue(&mut self, waiter: u64) -> Option<Waker> {
        let place = self
            .waiters
            .iter()
            .position(|(other, _)| *other == waiter)?;
        let (_, waker) = self.waiters.remove(place)?;
        // The waiters with room were woken already, except the one that has just moved into the last
        // free position.
        let room = self.limits.max_pending.saturating_sub(self.pending);
        let last = room.checked_sub(1).and_then(|last| self.waiters.get(last));
        self.to_wake.extend(last.map(|(_, waker)| waker.clone()));
        Some(waker)
    }

    /// Wakes as many waiters as there is room for.
    fn wake_waiters(&mut self) {
        let room = match self.intake {
            Intake::All => self.limits.max_pending.saturating_sub(self.pending),
            Intake::Nothing | Intake::Stopped => usize::MAX,
        };
        let wakers = self.waiters.iter().take(room);
        self.to_wake.extend(wakers.map(|(_, waker)| waker.clone()));
    }

    pub(super) fn flush_now(&mut self, now: Timestamp) -> (usize, NextBatch<K, V>) {
        self.close_open();
        if let Some((_, at)) = &mut self.retry {
            *at = now;
        }
        let running = self.running.as_ref().map_or(0, Batch::len);
        let waiting = self.pending - running;
        if running > 0 {
            return (waiting, AfterChange::WakeDriver);
        }
        let first = self.take_ready(now);
        (waiting, first.map_or(AfterChange::None, AfterChange::Fire))
    }

    fn take_ready(&mut self, now: Timestamp) -> Option<Batch<K, V>> {
        let batch = match self.retry.take() {
            Some((batch, at)) if at <= now => batch,
            Some(later) => {
                self.retry = Some(later);
                return None;
            }
            None => self.closed.pop_front()?,
        };
        // Keeps a clone until the flush has ended, so that a panic loses no item.
        self.running = Some(batch.clone());
        Some(batch)
    }

    /// When the open batch is flushed.
    fn open_batch_due(&self) -> Option<Timestamp> {
        if self.open.is_empty() {
            return None;
        }
        let quiet = self.limits.quiet.map(|quiet| self.open.last + quiet);
        let most = self.limits.max_wait.map(|most| self.open.first + most);
        match (quiet, most) {
            (Some(quiet), Some(most)) => Some(quiet.min(most)),
            (quiet, most) => quiet.or(most),
        }
    }
}

impl<K, V> PendingStore for BatchStore<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    const NAME: &'static str = "coalescer";

    type Job = Batch<K, V>;
    type Outcome = FlushOutcome;
    type Remaining = ();

    fn pending(&self) -> usize {
        self.pending
    }

    fn due(&self) -> Option<Timestamp> {
        if self.running.is_some() {
            return None;
        }
        if let Some((_, at)) = &self.retry {
            return Some(*at);
        }
        if self.closed.is_empty() {
            self.open_batch_due()
        } else {
            Some(Timestamp::ZERO)
        }
    }

    fn take(&mut self, now: Timestamp) -> Option<Batch<K, V>> {
        if self.retry.is_none() && self.closed.is_empty() && self.open_batch_due()? <= now {
            self.close_open();
        }
        self.take_ready(now)
    }

    fn defer(&mut self, job: Batch<K, V>) {
        self.running = None;
        self.retry = Some((job, Timestamp::ZERO));
    }

    fn ended(&mut self, now: Timestamp, outcome: Option<FlushOutcome>) {
        let Some(batch) = self.running.take() else {
            return;
        };
        let after = match outcome {
            Some(FlushOutcome::Done) => {
                self.pending -= batch.len();
                self.wake_waiters();
                return;
            }
            Some(FlushOutcome::RetryIn(after)) => after,
            None => {
                let usual = self.limits.quiet.or(self.limits.max_wait);
                usual.unwrap_or(RETRY_AFTER_PANIC)
            }
        };
        let batch = batch.with_next_attempt();
        if self.intake == Intake::Stopped {
            self.pending -= batch.len();
            // It came before all other batches.
            self.leftover.insert(0, batch);
        } else {
            // At least a nanosecond later, so that an immediate retry lets other tasks run.
            self.retry = Some((batch, now + after.max(Duration::from_nanos(1))));
        }
    }

    fn follow_clock_back(&mut self, from: Timestamp, to: Timestamp) {
        self.open.first = self.open.first.shifted(from, to);
        self.open.last = self.open.last.shifted(from, to);
        if let Some((_, at)) = &mut self.retry {
            *at = at.shifted(from, to);
        }
    }

    fn flush(&mut self, now: Timestamp) {
        if self.intake == Intake::All {
            self.intake = Intake::Nothing;
        }
        self.close_open();
        if let Some((_, at)) = &mut self.retry {
            *at = now;
        }
        self.wake_waiters();
    }

    fn clear(&mut self) {
        self.intake = Intake::Stopped;
        self.close_open();
        let again = self.retry.take().map(|(batch, _)| batch);
        let all = again.into_iter().chain(self.closed.drain(..));
        self.leftover.extend(all);
        self.pending = self.running.as_ref().map_or(0, Batch::len);
        self.wake_waiters();
    }

    fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.to_wake)
    }
}

/// The open batch: its items, and the position of each key if items are merged.
struct OpenBatch<K, V> {
    items: Vec<(K, V)>,
    /// The position of each key, if items are merged.
    places: HashTable<usize>,
    hasher: RandomState,
    weight: u64,
    first: Timestamp,
    last: Timestamp,
}

impl<K: Hash + Eq, V> OpenBatch<K, V> {
    fn new() -> Self {
        Self {
            items: Vec::new(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            weight: 0,
            first: Timestamp::ZERO,
            last: Timestamp::ZERO,
        }
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The item of a key.
    fn find(&mut self, key: &K) -> Option<&mut (K, V)> {
        let hash = self.hasher.hash_one(key);
        let items = &self.items;
        let place = *self.places.find(hash, |place| items[*place].0 == *key)?;
        self.items.get_mut(place)
    }

    fn push(&mut self, key: K, value: V, now: Timestamp) {
        if self.items.is_empty() {
            self.first = now;
        }
        self.items.push((key, value));
    }

    /// As [`push`](Self::push), and indexes the key.
    fn push_indexed(&mut self, key: K, value: V, now: Timestamp) {
        let hash = self.hasher.hash_one(&key);
        let place = self.items.len();
        self.push(key, value, now);
        let (items, hasher) = (&self.items, &self.hasher);
        self.places
            .insert_unique(hash, place, |place| hasher.hash_one(&items[*place].0));
    }

    /// Takes out all items. The next batch gets the same capacity.
    fn take(&mut self) -> Vec<(K, V)> {
        self.places.clear();
        self.weight = 0;
        let room = self.items.len().min(1024);
        std::mem::replace(&mut self.items, Vec::with_capacity(room))
    }
}

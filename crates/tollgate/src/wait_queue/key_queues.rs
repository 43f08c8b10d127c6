//! The queues of the keys of a table: a key has a queue only while it has waiters.

use std::collections::HashMap;
use std::fmt;

use foldhash::fast::FixedState;

use super::QueueState;
use super::fifo_queue::FifoQueue;
use super::waiter_places::WaiterId;
use super::waiter_wakers::{KEPT_SLOTS, PendingWakeups};
use crate::sync::{AtomicU32, Mutex, Ordering, fence, ignore_poison};

/// The number of marks that keys share. While one key has waiters, the others with the same mark look
/// for a queue in vain.
const MARK_COUNT: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// Queues by the hash of their key, and marks, of which a check reads one.
///
/// # Memory ordering
/// As for the mark of [`LimiterQueue`](super::limiter_queue::LimiterQueue). A change of all keys uses
/// the locks alone.
pub(crate) struct KeyQueues<K, T> {
    marks: [AtomicU32; MARK_COUNT],
    shards: Box<[Mutex<Shard<K, T>>]>,
}

/// Few keys have the same hash.
type Shard<K, T> = HashMap<u64, Vec<KeyQueue<K, T>>, FixedState>;

struct KeyQueue<K, T> {
    key: K,
    state: QueueState<FifoQueue<T>>,
}

impl<K, T: Clone + fmt::Debug> KeyQueues<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            marks: std::array::from_fn(|_| AtomicU32::new(0)),
            shards: (0..MARK_COUNT).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether a key of this hash may have waiters.
    #[inline(always)]
    pub(crate) fn is_marked(&self, hash: u64) -> bool {
        self.marks[mark_index(hash)].load(Ordering::Relaxed) > 0
    }

    /// Whether any key may have waiters.
    pub(crate) fn is_any_marked(&self) -> bool {
        let mut marks = self.marks.iter();
        marks.any(|mark| mark.load(Ordering::Relaxed) > 0)
    }

    /// Changes the queue of a key, which is made if there is none, and wakes the affected waiters.
    pub(crate) fn visit<R>(
        &self,
        (hash, is_same): (u64, impl Fn(&K) -> bool),
        key: impl FnOnce() -> K,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<FifoQueue<T>>) -> R,
    ) -> R {
        let mut shard = ignore_poison(self.shards[mark_index(hash)].lock());
        let lines = shard.entry(hash).or_default();
        let place = match lines.iter().position(|line| is_same(&line.key)) {
            Some(place) => place,
            None => {
                // Set the mark before the first peek at the limit: later callers queue behind.
                self.marks[mark_index(hash)].fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if lines.is_empty() {
                    lines.reserve_exact(1);
                }
                lines.push(KeyQueue {
                    key: key(),
                    state: QueueState::new(FifoQueue::new()),
                });
                lines.len() - 1
            }
        };
        let state = &mut lines[place].state;
        let result = change(state);
        let woken = state.collect_wakeups(present);
        let gone = self.remove_if_empty(&mut shard, hash, place);
        drop(shard);
        // Dropped after the lock is released, because the key's type is the caller's and its `Drop` may
        // do anything.
        drop(gone);
        woken.wake();
        result
    }

    /// Changes the queue of a key, if it has one.
    pub(crate) fn visit_if_any<R>(
        &self,
        (hash, is_same): (u64, impl Fn(&K) -> bool),
        change: impl FnOnce(&mut QueueState<FifoQueue<T>>) -> R,
    ) -> Option<R> {
        if !self.is_marked(hash) {
            return None;
        }
        let mut shard = ignore_poison(self.shards[mark_index(hash)].lock());
        let lines = shard.get_mut(&hash)?;
        let place = lines.iter().position(|line| is_same(&line.key))?;
        let state = &mut lines[place].state;
        let result = change(state);
        let woken = state.collect_wakeups(None);
        // If a place is still taken, its waiter will come back: it may have passed without having
        // polled since. If none is, the queue existed for a reservation that has just ended.
        let gone = self.remove_if_empty(&mut shard, hash, place);
        drop(shard);
        drop(gone);
        woken.wake();
        Some(result)
    }

    /// Removes the queue of a key, unless somebody waits or may cancel a reservation that was made
    /// behind waiters.
    fn remove_if_empty(
        &self,
        shard: &mut Shard<K, T>,
        hash: u64,
        place: usize,
    ) -> Option<KeyQueue<K, T>> {
        let lines = shard.get_mut(&hash)?;
        if !lines[place].state.waits.is_unused() {
            return None;
        }
        let gone = lines.swap_remove(place);
        self.marks[mark_index(hash)].fetch_sub(1, Ordering::Relaxed);
        if lines.is_empty() {
            shard.remove(&hash);
        }
        if shard.is_empty() && shard.capacity() > KEPT_SLOTS {
            *shard = Shard::default();
        }
        Some(gone)
    }

    /// Changes every queue. A queue that is made meanwhile sees the earlier changes.
    pub(crate) fn visit_all(&self, mut change: impl FnMut(u64, &K, &mut QueueState<FifoQueue<T>>)) {
        for number in 0..MARK_COUNT {
            let mut woken = Vec::new();
            let mut shard = ignore_poison(self.shards[number].lock());
            for (hash, lines) in shard.iter_mut() {
                for line in lines {
                    change(*hash, &line.key, &mut line.state);
                    woken.push(line.state.collect_wakeups(None));
                }
            }
            drop(shard);
            woken.into_iter().for_each(PendingWakeups::wake);
        }
    }
}

#[inline(always)]
fn mark_index(hash: u64) -> usize {
    usize::try_from(hash % MARK_COUNT as u64).unwrap_or(0)
}

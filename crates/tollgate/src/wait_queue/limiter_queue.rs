//! The queue of one limit, and a mark that shows whether it has waiters or a held reservation.

use std::fmt;

use super::QueueState;
use super::fifo_queue::FifoQueue;
use super::waiter_places::WaiterId;
use crate::cell::Outstanding;
use crate::sync::{AtomicU32, Mutex, Ordering, fence, ignore_poison};

/// There are waiters, and new requests queue behind them.
const HAS_WAITERS: u32 = 1;
/// Something is held that must not drain, and every caller must bring that up to its own time first.
const HAS_HOLDS: u32 = 2;

/// A queue of which a check reads only the mark, while nobody waits and nothing is held.
///
/// # Memory ordering
/// A check that hasn't seen the mark began before it was set, and counts as coming before the waiter:
/// that needs no order. A thread that refunds tokens must not miss a waiter that has polled already.
/// The waiter sets the mark and then polls; the other thread refunds and then reads the mark; each has
/// a sequentially consistent fence in between. So at least one of them sees the other's write.
///
/// A thread that holds a reservation sets the mark and, after the fence, reads the clock. A check that
/// hasn't seen the mark read the clock before, so its time is no later than that from which held tokens
/// must not drain.
#[derive(Debug)]
pub(crate) struct LimiterQueue<T> {
    flags: AtomicU32,
    state: Mutex<QueueState<FifoQueue<T>>>,
}

impl<T: Clone + fmt::Debug> LimiterQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            state: Mutex::new(QueueState::new(FifoQueue::new())),
        }
    }

    /// Whether there may be waiters or something held.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// Whether something may be held.
    pub(crate) fn outstanding(&self) -> Outstanding {
        match self.flags.load(Ordering::Relaxed) & HAS_HOLDS {
            0 => Outstanding::NoneHeld,
            _ => Outstanding::SomeHeld,
        }
    }

    /// Changes the queue, and wakes the affected waiters.
    pub(crate) fn visit<R>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<FifoQueue<T>>) -> R,
    ) -> R {
        let mut state = ignore_poison(self.state.lock());
        // Set the mark before the first peek at the limit: later callers queue behind.
        self.flags
            .store(HAS_WAITERS | holds_flag(&state.waits), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = change(&mut state);
        let woken = state.collect_wakeups(present);
        state.free_memory();
        let waited_for = if state.waits.has_no_claims() {
            0
        } else {
            HAS_WAITERS
        };
        self.flags
            .store(waited_for | holds_flag(&state.waits), Ordering::Relaxed);
        drop(state);
        woken.wake();
        result
    }
}

const fn holds_flag<T>(waits: &FifoQueue<T>) -> u32 {
    if waits.is_held { HAS_HOLDS } else { 0 }
}

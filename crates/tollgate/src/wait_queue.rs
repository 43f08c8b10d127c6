//! Waiting in a queue: locks, wake-ups and timers. The order of service is decided by
//! `wait_queue/fifo_queue.rs` for the queue of one limit, and by `wait_queue/shared_queue.rs` where
//! several clients or lanes share one.
//!
//! There is no background thread. The first waiter keeps the time for all: it arms a timer for its due
//! time, and when that fires, it advances the queue and wakes exactly the waiters that passed or were
//! dropped. When it leaves, for whatever reason, the next one is woken to take over, unless its own
//! timer is early enough. Every call that touches the queue advances it as well. So a timer that fires
//! late causes a delay, but loses no token: each waiter is charged as of its due time.

use std::task::Waker;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

pub(crate) mod fifo_queue;
#[cfg(not(any(loom, shuttle)))]
mod future;
pub(crate) mod key_queues;
pub(crate) mod limiter_queue;
pub(crate) mod queue_limit;
mod queued_acquire;
pub(crate) mod shared_queue;
pub(crate) mod waiter_count;
pub(crate) mod waiter_places;
pub(crate) mod waiter_wakers;

use crate::RateDenied;
use crate::cell::ChargeTicket;
use crate::clock::Clock;
use crate::sync::{Mutex, ignore_poison};
#[cfg(not(any(loom, shuttle)))]
pub use future::QueuedAcquireFuture;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use future::QueuedWaiterFuture;
pub use queued_acquire::QueuedAcquire;
use shared_queue::{JoinOutcome, QueueDiscipline, SharedQueue};
use waiter_places::WaiterId;
use waiter_wakers::{PendingWakeups, WaiterWakers};

/// The waiters of a queue, in whatever order they are served.
pub trait Waiters {
    /// The waiter that is served next, and when.
    fn first(&self) -> Option<(WaiterId, Timestamp)>;

    /// When this waiter must poll again if nothing wakes it.
    fn next_poll_at(&mut self, now: Timestamp, id: WaiterId) -> Option<Timestamp>;

    /// Waiters whose wait has ended; each is returned once.
    fn take_finished(&mut self) -> Vec<WaiterId>;

    /// The result of this waiter, if its wait has ended: the charge or the denial. Its place is free
    /// then.
    fn collect(&mut self, id: WaiterId, now: Timestamp) -> Option<Result<WaitOutcome, RateDenied>>;

    /// Frees the memory of many waiters, if none of them remains and the queue stays.
    fn free_memory(&mut self) -> bool {
        false
    }
}

/// A pointer to a queue in which a waiter can stand.
pub trait WaitQueue: Copy {
    type Waits: Waiters;

    fn clock(&self) -> &dyn Clock;

    /// Changes the queue, makes sure that a waiter keeps the time, and wakes the affected waiters. Not
    /// `present`, which is polling already.
    fn visit<T>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<Self::Waits>) -> T,
    ) -> T;

    /// Serves every waiter that is due by `now`.
    fn advance(&self, waits: &mut Self::Waits, now: Timestamp);

    /// Removes this waiter, after every waiter that was due before was served.
    fn leave(&self, waits: &mut Self::Waits, now: Timestamp, id: WaiterId);

    /// A waiter gave up its place.
    fn waiter_left(&self) {}
}

/// A pointer to the queue of a waiter, borrowed or shared.
pub(crate) trait QueuePointer {
    type Post<'a>: WaitQueue
    where
        Self: 'a;

    fn post(&self) -> Self::Post<'_>;

    /// Sleeps by the queue's clock. Nothing may lie between a poll and this: a thread of the model
    /// checker that yields in between loses a wake-up, which real threads don't.
    fn nap_until(&self, at: Timestamp) {
        self.post().clock().park_until_woken(at);
    }
}

/// A queue, and the wakers of its waiters.
#[derive(Debug)]
pub struct QueueState<W> {
    pub(crate) waits: W,
    seats: WaiterWakers,
}

/// A waiter that was served.
#[derive(Clone, Copy, Debug)]
pub struct WaitOutcome {
    /// Its due time.
    pub(crate) at: Timestamp,
    pub(crate) waited: Duration,
    /// Its charge, if that can be refunded.
    pub(crate) ticket: Option<ChargeTicket>,
}

/// The state of a wait.
pub(crate) enum WaitProgress {
    Done(Result<WaitOutcome, RateDenied>),
    /// It waits for a wake-up, or until this time if it keeps the time or has a deadline.
    Waiting(Option<Timestamp>),
}

/// A place in the queue; dropping it leaves the queue without a charge.
pub(crate) struct QueuedWaiter<S: QueuePointer> {
    at: S,
    /// None once the place is free, because another waiter may have it.
    id: Option<WaiterId>,
}

impl<W: Waiters> QueueState<W> {
    pub(crate) const fn new(waits: W) -> Self {
        Self {
            waits,
            seats: WaiterWakers::new(),
        }
    }

    /// Collects the wakers to call and to drop after a change, once the lock is released.
    pub(crate) fn collect_wakeups(&mut self, present: Option<WaiterId>) -> PendingWakeups {
        let (done, first) = (self.waits.take_finished(), self.waits.first());
        self.seats.collect_wakeups(done, first, present)
    }

    /// Frees the memory of many waiters, once none of them remains.
    fn free_memory(&mut self) {
        if self.seats.are_many() && self.waits.free_memory() {
            self.seats.clear();
        }
    }
}

impl<S: QueuePointer> QueuedWaiter<S> {
    /// The waiter that got this place in this queue.
    pub(crate) const fn new(at: S, id: WaiterId) -> Self {
        Self { at, id: Some(id) }
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn at(&self) -> &S {
        &self.at
    }

    /// Polls whether the wait has ended; if not, this waker will be called.
    pub(crate) fn poll_outcome(&mut self, waker: &Waker) -> WaitProgress {
        let Some(id) = self.id else {
            panic!("a queue position was polled after it had been left");
        };
        let (post, place) = (self.at.post(), &mut self.id);
        post.visit(Some(id), |state| {
            let now = post.clock().now();
            post.advance(&mut state.waits, now);
            if let Some(result) = state.waits.collect(id, now) {
                state.seats.remove_waker(id);
                *place = None;
                post.waiter_left();
                return WaitProgress::Done(result);
            }
            let until = state.waits.next_poll_at(now, id);
            state.seats.store_waker(id, waker, until);
            WaitProgress::Waiting(until)
        })
    }

    /// Blocks the thread, but gives up after this many polls, as a dropped future would. For the model
    /// checker.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn wait_for_polls(
        mut self,
        looks: usize,
    ) -> Option<Result<WaitOutcome, RateDenied>> {
        let waker = crate::patience::thread_waker();
        for left in (0..looks).rev() {
            match self.poll_outcome(&waker) {
                WaitProgress::Done(result) => return Some(result),
                WaitProgress::Waiting(until) if left > 0 => {
                    let until = until.unwrap_or(Timestamp::MAX);
                    self.at.nap_until(until);
                }
                WaitProgress::Waiting(_) => {}
            }
        }
        None
    }

    /// Blocks the thread until the wait ends.
    pub(crate) fn wait_blocking(mut self) -> Result<WaitOutcome, RateDenied> {
        let waker = crate::patience::thread_waker();
        loop {
            match self.poll_outcome(&waker) {
                WaitProgress::Done(result) => return result,
                WaitProgress::Waiting(until) => {
                    let until = until.unwrap_or(Timestamp::MAX);
                    self.at.nap_until(until);
                }
            }
        }
    }
}

impl<S: QueuePointer> Drop for QueuedWaiter<S> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let post = self.at.post();
        post.visit(None, |state| {
            let now = post.clock().now();
            post.leave(&mut state.waits, now, id);
            state.seats.remove_waker(id);
        });
        post.waiter_left();
    }
}

/// A queue that threads and tasks share, with its clock.
pub(crate) struct SharedWaitQueue<D: QueueDiscipline, C> {
    state: Mutex<QueueState<SharedQueue<D>>>,
    clock: C,
}

impl<D: QueueDiscipline, C: Clock> SharedWaitQueue<D, C> {
    pub(crate) fn new(discipline: D, most: usize, clock: C) -> Self {
        Self {
            state: Mutex::new(QueueState::new(SharedQueue::new(discipline, most))),
            clock,
        }
    }

    pub(crate) const fn clock(&self) -> &C {
        &self.clock
    }

    /// Reads the queue as of its latest change.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&SharedQueue<D>) -> T) -> T {
        read(&ignore_poison(self.state.lock()).waits)
    }

    pub(crate) fn allow(&self, ask: &D::Client, cost: u64) -> bool {
        self.visit(None, |state| {
            let now = self.clock.now();
            state.waits.allow(now, ask, cost)
        })
    }

    pub(crate) fn check(&self, ask: &D::Client, cost: u64) -> Decision {
        self.visit(None, |state| {
            let now = self.clock.now();
            state.waits.check(now, ask, cost)
        })
    }

    /// Passes, or joins the queue.
    fn enter(
        &self,
        ask: D::Client,
        cost: u64,
        patience: impl FnOnce(Timestamp) -> Option<Timestamp>,
    ) -> Result<Option<QueuedWaiter<&Self>>, RateDenied> {
        let entered = self.visit(None, |state| {
            let now = self.clock.now();
            // A new waiter polls as soon as it begins to wait, so it needn't be woken before that.
            state.waits.join(now, ask, cost, patience(now))
        })?;
        Ok(match entered {
            JoinOutcome::Passed => None,
            JoinOutcome::Waiting(id) => Some(QueuedWaiter::new(self, id)),
        })
    }
}

impl<D: QueueDiscipline, C: Clock> QueuePointer for &SharedWaitQueue<D, C> {
    type Post<'a>
        = Self
    where
        Self: 'a;

    fn post(&self) -> Self {
        self
    }
}

impl<D: QueueDiscipline, C: Clock> WaitQueue for &SharedWaitQueue<D, C> {
    type Waits = SharedQueue<D>;

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn visit<T>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<SharedQueue<D>>) -> T,
    ) -> T {
        let mut state = ignore_poison(self.state.lock());
        let result = change(&mut state);
        let woken = state.collect_wakeups(present);
        drop(state);
        woken.wake();
        result
    }

    fn advance(&self, waits: &mut SharedQueue<D>, now: Timestamp) {
        waits.advance(now);
    }

    fn leave(&self, waits: &mut SharedQueue<D>, now: Timestamp, id: WaiterId) {
        waits.leave(now, id);
    }
}

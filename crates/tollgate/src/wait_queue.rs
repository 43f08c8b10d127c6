//! Wait queues: locks, wake-ups and timers. `wait_queue/fifo_queue.rs` orders the waiters of one limit, and
//! `wait_queue/shared_queue.rs` those of several clients or lanes.
//!
//! There is no background thread. The first waiter keeps the time for all: it arms a timer for the time at which it
//! passes. When the timer fires, it advances the queue and wakes exactly the waiters that passed or were dropped. When
//! it leaves, for any reason, the next waiter is woken to take over, unless its own timer is early enough. Every call
//! that touches the queue advances it as well. So a late timer causes a delay, but loses no token: each waiter passes
//! as of the time at which it became due.

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

/// The waiters of a queue, in the order of its discipline.
pub trait Waiters {
    /// The waiter that passes next, and when.
    fn first(&self) -> Option<(WaiterId, Timestamp)>;

    /// The time at which this waiter must check again if nothing wakes it.
    fn next_poll_at(&mut self, now: Timestamp, id: WaiterId) -> Option<Timestamp>;

    /// Waiters that no longer wait; each is returned once.
    fn take_finished(&mut self) -> Vec<WaiterId>;

    /// The result for this waiter, if it no longer waits: how it passed, or why it was denied. Its position is free
    /// then.
    fn collect(&mut self, id: WaiterId, now: Timestamp) -> Option<Result<WaitOutcome, RateDenied>>;

    /// Frees the memory of many waiters, if none of them remains and the queue stays.
    fn free_memory(&mut self) -> bool {
        false
    }
}

/// A queue that waiters can join.
pub trait WaitQueue: Copy {
    type Waits: Waiters;

    fn clock(&self) -> &dyn Clock;

    /// Changes the queue, makes sure that a waiter keeps the time, and wakes the affected waiters, except `present`,
    /// which is already running.
    fn visit<T>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<Self::Waits>) -> T,
    ) -> T;

    /// Lets every waiter pass that is due by `now`.
    fn advance(&self, waits: &mut Self::Waits, now: Timestamp);

    /// Removes this waiter, after every waiter that was due before has passed.
    fn leave(&self, waits: &mut Self::Waits, now: Timestamp, id: WaiterId);

    /// Records that a waiter left.
    fn waiter_left(&self) {}
}

/// A pointer to the queue of a waiter, borrowed or shared.
pub(crate) trait QueuePointer {
    type Post<'a>: WaitQueue
    where
        Self: 'a;

    fn post(&self) -> Self::Post<'_>;

    /// Sleeps by the queue's clock. Nothing may come between a check of the queue and this call: a thread of a model
    /// checker that yields in between would lose a wake-up, unlike a real one.
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

/// The result for a waiter that passed.
#[derive(Clone, Copy, Debug)]
pub struct WaitOutcome {
    /// The time at which it passed.
    pub(crate) at: Timestamp,
    pub(crate) waited: Duration,
    /// The receipt of its charge, if that can be refunded.
    pub(crate) ticket: Option<ChargeTicket>,
}

/// The state of a wait.
pub(crate) enum WaitProgress {
    Done(Result<WaitOutcome, RateDenied>),
    /// It waits for a wake-up, or until this time if it keeps the time or has a deadline.
    Waiting(Option<Timestamp>),
}

/// A position in a queue. Dropping it frees the position, and charges nothing.
pub(crate) struct QueuedWaiter<S: QueuePointer> {
    at: S,
    /// `None` once the position is free, and may belong to another waiter.
    id: Option<WaiterId>,
}

impl<W: Waiters> QueueState<W> {
    pub(crate) const fn new(waits: W) -> Self {
        Self {
            waits,
            seats: WaiterWakers::new(),
        }
    }

    /// The wakers to call and to drop after a change, once the lock is released.
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
    /// The waiter with this position in the queue.
    pub(crate) const fn new(at: S, id: WaiterId) -> Self {
        Self { at, id: Some(id) }
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn at(&self) -> &S {
        &self.at
    }

    /// Checks whether it still has to wait. If so, this waker will wake it.
    pub(crate) fn poll_outcome(&mut self, waker: &Waker) -> WaitProgress {
        let Some(id) = self.id else {
            panic!("a place in line was looked at after it had been left");
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

    /// Blocks the thread, but gives up after this many polls, as a dropped future would. For the model checker.
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

    /// Blocks the thread until the wait is over.
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

/// A queue shared by threads and tasks, with its clock.
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

    /// Reads the queue as it was when it was last changed.
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
            // A new waiter polls as soon as it begins to wait, so it needs no wake-up before.
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

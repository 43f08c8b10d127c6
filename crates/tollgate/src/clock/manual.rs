//! A clock for tests that moves only by explicit calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::{Clock, Wakeup};
use crate::sync::{Thread, current_thread, ignore_poison, park};

/// A clock that a test advances by hand. Clones share one time.
///
/// It drives decisions and waits, blocking or awaited on any executor: a wait lasts until [`advance`](Self::advance)
/// reaches its time.
///
/// ```
/// use std::sync::Arc;
/// use std::thread;
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = Arc::new(Limiter::with_clock(Rate::per_second(1), clock.clone()));
/// assert!(limiter.allow());
///
/// let waiter = {
///     let limiter = Arc::clone(&limiter);
///     thread::spawn(move || limiter.acquire().wait_blocking())
/// };
/// while clock.parked() == 0 {
///     thread::yield_now(); // until the waiter has parked
/// }
/// assert!(!waiter.is_finished());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(waiter.join().unwrap(), Ok(Duration::from_secs(1)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Manual {
    shared: Arc<ManualState>,
}

#[derive(Debug, Default)]
struct ManualState {
    nanos: AtomicU64,
    parked: Mutex<ManualWaiters>,
    time_moved: Condvar,
}

/// The threads and tasks that wait.
#[derive(Debug, Default)]
struct ManualWaiters {
    count: usize,
    /// Threads that are unparked when time moves, because other events unpark them too.
    parked_threads: Vec<Thread>,
    /// The wakers of tasks, by the time of their wake-up and then by their order of arrival.
    wakers: BTreeMap<(Timestamp, u64), Waker>,
    next: u64,
}

impl Manual {
    /// A clock that stands at the origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that stands at `now`.
    pub fn starting_at(now: Timestamp) -> Self {
        let clock = Self::new();
        clock.set(now);
        clock
    }

    /// Moves time forward and wakes every thread and task that is due.
    pub fn advance(&self, by: Duration) {
        self.move_time(|now| now + by);
    }

    /// Moves time to any point, even back, as a faulty clock would.
    pub fn set(&self, now: Timestamp) {
        self.move_time(|_| now);
    }

    /// The number of threads that are blocked in a wait on this clock, plus the tasks that wait for a time of it.
    pub fn parked(&self) -> usize {
        let parked = self.lock();
        parked.count + parked.wakers.len()
    }

    fn move_time(&self, time: impl FnOnce(Timestamp) -> Timestamp) {
        let mut parked = self.lock();
        let before = self.now();
        let now = time(before);
        self.shared.nanos.store(now.as_nanos(), Ordering::Release);
        let napping = parked.parked_threads.clone();
        // When time goes back, all waiters are woken, because their deadlines may have changed.
        let up_to = if now < before { Timestamp::MAX } else { now };
        let later = parked.wakers.split_off(&(up_to, u64::MAX));
        let due = std::mem::replace(&mut parked.wakers, later);
        let is_awaited = parked.count > 0;
        drop(parked);
        due.into_values().for_each(Waker::wake);
        // The waiters were counted under the lock. Without waiters the notification is skipped: it would cost a system
        // call for each event of a simulation.
        if is_awaited {
            self.shared.time_moved.notify_all();
        }
        for thread in napping {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ManualWaiters> {
        ignore_poison(self.shared.parked.lock())
    }
}

impl Clock for Manual {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.shared.nanos.load(Ordering::Acquire))
    }

    fn source_id(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.shared).addr())
    }

    fn sleep_until_time(&self, at: Timestamp) {
        let mut parked = self.lock();
        parked.count += 1;
        while self.now() < at {
            parked = ignore_poison(self.shared.time_moved.wait(parked));
        }
        parked.count -= 1;
    }

    fn park_until_woken(&self, at: Timestamp) {
        let thread = current_thread();
        let id = thread.id();
        let mut parked = self.lock();
        parked.count += 1;
        parked.parked_threads.push(thread);
        drop(parked);
        // If time moved before the thread was recorded, it shows here; a later move unparks the thread.
        if self.now() < at {
            park();
        }
        let mut parked = self.lock();
        parked.count -= 1;
        if let Some(place) = parked
            .parked_threads
            .iter()
            .position(|other| other.id() == id)
        {
            parked.parked_threads.swap_remove(place);
        }
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        let mut parked = self.lock();
        let key = (at, parked.next);
        parked.next += 1;
        // Time moves under the same lock: a move shows here, or finds the task.
        if self.now() < at {
            parked.wakers.insert(key, waker.clone());
        } else {
            drop(parked);
            waker.wake_by_ref();
        }
        let clock = self.clone();
        Some(Wakeup::new(move || {
            let waker = clock.lock().wakers.remove(&key);
            // Dropping a waker may drop a task that owns a clone of this clock, so it happens outside the lock.
            drop(waker);
        }))
    }
}

//! What debouncers and coalescers share: a store of pending jobs, an action that runs them, and how
//! both end.
//!
//! One lock guards the store, the number of running actions, and whether it was stopped. So after
//! `stop` has returned, no action starts, and a caller that waits for running actions misses none.
//! Actions run without the lock, one after another: an action that becomes due while another runs
//! starts when that has ended. Only an action that makes itself due again (a call from inside, with a
//! leading edge) runs inside of itself, as it would in the single thread of JavaScript.
//!
//! There is no periodic tick. The driver is a future that sleeps until the next due time, and without a
//! timer while nothing waits.

use std::cell::RefCell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
#[cfg(not(any(loom, shuttle)))]
use std::{future::poll_fn, pin::pin};

use derive_more::{Display, Error};
#[cfg(not(any(loom, shuttle)))]
use tollgate::clock::sleep_until;
use tollgate::internal::{ignore_poison, thread_waker};
use tollgate::{Clock, Timestamp};

#[cfg(not(any(loom, shuttle)))]
mod driver;

use crate::sync::{Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use driver::RunnerDriver;

/// The store of pending jobs, which decides when they are due.
pub trait PendingStore: Send + 'static {
    /// The name of its kind, for debugging.
    const NAME: &'static str;
    /// The argument of an action.
    type Job: Send + 'static;
    /// The result of an action.
    type Outcome: Send + 'static;
    /// What a clear returns.
    type Remaining;

    /// The number of pending items.
    fn pending(&self) -> usize;

    /// The next time at which the store has to be checked, if anything waits.
    fn due(&self) -> Option<Timestamp>;

    /// The next job that is due by `now`.
    fn take(&mut self, now: Timestamp) -> Option<Self::Job>;

    /// Stores a job that can't run yet, because another one does: [`take`](Self::take) returns it
    /// later.
    fn defer(&mut self, job: Self::Job);

    /// An action ended; without an outcome if it panicked or was dropped.
    fn ended(&mut self, now: Timestamp, outcome: Option<Self::Outcome>);

    /// Follows a clock that was set back: the time `from` is `to` now, and everything keeps its
    /// remaining wait.
    fn follow_clock_back(&mut self, from: Timestamp, to: Timestamp);

    /// Makes everything due.
    fn flush(&mut self, now: Timestamp);

    /// Takes out everything that waits.
    fn clear(&mut self) -> Self::Remaining;

    /// The wakers of callers that may continue after a change.
    fn take_woken(&mut self) -> Vec<Waker> {
        Vec::new()
    }
}

/// What to do after a change.
pub(crate) enum AfterChange<J> {
    /// Nothing: the driver's timer is early enough.
    None,
    /// Wake the driver, because something is due earlier than its timer.
    WakeDriver,
    /// This runs now.
    Fire(J),
}

type OutcomeFuture<O> = Pin<Box<dyn Future<Output = O> + Send>>;

/// The user's action.
pub(crate) enum Action<S: PendingStore> {
    Sync(Box<dyn Fn(S::Job) -> S::Outcome + Send + Sync>),
    Async(Box<dyn Fn(S::Job) -> OutcomeFuture<S::Outcome> + Send + Sync>),
}

/// Shared, so that a thread that runs the action keeps it until it has ended.
type SharedAction<S> = Arc<Action<S>>;

/// The counters so far.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Debounce;
///
/// let debouncer = Debounce::new(Duration::from_millis(100))
///     .clock(Manual::new())
///     .build(|value: u32| assert!(value > 0, "this panics"));
/// debouncer.call(0);
/// debouncer.flush();
/// assert_eq!((debouncer.stats().fired, debouncer.stats().panicked), (1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Actions that were started.
    pub fired: u64,
    /// Actions that panicked.
    pub panicked: u64,
}

/// The whole state of one debouncer or coalescer.
pub(crate) struct Runner<S: PendingStore, C> {
    state: Mutex<RunnerState<S>>,
    pub(crate) clock: C,
}

struct RunnerState<S: PendingStore> {
    store: S,
    /// None once it was stopped.
    action: Option<SharedAction<S>>,
    /// The number of running actions, which are nested in each other.
    running: usize,
    /// The latest time that was read.
    last_now: Timestamp,
    /// All handles are gone or it is being closed: it stops once nothing is due.
    is_closing: bool,
    stats: Stats,
    /// Wakes the driver.
    driver: Option<Waker>,
    /// The callers that wait until no action runs.
    drain_wakers: Vec<Waker>,
}

/// How an action ended.
pub(crate) enum JobEnd<O> {
    Completed(O),
    Panicked,
    /// The future that ran it was dropped before its end.
    Aborted,
}

/// The next step of a driver.
pub(crate) enum DriverStep<S: PendingStore> {
    Run(SharedAction<S>, S::Job),
    Sleep(Timestamp),
    Idle,
    Stopped,
}

impl<S: PendingStore, C: Clock> Runner<S, C> {
    pub(crate) fn new(store: S, action: Action<S>, clock: C) -> Self {
        Self {
            state: Mutex::new(RunnerState {
                store,
                action: Some(Arc::new(action)),
                running: 0,
                last_now: Timestamp::ZERO,
                is_closing: false,
                stats: Stats::default(),
                driver: None,
                drain_wakers: Vec::new(),
            }),
            clock,
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().action.is_none()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// Reads the store, even after a stop.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.lock().store)
    }

    /// Makes a change after which nothing is due earlier, even after a stop.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.store);
        Self::wake(None, state);
        result
    }

    /// Changes the store, and acts on the result. None if it was stopped: then nothing is changed.
    #[inline]
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut S, Timestamp) -> (T, AfterChange<S::Job>),
    ) -> Option<T> {
        let mut state = self.lock();
        state.action.as_ref()?;
        let now = self.now(&mut state);
        let (result, then) = change(&mut state.store, now);
        match then {
            AfterChange::None => Self::wake(None, state),
            AfterChange::WakeDriver => Self::wake(state.driver.clone(), state),
            AfterChange::Fire(job) => self.fire_now_or_defer(state, job),
        }
        Some(result)
    }

    /// Runs a job on this thread if no action runs on another one, or else leaves it to the driver.
    #[inline(never)]
    fn fire_now_or_defer(&self, mut state: MutexGuard<'_, RunnerState<S>>, job: S::Job) {
        let is_free = state.running == 0 || self.is_inside_action();
        let action = state.action.clone();
        match action {
            Some(action) if is_free && matches!(*action, Action::Sync(_)) => {
                state.running += 1;
                state.stats.fired += 1;
                drop(state);
                self.run(action, job);
            }
            _ => {
                state.store.defer(job);
                Self::wake(state.driver.clone(), state);
            }
        }
    }

    /// Runs a sync action for a job that was counted as running.
    pub(crate) fn run(&self, action: SharedAction<S>, job: S::Job) {
        let Action::Sync(call) = &*action else {
            return self.finish(JobEnd::Aborted);
        };
        let inside = ActionScope::enter(self.id());
        let outcome = catch_unwind(AssertUnwindSafe(|| call(job)));
        // After a stop, drop the action's captures before it counts as ended.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(action)));
        // Before `finish`, so that a caller that it wakes isn't considered inside of the action.
        drop(inside);
        self.finish(match (outcome, dropped) {
            (Ok(outcome), Ok(())) => JobEnd::Completed(outcome),
            _ => JobEnd::Panicked,
        });
    }

    /// An action that was counted as running has ended.
    pub(crate) fn finish(&self, ended: JobEnd<S::Outcome>) {
        let has_panicked = matches!(ended, JobEnd::Panicked);
        let outcome = match ended {
            JobEnd::Completed(outcome) => Some(outcome),
            JobEnd::Panicked | JobEnd::Aborted => None,
        };
        if has_panicked {
            let name = S::NAME;
            tracing::error!("an action of a {name} panicked; it goes on, and the panic is counted");
        }
        let mut state = self.lock();
        state.running -= 1;
        state.stats.panicked += u64::from(has_panicked);
        let now = self.now(&mut state);
        state.store.ended(now, outcome);
        let is_free = state.running == 0;
        let mut wakers = Vec::new();
        if is_free && state.action.is_none() {
            wakers.append(&mut state.drain_wakers);
        }
        if is_free && (state.store.due().is_some() || state.is_closing) {
            wakers.extend(state.driver.clone());
        }
        Self::wake(wakers, state);
    }

    /// The next step of the driver. This waker is called if something becomes due earlier.
    pub(crate) fn next(&self, waker: &Waker) -> DriverStep<S> {
        let mut state = self.lock();
        let Some(action) = state.action.clone() else {
            return DriverStep::Stopped;
        };
        let known = state.driver.as_ref();
        // Stored under the same lock as `take`, so that every later change finds it.
        let old = if known.is_some_and(|known| known.will_wake(waker)) {
            None
        } else {
            state.driver.replace(waker.clone())
        };
        let next = if state.running > 0 {
            // The thread that ends the action wakes the driver.
            DriverStep::Idle
        } else {
            let now = self.now(&mut state);
            match state.store.take(now) {
                Some(job) => {
                    state.running += 1;
                    state.stats.fired += 1;
                    DriverStep::Run(action, job)
                }
                None => state
                    .store
                    .due()
                    .map_or(DriverStep::Idle, DriverStep::Sleep),
            }
        };
        let is_over = state.is_closing && matches!(next, DriverStep::Idle) && state.running == 0;
        drop(state);
        // Dropping a waker may drop a task, so it isn't dropped under the lock.
        drop(old);
        if is_over {
            drop(self.stop());
            return DriverStep::Stopped;
        }
        next
    }

    /// Prevents new actions, and returns the pending jobs once. Running actions continue.
    pub(crate) fn stop(&self) -> Option<S::Remaining> {
        let mut state = self.lock();
        // Dropping an action drops its captures, possibly a handle, so it isn't dropped under the lock.
        let action = state.action.take();
        let rest = action.is_some().then(|| state.store.clear());
        let mut wakers = state.store.take_woken();
        wakers.extend(state.driver.take());
        if state.running == 0 {
            wakers.append(&mut state.drain_wakers);
        }
        drop(state);
        drop(action);
        wakers.into_iter().for_each(Waker::wake);
        rest
    }

    /// Makes everything due now, and then stops.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        state.is_closing = true;
        state.store.flush(now);
        Self::wake(state.driver.clone(), state);
    }

    /// The clock's time, read under the lock, so that the store sees times in order unless the clock
    /// was set back.
    #[inline]
    fn now(&self, state: &mut RunnerState<S>) -> Timestamp {
        let now = self.clock.now();
        if now < state.last_now {
            // Otherwise nothing would fire until the clock has caught up.
            state.store.follow_clock_back(state.last_now, now);
        }
        state.last_now = now;
        now
    }

    /// Calls these wakers, and those of callers that may continue, after releasing the lock.
    fn wake(wakers: impl IntoIterator<Item = Waker>, mut state: MutexGuard<'_, RunnerState<S>>) {
        let woken = state.store.take_woken();
        drop(state);
        woken.into_iter().chain(wakers).for_each(Waker::wake);
    }

    /// Whether this thread is inside of one of its actions.
    pub(crate) fn is_inside_action(&self) -> bool {
        ActionScope::depth(self.id()) > 0
    }

    /// Identifies this runner in the thread's list of running actions.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock(&self) -> MutexGuard<'_, RunnerState<S>> {
        // Only a user's own `Hash`, `Eq` or merge function can panic under this lock, and the stores
        // stay valid then.
        ignore_poison(self.state.lock())
    }
}

/// For models of races, which have no driver.
#[cfg(any(loom, shuttle))]
impl<S: PendingStore, C: Clock> Runner<S, C> {
    /// Runs what is due, as a driver does when it wakes up. Returns whether anything was due.
    pub(crate) fn tick(&self) -> bool {
        match self.next(Waker::noop()) {
            DriverStep::Run(action, job) => {
                self.run(action, job);
                true
            }
            _ => false,
        }
    }
}

/// What happens to pending jobs when the last handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDrop {
    Discard,
    Flush,
}

/// The callers' side of a runner. The driver doesn't own it, so it is dropped with the last handle.
pub(crate) struct RunnerOwner<S: PendingStore, C: Clock> {
    pub(crate) work: Arc<Runner<S, C>>,
    pub(crate) at_end: OnDrop,
}

impl<S: PendingStore, C: Clock> Deref for RunnerOwner<S, C> {
    type Target = Runner<S, C>;

    fn deref(&self) -> &Runner<S, C> {
        &self.work
    }
}

impl<S: PendingStore, C: Clock> Drop for RunnerOwner<S, C> {
    fn drop(&mut self) {
        match self.at_end {
            OnDrop::Discard => drop(self.work.stop()),
            OnDrop::Flush => self.work.close(),
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static RUNNING_ACTIONS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

// A model's threads have their own, which is initialized at run time.
#[cfg(any(loom, shuttle))]
crate::sync::thread_local! {
    static RUNNING_ACTIONS: RefCell<Vec<usize>> = RefCell::new(Vec::new());
}

/// While it lives, this thread is inside of an action.
struct ActionScope;

impl ActionScope {
    /// This thread begins to run an action of this runner.
    fn enter(id: usize) -> Self {
        RUNNING_ACTIONS.with(|inside| inside.borrow_mut().push(id));
        Self
    }

    /// How many actions of this runner are nested on this thread.
    fn depth(id: usize) -> usize {
        RUNNING_ACTIONS.with(|inside| inside.borrow().iter().filter(|other| **other == id).count())
    }
}

impl Drop for ActionScope {
    fn drop(&mut self) {
        RUNNING_ACTIONS.with(|inside| inside.borrow_mut().pop());
    }
}

/// The deadline passed while an action ran. It continues, but no other one starts.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::DrainTimeout;
///
/// let error = DrainTimeout { waited: Duration::from_secs(5) };
/// assert_eq!(
///     error.to_string(),
///     "an action still runs after 5s: it goes on, and no other one starts"
/// );
/// ```
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display("an action still runs after {waited:?}: it goes on, and no other one starts")]
pub struct DrainTimeout {
    /// How long the caller waited.
    pub waited: Duration,
}

impl<S: PendingStore, C: Clock> Runner<S, C> {
    /// Ready if it was stopped and no action runs, except those that this thread is inside of.
    /// Otherwise the waker is called when that is so.
    fn poll_drained(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.action.is_none() && state.running <= ActionScope::depth(self.id()) {
            return Poll::Ready(());
        }
        if !state
            .drain_wakers
            .iter()
            .any(|known| known.will_wake(waker))
        {
            state.drain_wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Blocks the thread until no action runs, for at most this duration.
    pub(crate) fn drain_blocking(&self, most: Duration) -> Result<(), DrainTimeout> {
        let deadline = self.clock.now() + most;
        let waker = thread_waker();
        loop {
            if self.poll_drained(&waker).is_ready() {
                return Ok(());
            }
            if self.clock.now() >= deadline && deadline != Timestamp::MAX {
                return Err(DrainTimeout { waited: most });
            }
            self.clock.park_until_woken(deadline);
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<S: PendingStore, C: Clock + Clone> Runner<S, C> {
    /// Waits until no action runs, for at most this duration.
    pub(crate) fn drain(
        self: Arc<Self>,
        most: Duration,
    ) -> impl Future<Output = Result<(), DrainTimeout>> + Send {
        let clock = self.clock.clone();
        let deadline = clock.now() + most;
        async move {
            let mut sleep = pin!(sleep_until(clock, deadline));
            let drained = poll_fn(|context| {
                if self.poll_drained(context.waker()).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                let is_late = sleep.as_mut().poll(context);
                is_late.map(|()| Err(DrainTimeout { waited: most }))
            });
            drained.await
        }
    }
}

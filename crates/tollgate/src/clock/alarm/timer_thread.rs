//! One thread that wakes tasks on time, for executors without a timer of their own. It starts with the first wait, and
//! ends after a while without waits.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::sync::ignore_poison;

/// How long the thread stays when no task waits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sleep, for times beyond the range of a timer.
const MAX_DELAY: Duration = Duration::from_secs(3600);

/// All waiting tasks, by time.
#[derive(Debug)]
struct TimerThread {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TimerState {
    /// The wakers by time, and then by order of arrival.
    waiting: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    is_running: bool,
}

/// The wake-up of a task. Dropping it cancels the wake-up.
#[derive(Debug)]
pub(super) struct TimerEntry {
    timers: &'static TimerThread,
    key: (Instant, u64),
}

impl TimerEntry {
    /// Wakes the task after `left`.
    pub(super) fn new(left: Duration, waker: &Waker) -> Self {
        let timers = of_this_process::timers();
        let at = now() + left.min(MAX_DELAY);
        let mut state = timers.lock();
        let key = (at, state.next);
        state.next += 1;
        state.waiting.insert(key, waker.clone());
        let is_first = state.waiting.first_key_value().map(|(key, _)| *key) == Some(key);
        let starts = !state.is_running;
        state.is_running = true;
        drop(state);
        if starts {
            timers.start();
        } else if is_first {
            timers.changed.notify_one();
        }
        Self { timers, key }
    }
}

impl Drop for TimerEntry {
    fn drop(&mut self) {
        // A lock held during a fork stays locked in the child, so the child has timers of its own.
        if std::ptr::eq(self.timers, of_this_process::timers()) {
            let waker = self.timers.lock().waiting.remove(&self.key);
            // Dropping a waker may drop a task, and with it another entry, so it happens outside the lock.
            drop(waker);
        }
    }
}

impl TimerThread {
    const fn new() -> Self {
        Self {
            state: Mutex::new(TimerState {
                waiting: BTreeMap::new(),
                next: 0,
                is_running: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn start(&'static self) {
        let spawned = thread::Builder::new()
            .name("tollgate-timer".into())
            .spawn(|| self.run());
        if spawned.is_err() {
            // The thread couldn't be started: waiting tasks are woken to poll again until it can.
            let mut state = self.lock();
            state.is_running = false;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_values().for_each(Waker::wake);
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let now = now();
            let later = state.waiting.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut state.waiting, later);
            if !due.is_empty() {
                drop(state);
                due.into_values().for_each(Waker::wake);
                state = self.lock();
                continue;
            }
            let first = state.waiting.first_key_value().map(|((at, _), _)| *at);
            let pause = first.map_or(IDLE_TIMEOUT, |at| at.saturating_duration_since(now));
            let waited = self.changed.wait_timeout(state, pause);
            let (woken, timeout) = ignore_poison(waited);
            state = woken;
            if timeout.timed_out() && state.waiting.is_empty() {
                state.is_running = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TimerState> {
        // No foreign code runs under the lock, so the state behind a poisoned one is valid.
        ignore_poison(self.state.lock())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a timer of the system's time, which clocks without one of their own follow"
)]
fn now() -> Instant {
    Instant::now()
}

/// The timers of a process. A forked child has none of its parent's threads, and may have a lock that no thread will
/// ever release, so it gets new timers.
mod of_this_process {
    use super::TimerThread;

    /// How many generations of forked processes get timers of their own.
    const GENERATIONS: usize = 8;

    static TIMERS: [TimerThread; GENERATIONS] = [const { TimerThread::new() }; GENERATIONS];

    #[cfg(unix)]
    pub(super) fn timers() -> &'static TimerThread {
        &TIMERS[crate::clock::fork::fork_count().min(GENERATIONS - 1)]
    }

    #[cfg(not(unix))]
    pub(super) fn timers() -> &'static TimerThread {
        &TIMERS[0]
    }
}

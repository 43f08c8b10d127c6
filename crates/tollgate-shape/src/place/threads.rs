//! A few threads that poll tasks where there is no runtime. They start when something is to be done and all are
//! busy, and end when nothing was to be done for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::task::Task;

/// The most threads at once: so many actions may block before one holds up another.
const MOST: usize = 16;
/// How long a thread stays when there is nothing to do.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Task>>,
    threads: usize,
    idle: usize,
}

static STATE: Mutex<State> = Mutex::new(State {
    queue: VecDeque::new(),
    threads: 0,
    idle: 0,
});
static PUSHED: Condvar = Condvar::new();

/// Has a task polled.
pub(super) fn push(task: Arc<Task>) {
    let mut state = lock();
    state.queue.push_back(task);
    if state.idle >= state.queue.len() || state.threads >= MOST {
        drop(state);
        PUSHED.notify_one();
        return;
    }
    state.threads += 1;
    drop(state);
    let spawned = thread::Builder::new()
        .name("tollgate-shape".into())
        .spawn(run);
    if spawned.is_err() {
        let mut state = lock();
        state.threads -= 1;
        let is_alone = state.threads == 0;
        let task = if is_alone {
            state.queue.pop_front()
        } else {
            None
        };
        drop(state);
        // No thread can be had at all: better here than never.
        task.into_iter().for_each(Task::poll);
    }
}

fn run() {
    let mut state = lock();
    loop {
        if let Some(task) = state.queue.pop_front() {
            drop(state);
            // Actions are caught where they run; this is for what panics as it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| task.poll()));
            state = lock();
            continue;
        }
        state.idle += 1;
        let (woken, waited) = PUSHED
            .wait_timeout(state, IDLE)
            .unwrap_or_else(PoisonError::into_inner);
        state = woken;
        state.idle -= 1;
        if waited.timed_out() && state.queue.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Where drivers run, and with them actions: as tasks of the tokio runtime that they are built in, on a few threads of
//! this crate elsewhere, and on the thread that moves the time of a clock that is moved by hand.
//!
//! A few threads poll tasks where there is no runtime. They start when something is to be done and all are busy, and end when
//! nothing was to be done for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate::internal::ignore_poison;
use tollgate::{Clock, Timestamp};

/// Runs a future to its end.
pub(crate) fn spawn(clock: &impl Clock, future: impl Future<Output = ()> + Send + 'static) {
    if wakes_by_itself(clock) {
        // A test moves the time, and sees what came of it as soon as `advance` returns.
        return SpawnedTask::start(Box::pin(future), WakeMode::Waker);
    }
    let future = Box::pin(future);
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(future));
        return;
    }
    SpawnedTask::start(future, WakeMode::Threads);
}

/// Whether the clock's time is moved by somebody, who then wakes tasks.
fn wakes_by_itself(clock: &impl Clock) -> bool {
    clock
        .schedule_wakeup(Timestamp::MAX, Waker::noop())
        .is_some()
}

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a task is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeMode {
    /// By the thread that wakes it, before the waker returns.
    Waker,
    Threads,
}

struct SpawnedTask {
    on: WakeMode,
    /// None while it is polled, and once it has ended.
    future: Mutex<Option<BoxedFuture>>,
    /// How often it was woken since it slept; whoever wakes it first polls it, or hands it to a thread.
    wakes: AtomicUsize,
}

impl SpawnedTask {
    /// Polls it for the first time, here or on a thread.
    fn start(future: BoxedFuture, on: WakeMode) {
        let task = Arc::new(Self {
            on,
            future: Mutex::new(Some(future)),
            wakes: AtomicUsize::new(0),
        });
        task.wake();
    }

    /// Polls the future until it sleeps or is done. Nobody else polls it meanwhile, and what it does may wake it.
    fn poll(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.wakes.load(Ordering::Acquire);
            // Out of its place meanwhile: one that panics is dropped, and with it stops what it drives.
            let mut future = ignore_poison(self.future.lock()).take();
            if let Some(running) = &mut future
                && running.as_mut().poll(&mut context).is_ready()
            {
                future = None;
            }
            *ignore_poison(self.future.lock()) = future;
            // Not if it was woken while it was polled.
            let slept = self
                .wakes
                .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            if slept.is_ok() {
                return;
            }
        }
    }
}

impl Wake for SpawnedTask {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        match self.on {
            WakeMode::Waker => self.poll(),
            WakeMode::Threads => enqueue_task(self),
        }
    }
}

/// The most threads at once: so many actions may block before one holds up another.
const MAX_THREADS: usize = 16;
/// How long a thread stays when there is nothing to do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct ThreadPool {
    queue: VecDeque<Arc<SpawnedTask>>,
    threads: usize,
    idle: usize,
}

static THREAD_POOL: Mutex<ThreadPool> = Mutex::new(ThreadPool {
    queue: VecDeque::new(),
    threads: 0,
    idle: 0,
});
static TASK_PUSHED: Condvar = Condvar::new();

/// Has a task polled.
fn enqueue_task(task: Arc<SpawnedTask>) {
    let mut state = ignore_poison(THREAD_POOL.lock());
    state.queue.push_back(task);
    if state.idle >= state.queue.len() || state.threads >= MAX_THREADS {
        drop(state);
        TASK_PUSHED.notify_one();
        return;
    }
    state.threads += 1;
    drop(state);
    let spawned = thread::Builder::new()
        .name("tollgate-shape".into())
        .spawn(run_worker);
    if spawned.is_err() {
        let mut state = ignore_poison(THREAD_POOL.lock());
        state.threads -= 1;
        let is_alone = state.threads == 0;
        let task = is_alone.then(|| state.queue.pop_front()).flatten();
        drop(state);
        // No thread can be had at all: better here than never.
        task.into_iter().for_each(SpawnedTask::poll);
    }
}

fn run_worker() {
    let mut state = ignore_poison(THREAD_POOL.lock());
    loop {
        if let Some(task) = state.queue.pop_front() {
            drop(state);
            // Actions are caught where they run; this is for what panics as it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| task.poll()));
            state = ignore_poison(THREAD_POOL.lock());
            continue;
        }
        state.idle += 1;
        let (woken, waited) = ignore_poison(TASK_PUSHED.wait_timeout(state, IDLE_TIMEOUT));
        state = woken;
        state.idle -= 1;
        if waited.timed_out() && state.queue.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

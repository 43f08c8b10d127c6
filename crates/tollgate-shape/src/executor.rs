//! Where drivers and their actions run: as tasks of the tokio runtime that they are built in, elsewhere
//! on a few threads of this crate, and for a clock that is moved by hand on the thread that moves it.
//!
//! The threads poll tasks where there is no runtime. A thread starts when there is work and all others
//! are busy, and ends after it was idle for a while.

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
        // A test moves the time, and sees the result as soon as `advance` returns.
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

/// Whether the clock's time is moved by hand, by a thread that then wakes tasks.
fn wakes_by_itself(clock: &impl Clock) -> bool {
    clock
        .schedule_wakeup(Timestamp::MAX, Waker::noop())
        .is_some()
}

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a task is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeMode {
    /// On the thread that wakes it, before the waker returns.
    Waker,
    Threads,
}

struct SpawnedTask {
    on: WakeMode,
    /// None while it is polled, and once it has ended.
    future: Mutex<Option<BoxedFuture>>,
    /// The number of wakes since it slept. The first wake polls it, or hands it to a thread; later ones
    /// only count.
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

    /// Polls the future until it sleeps or is done. No other thread polls it meanwhile, and the future
    /// may wake itself.
    fn poll(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.wakes.load(Ordering::Acquire);
            // Taken out during the poll: a future that panics is dropped, which stops what it drives.
            let mut future = ignore_poison(self.future.lock()).take();
            if let Some(running) = &mut future
                && running.as_mut().poll(&mut context).is_ready()
            {
                future = None;
            }
            *ignore_poison(self.future.lock()) = future;
            // Fails if it was woken during the poll: then poll again, so that no wake is lost.
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

/// The most threads: this many actions may block before one holds up another.
const MAX_THREADS: usize = 16;
/// How long an idle thread stays.
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

/// Queues a task to be polled.
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
        // No thread could be started: poll here rather than never.
        task.into_iter().for_each(SpawnedTask::poll);
    }
}

fn run_worker() {
    let mut state = ignore_poison(THREAD_POOL.lock());
    loop {
        if let Some(task) = state.queue.pop_front() {
            drop(state);
            // Panics of actions are caught where they run; this catches those of their drops.
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

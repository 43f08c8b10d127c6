//! Work that a pacer runs when it is due.

use std::fmt;
use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use derive_more::{Display, Error};
use tollgate::Clock;
use tollgate::internal::ignore_poison;

use super::{PaceDenied, WorkPacer};
use crate::executor;

/// The submitted work won't end: it panicked, or its runtime has shut down.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display("the work that was submitted panicked, or its runtime is gone")]
pub struct WorkLost;

/// Submitted work that is queued or runs: await it for its result. Dropping it detaches the work;
/// [`cancel`](Self::cancel) removes it from the queue.
pub struct SubmittedWork<R> {
    shared: Arc<TaskCell<R>>,
}

struct TaskCell<R> {
    state: Mutex<TaskState<R>>,
}

struct TaskState<R> {
    stage: TaskStage<R>,
    /// The waker of the task that awaits the result.
    waker: Option<Waker>,
    /// Wakes the work's own task, so that it sees the cancellation.
    task_waker: Option<Waker>,
}

enum TaskStage<R> {
    Queued,
    Cancelled,
    Running,
    Done(R),
    Gone,
    Taken,
}

impl<C: Clock + Clone + Send + Sync + 'static> WorkPacer<C> {
    /// Submits work that runs when it is due: as a task of the current tokio runtime (feature `tokio`),
    /// or else on a thread of this crate.
    ///
    /// # Errors
    /// [`PaceDenied`] immediately if the queue is full, with the length of the queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_shape::WorkPacer;
    ///
    /// let clock = Manual::new();
    /// let pacer = WorkPacer::builder(Rate::per_second(10), 2).clock(clock.clone()).build()?;
    /// let first = pacer.submit(|| "sent")?;
    /// let second = pacer.submit(|| "sent, too")?;
    /// assert!(pacer.submit(|| "too many").is_err());
    /// assert!(first.is_done() && !second.is_done());
    /// clock.advance(Duration::from_millis(100));
    /// assert!(second.is_done());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit<R, F>(&self, work: F) -> Result<SubmittedWork<R>, PaceDenied>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.submit_async(move || ready(work()))
    }

    /// As [`submit`](Self::submit), for async work. The rate is that of starts: several works may run
    /// concurrently.
    ///
    /// # Errors
    /// [`PaceDenied`] immediately if the queue is full.
    pub fn submit_async<R, F, W>(&self, work: F) -> Result<SubmittedWork<R>, PaceDenied>
    where
        R: Send + 'static,
        F: FnOnce() -> W + Send + 'static,
        W: Future<Output = R> + Send + 'static,
    {
        let mut turn = Box::pin(self.pace().into_future());
        // Poll once now, to join the queue or be denied before returning.
        let begun = turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let turn = match begun {
            Poll::Ready(Ok(_)) => None,
            Poll::Ready(Err(refused)) => return Err(refused),
            Poll::Pending => Some(turn),
        };
        let shared = Arc::new(TaskCell {
            state: Mutex::new(TaskState {
                stage: TaskStage::Queued,
                waker: None,
                task_waker: None,
            }),
        });
        let end = TaskGuard(Arc::clone(&shared));
        executor::spawn(self.clock(), async move {
            if let Some(mut turn) = turn {
                // Until it is due or cancelled. It has joined the queue already, so only a clock that
                // was set back can deny it.
                let has_turn = poll_fn(|context| {
                    if !end.0.register_task(context.waker()) {
                        return Poll::Ready(false);
                    }
                    turn.as_mut().poll(context).map(|turn| turn.is_ok())
                });
                if !has_turn.await {
                    return;
                }
            }
            if !end.0.start() {
                return;
            }
            // A panic ends the task without a result, and must not reach the thread that wakes it.
            let mut running = pin!(async move { work().await });
            let result = poll_fn(|context| {
                let poll = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
                poll.map_or(Poll::Ready(None), |poll| poll.map(Some))
            });
            if let Some(result) = result.await {
                end.0.finish(TaskStage::Done(result));
            }
        });
        Ok(SubmittedWork { shared })
    }
}

/// Notifies the waiting caller when the task ends without a result.
struct TaskGuard<R>(Arc<TaskCell<R>>);

impl<R> Drop for TaskGuard<R> {
    fn drop(&mut self) {
        let is_over = matches!(self.0.lock().stage, TaskStage::Done(_) | TaskStage::Taken);
        if !is_over {
            self.0.finish(TaskStage::Gone);
        }
    }
}

impl<R> TaskCell<R> {
    /// Registers the task's waker; returns false if the work was cancelled.
    fn register_task(&self, task: &Waker) -> bool {
        let mut state = self.lock();
        if matches!(state.stage, TaskStage::Cancelled) {
            return false;
        }
        let old = state.task_waker.replace(task.clone());
        drop(state);
        // Dropping a waker may drop a task, so it isn't dropped under the lock.
        drop(old);
        true
    }

    fn start(&self) -> bool {
        let mut state = self.lock();
        let begins = matches!(state.stage, TaskStage::Queued);
        if begins {
            state.stage = TaskStage::Running;
        }
        begins
    }

    fn finish(&self, stage: TaskStage<R>) {
        let mut state = self.lock();
        let old = std::mem::replace(&mut state.stage, stage);
        let waker = state.waker.take();
        let task = state.task_waker.take();
        drop(state);
        drop((old, task));
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, TaskState<R>> {
        ignore_poison(self.state.lock())
    }
}

impl<R> SubmittedWork<R> {
    /// Removes it from the queue, so that the next waiter moves up. Returns whether it hadn't begun.
    pub fn cancel(self) -> bool {
        let mut state = self.shared.lock();
        let is_queued = matches!(state.stage, TaskStage::Queued);
        if is_queued {
            state.stage = TaskStage::Cancelled;
        }
        let task = state.task_waker.take().filter(|_| is_queued);
        drop(state);
        task.into_iter().for_each(Waker::wake);
        is_queued
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        matches!(
            self.shared.lock().stage,
            TaskStage::Done(_) | TaskStage::Gone
        )
    }
}

impl<R> Future for SubmittedWork<R> {
    type Output = Result<R, WorkLost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match std::mem::replace(&mut state.stage, TaskStage::Taken) {
            TaskStage::Done(result) => Poll::Ready(Ok(result)),
            TaskStage::Gone | TaskStage::Taken | TaskStage::Cancelled => Poll::Ready(Err(WorkLost)),
            stage => {
                state.stage = stage;
                let old = state.waker.replace(context.waker().clone());
                drop(state);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl<R> fmt::Debug for SubmittedWork<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted")
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

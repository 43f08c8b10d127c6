//! The future that keeps the time of one debouncer or coalescer, and runs its actions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tollgate::clock::{Sleep, sleep_until};
use tollgate::{Clock, Timestamp};

use super::{Action, ActionScope, DriverStep, JobEnd, OutcomeFuture, PendingStore, Runner};

/// How many actions run before other tasks of the executor may run.
const JOBS_PER_POLL: usize = 32;

pin_project! {
    /// Runs what becomes due, and sleeps in between. It ends when its runner is stopped; dropping it
    /// stops the runner.
    #[must_use = "nothing runs unless this is spawned or awaited"]
    pub(crate) struct RunnerDriver<S: PendingStore, C: Clock> {
        work: Arc<Runner<S, C>>,
        #[pin]
        sleep: Sleep<C>,
        running: Option<OutcomeFuture<S::Outcome>>,
    }

    impl<S: PendingStore, C: Clock> PinnedDrop for RunnerDriver<S, C> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let running = this.running.take();
            drop(this.work.stop());
            if running.is_some() {
                let dropped = catch_unwind(AssertUnwindSafe(|| drop(running)));
                let ended = dropped.map_or(JobEnd::Panicked, |()| JobEnd::Aborted);
                this.work.finish(ended);
            }
        }
    }
}

impl<S: PendingStore, C: Clock + Clone> RunnerDriver<S, C> {
    pub(crate) fn new(work: Arc<Runner<S, C>>) -> Self {
        let sleep = sleep_until(work.clock.clone(), Timestamp::MAX);
        Self {
            work,
            sleep,
            running: None,
        }
    }
}

impl<S: PendingStore, C: Clock + Clone> Future for RunnerDriver<S, C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        for _ in 0..JOBS_PER_POLL {
            if let Some(running) = this.running {
                let inside = ActionScope::enter(this.work.id());
                let poll = || running.as_mut().poll(context);
                let ended = match catch_unwind(AssertUnwindSafe(poll)) {
                    Ok(poll) => JobEnd::Completed(ready!(poll)),
                    Err(_) => JobEnd::Panicked,
                };
                // Drop its captures before it counts as ended.
                let drops = || *this.running = None;
                let dropped = catch_unwind(AssertUnwindSafe(drops));
                drop(inside);
                this.work.finish(match dropped {
                    Ok(()) => ended,
                    Err(_) => JobEnd::Panicked,
                });
            }
            match this.work.next(context.waker()) {
                DriverStep::Run(action, job) => {
                    let Action::Async(begin) = &*action else {
                        this.work.run(action, job);
                        continue;
                    };
                    let inside = ActionScope::enter(this.work.id());
                    let begun = catch_unwind(AssertUnwindSafe(|| begin(job)));
                    drop(action);
                    drop(inside);
                    match begun {
                        Ok(running) => *this.running = Some(running),
                        Err(_) => this.work.finish(JobEnd::Panicked),
                    }
                }
                DriverStep::Sleep(at) => {
                    this.sleep.as_mut().reset(at);
                    ready!(this.sleep.as_mut().poll(context));
                }
                DriverStep::Idle => {
                    // Drop a timer that was set for a job that isn't due any more.
                    let clock = this.work.clock.clone();
                    this.sleep.set(sleep_until(clock, Timestamp::MAX));
                    return Poll::Pending;
                }
                DriverStep::Stopped => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

//! A future that is polled by whoever wakes it, or by the next thread that is free.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use super::Boxed;
use super::threads;

/// Where a task is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// By the thread that wakes it, before the waker returns.
    Waker,
    Threads,
}

pub(super) struct Task {
    on: On,
    stage: Mutex<Stage>,
}

enum Stage {
    /// It isn't polled, and nobody has woken it.
    Asleep(Boxed),
    /// It is to be polled by one of the threads.
    Waiting(Boxed),
    /// A thread has the future; whether it was woken meanwhile.
    Polled {
        again: Again,
    },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Task {
    /// Polls it for the first time, here or on a thread.
    pub(super) fn start(future: Boxed, on: On) {
        let task = Arc::new(Self {
            on,
            stage: Mutex::new(Stage::Asleep(future)),
        });
        task.wake();
    }

    /// Polls the future until it sleeps or is done. Under no lock: what it does may wake it.
    pub(super) fn poll(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        let Some(mut future) = self.begin() else {
            return;
        };
        loop {
            if future.as_mut().poll(&mut context).is_ready() {
                self.set(Stage::Done);
                return;
            }
            let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
            if let Stage::Polled { again: Again::Yes } = *stage {
                *stage = Stage::Polled { again: Again::No };
            } else {
                *stage = Stage::Asleep(future);
                return;
            }
        }
    }

    /// Takes the future out to be polled, unless somebody has.
    fn begin(&self) -> Option<Boxed> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match mem::replace(&mut *stage, Stage::Polled { again: Again::No }) {
            Stage::Asleep(future) | Stage::Waiting(future) => Some(future),
            Stage::Polled { .. } => {
                *stage = Stage::Polled { again: Again::Yes };
                None
            }
            Stage::Done => {
                *stage = Stage::Done;
                None
            }
        }
    }

    /// Whether a thread has to be told.
    fn queue(&self) -> bool {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match mem::replace(&mut *stage, Stage::Done) {
            Stage::Asleep(future) => {
                *stage = Stage::Waiting(future);
                true
            }
            Stage::Polled { .. } => {
                *stage = Stage::Polled { again: Again::Yes };
                false
            }
            other => {
                *stage = other;
                false
            }
        }
    }

    fn set(&self, to: Stage) {
        let old = mem::replace(
            &mut *self.stage.lock().unwrap_or_else(PoisonError::into_inner),
            to,
        );
        drop(old);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        match self.on {
            On::Waker => self.poll(),
            On::Threads => {
                if self.queue() {
                    threads::push(self);
                }
            }
        }
    }
}

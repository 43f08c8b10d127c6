//! Tasks that run only after a wake-up: a late wake-up makes a late grant.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Task<'a, T> {
    name: usize,
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    is_woken: Arc<Flag>,
}

/// Tasks by name, and their outcomes, in the order in which they ended.
pub(crate) struct Tasks<'a, T> {
    running: Vec<Task<'a, T>>,
    pub(crate) done: Vec<(usize, T)>,
}

impl<'a, T> Tasks<'a, T> {
    pub(crate) fn new() -> Self {
        Self {
            running: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Starts one, and runs it as far as it gets.
    pub(crate) fn start(&mut self, name: usize, future: impl Future<Output = T> + 'a) {
        self.running.push(Task {
            name,
            future: Box::pin(future),
            is_woken: Arc::new(Flag(AtomicBool::new(true))),
        });
        self.run();
    }

    /// Runs all that were woken, until none is.
    pub(crate) fn run(&mut self) {
        let mut is_any = true;
        while std::mem::take(&mut is_any) {
            let mut place = 0;
            while place < self.running.len() {
                let task = &mut self.running[place];
                if !task.is_woken.0.swap(false, Ordering::AcqRel) {
                    place += 1;
                    continue;
                }
                is_any = true;
                let waker = Waker::from(Arc::clone(&task.is_woken));
                match task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(outcome) => {
                        let name = self.running.remove(place).name;
                        self.done.push((name, outcome));
                    }
                    Poll::Pending => place += 1,
                }
            }
        }
    }

    /// Drops one that runs.
    pub(crate) fn drop_task(&mut self, name: usize) {
        self.running.retain(|task| task.name != name);
        self.run();
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        self.running.iter().map(|task| task.name).collect()
    }

    /// The names of those that ended since the previous call.
    pub(crate) fn take_done(&mut self) -> Vec<(usize, T)> {
        std::mem::take(&mut self.done)
    }
}

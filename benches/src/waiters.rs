//! Many tasks that wait on one limiter: the total time, the order, the processor time and memory of each, and
//! the throughput if most of them give up.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;

use crate::runner::as_f64;
use crate::timing::Stopwatch;
use crate::{alloc, timing};

/// A limiter that tasks can wait on.
pub(crate) trait Queue: Send + Sync + 'static {
    /// Waits as the task of this number.
    fn wait_to_pass(&self, who: u32) -> impl Future<Output = ()> + Send + '_;

    /// All tasks are in the queue: permits may be granted from now on.
    fn start_wait(&self) {}
}

/// Tasks that wait repeatedly, and give up after a timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CancelStorm {
    pub(crate) tasks: u32,
    pub(crate) patience: Duration,
    pub(crate) lasts: Duration,
}

/// The results of a crowd of waiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    /// Processor time for each waiter in microseconds, all threads together.
    pub(crate) cpu_micros: f64,
    /// Bytes for each waiter at the peak, its task included.
    pub(crate) bytes: f64,
    /// Waiters that passed after one that came later.
    pub(crate) overtaken: f64,
}

struct WaiterCrowd<Q> {
    queue: Q,
    came: AtomicUsize,
    passed: AtomicUsize,
    /// The waiters that passed, in order.
    order: Vec<AtomicU32>,
    all_passed: Notify,
}

/// Spawns `count` tasks that wait for one token each, on a runtime of one thread, and waits for all of them.
pub(crate) fn run<Q: Queue>(count: u32, queue: impl FnOnce() -> Q) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime of one thread can be built");
    runtime.block_on(async {
        let crowd = Arc::new(WaiterCrowd {
            queue: queue(),
            came: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            order: (0..count).map(|_| AtomicU32::new(0)).collect(),
            all_passed: Notify::new(),
        });
        alloc::take_peak();
        let bytes = alloc::live();
        let cpu = timing::cpu_time();
        let watch = Stopwatch::start();
        for who in 0..count {
            tokio::spawn(wait(Arc::clone(&crowd), who));
        }
        // A woken task goes to the back of tokio's run queue, behind tasks that were never polled and would
        // pass without a wait. If permits are granted only when all are in the queue, tasks notice them in
        // order.
        while crowd.came.load(Ordering::Relaxed) < crowd.order.len() {
            tokio::task::yield_now().await;
        }
        crowd.queue.start_wait();
        crowd.all_passed.notified().await;
        let seconds = watch.elapsed().as_secs_f64();
        let cpu = timing::cpu_time().saturating_sub(cpu);
        let bytes = alloc::take_peak().saturating_sub(bytes);
        let waiters = f64::from(count);
        Outcome {
            seconds,
            cpu_micros: cpu.as_secs_f64() * 1e6 / waiters,
            bytes: as_f64(bytes as u64) / waiters,
            overtaken: as_f64(count_overtaken(&crowd.order)),
        }
    })
}

async fn wait<Q: Queue>(crowd: Arc<WaiterCrowd<Q>>, who: u32) {
    crowd.came.fetch_add(1, Ordering::Relaxed);
    crowd.queue.wait_to_pass(who).await;
    let place = crowd.passed.fetch_add(1, Ordering::Relaxed);
    crowd.order[place].store(who, Ordering::Relaxed);
    if place + 1 == crowd.order.len() {
        crowd.all_passed.notify_one();
    }
}

/// How many passed after a waiter that had come later.
fn count_overtaken(order: &[AtomicU32]) -> u64 {
    let mut latest = 0;
    let mut count = 0;
    for who in order {
        let who = who.load(Ordering::Relaxed);
        count += u64::from(who < latest);
        latest = latest.max(who);
    }
    count
}

/// Counts how often one task passes in `time`, with a wait before each: a second's worth of it.
pub(crate) fn pace<Q: Queue>(queue: impl FnOnce() -> Q, seconds: f64) -> f64 {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime of one thread can be built");
    runtime.block_on(async {
        let queue = queue();
        let watch = Stopwatch::start();
        let mut passed = 0;
        loop {
            queue.wait_to_pass(0).await;
            passed += 1;
            let elapsed = watch.elapsed().as_secs_f64();
            if elapsed >= seconds {
                return as_f64(passed) / elapsed;
            }
        }
    })
}

/// Counts how many waits succeed in time during a storm.
pub(crate) fn storm<Q: Queue>(queue: impl FnOnce() -> Q, storm: CancelStorm) -> f64 {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime of one thread can be built");
    runtime.block_on(async {
        let shared = Arc::new((queue(), AtomicU64::new(0)));
        let watch = Stopwatch::start();
        let task = |who| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let (queue, passed) = &*shared;
                while watch.elapsed() < storm.lasts {
                    let turn = tokio::time::timeout(storm.patience, queue.wait_to_pass(who));
                    if turn.await.is_ok() && watch.elapsed() < storm.lasts {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        for task in (0..storm.tasks).map(task).collect::<Vec<_>>() {
            task.await.expect("no task panics");
        }
        as_f64(shared.1.load(Ordering::Relaxed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_passes_after_a_later_one_was_overtaken() {
        for (order, expect) in [
            (vec![0, 1, 2, 3], 0),
            (vec![0, 3, 1, 2], 2),
            (vec![1, 0], 1),
        ] {
            let order: Vec<AtomicU32> = order.into_iter().map(AtomicU32::new).collect();
            assert_eq!(count_overtaken(&order), expect);
        }
    }
}

//! Threads that start together.

use std::sync::Barrier;
use std::thread;

/// Runs `body` on this many concurrent threads, with their numbers, and adds up the results.
///
/// ```
/// use tollgate_testkit::threads::run_together;
///
/// assert_eq!(run_together(4, u64::from), 0 + 1 + 2 + 3);
/// ```
///
/// # Panics
/// If a thread panics.
pub fn run_together(threads: u32, body: impl Fn(u32) -> u64 + Sync) -> u64 {
    let barrier = Barrier::new(usize::try_from(threads).unwrap_or(usize::MAX));
    thread::scope(|scope| {
        let (barrier, body) = (&barrier, &body);
        let running: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn(move || {
                    barrier.wait();
                    body(number)
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|sum| sum.expect("no thread panics")).sum()
    })
}

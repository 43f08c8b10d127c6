//! The machine's own measurements: elapsed time, processor time, context switches.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Starts when it is made.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark measures with a clock that isn't under test"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn nanos(self) -> f64 {
        self.elapsed().as_secs_f64() * 1e9
    }
}

/// One read of std's clock: the peer of our clocks, and the clock of textbook limiters.
#[expect(clippy::disallowed_methods, reason = "this read is what is measured")]
#[inline]
pub(crate) fn std_now() -> Instant {
    Instant::now()
}

/// One read of the wall clock, for limiters that need it.
#[expect(clippy::disallowed_methods, reason = "throttlecrab takes wall time")]
#[inline]
pub(crate) fn wall_now() -> SystemTime {
    SystemTime::now()
}

/// Whole days since 1970-01-01, by the wall clock.
pub(crate) fn days_since_epoch() -> u64 {
    let since = wall_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400
}

#[expect(
    clippy::disallowed_methods,
    reason = "lets threads settle between cases"
)]
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// How often the calling thread lost its core so far, voluntarily or not. Without Linux's `/proc` it is always
/// 0, and then no round is repeated.
pub(crate) fn context_switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.contains("ctxt_switches"))
        .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
        .sum()
}

/// How long the calling thread was ready to run without a core so far. Without Linux's `/proc` it is always
/// zero.
pub(crate) fn core_wait_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().nth(1).map(str::parse);
    Duration::from_nanos(nanos.and_then(Result::ok).unwrap_or(0))
}

/// Resident bytes of this process, in pages of 4 KiB.
pub(crate) fn resident_bytes() -> u64 {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = sizes.split_whitespace().nth(1).map(str::parse::<u64>);
    pages.and_then(Result::ok).unwrap_or(0) * 4096
}

/// Processor time of all live threads. A thread that ended takes its time with it.
pub(crate) fn cpu_time() -> Duration {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Duration::ZERO;
    };
    let nanos = tasks.flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

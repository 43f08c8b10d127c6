//! A clock that a background thread updates: a read is one load, at most about 1 ms stale.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::upkeep::UpkeepState;
use super::{Clock, Monotonic};
use crate::sync::Padded;

/// How often the upkeep thread stores the time.
const PERIOD: Duration = Duration::from_millis(1);

/// Nanoseconds on the [`Monotonic`] clock; 0 while no upkeep thread runs in this process.
static CACHED_TIME: Padded<AtomicU64> = Padded(AtomicU64::new(0));
/// The longest time between two writes, which bounds how stale a read was.
static LONGEST_GAP: AtomicU64 = AtomicU64::new(0);
static UPKEEP: UpkeepState = UpkeepState::new();

/// Time as of the last millisecond: a read costs one load instead of a counter read.
///
/// Over a real span w a limit sees at most w plus the staleness. So the excess that it may admit is bounded by
/// rate × [`staleness`](Self::staleness), the longest measured gap.
///
/// One thread serves all cached clocks of a process. It starts with the first clock and ends after the last. A forked
/// child starts its own thread. Until then, and whenever the thread can't be started, reads use the real clock, so time
/// never stands still.
///
/// ```
/// use tollgate::{Limiter, Rate, clock::Cached};
///
/// let limiter = Limiter::with_clock(Rate::per_second(1_000_000), Cached::new());
/// assert!(limiter.allow());
/// ```
#[derive(Debug)]
pub struct Cached {
    source: Monotonic,
}

impl Cached {
    /// A handle on the process's cached time; starts the upkeep thread if there is none.
    pub fn new() -> Self {
        #[cfg(unix)]
        {
            static REGISTERED: std::sync::Once = std::sync::Once::new();
            super::fork::register_fork_handler(&REGISTERED, reset_in_child);
        }
        let clock = Self {
            source: Monotonic::new(),
        };
        if UPKEEP.add_handle() {
            spawn_upkeep();
        }
        clock
    }

    /// The longest time between two updates so far: the staleness of a read is at most this.
    pub fn staleness(&self) -> Duration {
        Duration::from_nanos(LONGEST_GAP.load(Ordering::Acquire))
    }

    /// The slow path: no upkeep thread in this process, so read the real clock and start one.
    #[cold]
    fn read_real_clock(&self) -> Timestamp {
        if UPKEEP.claim_thread() {
            spawn_upkeep();
        }
        self.source.now()
    }
}

impl Default for Cached {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Cached {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        UPKEEP.remove_handle();
    }
}

impl Clock for Cached {
    #[inline]
    fn now(&self) -> Timestamp {
        // Relaxed: no other memory depends on this number, so nothing has to be ordered.
        match CACHED_TIME.0.load(Ordering::Relaxed) {
            0 => self.read_real_clock(),
            nanos => Timestamp::from_nanos(nanos),
        }
    }

    fn source_id(&self) -> Option<usize> {
        Some((&raw const CACHED_TIME).addr())
    }
}

/// Starts the upkeep thread, which the caller has claimed. It takes no lock, because a lock held during a fork stays
/// locked in the child.
fn spawn_upkeep() {
    let spawned = thread::Builder::new()
        .name("tollgate-clock".into())
        .spawn(|| run_upkeep(Monotonic::new()));
    if spawned.is_err() {
        // The thread couldn't be started: reads use the real clock, and the next read tries again.
        UPKEEP.mark_stopped();
    }
}

fn run_upkeep(real: Monotonic) {
    loop {
        let mut last = real.now();
        CACHED_TIME
            .0
            .store(last.as_nanos().max(1), Ordering::Release);
        while UPKEEP.is_needed() {
            thread::park_timeout(PERIOD);
            let now = real.now();
            CACHED_TIME
                .0
                .store(now.as_nanos().max(1), Ordering::Release);
            // Readers had the old time until that store, however late it came, so the gap ends there.
            LONGEST_GAP.fetch_max(real.now().nanos_since(last), Ordering::AcqRel);
            last = now;
        }
        CACHED_TIME.0.store(0, Ordering::Release);
        if !UPKEEP.retire_or_continue() {
            return;
        }
    }
}

/// Runs in a forked child, where only the forking thread exists: two plain stores.
#[cfg(unix)]
extern "C" fn reset_in_child() {
    CACHED_TIME.0.store(0, Ordering::Release);
    UPKEEP.mark_stopped();
}

//! The calls, failures and slow calls of a recent time or of the latest calls, for the shares of
//! failures.

// Not loom's mutex: the counts are statistics, and part of no model.
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::internal::ignore_poison;
use tollgate::striped_counters::{StripedCounters, Writers};

/// The calls over which a share is computed.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::breaker::FailureWindow;
///
/// assert_ne!(FailureWindow::Calls(100), FailureWindow::Time(Duration::from_secs(10)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureWindow {
    /// The latest calls, by number. Counting takes a lock.
    Calls(u32),
    /// The calls of a recent duration, to a tenth of it.
    Time(Duration),
}

/// The parts of the duration.
const SLICES: usize = 10;
/// The initial capacity for latest calls; a larger ring grows as calls come.
const INITIAL_RING_CAPACITY: usize = 1 << 16;
/// The counters of a part: its number, calls, failures, slow calls.
const FIELDS: usize = 4;

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) slow: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallResult {
    #[default]
    Succeeded,
    Slow,
    Failed,
}

#[derive(Debug)]
pub(crate) enum CallWindow {
    Calls(Mutex<LastCalls>),
    Time(Box<TimeSlices>),
}

/// The latest calls, by number.
#[derive(Debug)]
pub(crate) struct LastCalls {
    ring: Vec<CallResult>,
    most: usize,
    next: usize,
    counts: CallCounts,
}

/// Calls by parts of the duration, on each thread's own cache lines. A part that is written for a new
/// number begins at 0. A thread that shares cache lines may add to a part just as another thread resets
/// it; that count is lost, which a statistic tolerates.
#[derive(Debug)]
pub(crate) struct TimeSlices {
    width: u64,
    /// The number of the current part, so that few calls need a division.
    number: AtomicU64,
    parts: StripedCounters<[[AtomicU64; FIELDS]; SLICES]>,
}

impl CallWindow {
    pub(crate) fn new(span: FailureWindow) -> Self {
        match span {
            FailureWindow::Calls(most) => {
                let most = usize::try_from(most.max(1)).unwrap_or(usize::MAX);
                Self::Calls(Mutex::new(LastCalls {
                    // Capped, because a ring that is never filled needn't be allocated: a huge number
                    // of calls would take gigabytes.
                    ring: Vec::with_capacity(most.min(INITIAL_RING_CAPACITY)),
                    most,
                    next: 0,
                    counts: CallCounts::default(),
                }))
            }
            FailureWindow::Time(over) => {
                let parts = u128::try_from(SLICES).unwrap_or(1);
                let width = u64::try_from(over.as_nanos() / parts).unwrap_or(u64::MAX);
                Self::Time(Box::new(TimeSlices {
                    width: width.max(1),
                    number: AtomicU64::new(0),
                    parts: StripedCounters::with_few_stripes(|| {
                        [const { [const { AtomicU64::new(0) }; FIELDS] }; SLICES]
                    }),
                }))
            }
        }
    }

    #[inline]
    pub(crate) fn count(&self, now: Timestamp, kind: CallResult) {
        match self {
            Self::Calls(last) => ignore_poison(last.lock()).add(kind),
            Self::Time(parts) => parts.add(now, kind),
        }
    }

    pub(crate) fn counts(&self, now: Timestamp) -> CallCounts {
        match self {
            Self::Calls(last) => ignore_poison(last.lock()).counts,
            Self::Time(parts) => parts.counts(now),
        }
    }

    pub(crate) fn clear(&self) {
        match self {
            Self::Calls(last) => {
                let mut last = ignore_poison(last.lock());
                last.ring.clear();
                (last.next, last.counts) = (0, CallCounts::default());
            }
            Self::Time(parts) => parts.parts.for_each_stripe(|parts| {
                for field in parts.iter().flatten() {
                    field.store(0, Ordering::Relaxed);
                }
            }),
        }
    }
}

impl LastCalls {
    fn add(&mut self, kind: CallResult) {
        if self.ring.len() < self.most {
            self.ring.push(kind);
        } else {
            let gone = std::mem::replace(&mut self.ring[self.next], kind);
            self.counts.calls -= 1;
            self.counts.failed -= u64::from(gone == CallResult::Failed);
            self.counts.slow -= u64::from(gone == CallResult::Slow);
            self.next = (self.next + 1) % self.most;
        }
        self.counts.calls += 1;
        self.counts.failed += u64::from(kind == CallResult::Failed);
        self.counts.slow += u64::from(kind == CallResult::Slow);
    }
}

impl TimeSlices {
    /// The number of the part that contains this time, from 1 on: 0 means none.
    #[inline]
    fn slice_number(&self, now: Timestamp) -> u64 {
        let nanos = now.as_nanos();
        let number = self.number.load(Ordering::Relaxed);
        let begins = number.wrapping_sub(1).wrapping_mul(self.width);
        if number != 0 && nanos.wrapping_sub(begins) < self.width {
            return number;
        }
        let number = (nanos / self.width).saturating_add(1);
        self.number.store(number, Ordering::Relaxed);
        number
    }

    #[inline]
    fn add(&self, now: Timestamp, kind: CallResult) {
        let number = self.slice_number(now);
        let place = usize::try_from(number % 10).unwrap_or(0);
        self.parts.with_own_stripe(|parts, sole| {
            let part = &parts[place];
            let add = |field: &AtomicU64| {
                if sole == Writers::One {
                    field.store(field.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                } else {
                    field.fetch_add(1, Ordering::Relaxed);
                }
            };
            if part[0].load(Ordering::Relaxed) != number {
                part[0].store(number, Ordering::Relaxed);
                for field in &part[1..] {
                    field.store(0, Ordering::Relaxed);
                }
            }
            add(&part[1]);
            match kind {
                CallResult::Succeeded => {}
                CallResult::Failed => add(&part[2]),
                CallResult::Slow => add(&part[3]),
            }
        });
    }

    fn counts(&self, now: Timestamp) -> CallCounts {
        let number = self.slice_number(now);
        let mut counts = CallCounts::default();
        let width = u64::try_from(SLICES).unwrap_or(1);
        self.parts.for_each_stripe(|parts| {
            for part in parts {
                let read = |field: usize| part[field].load(Ordering::Relaxed);
                let of = read(0);
                if of != 0 && of <= number && number - of < width {
                    counts.calls += read(1);
                    counts.failed += read(2);
                    counts.slow += read(3);
                }
            }
        });
        counts
    }
}

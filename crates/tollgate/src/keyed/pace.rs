//! The default rate of a keyed limiter: read by every check, changed now and then.

use tollgate_core::{Arithmetic, Gcra, LimitError, Pace, Rate};

use super::intervals::{Intervals, Tag};
use crate::sync::{AtomicU64, Backoff, Mutex, MutexGuard, Ordering, PoisonError, fence};

/// A rate in force, as the words that decide, behind a sequence number that is odd while they
/// change. The ordering is that of `cell/word.rs`, without a TAT to rescale.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct PaceCell {
    interval: AtomicU64,
    capacity: AtomicU64,
    burst: AtomicU64,
    /// Of the interval, among those of the limiter.
    tag: AtomicU64,
    sequence: AtomicU64,
    limit: Mutex<Gcra>,
}

/// A rate as a check needs it.
#[derive(Clone, Copy, Debug)]
pub struct InForce {
    pub(crate) pace: Pace,
    pub(crate) burst: u64,
    pub(crate) tag: Tag,
}

impl InForce {
    #[inline(always)]
    pub(crate) fn of(limit: &Gcra, intervals: &Intervals) -> Self {
        Self {
            pace: limit.pace(),
            burst: limit.limit(),
            tag: intervals.tag(limit.interval_units()),
        }
    }
}

impl PaceCell {
    pub(crate) fn new(limit: Gcra, intervals: &Intervals) -> Self {
        let InForce { pace, burst, tag } = InForce::of(&limit, intervals);
        Self {
            interval: AtomicU64::new(pace.interval),
            capacity: AtomicU64::new(pace.capacity),
            burst: AtomicU64::new(burst),
            tag: AtomicU64::new(tag.to_bits()),
            sequence: AtomicU64::new(0),
            limit: Mutex::new(limit),
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> InForce {
        self.read_by(|cell| InForce {
            pace: cell.pace_now(),
            burst: cell.burst.load(Ordering::Relaxed),
            tag: cell.tag_now(),
        })
    }

    /// What decides, without what only a report needs.
    #[inline(always)]
    pub(crate) fn read_pace(&self) -> (Pace, Tag) {
        self.read_by(|cell| (cell.pace_now(), cell.tag_now()))
    }

    #[inline(always)]
    fn tag_now(&self) -> Tag {
        Tag::from_bits(self.tag.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn pace_now(&self) -> Pace {
        Pace {
            interval: self.interval.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
        }
    }

    /// Reads until nothing changed meanwhile.
    #[inline(always)]
    fn read_by<T>(&self, read: impl Fn(&Self) -> T) -> T {
        let mut losses = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let in_force = read(self);
            fence(Ordering::Acquire);
            let after = self.sequence.load(Ordering::Relaxed);
            if before == after && before & 1 == 0 {
                return in_force;
            }
            losses = Self::wait(losses);
        }
    }

    /// Waits for a change to end, longer each time. By number, so that a check that doesn't wait
    /// has nothing in memory.
    #[cold]
    #[inline(never)]
    fn wait(losses: u32) -> u32 {
        let mut backoff = Backoff::default();
        for _ in 0..=losses {
            backoff.lost();
        }
        losses.saturating_add(1).min(8)
    }

    pub(crate) fn rate(&self) -> Rate {
        self.lock().rate()
    }

    pub(crate) fn set(&self, rate: Rate, intervals: &Intervals) -> Result<(), LimitError> {
        let limit = Gcra::new(rate)?;
        let mut current = self.lock();
        *current = limit;
        let InForce { pace, burst, tag } = InForce::of(&limit, intervals);
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.capacity.store(pace.capacity, Ordering::Relaxed);
        self.burst.store(burst, Ordering::Relaxed);
        self.tag.store(tag.to_bits(), Ordering::Relaxed);
        self.sequence.store(before + 2, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Gcra> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

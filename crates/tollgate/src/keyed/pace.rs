//! The default rate of a keyed limiter: read by every check, changed now and then.

use std::sync::atomic::AtomicU64 as RateWord;
use std::time::Duration;

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
    rate: RateWords,
    limit: Mutex<Gcra>,
}

/// A rate as it was asked for, which answers tell and nothing is decided by. So these aren't a model checker's.
#[derive(Debug)]
struct RateWords {
    count: RateWord,
    /// Of the period, or [`NO_PERIOD`].
    secs: RateWord,
    nanos: RateWord,
    burst: RateWord,
}

/// Of rates of all or nothing.
const NO_PERIOD: u64 = u64::MAX;

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
            rate: RateWords::new(limit.rate()),
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

    /// The rate, without a lock: many answers tell it.
    #[inline]
    pub(crate) fn rate(&self) -> Rate {
        let rate = self.read_by(|cell| cell.rate.read());
        rate.unwrap_or_else(|| self.lock().rate())
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
        self.rate.write(rate);
        self.sequence.store(before + 2, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Gcra> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateWords {
    fn new(rate: Rate) -> Self {
        let words = Self {
            count: RateWord::new(0),
            secs: RateWord::new(NO_PERIOD),
            nanos: RateWord::new(0),
            burst: RateWord::new(0),
        };
        words.write(rate);
        words
    }

    fn write(&self, rate: Rate) {
        let period = rate.period();
        let secs = period.map_or(NO_PERIOD, |period| period.as_secs());
        let nanos = period.map_or(0, |period| period.subsec_nanos());
        self.count.store(rate.count(), Ordering::Relaxed);
        self.secs.store(secs, Ordering::Relaxed);
        self.nanos.store(nanos.into(), Ordering::Relaxed);
        self.burst.store(rate.burst_size(), Ordering::Relaxed);
    }

    /// None if it has no period, or if it changes at this moment.
    #[inline]
    fn read(&self) -> Option<Rate> {
        let secs = self.secs.load(Ordering::Relaxed);
        let nanos = u32::try_from(self.nanos.load(Ordering::Relaxed)).ok()?;
        if secs == NO_PERIOD {
            return None;
        }
        let period = Duration::new(secs, nanos);
        let rate = Rate::new(self.count.load(Ordering::Relaxed), period);
        Some(rate.burst(self.burst.load(Ordering::Relaxed)))
    }
}

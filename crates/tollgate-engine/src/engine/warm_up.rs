//! Rules that warm up: after a start, their rates grow tenth by tenth to their full size.
//!
//! Such a rule has a warm-up gate beside each rate: a limit of this process alone, with a part of the rate. The
//! rule's own counters aren't affected, so a node that has just started takes nothing from the others of a fleet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::{LimitError, Timestamp};

use super::counters::{Counters, Sharing};
use crate::limits::warm_up::{TENTHS, warm_up_kind};
use crate::limits::{Estimates, Limit};
use crate::policy::{Counting, Limits, OnStoreFailure};

/// The prefix of a gate's counter name.
pub(crate) const COUNTER_PREFIX: &str = "warm-up";
/// The number of steps before the whole rate applies.
const STEPS: u32 = TENTHS - 1;
/// A time that is further back than this comes from a clock that was set. Smaller differences occur between threads.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// The warm-up gates of a rule.
#[derive(Debug)]
pub(crate) struct WarmUp {
    elapsed: ElapsedTime,
    length: Duration,
    /// Set once the rule is warm, so that it stays warm even if the clock is set back.
    is_warm: AtomicBool,
    /// The gates of each step, by the tenths that they allow, from one tenth on.
    steps: Box<[Box<[Limit]>]>,
}

/// How long a rule has been warming up, on a clock that may be set back.
///
/// `elapsed_before` has the time up to the last setback, and the rest counts from `since`. Both change under the
/// lock, `since` first. A reader loads `elapsed_before` first, so it never sees more time than has passed.
#[derive(Debug)]
struct ElapsedTime {
    since: AtomicU64,
    elapsed_before: AtomicU64,
    /// The latest time that any thread saw.
    latest: AtomicU64,
    setting: Mutex<()>,
}

impl ElapsedTime {
    fn new(head: Duration, since: Timestamp) -> Self {
        Self {
            since: AtomicU64::new(since.as_nanos()),
            elapsed_before: AtomicU64::new(nanos(head)),
            latest: AtomicU64::new(since.as_nanos()),
            setting: Mutex::new(()),
        }
    }

    /// The elapsed time at a given time.
    #[inline]
    fn at(&self, now: Timestamp) -> Duration {
        let head = self.elapsed_before.load(Ordering::Acquire);
        let since = self.since.load(Ordering::Acquire);
        Duration::from_nanos(head.saturating_add(now.as_nanos().saturating_sub(since)))
    }

    /// The elapsed time at a time that the clock shows, which is checked for a setback.
    #[inline]
    fn now(&self, now: Timestamp) -> Duration {
        let latest = self.latest.load(Ordering::Relaxed);
        if now.as_nanos() > latest {
            self.latest.fetch_max(now.as_nanos(), Ordering::Relaxed);
        } else if latest - now.as_nanos() > nanos(CLOCK_SLACK) {
            self.handle_clock_set_back(now);
        }
        self.at(now)
    }

    #[cold]
    fn handle_clock_set_back(&self, now: Timestamp) {
        let _setting = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = Timestamp::from_nanos(self.latest.load(Ordering::Relaxed));
        // Another thread may have handled the setback before.
        if latest - now <= CLOCK_SLACK {
            return;
        }
        let passed = nanos(self.at(latest));
        self.since.store(now.as_nanos(), Ordering::Release);
        self.elapsed_before.store(passed, Ordering::Release);
        self.latest.store(now.as_nanos(), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A warm-up that starts, or continues after a reload.
pub(crate) struct NewWarmUp<'a> {
    pub(crate) rule: &'a str,
    pub(crate) limits: &'a Limits,
    pub(crate) estimates: Estimates,
    pub(crate) length: Duration,
    /// The progress under the previous policy.
    pub(crate) initial_progress: Duration,
    pub(crate) now: Timestamp,
}

impl WarmUp {
    /// The gates of a rule that warms up.
    pub(crate) fn new(new: NewWarmUp<'_>, counters: &mut Counters) -> Result<Self, LimitError> {
        let NewWarmUp { rule, limits, .. } = new;
        let rates = limits.rates.iter();
        // A rate of zero never refills, so it can't grow.
        let rates = rates.filter(|rate| !rate.is_unlimited() && !rate.is_zero());
        let rates: Vec<_> = rates.copied().collect();
        let whole: Vec<_> = rates
            .iter()
            .map(|rate| warm_up_kind(*rate, TENTHS))
            .collect();
        let placed = counters.assign_counters(
            &format!("{COUNTER_PREFIX}/{rule}"),
            Sharing::Alone,
            &whole,
        )?;
        let steps = (1..TENTHS).map(|tenths| {
            let own = placed.iter().zip(&rates);
            let own = own.map(|(limit, rate)| {
                let limit = limit.with_kind(warm_up_kind(*rate, tenths))?;
                let mut limit = limit.with_estimates(new.estimates)?;
                limit.counting = Counting::Local;
                limit.on_store_failure = OnStoreFailure::Local;
                // A denied request may be allowed sooner than reported, at the next step.
                limit.is_lasting = false;
                Ok(limit)
            });
            own.collect::<Result<_, LimitError>>()
        });
        Ok(Self {
            elapsed: ElapsedTime::new(new.initial_progress, new.now),
            length: new.length,
            is_warm: AtomicBool::new(false),
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// The same progress on another length. `None` if the rule is warm.
    pub(crate) fn scaled_progress(&self, length: Duration, now: Timestamp) -> Option<Duration> {
        let passed = self.elapsed.now(now);
        if self.is_warm.load(Ordering::Relaxed) || passed >= self.length {
            return None;
        }
        let whole = u128::from(nanos(self.length).max(1));
        let part = u128::from(nanos(passed)) * u128::from(nanos(length)) / whole;
        Some(Duration::from_nanos(
            u64::try_from(part).unwrap_or(u64::MAX),
        ))
    }

    /// The gates at present. Empty once the rule is warm.
    #[inline]
    pub(crate) fn gates(&self, now: Timestamp) -> &[Limit] {
        if self.is_warm.load(Ordering::Relaxed) {
            return &[];
        }
        let passed = self.elapsed.now(now);
        if passed >= self.length {
            self.is_warm.store(true, Ordering::Relaxed);
        }
        self.gates_after(passed)
    }

    /// The gates at a given time.
    pub(crate) fn gates_at(&self, at: Timestamp) -> &[Limit] {
        self.gates_after(self.elapsed.at(at))
    }

    /// When the gates of the next step replace those of this time.
    pub(crate) fn changes_at(&self, now: Timestamp) -> Timestamp {
        let passed = self.elapsed.at(now);
        let next = (self.step(passed) + 1) * self.length.as_nanos();
        let next = next.div_ceil(u128::from(STEPS));
        let left = next.saturating_sub(passed.as_nanos());
        now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }

    #[inline]
    fn gates_after(&self, passed: Duration) -> &[Limit] {
        if passed >= self.length {
            return &[];
        }
        let step = usize::try_from(self.step(passed)).unwrap_or(usize::MAX);
        self.steps.get(step).map_or(&[], |gates| gates)
    }

    #[inline]
    fn step(&self, passed: Duration) -> u128 {
        passed.as_nanos() * u128::from(STEPS) / self.length.as_nanos().max(1)
    }
}

/// Whether a limit is a warm-up gate, by the name of its counter.
pub(crate) fn is_gate(limit: &Limit) -> bool {
    let name = limit.counter().name.strip_prefix(COUNTER_PREFIX);
    name.is_some_and(|rest| rest.starts_with('/'))
}

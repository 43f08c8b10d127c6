//! Failures of the store, counted by their kind.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::{Clock, Timestamp};

use crate::error::{FailureKind, StoreError};

/// All failures of one kind.
///
/// ```
/// use tollgate_redis::{FailureStats, RedisStats};
///
/// /// The text of a health check.
/// fn health(stats: &RedisStats) -> String {
///     let failing = stats.failures.iter().find(|failure| failure.failing_for.is_some());
///     match failing {
///         Some(FailureStats { kind, count, first_error: first, .. }) => format!("{kind}, {count} so far: {first}"),
///         None => "well".to_owned(),
///     }
/// }
/// assert_eq!(health(&RedisStats::default()), "well");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureStats {
    /// The kind.
    pub kind: FailureKind,
    /// Queries that failed with this kind.
    pub count: u64,
    /// The error message of the first of them.
    pub first_error: String,
    /// When the first failed, since 1970.
    pub since: Timestamp,
    /// How long ago the first failed, by a monotonic clock.
    pub first_ago: Duration,
    /// How long ago the latest failed. There may have been answers between the first and the latest.
    pub latest_ago: Duration,
    /// How long the store has failed with this kind, if it hasn't answered since the latest failure; else
    /// `None`.
    pub failing_for: Option<Duration>,
}

impl FailureStats {
    /// The time from the first to the latest failure, including answers in between.
    pub fn duration(&self) -> Duration {
        self.first_ago.saturating_sub(self.latest_ago)
    }
}

/// Counts of failures for each kind.
///
/// All accesses are relaxed: each number belongs to its own kind, and a thread that reads during a write may be
/// a moment behind.
#[derive(derive_more::Debug)]
#[debug("{:?}", self.stats())]
pub(crate) struct FailureCounters {
    kinds: [KindCounter; FailureKind::ALL.len()],
    /// Whether the latest known result is a failure. While the store works, nothing else is read.
    is_failing: AtomicBool,
    /// The kind of the latest failure, as a number.
    latest: AtomicUsize,
    times: Box<dyn Fn() -> ClockTimes + Send + Sync>,
}

/// A time on the monotonic clock, and on the wall clock.
#[derive(Clone, Copy, Debug)]
struct ClockTimes {
    now: Timestamp,
    date: Timestamp,
}

#[derive(Debug, Default)]
struct KindCounter {
    count: AtomicU64,
    first_error: OnceLock<(String, ClockTimes)>,
    /// By the monotonic clock.
    latest: AtomicU64,
    /// When it began to fail without an answer since, in nanoseconds plus 1; 0 if the store has answered.
    failing_since: AtomicU64,
}

impl FailureCounters {
    pub(crate) fn new(clock: impl Clock + 'static, wall: impl Clock + 'static) -> Self {
        Self {
            kinds: Default::default(),
            is_failing: AtomicBool::new(false),
            latest: AtomicUsize::new(usize::MAX),
            times: Box::new(move || ClockTimes {
                now: clock.now(),
                date: wall.now(),
            }),
        }
    }

    /// Counts a failed query.
    #[cold]
    pub(crate) fn record_failure(&self, kind: FailureKind, error: &dyn fmt::Display) {
        let relaxed = Ordering::Relaxed;
        let times = (self.times)();
        let tally = &self.kinds[kind as usize];
        tally.first_error.get_or_init(|| (error.to_string(), times));
        let nanos = times.now.as_nanos();
        // The maximum, because threads may arrive here in another order than they read the clock.
        tally.latest.fetch_max(nanos, relaxed);
        // Another thread may have set it.
        let _ =
            (tally.failing_since).compare_exchange(0, nanos.saturating_add(1), relaxed, relaxed);
        tally.count.fetch_add(1, relaxed);
        self.latest.store(kind as usize, relaxed);
        self.is_failing.store(true, relaxed);
    }

    /// Records that the store answered a query.
    #[inline]
    pub(crate) fn record_success(&self) {
        if self.is_failing.load(Ordering::Relaxed) {
            self.end_failing();
        }
    }

    #[cold]
    fn end_failing(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
        for tally in &self.kinds {
            tally.failing_since.store(0, Ordering::Relaxed);
        }
    }

    /// The kind of the latest failure.
    pub(crate) fn latest_kind(&self) -> FailureKind {
        let latest = FailureKind::ALL.get(self.latest.load(Ordering::Relaxed));
        latest.copied().unwrap_or(FailureKind::Other)
    }

    /// Records the result of a query.
    pub(crate) fn record_result<T>(&self, asked: &Result<T, StoreError>) {
        match asked {
            Ok(_) => self.record_success(),
            Err(error) => self.record_failure(error.kind(), error),
        }
    }

    /// The kinds that occurred.
    pub(crate) fn stats(&self) -> Vec<FailureStats> {
        let now = (self.times)().now;
        let stats = |(kind, tally): (FailureKind, &KindCounter)| {
            let (first, began) = tally.first_error.get()?;
            let ago = |nanos: u64| now - Timestamp::from_nanos(nanos);
            let spell = tally.failing_since.load(Ordering::Relaxed);
            Some(FailureStats {
                kind,
                count: tally.count.load(Ordering::Relaxed),
                first_error: first.clone(),
                since: began.date,
                first_ago: now - began.now,
                latest_ago: ago(tally.latest.load(Ordering::Relaxed)),
                failing_for: spell.checked_sub(1).map(ago),
            })
        };
        let kinds = FailureKind::ALL.into_iter().zip(&self.kinds);
        kinds.filter_map(stats).collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate::clock::Manual;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn late() -> StoreError {
        StoreError::TimedOut { after: SECOND }
    }

    #[test]
    fn each_kind_has_its_own_count_text_and_times() {
        let (clock, wall) = (
            Manual::new(),
            Manual::starting_at(Timestamp::from_secs(1000)),
        );
        let failures = FailureCounters::new(clock.clone(), wall.clone());
        assert_eq!(failures.stats(), []);
        let pass = |time| {
            clock.advance(time);
            wall.advance(time);
        };
        pass(SECOND);
        failures.record_result(&Err::<(), _>(late()));
        pass(SECOND);
        failures.record_result(&Err::<(), _>(StoreError::TimedOut { after: 2 * SECOND }));
        failures.record_result(&Err::<(), _>(StoreError::Stopped));
        pass(SECOND);
        let [timed_out, stopped] = &failures.stats()[..] else {
            panic!("two kinds: {failures:?}");
        };
        let expected = FailureStats {
            kind: FailureKind::TimedOut,
            count: 2,
            first_error: "the store gave no answer within 1s".to_owned(),
            since: Timestamp::from_secs(1001),
            first_ago: 2 * SECOND,
            latest_ago: SECOND,
            failing_for: Some(2 * SECOND),
        };
        assert_eq!(*timed_out, expected);
        assert_eq!(timed_out.duration(), SECOND);
        assert_eq!((stopped.kind, stopped.count), (FailureKind::Stopped, 1));
    }

    #[test]
    fn a_spell_ends_with_an_answer_and_a_new_one_begins_anew() {
        let clock = Manual::new();
        let failures = FailureCounters::new(clock.clone(), clock.clone());
        let going_on = || failures.stats()[0].failing_for;
        failures.record_result(&Err::<(), _>(late()));
        clock.advance(SECOND);
        assert_eq!(going_on(), Some(SECOND));
        failures.record_success();
        assert_eq!(going_on(), None);
        clock.advance(SECOND);
        failures.record_result(&Err::<(), _>(late()));
        clock.advance(SECOND);
        assert_eq!(going_on(), Some(SECOND));
        let [stats] = &failures.stats()[..] else {
            panic!("one kind: {failures:?}");
        };
        assert_eq!((stats.count, stats.first_ago), (2, 3 * SECOND));
    }
}

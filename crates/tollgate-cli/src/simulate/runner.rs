//! The virtual-time runner: a list of arrivals through one limit, and when each was let through.
//!
//! Time is whatever the arrivals say it is, so a run of a year takes as long as its arithmetic.

use std::time::Duration;

use tollgate_core::{
    Arithmetic, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    Timestamp, TokenBucket,
};

use super::tally;

/// A way of applying a rate to traffic: six that answer at once, and one that makes callers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmForm {
    /// [`TokenBucket`]
    TokenBucket,
    /// [`Gcra`]
    Gcra,
    /// [`LeakyBucket`] as a meter: what would overflow is refused.
    LeakyBucketMeter,
    /// [`FixedWindow`]
    FixedWindow,
    /// [`SlidingLog`]
    SlidingLog,
    /// [`SlidingCounter`]
    SlidingCounter,
    /// The leaky bucket as a queue: what is above the pace waits, up to the burst.
    LeakyBucketQueue,
}

/// What became of a list of arrivals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// How many arrived.
    pub offered: usize,
    /// When each admitted one was let through, in order.
    pub releases: Vec<Timestamp>,
    /// The longest that one waited; `None` for a form in which nobody waits.
    pub longest_wait: Option<Duration>,
}

impl AlgorithmForm {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::TokenBucket,
        Self::Gcra,
        Self::LeakyBucketMeter,
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingCounter,
        Self::LeakyBucketQueue,
    ];

    /// What it is called in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::Gcra => "GCRA",
            Self::LeakyBucketMeter => "leaky bucket (meter)",
            Self::FixedWindow => "fixed window",
            Self::SlidingLog => "sliding log",
            Self::SlidingCounter => "sliding counter",
            Self::LeakyBucketQueue => "leaky bucket (queue)",
        }
    }

    /// Whether it counts in windows and so has no burst apart from its count.
    pub const fn is_window(self) -> bool {
        matches!(
            self,
            Self::FixedWindow | Self::SlidingLog | Self::SlidingCounter
        )
    }
}

impl RunResult {
    /// How many were let through, at once or later.
    pub fn admitted(&self) -> usize {
        self.releases.len()
    }

    /// How many were refused.
    pub fn denied(&self) -> usize {
        self.offered - self.admitted()
    }

    /// The most that were let through in any half-open span of this length.
    pub fn peak(&self, window: Duration) -> usize {
        tally::peak_in_window(&self.releases, window)
    }
}

/// Runs arrivals, each of cost 1 and in order of time, through one form of a rate.
///
/// ```
/// use core::time::Duration;
/// use tollgate_cli::simulate::runner::{AlgorithmForm, run};
/// use tollgate_core::{Rate, Timestamp};
///
/// // Five at once against 10/s with a burst of 2.
/// let arrivals = [Timestamp::ZERO; 5];
/// let rate = Rate::per_second(10).burst(2);
///
/// let bucket = run(AlgorithmForm::TokenBucket, rate, &arrivals)?;
/// assert_eq!((bucket.admitted(), bucket.denied()), (2, 3));
///
/// // The queue lets one go at once and two wait, 100 ms apart.
/// let queue = run(AlgorithmForm::LeakyBucketQueue, rate, &arrivals)?;
/// assert_eq!(queue.releases, [0, 100, 200].map(Timestamp::from_millis));
/// assert_eq!(queue.longest_wait, Some(Duration::from_millis(200)));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
///
/// # Errors
/// The algorithm can't represent the rate.
pub fn run(
    form: AlgorithmForm,
    rate: Rate,
    arrivals: &[Timestamp],
) -> Result<RunResult, LimitError> {
    Ok(match form {
        AlgorithmForm::TokenBucket => run_checks(&TokenBucket::new(rate)?, arrivals),
        AlgorithmForm::Gcra => run_checks(&Gcra::new(rate)?, arrivals),
        AlgorithmForm::LeakyBucketMeter => run_checks(&LeakyBucket::new(rate)?, arrivals),
        AlgorithmForm::FixedWindow => run_checks(&FixedWindow::new(rate)?, arrivals),
        AlgorithmForm::SlidingLog => run_checks(&SlidingLog::new(rate)?, arrivals),
        AlgorithmForm::SlidingCounter => run_checks(&SlidingCounter::new(rate)?, arrivals),
        AlgorithmForm::LeakyBucketQueue => {
            let pace = LeakyBucket::new(rate.burst(1))?;
            run_queue(&pace, rate.burst_size(), arrivals)
        }
    })
}

/// Asks a limit about each arrival in turn; what doesn't pass at once is refused.
pub fn run_checks<A: Arithmetic>(limit: &A, arrivals: &[Timestamp]) -> RunResult {
    debug_assert!(arrivals.is_sorted(), "arrivals come in order of time");
    let mut state = A::State::default();
    let admitted = |now: &Timestamp| limit.decide(&mut state, *now, 1).is_allowed();
    RunResult {
        offered: arrivals.len(),
        releases: arrivals.iter().copied().filter(admitted).collect(),
        longest_wait: None,
    }
}

/// Lets each arrival wait for its turn at the pace of the limit, first come, first served; it is
/// refused if it would have to wait while `capacity` others already do.
pub fn run_queue<A: Arithmetic>(pace: &A, capacity: u64, arrivals: &[Timestamp]) -> RunResult {
    debug_assert!(arrivals.is_sorted(), "arrivals come in order of time");
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let mut state = A::State::default();
    let mut releases: Vec<Timestamp> = Vec::new();
    let mut longest_wait = Duration::ZERO;
    // Releases are in order, so those still to come are always the tail of the list.
    let mut gone = 0;
    for &now in arrivals {
        while releases.get(gone).is_some_and(|release| *release <= now) {
            gone += 1;
        }
        let Some(at) = pace.earliest(&state, now, 1) else {
            continue;
        };
        if at > now && releases.len() - gone >= capacity {
            continue;
        }
        pace.charge(&mut state, now, at, 1);
        releases.push(at);
        longest_wait = longest_wait.max(at - now);
    }
    RunResult {
        offered: arrivals.len(),
        releases,
        longest_wait: Some(longest_wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(times: &[u64]) -> Vec<Timestamp> {
        times.iter().copied().map(Timestamp::from_millis).collect()
    }

    /// Runs arrivals at these milliseconds and compares the milliseconds of the releases.
    fn check(form: AlgorithmForm, rate: &str, arrivals: &[u64], releases: &[u64]) {
        let run = run(form, rate.parse().unwrap(), &millis(arrivals)).unwrap();
        assert_eq!(run.releases, millis(releases), "{form:?} {rate}");
        assert_eq!(run.offered, arrivals.len());
        assert_eq!(run.denied(), arrivals.len() - releases.len());
    }

    #[test]
    fn each_form_lets_through_what_its_algorithm_admits() {
        let arrivals = [0, 0, 0, 400, 500, 900, 1000, 1000, 1000];
        for form in [
            AlgorithmForm::TokenBucket,
            AlgorithmForm::Gcra,
            AlgorithmForm::LeakyBucketMeter,
        ] {
            check(form, "2/s", &arrivals, &[0, 0, 500, 1000]);
        }
        check(
            AlgorithmForm::FixedWindow,
            "2/s",
            &arrivals,
            &[0, 0, 1000, 1000],
        );
        check(
            AlgorithmForm::SlidingLog,
            "2/s",
            &arrivals,
            &[0, 0, 1000, 1000],
        );
        check(AlgorithmForm::SlidingCounter, "2/s", &arrivals, &[0, 0]);
        check(
            AlgorithmForm::LeakyBucketQueue,
            "2/s",
            &arrivals,
            &[0, 500, 1000, 1500, 2000],
        );
    }

    #[test]
    fn a_queue_keeps_its_pace_and_catches_up_no_rest() {
        // A rest of a second earns nothing: the pace is strict.
        check(
            AlgorithmForm::LeakyBucketQueue,
            "10/s",
            &[0, 1000, 1000, 1000],
            &[0, 1000, 1100, 1200],
        );
    }

    #[test]
    fn a_queue_refuses_when_its_room_is_taken() {
        // One goes at once, two wait; at 100 ms one of them has gone and there is room for one.
        check(
            AlgorithmForm::LeakyBucketQueue,
            "10/s burst 2",
            &[0, 0, 0, 0, 99, 100, 100],
            &[0, 100, 200, 300],
        );
        check(
            AlgorithmForm::LeakyBucketQueue,
            "10/s burst 0",
            &[0, 0, 99, 100],
            &[0, 100],
        );
    }

    #[test]
    fn only_a_queue_reports_a_wait() {
        for form in AlgorithmForm::ALL {
            let run = run(form, Rate::per_second(10), &millis(&[0, 0])).unwrap();
            let wait =
                (form == AlgorithmForm::LeakyBucketQueue).then_some(Duration::from_millis(100));
            assert_eq!(run.longest_wait, wait, "{form:?}");
        }
    }

    #[test]
    fn no_arrivals_give_an_empty_run() {
        for form in AlgorithmForm::ALL {
            check(form, "10/s", &[], &[]);
        }
    }
}

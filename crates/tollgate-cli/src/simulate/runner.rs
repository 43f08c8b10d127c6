//! The virtual-time runner: runs a list of arrivals through one limit, and records when each was admitted.
//!
//! Time comes from the arrivals, so a run of a year takes only as long as its arithmetic.

use std::time::Duration;

use tollgate_core::{
    Arithmetic, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    Timestamp, TokenBucket,
};

use super::tally;

/// A form of an algorithm: six decide immediately, and one makes requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmForm {
    /// [`TokenBucket`]
    TokenBucket,
    /// [`Gcra`]
    Gcra,
    /// [`LeakyBucket`] as a meter: a request that would overflow it is denied.
    LeakyBucketMeter,
    /// [`FixedWindow`]
    FixedWindow,
    /// [`SlidingLog`]
    SlidingLog,
    /// [`SlidingCounter`]
    SlidingCounter,
    /// The leaky bucket as a queue: requests above the rate wait, at most as many as the burst.
    LeakyBucketQueue,
}

/// The result of a list of arrivals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// The number of arrivals.
    pub offered: usize,
    /// When each admitted request was released, in ascending order.
    pub releases: Vec<Timestamp>,
    /// The longest wait; `None` for a form without waits.
    pub longest_wait: Option<Duration>,
}

impl AlgorithmForm {
    /// All forms, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::TokenBucket,
        Self::Gcra,
        Self::LeakyBucketMeter,
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingCounter,
        Self::LeakyBucketQueue,
    ];

    /// The name in reports.
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

    /// Whether the algorithm counts in windows, and so has no burst apart from its count.
    pub const fn is_window(self) -> bool {
        matches!(
            self,
            Self::FixedWindow | Self::SlidingLog | Self::SlidingCounter
        )
    }
}

impl RunResult {
    /// The number of admitted requests, including those that waited.
    pub fn admitted(&self) -> usize {
        self.releases.len()
    }

    /// The number of denied requests.
    pub fn denied(&self) -> usize {
        self.offered - self.admitted()
    }

    /// The most releases in any half-open span of this length.
    pub fn peak(&self, window: Duration) -> usize {
        tally::peak_in_window(&self.releases, window)
    }
}

/// Runs arrivals through one form of a rate. Each arrival costs 1, and the times ascend.
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

/// Checks a limit for each arrival in order. An arrival that doesn't pass immediately is denied.
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

/// Releases arrivals at the limit's rate, first come, first served. An arrival is denied if `capacity` others already
/// wait.
pub fn run_queue<A: Arithmetic>(pace: &A, capacity: u64, arrivals: &[Timestamp]) -> RunResult {
    debug_assert!(arrivals.is_sorted(), "arrivals come in order of time");
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let mut state = A::State::default();
    let mut releases: Vec<Timestamp> = Vec::new();
    let mut longest_wait = Duration::ZERO;
    // Releases ascend, so the waiting ones are always the tail of the list.
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
        // A second without requests earns no burst: the queue releases strictly at the rate.
        check(
            AlgorithmForm::LeakyBucketQueue,
            "10/s",
            &[0, 1000, 1000, 1000],
            &[0, 1000, 1100, 1200],
        );
    }

    #[test]
    fn a_queue_refuses_when_its_room_is_taken() {
        // One is released immediately, and two wait. At 100 ms one of them is released, and there is room for
        // another.
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

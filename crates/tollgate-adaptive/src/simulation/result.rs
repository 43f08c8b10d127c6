//! The result of a simulation, and its score.

use std::time::Duration;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationResult {
    /// One for each phase, from when limits should have adapted.
    pub phases: Vec<PhaseResult>,
    /// One for each tenth of a second.
    pub points: Vec<TimePoint>,
}

/// The result of a phase, from when limits should have adapted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseResult {
    /// Calls a second that were answered in time.
    pub goodput: f64,
    /// The 99th percentile of their latency.
    pub p99: Duration,
    /// The 99th percentile of latency without any queue; `None` if nothing is served in this phase,
    /// which isn't scored.
    pub unloaded_p99: Option<Duration>,
    /// The mean sum of all clients' limits.
    pub limit: f64,
    /// How much the limits swing: the standard deviation of their means per second, as a part of the
    /// mean.
    pub swing: f64,
    /// Calls answered in time in each whole second of the phase, from its first on.
    pub each_second: Vec<f64>,
}

/// A tenth of a second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimePoint {
    /// Its end, in seconds.
    pub at: f64,
    /// The sum of all clients' limits.
    pub limit: f64,
    /// Calls in flight.
    pub in_flight: f64,
    /// The mean latency of answered calls, in milliseconds.
    pub latency: f64,
    /// Calls a second that were answered in time.
    pub goodput: f64,
}

/// The score of a run. Each number is that of the worst phase.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::simulation::Score;
///
/// let judged = Score { goodput: 0.95, p99_times: 1.4, swing: 0.1, starved: Duration::from_secs(3) };
/// assert!(judged.is_good());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// As a part of the best fixed limit's goodput.
    pub goodput: f64,
    /// The 99th percentile as a multiple of the unloaded one.
    pub p99_times: f64,
    /// How much the limit swings.
    pub swing: f64,
    /// The longest time with less than half of the best fixed limit's goodput in each second; includes
    /// the time right after a change.
    pub starved: Duration,
}

impl Score {
    /// At least this part of the best fixed limit's goodput.
    pub const GOODPUT: f64 = 0.9;
    /// At most this multiple of the unloaded 99th percentile.
    pub const P99_TIMES: f64 = 3.0;
    /// At most this standard deviation of the limit's means per second, as a part of its mean.
    pub const SWING: f64 = 0.4;
    /// At most this long with less than half of the best fixed limit's goodput.
    pub const STARVED: Duration = Duration::from_secs(10);

    /// Whether all requirements are met.
    pub fn is_good(&self) -> bool {
        self.goodput >= Self::GOODPUT
            && self.p99_times <= Self::P99_TIMES
            && self.swing <= Self::SWING
            && self.starved <= Self::STARVED
    }
}

impl PhaseResult {
    /// The 99th percentile as a multiple of the unloaded one; 0 in a phase that isn't scored.
    pub fn p99_times(&self) -> f64 {
        match self.unloaded_p99 {
            Some(unloaded) => self.p99.as_secs_f64() / unloaded.as_secs_f64(),
            None => 0.0,
        }
    }
}

impl SimulationResult {
    /// Scores the run against the best fixed limit of each phase
    /// ([`best_fixed`](super::Scenario::best_fixed)).
    pub fn judge(&self, best: &[(u32, f64)]) -> Score {
        let mut judged = Score {
            goodput: f64::INFINITY,
            p99_times: 0.0,
            swing: 0.0,
            starved: Duration::ZERO,
        };
        let mut starved = Duration::ZERO;
        for (phase, (_, best)) in self.phases.iter().zip(best) {
            if phase.unloaded_p99.is_none() {
                // No limit could do better.
                starved = Duration::ZERO;
                continue;
            }
            for answered in &phase.each_second {
                let is_starved = *answered < best / 2.0;
                starved = if is_starved {
                    starved + Duration::from_secs(1)
                } else {
                    Duration::ZERO
                };
                judged.starved = judged.starved.max(starved);
            }
            judged.goodput = judged.goodput.min(phase.goodput / best);
            judged.p99_times = judged.p99_times.max(phase.p99_times());
            judged.swing = judged.swing.max(phase.swing);
        }
        judged
    }
}

/// The measurements of a phase while it runs.
#[derive(Debug, Default)]
pub(super) struct PhaseSamples {
    pub(super) latencies: Vec<u64>,
    /// The sums of the limits in each tenth of a second.
    pub(super) limits: Vec<f64>,
    /// The calls answered in each tenth of a second, from the first on.
    pub(super) answered: Vec<usize>,
}

impl PhaseSamples {
    pub(super) fn into_result(
        mut self,
        seconds: f64,
        unloaded_p99: Option<Duration>,
    ) -> PhaseResult {
        let count = self.latencies.len();
        self.latencies.sort_unstable();
        let p99 = self
            .latencies
            .get((count * 99).div_ceil(100).saturating_sub(1));
        let seconds_of: Vec<f64> = self.limits.chunks_exact(10).map(mean).collect();
        let limit = mean(&seconds_of);
        let squares: Vec<f64> = seconds_of.iter().map(|one| (one - limit).powi(2)).collect();
        PhaseResult {
            goodput: to_f64(count) / seconds,
            p99: Duration::from_nanos(p99.copied().unwrap_or(u64::MAX)),
            unloaded_p99,
            limit,
            swing: mean(&squares).sqrt() / limit,
            each_second: self
                .answered
                .chunks_exact(10)
                .map(|tenths| to_f64(tenths.iter().sum()))
                .collect(),
        }
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / to_f64(numbers.len().max(1))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a run has far fewer than 2^53 calls"
)]
pub(super) fn to_f64(count: usize) -> f64 {
    count as f64
}

//! AIMD by latency: a call above a threshold is a sign of overload.

use std::time::Duration;

use super::law::ParameterRange;
use super::{Aimd, AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// How fast the running percentile follows.
const PERCENTILE_STEP: f64 = 0.02;

/// AIMD that treats each call above a threshold as a sign of overload, like a drop.
///
/// The threshold is a duration that was promised to users, or a multiple of a running percentile of the
/// calls' own durations. A running threshold follows the observed latency, so use a fixed one if there
/// is a promise.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, LatencyThreshold, LimitAlgorithm, ChangeReason, Sample};
///
/// let promised = Duration::from_millis(50);
/// let mut algorithm = LatencyThreshold::fixed(Bounds::new(1.0, 100.0)?, promised).initial(40.0);
/// algorithm.observe(&Sample::new(Duration::from_millis(20), 30));
/// assert_eq!(algorithm.limit(), 41.0);
/// let slow = Sample::new(Duration::from_millis(60), 41);
/// assert_eq!(algorithm.observe(&slow), Some(ChangeReason::Slow));
/// assert_eq!(algorithm.limit(), 20.5);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyThreshold {
    aimd: Aimd,
    threshold: Threshold,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Threshold {
    Fixed(Duration),
    /// A multiple of a percentile, whose estimate (in nanoseconds) is 0 before the first sample.
    Running {
        times: f64,
        part: f64,
        estimate: f64,
    },
}

impl LatencyThreshold {
    /// Calls should take at most this long.
    pub fn fixed(bounds: Bounds, threshold: Duration) -> Self {
        Self {
            aimd: Aimd::new(bounds),
            threshold: Threshold::Fixed(threshold),
        }
    }

    /// Calls should take at most this multiple of a percentile of their durations, such as 2 × 0.9.
    ///
    /// # Errors
    /// Unless `times` is at least 1, and `part` is above 0 and below 1.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_adaptive::{Bounds, LatencyThreshold, LimitAlgorithm, Sample};
    ///
    /// let mut algorithm = LatencyThreshold::running(Bounds::new(1.0, 50.0)?, 3.0, 0.5)?;
    /// for _ in 0..100 {
    ///     algorithm.observe(&Sample::new(Duration::from_millis(10), 50));
    /// }
    /// assert_eq!(algorithm.limit(), 50.0);
    /// algorithm.observe(&Sample::new(Duration::from_millis(100), 50));
    /// assert_eq!(algorithm.limit(), 25.0);
    /// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
    /// ```
    pub fn running(bounds: Bounds, times: f64, part: f64) -> Result<Self, AlgorithmError> {
        let times = ParameterRange::MULTIPLE.check("a multiple", times)?;
        let part = ParameterRange::BELOW_ONE.check("a percentile", part)?;
        Ok(Self {
            aimd: Aimd::new(bounds),
            threshold: Threshold::Running {
                times,
                part,
                estimate: 0.0,
            },
        })
    }

    /// Sets the steps: see [`Aimd::increase`] and [`Aimd::backoff`].
    ///
    /// # Errors
    /// The same as those.
    pub fn steps(mut self, increase: f64, backoff: f64) -> Result<Self, AlgorithmError> {
        self.aimd = self.aimd.increase(increase)?.backoff(backoff)?;
        Ok(self)
    }

    /// Whether a call took too long. A running threshold is that from before this call.
    fn is_slow(&mut self, sample: &Sample) -> bool {
        match &mut self.threshold {
            Threshold::Fixed(threshold) => sample.rtt > *threshold,
            Threshold::Running {
                times,
                part,
                estimate,
            } => {
                let rtt = sample.nanos();
                if *estimate == 0.0 {
                    *estimate = rtt;
                    return false;
                }
                let is_slow = rtt > *times * *estimate;
                // Up for calls above the estimate, down for those below, so that both balance at the
                // percentile.
                *estimate *= if rtt > *estimate {
                    1.0 + PERCENTILE_STEP * *part
                } else {
                    1.0 - PERCENTILE_STEP * (1.0 - *part)
                };
                is_slow
            }
        }
    }
}

impl LimitAlgorithm for LatencyThreshold {
    fn bounds(&self) -> Bounds {
        self.aimd.bounds()
    }

    fn limit(&self) -> f64 {
        self.aimd.limit()
    }

    fn set_limit(&mut self, limit: f64) {
        self.aimd.set_limit(limit);
    }

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let overload = if sample.is_dropped() {
            Some(ChangeReason::Dropped)
        } else {
            self.is_slow(sample).then_some(ChangeReason::Slow)
        };
        self.aimd.apply_signal(overload, sample.in_flight)
    }
}

//! Gradient2: compares each call with the mean of the last few hundred.

use super::law::{ParameterRange, keeps_limit_in};
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// The number of samples over which the mean is a plain one, before it becomes a running one.
const WARM_UP_SAMPLES: f64 = 10.0;

/// Compares each call with a long running mean, and lowers the limit while calls take longer than that.
///
/// Identical to Netflix's `Gradient2Limit`, to the bit, with its consequences: it ignores drops, and a
/// queue that lasts long enough becomes part of the mean. With fixed service times it settles near 50
/// where 8 are best: the queue of 50 calls has a latency of its own that doesn't rise any more.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, Gradient2, LimitAlgorithm, Sample};
///
/// let mut algorithm = Gradient2::new(Bounds::new(20.0, 200.0)?);
/// algorithm.observe(&Sample::new(Duration::from_millis(1), 20));
/// assert_eq!(algorithm.limit(), 20.8);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient2 {
    bounds: Bounds,
    estimate: f64,
    smoothing: f64,
    queue: f64,
    tolerance: f64,
    window: f64,
    count: f64,
    sum: f64,
    long_average_nanos: f64,
}

impl Gradient2 {
    /// Begins at 20, with a queue of 4, a mean over 600 samples, and calls that may take 1.5 times as
    /// long.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            estimate: 20.0,
            smoothing: 0.2,
            queue: 4.0,
            tolerance: 1.5,
            window: 600.0,
            count: 0.0,
            sum: 0.0,
            long_average_nanos: 0.0,
        }
    }

    /// Moves this part of the way to each new limit.
    ///
    /// # Errors
    /// Unless it is above 0 and at most 1.
    pub fn smoothing(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.smoothing = ParameterRange::FRACTION.check("a smoothing", part)?;
        Ok(self)
    }

    /// The number of calls that may queue.
    #[must_use]
    pub fn queue(mut self, size: u32) -> Self {
        self.queue = f64::from(size);
        self
    }

    /// Calls may take this multiple of the mean.
    ///
    /// # Errors
    /// Unless it is at least 1.
    pub fn tolerance(mut self, times: f64) -> Result<Self, AlgorithmError> {
        self.tolerance = ParameterRange::MULTIPLE.check("a tolerance", times)?;
        Ok(self)
    }

    /// The number of samples of the long mean.
    #[must_use]
    pub fn window(mut self, samples: u32) -> Self {
        self.window = f64::from(samples);
        self
    }

    /// The long mean, in nanoseconds.
    pub fn long_nanos(&self) -> f64 {
        self.long_average_nanos
    }

    fn update_average(&mut self, rtt: f64) {
        if self.count < WARM_UP_SAMPLES {
            self.count += 1.0;
            self.sum += rtt;
            self.long_average_nanos = self.sum / self.count;
        } else {
            let factor = 2.0 / (self.window + 1.0);
            self.long_average_nanos = self.long_average_nanos * (1.0 - factor) + rtt * factor;
        }
    }
}

impl LimitAlgorithm for Gradient2 {
    keeps_limit_in!(estimate);

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let short = sample.nanos();
        self.update_average(short);
        let long = self.long_average_nanos;
        // Calls have become much faster: the mean follows faster than it would by itself.
        if long / short > 2.0 {
            self.long_average_nanos *= 0.95;
        }
        if f64::from(sample.in_flight) < self.estimate / 2.0 {
            return None;
        }
        let before = self.estimate;
        let gradient = (self.tolerance * long / short).clamp(0.5, 1.0);
        let wanted = before * gradient + self.queue;
        let smoothed = before * (1.0 - self.smoothing) + wanted * self.smoothing;
        self.estimate = smoothed.min(self.bounds.max()).max(self.bounds.min());
        (self.estimate.to_bits() != before.to_bits()).then_some(if self.estimate > before {
            ChangeReason::Room
        } else {
            ChangeReason::Queueing
        })
    }
}

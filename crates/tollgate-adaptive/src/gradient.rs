//! Gradient: scales the limit by how much longer calls take than the fastest one.

use super::law::{ParameterRange, keeps_limit_in};
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// Multiplies the limit by the ratio of the fastest call's latency to the current one, and adds room
/// for a queue.
///
/// Identical to Netflix's (first) `GradientLimit`, to the bit. Every so often the limit falls to its
/// minimum and the fastest call is measured anew; [`Gradient2`](super::Gradient2) does without that.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, Gradient, LimitAlgorithm, Sample};
///
/// let mut algorithm = Gradient::new(Bounds::new(1.0, 1_000.0)?).initial(50.0);
/// algorithm.observe(&Sample::new(Duration::from_millis(1), 50));
/// assert_eq!(algorithm.limit(), 57.0, "√50 more");
/// algorithm.observe(&Sample::new(Duration::from_millis(8), 57));
/// assert!(algorithm.limit() < 57.0);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    bounds: Bounds,
    estimate: f64,
    smoothing: f64,
    tolerance: f64,
    backoff: f64,
    min_latency_nanos: f64,
    /// The fewest samples between probes, plus a random number up to as many; `None` disables probes.
    probe_every: Option<u32>,
    until_probe: u64,
    chance: SplitMix64,
}

impl Gradient {
    /// Begins at 50; calls may take twice as long as the fastest; a probe every 1,000 to 2,000 samples.
    pub fn new(bounds: Bounds) -> Self {
        let mut law = Self {
            bounds,
            estimate: 50.0,
            smoothing: 0.2,
            tolerance: 2.0,
            backoff: 0.9,
            min_latency_nanos: 0.0,
            probe_every: Some(1_000),
            until_probe: 0,
            chance: SplitMix64::new(0),
        };
        law.schedule_probe();
        law
    }

    /// Moves this part of the way to a lower limit.
    ///
    /// # Errors
    /// Unless it is above 0 and at most 1.
    pub fn smoothing(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.smoothing = ParameterRange::FRACTION.check("a smoothing", part)?;
        Ok(self)
    }

    /// Calls may take this multiple of the fastest one's latency.
    ///
    /// # Errors
    /// Unless it is at least 1.
    pub fn tolerance(mut self, times: f64) -> Result<Self, AlgorithmError> {
        self.tolerance = ParameterRange::MULTIPLE.check("a tolerance", times)?;
        Ok(self)
    }

    /// Multiplies the limit by this after a drop.
    ///
    /// # Errors
    /// Unless it is above 0 and below 1.
    pub fn backoff(mut self, factor: f64) -> Result<Self, AlgorithmError> {
        self.backoff = ParameterRange::BELOW_ONE.check("a backoff", factor)?;
        Ok(self)
    }

    /// Probes after this many samples, plus a random number up to as many; `None` disables probes.
    #[must_use]
    pub fn probe_every(mut self, samples: Option<u32>) -> Self {
        self.probe_every = samples;
        self.schedule_probe();
        self
    }

    /// The seed of the probes' schedule; use a different one for each instance.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.chance = SplitMix64::new(seed);
        self.schedule_probe();
        self
    }

    fn schedule_probe(&mut self) {
        let every = u64::from(self.probe_every.unwrap_or(0)).max(1);
        self.until_probe = every + self.chance.next() % every;
    }
}

impl LimitAlgorithm for Gradient {
    keeps_limit_in!(estimate);

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let queue = self.estimate.trunc().sqrt().trunc().max(4.0);
        if self.probe_every.is_some() {
            if self.until_probe == 0 {
                self.schedule_probe();
                self.estimate = self.bounds.min().max(queue);
                self.min_latency_nanos = 0.0;
                return Some(ChangeReason::Probing);
            }
            self.until_probe -= 1;
        }
        let rtt = sample.nanos();
        if self.min_latency_nanos == 0.0 || rtt < self.min_latency_nanos {
            self.min_latency_nanos = rtt;
        }
        let gradient = (self.tolerance * self.min_latency_nanos / rtt).clamp(0.5, 1.0);
        let mut wanted = if sample.is_dropped() {
            self.estimate * self.backoff
        } else if f64::from(sample.in_flight) < self.estimate / 2.0 {
            return None;
        } else {
            self.estimate * gradient + queue
        };
        let before = self.estimate;
        if wanted < before {
            wanted =
                (before * (1.0 - self.smoothing) + self.smoothing * wanted).max(self.bounds.min());
        }
        self.estimate = wanted
            .min(self.bounds.max())
            .max(queue.min(self.bounds.max()));
        (self.estimate.to_bits() != before.to_bits()).then_some(if self.estimate > before {
            ChangeReason::Room
        } else if sample.is_dropped() {
            ChangeReason::Dropped
        } else {
            ChangeReason::Queueing
        })
    }
}

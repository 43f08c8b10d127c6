//! Vegas: estimates the queue from how much longer calls take than the fastest one.

use super::law::{ParameterRange, keeps_limit_in};
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// Keeps a short queue: compares each call with the fastest one, and aims at α to β queued calls.
///
/// Identical to Netflix's `VegasLimit`, to the bit. It suits calls of even duration; if durations
/// differ by nature, it mistakes the longer ones for a queue. Every so often the fastest call is
/// measured anew (a probe), in case all calls have become slower.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, Sample, Vegas};
///
/// let mut algorithm = Vegas::new(Bounds::new(1.0, 1_000.0)?);
/// let quick = Sample::new(Duration::from_millis(1), 20);
/// algorithm.observe(&quick);
/// algorithm.observe(&quick);
/// assert_eq!(algorithm.limit(), 26.0, "no queue: β more");
/// algorithm.observe(&Sample::new(Duration::from_millis(10), 26));
/// assert_eq!(algorithm.limit(), 25.0, "24 of 26 wait");
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vegas {
    bounds: Bounds,
    estimate: f64,
    smoothing: f64,
    probe_multiplier: f64,
    fixed_queue: Option<(f64, f64)>,
    min_latency_nanos: f64,
    count: f64,
    jitter: f64,
    chance: SplitMix64,
}

impl Vegas {
    /// Begins at 20, with α = 3 and β = 6 for each decimal digit of the limit after the first.
    pub fn new(bounds: Bounds) -> Self {
        let mut chance = SplitMix64::new(0);
        Self {
            bounds,
            estimate: 20.0,
            smoothing: 1.0,
            probe_multiplier: 30.0,
            fixed_queue: None,
            min_latency_nanos: 0.0,
            count: 0.0,
            jitter: draw_jitter(&mut chance),
            chance,
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

    /// Measures the fastest call anew after about this multiple of the limit in calls: 30 by default.
    #[must_use]
    pub fn probe_multiplier(mut self, times: u32) -> Self {
        self.probe_multiplier = f64::from(times);
        self
    }

    /// Aims at `alpha` to `beta` queued calls, whatever the limit.
    #[must_use]
    pub fn queue(mut self, alpha: u32, beta: u32) -> Self {
        self.fixed_queue = Some((f64::from(alpha), f64::from(beta)));
        self
    }

    /// The seed of the probes' schedule; use a different one for each instance.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.chance = SplitMix64::new(seed);
        self.jitter = draw_jitter(&mut self.chance);
        self
    }

    /// Sets when the next probe comes, as a part from 0.5 to 1 of its interval; for replaying recorded
    /// runs.
    pub fn set_probe_jitter(&mut self, part: f64) {
        self.jitter = part;
    }

    /// The fastest call since the last probe, in nanoseconds; 0 before the first.
    pub fn quickest_nanos(&self) -> f64 {
        self.min_latency_nanos
    }
}

/// When the next probe comes: a random part of its interval, so that instances don't probe together.
fn draw_jitter(chance: &mut SplitMix64) -> f64 {
    0.5 + chance.next_fraction() / 2.0
}

/// The decimal digits of the limit's whole part after the first; at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a double saturates, and the whole part is what is asked for"
)]
fn log10_step(limit: f64) -> f64 {
    f64::from((limit as u32).checked_ilog10().unwrap_or(0).max(1))
}

impl LimitAlgorithm for Vegas {
    keeps_limit_in!(estimate);

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let rtt = sample.nanos();
        self.count += 1.0;
        if self.jitter * self.probe_multiplier * self.estimate <= self.count {
            self.jitter = draw_jitter(&mut self.chance);
            self.count = 0.0;
            self.min_latency_nanos = rtt;
            return None;
        }
        if self.min_latency_nanos == 0.0 || rtt < self.min_latency_nanos {
            self.min_latency_nanos = rtt;
            return None;
        }
        let queue = (self.estimate * (1.0 - self.min_latency_nanos / rtt)).ceil();
        let step = log10_step(self.estimate);
        let (alpha, beta) = self.fixed_queue.unwrap_or((3.0 * step, 6.0 * step));
        let (wanted, reason) = if sample.is_dropped() {
            (self.estimate - step, ChangeReason::Dropped)
        } else if f64::from(sample.in_flight) * 2.0 < self.estimate {
            return None;
        } else if queue <= step {
            (self.estimate + beta, ChangeReason::Room)
        } else if queue < alpha {
            (self.estimate + step, ChangeReason::Room)
        } else if queue > beta {
            (self.estimate - step, ChangeReason::Queueing)
        } else {
            return None;
        };
        let wanted = self.bounds.min().max(self.bounds.max().min(wanted));
        self.estimate = (1.0 - self.smoothing) * self.estimate + self.smoothing * wanted;
        Some(reason)
    }
}

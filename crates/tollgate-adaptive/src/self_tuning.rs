//! By the share of successful calls.

use super::law::{ParameterRange, keeps_limit_in};
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// Lowers the limit while too few calls succeed, and raises it while more succeed than the target.
///
/// It reads the outcome of calls and not their latency, so it suits rates against a server that rejects
/// excess calls. After every 10 samples: below the target ×0.9, above the target + 0.05 ×1.05. With a
/// target above 0.95, no share could exceed it by 0.05, so the threshold there is halfway to 1.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, ChangeReason, Sample, SelfTuning};
///
/// let mut algorithm = SelfTuning::new(Bounds::new(10.0, 1_000.0)?, 0.9)?.initial(100.0);
/// let sample = Sample::new(Duration::from_millis(5), 0);
/// for _ in 0..9 {
///     assert_eq!(algorithm.observe(&sample.dropped()), None);
/// }
/// assert_eq!(algorithm.observe(&sample.dropped()), Some(ChangeReason::Failing));
/// assert_eq!(algorithm.limit(), 90.0);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTuning {
    bounds: Bounds,
    limit: f64,
    target: f64,
    samples: u32,
    lower: f64,
    raise: f64,
    seen: u32,
    succeeded: u32,
}

impl SelfTuning {
    /// The target share of successful calls.
    ///
    /// # Errors
    /// Unless it is above 0 and below 1.
    pub fn new(bounds: Bounds, target: f64) -> Result<Self, AlgorithmError> {
        Ok(Self {
            bounds,
            limit: bounds.min(),
            target: ParameterRange::BELOW_ONE.check("a target", target)?,
            samples: 10,
            lower: 0.9,
            raise: 1.05,
            seen: 0,
            succeeded: 0,
        })
    }

    /// The samples for each step: 10 by default.
    #[must_use]
    pub fn samples(mut self, samples: u32) -> Self {
        self.samples = samples.max(1);
        self
    }
}

impl LimitAlgorithm for SelfTuning {
    keeps_limit_in!(limit);

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        self.seen += 1;
        self.succeeded += u32::from(!sample.is_dropped());
        if self.seen < self.samples {
            return None;
        }
        let share = f64::from(self.succeeded) / f64::from(self.seen);
        (self.seen, self.succeeded) = (0, 0);
        let enough = self.target + 0.05_f64.min((1.0 - self.target) / 2.0);
        let (wanted, reason) = if share < self.target {
            (self.limit * self.lower, ChangeReason::Failing)
        } else if share > enough {
            (self.limit * self.raise, ChangeReason::Succeeding)
        } else {
            return None;
        };
        let before = self.limit;
        self.limit = self.bounds.clamp(wanted);
        (self.limit.to_bits() != before.to_bits()).then_some(reason)
    }
}

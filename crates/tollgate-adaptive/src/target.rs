//! By a gauge of the machine: how busy its processors are, or how long tasks wait for them.

use super::law::{ParameterRange, keeps_limit_in};
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm};

/// Keeps a reading near a target, such as CPU usage near 0.7: above 1.1 × target ×0.8, below 0.9 ×
/// target ×1.1.
///
/// It learns from readings and not from calls. Its steps are made for one reading every 10 s, because a
/// reading is a mean over a while and shows a change late.
///
/// ```
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, ChangeReason, GaugeTarget};
///
/// let mut algorithm = GaugeTarget::new(Bounds::new(10.0, 1_000.0)?, 0.5)?.initial(100.0);
/// assert_eq!(algorithm.observe(&0.6), Some(ChangeReason::Pressed));
/// assert_eq!(algorithm.limit(), 80.0);
/// assert_eq!(algorithm.observe(&0.52), None, "near enough");
/// assert_eq!(algorithm.observe(&f64::NAN), None, "says nothing");
/// assert_eq!(algorithm.observe(&0.1), Some(ChangeReason::Relaxed));
/// assert_eq!(algorithm.limit(), 88.0);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugeTarget {
    bounds: Bounds,
    limit: f64,
    target: f64,
}

impl GaugeTarget {
    /// The recommended interval of readings.
    pub const EVERY: std::time::Duration = std::time::Duration::from_secs(10);

    /// The target of the readings.
    ///
    /// # Errors
    /// Unless it is a number above 0.
    pub fn new(bounds: Bounds, target: f64) -> Result<Self, AlgorithmError> {
        Ok(Self {
            bounds,
            limit: bounds.min(),
            target: ParameterRange::POSITIVE.check("a target", target)?,
        })
    }
}

impl LimitAlgorithm<f64> for GaugeTarget {
    keeps_limit_in!(limit);

    fn step(&mut self, reading: &f64) -> Option<ChangeReason> {
        let (wanted, reason) = if *reading > self.target * 1.1 {
            (self.limit * 0.8, ChangeReason::Pressed)
        } else if *reading < self.target * 0.9 {
            (self.limit * 1.1, ChangeReason::Relaxed)
        } else {
            return None;
        };
        let before = self.limit;
        self.limit = self.bounds.clamp(wanted);
        (self.limit.to_bits() != before.to_bits()).then_some(reason)
    }
}

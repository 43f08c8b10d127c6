//! AIMD: adds a step for each success, multiplies down for each sign of overload.

use std::time::Duration;

use super::law::{ParameterRange, keeps_limit_in};
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// Additive increase, multiplicative decrease, as in TCP. It needs no clear latency signal, only a sign
/// of overload.
///
/// A success while at least half of the limit is in use adds 1; a drop, or a call above the timeout,
/// multiplies by 0.5. A limit for a rate has nothing in flight and counts as in use.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Aimd, Bounds, LimitAlgorithm, Sample};
///
/// let mut algorithm = Aimd::new(Bounds::new(1.0, 100.0)?).initial(20.0);
/// let quick = Sample::new(Duration::from_millis(3), 15);
/// algorithm.observe(&quick);
/// assert_eq!(algorithm.limit(), 21.0);
/// algorithm.observe(&quick.dropped());
/// assert_eq!(algorithm.limit(), 10.5);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    bounds: Bounds,
    limit: f64,
    increase: f64,
    backoff: f64,
    timeout: Duration,
    numbers: Rounding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Exact,
    Whole,
}

impl Aimd {
    /// +1 and ×0.5, beginning at the minimum, without a timeout.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.min(),
            increase: 1.0,
            backoff: 0.5,
            timeout: Duration::MAX,
            numbers: Rounding::Exact,
        }
    }

    /// The same as Netflix's `AIMDLimit`: begins at 20, ×0.9 rounded down, with a timeout of 5 s.
    pub fn netflix(bounds: Bounds) -> Self {
        Self {
            limit: 20.0,
            backoff: 0.9,
            timeout: Duration::from_secs(5),
            numbers: Rounding::Whole,
            ..Self::new(bounds)
        }
    }

    /// Adds this for a success.
    ///
    /// # Errors
    /// Unless it is a number above 0.
    pub fn increase(mut self, by: f64) -> Result<Self, AlgorithmError> {
        self.increase = ParameterRange::POSITIVE.check("an increase", by)?;
        Ok(self)
    }

    /// Multiplies by this for a sign of overload.
    ///
    /// # Errors
    /// Unless it is above 0 and below 1.
    pub fn backoff(mut self, factor: f64) -> Result<Self, AlgorithmError> {
        self.backoff = ParameterRange::BELOW_ONE.check("a backoff", factor)?;
        Ok(self)
    }

    /// A call that takes longer is a sign of overload.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The step for a sample: an overload with this reason, or else a success.
    pub(super) fn apply_signal(
        &mut self,
        overload: Option<ChangeReason>,
        in_flight: u32,
    ) -> Option<ChangeReason> {
        let before = self.limit;
        let reason = if overload.is_some() {
            self.limit = match self.numbers {
                Rounding::Exact => self.limit * self.backoff,
                Rounding::Whole => (self.limit * self.backoff).trunc(),
            };
            overload
        } else if f64::from(in_flight) * 2.0 >= self.limit {
            self.limit += self.increase;
            Some(ChangeReason::Room)
        } else {
            None
        };
        self.limit = self.bounds.clamp(self.limit);
        reason.filter(|_| self.limit.to_bits() != before.to_bits())
    }
}

impl LimitAlgorithm for Aimd {
    keeps_limit_in!(limit);

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let overload = if sample.is_dropped() {
            Some(ChangeReason::Dropped)
        } else {
            (sample.rtt > self.timeout).then_some(ChangeReason::Slow)
        };
        self.apply_signal(overload, sample.in_flight)
    }
}

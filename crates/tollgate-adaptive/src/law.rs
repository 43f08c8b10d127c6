//! What algorithms learn from, and their common interface: samples in, a limit out.

use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::Timestamp;
use tollgate::concurrency::{CompletedCall, PermitOutcome};

/// The result of one call.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::Sample;
/// use tollgate::concurrency::PermitOutcome;
///
/// let sample = Sample::new(Duration::from_millis(12), 7);
/// assert_eq!((sample.in_flight, sample.ending), (7, PermitOutcome::Success));
/// assert!(sample.dropped().is_dropped());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The start time, on any clock that all samples of an algorithm share.
    pub started: Timestamp,
    /// The latency.
    pub rtt: Duration,
    /// The calls in flight when it began, including itself.
    pub in_flight: u32,
    /// The outcome.
    pub ending: PermitOutcome,
}

impl Sample {
    /// A successful call with this latency, and this many calls in flight when it began.
    pub const fn new(rtt: Duration, in_flight: u32) -> Self {
        Self {
            started: Timestamp::ZERO,
            rtt,
            in_flight,
            ending: PermitOutcome::Success,
        }
    }

    /// The same sample with this start time.
    #[must_use]
    pub const fn at(mut self, started: Timestamp) -> Self {
        self.started = started;
        self
    }

    /// The same sample, but of a call that timed out or was rejected for overload.
    #[must_use]
    pub const fn dropped(mut self) -> Self {
        self.ending = PermitOutcome::Dropped;
        self
    }

    /// Whether it is a sign of overload.
    pub fn is_dropped(&self) -> bool {
        self.ending == PermitOutcome::Dropped
    }

    /// The end time.
    pub fn ended(&self) -> Timestamp {
        self.started + self.rtt
    }

    /// The latency in nanoseconds, as a float for calculations.
    #[expect(
        clippy::cast_precision_loss,
        reason = "laws estimate: 2^53 ns are 104 days"
    )]
    #[inline]
    pub(super) fn nanos(&self) -> f64 {
        // In 64 bits, because converting 128 bits to a float takes a function call of many
        // instructions.
        let (seconds, rest) = (self.rtt.as_secs(), u64::from(self.rtt.subsec_nanos()));
        seconds.saturating_mul(1_000_000_000).saturating_add(rest) as f64
    }
}

impl From<&CompletedCall> for Sample {
    #[inline]
    fn from(ended: &CompletedCall) -> Self {
        Self {
            started: ended.started,
            rtt: ended.latency,
            in_flight: ended.in_flight,
            ending: ended.ending,
        }
    }
}

/// Why an algorithm changed its limit.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeReason {
    /// Calls are as fast as ever, and the limit is in use: there is room for more.
    #[display("calls are as quick as ever and the limit is in use")]
    Room,
    /// Calls take longer, because they queue.
    #[display("calls take longer: they queue")]
    Queueing,
    /// A call timed out, or was rejected for overload.
    #[display("a call timed out or was rejected for overload")]
    Dropped,
    /// A call took longer than the threshold.
    #[display("a call took longer than the threshold")]
    Slow,
    /// The limit is lowered for a moment, to measure how fast calls are without a queue.
    #[display("a moment with few calls, to see how quick they are then")]
    Probing,
    /// Too few calls succeed.
    #[display("too few calls succeed")]
    Failing,
    /// More calls succeed than the target.
    #[display("more calls succeed than are asked for")]
    Succeeding,
    /// The machine is busier than its target.
    #[display("the machine is busier than its target")]
    Pressed,
    /// The machine is less busy than its target.
    #[display("the machine is less busy than its target")]
    Relaxed,
    /// An operator set the limit.
    #[display("set by hand")]
    SetByOperator,
}

/// An algorithm that computes the limit after each sample.
///
/// It reads only its own state and the sample: no clock, no file. So it can be replayed, simulated and
/// tested, and it doesn't know what it limits. `S` is the type of its samples: calls, or readings of a
/// [`Gauge`](super::Gauge).
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, ChangeReason, Sample};
///
/// /// Lowers the limit by one for each drop.
/// struct Timid(Bounds, f64);
///
/// impl LimitAlgorithm for Timid {
///     fn bounds(&self) -> Bounds {
///         self.0
///     }
///     fn limit(&self) -> f64 {
///         self.1
///     }
///     fn set_limit(&mut self, limit: f64) {
///         self.1 = limit;
///     }
///     fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
///         sample.is_dropped().then(|| {
///             self.1 = self.0.clamp(self.1 - 1.0);
///             ChangeReason::Dropped
///         })
///     }
/// }
///
/// let mut algorithm = Timid(Bounds::new(1.0, 10.0)?, 2.0);
/// let dropped = Sample::new(Duration::from_millis(1), 1).dropped();
/// assert_eq!(algorithm.observe(&dropped), Some(ChangeReason::Dropped));
/// algorithm.observe(&dropped);
/// assert_eq!(algorithm.limit(), 1.0);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
pub trait LimitAlgorithm<S = Sample>: Send {
    /// The range of the limit, whatever the samples are.
    fn bounds(&self) -> Bounds;

    /// The limit after the latest sample. Before the first sample it may be outside of the bounds, if
    /// the algorithm was configured to begin there; callers clamp it to the bounds.
    fn limit(&self) -> f64;

    /// Continues from this limit, after a change by hand or by [`Damped`](super::Damped).
    fn set_limit(&mut self, limit: f64);

    /// Begins with this limit instead of the algorithm's default.
    #[must_use]
    fn initial(mut self, limit: f64) -> Self
    where
        Self: Sized,
    {
        self.set_limit(limit);
        self
    }

    /// Adds a sample. Returns why the limit changed, or `None` if it didn't.
    fn step(&mut self, sample: &S) -> Option<ChangeReason>;

    /// As [`step`](Self::step), but skips samples without information: those that are ignored, of zero
    /// duration (as from a clock that was set back), or not a number.
    fn observe(&mut self, sample: &S) -> Option<ChangeReason>
    where
        S: Observation,
    {
        if sample.is_informative() {
            self.step(sample)
        } else {
            None
        }
    }
}

/// The three methods of an algorithm that has its limit in a field of this name, beside its bounds.
macro_rules! keeps_limit_in {
    ($limit:ident) => {
        fn bounds(&self) -> Bounds {
            self.bounds
        }

        fn limit(&self) -> f64 {
            self.$limit
        }

        fn set_limit(&mut self, limit: f64) {
            self.$limit = self.bounds.initial_limit(limit);
        }
    };
}
pub(super) use keeps_limit_in;

impl<S, L: LimitAlgorithm<S> + ?Sized> LimitAlgorithm<S> for Box<L> {
    fn bounds(&self) -> Bounds {
        (**self).bounds()
    }

    fn limit(&self) -> f64 {
        (**self).limit()
    }

    fn set_limit(&mut self, limit: f64) {
        (**self).set_limit(limit);
    }

    fn step(&mut self, sample: &S) -> Option<ChangeReason> {
        (**self).step(sample)
    }
}

/// A sample for an algorithm: a [`Sample`], or a reading of a gauge.
pub trait Observation {
    /// Whether it has any information.
    fn is_informative(&self) -> bool;
}

impl Observation for Sample {
    #[inline]
    fn is_informative(&self) -> bool {
        !self.rtt.is_zero() && self.ending != PermitOutcome::Ignored
    }
}

impl Observation for f64 {
    fn is_informative(&self) -> bool {
        self.is_finite() && *self >= 0.0
    }
}

/// The minimum and the maximum of a limit. The maximum is mandatory: without it, a signal that is stuck
/// at success would raise the limit for ever.
///
/// ```
/// use tollgate_adaptive::Bounds;
///
/// let bounds = Bounds::new(5.0, 200.0)?;
/// assert_eq!((bounds.clamp(1.0), bounds.clamp(1e9)), (5.0, 200.0));
/// assert_eq!(
///     Bounds::new(5.0, f64::NAN).unwrap_err().to_string(),
///     "a limit between 5 and NaN: both have to be numbers above 0, and the least no more than the most"
/// );
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    min: f64,
    max: f64,
}

impl Bounds {
    /// A range between these two.
    ///
    /// # Errors
    /// If one isn't a finite number above 0, or the minimum is above the maximum.
    pub fn new(min: f64, max: f64) -> Result<Self, AlgorithmError> {
        if min.is_finite() && max.is_finite() && 0.0 < min && min <= max {
            Ok(Self { min, max })
        } else {
            Err(AlgorithmError::Bounds { min, max })
        }
    }

    /// The minimum.
    pub const fn min(&self) -> f64 {
        self.min
    }

    /// The maximum.
    pub const fn max(&self) -> f64 {
        self.max
    }

    /// A valid initial limit: possibly outside of the bounds, but never one from which the algorithm
    /// couldn't recover.
    pub(super) fn initial_limit(&self, limit: f64) -> f64 {
        if limit.is_finite() && limit > 0.0 {
            limit
        } else {
            self.clamp(limit)
        }
    }

    /// The nearest number within the bounds. NaN becomes the minimum.
    #[inline]
    pub fn clamp(&self, limit: f64) -> f64 {
        if limit.is_nan() {
            self.min
        } else {
            limit.clamp(self.min, self.max)
        }
    }
}

/// Why an algorithm's settings are invalid.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// The minimum and the maximum of a limit are invalid.
    #[display(
        "a limit between {min} and {max}: both have to be numbers above 0, and the least no more than the most"
    )]
    Bounds {
        /// The given minimum.
        min: f64,
        /// The given maximum.
        max: f64,
    },
    /// A parameter of an algorithm is out of its range.
    #[display("{name} of {given}: it has to be {expected}")]
    Parameter {
        /// The parameter's name.
        name: &'static str,
        /// The given value.
        given: f64,
        /// The valid range.
        expected: &'static str,
    },
}

/// A valid range of a parameter, and its description for errors.
pub(super) struct ParameterRange(fn(f64) -> bool, &'static str);

impl ParameterRange {
    /// A fraction that may be 1.
    pub(super) const FRACTION: Self = Self(|n| n > 0.0 && n <= 1.0, "above 0 and at most 1");
    /// A fraction below 1.
    pub(super) const BELOW_ONE: Self = Self(|n| n > 0.0 && n < 1.0, "above 0 and below 1");
    /// A fraction below 1 that may be 0.
    pub(super) const FROM_ZERO: Self = Self(|n| (0.0..1.0).contains(&n), "from 0 on and below 1");
    /// A factor of at least 1.
    pub(super) const MULTIPLE: Self = Self(|n| n.is_finite() && n >= 1.0, "1 or more");
    /// A factor above 1.
    pub(super) const ABOVE_ONE: Self = Self(|n| n.is_finite() && n > 1.0, "above 1");
    pub(super) const POSITIVE: Self = Self(|n| n.is_finite() && n > 0.0, "above 0");
    pub(super) const ABOVE_ZERO: Self = Self(|n| n > 0.0, "above 0");
    pub(super) const NOT_NEGATIVE: Self = Self(|n| n.is_finite() && n >= 0.0, "0 or more");

    /// The given value, if it is within the range.
    pub(super) fn check(&self, name: &'static str, given: f64) -> Result<f64, AlgorithmError> {
        let Self(is_fine, expected) = *self;
        is_fine(given)
            .then_some(given)
            .ok_or(AlgorithmError::Parameter {
                name,
                given,
                expected,
            })
    }
}

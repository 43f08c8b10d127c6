//! What laws learn from, and what every law is: samples in, a limit out.

use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::Timestamp;
use tollgate::concurrency::{CompletedCall, PermitOutcome};

/// What is known of one call when it is over.
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
    /// When it began, on any clock that all samples of a law share.
    pub started: Timestamp,
    /// How long it took.
    pub rtt: Duration,
    /// How many were in flight when it began, itself included.
    pub in_flight: u32,
    /// How it ended.
    pub ending: PermitOutcome,
}

impl Sample {
    /// A call that succeeded after so long, with so many in flight when it began.
    pub const fn new(rtt: Duration, in_flight: u32) -> Self {
        Self {
            started: Timestamp::ZERO,
            rtt,
            in_flight,
            ending: PermitOutcome::Success,
        }
    }

    /// The same, begun at this time.
    #[must_use]
    pub const fn at(mut self, started: Timestamp) -> Self {
        self.started = started;
        self
    }

    /// The same, but it timed out or was rejected for overload.
    #[must_use]
    pub const fn dropped(mut self) -> Self {
        self.ending = PermitOutcome::Dropped;
        self
    }

    /// Whether it was a sign of overload.
    pub fn is_dropped(&self) -> bool {
        self.ending == PermitOutcome::Dropped
    }

    /// When it was over.
    pub fn ended(&self) -> Timestamp {
        self.started + self.rtt
    }

    /// Its duration in nanoseconds, as laws calculate.
    #[expect(
        clippy::cast_precision_loss,
        reason = "laws estimate: 2^53 ns are 104 days"
    )]
    #[inline]
    pub(super) fn nanos(&self) -> f64 {
        // In 64 bits, as those of 128 are made a double by a call of many instructions.
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

/// Why a law changed its limit.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeReason {
    /// Calls are as quick as ever, and the limit is in use: there is room.
    #[display("calls are as quick as ever and the limit is in use")]
    Room,
    /// Calls take longer: they queue.
    #[display("calls take longer: they queue")]
    Queueing,
    /// A call timed out, or was rejected for overload.
    #[display("a call timed out or was rejected for overload")]
    Dropped,
    /// A call took longer than the threshold.
    #[display("a call took longer than the threshold")]
    Slow,
    /// The limit is lower for a moment, to see how quick calls are without a queue.
    #[display("a moment with few calls, to see how quick they are then")]
    Probing,
    /// Too few calls succeed.
    #[display("too few calls succeed")]
    Failing,
    /// More calls succeed than are asked for.
    #[display("more calls succeed than are asked for")]
    Succeeding,
    /// The machine is busier than its target.
    #[display("the machine is busier than its target")]
    Pressed,
    /// The machine is less busy than its target.
    #[display("the machine is less busy than its target")]
    Relaxed,
    /// Somebody set the limit by hand.
    #[display("set by hand")]
    SetByOperator,
}

/// A rule that says, after each sample, what the limit should be.
///
/// A law reads nothing but its own state and the sample: no clock, no file. So it can be replayed, simulated
/// and tested, and it doesn't know what it steers. `S` is what it learns from: calls, or readings of a
/// [`Gauge`](super::Gauge).
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, ChangeReason, Sample};
///
/// /// One less for each drop.
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
/// let mut law = Timid(Bounds::new(1.0, 10.0)?, 2.0);
/// let dropped = Sample::new(Duration::from_millis(1), 1).dropped();
/// assert_eq!(law.observe(&dropped), Some(ChangeReason::Dropped));
/// law.observe(&dropped);
/// assert_eq!(law.limit(), 1.0);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
pub trait LimitAlgorithm<S = Sample>: Send {
    /// Between what the limit stays, whatever the samples say.
    fn bounds(&self) -> Bounds;

    /// The limit as of the last sample. Before the first it may be outside of the bounds, if the law was told
    /// to begin there; whoever uses it keeps to the bounds.
    fn limit(&self) -> f64;

    /// Goes on from this limit, as after a change by hand or by [`Damped`](super::Damped).
    fn set_limit(&mut self, limit: f64);

    /// Begins at this limit, in place of what a law begins with by itself.
    #[must_use]
    fn initial(mut self, limit: f64) -> Self
    where
        Self: Sized,
    {
        self.set_limit(limit);
        self
    }

    /// Takes a sample into account. The answer is why the limit changed, or `None` if it didn't.
    fn step(&mut self, sample: &S) -> Option<ChangeReason>;

    /// As [`step`](Self::step), but nothing changes by samples that say nothing: of no duration, as from a
    /// clock that was set back, ignored, or not a number.
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

/// The three methods of a law that keeps its limit in a field of this name, beside its bounds.
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

/// What laws are told: a [`Sample`], or a reading of a gauge.
pub trait Observation {
    /// Whether it says anything.
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

/// The least and the most that a limit may be. There is no law without a most: a signal that is stuck at
/// success would raise it for ever.
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
    /// Between these two.
    ///
    /// # Errors
    /// If one isn't a finite number above 0, or the least is more than the most.
    pub fn new(min: f64, max: f64) -> Result<Self, AlgorithmError> {
        if min.is_finite() && max.is_finite() && 0.0 < min && min <= max {
            Ok(Self { min, max })
        } else {
            Err(AlgorithmError::Bounds { min, max })
        }
    }

    /// The least.
    pub const fn min(&self) -> f64 {
        self.min
    }

    /// The most.
    pub const fn max(&self) -> f64 {
        self.max
    }

    /// What a law may begin at: also a number outside of the bounds, but none that it would never come back from.
    pub(super) fn initial_limit(&self, limit: f64) -> f64 {
        if limit.is_finite() && limit > 0.0 {
            limit
        } else {
            self.clamp(limit)
        }
    }

    /// The number between them that is nearest. What isn't a number is the least.
    #[inline]
    pub fn clamp(&self, limit: f64) -> f64 {
        if limit.is_nan() {
            self.min
        } else {
            limit.clamp(self.min, self.max)
        }
    }
}

/// A law that can't be.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// The least and the most of a limit don't go together.
    #[display(
        "a limit between {min} and {max}: both have to be numbers above 0, and the least no more than the most"
    )]
    Bounds {
        /// The least that was asked for.
        min: f64,
        /// The most that was asked for.
        max: f64,
    },
    /// A number of a law is out of its range.
    #[display("{name} of {given}: it has to be {expected}")]
    Parameter {
        /// Which number.
        name: &'static str,
        /// What was given.
        given: f64,
        /// What it has to be.
        expected: &'static str,
    },
}

/// What a number of a law may be, and how that is said.
pub(super) struct ParameterRange(fn(f64) -> bool, &'static str);

impl ParameterRange {
    /// A part of something that may be all of it.
    pub(super) const FRACTION: Self = Self(|n| n > 0.0 && n <= 1.0, "above 0 and at most 1");
    /// A part of something that is never all of it.
    pub(super) const BELOW_ONE: Self = Self(|n| n > 0.0 && n < 1.0, "above 0 and below 1");
    /// None of something, or a part of it.
    pub(super) const FROM_ZERO: Self = Self(|n| (0.0..1.0).contains(&n), "from 0 on and below 1");
    /// So many times something, and not less of it.
    pub(super) const MULTIPLE: Self = Self(|n| n.is_finite() && n >= 1.0, "1 or more");
    /// More of something.
    pub(super) const ABOVE_ONE: Self = Self(|n| n.is_finite() && n > 1.0, "above 1");
    pub(super) const POSITIVE: Self = Self(|n| n.is_finite() && n > 0.0, "above 0");
    pub(super) const ABOVE_ZERO: Self = Self(|n| n > 0.0, "above 0");
    pub(super) const NOT_NEGATIVE: Self = Self(|n| n.is_finite() && n >= 0.0, "0 or more");

    /// The number that has this name, if it may be so.
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

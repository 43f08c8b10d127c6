//! What laws learn from, and what every law is: samples in, a limit out.

use std::fmt;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::concurrency::{Ended, Ending};

/// What is known of one call when it is over.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::Sample;
/// use tollgate::concurrency::Ending;
///
/// let sample = Sample::new(Duration::from_millis(12), 7);
/// assert_eq!((sample.in_flight, sample.ending), (7, Ending::Success));
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
    pub ending: Ending,
}

impl Sample {
    /// A call that succeeded after so long, with so many in flight when it began.
    pub const fn new(rtt: Duration, in_flight: u32) -> Self {
        Self {
            started: Timestamp::ZERO,
            rtt,
            in_flight,
            ending: Ending::Success,
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
        self.ending = Ending::Dropped;
        self
    }

    /// Whether it was a sign of overload.
    pub fn is_dropped(&self) -> bool {
        self.ending == Ending::Dropped
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

    /// Whether it says anything: a clock that stood still or was set back gives no duration.
    #[inline]
    pub(super) fn tells(&self) -> bool {
        !self.rtt.is_zero() && self.ending != Ending::Ignored
    }
}

impl From<&Ended> for Sample {
    #[inline]
    fn from(ended: &Ended) -> Self {
        Self {
            started: ended.started,
            rtt: ended.latency,
            in_flight: ended.in_flight,
            ending: ended.ending,
        }
    }
}

/// Why a law changed its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Calls are as quick as ever, and the limit is in use: there is room.
    Room,
    /// Calls take longer: they queue.
    Queueing,
    /// A call timed out, or was rejected for overload.
    Dropped,
    /// A call took longer than the threshold.
    Slow,
    /// The limit is lower for a moment, to see how quick calls are without a queue.
    Probing,
    /// Too few calls succeed.
    Failing,
    /// More calls succeed than are asked for.
    Succeeding,
    /// The machine is busier than its target.
    Pressed,
    /// The machine is less busy than its target.
    Relaxed,
    /// Somebody set the limit by hand.
    Ordered,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "calls are as quick as ever and the limit is in use",
            Self::Queueing => "calls take longer: they queue",
            Self::Dropped => "a call timed out or was rejected for overload",
            Self::Slow => "a call took longer than the threshold",
            Self::Probing => "a moment with few calls, to see how quick they are then",
            Self::Failing => "too few calls succeed",
            Self::Succeeding => "more calls succeed than are asked for",
            Self::Pressed => "the machine is busier than its target",
            Self::Relaxed => "the machine is less busy than its target",
            Self::Ordered => "set by hand",
        })
    }
}

/// A rule that says, after each sample, what the limit should be.
///
/// A law reads nothing but its own state and the sample: no clock, no file. So it can be replayed, simulated
/// and tested, and it doesn't know what it steers. `S` is what it learns from: calls, or readings of a
/// [`Gauge`](super::Gauge).
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Bounds, Law, Reason, Sample};
///
/// /// One less for each drop.
/// struct Timid(Bounds, f64);
///
/// impl Law for Timid {
///     fn bounds(&self) -> Bounds {
///         self.0
///     }
///     fn limit(&self) -> f64 {
///         self.1
///     }
///     fn set_limit(&mut self, limit: f64) {
///         self.1 = limit;
///     }
///     fn step(&mut self, sample: &Sample) -> Option<Reason> {
///         sample.is_dropped().then(|| {
///             self.1 = self.0.clamp(self.1 - 1.0);
///             Reason::Dropped
///         })
///     }
/// }
///
/// let mut law = Timid(Bounds::new(1.0, 10.0)?, 2.0);
/// let dropped = Sample::new(Duration::from_millis(1), 1).dropped();
/// assert_eq!(law.observe(&dropped), Some(Reason::Dropped));
/// law.observe(&dropped);
/// assert_eq!(law.limit(), 1.0);
/// # Ok::<(), tollgate_adaptive::LawError>(())
/// ```
pub trait Law<S = Sample>: Send {
    /// Between what the limit stays, whatever the samples say.
    fn bounds(&self) -> Bounds;

    /// The limit as of the last sample. Before the first it may be outside of the bounds, if the law was told
    /// to begin there; whoever uses it keeps to the bounds.
    fn limit(&self) -> f64;

    /// Goes on from this limit, as after a change by hand or by [`Steady`](super::Steady).
    fn set_limit(&mut self, limit: f64);

    /// Takes a sample into account. The answer is why the limit changed, or `None` if it didn't.
    fn step(&mut self, sample: &S) -> Option<Reason>;

    /// As [`step`](Self::step), but nothing changes by samples that say nothing: of no duration, as from a
    /// clock that was set back, ignored, or not a number.
    fn observe(&mut self, sample: &S) -> Option<Reason>
    where
        S: Told,
    {
        if sample.tells() {
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
            self.$limit = self.bounds.begins(limit);
        }
    };
}
pub(super) use keeps_limit_in;

impl<S, L: Law<S> + ?Sized> Law<S> for Box<L> {
    fn bounds(&self) -> Bounds {
        (**self).bounds()
    }

    fn limit(&self) -> f64 {
        (**self).limit()
    }

    fn set_limit(&mut self, limit: f64) {
        (**self).set_limit(limit);
    }

    fn step(&mut self, sample: &S) -> Option<Reason> {
        (**self).step(sample)
    }
}

/// What laws are told: a [`Sample`], or a reading of a gauge.
pub trait Told {
    /// Whether it says anything.
    fn tells(&self) -> bool;
}

impl Told for Sample {
    fn tells(&self) -> bool {
        self.tells()
    }
}

impl Told for f64 {
    fn tells(&self) -> bool {
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
/// # Ok::<(), tollgate_adaptive::LawError>(())
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
    pub fn new(min: f64, max: f64) -> Result<Self, LawError> {
        if min.is_finite() && max.is_finite() && 0.0 < min && min <= max {
            Ok(Self { min, max })
        } else {
            Err(LawError::Bounds { min, max })
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
    pub(super) fn begins(&self, limit: f64) -> f64 {
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
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LawError {
    /// The least and the most of a limit don't go together.
    Bounds {
        /// The least that was asked for.
        min: f64,
        /// The most that was asked for.
        max: f64,
    },
    /// A number of a law is out of its range.
    Parameter {
        /// Which number.
        name: &'static str,
        /// What was given.
        given: f64,
        /// What it has to be.
        expected: &'static str,
    },
}

impl LawError {
    /// The number, if it is a part of something that may be all of it.
    pub(super) fn part(name: &'static str, part: f64) -> Result<f64, Self> {
        let is_fine = part > 0.0 && part <= 1.0;
        Self::unless(is_fine, name, part, "above 0 and at most 1").map(|()| part)
    }

    /// The number, if it is a part of something that is never all of it.
    pub(super) fn below_one(name: &'static str, part: f64) -> Result<f64, Self> {
        let is_fine = part > 0.0 && part < 1.0;
        Self::unless(is_fine, name, part, "above 0 and below 1").map(|()| part)
    }

    /// The number, if it is so many times something, and not less of it.
    pub(super) fn multiple(name: &'static str, times: f64) -> Result<f64, Self> {
        let is_fine = times.is_finite() && times >= 1.0;
        Self::unless(is_fine, name, times, "1 or more").map(|()| times)
    }

    /// The number, if it is one above 0.
    pub(super) fn positive(name: &'static str, number: f64) -> Result<f64, Self> {
        let is_fine = number.is_finite() && number > 0.0;
        Self::unless(is_fine, name, number, "above 0").map(|()| number)
    }

    /// An error unless the number is one of the range.
    pub(super) fn unless(
        is_fine: bool,
        name: &'static str,
        given: f64,
        expected: &'static str,
    ) -> Result<(), Self> {
        let error = Self::Parameter {
            name,
            given,
            expected,
        };
        if is_fine { Ok(()) } else { Err(error) }
    }
}

impl fmt::Display for LawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bounds { min, max } => write!(
                f,
                "a limit between {min} and {max}: both have to be numbers above 0, and the least no more \
                 than the most"
            ),
            Self::Parameter {
                name,
                given,
                expected,
            } => write!(f, "{name} of {given}: it has to be {expected}"),
        }
    }
}

impl std::error::Error for LawError {}

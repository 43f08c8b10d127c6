//! Algorithms by name, for files and command lines.

use std::fmt;
use std::str::FromStr;

use derive_more::{Display, Error};

use super::{
    Aimd, AlgorithmError, Bbr, Bounds, Gradient, Gradient2, LatencyThreshold, LimitAlgorithm,
    Little, SelfTuning, Vegas, Windowed,
};

/// An algorithm by its name, with default parameters.
///
/// ```
/// use tollgate_adaptive::{Bounds, AdaptiveAlgorithm};
///
/// let algorithm: AdaptiveAlgorithm = "gradient2".parse()?;
/// assert_eq!(algorithm, AdaptiveAlgorithm::Gradient2);
/// assert_eq!(algorithm.make(Bounds::new(5.0, 200.0)?, 0)?.limit(), 20.0);
/// assert_eq!(
///     "newton".parse::<AdaptiveAlgorithm>().unwrap_err().to_string(),
///     "no algorithm is named newton; there are little, aimd, vegas, gradient, gradient2, windowed, bbr, latency, self-tuning"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdaptiveAlgorithm {
    /// [`Little`], the default.
    Little,
    /// [`Aimd`], ×0.9 for drops.
    Aimd,
    /// [`Vegas`].
    Vegas,
    /// [`Gradient`].
    Gradient,
    /// [`Gradient2`].
    Gradient2,
    /// [`Gradient2`] in [`Windowed`].
    Windowed,
    /// [`Bbr`].
    Bbr,
    /// [`LatencyThreshold`] at twice the running 90th percentile.
    Latency,
    /// [`SelfTuning`] with a target of 95 % successes.
    SelfTuning,
}

impl AdaptiveAlgorithm {
    /// All algorithms, the default first.
    pub const ALL: [Self; 9] = [
        Self::Little,
        Self::Aimd,
        Self::Vegas,
        Self::Gradient,
        Self::Gradient2,
        Self::Windowed,
        Self::Bbr,
        Self::Latency,
        Self::SelfTuning,
    ];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Aimd => "aimd",
            Self::Vegas => "vegas",
            Self::Gradient => "gradient",
            Self::Gradient2 => "gradient2",
            Self::Windowed => "windowed",
            Self::Bbr => "bbr",
            Self::Latency => "latency",
            Self::SelfTuning => "self-tuning",
        }
    }

    /// The algorithm, beginning at 20 within the bounds, with this seed if it uses randomness.
    ///
    /// # Errors
    /// None of the current algorithms fails.
    pub fn make(
        self,
        bounds: Bounds,
        seed: u64,
    ) -> Result<Box<dyn LimitAlgorithm>, AlgorithmError> {
        let from = bounds.clamp(20.0);
        Ok(match self {
            Self::Little => Box::new(Little::new(bounds).seed(seed)),
            Self::Aimd => Box::new(Aimd::netflix(bounds).initial(from)),
            Self::Vegas => Box::new(Vegas::new(bounds).initial(from).seed(seed)),
            Self::Gradient => Box::new(Gradient::new(bounds).initial(from).seed(seed)),
            Self::Gradient2 => Box::new(Gradient2::new(bounds).initial(from)),
            Self::Windowed => Box::new(Windowed::new(Gradient2::new(bounds).initial(from))),
            Self::Bbr => Box::new(Bbr::new(bounds).initial(from)),
            Self::Latency => Box::new(
                LatencyThreshold::running(bounds, 2.0, 0.9)?
                    .initial(from)
                    .steps(1.0, 0.9)?,
            ),
            Self::SelfTuning => Box::new(SelfTuning::new(bounds, 0.95)?.initial(from)),
        })
    }
}

impl fmt::Display for AdaptiveAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that isn't an algorithm.
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[display("no algorithm is named {_0}; there are {}", AdaptiveAlgorithm::ALL.map(AdaptiveAlgorithm::name).join(", "))]
pub struct UnknownAlgorithm(#[error(not(source))] String);

impl FromStr for AdaptiveAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let law = Self::ALL.into_iter().find(|law| law.name() == name);
        law.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

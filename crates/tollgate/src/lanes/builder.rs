//! The settings of lanes before they are built, and why they can be invalid.

use std::fmt;

use tollgate_core::{LimitError, Rate};

use super::Lanes;
use super::lane_shares::LaneShares;
use crate::clock::{Clock, ClockChoice, DefaultClock, WithClock};
use crate::wait_queue::SharedWaitQueue;

/// Builds [`Lanes`]; made by [`Lanes::builder`].
///
/// ```
/// use tollgate::{Lanes, Rate, clock::Manual};
///
/// let lanes = Lanes::builder(Rate::per_minute(600).burst(30))
///     .lane("interactive", 300)
///     .lane("batch", 200) // the other 100 are lent, to the highest lane first
///     .max_waiters_per_lane(50)
///     .clock(Manual::new())
///     .build()?;
/// assert_eq!(lanes.iter().count(), 2);
/// # Ok::<(), tollgate::lanes::LanesError>(())
/// ```
pub type Builder<C = DefaultClock> = WithClock<Settings, C>;

/// The settings of lanes, except their clock.
#[derive(Debug)]
pub struct Settings {
    rate: Rate,
    lanes: Vec<(String, u64)>,
    max_waiters: usize,
}

/// Why lanes can't be built.
///
/// ```
/// use tollgate::{Lanes, Rate};
///
/// let error = Lanes::builder(Rate::per_second(100)).lane("a", 60).lane("b", 50).build().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the lanes' shares are 110 in sum, more than the 100 of the rate \"100/s\": \
///      lower a share or raise the rate"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LanesError {
    /// There are no lanes, or more than 64.
    Count {
        /// The number of lanes.
        lanes: usize,
    },
    /// Two lanes have the same name.
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A lane without a share would starve.
    ZeroShare {
        /// The lane's name.
        name: String,
    },
    /// The sum of the shares is above the rate.
    SharesExceedRate {
        /// The sum of the shares.
        sum: u64,
        /// The shared rate.
        rate: Rate,
    },
    /// The burst is too small for every lane to hold a token of its own.
    BurstTooSmall {
        /// The smallest burst for these lanes.
        least: u64,
        /// The shared rate.
        rate: Rate,
    },
    /// The rate is zero or unlimited.
    NoPeriod {
        /// The rate.
        rate: Rate,
    },
    /// The rate, or that of a share, can't be represented.
    Limit(LimitError),
}

impl Builder {
    pub(super) const fn new(rate: Rate) -> Self {
        Self::from_settings(Settings {
            rate,
            lanes: Vec::new(),
            max_waiters: 1_024,
        })
    }
}

impl<C> Builder<C> {
    /// Adds a lane below the existing ones. `share` of the rate's count in each of its periods is
    /// guaranteed, and a proportional part of its burst.
    pub fn lane(mut self, name: impl Into<String>, share: u64) -> Self {
        self.settings.lanes.push((name.into(), share));
        self
    }

    /// The most waiters in each lane, 1,024 by default; one more gets
    /// [`RateDenied::QueueFull`](crate::RateDenied::QueueFull).
    pub fn max_waiters_per_lane(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// The rate of each lane's share.
    fn shares(&self) -> Result<Vec<Rate>, LanesError> {
        let rate = self.settings.rate;
        if !(1..=64).contains(&self.settings.lanes.len()) {
            return Err(LanesError::Count {
                lanes: self.settings.lanes.len(),
            });
        }
        let Some(period) = rate.period() else {
            return Err(LanesError::NoPeriod { rate });
        };
        let sum = self
            .settings
            .lanes
            .iter()
            .fold(0u64, |sum, (_, share)| sum.saturating_add(*share));
        if sum > rate.count() {
            return Err(LanesError::SharesExceedRate { sum, rate });
        }
        let mut shares = Vec::new();
        let mut bursts = 0u64;
        for (number, (name, share)) in self.settings.lanes.iter().enumerate() {
            if self.settings.lanes[..number]
                .iter()
                .any(|(other, _)| other == name)
            {
                return Err(LanesError::DuplicateName { name: name.clone() });
            }
            if *share == 0 {
                return Err(LanesError::ZeroShare { name: name.clone() });
            }
            let part = u128::from(rate.burst_size()) * u128::from(*share);
            let part = part / u128::from(rate.count());
            let burst = u64::try_from(part).unwrap_or(u64::MAX).max(1);
            bursts = bursts.saturating_add(burst);
            shares.push(Rate::new(*share, period).burst(burst));
        }
        if bursts > rate.burst_size() {
            return Err(LanesError::BurstTooSmall {
                least: bursts,
                rate,
            });
        }
        Ok(shares)
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds them on the chosen clock, or on the default one.
    ///
    /// # Errors
    /// [`LanesError`] with the invalid setting.
    pub fn build(self) -> Result<Lanes<C::Clock>, LanesError> {
        let rates = self.shares()?;
        let most = self.settings.max_waiters.saturating_mul(rates.len());
        let clock = self.clock.into_clock();
        let now = clock.now();
        let shares = LaneShares::new(
            self.settings.rate,
            rates.into_iter(),
            self.settings.max_waiters,
            now,
        );
        let shares = shares.map_err(LanesError::Limit)?;
        Ok(Lanes {
            names: self
                .settings
                .lanes
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
            queue: SharedWaitQueue::new(shares, most, clock),
        })
    }
}

impl fmt::Display for LanesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { lanes } => write!(f, "{lanes} lanes were given; give 1 to 64"),
            Self::DuplicateName { name } => {
                write!(
                    f,
                    "two lanes are called \"{name}\": give each a name of its own"
                )
            }
            Self::ZeroShare { name } => write!(
                f,
                "lane \"{name}\" has a share of 0 and would starve: give it at least 1"
            ),
            Self::SharesExceedRate { sum, rate } => write!(
                f,
                "the lanes' shares are {sum} in sum, more than the {} of the rate \"{rate}\": \
                 lower a share or raise the rate",
                rate.count()
            ),
            Self::BurstTooSmall { least, rate } => write!(
                f,
                "rate \"{rate}\": its burst is too small for every lane to hold a token of its own; \
                 use a burst of at least {least}"
            ),
            Self::NoPeriod { rate } => write!(
                f,
                "rate \"{rate}\" has no period; give lanes a rate with one, such as 100/s"
            ),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LanesError {}

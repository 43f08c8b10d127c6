//! The limits of a tier as text, in the format that `Display` prints.

use std::fmt;
use std::str::FromStr;

use tollgate_core::{Rate, RateParseError};

use super::TierLimits;
use crate::quota::{Quota, QuotaError};

/// What is wrong with the text of a [`TierLimits`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowanceParseError {
    /// The first part isn't a rate.
    Rate(RateParseError),
    /// A later part is neither a quota nor a concurrency limit ("5 at once").
    Quota {
        /// The part's text.
        part: String,
        /// Why it isn't a quota.
        error: QuotaError,
    },
    /// The number before "at once" can't be parsed.
    Concurrency {
        /// The part's text.
        part: String,
    },
    /// A second quota or a second concurrency limit.
    Duplicate {
        /// The part's text.
        part: String,
    },
}

impl fmt::Display for AllowanceParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(error) => write!(f, "{error}"),
            Self::Quota { part, error } => write!(
                f,
                "{part:?} is no quota ({error}) and no concurrency such as \"5 concurrent\""
            ),
            Self::Concurrency { part } => write!(
                f,
                "{part:?} names no number of requests; write it as \"5 concurrent\""
            ),
            Self::Duplicate { part } => write!(
                f,
                "{part:?} repeats what an earlier part says; leave one of them out"
            ),
        }
    }
}

impl std::error::Error for AllowanceParseError {}

impl FromStr for TierLimits {
    type Err = AllowanceParseError;

    /// Parses `"10/s burst 20, 1000/day, 5 concurrent"`: a rate, then optionally a quota and a concurrency
    /// limit.
    fn from_str(text: &str) -> Result<Self, AllowanceParseError> {
        let mut parts = text.split(',').map(str::trim);
        let rate: Rate = parts
            .next()
            .unwrap_or_default()
            .parse()
            .map_err(AllowanceParseError::Rate)?;
        let mut allowance = Self::new(rate);
        for part in parts {
            let twice = || AllowanceParseError::Duplicate {
                part: part.to_owned(),
            };
            if let Some(number) = part.strip_suffix("concurrent") {
                let limit = number.trim().replace('_', "").parse();
                let limit = limit.map_err(|_| AllowanceParseError::Concurrency {
                    part: part.to_owned(),
                })?;
                if allowance.concurrency.replace(limit).is_some() {
                    return Err(twice());
                }
                continue;
            }
            let quota: Quota = part.parse().map_err(|error| AllowanceParseError::Quota {
                part: part.to_owned(),
                error,
            })?;
            if allowance.quota.replace(quota).is_some() {
                return Err(twice());
            }
        }
        Ok(allowance)
    }
}

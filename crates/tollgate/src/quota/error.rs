//! Why there is no such quota: texts that aren't any, zones and days that aren't there.

use std::fmt;

use super::Quota;

/// Why there is no such quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The time zone database has no zone of this name.
    UnknownZone(String),
    /// No month has this day.
    NoSuchDay(u8),
    /// A rolling period of zero.
    NoPeriod {
        /// The count that was asked for.
        count: u64,
    },
    /// What was asked for makes no sense with this quota's period.
    NotApplicable {
        /// The quota that was to be changed.
        quota: Quota,
        /// What it can't have.
        what: &'static str,
    },
    /// The text is not a quota.
    Parse {
        /// The text.
        text: String,
        /// Where it goes wrong, in characters from 1.
        column: usize,
        /// What should be there.
        expected: &'static str,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownZone(name) => write!(
                f,
                "unknown time zone {name:?}; use a name of the IANA database, such as Europe/Zurich"
            ),
            Self::NoSuchDay(day) => write!(f, "no month has a day {day}; use 1 to 31"),
            Self::NoPeriod { count } => write!(
                f,
                "a quota of {count} has a period of zero: give it a period, or use \"unlimited\" if no limit is meant"
            ),
            Self::NotApplicable { quota, what } => write!(f, "{quota} can't have {what}"),
            Self::Parse {
                text,
                column,
                expected,
            } => write!(
                f,
                "invalid quota {text:?}: expected {expected} at column {column}"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}

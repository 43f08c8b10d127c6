//! What a breaker tells: its state, what happened to it, and why.

use std::fmt;
use std::time::Duration;

/// Whether calls pass.
///
/// ```
/// use tollgate_adaptive::breaker::State;
///
/// assert_eq!(State::HalfOpen as u8, 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// They do.
    #[default]
    Closed = 0,
    /// The next one does, as a probe, or a probe is under way.
    HalfOpen = 1,
    /// They don't.
    Open = 2,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trip {
    /// Too many calls failed.
    Failing,
    /// Too many calls were slow.
    Slow,
    /// There was no answer for too long.
    Silent,
    /// A probe failed.
    Probe,
}

/// Something that happened to a breaker.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::breaker::{BreakerEvent, Trip};
///
/// let opened = BreakerEvent::Opened { stays: Duration::from_secs(2), why: Trip::Probe };
/// assert_eq!(opened.to_string(), "the circuit is open for 2s: a probe failed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerEvent {
    /// No call passes for so long.
    Opened {
        /// For how long.
        stays: Duration,
        /// Why.
        why: Trip,
    },
    /// A call is let through to see whether it succeeds.
    Probing,
    /// Calls pass again.
    Closed,
    /// Somebody holds it, or let it go.
    Forced(Force),
}

/// What somebody orders of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// Nothing: it decides by itself.
    No,
    /// No call passes.
    Open,
    /// All calls pass.
    Closed,
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failing => "too many calls failed",
            Self::Slow => "too many calls were slow",
            Self::Silent => "there was no answer for too long",
            Self::Probe => "a probe failed",
        })
    }
}

impl fmt::Display for BreakerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { stays, why } => write!(f, "the circuit is open for {stays:?}: {why}"),
            Self::Probing => f.write_str("a call is let through as a probe"),
            Self::Closed => f.write_str("the circuit is closed"),
            Self::Forced(Force::No) => f.write_str("the circuit is let go, and closed"),
            Self::Forced(Force::Open) => f.write_str("the circuit is held open"),
            Self::Forced(Force::Closed) => f.write_str("the circuit is held closed"),
        }
    }
}

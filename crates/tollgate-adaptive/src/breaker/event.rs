//! The states of a breaker, its events, and their reasons.

use std::time::Duration;

use derive_more::Display;

/// Whether calls pass.
///
/// ```
/// use tollgate_adaptive::breaker::CircuitState;
///
/// assert_eq!(CircuitState::HalfOpen as u8, 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Calls pass.
    #[default]
    Closed = 0,
    /// The next call passes as a probe, or a probe is in flight.
    HalfOpen = 1,
    /// No call passes.
    Open = 2,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TripReason {
    /// Too many calls failed.
    #[display("too many calls failed")]
    Failing,
    /// Too many calls were slow.
    #[display("too many calls were slow")]
    Slow,
    /// There was no answer for too long.
    #[display("there was no answer for too long")]
    Silent,
    /// A probe failed.
    #[display("a probe failed")]
    Probe,
}

/// An event of a breaker.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::breaker::{BreakerEvent, TripReason};
///
/// let opened = BreakerEvent::Opened { stays: Duration::from_secs(2), why: TripReason::Probe };
/// assert_eq!(opened.to_string(), "the circuit is open for 2s: a probe failed");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerEvent {
    /// No call passes for this duration.
    #[display("the circuit is open for {stays:?}: {why}")]
    Opened {
        /// How long it stays open.
        stays: Duration,
        /// Why.
        why: TripReason,
    },
    /// A call passes as a probe, to see whether it succeeds.
    #[display("a call is let through as a probe")]
    Probing,
    /// Calls pass again.
    #[display("the circuit is closed")]
    Closed,
    /// An operator forced or released it.
    #[display("the circuit is {_0}")]
    Forced(ForcedState),
}

/// An operator's override of a breaker.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
pub enum ForcedState {
    /// No override: it decides by itself.
    #[display("let go, and closed")]
    Released,
    /// No call passes.
    #[display("held open")]
    Open,
    /// All calls pass.
    #[display("held closed")]
    Closed,
}

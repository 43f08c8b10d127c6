//! What a breaker tells: its state, what happened to it, and why.

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
    /// They do.
    #[default]
    Closed = 0,
    /// The next one does, as a probe, or a probe is under way.
    HalfOpen = 1,
    /// They don't.
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

/// Something that happened to a breaker.
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
    /// No call passes for so long.
    #[display("the circuit is open for {stays:?}: {why}")]
    Opened {
        /// For how long.
        stays: Duration,
        /// Why.
        why: TripReason,
    },
    /// A call is let through to see whether it succeeds.
    #[display("a call is let through as a probe")]
    Probing,
    /// Calls pass again.
    #[display("the circuit is closed")]
    Closed,
    /// Somebody holds it, or let it go.
    #[display("the circuit is {_0}")]
    Forced(ForcedState),
}

/// What somebody orders of a breaker.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
pub enum ForcedState {
    /// Nothing: it decides by itself.
    #[display("let go, and closed")]
    Released,
    /// No call passes.
    #[display("held open")]
    Open,
    /// All calls pass.
    #[display("held closed")]
    Closed,
}

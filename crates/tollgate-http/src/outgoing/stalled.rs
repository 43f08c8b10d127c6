//! Why a call isn't made.

use std::fmt;
use std::time::Duration;

/// A call that isn't made, because it would have to wait for too long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::outgoing::Stalled;
///
/// let stalled = Stalled::TooLate {
///     host: "api.example.com".into(),
///     wait: Duration::from_secs(60),
///     patience: Duration::from_secs(30),
/// };
/// assert_eq!(
///     stalled.to_string(),
///     "api.example.com may be asked in 60s, and a call waits for 30s at most",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stalled {
    /// It would have to wait for longer than it may.
    TooLate {
        /// Who isn't asked.
        host: Box<str>,
        /// How long it would take.
        wait: Duration,
        /// How long it may.
        patience: Duration,
    },
    /// As many as may wait do.
    TooMany {
        /// Who isn't asked.
        host: Box<str>,
        /// How many wait.
        waiting: usize,
    },
}

impl Stalled {
    /// How long the host, or one's own rate, has no place; none if too many wait.
    pub const fn wait(&self) -> Option<Duration> {
        match self {
            Self::TooLate { wait, .. } => Some(*wait),
            Self::TooMany { .. } => None,
        }
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLate {
                host,
                wait,
                patience,
            } => write!(
                f,
                "{host} may be asked in {wait:?}, and a call waits for {patience:?} at most"
            ),
            Self::TooMany { host, waiting } => write!(
                f,
                "{host} isn't asked: {waiting} calls wait already, as many as may (max_waiting)"
            ),
        }
    }
}

impl std::error::Error for Stalled {}

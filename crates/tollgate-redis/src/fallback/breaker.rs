//! Thresholds of the circuit breaker in front of a failing store. The circuit is the library's.
//!
//! The thresholds are a duration and a share, not a number of failures: a hundred failures are a second of bad
//! luck at a high rate, and a minute's outage at a low rate.

use std::time::Duration;

use tollgate_adaptive::breaker::{AdmittedCall, Circuit, FailureWindow, Thresholds};

/// When rules that circuit-break stop querying a store, and for how long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::BreakerThresholds;
///
/// let breaker = BreakerThresholds { silent_for: Duration::from_millis(500), ..BreakerThresholds::default() };
/// assert_eq!((breaker.failing_percent, breaker.min_calls), (50, 20));
/// assert_eq!(breaker.longest_open, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerThresholds {
    /// The circuit opens once queries got no answer for this long; 2 seconds by default.
    pub silent_for: Duration,
    /// It also opens once this percentage of calls failed; 50 by default.
    pub failing_percent: u8,
    /// The window over which failures are counted; 5 seconds by default.
    pub window: Duration,
    /// The fewest calls in the window that can open the circuit; 20 by default.
    pub min_calls: u32,
    /// How long the circuit stays open before one request probes the store; a second by default. The duration
    /// doubles each time a probe fails.
    pub opens_for: Duration,
    /// The longest that it stays open; 60 seconds by default.
    pub longest_open: Duration,
}

impl Default for BreakerThresholds {
    fn default() -> Self {
        Self {
            silent_for: Duration::from_secs(2),
            failing_percent: 50,
            window: Duration::from_secs(5),
            min_calls: 20,
            opens_for: Duration::from_secs(1),
            longest_open: Duration::from_secs(60),
        }
    }
}

impl BreakerThresholds {
    /// A closed circuit with these thresholds.
    pub(super) fn circuit(self) -> Circuit {
        Circuit::new(Thresholds {
            failing_percent: self.failing_percent,
            span: FailureWindow::Time(self.window),
            min_calls: self.min_calls,
            silent_for: self.silent_for,
            opens_for: self.opens_for,
            longest_open: self.longest_open,
            ..Thresholds::default()
        })
    }
}

/// The admission of a request to the store while the circuit is open. All other requests wait for the probe's
/// result. If the probe is dropped without a query, the next request may probe.
#[derive(Debug)]
pub(super) struct ProbeGuard<'a> {
    pub(super) circuit: &'a Circuit,
    /// `None` for a request that isn't the probe, or once its result is recorded.
    pub(super) entry: Option<AdmittedCall>,
}

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.circuit.abandon(entry);
        }
    }
}

//! When a store that fails isn't even asked: the thresholds of its circuit, which is the library's.
//!
//! What counts is time and share, not a number of failures: a hundred failures are a second's bad luck at a high
//! rate, and a minute's outage at a low one.

use std::time::Duration;

use tollgate_adaptive::breaker::{AdmittedCall, Circuit, FailureWindow, Thresholds};

/// When rules that circuit-break stop asking a store, and for how long.
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
    /// Once it was asked for so long without an answer: 2 seconds unless said otherwise.
    pub silent_for: Duration,
    /// Or once so many percent of calls failed: 50 unless said otherwise.
    pub failing_percent: u8,
    /// Over this time: 5 seconds unless said otherwise.
    pub window: Duration,
    /// If there were so many calls at least: 20 unless said otherwise.
    pub min_calls: u32,
    /// It isn't asked for so long, and then by one request: a second at first, unless said otherwise, and
    /// twice as long each time that this one fails too.
    pub opens_for: Duration,
    /// But no longer than this: 60 seconds unless said otherwise.
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
    /// A closed circuit of these thresholds.
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

/// By which right a request asks the store while its circuit is open. All others wait for what comes of a probe; if it has
/// no need to ask, or is given up, the next one may.
#[derive(Debug)]
pub(super) struct ProbeGuard<'a> {
    pub(super) circuit: &'a Circuit,
    /// None for a request that isn't the probe, or once something came of it.
    pub(super) entry: Option<AdmittedCall>,
}

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.circuit.abandon(entry);
        }
    }
}

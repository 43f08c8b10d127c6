//! `CircuitBreaker`: stops calls to a failing backend, probes it later with a few calls, and reports
//! events.

use std::fmt;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};

use crate::undo_guard::UndoGuard;

mod call;
mod circuit;
mod event;
pub(crate) mod window;
mod word;

pub use call::{BreakerCall, CircuitOpen};
pub use circuit::{Admission, AdmittedCall, Circuit};
pub use event::{BreakerEvent, CircuitState, ForcedState, TripReason};
pub use window::FailureWindow;

/// When a breaker opens, and for how long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::breaker::{FailureWindow, Thresholds};
///
/// let terms = Thresholds {
///     failing_percent: 30,
///     span: FailureWindow::Calls(100),
///     ..Thresholds::default()
/// };
/// assert_eq!((terms.min_calls, terms.probes), (20, 1));
/// assert_eq!(terms.longest_open, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The percentage of failed calls at which it opens: 50 by default. 101 disables this.
    pub failing_percent: u8,
    /// The percentage of calls slower than [`slow_after`](Self::slow_after) at which it opens: 101
    /// (disabled) by default.
    pub slow_percent: u8,
    /// A call that takes longer is slow.
    pub slow_after: Duration,
    /// The calls that the percentages are computed over: those of the last 5 seconds by default.
    pub span: FailureWindow,
    /// The fewest calls for the percentages to count: 20 by default.
    pub min_calls: u32,
    /// It also opens after calls for this duration without any answer, however few they are, whether
    /// they failed or their callers gave up: disabled by default.
    pub silent_for: Duration,
    /// How long it stays open: a second by default, and twice as long each time its probes fail.
    pub opens_for: Duration,
    /// The longest time that it stays open: 60 seconds by default.
    pub longest_open: Duration,
    /// The number of probes afterwards, up to 15, all of which must succeed: 1 by default.
    pub probes: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            failing_percent: 50,
            slow_percent: 101,
            slow_after: Duration::MAX,
            span: FailureWindow::Time(Duration::from_secs(5)),
            min_calls: 20,
            silent_for: Duration::MAX,
            opens_for: Duration::from_secs(1),
            longest_open: Duration::from_secs(60),
            probes: 1,
        }
    }
}

type EventListener = dyn Fn(&BreakerEvent) + Send + Sync;

/// A circuit breaker: calls pass while it is closed, and are denied immediately while it is open.
///
/// A rate slows calls down; a breaker stops them. That is better if they would fail anyway: callers
/// know it immediately, and the backend can recover. It opens by the share of calls that fail or are
/// slow, or if there is no answer at all for a while ([`Thresholds`]). Later a few calls pass as
/// probes: if they succeed it closes; otherwise it stays open for twice as long.
///
/// While it is closed, a call costs one atomic load.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::breaker::{CircuitBreaker, CircuitState, Thresholds};
/// use tollgate::clock::Manual;
///
/// let clock = Manual::new();
/// let breaker = CircuitBreaker::with_clock(Thresholds { min_calls: 4, ..Thresholds::default() }, clock.clone());
/// for _ in 0..4 {
///     breaker.try_call()?.failure();
/// }
/// assert_eq!(breaker.state(), CircuitState::Open);
/// assert_eq!(breaker.try_call().unwrap_err().to_string(), "the circuit is open for 1s more");
/// clock.advance(Duration::from_secs(1));
/// breaker.try_call()?.success(); // the probe
/// assert_eq!(breaker.state(), CircuitState::Closed);
/// # Ok::<(), tollgate_adaptive::breaker::CircuitOpen>(())
/// ```
pub struct CircuitBreaker<C: Clock = Monotonic> {
    circuit: Circuit,
    on_event: Option<Box<EventListener>>,
    clock: C,
}

impl CircuitBreaker {
    /// With these thresholds, on the default clock.
    pub fn new(terms: Thresholds) -> Self {
        Self::with_clock(terms, Monotonic::new())
    }
}

impl<C: Clock> CircuitBreaker<C> {
    /// With these thresholds, on another clock.
    pub fn with_clock(terms: Thresholds, clock: C) -> Self {
        Self {
            circuit: Circuit::new(terms),
            on_event: None,
            clock,
        }
    }

    /// Sets a listener for events, which is called on the thread that caused the event.
    #[must_use]
    pub fn on_event(mut self, tell: impl Fn(&BreakerEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    /// Lets a call through, or denies it while the circuit is open. Report the outcome to the
    /// [`BreakerCall`]. Just dropping it counts not as a failure, but as a call without an answer; if
    /// it was a probe, the circuit stays open for as long again.
    ///
    /// # Errors
    /// [`CircuitOpen`]: nothing was called.
    #[inline]
    pub fn try_call(&self) -> Result<BreakerCall<'_, C>, CircuitOpen> {
        let now = self.clock.now();
        let call = |entry| BreakerCall {
            breaker: self,
            entry,
            started: now,
            is_reported: false,
        };
        match self.circuit.admit(now) {
            Admission::Pass(entry) => Ok(call(entry)),
            Admission::Probe(entry) => {
                // Before the listener is called, so that a panicking listener abandons the probe:
                // nothing was called.
                let probe = UndoGuard::new(Some(call(entry)), BreakerCall::ignored);
                self.notify(Some(BreakerEvent::Probing));
                probe.disarm().ok_or(CircuitOpen { wait: None })
            }
            Admission::Denied { wait } => Err(CircuitOpen { wait }),
        }
    }

    /// Whether calls pass now.
    pub fn state(&self) -> CircuitState {
        self.circuit.state(self.clock.now())
    }

    /// How often it opened from closed.
    pub fn trips(&self) -> u64 {
        self.circuit.trips()
    }

    /// Forces it open or closed, whatever the outcomes, or releases it: then it begins as closed, with
    /// nothing counted.
    ///
    /// ```
    /// use tollgate_adaptive::breaker::{CircuitBreaker, ForcedState, Thresholds};
    ///
    /// let breaker = CircuitBreaker::new(Thresholds::default());
    /// breaker.force(ForcedState::Open);
    /// assert_eq!(breaker.try_call().unwrap_err().to_string(), "the circuit is held open");
    /// breaker.force(ForcedState::Released);
    /// assert!(breaker.try_call().is_ok());
    /// ```
    pub fn force(&self, force: ForcedState) {
        self.circuit.force(force);
        self.notify(Some(BreakerEvent::Forced(force)));
    }

    /// The breaker's clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Notifies the listener of an event, if there is one.
    #[inline]
    fn notify(&self, happened: Option<BreakerEvent>) {
        if let (Some(event), Some(tell)) = (happened, &self.on_event) {
            tell(&event);
        }
    }
}

impl<C: Clock> fmt::Debug for CircuitBreaker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("state", &self.state())
            .field("trips", &self.trips())
            .finish_non_exhaustive()
    }
}

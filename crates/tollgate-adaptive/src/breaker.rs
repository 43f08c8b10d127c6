//! `CircuitBreaker`: stops calls to what fails, tries again later with a few of them, and tells of it.

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
    /// It opens once so many percent of calls failed: 50 unless said otherwise. 101 never does.
    pub failing_percent: u8,
    /// Or once so many percent took longer than [`slow_after`](Self::slow_after): 101, never, unless said otherwise.
    pub slow_percent: u8,
    /// A call that takes longer is slow.
    pub slow_after: Duration,
    /// Over these calls: those of the last 5 seconds unless said otherwise.
    pub span: FailureWindow,
    /// If there were so many at least: 20 unless said otherwise.
    pub min_calls: u32,
    /// Or once it was called for so long without an answer, however few the calls, whether they failed or were given up by
    /// their callers: never unless said otherwise.
    pub silent_for: Duration,
    /// It lets no call through for so long: a second at first, unless said otherwise, and twice as long each time that
    /// its probes fail.
    pub opens_for: Duration,
    /// But no longer than this: 60 seconds unless said otherwise.
    pub longest_open: Duration,
    /// Then so many calls are let through, up to 15, and all of them have to succeed: 1 unless said otherwise.
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

/// A circuit breaker: calls pass while it is closed, and are refused at once while it is open.
///
/// A rate slows calls down; a breaker stops them, which is better when they fail anyway: callers know at
/// once, and what is called can recover. It opens by the share of calls that fail or are slow, or when there is no
/// answer at all for a while ([`Thresholds`]). After a while a few calls are let through: if they succeed it closes, and if
/// not it stays open for twice as long.
///
/// Whether a call passes is one load of one word while it is closed.
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
    /// By these terms, on the default clock.
    pub fn new(terms: Thresholds) -> Self {
        Self::with_clock(terms, Monotonic::new())
    }
}

impl<C: Clock> CircuitBreaker<C> {
    /// The same on a clock of one's own.
    pub fn with_clock(terms: Thresholds, clock: C) -> Self {
        Self {
            circuit: Circuit::new(terms),
            on_event: None,
            clock,
        }
    }

    /// Tells this what happens, on the thread that caused it.
    #[must_use]
    pub fn on_event(mut self, tell: impl Fn(&BreakerEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    /// Lets a call through, or says for how long there is none. Tell the [`BreakerCall`] how it ended. One that is just dropped is no
    /// failure, but counts as one without an answer; if it was a probe, the circuit stays open for as long again.
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
                // First, so that a listener that panics gives the probe up: nothing was called.
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

    /// Holds it open or closed whatever calls say, or lets it go: then it begins as closed, with nothing counted.
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

    /// The clock it reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Tells what happened, if anything did.
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

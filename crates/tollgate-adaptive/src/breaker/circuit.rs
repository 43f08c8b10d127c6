//! A circuit without a clock: the state word, and the counts beside it. Each call passes the time.

// Not loom's atomics: the silence and the number of opens in a row are statistics, and part of no
// model.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

use super::window::{CallResult, CallWindow};
use super::word::{
    AdmissionRequest, AdmissionStep, CircuitWord, MAX_PROBES, ProbeRound, WordState, is_in_future,
};
use super::{BreakerEvent, CircuitState, FailureWindow, ForcedState, Thresholds, TripReason};

/// The state machine of a [`CircuitBreaker`](super::CircuitBreaker): each call passes the time, and
/// returns the event if there was one.
///
/// For users with their own clock, and for calls that pass although the circuit is open but whose
/// outcome still shows the state of the backend ([`AdmittedCall::untracked`]).
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate_adaptive::breaker::{BreakerEvent, Circuit, AdmittedCall, CircuitState, Thresholds, TripReason, Admission};
///
/// let circuit = Circuit::new(Thresholds { silent_for: Duration::from_secs(2), ..Thresholds::default() });
/// let (now, later) = (Timestamp::from_secs(10), Timestamp::from_secs(11));
/// assert_eq!(circuit.record_failure(AdmittedCall::untracked(), now), None);
/// assert_eq!(circuit.record_failure(AdmittedCall::untracked(), later), None);
/// let silent = circuit.record_failure(AdmittedCall::untracked(), later + Duration::from_secs(1));
/// assert_eq!(silent, Some(BreakerEvent::Opened { stays: Duration::from_secs(1), why: TripReason::Silent }));
/// assert_eq!(circuit.state(later + Duration::from_secs(1)), CircuitState::Open);
/// assert!(matches!(circuit.admit(later + Duration::from_secs(2)), Admission::Probe(_)));
/// ```
#[derive(Debug)]
pub struct Circuit {
    thresholds: Thresholds,
    word: CircuitWord,
    window: CallWindow,
    /// The time of the first failure since the latest answer; 0 if there is none.
    silent_since: AtomicU64,
    /// The time of the latest one.
    silent_latest: AtomicU64,
    /// How often in a row it was opened.
    consecutive_opens: AtomicU32,
    trips: AtomicU64,
    /// When it closed after it had been open; 0 if it never did.
    closed_at: AtomicU64,
}

/// The circuit's decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It passes.
    Pass(AdmittedCall),
    /// It passes as a probe.
    Probe(AdmittedCall),
    /// It doesn't pass.
    Denied {
        /// For how long; `None` if the circuit was forced open.
        wait: Option<Duration>,
    },
}

/// The admission of a call; it is passed back when the call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedCall(EntryKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    /// A call that began at this time; the end of time if that is unknown.
    Call(Timestamp),
    Probe(ProbeRound),
}

impl AdmittedCall {
    /// For a call that didn't ask the circuit: its outcome counts, but it is no probe.
    pub const fn untracked() -> Self {
        Self(EntryKind::Call(Timestamp::MAX))
    }
}

impl Circuit {
    /// A closed circuit.
    pub fn new(terms: Thresholds) -> Self {
        Self {
            thresholds: Thresholds {
                probes: terms.probes.clamp(1, MAX_PROBES),
                ..terms
            },
            word: CircuitWord::new(),
            window: CallWindow::new(terms.span),
            silent_since: AtomicU64::new(0),
            silent_latest: AtomicU64::new(0),
            consecutive_opens: AtomicU32::new(0),
            trips: AtomicU64::new(0),
            closed_at: AtomicU64::new(0),
        }
    }

    /// Whether it is closed: one atomic load.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.word.is_closed()
    }

    /// Whether calls pass at this time.
    pub fn state(&self, now: Timestamp) -> CircuitState {
        match self.word.state() {
            WordState::Closed => CircuitState::Closed,
            WordState::Open { until } if is_in_future(until, now, self.max_open_duration()) => {
                CircuitState::Open
            }
            WordState::Open { .. } | WordState::HalfOpen(_) => CircuitState::HalfOpen,
            WordState::Forced(state) => state,
        }
    }

    /// How often it opened from closed.
    pub fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// Decides whether a call passes.
    #[inline]
    pub fn admit(&self, now: Timestamp) -> Admission {
        if self.word.is_closed() {
            return Admission::Pass(AdmittedCall(EntryKind::Call(now)));
        }
        self.admit_slowly(now)
    }

    #[cold]
    fn admit_slowly(&self, now: Timestamp) -> Admission {
        let asking = AdmissionRequest {
            now,
            probes: self.thresholds.probes,
            probe_timeout: self.current_open_duration(),
            max_open_duration: self.max_open_duration(),
        };
        match self.word.admit(asking) {
            AdmissionStep::Passed => Admission::Pass(AdmittedCall(EntryKind::Call(now))),
            AdmissionStep::Probe(turn) => Admission::Probe(AdmittedCall(EntryKind::Probe(turn))),
            AdmissionStep::Denied(until) => Admission::Denied {
                // In whole milliseconds, because the word's time is slightly less than the requested
                // one.
                wait: until.map(|until| {
                    let millis = (until - now).as_nanos().div_ceil(1_000_000);
                    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
                }),
            },
        }
    }

    /// Records a call that was answered after this latency.
    #[inline]
    pub fn record_answer(
        &self,
        entry: AdmittedCall,
        now: Timestamp,
        took: Duration,
    ) -> Option<BreakerEvent> {
        if self.began_before_close(entry, now) {
            return None;
        }
        let is_slow = took > self.thresholds.slow_after;
        let kind = if is_slow {
            CallResult::Slow
        } else {
            CallResult::Succeeded
        };
        self.window.count(now, kind);
        if self.silent_since.load(Ordering::Relaxed) != 0 {
            self.silent_since.store(0, Ordering::Relaxed);
        }
        match entry.0 {
            EntryKind::Call(_) if is_slow => self.evaluate(now, None),
            EntryKind::Call(_) => None,
            // A probe tests for answers; a slow one counts against it only if slowness can open the
            // circuit.
            EntryKind::Probe(turn) if is_slow && self.thresholds.slow_percent <= 100 => {
                self.reopen(turn, now)
            }
            EntryKind::Probe(turn) => {
                let closes = self.word.record_probe_success(turn, self.thresholds.probes);
                closes.then(|| {
                    self.closed_at.store(now.as_nanos(), Ordering::Relaxed);
                    self.reset()
                })
            }
        }
    }

    /// Records a failed call.
    #[cold]
    pub fn record_failure(&self, entry: AdmittedCall, now: Timestamp) -> Option<BreakerEvent> {
        if self.began_before_close(entry, now) {
            return None;
        }
        self.window.count(now, CallResult::Failed);
        if let EntryKind::Probe(turn) = entry.0 {
            return self.reopen(turn, now);
        }
        if !self.is_closed() {
            // The failure of a call that isn't a probe doesn't prolong the open state.
            return None;
        }
        let silent = self.is_silent(now).then_some(TripReason::Silent);
        self.evaluate(now, silent)
    }

    /// Records a call that was dropped before it ended, as when its caller gave up. Nobody knows
    /// whether it would have been answered, so it isn't a failure; but calls that are never answered
    /// count as [silence](Thresholds::silent_for), and a probe without an answer shows nothing: the
    /// circuit stays open for as long again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Timestamp;
    /// use tollgate_adaptive::breaker::{Admission, Circuit, CircuitState, Thresholds};
    ///
    /// let circuit = Circuit::new(Thresholds { silent_for: Duration::from_secs(2), ..Thresholds::default() });
    /// for millis in (0..=2_000).step_by(100) {
    ///     let now = Timestamp::from_millis(10_000 + millis);
    ///     let Admission::Pass(entry) = circuit.admit(now) else { break };
    ///     circuit.record_drop(entry, now);
    /// }
    /// assert_eq!(circuit.state(Timestamp::from_secs(12)), CircuitState::Open);
    /// ```
    #[cold]
    pub fn record_drop(&self, entry: AdmittedCall, now: Timestamp) -> Option<BreakerEvent> {
        match entry.0 {
            EntryKind::Probe(turn) => {
                let stays = self.current_open_duration();
                let reopens = self.word.reopen(turn, now + stays);
                let why = TripReason::Probe;
                reopens.then_some(BreakerEvent::Opened { stays, why })
            }
            EntryKind::Call(_) if self.began_before_close(entry, now) || !self.is_closed() => None,
            EntryKind::Call(_) if self.is_silent(now) => {
                self.evaluate(now, Some(TripReason::Silent))
            }
            EntryKind::Call(_) => None,
        }
    }

    /// Whether a call began before the circuit closed again: its outcome belongs to the outage that has
    /// ended.
    fn began_before_close(&self, entry: AdmittedCall, now: Timestamp) -> bool {
        let closed_at = Timestamp::from_nanos(self.closed_at.load(Ordering::Relaxed));
        // If the clock was set back since, the times can't be compared.
        matches!(entry.0, EntryKind::Call(begun) if begun < closed_at && closed_at <= now)
    }

    /// Ends a call without information: if it was a probe, the next call becomes the probe.
    #[inline]
    pub fn abandon(&self, entry: AdmittedCall) {
        if let EntryKind::Probe(turn) = entry.0 {
            self.word.abandon_probe(turn);
        }
    }

    /// Closes it, because the backend is known to work. Returns whether it was in another state.
    pub fn close(&self) -> bool {
        self.silent_since.store(0, Ordering::Relaxed);
        let was_open = self.word.close();
        if was_open {
            self.reset();
        }
        was_open
    }

    /// Forces it open or closed, or releases it.
    pub fn force(&self, force: ForcedState) {
        self.reset();
        self.silent_since.store(0, Ordering::Relaxed);
        self.word.force(force);
    }

    fn reset(&self) -> BreakerEvent {
        self.consecutive_opens.store(0, Ordering::Relaxed);
        self.window.clear();
        BreakerEvent::Closed
    }

    /// Opens it if a threshold is exceeded.
    fn evaluate(&self, now: Timestamp, why: Option<TripReason>) -> Option<BreakerEvent> {
        let why = why.or_else(|| self.exceeded_threshold(now))?;
        let stays = self.open_duration(0);
        if !self.word.open(now + stays) {
            return None;
        }
        self.consecutive_opens.store(1, Ordering::Relaxed);
        self.trips.fetch_add(1, Ordering::Relaxed);
        Some(BreakerEvent::Opened { stays, why })
    }

    /// Opens it again after a failed probe, for longer.
    fn reopen(&self, turn: ProbeRound, now: Timestamp) -> Option<BreakerEvent> {
        let times = self.consecutive_opens.load(Ordering::Relaxed);
        let stays = self.open_duration(times);
        if !self.word.reopen(turn, now + stays) {
            return None;
        }
        self.consecutive_opens
            .store(times.saturating_add(1), Ordering::Relaxed);
        Some(BreakerEvent::Opened {
            stays,
            why: TripReason::Probe,
        })
    }

    /// The threshold that is exceeded, if any.
    fn exceeded_threshold(&self, now: Timestamp) -> Option<TripReason> {
        let counts = self.window.counts(now);
        let enough = match self.thresholds.span {
            FailureWindow::Calls(most) => self.thresholds.min_calls.min(most),
            FailureWindow::Time(_) => self.thresholds.min_calls,
        };
        if counts.calls < u64::from(enough) {
            return None;
        }
        let meets = |part: u64, percent: u8| part * 100 >= counts.calls * u64::from(percent);
        if counts.failed > 0 && meets(counts.failed, self.thresholds.failing_percent) {
            Some(TripReason::Failing)
        } else if counts.slow > 0 && meets(counts.slow, self.thresholds.slow_percent) {
            Some(TripReason::Slow)
        } else {
            None
        }
    }

    /// Whether calls went without an answer for long enough. A pause without calls doesn't count.
    fn is_silent(&self, now: Timestamp) -> bool {
        let silent_for = self.thresholds.silent_for.as_nanos();
        let nanos = now.as_nanos().max(1);
        let latest = self.silent_latest.swap(nanos, Ordering::Relaxed);
        let pause = u128::from(nanos.saturating_sub(latest));
        let since = self.silent_since.load(Ordering::Relaxed);
        if since == 0 || pause > silent_for {
            self.silent_since.store(nanos, Ordering::Relaxed);
            return silent_for == 0;
        }
        u128::from(nanos.saturating_sub(since)) >= silent_for
    }

    /// How long it stays open after this many opens in a row.
    fn open_duration(&self, times: u32) -> Duration {
        let longer = self.thresholds.opens_for.saturating_mul(1 << times.min(30));
        longer.min(self.max_open_duration())
    }

    /// The longest time that it is ever open.
    fn max_open_duration(&self) -> Duration {
        self.thresholds.longest_open.max(self.thresholds.opens_for)
    }

    /// How long it is open this time; a probe has as long to end.
    fn current_open_duration(&self) -> Duration {
        self.open_duration(
            self.consecutive_opens
                .load(Ordering::Relaxed)
                .saturating_sub(1),
        )
    }
}

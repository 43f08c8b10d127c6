//! A circuit without a clock: the word, and what is counted beside it. Whoever asks says what time it is.

// Not loom's: how long it was silent and how often it opened are statistics, and no part of any model.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

use super::window::{CallResult, CallWindow};
use super::word::{
    AdmissionRequest, AdmissionStep, CircuitWord, MAX_PROBES, ProbeRound, WordState, is_in_future,
};
use super::{BreakerEvent, CircuitState, FailureWindow, ForcedState, Thresholds, TripReason};

/// What a [`CircuitBreaker`](super::CircuitBreaker) is made of: it is told the time, and answers with what happened.
///
/// For whoever has a clock of their own, or calls that pass although the circuit is open and still say something of
/// what is called ([`AdmittedCall::untracked`]).
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
    /// When the first of the failures without an answer between them was; 0 if there is none.
    silent_since: AtomicU64,
    /// And the latest.
    silent_latest: AtomicU64,
    /// How often in a row it was opened.
    consecutive_opens: AtomicU32,
    trips: AtomicU64,
    /// When it closed after it had been open; 0 if it never did.
    closed_at: AtomicU64,
}

/// What a circuit says to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It passes.
    Pass(AdmittedCall),
    /// It passes, to see whether it succeeds.
    Probe(AdmittedCall),
    /// It doesn't.
    Denied {
        /// For how long, if nobody holds the circuit open.
        wait: Option<Duration>,
    },
}

/// By which right a call passed; it is handed back when the call is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedCall(EntryKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    /// Of a call that began then; the end of time if that isn't known.
    Call(Timestamp),
    Probe(ProbeRound),
}

impl AdmittedCall {
    /// Of a call that didn't ask the circuit: what comes of it counts, but it is no probe.
    pub const fn untracked() -> Self {
        Self(EntryKind::Call(Timestamp::MAX))
    }
}

impl Circuit {
    /// A closed one.
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

    /// Whether it is closed: one load.
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

    /// Whether a call passes.
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
                // In whole milliseconds, as the word's time is a little less than what was asked for.
                wait: until.map(|until| {
                    let millis = (until - now).as_nanos().div_ceil(1_000_000);
                    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
                }),
            },
        }
    }

    /// A call was answered after so long.
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
            // A slow answer isn't what a probe is to find.
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

    /// A call failed.
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
            // What others find out doesn't prolong it.
            return None;
        }
        let silent = self.is_silent(now).then_some(TripReason::Silent);
        self.evaluate(now, silent)
    }

    /// A call was dropped before anything came of it, as when its caller waited no longer. Nobody knows whether it would have
    /// been answered, so it is no failure; but what never answers is [silent](Thresholds::silent_for), and a probe that
    /// isn't answered finds nothing out: the circuit stays open for as long again.
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

    /// Whether a call began before the circuit closed again: what comes of it is news of the outage that is over.
    fn began_before_close(&self, entry: AdmittedCall, now: Timestamp) -> bool {
        let closed_at = Timestamp::from_nanos(self.closed_at.load(Ordering::Relaxed));
        // A clock that was set back since says nothing.
        matches!(entry.0, EntryKind::Call(begun) if begun < closed_at && closed_at <= now)
    }

    /// A call ended in a way that says nothing: if it was a probe, the next one is.
    #[inline]
    pub fn abandon(&self, entry: AdmittedCall) {
        if let EntryKind::Probe(turn) = entry.0 {
            self.word.abandon_probe(turn);
        }
    }

    /// Closes it, as what is called is known to work; whether it was anything but closed.
    pub fn close(&self) -> bool {
        self.silent_since.store(0, Ordering::Relaxed);
        let was_open = self.word.close();
        if was_open {
            self.reset();
        }
        was_open
    }

    /// Holds it open or closed, or lets it go.
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

    /// Opens it if the terms are met.
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

    /// A probe failed: it is open again, for longer.
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

    /// Which of the shares is met.
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

    /// Whether it was called for long enough without an answer. A pause without calls says nothing.
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

    /// How long it is open if it was so often in a row before.
    fn open_duration(&self, times: u32) -> Duration {
        let longer = self.thresholds.opens_for.saturating_mul(1 << times.min(30));
        longer.min(self.max_open_duration())
    }

    /// The longest that it is ever open.
    fn max_open_duration(&self) -> Duration {
        self.thresholds.longest_open.max(self.thresholds.opens_for)
    }

    /// How long it is open this time: a probe has as long to come back.
    fn current_open_duration(&self) -> Duration {
        self.open_duration(
            self.consecutive_opens
                .load(Ordering::Relaxed)
                .saturating_sub(1),
        )
    }
}

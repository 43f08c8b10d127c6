//! The state word of a circuit: the state, its end, and the probes in flight.
//!
//! # The word
//! Two bits are the state. While it is open or half-open, 54 bits are a time in steps of 1,024 ns, 4
//! bits count the probes in flight and 4 those that have succeeded. Closed is the word 0, so the fast
//! path compares with zero.
//!
//! * Closed → open: by a thread that sees a threshold exceeded; of several concurrent ones, one wins,
//!   and the others do nothing.
//! * Open → half-open: by the first call after the open time; it is the first probe. The word's time is
//!   then when probes that haven't ended are abandoned.
//! * Half-open: a probe enters by incrementing the probes in flight, if fewer than allowed are in
//!   flight or have succeeded. It ends by decrementing them; a success counts, the last success closes,
//!   a failure opens.
//! * A probe identifies itself by the time until which it may end. An abandoned probe finds another
//!   time in the word, or none, and changes nothing, because later probes have its place.
//! * A clock that is set back would prolong the open state. So a time that is further away than the
//!   longest open time counts as past.
//!
//! # Memory ordering
//! The algorithm depends only on the order of changes to this one word, which every ordering keeps. The
//! counts beside it (the window, the silence, the opens in a row) are statistics: a thread that sees
//! them slightly late evaluates once more, or once less.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::Timestamp;

use super::{CircuitState, ForcedState};
use crate::sync::AtomicU64;

const KIND: u64 = 0b11;
const OPEN: u64 = 1;
const HALF: u64 = 2;
const FORCED: u64 = 3;
const OUT_SHIFT: u32 = 2;
const SUCCEEDED_SHIFT: u32 = 6;
const COUNT: u64 = 0xF;
const TIME_SHIFT: u32 = 10;

/// The most probes that the word can count.
pub(super) const MAX_PROBES: u8 = 15;

#[derive(Debug)]
pub(super) struct CircuitWord(AtomicU64);

/// The unpacked word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordState {
    Closed,
    Open { until: Timestamp },
    HalfOpen(HalfOpenState),
    Forced(CircuitState),
}

/// The progress of a half-open circuit's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HalfOpenState {
    until: Timestamp,
    in_flight: u8,
    succeeded: u8,
}

/// The decision about a call while it isn't closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionStep {
    Passed,
    /// It passes as the probe of this round.
    Probe(ProbeRound),
    /// Denied until this time, if that is known.
    Denied(Option<Timestamp>),
}

/// The time until which a probe may end, as in the word: it identifies the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeRound(Timestamp);

/// The request of a call, with the circuit's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionRequest {
    pub(super) now: Timestamp,
    /// The most concurrent probes.
    pub(super) probes: u8,
    /// How long a probe has to end.
    pub(super) probe_timeout: Duration,
    /// No valid time of the word is further away.
    pub(super) max_open_duration: Duration,
}

impl ProbeRound {
    /// Rounded down by up to 1,023 ns, as in the word.
    fn until(time: Timestamp) -> Self {
        Self(Timestamp::from_nanos(time.as_nanos() & !0x3FF))
    }
}

/// Whether a time of the word is still to come.
pub(super) fn is_in_future(until: Timestamp, now: Timestamp, longest: Duration) -> bool {
    now < until && until - now <= longest
}

impl WordState {
    fn from_word(word: u64) -> Self {
        // The word's upper bits are the time as they are; its last 1,023 ns are cut off.
        let until = Timestamp::from_nanos(word & !0x3FF);
        let count = |shift: u32| u8::try_from(word >> shift & COUNT).unwrap_or(0);
        match word & KIND {
            OPEN => Self::Open { until },
            HALF => Self::HalfOpen(HalfOpenState {
                until,
                in_flight: count(OUT_SHIFT),
                succeeded: count(SUCCEEDED_SHIFT),
            }),
            FORCED if word >> TIME_SHIFT == 0 => Self::Forced(CircuitState::Open),
            FORCED => Self::Forced(CircuitState::Closed),
            _ => Self::Closed,
        }
    }

    /// The progress of the probes, if it is half-open and still in the round of this probe.
    fn in_round(self, turn: ProbeRound) -> Option<HalfOpenState> {
        match self {
            Self::HalfOpen(half) if half.until == turn.0 => Some(half),
            _ => None,
        }
    }

    fn word(self) -> u64 {
        let time = |until: Timestamp| until.as_nanos() & !0x3FF;
        match self {
            Self::Closed => 0,
            Self::Open { until } => time(until) | OPEN,
            Self::HalfOpen(half) => {
                let succeeded = u64::from(half.succeeded) << SUCCEEDED_SHIFT;
                time(half.until) | succeeded | u64::from(half.in_flight) << OUT_SHIFT | HALF
            }
            Self::Forced(CircuitState::Closed) => 1 << TIME_SHIFT | FORCED,
            Self::Forced(_) => FORCED,
        }
    }
}

impl CircuitWord {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The fast path.
    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(super) fn state(&self) -> WordState {
        WordState::from_word(self.0.load(Ordering::Relaxed))
    }

    /// Decides whether a call passes.
    pub(super) fn admit(&self, asking: AdmissionRequest) -> AdmissionStep {
        let AdmissionRequest { now, probes, .. } = asking;
        let lapses = ProbeRound::until(now + asking.probe_timeout).0;
        let is_in_future = |until: Timestamp| is_in_future(until, now, asking.max_open_duration);
        let first = |succeeded: u8| HalfOpenState {
            until: lapses,
            in_flight: 1,
            succeeded,
        };
        let mut asked = AdmissionStep::Passed;
        self.update_word(|said| {
            let next = match said {
                WordState::Closed | WordState::Forced(CircuitState::Closed) => {
                    Err(AdmissionStep::Passed)
                }
                WordState::Forced(_) => Err(AdmissionStep::Denied(None)),
                WordState::Open { until } if is_in_future(until) => {
                    Err(AdmissionStep::Denied(Some(until)))
                }
                WordState::Open { .. } => Ok(first(0)),
                WordState::HalfOpen(half) if half.in_flight + half.succeeded < probes => {
                    Ok(HalfOpenState {
                        until: if half.in_flight == 0 {
                            lapses
                        } else {
                            half.until
                        },
                        in_flight: half.in_flight + 1,
                        ..half
                    })
                }
                WordState::HalfOpen(half) if is_in_future(half.until) => {
                    Err(AdmissionStep::Denied(Some(half.until)))
                }
                // The probes in flight didn't end in time: they are abandoned, and another one passes.
                WordState::HalfOpen(half) => Ok(first(half.succeeded)),
            };
            asked = next.map_or_else(
                |told| told,
                |half| AdmissionStep::Probe(ProbeRound(half.until)),
            );
            next.ok().map(WordState::HalfOpen)
        });
        asked
    }

    /// Records a successful probe; returns whether it was the last one needed, so that the circuit is
    /// closed.
    pub(super) fn record_probe_success(&self, turn: ProbeRound, probes: u8) -> bool {
        let mut closes = false;
        let ended = self.update_word(|said| {
            let half = said.in_round(turn)?;
            closes = half.succeeded + 1 >= probes;
            let next = WordState::HalfOpen(HalfOpenState {
                in_flight: half.in_flight.saturating_sub(1),
                succeeded: half.succeeded + 1,
                ..half
            });
            Some(if closes { WordState::Closed } else { next })
        });
        ended && closes
    }

    /// Abandons a probe: its place is free.
    pub(super) fn abandon_probe(&self, turn: ProbeRound) {
        self.update_word(|said| {
            let half = said.in_round(turn)?;
            let out = half.in_flight.saturating_sub(1);
            Some(WordState::HalfOpen(HalfOpenState {
                in_flight: out,
                ..half
            }))
        });
    }

    /// Opens it if it is closed; returns whether this call did it.
    pub(super) fn open(&self, until: Timestamp) -> bool {
        self.update_word(|said| (said == WordState::Closed).then_some(WordState::Open { until }))
    }

    /// Opens it after this probe failed; returns whether it did. A probe of an abandoned round doesn't.
    pub(super) fn reopen(&self, turn: ProbeRound, until: Timestamp) -> bool {
        self.update_word(|said| said.in_round(turn).map(|_| WordState::Open { until }))
    }

    /// Closes it unless it is forced; returns whether it was in another state.
    pub(super) fn close(&self) -> bool {
        self.update_word(|said| match said {
            WordState::Closed | WordState::Forced(_) => None,
            _ => Some(WordState::Closed),
        })
    }

    pub(super) fn force(&self, force: ForcedState) {
        let said = match force {
            ForcedState::Released => WordState::Closed,
            ForcedState::Open => WordState::Forced(CircuitState::Open),
            ForcedState::Closed => WordState::Forced(CircuitState::Closed),
        };
        self.0.store(said.word(), Ordering::Relaxed);
    }

    /// Changes the word by compare-and-swap unless `to` declines; returns whether it was changed.
    fn update_word(&self, mut to: impl FnMut(WordState) -> Option<WordState>) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = to(WordState::from_word(word)) else {
                return false;
            };
            let (relaxed, next) = (Ordering::Relaxed, next.word());
            match self.0.compare_exchange_weak(word, next, relaxed, relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }
}

//! The word of a circuit: what it is, until when, and how many probes are out.
//!
//! # The word
//! Two bits say what the circuit is. While it is open or half-open, 54 bits are a time in steps of 1,024 ns, 4 bits count
//! the probes that are out and 4 those that have succeeded. Closed is the word 0, so the fast path compares with zero.
//!
//! * Closed → open: by whoever sees that the terms are met; of several at once one wins, and the others do nothing.
//! * Open → half-open: by the first who asks after its time; it is the first probe. The time is then when probes that
//!   haven't come back are given up.
//! * Half-open: a probe enters by adding to those that are out, if fewer than allowed are out or have succeeded.
//!   It ends by taking itself off; a success counts, the last one closes, a failure opens.
//!
//! # Memory ordering
//! All of it is about the order of changes to this one word, which every ordering keeps. What is counted beside it (the
//! window, the silence, how often in a row) is a statistic: who sees it a moment late asks once more, or once less.

use tollgate_core::Timestamp;

use super::{Force, State};
use crate::sync::{AtomicU64, Ordering};

const KIND: u64 = 0b11;
const OPEN: u64 = 1;
const HALF: u64 = 2;
const FORCED: u64 = 3;
const OUT_SHIFT: u32 = 2;
const SUCCEEDED_SHIFT: u32 = 6;
const COUNT: u64 = 0xF;
const TIME_SHIFT: u32 = 10;

/// The most probes that the word counts.
pub(super) const MOST_PROBES: u8 = 15;

#[derive(Debug)]
pub(super) struct Word(AtomicU64);

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Closed,
    Open {
        until: Timestamp,
    },
    Half {
        until: Timestamp,
        out: u8,
        succeeded: u8,
    },
    Forced(State),
}

/// What came of asking to be let through while it isn't closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Passes,
    Probes,
    /// Not before this time, if that is known.
    Waits(Option<Timestamp>),
}

/// What came of a probe that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Nothing,
    Closed,
}

impl Said {
    fn of(word: u64) -> Self {
        // A time takes the word's upper bits as they are: the last 1,023 ns of it are lost.
        let until = Timestamp::from_nanos(word & !0x3FF);
        let count = |shift: u32| u8::try_from(word >> shift & COUNT).unwrap_or(0);
        match word & KIND {
            OPEN => Self::Open { until },
            HALF => Self::Half {
                until,
                out: count(OUT_SHIFT),
                succeeded: count(SUCCEEDED_SHIFT),
            },
            FORCED if word >> TIME_SHIFT == 0 => Self::Forced(State::Open),
            FORCED => Self::Forced(State::Closed),
            _ => Self::Closed,
        }
    }

    fn word(self) -> u64 {
        let time = |until: Timestamp| until.as_nanos() & !0x3FF;
        match self {
            Self::Closed => 0,
            Self::Open { until } => time(until) | OPEN,
            Self::Half {
                until,
                out,
                succeeded,
            } => {
                let counts = u64::from(out) << OUT_SHIFT | u64::from(succeeded) << SUCCEEDED_SHIFT;
                time(until) | counts | HALF
            }
            Self::Forced(State::Closed) => 1 << TIME_SHIFT | FORCED,
            Self::Forced(_) => FORCED,
        }
    }
}

impl Word {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The fast path.
    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(super) fn said(&self) -> Said {
        Said::of(self.0.load(Ordering::Relaxed))
    }

    /// Asks to be let through. A probe that enters has until `lapses` to come back.
    pub(super) fn ask(&self, now: Timestamp, probes: u8, lapses: Timestamp) -> Asked {
        let mut asked = Asked::Passes;
        self.step(|said| {
            let first = |succeeded: u8| Said::Half {
                until: lapses,
                out: 1,
                succeeded,
            };
            let next = match said {
                Said::Closed | Said::Forced(State::Closed) => {
                    asked = Asked::Passes;
                    return None;
                }
                Said::Forced(_) => {
                    asked = Asked::Waits(None);
                    return None;
                }
                Said::Open { until } if now < until => {
                    asked = Asked::Waits(Some(until));
                    return None;
                }
                Said::Open { .. } => first(0),
                Said::Half {
                    until,
                    out,
                    succeeded,
                } if out + succeeded < probes => Said::Half {
                    until: if out == 0 { lapses } else { until },
                    out: out + 1,
                    succeeded,
                },
                Said::Half { until, .. } if now < until => {
                    asked = Asked::Waits(Some(until));
                    return None;
                }
                // Those that are out don't come back: they are given up, and another one goes.
                Said::Half { succeeded, .. } => first(succeeded),
            };
            asked = Asked::Probes;
            Some(next)
        });
        asked
    }

    /// A probe ended well.
    pub(super) fn succeeds(&self, probes: u8) -> Ended {
        let mut ended = Ended::Nothing;
        self.step(|said| {
            let Said::Half {
                until,
                out,
                succeeded,
            } = said
            else {
                ended = Ended::Nothing;
                return None;
            };
            if succeeded + 1 >= probes {
                ended = Ended::Closed;
                return Some(Said::Closed);
            }
            ended = Ended::Nothing;
            Some(Said::Half {
                until,
                out: out.saturating_sub(1),
                succeeded: succeeded + 1,
            })
        });
        ended
    }

    /// A probe was given up: its place is free.
    pub(super) fn gives_up(&self) {
        self.step(|said| match said {
            Said::Half {
                until,
                out,
                succeeded,
            } => Some(Said::Half {
                until,
                out: out.saturating_sub(1),
                succeeded,
            }),
            _ => None,
        });
    }

    /// Opens it if it is as `from` says; whether this one did it.
    pub(super) fn opens(&self, from: State, until: Timestamp) -> bool {
        self.step(|said| match (said, from) {
            (Said::Closed, State::Closed) | (Said::Half { .. }, State::HalfOpen) => {
                Some(Said::Open { until })
            }
            _ => None,
        })
    }

    /// Closes it, unless somebody holds it; whether it was anything else.
    pub(super) fn closes(&self) -> bool {
        self.step(|said| match said {
            Said::Closed | Said::Forced(_) => None,
            _ => Some(Said::Closed),
        })
    }

    pub(super) fn force(&self, force: Force) {
        let said = match force {
            Force::No => Said::Closed,
            Force::Open => Said::Forced(State::Open),
            Force::Closed => Said::Forced(State::Closed),
        };
        self.0.store(said.word(), Ordering::Relaxed);
    }

    /// Changes the word by compare-and-swap unless `to` declines; whether it was changed.
    fn step(&self, mut to: impl FnMut(Said) -> Option<Said>) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = to(Said::of(word)) else {
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

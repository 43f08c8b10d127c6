//! A model of golang.org/x/time/rate, in the same doubles in the same order.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the peer counts in doubles and truncates them to nanoseconds"
)]

/// The longest duration, which the peer uses as "infinite".
pub(crate) const ENDLESS: i64 = i64::MAX;
/// The limit `Inf`.
pub(crate) const UNLIMITED: f64 = f64::MAX;

/// Go's zero time, seen from the recording's base of 2024-01-01.
const ZERO_TIME: i128 = -63_839_664_000 * 1_000_000_000;

/// The peer's limiter.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    pub(crate) tokens: f64,
    pub(crate) last: i128,
    pub(crate) last_event: i128,
    pub(crate) limit: f64,
    pub(crate) burst: i64,
}

/// The peer's reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) ok: bool,
    pub(crate) n: i64,
    pub(crate) act: i128,
    /// The limit when it was made: none recorded when there was no limit.
    pub(crate) limit: f64,
    pub(crate) without_limit: bool,
    /// The balance after it, and the wait for that balance to reach zero.
    pub(crate) left: f64,
    pub(crate) wait: i64,
}

impl Limiter {
    pub(crate) fn new(limit: f64, burst: i64) -> Self {
        Self {
            tokens: burst as f64,
            last: ZERO_TIME,
            last_event: ZERO_TIME,
            limit,
            burst,
        }
    }

    pub(crate) fn tokens_at(&self, t: i128) -> f64 {
        let elapsed = since(t, self.last.min(t));
        let tokens = self.tokens + tokens_from(elapsed, self.limit);
        tokens.min(self.burst as f64)
    }

    pub(crate) fn reserve(&mut self, t: i128, n: i64, longest_wait: i64) -> Reservation {
        let unlimited = Reservation {
            ok: true,
            n,
            act: t,
            limit: 0.0,
            without_limit: true,
            left: 0.0,
            wait: 0,
        };
        if self.limit == UNLIMITED {
            return unlimited;
        }
        let left = self.tokens_at(t) - n as f64;
        let wait = if left < 0.0 {
            duration_from(-left, self.limit)
        } else {
            0
        };
        let ok = n <= self.burst && wait <= longest_wait;
        let act = t + i128::from(wait);
        if ok {
            self.last = t;
            self.tokens = left;
            self.last_event = act;
        }
        Reservation {
            ok,
            act,
            limit: self.limit,
            without_limit: false,
            left,
            wait,
            ..unlimited
        }
    }

    /// Cancels, and says what that comes to: nothing changes at zero or below. Nothing to say if
    /// the reservation is past or void, or there is no limit.
    pub(crate) fn cancel(&mut self, t: i128, made: &Reservation) -> Option<f64> {
        if !made.ok || self.limit == UNLIMITED || made.n == 0 || made.act < t {
            return None;
        }
        let ahead = since(self.last_event, made.act);
        let refund = made.n as f64 - tokens_from(ahead, made.limit);
        if refund > 0.0 {
            self.tokens = (self.tokens_at(t) + refund).min(self.burst as f64);
            self.last = t;
            // Where a wait never ends this is no step back: an endless duration has no sign.
            let previous = made.act + i128::from(duration_from(-made.n as f64, made.limit));
            if made.act == self.last_event && previous >= t {
                self.last_event = previous;
            }
        }
        Some(refund)
    }

    pub(crate) fn set_limit(&mut self, t: i128, limit: f64) {
        self.settle(t);
        self.limit = limit;
    }

    pub(crate) fn set_burst(&mut self, t: i128, burst: i64) {
        self.settle(t);
        self.burst = burst;
    }

    fn settle(&mut self, t: i128) {
        self.tokens = self.tokens_at(t);
        self.last = t;
    }
}

impl Reservation {
    pub(crate) fn delay_from(&self, t: i128) -> i64 {
        if self.ok {
            since(self.act, t).max(0)
        } else {
            ENDLESS
        }
    }
}

/// A difference of times, which the peer saturates.
pub(crate) fn since(t: i128, earlier: i128) -> i64 {
    let difference = (t - earlier).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(difference).unwrap_or(0)
}

pub(crate) fn tokens_from(duration: i64, limit: f64) -> f64 {
    if limit <= 0.0 {
        return 0.0;
    }
    let seconds = (duration / 1_000_000_000) as f64 + (duration % 1_000_000_000) as f64 / 1e9;
    seconds * limit
}

pub(crate) fn duration_from(tokens: f64, limit: f64) -> i64 {
    let duration = (tokens / limit) * 1e9;
    if limit <= 0.0 || duration > i64::MAX as f64 {
        return ENDLESS;
    }
    integer(duration)
}

/// A double as an integer, as the peer's processor makes it (amd64): cut towards zero, and the
/// smallest of all if it is no number or out of range.
fn integer(value: f64) -> i64 {
    const RANGE: std::ops::Range<f64> = -(i64::MAX as f64)..i64::MAX as f64;
    if RANGE.contains(&value) {
        value as i64
    } else {
        i64::MIN
    }
}

//! A model of redis_rate's two scripts, in the same doubles in the same order; and beside it the theoretical arrival
//! time (TAT) in exact arithmetic, from which ours can take over.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the peer counts in doubles and truncates them"
)]

use super::kept::Kept;

/// The recorded times count from here, in Unix seconds; the peer's from the start of 2017.
const BASE: u64 = 1_700_000_000 - 1_483_228_800;

/// One key of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    rate: i128,
    emission: Span,
    tolerance: Span,
    kept: Kept<Span>,
    /// The exact TAT that was held when the key was last deleted as expired.
    dropped: Option<i128>,
}

/// A time or a span of time: in seconds as the peer's double, and exactly, as nanoseconds times
/// the rate, in which one token is the period.
#[derive(Clone, Copy, Debug)]
struct Span {
    seconds: f64,
    exact: i128,
}

/// A script's answer, as the peer's client returns it: durations in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: i64,
    pub(crate) reset_after: i64,
    /// What is left of the key's life afterwards, in milliseconds.
    pub(crate) pttl: i64,
}

impl Key {
    pub(crate) fn new(rate: u64, burst: u64, period_s: f64) -> Self {
        let emission = Span {
            seconds: period_s / rate as f64,
            exact: (period_s * 1e9).round() as i128,
        };
        Self {
            rate: i128::from(rate),
            emission,
            tolerance: emission.times(burst),
            kept: Kept::nothing(),
            dropped: None,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.kept.delete();
        self.dropped = None;
    }

    pub(crate) fn allow(&mut self, now_us: u64, n: u64) -> Answer {
        let (now, tat) = (self.time(now_us), self.tat(now_us));
        let cost = self.emission.times(n);
        let next = tat.plus(cost);
        let free = now.seconds - (next.seconds - self.tolerance.seconds);
        let remaining = free / self.emission.seconds;
        if remaining < 0.0 {
            return self.refused(now_us, tat, -free);
        }
        self.passed(now_us, next, n as f64, remaining)
    }

    pub(crate) fn allow_at_most(&mut self, now_us: u64, n: u64) -> Answer {
        let (now, tat) = (self.time(now_us), self.tat(now_us));
        let free = now.seconds - (tat.seconds - self.tolerance.seconds);
        let have = free / self.emission.seconds;
        if have < 1.0 {
            return self.refused(now_us, tat, self.emission.seconds - free);
        }
        if have >= n as f64 {
            let next = tat.plus(self.emission.times(n));
            return self.passed(now_us, next, n as f64, have - n as f64);
        }
        // What is there is taken with its fraction, and reported without.
        let next = Span {
            seconds: tat.seconds + self.emission.seconds * have,
            exact: now.exact + self.tolerance.exact,
        };
        self.passed(now_us, next, have, 0.0)
    }

    /// What is free by exact arithmetic, as (amount, the amount that is one token).
    pub(crate) fn exactly_free(&mut self, now_us: u64) -> (i128, i128) {
        let owed = self.tat(now_us).exact - self.time(now_us).exact;
        (self.tolerance.exact - owed, self.emission.exact)
    }

    /// What the key holds: a time at or before its TAT and `now`, and what is owed then, as (amount,
    /// the amount that is one token). None without a key.
    pub(crate) fn held(&mut self, now_us: u64) -> Option<(u64, (u128, u128))> {
        let tat = self.kept.get(now_us)?.exact;
        let micros = tat.div_euclid(1_000 * self.rate);
        let as_of = now_us.min(u64::try_from(micros).unwrap_or(0));
        let owed = tat - self.time(as_of).exact;
        let token = self.emission.exact;
        Some((as_of, (owed.unsigned_abs(), token.unsigned_abs())))
    }

    /// Whether the key was deleted as expired and then time went back to before what it held.
    /// Asked once: after that whoever follows the peer has forgotten it too.
    pub(crate) fn has_forgotten(&mut self, now_us: u64) -> bool {
        self.delete_expired(now_us);
        let now = self.time(now_us).exact;
        self.dropped.take_if(|tat| *tat > now).is_some()
    }

    fn delete_expired(&mut self, now_us: u64) {
        if let Some(tat) = self.kept.delete_expired(now_us) {
            self.dropped = Some(tat.exact);
        }
    }

    fn time(&self, now_us: u64) -> Span {
        let (seconds, micros) = (BASE + now_us / 1_000_000, now_us % 1_000_000);
        Span {
            seconds: seconds as f64 + micros as f64 / 1e6,
            exact: i128::from(now_us) * 1_000 * self.rate,
        }
    }

    fn tat(&mut self, now_us: u64) -> Span {
        self.delete_expired(now_us);
        let now = self.time(now_us);
        self.kept.get(now_us).map_or(now, |tat| Span {
            seconds: tat.seconds.max(now.seconds),
            exact: tat.exact.max(now.exact),
        })
    }

    fn refused(&mut self, now_us: u64, tat: Span, retry_after: f64) -> Answer {
        let now = self.time(now_us);
        Answer {
            allowed: 0,
            remaining: 0,
            retry_after: told(retry_after),
            reset_after: told(tat.seconds - now.seconds),
            pttl: self.kept.pttl(now_us),
        }
    }

    fn passed(&mut self, now_us: u64, tat: Span, allowed: f64, remaining: f64) -> Answer {
        let reset_after = tat.seconds - self.time(now_us).seconds;
        if reset_after > 0.0 {
            self.kept.set(now_us, tat, reset_after.ceil() as u64);
            self.dropped = None;
        }
        Answer {
            allowed: allowed as u64,
            remaining: remaining as u64,
            retry_after: -1,
            reset_after: told(reset_after),
            pttl: self.kept.pttl(now_us),
        }
    }
}

impl Span {
    fn times(self, n: u64) -> Self {
        Self {
            seconds: self.seconds * n as f64,
            exact: self.exact * i128::from(n),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            exact: self.exact + other.exact,
        }
    }
}

/// Seconds as they reach the peer's user: written with 14 digits, read again, and cut to whole
/// nanoseconds.
fn told(seconds: f64) -> i64 {
    let read: f64 = format!("{seconds:.13e}").parse().unwrap_or(f64::NAN);
    (read * 1e9) as i64
}

//! The exact form: integer units in which a tick drains and a token costs a whole number.
//!
//! One nanosecond drains `drain` units and one token costs `price` units, `count` and `period`
//! reduced by their gcd, so nothing is ever rounded while time passes and nothing can drift.
//! Token bucket and leaky bucket are two views of this one debt.

use core::fmt;
use core::time::Duration;

use crate::wide::{div, div_ceil, mul, mul_div_ceil};
use crate::{LimitError, Rate, Timestamp};

/// How much is owed, and when that was true. The default owes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Units that have not drained yet.
    pub(crate) debt: u128,
    /// The time of that debt; never moves back.
    pub(crate) as_of: Timestamp,
}

impl Level {
    /// The level that owed `debt` units at `as_of`; a limit says what a unit is with
    /// `units_per_token`.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LeakyBucket, Level, Rate, Timestamp};
    ///
    /// let limit = LeakyBucket::new(Rate::per_second(10))?;
    /// let kept = Level::from_parts(3 * limit.units_per_token(), Timestamp::from_secs(1));
    /// assert_eq!(limit.level(&kept, Timestamp::from_secs(1)), 3.0);
    /// assert_eq!(kept.parts(), (3 * limit.units_per_token(), Timestamp::from_secs(1)));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn from_parts(debt: u128, as_of: Timestamp) -> Self {
        Self { debt, as_of }
    }

    /// The units owed, and when that was true: what [`from_parts`](Self::from_parts) takes.
    pub const fn parts(&self) -> (u128, Timestamp) {
        (self.debt, self.as_of)
    }
}

/// A rate compiled to whole units.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units {
    pub(crate) rate: Rate,
    /// Units that one nanosecond drains: 0 for a rate of zero.
    pub(crate) drain: u128,
    /// Units that one token costs.
    pub(crate) price: u128,
    /// Units that may be owed when a request passes: burst × price.
    pub(crate) capacity: u128,
}

/// All of it follows from the rate.
impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)
    }
}

/// A token is at least this many units, so that a live rate change, the one place that rounds,
/// loses less than a billionth of a token.
const LEAST_PRICE: u128 = 1 << 32;

/// Debt beyond the capacity comes from reservations; both together stay far below 2^128.
const LARGEST_CAPACITY: u128 = 1 << 126;

const SLOWEST_NANOS_PER_TOKEN: u128 = 1_000_000_000_000_000 * 1_000_000_000;
const FASTEST_TOKENS_PER_NANO: u128 = 30;

/// Refuses what lies outside 10⁻¹⁵ to 3·10¹⁰ per second.
pub(crate) fn check_range(rate: Rate) -> Result<(), LimitError> {
    let Some((count, period)) = rate.finite() else {
        return Ok(());
    };
    if period == 0 {
        return Err(LimitError::NoPeriod { rate });
    }
    let count = u128::from(count);
    let too_slow = count
        .checked_mul(SLOWEST_NANOS_PER_TOKEN)
        .is_some_and(|longest| period > longest);
    let too_fast = count > period.saturating_mul(FASTEST_TOKENS_PER_NANO);
    if too_slow || too_fast {
        return Err(LimitError::OutOfRange { rate });
    }
    Ok(())
}

impl Units {
    pub(crate) fn new(rate: Rate) -> Result<Self, LimitError> {
        check_range(rate)?;
        let (drain, price) = match rate.finite() {
            None => (0, LEAST_PRICE),
            Some((count, period)) => {
                let shared = gcd(u128::from(count), period);
                let (drain, price) = (u128::from(count) / shared, period / shared);
                let scale = LEAST_PRICE.div_ceil(price).next_power_of_two();
                (drain * scale, price * scale)
            }
        };
        let capacity = price
            .checked_mul(u128::from(rate.burst_size()))
            .filter(|capacity| *capacity <= LARGEST_CAPACITY)
            .ok_or_else(|| LimitError::BurstTooLarge {
                rate,
                largest_burst: u64::try_from(LARGEST_CAPACITY / price).unwrap_or(u64::MAX),
            })?;
        Ok(Self {
            rate,
            drain,
            price,
            capacity,
        })
    }

    /// What is still owed at `now`; a time before the level's own credits nothing.
    #[inline]
    pub(crate) fn debt_at(&self, level: &Level, now: Timestamp) -> u128 {
        let elapsed = now.nanos_since(level.as_of);
        if self.rate.is_unlimited() && elapsed > 0 {
            return 0;
        }
        // A product beyond 128 bits is beyond any debt.
        let drained = mul(self.drain, elapsed);
        level.debt.saturating_sub(drained.unwrap_or(u128::MAX))
    }

    /// The level at `now`, with time moved forward only.
    #[inline]
    pub(crate) fn settle(&self, level: &Level, now: Timestamp) -> Level {
        Level {
            debt: self.debt_at(level, now),
            as_of: level.as_of.max(now),
        }
    }

    /// When the debt plus this cost first fits the capacity.
    #[inline]
    pub(crate) fn earliest(&self, level: &Level, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.rate.is_unlimited() {
            return Some(now);
        }
        if cost > self.rate.burst_size() {
            return None;
        }
        let owed = self.debt_at(level, now).checked_add(self.units(cost)?)?;
        let over = owed.saturating_sub(self.capacity);
        if over == 0 {
            return Some(now);
        }
        self.after_draining(level.as_of.max(now), over)
    }

    /// The same, if the debt goes on to drain under `old`, in whose units the level is kept.
    pub(crate) fn earliest_while(
        &self,
        level: &Level,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let left = self.rate.burst_size().checked_sub(cost)?;
        let over = old.debt_at(level, now).saturating_sub(old.units(left)?);
        if over == 0 {
            return Some(now);
        }
        old.after_draining(level.as_of.max(now), over)
    }

    /// Carries a level over from `old`: what was spent stays spent, in tokens.
    pub(crate) fn keep_spent(&self, level: &mut Level, old: &Self, now: Timestamp) {
        *level = old.settle(level, now);
        level.debt = self.rescale_up(level.debt, old);
    }

    /// Whether this cost fits the capacity at `now`: `earliest` without its division.
    #[inline]
    pub(crate) fn has(&self, level: &Level, now: Timestamp, cost: u64) -> bool {
        if self.rate.is_unlimited() {
            return true;
        }
        // A product or a sum that overflows is beyond any capacity.
        self.units(cost)
            .and_then(|units| units.checked_add(self.debt_at(level, now)))
            .is_some_and(|owed| owed <= self.capacity)
    }

    /// When this cost first fits the capacity together with the whole tokens that `other` has then and
    /// one more; `None` if `other` refills as fast, so that waiting gains nothing.
    ///
    /// While the other has `k − 1` whole tokens, `cost + k` are needed. They are there at
    /// `T(k) = (price · (cost + k) − spare) / drain`, and the other has one more from
    /// `(its price · k − its spare) / its drain` on. The first `k` for which the former comes before the
    /// latter is the solution of a linear inequality, but for rounding to whole nanoseconds, which a
    /// few steps make good. With numbers that are too large for that, it is a time not after the right
    /// one.
    pub(crate) fn earliest_beside(
        &self,
        level: &Level,
        now: Timestamp,
        cost: u64,
        other: &Self,
        others: &Level,
    ) -> Option<Timestamp> {
        let spare = self.capacity.checked_sub(self.debt_at(level, now));
        let theirs = other.capacity.saturating_sub(other.debt_at(others, now));
        let tokens = |units| u64::try_from(div(units, other.price)).unwrap_or(u64::MAX);
        let count = tokens(theirs).saturating_add(1);
        let at_once = || self.earliest(level, now, cost.saturating_add(count));
        let Some(spare) = spare.filter(|_| level.as_of.max(others.as_of) <= now) else {
            return at_once();
        };
        if self.drain == 0 {
            return at_once();
        }
        let (Some(faster), Some(slower)) = (
            self.drain.checked_mul(other.price),
            other.drain.checked_mul(self.price),
        ) else {
            return at_once();
        };
        let behind = || {
            let needed = slower.checked_mul(u128::from(cost))?;
            let needed = needed.checked_add(self.drain.checked_mul(theirs)?)?;
            let Some(missing) = needed.checked_sub(other.drain.checked_mul(spare)?) else {
                return Some(0);
            };
            u64::try_from(div(missing, faster - slower) + 1).ok()
        };
        // If the other is as fast, it is before its next token or not at all.
        let gains = faster > slower;
        let Some(least) = (if gains { behind() } else { Some(0) }) else {
            return at_once();
        };
        let mut count = count.max(least);
        let mut nanos = 0;
        for _ in 0..8 {
            let needed = self.units(cost.checked_add(count)?)?;
            let over = needed.saturating_sub(spare);
            nanos = u64::try_from(div_ceil(over, self.drain)).ok()?;
            let then = theirs.saturating_add(mul(other.drain, nanos)?);
            let then = tokens(then).saturating_add(1);
            if then <= count {
                break;
            }
            if !gains {
                return None;
            }
            count = then;
        }
        now.as_nanos().checked_add(nanos).map(Timestamp::from_nanos)
    }

    /// Adds a cost to the debt. `earliest` has refused what would overflow.
    #[inline]
    pub(crate) fn charge(&self, level: &mut Level, now: Timestamp, cost: u64) {
        if self.rate.is_unlimited() {
            return;
        }
        *level = self.settle(level, now);
        level.debt = level.debt.saturating_add(self.units(cost).unwrap_or(0));
    }

    /// Owes at least this many tokens at `now`.
    pub(crate) fn keep_out(&self, level: &mut Level, now: Timestamp, out: u64) {
        if self.rate.is_unlimited() {
            return;
        }
        *level = self.settle(level, now);
        let owed = self.units(out).unwrap_or(u128::MAX);
        level.debt = level.debt.max(owed);
    }

    /// Takes tokens off the debt, as far as there is any.
    pub(crate) fn gift(&self, level: &mut Level, now: Timestamp, tokens: u64) {
        *level = self.settle(level, now);
        let units = self.units(tokens).unwrap_or(u128::MAX);
        level.debt = level.debt.saturating_sub(units);
    }

    #[inline]
    pub(crate) fn remaining(&self, level: &Level, now: Timestamp) -> u64 {
        if self.rate.is_unlimited() {
            return u64::MAX;
        }
        let spare = self.capacity.saturating_sub(self.debt_at(level, now));
        u64::try_from(div(spare, self.price)).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(crate) fn idle_at(&self, level: &Level) -> Timestamp {
        if self.rate.is_unlimited() || level.debt == 0 {
            return level.as_of;
        }
        self.after_draining(level.as_of, level.debt)
            .unwrap_or(Timestamp::MAX)
    }

    /// The level on a clock that shows `to` when this one shows `from`.
    pub(crate) fn shift(&self, level: &mut Level, from: Timestamp, to: Timestamp) {
        let here = self.settle(level, from);
        *level = match here.debt {
            0 => Level::default(),
            debt => Level {
                debt,
                as_of: here.as_of.shifted(from, to),
            },
        };
    }

    /// How long a full debt takes to drain, if it drains.
    pub(crate) fn lasts(&self) -> Duration {
        match self.drain {
            0 => Duration::ZERO,
            drain => {
                let nanos = u64::try_from(div_ceil(self.capacity, drain));
                Duration::from_nanos(nanos.unwrap_or(u64::MAX))
            }
        }
    }

    pub(crate) fn empty(&self, now: Timestamp) -> Level {
        Level {
            debt: self.capacity,
            as_of: now,
        }
    }

    /// Units for this many tokens; `None` when that overflows.
    #[inline]
    pub(crate) fn units(&self, tokens: u64) -> Option<u128> {
        mul(self.price, tokens)
    }

    /// Tokens in the bucket at `now`, negative in debt, for people to read.
    #[expect(
        clippy::cast_precision_loss,
        reason = "for people to read, never for a decision"
    )]
    pub(crate) fn tokens(&self, level: &Level, now: Timestamp) -> f64 {
        let debt = self.debt_at(level, now);
        let price = self.price as f64;
        if debt > self.capacity {
            -((debt - self.capacity) as f64 / price)
        } else {
            let spare = self.capacity - debt;
            (spare / self.price) as f64 + (spare % self.price) as f64 / price
        }
    }

    /// The first whole nanosecond from `start` at which `units` have drained.
    #[inline]
    fn after_draining(&self, start: Timestamp, units: u128) -> Option<Timestamp> {
        if self.drain == 0 {
            return None;
        }
        let nanos = u64::try_from(div_ceil(units, self.drain)).ok()?;
        start
            .as_nanos()
            .checked_add(nanos)
            .map(Timestamp::from_nanos)
    }

    /// Units of `old`, rounded up, as units of this.
    pub(crate) fn rescale_up(&self, units: u128, old: &Self) -> u128 {
        mul_div_ceil(units, self.price, old.price).min(LARGEST_CAPACITY)
    }

    /// Units of `old`, rounded down, as units of this.
    pub(crate) fn rescale_down(&self, units: u128, old_price: u128) -> u128 {
        let up = mul_div_ceil(units, self.price, old_price);
        // Round trip: if coming back gives more than we had, the division was not exact.
        let exact = mul_div_ceil(up, old_price, self.price) <= units;
        if exact { up } else { up - 1 }
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

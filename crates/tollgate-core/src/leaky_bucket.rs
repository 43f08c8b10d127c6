//! Leaky bucket as a meter: the level leaks at the rate, and a request that would overflow it is denied.

use core::fmt;
use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::exact_units::{BucketLevel, LARGEST_CAPACITY, compile_units};
use crate::wide_math::{div, div_ceil, mul, mul_div_ceil};
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// A bucket that fills by each admitted cost and leaks at the rate; its capacity is the burst.
///
/// It admits the same sequences as a token bucket that starts full. It uses the exact form of arithmetic.
///
/// ```
/// use tollgate_core::{Arithmetic, LeakyBucket, Rate, Timestamp};
///
/// // 10/s, capacity 20: ten at 0 s, ten at 0.5 s and ten at 1 s all pass.
/// let limit = LeakyBucket::new(Rate::per_second(10).burst(20))?;
/// let mut level = Default::default();
/// for millis in [0, 500, 1000] {
///     assert!(limit.decide(&mut level, Timestamp::from_millis(millis), 10).is_allowed());
/// }
/// assert_eq!(limit.level(&level, Timestamp::from_secs(1)), 20.0);
/// assert!(!limit.decide(&mut level, Timestamp::from_secs(1), 1).is_allowed());
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    pub(crate) rate: Rate,
    /// Units that one nanosecond drains: 0 for a rate of zero.
    pub(crate) drain: u128,
    /// Units that one token costs.
    pub(crate) price: u128,
    /// Units that may be owed when a request passes: burst × price.
    pub(crate) capacity: u128,
}

/// The rate determines all fields.
impl fmt::Debug for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeakyBucket({:?})", self.rate)
    }
}

impl LeakyBucket {
    /// The units of a [`BucketLevel`]'s debt that one token takes under this limit.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LeakyBucket, BucketLevel, Rate, Timestamp};
    ///
    /// let limit = LeakyBucket::new(Rate::per_second(10))?;
    /// let mut level = BucketLevel::default();
    /// limit.decide(&mut level, Timestamp::ZERO, 3);
    /// assert_eq!(level.debt, 3 * limit.units_per_token());
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn units_per_token(&self) -> u128 {
        self.price
    }

    /// The level of the bucket at `now`, in tokens: for display, never for decisions.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    pub fn level(&self, level: &BucketLevel, now: Timestamp) -> f64 {
        let (debt, price) = (self.debt_at(level, now), self.price);
        // Divided in two parts, because a debt of up to 128 bits would lose its fraction as one `f64`.
        (debt / price) as f64 + (debt % price) as f64 / price as f64
    }

    /// The debt at `now`. A time before the time of the level drains nothing.
    #[inline]
    pub(crate) fn debt_at(&self, level: &BucketLevel, now: Timestamp) -> u128 {
        let elapsed = now.nanos_since(level.as_of);
        // Debt from before a switch to unlimited is gone at the next nanosecond.
        if self.rate.is_unlimited() && elapsed > 0 {
            return 0;
        }
        // A product beyond 128 bits exceeds any debt.
        let drained = mul(self.drain, elapsed);
        level.debt.saturating_sub(drained.unwrap_or(u128::MAX))
    }

    /// The level at `now`. Time only moves forward.
    #[inline]
    pub(crate) fn drain_to(&self, level: &BucketLevel, now: Timestamp) -> BucketLevel {
        BucketLevel {
            debt: self.debt_at(level, now),
            as_of: level.as_of.max(now),
        }
    }

    /// The earliest time at which the debt plus this cost fits the capacity; it works for a rate of zero, too.
    #[inline]
    pub(crate) fn earliest_fit(
        &self,
        level: &BucketLevel,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        if self.rate.is_unlimited() {
            return Some(now);
        }
        if cost > self.rate.burst_size() {
            return None;
        }
        let owed = self
            .debt_at(level, now)
            .checked_add(self.tokens_to_units(cost)?)?;
        let over = owed.saturating_sub(self.capacity);
        if over == 0 {
            return Some(now);
        }
        self.time_when_drained(level.as_of.max(now), over)
    }

    /// The whole tokens that fit now; it works for a rate of zero, too.
    #[inline]
    pub(crate) fn free_tokens(&self, level: &BucketLevel, now: Timestamp) -> u64 {
        if self.rate.is_unlimited() {
            return u64::MAX;
        }
        let spare = self.capacity.saturating_sub(self.debt_at(level, now));
        u64::try_from(div(spare, self.price)).unwrap_or(u64::MAX)
    }

    /// Adds a cost to the debt. `earliest` has already denied a cost that would overflow.
    #[inline]
    pub(crate) fn add_debt(&self, level: &mut BucketLevel, now: Timestamp, cost: u64) {
        if self.rate.is_unlimited() {
            return;
        }
        *level = self.drain_to(level, now);
        level.debt = level
            .debt
            .saturating_add(self.tokens_to_units(cost).unwrap_or(0));
    }

    /// Reduces the debt by these units, at most to zero.
    pub(crate) fn reduce_debt(&self, level: &mut BucketLevel, now: Timestamp, units: u128) {
        *level = self.drain_to(level, now);
        level.debt = level.debt.saturating_sub(units);
    }

    /// This many tokens in units; `None` on overflow.
    #[inline]
    pub(crate) fn tokens_to_units(&self, tokens: u64) -> Option<u128> {
        mul(self.price, tokens)
    }

    /// The first whole nanosecond from `start` at which `units` have drained.
    #[inline]
    fn time_when_drained(&self, start: Timestamp, units: u128) -> Option<Timestamp> {
        if self.drain == 0 {
            return None;
        }
        // Rounded up: at the nanosecond before, a part of the units would remain.
        let nanos = u64::try_from(div_ceil(units, self.drain)).ok()?;
        let end = start.as_nanos().checked_add(nanos)?;
        Some(Timestamp::from_nanos(end))
    }

    /// Converts units of `old` to units of this limit, rounded up.
    pub(crate) fn rescale_up(&self, units: u128, old: &Self) -> u128 {
        mul_div_ceil(units, self.price, old.price).min(LARGEST_CAPACITY)
    }

    /// Converts units at an old price to units of this limit, rounded down.
    pub(crate) fn rescale_down(&self, units: u128, old_price: u128) -> u128 {
        let up = mul_div_ceil(units, self.price, old_price);
        // If the way back gives more than `units`, the division wasn't exact, so `up` was rounded up.
        let exact = mul_div_ceil(up, old_price, self.price) <= units;
        if exact { up } else { up - 1 }
    }

    /// The data that a charge under this limit needs to be undone.
    const fn undo_data(&self) -> UndoData {
        UndoData::Debt {
            drain: self.drain,
            price: self.price,
            last_act: Timestamp::ZERO,
        }
    }
}

impl sealed::Sealed for LeakyBucket {}

impl Arithmetic for LeakyBucket {
    type State = BucketLevel;
    type Floor = ();

    fn new(rate: Rate) -> Result<Self, LimitError> {
        let [drain, price, capacity] = compile_units(rate)?;
        Ok(Self {
            rate,
            drain,
            price,
            capacity,
        })
    }

    #[inline]
    fn rate(&self) -> Rate {
        self.rate
    }

    fn earliest(&self, level: &BucketLevel, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.rate.is_zero() && cost > 0 {
            return None;
        }
        self.earliest_fit(level, now, cost)
    }

    fn charge(&self, level: &mut BucketLevel, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        self.add_debt(level, now, cost);
        let mark = self.undo_data();
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    fn remaining(&self, level: &BucketLevel, now: Timestamp) -> u64 {
        if self.rate.is_zero() {
            return 0;
        }
        self.free_tokens(level, now)
    }

    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    fn tokens(&self, level: &BucketLevel, now: Timestamp) -> f64 {
        self.limit() as f64 - self.level(level, now)
    }

    #[inline]
    fn idle_at(&self, level: &BucketLevel) -> Timestamp {
        if self.rate.is_unlimited() || level.debt == 0 {
            return level.as_of;
        }
        self.time_when_drained(level.as_of, level.debt)
            .unwrap_or(Timestamp::MAX)
    }

    /// Removes the part of a charge that has not leaked yet, if no later charge was added.
    fn cancel(
        &self,
        level: &mut BucketLevel,
        now: Timestamp,
        charge: &Charge,
        since: LaterCharges,
    ) {
        let is_last = since == LaterCharges::Nothing && charge.undo_data == self.undo_data();
        if is_last && !self.rate.is_unlimited() {
            self.reduce_debt(level, now, self.tokens_to_units(charge.cost).unwrap_or(0));
        }
    }

    fn keep_outstanding(&self, level: &mut BucketLevel, now: Timestamp, out: u64) {
        if self.rate.is_unlimited() {
            return;
        }
        *level = self.drain_to(level, now);
        let owed = self.tokens_to_units(out).unwrap_or(u128::MAX);
        level.debt = level.debt.max(owed);
    }

    fn charge_overrun(&self, level: &mut BucketLevel, now: Timestamp, tokens: u64) {
        self.add_debt(level, now, tokens.min(self.limit()));
    }

    fn refund(&self, level: &mut BucketLevel, now: Timestamp, tokens: u64) {
        self.reduce_debt(
            level,
            now,
            self.tokens_to_units(tokens).unwrap_or(u128::MAX),
        );
    }

    /// Keeps the level in tokens.
    fn migrate_state(&self, level: &mut BucketLevel, old: &Self, now: Timestamp) {
        *level = old.drain_to(level, now);
        level.debt = self.rescale_up(level.debt, old);
    }

    /// A rate of zero counts tokens although nothing drains.
    fn is_counting(&self) -> bool {
        !self.rate.is_unlimited()
    }

    fn earliest_before_migration(
        &self,
        level: &BucketLevel,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let left = self.rate.burst_size().checked_sub(cost)?;
        let over = old
            .debt_at(level, now)
            .saturating_sub(old.tokens_to_units(left)?);
        if over == 0 {
            return Some(now);
        }
        old.time_when_drained(level.as_of.max(now), over)
    }

    fn move_to_clock(&self, level: &mut BucketLevel, from: Timestamp, to: Timestamp) {
        let here = self.drain_to(level, from);
        *level = match here.debt {
            0 => BucketLevel::default(),
            debt => BucketLevel {
                debt,
                as_of: here.as_of.shifted(from, to),
            },
        };
    }

    /// How long a full bucket takes to drain, if it drains.
    fn state_lifetime(&self) -> Duration {
        let full = self.time_when_drained(Timestamp::ZERO, self.capacity);
        match self.drain {
            0 => Duration::ZERO,
            _ => full.unwrap_or(Timestamp::MAX) - Timestamp::ZERO,
        }
    }

    fn empty(&self, now: Timestamp) -> BucketLevel {
        BucketLevel {
            debt: self.capacity,
            as_of: now,
        }
    }
}

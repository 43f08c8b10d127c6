//! Leaky bucket as a meter: a level that leaks at the rate; what would overflow is refused.

use core::time::Duration;

use crate::arithmetic::{Charge, Mark, Since, sealed};
use crate::exact::{Level, Units};
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// A bucket that fills by each admitted cost and leaks at the rate; its capacity is the burst.
///
/// It admits the same sequences as a token bucket that starts full. Exact form of arithmetic.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    units: Units,
}

impl LeakyBucket {
    /// How many units of a [`Level`]'s debt one token is, under this limit.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LeakyBucket, Level, Rate, Timestamp};
    ///
    /// let limit = LeakyBucket::new(Rate::per_second(10))?;
    /// let mut level = Level::default();
    /// limit.decide(&mut level, Timestamp::ZERO, 3);
    /// assert_eq!(level.parts().0, 3 * limit.units_per_token());
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn units_per_token(&self) -> u128 {
        self.units.price
    }

    /// How full the bucket is at `now`, in tokens. For people to read; nothing decides by it.
    #[expect(
        clippy::cast_precision_loss,
        reason = "for people to read, never for a decision"
    )]
    pub fn level(&self, level: &Level, now: Timestamp) -> f64 {
        let (debt, price) = (self.units.debt_at(level, now), self.units.price);
        (debt / price) as f64 + (debt % price) as f64 / price as f64
    }
}

impl sealed::Sealed for LeakyBucket {}

impl Arithmetic for LeakyBucket {
    type State = Level;
    type Floor = ();

    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            units: Units::new(rate)?,
        })
    }

    fn rate(&self) -> Rate {
        self.units.rate
    }

    fn earliest(&self, level: &Level, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.units.rate.is_zero() && cost > 0 {
            return None;
        }
        self.units.earliest(level, now, cost)
    }

    fn charge(&self, level: &mut Level, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        self.units.charge(level, now, cost);
        let mark = Mark::Debt {
            drain: self.units.drain,
            price: self.units.price,
        };
        Charge { at, cost, mark }
    }

    fn remaining(&self, level: &Level, now: Timestamp) -> u64 {
        if self.units.rate.is_zero() {
            return 0;
        }
        self.units.remaining(level, now)
    }

    fn idle_at(&self, level: &Level) -> Timestamp {
        self.units.idle_at(level)
    }

    /// Takes out again what has not leaked yet, while nothing was poured on top.
    fn give_back(&self, level: &mut Level, now: Timestamp, charge: &Charge, since: Since) {
        let unchanged = Mark::Debt {
            drain: self.units.drain,
            price: self.units.price,
        };
        if since == Since::Nothing && charge.mark == unchanged && !self.units.rate.is_unlimited() {
            *level = self.units.settle(level, now);
            let taken = self.units.units(charge.cost).unwrap_or(0);
            level.debt = level.debt.saturating_sub(taken);
        }
    }

    fn keep_out(&self, level: &mut Level, now: Timestamp, out: u64) {
        self.units.keep_out(level, now, out);
    }

    fn overdraw(&self, level: &mut Level, now: Timestamp, tokens: u64) {
        let cost = tokens.min(self.limit());
        self.units.charge(level, now, cost);
    }

    fn gift(&self, level: &mut Level, now: Timestamp, tokens: u64) {
        self.units.gift(level, now, tokens);
    }

    /// Keeps the level: what was poured in stays, in tokens.
    fn adopt(&self, level: &mut Level, old: &Self, now: Timestamp) {
        self.units.keep_spent(level, &old.units, now);
    }

    /// Where nothing drains, tokens are counted all the same.
    fn counts(&self) -> bool {
        !self.units.rate.is_unlimited()
    }

    fn earliest_while(
        &self,
        level: &Level,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        self.units.earliest_while(level, &old.units, now, cost)
    }

    fn shift(&self, level: &mut Level, from: Timestamp, to: Timestamp) {
        self.units.shift(level, from, to);
    }

    fn lasts(&self) -> Duration {
        self.units.lasts()
    }

    fn empty(&self, now: Timestamp) -> Level {
        self.units.empty(now)
    }
}

//! Token bucket with debt: exact, reservable beyond what is there, cancellable out of order.

use core::time::Duration;

use crate::algorithm::{Charge, Mark, Since, sealed};
use crate::exact::{Level, Units};
use crate::{Algorithm, LimitError, Rate, Timestamp};

/// A bucket of `burst` tokens that refills at the rate. The exact form of arithmetic.
///
/// It takes rates from 10⁻¹⁵/s to 3·10¹⁰/s. A rate of zero spends the stored tokens once and
/// never refills. Of all algorithms it alone can give back part of a reservation that others
/// were built on, because it remembers when the latest one acts.
///
/// ```
/// use tollgate_core::{Algorithm, Rate, Timestamp, TokenBucket};
///
/// let limit = TokenBucket::new(Rate::per_second(10).burst(5))?;
/// let mut bucket = Default::default();
/// let now = Timestamp::ZERO;
/// for _ in 0..5 {
///     assert!(limit.decide(&mut bucket, now, 1).is_allowed());
/// }
/// assert!(!limit.decide(&mut bucket, now, 1).is_allowed());
/// // Reserve beyond what is there: the bucket goes into debt.
/// let at = limit.earliest(&bucket, now, 2).expect("2 is within the burst");
/// limit.charge(&mut bucket, now, at, 2);
/// assert_eq!(at, Timestamp::from_millis(200));
/// assert_eq!(limit.tokens(&bucket, now), -2.0);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    units: Units,
}

/// The state of a [`TokenBucket`]: what is owed, and when the latest reservation acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    level: Level,
    last_act: Timestamp,
}

impl TokenBucket {
    /// Tokens there at `now`, negative in debt. For people to read; nothing decides by it.
    pub fn tokens(&self, bucket: &Bucket, now: Timestamp) -> f64 {
        self.units.tokens(&bucket.level, now)
    }

    /// How many tokens became free again by the time `later` of those that act at `earlier`,
    /// at the pace in force when they were taken.
    fn drained(drain: u128, earlier: Timestamp, later: Timestamp) -> u128 {
        drain.saturating_mul(u128::from(later.nanos_since(earlier)))
    }
}

impl sealed::Sealed for TokenBucket {}

impl Algorithm for TokenBucket {
    type State = Bucket;
    const BY_DEBT: bool = true;

    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            units: Units::new(rate)?,
        })
    }

    fn rate(&self) -> Rate {
        self.units.rate
    }

    fn earliest(&self, bucket: &Bucket, now: Timestamp, cost: u64) -> Option<Timestamp> {
        self.units.earliest(&bucket.level, now, cost)
    }

    fn charge(&self, bucket: &mut Bucket, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        let mark = if self.units.rate.is_unlimited() {
            Mark::Nothing
        } else {
            self.units.charge(&mut bucket.level, now, cost);
            bucket.last_act = at;
            Mark::Debt {
                drain: self.units.drain,
                price: self.units.price,
            }
        };
        Charge { at, cost, mark }
    }

    fn remaining(&self, bucket: &Bucket, now: Timestamp) -> u64 {
        self.units.remaining(&bucket.level, now)
    }

    fn idle_at(&self, bucket: &Bucket) -> Timestamp {
        self.units.idle_at(&bucket.level)
    }

    /// Gives back the tokens less those that later reservations were promised on top of this one:
    /// what drains between its act and the latest act. Nothing once its time has passed.
    fn give_back(&self, bucket: &mut Bucket, now: Timestamp, charge: &Charge, _since: Since) {
        let Mark::Debt { drain, price } = charge.mark else {
            return;
        };
        if self.units.rate.is_unlimited() || charge.at < now {
            return;
        }
        let taken = price.saturating_mul(u128::from(charge.cost));
        let promised = Self::drained(drain, charge.at, bucket.last_act);
        let refund = taken.saturating_sub(promised);
        if refund == 0 {
            return;
        }
        let level = self.units.settle(&bucket.level, now);
        let refund = self.units.rescale_down(refund, price);
        bucket.level = Level {
            debt: level.debt.saturating_sub(refund),
            ..level
        };
        if charge.at == bucket.last_act && drain > 0 {
            let length = u64::try_from(taken / drain).unwrap_or(u64::MAX);
            let previous = charge.at.as_nanos().checked_sub(length);
            if let Some(previous) = previous.filter(|at| *at >= now.as_nanos()) {
                bucket.last_act = Timestamp::from_nanos(previous);
            }
        }
    }

    /// Keeps the tokens: a raised burst adds none at once, a lowered one caps them, debt stays.
    fn adopt(&self, bucket: &mut Bucket, old: &Self, now: Timestamp) {
        let level = old.units.settle(&bucket.level, now);
        let (units, old) = (&self.units, &old.units);
        let debt = if level.debt > old.capacity {
            let over = units.rescale_up(level.debt - old.capacity, old);
            units.capacity.saturating_add(over)
        } else {
            let tokens = units.rescale_down(old.capacity - level.debt, old.price);
            units.capacity.saturating_sub(tokens)
        };
        bucket.level = Level { debt, ..level };
    }

    fn empty(&self, now: Timestamp) -> Bucket {
        Bucket {
            level: self.units.empty(now),
            last_act: Timestamp::ZERO,
        }
    }

    fn horizon(&self) -> Duration {
        Duration::MAX
    }
}

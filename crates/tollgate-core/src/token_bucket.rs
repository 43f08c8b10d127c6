//! Token bucket with debt: exact, and reservations can exceed the available tokens and be cancelled out of order.

use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::exact_units::BucketLevel;
use crate::wide_math::{div, div_ceil, mul};
use crate::{Arithmetic, LeakyBucket, LimitError, Rate, Timestamp};

/// A bucket of `burst` tokens that refills at the rate. The exact form of arithmetic.
///
/// It takes rates from 10⁻¹⁵/s to 3·10¹⁰/s. A rate of zero spends the stored tokens once and never refills. It is the
/// only algorithm that can refund a part of a reservation that others rely on, because it stores the act time of the
/// latest reservation.
///
/// ```
/// use tollgate_core::{Arithmetic, Rate, Timestamp, TokenBucket};
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
    /// The same limit as a leaky bucket, which counts the debt.
    debt: LeakyBucket,
}

/// The state of a [`TokenBucket`]: the debt, and the act time of the latest reservation.
///
/// ```
/// use tollgate_core::{Arithmetic, Bucket, BucketLevel, Rate, Timestamp, TokenBucket};
///
/// // Two tokens owed beyond a burst of five.
/// let limit = TokenBucket::new(Rate::per_second(10).burst(5))?;
/// let debt = 7 * limit.units_per_token();
/// let level = BucketLevel { debt, as_of: Timestamp::ZERO };
/// let bucket = Bucket { level, latest_reservation: Timestamp::from_millis(200) };
/// assert_eq!(limit.tokens(&bucket, Timestamp::ZERO), -2.0);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The debt.
    pub level: BucketLevel,
    /// The act time of the latest reservation.
    pub latest_reservation: Timestamp,
}

impl TokenBucket {
    /// The units of a [`BucketLevel`]'s debt that one token takes under this limit.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Bucket, Rate, Timestamp, TokenBucket};
    ///
    /// let limit = TokenBucket::new(Rate::per_second(10))?;
    /// let mut bucket = Bucket::default();
    /// limit.decide(&mut bucket, Timestamp::ZERO, 3);
    /// assert_eq!(bucket.level.debt, 3 * limit.units_per_token());
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn units_per_token(&self) -> u128 {
        self.debt.price
    }

    /// Whether this many tokens are available at `now`.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Bucket, Rate, Timestamp, TokenBucket};
    ///
    /// let limit = TokenBucket::new(Rate::per_second(10))?;
    /// let mut bucket = Bucket::default();
    /// limit.decide(&mut bucket, Timestamp::ZERO, 8);
    /// assert!(limit.has_tokens(&bucket, Timestamp::ZERO, 2));
    /// assert!(!limit.has_tokens(&bucket, Timestamp::ZERO, 3));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[inline]
    pub fn has_tokens(&self, bucket: &Bucket, now: Timestamp, tokens: u64) -> bool {
        if self.debt.rate.is_unlimited() {
            return true;
        }
        // A product or a sum that overflows exceeds any capacity.
        let owed = self.debt.tokens_to_units(tokens);
        owed.and_then(|owed| owed.checked_add(self.debt.debt_at(&bucket.level, now)))
            .is_some_and(|owed| owed <= self.debt.capacity)
    }

    /// The earliest time at which the bucket has this many tokens more than another bucket has then, where a part of a
    /// token of the other bucket counts as one whole. `None` if it doesn't have them and the other bucket refills as
    /// fast, so that waiting gains nothing.
    ///
    /// The result is never after that time. It is before it only where numbers are far beyond 64 bits.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Bucket, Rate, Timestamp, TokenBucket};
    ///
    /// let (fast, slow) = (Rate::per_second(100), Rate::per_second(60).burst(100));
    /// let (fast, slow) = (TokenBucket::new(fast)?, TokenBucket::new(slow)?);
    /// let (now, empty) = (Timestamp::ZERO, |limit: &TokenBucket| limit.empty(Timestamp::ZERO));
    /// // 11 tokens are there after 110 ms, but by then the other has 6 and a part, after 180 ms 10.
    /// let at = fast.earliest_beyond(&empty(&fast), now, 10, &slow, &empty(&slow));
    /// assert_eq!(at, Some(Timestamp::from_millis(260)));
    /// assert_eq!(slow.earliest_beyond(&empty(&slow), now, 10, &fast, &empty(&fast)), None);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    // While the other bucket has `k − 1` whole tokens, this one needs `cost + k`. It has them at
    // `T(k) = (price · (cost + k) − spare) / drain`, and the other bucket has one more token from
    // `(its price · k − its spare) / its drain` on. The first `k` for which the former time is before the latter solves
    // a linear inequality, except for rounding to whole nanoseconds, which a few steps correct. For numbers that are
    // too large, the result is a time not after the right one.
    pub fn earliest_beyond(
        &self,
        bucket: &Bucket,
        now: Timestamp,
        tokens: u64,
        other: &Self,
        beside: &Bucket,
    ) -> Option<Timestamp> {
        let (own, other) = (&self.debt, &other.debt);
        let spare = own.capacity.checked_sub(own.debt_at(&bucket.level, now));
        let theirs = other
            .capacity
            .saturating_sub(other.debt_at(&beside.level, now));
        let whole = |units| u64::try_from(div(units, other.price)).unwrap_or(u64::MAX);
        let count = whole(theirs).saturating_add(1);
        let at_once = || own.earliest_fit(&bucket.level, now, tokens.saturating_add(count));
        let Some(spare) = spare.filter(|_| bucket.level.as_of.max(beside.level.as_of) <= now)
        else {
            return at_once();
        };
        if own.drain == 0 {
            return at_once();
        }
        let (Some(faster), Some(slower)) = (
            own.drain.checked_mul(other.price),
            other.drain.checked_mul(own.price),
        ) else {
            return at_once();
        };
        let behind = || {
            let needed = slower.checked_mul(u128::from(tokens))?;
            let needed = needed.checked_add(own.drain.checked_mul(theirs)?)?;
            let Some(missing) = needed.checked_sub(other.drain.checked_mul(spare)?) else {
                return Some(0);
            };
            u64::try_from(div(missing, faster - slower) + 1).ok()
        };
        // If the other bucket refills as fast, the time is before its next token or never.
        let gains = faster > slower;
        let Some(least) = (if gains { behind() } else { Some(0) }) else {
            return at_once();
        };
        let mut count = count.max(least);
        let mut nanos = 0;
        for _ in 0..8 {
            let needed = own.tokens_to_units(tokens.checked_add(count)?)?;
            let over = needed.saturating_sub(spare);
            nanos = u64::try_from(div_ceil(over, own.drain)).ok()?;
            let then = theirs.saturating_add(mul(other.drain, nanos)?);
            let then = whole(then).saturating_add(1);
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
}

impl sealed::Sealed for TokenBucket {}

impl Arithmetic for TokenBucket {
    type State = Bucket;
    type Floor = ();

    fn new(rate: Rate) -> Result<Self, LimitError> {
        let debt = LeakyBucket::new(rate)?;
        Ok(Self { debt })
    }

    #[inline]
    fn rate(&self) -> Rate {
        self.debt.rate
    }

    #[inline]
    fn earliest(&self, bucket: &Bucket, now: Timestamp, cost: u64) -> Option<Timestamp> {
        self.debt.earliest_fit(&bucket.level, now, cost)
    }

    #[inline]
    fn charge(&self, bucket: &mut Bucket, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        let mark = if self.debt.rate.is_unlimited() {
            UndoData::Nothing
        } else {
            let last_act = bucket.latest_reservation;
            // After a partial refund, a new reservation may act before one that was made earlier.
            bucket.latest_reservation = last_act.max(at);
            self.debt.add_debt(&mut bucket.level, now, cost);
            UndoData::Debt {
                drain: self.debt.drain,
                price: self.debt.price,
                last_act,
            }
        };
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    #[inline]
    fn remaining(&self, bucket: &Bucket, now: Timestamp) -> u64 {
        self.debt.free_tokens(&bucket.level, now)
    }

    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    fn tokens(&self, bucket: &Bucket, now: Timestamp) -> f64 {
        let debt = self.debt.debt_at(&bucket.level, now);
        let (price, capacity) = (self.debt.price, self.debt.capacity);
        if debt > capacity {
            -((debt - capacity) as f64 / price as f64)
        } else {
            let spare = capacity - debt;
            (spare / price) as f64 + (spare % price) as f64 / price as f64
        }
    }

    #[inline]
    fn idle_at(&self, bucket: &Bucket) -> Timestamp {
        self.debt.idle_at(&bucket.level)
    }

    /// Refunds the tokens, except those promised to later reservations: the tokens that drain between the act time of
    /// this one and the latest act time. Nothing is refunded once its time has passed.
    fn cancel(&self, bucket: &mut Bucket, now: Timestamp, charge: &Charge, since: LaterCharges) {
        let UndoData::Debt {
            drain,
            price,
            last_act,
        } = charge.undo_data
        else {
            return;
        };
        if self.debt.rate.is_unlimited() || charge.at < now {
            return;
        }
        let taken = price.saturating_mul(u128::from(charge.cost));
        let same_pace = (drain, price) == (self.debt.drain, self.debt.price);
        if since == LaterCharges::Nothing && same_pace {
            // No later reservation relies on it, so all of it can be undone, and exactly. Act times are rounded, so
            // computing back from them would lose a part.
            self.debt.reduce_debt(&mut bucket.level, now, taken);
            bucket.latest_reservation = last_act;
            return;
        }
        // The tokens that drain until the latest act were promised, at the rate in force when the charge was made.
        let ahead = u128::from(bucket.latest_reservation.nanos_since(charge.at));
        let refund = taken.saturating_sub(drain.saturating_mul(ahead));
        if refund > 0 {
            let refund = self.debt.rescale_down(refund, price);
            self.debt.reduce_debt(&mut bucket.level, now, refund);
        }
    }

    fn keep_outstanding(&self, bucket: &mut Bucket, now: Timestamp, out: u64) {
        self.debt.keep_outstanding(&mut bucket.level, now, out);
    }

    fn charge_overrun(&self, bucket: &mut Bucket, now: Timestamp, tokens: u64) {
        let cost = tokens.min(self.limit());
        self.debt.add_debt(&mut bucket.level, now, cost);
    }

    fn refund(&self, bucket: &mut Bucket, now: Timestamp, tokens: u64) {
        self.debt.refund(&mut bucket.level, now, tokens);
    }

    /// Keeps the tokens: a raised burst adds none immediately, a lowered burst caps them, debt stays.
    fn migrate_state(&self, bucket: &mut Bucket, old: &Self, now: Timestamp) {
        let (new, old) = (&self.debt, &old.debt);
        let level = old.drain_to(&bucket.level, now);
        let debt = if level.debt > old.capacity {
            let over = new.rescale_up(level.debt - old.capacity, old);
            new.capacity.saturating_add(over)
        } else {
            let tokens = new.rescale_down(old.capacity - level.debt, old.price);
            new.capacity.saturating_sub(tokens)
        };
        bucket.level = BucketLevel { debt, ..level };
    }

    fn migrate_spent(&self, bucket: &mut Bucket, old: &Self, now: Timestamp) {
        self.debt.migrate_state(&mut bucket.level, &old.debt, now);
    }

    fn is_counting(&self) -> bool {
        self.debt.is_counting()
    }

    fn earliest_before_migration(
        &self,
        bucket: &Bucket,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        self.debt
            .earliest_before_migration(&bucket.level, &old.debt, now, cost)
    }

    fn move_to_clock(&self, bucket: &mut Bucket, from: Timestamp, to: Timestamp) {
        self.debt.move_to_clock(&mut bucket.level, from, to);
        bucket.latest_reservation = bucket.latest_reservation.shifted(from, to);
    }

    fn state_lifetime(&self) -> Duration {
        self.debt.state_lifetime()
    }

    fn empty(&self, now: Timestamp) -> Bucket {
        Bucket {
            level: self.debt.empty(now),
            latest_reservation: Timestamp::ZERO,
        }
    }

    /// The burst, even where nothing refills: stored tokens are spent once.
    #[inline]
    fn limit(&self) -> u64 {
        if self.debt.rate.is_unlimited() {
            return u64::MAX;
        }
        self.debt.rate.burst_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_beside_another_bucket_is_exact() {
        let limit = |count, nanos, burst| {
            let rate = Rate::new(count, Duration::from_nanos(nanos)).burst(burst);
            TokenBucket::new(rate).unwrap()
        };
        for (count, nanos) in [(10, 97), (7, 131), (9, 100), (97, 1_000), (1, 1_000)] {
            let (fast, slow) = (limit(100, 1_000, 400), limit(count, nanos, 400));
            let costs = [1, 5, 40, 2].iter().zip([0, 3, 0, 1, 2].iter().cycle());
            let starts = (0..60).chain([250, 777]);
            let cases = costs.flat_map(|case| starts.clone().map(move |since| (case, since)));
            for ((&cost, &spent), since) in cases {
                let mut own = fast.empty(Timestamp::ZERO);
                let mut beside = slow.empty(Timestamp::ZERO);
                let now = Timestamp::from_nanos(since);
                let _ = fast.decide(&mut own, now, spent + since / 20);
                let _ = slow.decide(&mut beside, now, spent);
                let passes = |at: &Timestamp| {
                    let kept = slow.remaining(&beside, *at) + 1;
                    fast.has_tokens(&own, *at, cost + kept)
                };
                let first = (since..5_000).map(Timestamp::from_nanos).find(passes);
                // At the latest time of the search both are full, so the other bucket gains nothing more.
                let full = fast.earliest(&own, now, 400).unwrap();
                let at = fast.earliest_beyond(&own, now, cost, &slow, &beside);
                let at = at.filter(|at| *at < full);
                assert_eq!(
                    at,
                    first.filter(|at| *at < full),
                    "{count} {nanos} {cost} {since}"
                );
            }
        }
    }

    #[test]
    fn cancelling_in_reverse_order_restores_the_bucket() {
        // A third of a second is no whole number of nanoseconds, and the available tokens cover a part of the second
        // reservation.
        let limit = TokenBucket::new(Rate::per_second(3).burst(10)).unwrap();
        let now = Timestamp::from_secs(7);
        let mut bucket = Bucket::default();
        assert!(limit.decide(&mut bucket, now, 7).is_allowed());
        let before = bucket;
        let mut reserve = |cost| {
            let at = limit.earliest(&bucket, now, cost).unwrap();
            limit.charge(&mut bucket, now, at, cost)
        };
        let receipts = [reserve(1), reserve(3), reserve(4)];
        assert!(receipts[1].at() > now);
        for receipt in receipts.iter().rev() {
            limit.cancel(&mut bucket, now, receipt, LaterCharges::Nothing);
        }
        assert_eq!(bucket, before);
    }

    #[test]
    fn a_reservation_that_acts_before_an_older_one_does_not_hide_it() {
        let limit = TokenBucket::new(Rate::per_second(1).burst(10)).unwrap();
        let (now, secs) = (Timestamp::ZERO, Timestamp::from_secs);
        let mut bucket = Bucket::default();
        let reserve = |bucket: &mut Bucket, cost| {
            let at = limit.earliest(bucket, now, cost).unwrap();
            limit.charge(bucket, now, at, cost)
        };
        let first = reserve(&mut bucket, 10);
        let second = reserve(&mut bucket, 2);
        assert_eq!((first.at(), second.at()), (now, secs(2)));
        // Two of the ten were promised to the second reservation; the other eight come back.
        limit.cancel(&mut bucket, now, &first, LaterCharges::Others);
        assert_eq!(limit.remaining(&bucket, now), 6);
        let third = reserve(&mut bucket, 1);
        assert_eq!(third.at(), now);
        // Still two: the second reservation acts at 2 s, whatever was reserved after it.
        limit.cancel(&mut bucket, now, &third, LaterCharges::Others);
        assert_eq!(limit.remaining(&bucket, now), 5);
    }

    #[test]
    fn where_nothing_refills_the_limit_is_what_is_stored() {
        let rate = Rate::zero().burst(5);
        assert_eq!(TokenBucket::new(rate).unwrap().limit(), 5);
        assert_eq!(crate::Gcra::new(rate).unwrap().limit(), 0);
        let unlimited = Rate::unlimited().burst(5);
        assert_eq!(TokenBucket::new(unlimited).unwrap().limit(), u64::MAX);
    }
}

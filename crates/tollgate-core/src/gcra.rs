//! GCRA in one 64-bit word: the theoretical arrival time (TAT) in units of 1/64 ns.
//!
//! The interval is rounded **up** to a whole unit, so the limit is never exceeded and loses less
//! than 0.016 % up to 10 million a second. A TAT in the past equals a state never seen.

use core::fmt;
use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::exact_units::check_rate_range;
use crate::units::{self, from_time as word};
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// The longest burst × interval: two years, which leaves seven years of the word for "now".
const LONGEST_CAPACITY: u64 = units::from_nanos(2 * 365 * 86_400 * 1_000_000_000);

/// The generic cell rate algorithm: a burst b admits exactly b back to back, then one an interval.
///
/// The state is one word, so an atomic can hold it, and a cache line holds many keys. Times count from the origin of
/// [`Timestamp`] and saturate nine years after it, so use an origin near the present.
///
/// ```
/// use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};
///
/// // 10/s burst 5: five pass, then none, then five more after half a second.
/// let limit = Gcra::new(Rate::per_second(10).burst(5))?;
/// let mut tat = TatState::default();
/// let mut passed = |millis| {
///     let now = Timestamp::from_millis(millis);
///     (0..9).filter(|_| limit.decide(&mut tat, now, 1).is_allowed()).count()
/// };
/// assert_eq!([passed(0), passed(0), passed(500)], [5, 0, 5]);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gcra {
    rate: Rate,
    pace: GcraParams,
}

/// The two numbers by which a [`Gcra`] decides, without its rate: for callers that store them in atomics.
///
/// ```
/// use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};
///
/// let pace = Gcra::new(Rate::per_second(10).burst(2))?.params();
/// let (after, wait) = pace.plan(TatState::default(), Timestamp::ZERO, 2).expect("within the burst");
/// assert_eq!(wait, 0);
/// assert_eq!(after.time(), Timestamp::from_millis(200));
/// assert_eq!(pace.plan(after, Timestamp::ZERO, 3), None);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GcraParams {
    /// Word units between two tokens: 0 when unlimited, the maximum when nothing refills.
    pub interval: u64,
    /// How far the TAT may lie ahead of now after a request passed: burst × interval.
    pub capacity: u64,
}

/// The state of a [`Gcra`]: one word. The default is "never seen".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TatState(u64);

impl TatState {
    /// The state as a word, for storage.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The state from its stored word.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The TAT as a time, rounded up to whole nanoseconds.
    pub const fn time(self) -> Timestamp {
        Timestamp::from_nanos(units::to_nanos(self.0))
    }
}

/// The rate determines all fields.
impl fmt::Debug for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gcra({:?})", self.rate)
    }
}

impl Gcra {
    /// The two numbers that decide.
    pub const fn params(&self) -> GcraParams {
        self.pace
    }

    /// The interval between two tokens after rounding up, in 1/64 ns.
    pub const fn interval_units(&self) -> u64 {
        self.pace.interval
    }
}

impl sealed::Sealed for Gcra {}

impl Arithmetic for Gcra {
    type State = TatState;
    type Floor = ();

    fn new(rate: Rate) -> Result<Self, LimitError> {
        check_rate_range(rate)?;
        let made = |interval, capacity| Self {
            rate,
            pace: GcraParams { interval, capacity },
        };
        let Some((count, period)) = rate.count_and_nanos() else {
            let pace = if rate.is_unlimited() {
                GcraParams::UNLIMITED
            } else {
                GcraParams::ZERO
            };
            return Ok(made(pace.interval, pace.capacity));
        };
        // The lowest rate is 10^24 ns a token, so the product can't overflow 128 bits.
        let interval = (period * u128::from(units::PER_NANO)).div_ceil(u128::from(count));
        let burst = u128::from(rate.burst_size());
        match interval.checked_mul(burst.max(1)) {
            Some(long) if long <= u128::from(LONGEST_CAPACITY) => {
                let fit = |units: u128| u64::try_from(units).unwrap_or(u64::MAX);
                Ok(made(fit(interval), fit(interval * burst)))
            }
            _ => Err(LimitError::TooLongForOneWord {
                rate,
                largest_burst: u64::try_from(u128::from(LONGEST_CAPACITY) / interval)
                    .unwrap_or(u64::MAX),
            }),
        }
    }

    fn rate(&self) -> Rate {
        self.rate
    }

    #[inline]
    fn earliest(&self, tat: &TatState, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let (_, wait) = self.pace.plan(*tat, now, cost)?;
        Some(now.plus_nanos(GcraParams::wait_nanos(wait)))
    }

    fn charge(&self, tat: &mut TatState, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        if let Some((after, _)) = self.pace.plan(*tat, now, cost)
            && cost > 0
        {
            *tat = after;
        }
        self.pace.charge_receipt(*tat, at, cost)
    }

    #[inline]
    fn remaining(&self, tat: &TatState, now: Timestamp) -> u64 {
        self.pace.remaining(*tat, now)
    }

    #[inline]
    fn idle_at(&self, tat: &TatState) -> Timestamp {
        if self.pace.interval == 0 {
            return Timestamp::ZERO;
        }
        tat.time()
    }

    fn cancel(&self, tat: &mut TatState, now: Timestamp, charge: &Charge, _since: LaterCharges) {
        // The word itself shows whether a later charge relies on this one.
        if let Some(returned) = GcraParams::tat_after_cancel(*tat, now, charge) {
            *tat = returned;
        }
    }

    fn keep_outstanding(&self, tat: &mut TatState, now: Timestamp, out: u64) {
        let owed = self.pace.interval.saturating_mul(out);
        tat.0 = tat.0.max(word(now).saturating_add(owed));
    }

    fn charge_overrun(&self, tat: &mut TatState, now: Timestamp, tokens: u64) {
        let price = self.pace.interval.saturating_mul(tokens);
        let owed = tat.0.max(word(now));
        // Capped at a full bucket, so that one wrong estimate delays later requests by a bounded time.
        tat.0 = owed.saturating_add(price.min(self.pace.capacity));
    }

    fn refund(&self, tat: &mut TatState, now: Timestamp, tokens: u64) {
        *tat = self.pace.tat_after_refund(*tat, now, tokens);
    }

    fn migrate_state(&self, tat: &mut TatState, old: &Self, now: Timestamp) {
        *tat = self.pace.migrated_tat(*tat, &old.pace, now);
    }

    fn earliest_before_migration(
        &self,
        tat: &TatState,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        if cost > self.limit() {
            return None;
        }
        let wait = self.pace.wait_before_migration(*tat, &old.pace, now, cost);
        Some(now.plus_nanos(GcraParams::wait_nanos(wait)))
    }

    fn move_to_clock(&self, tat: &mut TatState, from: Timestamp, to: Timestamp) {
        tat.0 = match tat.0.saturating_sub(word(from)) {
            // A TAT in the past stays "never seen" on any clock, even one that shows an earlier time.
            0 => 0,
            ahead => word(to).saturating_add(ahead),
        };
    }

    fn state_lifetime(&self) -> Duration {
        if !self.is_counting() {
            return Duration::ZERO;
        }
        Duration::from_nanos(GcraParams::wait_nanos(self.pace.capacity))
    }

    fn empty(&self, now: Timestamp) -> TatState {
        self.pace.empty(now)
    }
}

impl fmt::Debug for GcraParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interval {
            0 => f.write_str("Pace(unlimited)"),
            u64::MAX => f.write_str("Pace(zero)"),
            interval => f
                .debug_struct("Pace")
                .field("interval", &interval)
                .field("capacity", &self.capacity)
                .finish(),
        }
    }
}

impl GcraParams {
    /// Admits any cost and charges nothing.
    pub const UNLIMITED: Self = Self {
        interval: 0,
        capacity: u64::MAX,
    };
    /// Admits nothing.
    pub const ZERO: Self = Self {
        interval: u64::MAX,
        capacity: 0,
    };

    /// The TAT after this cost, and the wait of the request in word units; `None` if it can never pass.
    ///
    /// This is the whole algorithm: everything else uses these two numbers.
    #[inline]
    pub fn plan(&self, tat: TatState, now: Timestamp, cost: u64) -> Option<(TatState, u64)> {
        let now = word(now);
        let price = self.interval.checked_mul(cost)?;
        let after = tat.0.max(now).checked_add(price)?;
        let wait = (after - now).saturating_sub(self.capacity);
        // A price above the capacity always waits, so a request that passes needs no second comparison.
        if wait > 0 && price > self.capacity {
            return None;
        }
        Some((TatState(after), wait))
    }

    /// The TAT after a request that passes at `now`; `None` if it doesn't pass. It is [`plan`](Self::plan) without a
    /// wait.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};
    ///
    /// let pace = Gcra::new(Rate::per_second(10).burst(2))?.params();
    /// let after = pace.try_pass(TatState::default(), Timestamp::ZERO, 2).expect("a full bucket");
    /// assert_eq!(pace.try_pass(after, Timestamp::ZERO, 1), None);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[inline(always)]
    pub fn try_pass(&self, tat: TatState, now: Timestamp, cost: u64) -> Option<TatState> {
        match self.plan(tat, now, cost)? {
            (after, 0) => Some(after),
            _ => None,
        }
    }

    /// A wait in word units as whole nanoseconds.
    #[inline]
    pub const fn wait_nanos(wait: u64) -> u64 {
        units::to_nanos(wait)
    }

    /// The number of tokens that can still pass at `now`.
    #[inline]
    pub fn remaining(&self, tat: TatState, now: Timestamp) -> u64 {
        if self.interval == 0 {
            return u64::MAX;
        }
        let ahead = tat.0.saturating_sub(word(now));
        self.capacity.saturating_sub(ahead) / self.interval
    }

    /// The tokens available at `now`, negative in debt: for display, never for decisions.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    pub fn tokens(&self, tat: TatState, now: Timestamp) -> f64 {
        match *self {
            Self::UNLIMITED => f64::INFINITY,
            Self::ZERO => 0.0,
            Self { interval, capacity } => {
                let ahead = tat.0.saturating_sub(word(now));
                (capacity as f64 - ahead as f64) / interval as f64
            }
        }
    }

    /// The TAT after a charge is refunded, if no later charge relies on it.
    #[inline]
    pub fn tat_after_cancel(tat: TatState, now: Timestamp, charge: &Charge) -> Option<TatState> {
        let UndoData::TatInterval { after, price } = charge.undo_data else {
            return None;
        };
        if tat.0 != after {
            return None;
        }
        Some(TatState(after - price.min(after.saturating_sub(word(now)))))
    }

    /// The TAT as it was before a charge, if no later charge relies on it and all of it lies in the future.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, GcraParams, Rate, TatState, Timestamp};
    ///
    /// let pace = Gcra::new(Rate::per_second(1).burst(1))?.params();
    /// let (now, at) = (Timestamp::from_secs(100), Timestamp::from_secs(101));
    /// let before = pace.empty(now);
    /// let (after, _) = pace.plan(before, now, 1).expect("a cost within the burst");
    /// let charge = pace.charge_receipt(after, at, 1);
    /// assert_eq!(GcraParams::tat_before_charge(after, now, &charge), Some(before));
    /// assert_eq!(GcraParams::tat_before_charge(after, Timestamp::from_secs(102), &charge), None);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[inline]
    pub fn tat_before_charge(tat: TatState, now: Timestamp, charge: &Charge) -> Option<TatState> {
        let UndoData::TatInterval { after, price } = charge.undo_data else {
            return None;
        };
        let before = after.checked_sub(price)?;
        (tat.0 == after && before >= word(now)).then_some(TatState(before))
    }

    /// The TAT after a refund of this many tokens, at most up to a full bucket.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, Rate, Timestamp};
    ///
    /// let pace = Gcra::new(Rate::per_second(1).burst(5))?.params();
    /// let now = Timestamp::from_secs(100);
    /// let spent = pace.empty(now);
    /// assert_eq!(pace.remaining(pace.tat_after_refund(spent, now, 2), now), 2);
    /// assert_eq!(pace.remaining(pace.tat_after_refund(spent, now, 9), now), 5);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[inline]
    pub fn tat_after_refund(&self, tat: TatState, now: Timestamp, tokens: u64) -> TatState {
        Self::lower_tat(tat, now, self.interval.saturating_mul(tokens))
    }

    /// As [`tat_after_refund`](Self::tat_after_refund), and one unit more, so that no later charge returns the TAT to a
    /// value that a [receipt](Self::charge_receipt) from before the refund names. Such a charge could be
    /// [cancelled](Self::tat_after_cancel) although its tokens were promised to others. For callers that store
    /// nothing but the word.
    #[inline]
    pub fn tat_after_final_refund(&self, tat: TatState, now: Timestamp, tokens: u64) -> TatState {
        let price = self.interval.saturating_mul(tokens).saturating_add(1);
        Self::lower_tat(tat, now, price)
    }

    fn lower_tat(tat: TatState, now: Timestamp, price: u64) -> TatState {
        // A TAT in the past stays where it is: nothing is spent, so nothing can be refunded.
        TatState(tat.0.saturating_sub(price).max(word(now).min(tat.0)))
    }

    /// The TAT after this many tokens were taken without a request, at most down to an empty bucket. Existing debt
    /// beyond that stays.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};
    ///
    /// let pace = Gcra::new(Rate::per_second(1).burst(5))?.params();
    /// let (now, full) = (Timestamp::from_secs(100), TatState::default());
    /// assert_eq!(pace.remaining(pace.tat_after_penalty(full, now, 2), now), 3);
    /// assert_eq!(pace.tat_after_penalty(full, now, 9), pace.empty(now));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn tat_after_penalty(&self, tat: TatState, now: Timestamp, tokens: u64) -> TatState {
        let start = tat.0.max(word(now));
        let after = start.saturating_add(self.interval.saturating_mul(tokens));
        TatState(after.min(self.empty(now).0.max(start)))
    }

    /// How long this many tokens take to refill, rounded up.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Gcra, Rate};
    ///
    /// let pace = Gcra::new(Rate::per_second(10))?.params();
    /// assert_eq!(pace.refill_time(25), Duration::from_millis(2_500));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn refill_time(&self, tokens: u128) -> Duration {
        let units = tokens.saturating_mul(u128::from(self.interval));
        let nanos = units.div_ceil(u128::from(units::PER_NANO));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The receipt for a plan that was executed.
    #[inline]
    pub fn charge_receipt(&self, after: TatState, at: Timestamp, cost: u64) -> Charge {
        let price = self.interval.saturating_mul(cost);
        let mark = if price == 0 {
            UndoData::Nothing
        } else {
            UndoData::TatInterval {
                after: after.0,
                price,
            }
        };
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    /// The TAT that means the same number of spent tokens at this rate.
    ///
    /// Between two finite rates, spent tokens stay spent. Zero and unlimited have no interval to convert by; the
    /// remaining time stays, at most up to an empty bucket.
    pub fn migrated_tat(&self, tat: TatState, old: &Self, now: Timestamp) -> TatState {
        let now = word(now);
        let ahead = tat.0.saturating_sub(now);
        if ahead == 0 {
            // Nothing is owed. A TAT moved to `now` would be a debt if the clock stepped back later.
            return tat;
        }
        let ahead = match (old.is_counting(), self.is_counting()) {
            (true, true) => {
                let spent = u128::from(ahead) * u128::from(self.interval);
                u64::try_from(spent.div_ceil(u128::from(old.interval))).unwrap_or(u64::MAX)
            }
            (false, true) => ahead.min(self.capacity),
            (_, false) => ahead,
        };
        TatState(now.saturating_add(ahead))
    }

    /// The wait, in word units, of a cost that is denied at this rate, if the debt drains at the rate `old` that it was
    /// made at, and is converted to this rate only when the cost passes.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, Rate, Timestamp, units};
    ///
    /// // A debt of a thousand at 1000/s drains in a second, because it stays at the old rate until then.
    /// let fast = Gcra::new(Rate::per_second(1_000))?.params();
    /// let slow = Gcra::new(Rate::per_minute(1))?.params();
    /// let (now, spent) = (Timestamp::ZERO, fast.empty(Timestamp::ZERO));
    /// assert_eq!(slow.wait_before_migration(spent, &fast, now, 1), units::from_nanos(1_000_000_000));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn wait_before_migration(
        &self,
        tat: TatState,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> u64 {
        let ahead = tat.0.saturating_sub(word(now));
        let left = self.burst().saturating_sub(cost);
        ahead.saturating_sub(old.interval.saturating_mul(left))
    }

    /// The TAT to report at this rate while the debt drains at the faster rate `old`: the time until the debt fits a
    /// full bucket of this rate, and then that bucket.
    pub fn tat_before_migration(&self, tat: TatState, old: &Self, now: Timestamp) -> TatState {
        let ahead = tat.0.saturating_sub(word(now));
        let own = old.interval.saturating_mul(self.burst());
        match ahead.checked_sub(own) {
            Some(rest) => TatState(self.empty(now).0.saturating_add(rest)),
            None => self.migrated_tat(tat, old, now),
        }
    }

    /// Whether this rate counts tokens: zero and unlimited don't.
    pub const fn is_counting(&self) -> bool {
        self.interval != Self::UNLIMITED.interval && self.interval != Self::ZERO.interval
    }

    /// The capacity in tokens.
    const fn burst(&self) -> u64 {
        match self.capacity.checked_div(self.interval) {
            Some(burst) => burst,
            None => u64::MAX,
        }
    }

    /// The TAT of a limit with no tokens at `now`.
    pub fn empty(&self, now: Timestamp) -> TatState {
        let ahead = if self.interval == 0 { 0 } else { self.capacity };
        TatState(word(now).saturating_add(ahead))
    }
}

//! GCRA in one 64-bit word: the theoretical arrival time (TAT) in units of 1/64 ns.
//!
//! The interval is rounded **up** to a whole unit, so the limit is never exceeded and loses less
//! than 0.016 % up to 10 million a second. A TAT in the past equals a state never seen.

use core::fmt;
use core::time::Duration;

use crate::arithmetic::{Charge, Mark, Since, sealed};
use crate::exact::check_range;
use crate::units::{self, of as word};
use crate::{Arithmetic, LimitError, Rate, Timestamp};

mod pace;

/// Burst × interval may be this long: two years, which leaves seven for "now".
const LONGEST_CAPACITY: u64 = units::from_nanos(2 * 365 * 86_400 * 1_000_000_000);

/// The generic cell rate algorithm: a burst b admits exactly b back to back, then one an interval.
///
/// The state is one word, so it fits an atomic and a cache line of keys. Times are taken from the
/// origin of [`Timestamp`] and saturate nine years after it: measure from a nearby anchor.
///
/// ```
/// use tollgate_core::{Arithmetic, Gcra, Rate, Tat, Timestamp};
///
/// // 10/s burst 5: five pass, then none, then five more after half a second.
/// let limit = Gcra::new(Rate::per_second(10).burst(5))?;
/// let mut tat = Tat::default();
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
    pace: Pace,
}

/// A [`Gcra`] without its rate: the two words that decide, for holders that keep them in atomics.
///
/// ```
/// use tollgate_core::{Arithmetic, Gcra, Rate, Tat, Timestamp};
///
/// let pace = Gcra::new(Rate::per_second(10).burst(2))?.pace();
/// let (after, wait) = pace.plan(Tat::default(), Timestamp::ZERO, 2).expect("within the burst");
/// assert_eq!(wait, 0);
/// assert_eq!(after.time(), Timestamp::from_millis(200));
/// assert_eq!(pace.plan(after, Timestamp::ZERO, 3), None);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Word units between two tokens: 0 when unlimited, the maximum when nothing refills.
    pub interval: u64,
    /// How far the TAT may lie ahead of now after a request passed: burst × interval.
    pub capacity: u64,
}

/// The state of a [`Gcra`]: one word. The default is "never seen".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tat(u64);

impl Tat {
    /// The state as the word it is kept in.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The state from the word it was kept in.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The TAT as a time, rounded up to whole nanoseconds.
    pub const fn time(self) -> Timestamp {
        Timestamp::from_nanos(units::to_nanos(self.0))
    }
}

/// All of it follows from the rate.
impl fmt::Debug for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gcra")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

impl Gcra {
    /// The two words that decide.
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// The interval between two tokens as it is after rounding up, in 1/64 ns.
    pub const fn interval_units(&self) -> u64 {
        self.pace.interval
    }
}

impl sealed::Sealed for Gcra {}

impl Arithmetic for Gcra {
    type State = Tat;
    type Floor = ();

    fn new(rate: Rate) -> Result<Self, LimitError> {
        check_range(rate)?;
        let made = |interval, capacity| Self {
            rate,
            pace: Pace { interval, capacity },
        };
        let Some((count, period)) = rate.finite() else {
            let pace = if rate.is_unlimited() {
                Pace::UNLIMITED
            } else {
                Pace::ZERO
            };
            return Ok(made(pace.interval, pace.capacity));
        };
        // The slowest pace is 10^24 ns a token, so the product can't overflow 128 bits.
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
    fn earliest(&self, tat: &Tat, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let (_, wait) = self.pace.plan(*tat, now, cost)?;
        Some(now.plus_nanos(Pace::wait_nanos(wait)))
    }

    fn charge(&self, tat: &mut Tat, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        if let Some((after, _)) = self.pace.plan(*tat, now, cost)
            && cost > 0
        {
            *tat = after;
        }
        self.pace.receipt(*tat, at, cost)
    }

    #[inline]
    fn remaining(&self, tat: &Tat, now: Timestamp) -> u64 {
        self.pace.remaining(*tat, now)
    }

    #[inline]
    fn idle_at(&self, tat: &Tat) -> Timestamp {
        if self.pace.interval == 0 {
            return Timestamp::ZERO;
        }
        tat.time()
    }

    fn give_back(&self, tat: &mut Tat, now: Timestamp, charge: &Charge, _since: Since) {
        // The word itself shows whether anything was built on the charge.
        if let Some(returned) = Pace::returned(*tat, now, charge) {
            *tat = returned;
        }
    }

    fn keep_out(&self, tat: &mut Tat, now: Timestamp, out: u64) {
        let owed = self.pace.interval.saturating_mul(out);
        tat.0 = tat.0.max(word(now).saturating_add(owed));
    }

    fn overdraw(&self, tat: &mut Tat, now: Timestamp, tokens: u64) {
        let price = self.pace.interval.saturating_mul(tokens);
        let owed = tat.0.max(word(now));
        tat.0 = owed.saturating_add(price.min(self.pace.capacity));
    }

    fn hand_in(&self, tat: &mut Tat, now: Timestamp, _charge: &Charge, tokens: u64) {
        self.gift(tat, now, tokens);
    }

    fn can_wait(&self, cost: u64, out: u64) -> bool {
        cost.saturating_add(out) <= self.limit()
    }

    fn gift(&self, tat: &mut Tat, now: Timestamp, tokens: u64) {
        *tat = self.pace.refunded(*tat, now, tokens);
    }

    fn adopt(&self, tat: &mut Tat, old: &Self, now: Timestamp) {
        *tat = self.pace.carried_over(*tat, &old.pace, now);
    }

    fn earliest_while(
        &self,
        tat: &Tat,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        if cost > self.limit() {
            return None;
        }
        let wait = self.pace.wait_beside(*tat, &old.pace, now, cost);
        Some(now.plus_nanos(Pace::wait_nanos(wait)))
    }

    fn shift(&self, tat: &mut Tat, from: Timestamp, to: Timestamp) {
        tat.0 = match tat.0.saturating_sub(word(from)) {
            0 => 0,
            ahead => word(to).saturating_add(ahead),
        };
    }

    fn lasts(&self) -> Duration {
        if !self.counts() {
            return Duration::ZERO;
        }
        Duration::from_nanos(Pace::wait_nanos(self.pace.capacity))
    }

    fn empty(&self, now: Timestamp) -> Tat {
        self.pace.empty(now)
    }
}

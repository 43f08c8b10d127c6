//! Deterministic traffic that aims at the edges of a rate: the same seed gives the same requests.
//!
//! ```
//! use tollgate_core::Rate;
//! use tollgate_testkit::traffic::{Traffic, TimeOrder};
//!
//! let rate = Rate::per_second(10);
//! let short: Vec<_> = Traffic::new(rate, TimeOrder::Forward, 7).take(5).collect();
//! let long: Vec<_> = Traffic::new(rate, TimeOrder::Forward, 7).take(50).collect();
//! // A shorter run is the beginning of a longer one, so a failing run can be cut short.
//! assert_eq!(short, long[..5]);
//! assert!(long.is_sorted_by_key(|ask| ask.at));
//! ```

use tollgate_core::{Rate, Timestamp};

/// One request: its time and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of the request.
    pub at: Timestamp,
    /// The cost; 0 peeks.
    pub cost: u64,
}

/// Whether the times of a run may go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrder {
    /// Each time is at or after the one before it.
    Forward,
    /// Some times step back, by a nanosecond or by as much as a state lasts.
    Tangled,
    /// Some times step back by any duration, as those of a clock that is set.
    Set,
}

/// The splitmix64 generator: eight bytes of state, the same numbers on every machine.
///
/// ```
/// let mut random = tollgate_testkit::traffic::Random::new(0);
/// assert_eq!(random.next(), 0xE220_A839_7B1D_CDAF);
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 when `end` is 0. The tiny bias of a remainder does no harm here.
    pub const fn below(&mut self, end: u64) -> u64 {
        let number = self.next();
        if end == 0 { 0 } else { number % end }
    }

    /// One of these, all equally likely.
    ///
    /// ```
    /// let mut random = tollgate_testkit::traffic::Random::new(0);
    /// assert_eq!([0; 5].map(|_| random.pick(&['a', 'b', 'c'])), ['b', 'a', 'b', 'b', 'b']);
    /// ```
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let count = u64::try_from(from.len()).unwrap_or(u64::MAX);
        from[usize::try_from(self.below(count)).unwrap_or(0)]
    }
}

/// A time that is behind by this much is out of order, whatever the rate.
const OUT_OF_ORDER_GAP: u64 = 50_000_000_000;
/// A step back that no limiter takes for a clock that was set: a day.
const LONGEST_STEP_BACK: u64 = 86_400 * 1_000_000_000;

/// An endless run of requests whose gaps and costs are on, just before and just after every boundary that a
/// limit of this rate could round wrongly.
#[derive(Clone, Debug)]
pub struct Traffic {
    random: Random,
    order: TimeOrder,
    now: u64,
    latest: u64,
    /// No time lies after this.
    last: u64,
    /// Nanoseconds for each token, rounded down.
    interval: u64,
    /// Nanoseconds until a full burst has drained.
    drain: u64,
    /// Nanoseconds in a window.
    window: u64,
    burst: u64,
}

impl Traffic {
    /// A run for this rate that starts at the origin, at some other time, or close to the end.
    pub fn new(rate: Rate, order: TimeOrder, seed: u64) -> Self {
        Self::until(rate, order, seed, Timestamp::MAX)
    }

    /// The same with no time after `last`.
    pub fn until(rate: Rate, order: TimeOrder, seed: u64, last: Timestamp) -> Self {
        let period = rate.period().map_or(1_000_000_000, |p| p.as_nanos());
        let count = u128::from(rate.count().max(1));
        let nanos = |wide: u128| u64::try_from(wide).unwrap_or(u64::MAX);
        let mut random = Random::new(seed);
        let window = nanos(period);
        let last = last.as_nanos();
        let now = match random.below(6) {
            0..=2 => 0,
            3 => random.below(window.saturating_mul(4).min(last)),
            4 => random.below(last),
            _ => last.saturating_sub(random.below(window.saturating_mul(8))),
        };
        Self {
            random,
            order,
            now,
            latest: now,
            last,
            interval: nanos(period / count),
            drain: nanos((period / count).saturating_mul(u128::from(rate.burst_size()))),
            window,
            burst: rate.burst_size(),
        }
    }

    /// A gap on, before or after a boundary; a third of all requests come at the same instant.
    fn gap(&mut self) -> u64 {
        let to_boundary = self.window - self.now % self.window;
        let edge = match self.random.below(18) {
            0..=5 => return 0,
            6 => 1,
            7..=9 => self.interval,
            10 => self.random.below(self.interval),
            11 => self.drain,
            12 => self.random.below(self.drain),
            13 => self.window,
            14 | 15 => to_boundary,
            16 => self.random.below(self.window),
            _ => self.window.saturating_mul(2 + self.random.below(3)),
        };
        match self.random.below(4) {
            0 => edge.saturating_sub(1),
            1 => edge.saturating_add(1),
            _ => edge,
        }
    }

    fn cost(&mut self) -> u64 {
        match self.random.below(16) {
            0 => 0,
            1..=8 => 1,
            9 => 2,
            10 | 11 => self.random.below(self.burst / 4),
            12 => self.random.below(self.burst),
            13 => self.burst,
            14 => self.burst / 2,
            _ if self.random.below(4) == 0 => u64::MAX,
            _ => self.burst.saturating_add(1),
        }
    }
}

impl Iterator for Traffic {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let gap = self.gap();
        let steps_back = self.order != TimeOrder::Forward && self.random.below(4) == 0;
        self.now = if steps_back {
            // A few windows, if windows are shorter than a suspended thread may be late.
            let late = self.window.saturating_mul(4).min(OUT_OF_ORDER_GAP);
            let reach = match self.order {
                TimeOrder::Set => u64::MAX,
                // A limiter follows a clock that was set back by more than a day.
                _ => self.drain.saturating_add(late).min(LONGEST_STEP_BACK),
            };
            let first = self.latest.saturating_sub(reach);
            self.now.saturating_sub(gap).max(first)
        } else {
            self.now.saturating_add(gap).min(self.last)
        };
        self.latest = self.latest.max(self.now);
        Some(Arrival {
            at: Timestamp::from_nanos(self.now),
            cost: self.cost(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tangled_traffic_steps_back_and_forward_traffic_never() {
        let run = |order| {
            let times = Traffic::new(Rate::per_second(10), order, 3).map(|ask| ask.at);
            times.take(100).collect::<Vec<_>>()
        };
        assert!(run(TimeOrder::Forward).is_sorted());
        assert!(!run(TimeOrder::Tangled).is_sorted());
        assert!(!run(TimeOrder::Set).is_sorted());
    }

    #[test]
    fn no_time_lies_after_the_last() {
        let last = Timestamp::from_secs(2);
        for seed in 0..50 {
            let mut run = Traffic::until(Rate::per_second(3), TimeOrder::Forward, seed, last);
            assert!(run.by_ref().take(100).all(|ask| ask.at <= last));
        }
    }
}

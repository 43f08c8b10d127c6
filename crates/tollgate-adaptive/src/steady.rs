//! Damping, which keeps an algorithm from oscillating: changes only after several proposals in a row,
//! smoothed, bounded and jittered.

use super::law::ParameterRange;
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm};

/// Wraps an algorithm and follows its proposals gradually.
///
/// Each setting is off by default, and they apply in this order:
/// 1. [`in_a_row`](Self::in_a_row): a change needs this many consecutive proposals in the same
///    direction.
/// 2. [`damping`](Self::damping): the limit moves only this part of the way.
/// 3. [`jitter`](Self::jitter): the step is randomly longer or shorter, so that instances don't move
///    together.
/// 4. [`max_step`](Self::max_step): no step is longer than this part of the limit.
///
/// The algorithm continues from the resulting limit, not from its proposal.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Aimd, Bounds, LimitAlgorithm, Sample, Damped};
///
/// let aimd = Aimd::new(Bounds::new(1.0, 100.0)?).initial(40.0);
/// let mut algorithm = Damped::new(aimd).in_a_row(2).damping(0.5)?.max_step(0.2)?;
/// let dropped = Sample::new(Duration::from_millis(5), 40).dropped();
/// algorithm.observe(&dropped);
/// assert_eq!(algorithm.limit(), 40.0, "once is chance");
/// algorithm.observe(&dropped);
/// assert_eq!(algorithm.limit(), 32.0, "half of the way to 20, but a fifth of the limit at most");
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Damped<L> {
    law: L,
    in_a_row: u32,
    damping: f64,
    jitter: f64,
    max_step: f64,
    chance: SplitMix64,
    /// The number of consecutive proposals in this direction.
    recent_direction: (Direction, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl<L> Damped<L> {
    /// Follows this algorithm unchanged, until something is set.
    pub fn new(law: L) -> Self {
        Self {
            law,
            in_a_row: 1,
            damping: 1.0,
            jitter: 0.0,
            max_step: f64::INFINITY,
            chance: SplitMix64::new(0),
            recent_direction: (Direction::Up, 0),
        }
    }

    /// Changes only after this many consecutive proposals in the same direction.
    #[must_use]
    pub fn in_a_row(mut self, wishes: u32) -> Self {
        self.in_a_row = wishes.max(1);
        self
    }

    /// Moves this part of the way: an exponentially weighted mean of the proposals.
    ///
    /// # Errors
    /// Unless it is above 0 and at most 1.
    pub fn damping(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.damping = ParameterRange::FRACTION.check("a damping", part)?;
        Ok(self)
    }

    /// Makes each step longer or shorter by up to this part, at random from this seed.
    ///
    /// # Errors
    /// Unless the part is at least 0 and below 1.
    pub fn jitter(mut self, part: f64, seed: u64) -> Result<Self, AlgorithmError> {
        self.jitter = ParameterRange::FROM_ZERO.check("a jitter", part)?;
        self.chance = SplitMix64::new(seed);
        Ok(self)
    }

    /// Changes by at most this part of the limit at a time.
    ///
    /// # Errors
    /// Unless it is a number above 0.
    pub fn max_step(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.max_step = ParameterRange::ABOVE_ZERO.check("a step", part)?;
        Ok(self)
    }

    /// The wrapped algorithm.
    pub fn law(&self) -> &L {
        &self.law
    }
}

impl<S, L: LimitAlgorithm<S>> LimitAlgorithm<S> for Damped<L> {
    fn bounds(&self) -> Bounds {
        self.law.bounds()
    }

    fn limit(&self) -> f64 {
        self.law.limit()
    }

    fn set_limit(&mut self, limit: f64) {
        self.law.set_limit(limit);
    }

    fn step(&mut self, sample: &S) -> Option<ChangeReason> {
        // An algorithm may begin outside of its bounds, where a part of the limit would be no valid
        // step.
        let before = self.law.bounds().clamp(self.law.limit());
        let reason = self.law.step(sample)?;
        let wished = self.law.limit();
        let direction = if wished > before {
            Direction::Up
        } else {
            Direction::Down
        };
        self.recent_direction = match self.recent_direction {
            (last, count) if last == direction => (last, count.saturating_add(1)),
            _ => (direction, 1),
        };
        if self.recent_direction.1 < self.in_a_row {
            self.law.set_limit(before);
            return None;
        }
        self.recent_direction.1 = 0;
        let sway = 1.0 + self.jitter * (2.0 * self.chance.next_fraction() - 1.0);
        let most = self.max_step * before;
        let step = ((wished - before) * self.damping * sway).clamp(-most, most);
        self.law.set_limit(self.law.bounds().clamp(before + step));
        Some(reason)
    }
}

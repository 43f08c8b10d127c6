//! What keeps a law from swinging: changes only after several wishes in a row, damped, bounded and jittered.

use super::law::ParameterRange;
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm};

/// A law whose wishes are followed with care.
///
/// Each of these is off unless it is asked for, and they apply in this order:
/// 1. [`in_a_row`](Self::in_a_row): a change needs so many wishes in the same direction, one after another.
/// 2. [`damping`](Self::damping): only this part of the way is gone.
/// 3. [`jitter`](Self::jitter): the step is longer or shorter by chance, so that instances don't move together.
/// 4. [`max_step`](Self::max_step): no step is longer than this part of the limit.
///
/// The law goes on from the limit that came of it, and not from what it wished for.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Aimd, Bounds, LimitAlgorithm, Sample, Damped};
///
/// let aimd = Aimd::new(Bounds::new(1.0, 100.0)?).initial(40.0);
/// let mut law = Damped::new(aimd).in_a_row(2).damping(0.5)?.max_step(0.2)?;
/// let dropped = Sample::new(Duration::from_millis(5), 40).dropped();
/// law.observe(&dropped);
/// assert_eq!(law.limit(), 40.0, "once is chance");
/// law.observe(&dropped);
/// assert_eq!(law.limit(), 32.0, "half of the way to 20, but a fifth of the limit at most");
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
    /// How many wishes there were in this direction.
    recent_direction: (Direction, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl<L> Damped<L> {
    /// Follows this law as it is, until something is chosen.
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

    /// Changes only after so many wishes in the same direction, one after another.
    #[must_use]
    pub fn in_a_row(mut self, wishes: u32) -> Self {
        self.in_a_row = wishes.max(1);
        self
    }

    /// Goes this part of the way: an exponentially weighted mean of what the law wishes.
    ///
    /// # Errors
    /// Unless it is above 0 and at most 1.
    pub fn damping(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.damping = ParameterRange::FRACTION.check("a damping", part)?;
        Ok(self)
    }

    /// Makes each step longer or shorter by up to this part, by chance from this seed.
    ///
    /// # Errors
    /// Unless the part is from 0 on and below 1.
    pub fn jitter(mut self, part: f64, seed: u64) -> Result<Self, AlgorithmError> {
        self.jitter = ParameterRange::FROM_ZERO.check("a jitter", part)?;
        self.chance = SplitMix64::new(seed);
        Ok(self)
    }

    /// Changes by no more than this part of the limit at a time.
    ///
    /// # Errors
    /// Unless it is a number above 0.
    pub fn max_step(mut self, part: f64) -> Result<Self, AlgorithmError> {
        self.max_step = ParameterRange::ABOVE_ZERO.check("a step", part)?;
        Ok(self)
    }

    /// The law that wishes.
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
        // A law may begin outside of its bounds, where a part of the limit is no length of a step.
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

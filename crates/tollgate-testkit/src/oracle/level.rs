//! The oracle of token bucket, leaky bucket and GCRA: replays every hit into an exact level.

use tollgate_core::{Rate, Timestamp, units};

use super::{Hit, Oracle, as_count, reduced_rate};

/// The drain of a nanosecond, by the interval that one word can represent.
const UNITS: u128 = units::PER_NANO as u128;

/// How a time before the latest hit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaleTimePolicy {
    /// As the time of the latest hit: nothing drains, nothing is owed twice.
    LatestHit,
    /// As itself, on a timeline on which debt drains evenly: the debt was larger then.
    Itself,
}

/// A level that rises by the cost of every hit and falls evenly with time.
///
/// All amounts are whole numbers of 1/price tokens, where one token is `price` and one nanosecond
/// drains `drain`, so that the fraction is exact.
#[derive(Clone, Debug)]
pub struct LevelOracle {
    unlimited: bool,
    drain: u128,
    price: u128,
    burst: u64,
    stale: StaleTimePolicy,
    hits: Vec<Hit>,
}

impl LevelOracle {
    /// A bucket that starts full; a rate of zero spends it once.
    pub fn token_bucket(rate: Rate) -> Self {
        let (drain, price) = reduced_rate(rate).unwrap_or((0, 1));
        Self {
            unlimited: rate.is_unlimited(),
            drain,
            price,
            burst: rate.burst_size(),
            stale: StaleTimePolicy::LatestHit,
            hits: Vec::new(),
        }
    }

    /// A meter that starts empty; a rate of zero lets nothing in.
    pub fn leaky_bucket(rate: Rate) -> Self {
        let burst = if rate.is_zero() { 0 } else { rate.burst_size() };
        Self {
            burst,
            ..Self::token_bucket(rate)
        }
    }

    /// A bucket with the interval that one word can represent: whole units of the word, rounded up.
    pub fn gcra(rate: Rate) -> Self {
        let exact = Self::leaky_bucket(rate);
        let (drain, price) = if exact.drain == 0 {
            (0, 1)
        } else {
            (UNITS, (exact.price * UNITS).div_ceil(exact.drain))
        };
        Self {
            drain,
            price,
            stale: StaleTimePolicy::Itself,
            ..exact
        }
    }

    /// The debt at `now`, by replaying all hits from the beginning.
    fn units_owed(&self, now: Timestamp) -> u128 {
        let (mut owed, mut last) = (0u128, Timestamp::ZERO);
        for hit in &self.hits {
            owed = owed.saturating_sub(self.drain * u128::from(hit.at.nanos_since(last)));
            owed += self.price * u128::from(hit.cost);
            last = hit.at;
        }
        owed = owed.saturating_sub(self.drain * u128::from(now.nanos_since(last)));
        match self.stale {
            StaleTimePolicy::LatestHit => owed,
            StaleTimePolicy::Itself => owed + self.drain * u128::from(last.nanos_since(now)),
        }
    }

    fn capacity(&self) -> u128 {
        self.price * u128::from(self.burst)
    }

    fn latest(&self) -> Timestamp {
        self.hits.last().map_or(Timestamp::ZERO, |hit| hit.at)
    }
}

impl Oracle for LevelOracle {
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.unlimited {
            return Some(now);
        }
        if cost > self.burst {
            return None;
        }
        let over =
            (self.units_owed(now) + self.price * u128::from(cost)).checked_sub(self.capacity());
        let Some(over) = over.filter(|over| *over > 0) else {
            return Some(now);
        };
        if self.drain == 0 {
            return None;
        }
        let drains_from = match self.stale {
            StaleTimePolicy::LatestHit => now.max(self.latest()),
            StaleTimePolicy::Itself => now,
        };
        let wait = u64::try_from(over.div_ceil(self.drain)).ok()?;
        let at = drains_from.as_nanos().checked_add(wait)?;
        Some(Timestamp::from_nanos(at))
    }

    fn remaining(&self, now: Timestamp) -> u64 {
        if self.unlimited {
            return u64::MAX;
        }
        as_count(self.capacity().saturating_sub(self.units_owed(now)) / self.price)
    }

    fn record(&mut self, now: Timestamp, cost: u64) {
        if !self.unlimited {
            let at = now.max(self.latest());
            self.hits.push(Hit { at, cost });
        }
    }
}

//! Which algorithm a limiter's table is of: chosen once, so that entries hold one kind of state.

use std::time::Duration;

use tollgate_core::{
    Arithmetic as _, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    Timestamp, TokenBucket, units,
};

use super::kept::Kept;
use super::table::{Plan, Table, Timeline};
use crate::{Algorithm, Tier};

/// The last time that GCRA's word can tell from the next, nine years after the anchor. A state
/// charged then is never idle, so it is never dropped.
const LAST_OF_GCRA: Timestamp = Timestamp::from_nanos(units::LAST_NANO);

/// A table of any algorithm.
#[derive(Debug)]
pub(super) enum Tables<K> {
    Gcra(Table<K, Gcra>),
    TokenBucket(Table<K, TokenBucket>),
    LeakyBucket(Table<K, LeakyBucket>),
    FixedWindow(Table<K, FixedWindow>),
    SlidingLog(Table<K, SlidingLog>),
    SlidingCounter(Table<K, SlidingCounter>),
}

/// Evaluates the same expression on whichever table it is.
macro_rules! each {
    ($self:expr, $table:ident => $call:expr) => {
        match $self {
            Tables::Gcra($table) => $call,
            Tables::TokenBucket($table) => $call,
            Tables::LeakyBucket($table) => $call,
            Tables::FixedWindow($table) => $call,
            Tables::SlidingLog($table) => $call,
            Tables::SlidingCounter($table) => $call,
        }
    };
}

pub(super) use each;

impl<K> Tables<K> {
    /// A table for this algorithm on a clock that shows `now`.
    pub(super) fn new(
        algorithm: Algorithm,
        rate: Rate,
        plan: Plan<K>,
        now: Timestamp,
    ) -> Result<Self, LimitError> {
        // Only GCRA's word is too short for a clock that counts from long ago, and only for the
        // others does it matter where the clock's origin is.
        let anchored = Timeline {
            anchor: now,
            // Room for a clock that is set back, too.
            start: Timestamp::from_nanos(LAST_OF_GCRA.as_nanos() / 4),
            last: LAST_OF_GCRA,
        };
        Ok(match algorithm {
            Algorithm::Gcra => Self::Gcra(Table::new(Gcra::new(rate)?, plan, Some(anchored))),
            _ => Self::on(algorithm, rate, plan, None)?,
        })
    }

    /// A table whose states count time like this.
    pub(super) fn on(
        algorithm: Algorithm,
        rate: Rate,
        plan: Plan<K>,
        timeline: Option<Timeline>,
    ) -> Result<Self, LimitError> {
        Ok(match algorithm {
            Algorithm::Gcra => Self::Gcra(Table::new(Gcra::new(rate)?, plan, timeline)),
            Algorithm::TokenBucket => {
                Self::TokenBucket(Table::new(TokenBucket::new(rate)?, plan, timeline))
            }
            Algorithm::LeakyBucket => {
                Self::LeakyBucket(Table::new(LeakyBucket::new(rate)?, plan, timeline))
            }
            Algorithm::FixedWindow(align) => {
                let limit = FixedWindow::new(rate)?.align(align);
                Self::FixedWindow(Table::new(limit, plan, timeline))
            }
            Algorithm::SlidingLog => {
                Self::SlidingLog(Table::new(SlidingLog::new(rate)?, plan, timeline))
            }
            Algorithm::SlidingCounter => {
                Self::SlidingCounter(Table::new(SlidingCounter::new(rate)?, plan, timeline))
            }
        })
    }

    /// Which algorithm it is of.
    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Gcra(_) => Algorithm::Gcra,
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(_) => Algorithm::LeakyBucket,
            Self::FixedWindow(table) => Algorithm::FixedWindow(table.limit().alignment()),
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::SlidingCounter(_) => Algorithm::SlidingCounter,
        }
    }

    /// That a tier is of this algorithm.
    #[inline]
    pub(super) fn expect(&self, tier: &Tier) -> Result<(), LimitError> {
        fn is_of<K, A: Kept>(_: &Table<K, A>, tier: &Tier) -> bool {
            A::of(tier).is_some()
        }
        if each!(self, table => is_of(table, tier)) {
            Ok(())
        } else {
            Err(tier.not_for(self.algorithm()))
        }
    }

    /// The rate of all keys that are asked without one, if there is one.
    pub(super) fn own_rate(&self) -> Option<Rate> {
        each!(self, table => table.has_one_rate()).then(|| self.rate())
    }

    pub(super) fn rate(&self) -> Rate {
        each!(self, table => table.limit().rate())
    }

    pub(super) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        each!(self, table => table.change(now, table.limit().at_rate(rate)?));
        Ok(())
    }

    /// Visits every key that is active at `now`, outside of all locks: how long until it is idle, whether
    /// it is blocked.
    pub(super) fn for_each(&self, now: Timestamp, mut each: impl FnMut(&K, Duration, bool))
    where
        K: Clone,
    {
        let mut active = Vec::new();
        each!(self, table => for number in 0..table.shards() {
            table.for_each_of(number, now, |entry, _, idle, until| {
                // Under the shard's lock, so that it counts from where the states do.
                let local = table.local_time(now);
                active.push((entry.key.clone(), idle.max(until) - local, until > local));
            });
            for (key, idle_after, blocked) in active.drain(..) {
                each(&key, idle_after, blocked);
            }
        });
    }

    /// How many keys are active at `now`.
    pub(super) fn count(&self, now: Timestamp) -> usize {
        let mut count = 0;
        each!(self, table => table.for_each(now, |_, _, _, _| count += 1));
        count
    }
}

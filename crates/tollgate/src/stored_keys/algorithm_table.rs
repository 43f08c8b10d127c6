//! The table of a limiter's algorithm: chosen once, so that all entries have one type of state.

use tollgate_core::{
    Arithmetic as _, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    Timestamp, TokenBucket,
};

use super::table::{Table, TableConfig, Timeline};
use crate::Algorithm;
use crate::key_table::ActiveKey;
use crate::tier::{CompiledLimit, Tier};

/// A table of any algorithm.
#[derive(Debug)]
pub(super) enum AlgorithmTable<K> {
    Gcra(Table<K, Gcra>),
    TokenBucket(Table<K, TokenBucket>),
    LeakyBucket(Table<K, LeakyBucket>),
    FixedWindow(Table<K, FixedWindow>),
    SlidingLog(Table<K, SlidingLog>),
    SlidingCounter(Table<K, SlidingCounter>),
}

/// Evaluates the same expression for the table of any algorithm.
macro_rules! each {
    ($self:expr, $table:ident => $call:expr) => {
        match $self {
            AlgorithmTable::Gcra($table) => $call,
            AlgorithmTable::TokenBucket($table) => $call,
            AlgorithmTable::LeakyBucket($table) => $call,
            AlgorithmTable::FixedWindow($table) => $call,
            AlgorithmTable::SlidingLog($table) => $call,
            AlgorithmTable::SlidingCounter($table) => $call,
        }
    };
}

pub(super) use each;

impl<K> AlgorithmTable<K> {
    /// A table whose states have this timeline.
    pub(super) fn new(
        algorithm: Algorithm,
        rate: Rate,
        plan: TableConfig<K>,
        timeline: Option<Timeline>,
    ) -> Result<Self, LimitError> {
        Ok(match Tier::new(algorithm, rate)?.0 {
            CompiledLimit::Gcra(limit) => Self::Gcra(Table::new(*limit, plan, timeline)),
            CompiledLimit::TokenBucket(limit) => {
                Self::TokenBucket(Table::new(*limit, plan, timeline))
            }
            CompiledLimit::LeakyBucket(limit) => {
                Self::LeakyBucket(Table::new(*limit, plan, timeline))
            }
            CompiledLimit::FixedWindow(limit) => {
                Self::FixedWindow(Table::new(*limit, plan, timeline))
            }
            CompiledLimit::SlidingLog(limit) => {
                Self::SlidingLog(Table::new(*limit, plan, timeline))
            }
            CompiledLimit::SlidingCounter(limit) => {
                Self::SlidingCounter(Table::new(*limit, plan, timeline))
            }
        })
    }

    /// The rate of all keys without a handle's tier; `None` if a function selects tiers.
    pub(super) fn single_rate(&self) -> Option<Rate> {
        each!(self, table => table.has_one_rate()).then(|| self.rate())
    }

    pub(super) fn rate(&self) -> Rate {
        each!(self, table => table.limit().rate())
    }

    pub(super) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        each!(self, table => table.change(now, table.limit().at_rate(rate)?));
        Ok(())
    }

    /// Visits every key that is active at `now`, outside of all locks: the time until it is idle, and whether it is
    /// blocked.
    pub(super) fn for_each(&self, now: Timestamp, mut each: impl FnMut(ActiveKey<&K>))
    where
        K: Clone,
    {
        let mut active = Vec::new();
        each!(self, table => for number in 0..table.shards() {
            table.for_each_of(number, now, |entry, _, idle, until| {
                // Under the shard's lock, so that the time counts from the same anchor as the states.
                let local = table.local_time(now);
                active.push((entry.key.clone(), idle.max(until) - local, until > local));
            });
            for (key, idle_after, blocked) in active.drain(..) {
                each(ActiveKey { key: &key, idle_after, blocked });
            }
        });
    }

    /// The number of active keys at `now`.
    pub(super) fn count(&self, now: Timestamp) -> usize {
        let mut count = 0;
        each!(self, table => for number in 0..table.shards() {
            table.for_each_of(number, now, |_, _, _, _| count += 1);
        });
        count
    }
}

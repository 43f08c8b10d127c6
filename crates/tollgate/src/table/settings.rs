//! What is chosen of a limiter by key before it is built, whichever table its keys are in.

use std::time::Duration;

use tollgate_core::Rate;

use crate::AtCap;
use crate::clock::Clocked;
use crate::patience::DEFAULT_MAX_WAITERS;

/// The settings of a limiter by key, but for its clock; `S` are those that only one kind of table has.
#[derive(Debug)]
pub struct TableSettings<S> {
    pub(crate) rate: Rate,
    pub(crate) capacity: usize,
    pub(crate) at_cap: AtCap,
    pub(crate) longest_wait: Duration,
    pub(crate) max_waiters: usize,
    pub(crate) table: S,
}

impl<S> TableSettings<S> {
    pub(crate) fn new(rate: Rate, capacity: usize, table: S) -> Self {
        Self {
            rate,
            capacity,
            at_cap: AtCap::default(),
            longest_wait: Duration::from_secs(60),
            max_waiters: DEFAULT_MAX_WAITERS,
            table,
        }
    }

    /// The same settings of another table.
    pub(crate) fn with_table<T>(self, table: impl FnOnce(S) -> T) -> TableSettings<T> {
        TableSettings {
            rate: self.rate,
            capacity: self.capacity,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            table: table(self.table),
        }
    }
}

impl<S, C> Clocked<TableSettings<S>, C> {
    /// What happens to new keys at the cap: [`AtCap::ShareOne`] unless said otherwise.
    pub fn at_cap(mut self, at_cap: AtCap) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// How far ahead a reservation may act: a minute unless said otherwise. A wait takes as long as it takes.
    /// A key is active, and keeps its slot, until what it has booked is over.
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.settings.longest_wait = longest;
        self
    }

    /// How many may wait at once, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }
}

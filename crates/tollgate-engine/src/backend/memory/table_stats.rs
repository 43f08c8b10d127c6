//! How full the tables of a memory are, for metrics.

use tollgate::quota::{self, FileError};
use tollgate::{Clock, KeyedLimiter, keyed};

use super::Memory;

/// The names of the tables, in the order of [`Memory::tables`].
const NAMES: [&str; 8] = [
    "gcra",
    "token_bucket",
    "leaky_bucket",
    "sliding_log",
    "sliding_counter",
    "fixed_window",
    "concurrency",
    "quota",
];

/// Keys that are active, how many may be, and what happened to others.
type TableCounts = (usize, usize, keyed::Stats);

/// One of the tables that keys are kept in, and what happened to keys there.
///
/// ```
/// use tollgate_engine::backend::Memory;
///
/// let memory = Memory::new();
/// assert!(memory.tables().iter().all(|table| table.active == 0 && table.capacity > 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// What is counted there: an algorithm, `concurrency` or `quota`.
    pub table: &'static str,
    /// Keys that have something spent or held now.
    pub active: usize,
    /// How many of them are sure of a place.
    pub capacity: usize,
    /// Keys that went because they were like new ones.
    pub expired: u64,
    /// Keys that had to go though they weren't.
    pub evicted: u64,
    /// Keys that an operator reset.
    pub reset: u64,
    /// Checks of keys for which there was no place.
    pub overflowed: u64,
}

impl TableStats {
    /// A table that isn't part of a memory.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate};
    /// use tollgate_engine::backend::TableStats;
    ///
    /// let keys = KeyedLimiter::new(Rate::per_hour(5), 1_000);
    /// keys.check("ada");
    /// assert_eq!(TableStats::of("logins", &keys).active, 1);
    /// ```
    pub fn of<C: Clock>(table: &'static str, keys: &KeyedLimiter<C>) -> Self {
        Self::new(table, (keys.len(), keys.capacity(), keys.stats()))
    }

    /// One that has no room for any key.
    pub fn empty(table: &'static str) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }

    fn new(table: &'static str, (active, capacity, stats): TableCounts) -> Self {
        Self {
            table,
            active,
            capacity,
            expired: stats.expired,
            evicted: stats.evicted,
            reset: stats.reset,
            overflowed: stats.overflowed,
        }
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// Each table: how full it is, and what happened to keys. It looks at all keys of each, so it is for metrics and
    /// operators, not for requests.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// let tables = Memory::builder().capacity(1_000).build().tables();
    /// assert_eq!((tables[0].table, tables[0].active, tables[0].capacity), ("gcra", 0, 1_000));
    /// ```
    pub fn tables(&self) -> Vec<TableStats> {
        let exact = self.exact_tables.iter();
        let exact = exact.map(|table| (table.len(), table.capacity(), table.stats()));
        let rates = (self.rates.len(), self.capacity(), self.rates.stats());
        let windows = &self.windows;
        let windows = (windows.len(), windows.capacity(), windows.stats());
        // These count no expiry: a key is there as long as it has something.
        let slots = (
            self.concurrency.len(),
            self.capacity(),
            keyed::Stats::default(),
        );
        let quotas = self.quotas.stats().keys;
        let quotas = (quotas, self.capacity(), keyed::Stats::default());
        let all = std::iter::once(rates).chain(exact);
        let all = all.chain([windows, slots, quotas]);
        let all = NAMES.into_iter().zip(all);
        all.map(|(table, counted)| TableStats::new(table, counted))
            .collect()
    }

    /// How many slots of concurrency limits are held now.
    pub fn in_flight(&self) -> u64 {
        let stats = self.concurrency.stats();
        let ended = stats.succeeded + stats.dropped + stats.ignored + stats.cancelled;
        stats.acquired.saturating_sub(ended)
    }

    /// As many keys of each table are sure of a place.
    fn capacity(&self) -> usize {
        self.rates.capacity()
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// What quotas have counted, and whether their file could be written, if they have one.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// assert_eq!(Memory::new().quota_stats().failed_flushes, 0);
    /// ```
    pub fn quota_stats(&self) -> quota::Stats {
        self.quotas.stats()
    }

    /// Saves what quotas have counted, now and on this thread. Without a file it does nothing. It is done every
    /// second, and when the memory is dropped.
    ///
    /// # Errors
    /// If the file can't be written; the next time tries again.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// Memory::new().flush_quotas()?;
    /// # Ok::<(), tollgate::quota::FileError>(())
    /// ```
    pub fn flush_quotas(&self) -> Result<(), FileError> {
        self.quotas.flush()
    }
}

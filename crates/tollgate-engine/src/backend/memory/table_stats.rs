//! The fill level of a memory's tables, for metrics.

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

/// Active keys, the capacity, and the table's statistics.
type TableCounts = (usize, usize, keyed::Stats);

/// The fill level of one table, and the keys that left it.
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
    /// What the table counts: an algorithm, `concurrency` or `quota`.
    pub table: &'static str,
    /// Keys that have something spent or held at present.
    pub active: usize,
    /// How many active keys have guaranteed room.
    pub capacity: usize,
    /// Keys that were removed because they were fully refilled.
    pub expired: u64,
    /// Keys that were removed for lack of room although they were active.
    pub evicted: u64,
    /// Keys that an operator reset.
    pub reset: u64,
    /// Checks of keys for which there was no room.
    pub overflowed: u64,
}

impl TableStats {
    /// The statistics of a table outside a memory.
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

    /// A table without room for any key.
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
    /// The statistics of each table. It reads all keys of each table, so it is for metrics and operators, not for
    /// requests.
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
        // These two tables count no expiry: a key exists only while it has something in use.
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

    /// How many permits of concurrency limits are held at present.
    pub fn in_flight(&self) -> u64 {
        let stats = self.concurrency.stats();
        let ended = stats.succeeded + stats.dropped + stats.ignored + stats.cancelled;
        stats.acquired.saturating_sub(ended)
    }

    /// The number of keys with guaranteed room in each table.
    fn capacity(&self) -> usize {
        self.rates.capacity()
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// The statistics of quotas, and whether their file could be written, if they have one.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// assert_eq!(Memory::new().quota_stats().failed_flushes, 0);
    /// ```
    pub fn quota_stats(&self) -> quota::Stats {
        self.quotas.stats()
    }

    /// Saves the usage of quotas immediately, on this thread. Without a file it does nothing. The usage is also saved
    /// every second, and when the memory is dropped.
    ///
    /// # Errors
    /// If the file can't be written. The next flush tries again.
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

//! The tables of a memory in a snapshot: GCRA, each other algorithm, and windows.

use std::path::Path;
use std::sync::atomic::Ordering;

use tollgate::quota::FileError;
use tollgate::snapshot::{
    LoadCounts, SnapshotError, SnapshotReader, SnapshotTimes, SnapshotWriter,
};
use tollgate::stored_keys::DecodedKey;
use tollgate::{Clock, KeyedLimiter, StoredKeyLimiter, Timestamp};

use super::keys::CounterKey;
use super::{Memory, MemoryBuilder};
use crate::limits::EXACT_ALGORITHMS;

/// The tables of rates.
pub(crate) struct Tables<C: Clock, W: Clock> {
    pub(super) rates: KeyedLimiter<C>,
    pub(super) exact: Vec<StoredKeyLimiter<CounterKey, C>>,
    pub(super) windows: StoredKeyLimiter<CounterKey, W>,
}

impl<C: Clock, W: Clock> Memory<C, W> {
    /// The present time by the memory's clocks, for a table beside it that is saved with it.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// let times = Memory::new().times();
    /// assert!(times.wall > times.now);
    /// ```
    pub fn times(&self) -> SnapshotTimes {
        times(&self.clock, self.windows.clock())
    }

    /// A number that grows with every charge and refund of rates. While it stays the same, there is nothing new to
    /// save.
    ///
    /// ```
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// use tollgate_engine::backend::Memory;
    ///
    /// let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, Memory::new())?;
    /// assert_eq!(engine.backend().changes(), 0);
    /// assert!(engine.decide(&Facts::new()).allowed().is_some());
    /// assert_eq!(engine.backend().changes(), 1);
    /// assert!(engine.decide(&Facts::new()).denied().is_some());
    /// assert_eq!(engine.backend().changes(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn changes(&self) -> u64 {
        let exact = self.exact_tables.iter().map(|table| table.stats().allowed);
        let rates = self.rates.stats().allowed + self.windows.stats().allowed;
        rates + exact.sum::<u64>() + self.reset_epoch.load(Ordering::Acquire)
    }

    /// Writes all active keys of rates, and returns their number. Permits end with the process that holds them.
    pub(crate) fn save(&self, file: &mut SnapshotWriter) -> Result<u64, SnapshotError> {
        let times = self.times();
        let mut keys = self.rates.save(file, times)?;
        for table in &self.exact_tables {
            keys += table.save(file, times, encode)?;
        }
        Ok(keys + self.windows.save(file, wall_times(times), encode)?)
    }
}

impl<C: Clock + Clone, W: Clock + Clone> MemoryBuilder<C, W> {
    /// The present time by the builder's clocks, for a table beside it that is restored with it.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// let times = Memory::builder().times();
    /// assert!(times.wall > times.now);
    /// ```
    pub fn times(&self) -> SnapshotTimes {
        times(&self.clock, &self.wall)
    }

    /// The tables of a snapshot, without keys of counters that aren't live. Keys of GCRA don't contain their counter,
    /// so they are all loaded and expire when idle. The downtime is computed from `unset_wall` if that is known.
    /// Windows use the wall clock as it is.
    pub(crate) fn load(
        &self,
        file: &mut SnapshotReader,
        unset_wall: Option<Timestamp>,
        is_live: impl Fn(u64) -> bool,
    ) -> Result<(Tables<C, W>, LoadCounts), SnapshotError> {
        let shown = self.times();
        let times = SnapshotTimes {
            wall: unset_wall.unwrap_or(shown.wall),
            ..shown
        };
        let decode = |bytes: &[u8]| match decode(bytes) {
            Some(key) if is_live(key.0) => DecodedKey::Key(key),
            Some(_) => DecodedKey::Skipped,
            None => DecodedKey::Unknown,
        };
        let (rates, mut loaded) = self.rates().load(file, times)?;
        let mut exact = Vec::with_capacity(EXACT_ALGORITHMS.len());
        for algorithm in EXACT_ALGORITHMS {
            let (table, own) = self.exact(algorithm).load(file, times, decode)?;
            exact.push(table);
            loaded = loaded.merged_with(own);
        }
        let (windows, own) = self.windows().load(file, wall_times(shown), decode)?;
        let tables = Tables {
            rates,
            exact,
            windows,
        };
        Ok((tables, loaded.merged_with(own)))
    }

    /// Builds the memory around these tables, with quotas in a file if one is given.
    pub(crate) fn build_around(
        self,
        tables: Tables<C, W>,
        quotas: Option<&Path>,
    ) -> Result<Memory<C, W>, FileError> {
        let quotas = match quotas {
            Some(path) => self.quotas().open(path)?,
            None => self.quotas().build().map_err(FileError::Limit)?,
        };
        Ok(self.build_with_tables(quotas, tables))
    }

    /// The clock that shows the time of day.
    pub(crate) fn wall_clock(&self) -> &W {
        &self.wall
    }

    /// The clock by which rates are counted.
    ///
    /// ```
    /// use tollgate::clock::Clock;
    /// use tollgate_engine::backend::Memory;
    ///
    /// let builder = Memory::builder();
    /// assert!(builder.rate_clock().now() <= builder.times().now);
    /// ```
    pub fn rate_clock(&self) -> &C {
        &self.clock
    }
}

/// The clock of rates is read first: time that passes between the two reads counts as not passed.
fn times(clock: &impl Clock, wall: &impl Clock) -> SnapshotTimes {
    SnapshotTimes {
        now: clock.now(),
        wall: wall.now(),
    }
}

/// The same time for a table that counts by the wall clock.
fn wall_times(times: SnapshotTimes) -> SnapshotTimes {
    SnapshotTimes {
        now: times.wall,
        ..times
    }
}

fn encode(key: &CounterKey, bytes: &mut Vec<u8>) {
    let CounterKey(counter, [low, high]) = *key;
    for word in [counter, low, high] {
        bytes.extend(word.to_le_bytes());
    }
}

fn decode(bytes: &[u8]) -> Option<CounterKey> {
    let (&[counter, low, high], []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let [counter, low, high] = [counter, low, high].map(u64::from_le_bytes);
    Some(CounterKey(counter, [low, high]))
}

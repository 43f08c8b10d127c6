//! The builder of a memory: its capacity and its clocks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate::clock::{Monotonic, Wall};
use tollgate::quota::{self, FileError, OnFileFailure, Quota};
use tollgate::{
    Algorithm, Clock, CompositeLimiter, KeyedConcurrencyLimiter, KeyedLimiter, LimitError,
    QuotaLimiter, Rate, StoredKeyLimiter, keyed, stored_keys,
};

use super::keys::CounterKey;
use super::snapshot::Tables;
use super::{Memory, WINDOWS};
use crate::limits::EXACT_ALGORITHMS;

/// A placeholder: every check brings its own rate.
const RATE: Rate = Rate::per_second(1);

/// Builds a [`Memory`]. Created by [`Memory::builder`].
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Memory;
///
/// let clock = Manual::new();
/// let memory = Memory::builder().capacity(1_000).clock(clock.clone()).wall(clock).build();
/// assert_eq!(memory.keys_in_flight(), 0);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct MemoryBuilder<C = Monotonic, W = Wall> {
    pub(super) capacity: usize,
    pub(super) clock: C,
    pub(super) wall: W,
    pub(super) on_quota_file_failure: OnFileFailure,
    pub(super) flush_quotas_every: Duration,
}

impl<C, W> MemoryBuilder<C, W> {
    /// Sets how many active keys have guaranteed room: a million by default. The number applies separately to GCRA,
    /// to each other algorithm, to concurrency and to quotas.
    pub fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys;
        self
    }

    /// Sets what quotas decide while their [file](Self::quota_file) can't be written and the unsaved usage has
    /// reached its bound: [`OnFileFailure::Deny`] by default.
    ///
    /// ```
    /// use tollgate::quota::OnFileFailure;
    /// use tollgate_engine::backend::Memory;
    ///
    /// let memory = Memory::builder().on_quota_file_error(OnFileFailure::Allow).build();
    /// assert_eq!(memory.quota_stats().failed_flushes, 0);
    /// ```
    pub const fn on_quota_file_error(mut self, answer: OnFileFailure) -> Self {
        self.on_quota_file_failure = answer;
        self
    }

    /// Sets how often the usage of quotas is written to their [file](Self::quota_file): every second by default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_engine::backend::Memory;
    ///
    /// let memory = Memory::builder().flush_quotas_every(Duration::from_millis(100)).build();
    /// assert_eq!(memory.quota_stats().flushes, 0);
    /// ```
    pub const fn flush_quotas_every(mut self, interval: Duration) -> Self {
        self.flush_quotas_every = interval;
        self
    }

    /// Counts rates by this clock instead of [`Monotonic`], except for fixed windows.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<D, W> {
        MemoryBuilder {
            capacity: self.capacity,
            clock,
            wall: self.wall,
            on_quota_file_failure: self.on_quota_file_failure,
            flush_quotas_every: self.flush_quotas_every,
        }
    }

    /// Counts quotas and fixed windows by this clock instead of [`Wall`]. It shows nanoseconds since the Unix epoch,
    /// to which windows are aligned.
    pub fn wall<D: Clock>(self, wall: D) -> MemoryBuilder<C, D> {
        MemoryBuilder {
            capacity: self.capacity,
            clock: self.clock,
            wall,
            on_quota_file_failure: self.on_quota_file_failure,
            flush_quotas_every: self.flush_quotas_every,
        }
    }
}

impl<C: Clock + Clone, W: Clock + Clone> MemoryBuilder<C, W> {
    /// Builds the memory. Its tables grow as keys arrive. The usage of quotas is lost when it is dropped:
    /// [`quota_file`](Self::quota_file) builds one that keeps it.
    ///
    /// # Panics
    /// Never: the tables are created with a rate that every algorithm supports.
    pub fn build(self) -> Memory<C, W> {
        let (tables, quotas) = (self.tables(), self.quotas().build());
        let quotas = quotas.expect("the default at the cap is one that quotas have");
        self.build_with_tables(quotas, tables)
    }

    /// Builds the memory, and keeps the usage of quotas in this file: a restart continues from there. The file is
    /// created if it doesn't exist. Rates and permits stay in memory only (see
    /// [`Engine::save`](crate::Engine::save)). [`tollgate::quota`] describes what a crash can lose: by default, at
    /// most the usage of the last second.
    ///
    /// The file names quotas by their rules and tiers. A policy that is changed or reloaded continues with the usage
    /// of those that keep their names.
    ///
    /// # Errors
    /// If the file can't be read or written, is damaged or isn't such a file, or has more keys than the capacity; or
    /// if another process or another `Memory` has it open.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Facts, Policy};
    /// # use tollgate_testkit::temp_folder::TempFolder;
    /// # let folder = TempFolder::new("memory-quota-file");
    /// # let path = folder.path("quotas");
    ///
    /// let file = "limits: [{name: exports, quota: 2/month}]";
    /// let policy = Policy::from_text(file, Format::Yaml)?.policy;
    /// let facts = Facts::new();
    /// let engine = Engine::new(policy.clone(), Memory::builder().quota_file(&path)?)?;
    /// assert!(engine.decide(&facts).allowed().is_some());
    /// drop(engine);
    ///
    /// let restarted = Engine::new(policy, Memory::builder().quota_file(&path)?)?;
    /// assert!(restarted.decide(&facts).allowed().is_some());
    /// assert!(restarted.decide(&facts).denied().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quota_file(self, path: impl AsRef<Path>) -> Result<Memory<C, W>, FileError> {
        let tables = self.tables();
        self.build_around(tables, Some(path.as_ref()))
    }

    pub(super) fn quotas(&self) -> quota::Builder<W> {
        // A placeholder: every check brings its own quota.
        QuotaLimiter::builder(Quota::per_day(1), self.capacity)
            .on_file_failure(self.on_quota_file_failure)
            .flush_every(self.flush_quotas_every)
            .clock(self.wall.clone())
    }

    /// Empty tables.
    fn tables(&self) -> Tables<C, W> {
        let exact = EXACT_ALGORITHMS.map(|algorithm| self.exact(algorithm).build());
        let exact: Result<_, LimitError> = exact.into_iter().collect();
        let (rates, windows) = (self.rates().build(), self.windows().build());
        Tables {
            rates: rates.expect("one a second is a rate for GCRA"),
            exact: exact.expect("one a second is a rate for every algorithm"),
            windows: windows.expect("one a second is a rate for windows"),
        }
    }

    pub(super) fn rates(&self) -> keyed::Builder<C> {
        KeyedLimiter::builder(RATE, self.capacity)
            .longest_wait(Duration::ZERO)
            .clock(self.clock.clone())
    }

    pub(super) fn exact(&self, algorithm: Algorithm) -> stored_keys::Builder<CounterKey, C> {
        StoredKeyLimiter::builder(RATE, self.capacity)
            .algorithm(algorithm)
            .longest_wait(Duration::ZERO)
            .clock(self.clock.clone())
    }

    pub(super) fn windows(&self) -> stored_keys::Builder<CounterKey, W> {
        StoredKeyLimiter::builder(RATE, self.capacity)
            .algorithm(WINDOWS)
            .longest_wait(Duration::ZERO)
            .clock(self.wall.clone())
    }

    pub(super) fn build_with_tables(
        self,
        quotas: QuotaLimiter<W>,
        tables: Tables<C, W>,
    ) -> Memory<C, W> {
        let slots = KeyedConcurrencyLimiter::builder(1, self.capacity).clock(self.clock.clone());
        Memory {
            rates: tables.rates,
            exact_tables: tables.exact.into_iter().map(Arc::new).collect(),
            windows: Arc::new(tables.windows),
            concurrency: Arc::new(
                slots
                    .build()
                    .expect("the default at the cap is one that slots have"),
            ),
            quotas: Arc::new(quotas),
            stack: CompositeLimiter::new(),
            lost_races: AtomicU64::new(0),
            reset_epoch: AtomicU64::new(0),
            clock: self.clock,
        }
    }
}

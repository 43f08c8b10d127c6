//! How many keys a memory has room for, and by which clocks it counts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate::clock::{Monotonic, Wall};
use tollgate::quota::Quota;
use tollgate::{
    Clock, ExactKeyedLimiter, KeyedConcurrency, KeyedLimiter, LimitError, QuotaLimiter, Rate, Stack,
};

use super::{Memory, TABLES, WINDOWS};

/// Builds a [`Memory`]; made by [`Memory::builder`].
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Memory;
///
/// let clock = Manual::new();
/// let memory = Memory::builder().keys(1_000).clock(clock.clone()).wall(clock).build();
/// assert_eq!(memory.keys_in_flight(), 0);
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct MemoryBuilder<C = Monotonic, W = Wall> {
    pub(super) keys: usize,
    pub(super) clock: C,
    pub(super) wall: W,
}

impl<C, W> MemoryBuilder<C, W> {
    /// How many active keys of all limits together are sure of a slot: a million unless said
    /// otherwise; of GCRA, of each other algorithm, of concurrency and of quotas as many each.
    pub fn keys(mut self, most: usize) -> Self {
        self.keys = most;
        self
    }

    /// Rates are counted by this clock instead of [`Monotonic`], but for fixed windows.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<D, W> {
        MemoryBuilder {
            keys: self.keys,
            clock,
            wall: self.wall,
        }
    }

    /// Quotas and fixed windows are counted by this clock instead of [`Wall`]: nanoseconds since the
    /// Unix epoch, to which windows are aligned.
    pub fn wall<D: Clock>(self, wall: D) -> MemoryBuilder<C, D> {
        MemoryBuilder {
            keys: self.keys,
            clock: self.clock,
            wall,
        }
    }
}

impl<C: Clock + Clone, W: Clock + Clone> MemoryBuilder<C, W> {
    /// Builds it. Memory is reserved as keys come.
    ///
    /// # Panics
    /// Never: the tables are made for a rate that every algorithm takes.
    pub fn build(self) -> Memory<C, W> {
        // Every check brings its own.
        let rate = Rate::per_second(1);
        let rates = KeyedLimiter::builder(rate, self.keys)
            .longest_wait(Duration::ZERO)
            .clock(self.clock.clone())
            .build();
        let exact = TABLES.map(|algorithm| {
            ExactKeyedLimiter::builder(rate, self.keys)
                .algorithm(algorithm)
                .longest_wait(Duration::ZERO)
                .clock(self.clock.clone())
                .build()
        });
        let exact: Result<_, LimitError> = exact.into_iter().collect();
        let windows = ExactKeyedLimiter::builder(rate, self.keys)
            .algorithm(WINDOWS)
            .longest_wait(Duration::ZERO)
            .clock(self.wall.clone())
            .build();
        let slots = KeyedConcurrency::builder(1, self.keys).clock(self.clock.clone());
        let quotas = QuotaLimiter::builder(Quota::per_day(1))
            .max_keys(self.keys)
            .clock(self.wall);
        Memory {
            rates: rates.expect("one a second is a rate for GCRA"),
            exact: exact.expect("one a second is a rate for every algorithm"),
            windows: windows.expect("one a second is a rate for windows"),
            slots: Arc::new(slots.build()),
            quotas: quotas.build(),
            stack: Stack::new(),
            lost_races: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            clock: self.clock,
        }
    }
}

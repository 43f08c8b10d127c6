//! The backend in memory: all limits of a policy in a few tables that they share.
//!
//! The rate comes with each check, and the counter's number is part of the key. So a policy of ten thousand limits
//! needs no more tables than one of ten, and a reload touches none of them.

use std::array;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use tollgate::clock::{Monotonic, Wakeup, Wall};
use tollgate::quota::OnFileFailure;
use tollgate::{
    Algorithm, Clock, CompositeLimiter, KeyedConcurrencyLimiter, KeyedLimiter,
    Limit as ComposedLimit, QuotaLimiter, StoredKeyLimiter, Timestamp,
    core::WindowAlignment,
    keyed::{self, CombinedDecision},
    stack::{CompositeDecision, HeldPermits},
};

use super::{Backend, Clocks, Refund, RefundResult};
use crate::limits::{Answer, Check, CheckResult, CompiledLimit, Limit};

mod builder;
mod estimates;
mod keys;
mod snapshot;
mod table_stats;

pub use builder::MemoryBuilder;
pub use table_stats::TableStats;

use estimates::is_estimated_check;
use keys::{
    CounterKey, KeyStorage, QuotaBytes, TableKey, UNNAMED, exact_key_at, gcra_key_at, level,
};

/// The number of checks that need no allocation.
const INLINE: usize = 8;
/// The algorithm of the table of fixed windows. Each rate brings its own alignment.
const WINDOWS: Algorithm = Algorithm::FixedWindow(WindowAlignment::FirstHit);

/// Keeps the state of all limits in this process.
///
/// GCRA is counted by a 64-bit fingerprint of counter and key. [`KeyedLimiter`] states what that means: with a
/// million keys, the probability that any two share a limit is 3 in 100 million. Other algorithms and concurrency are
/// counted by a fingerprint of 128 bits, quotas by the key itself. All tables are bounded. Keys beyond the bound
/// share one bucket, and quotas deny them.
///
/// The state is lost when the process ends, unless [`Engine::save`](crate::Engine::save) writes it. The usage of
/// quotas is kept by a file of their own: [`MemoryBuilder::quota_file`].
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Memory;
///
/// let clock = Manual::new();
/// let memory = Memory::builder().capacity(10_000).clock(clock.clone()).wall(clock).build();
/// assert_eq!(memory.lost_races(), 0);
/// ```
#[derive(derive_more::Debug)]
#[debug("Memory {{ rates: {rates:?}, quotas: {}, concurrency: {concurrency:?}, .. }}", quotas.stats().keys)]
pub struct Memory<C: Clock = Monotonic, W: Clock = Wall> {
    rates: KeyedLimiter<C>,
    // Behind `Arc`, because permits and estimates that requests hold refer to their table.
    exact_tables: Box<[Arc<StoredKeyLimiter<CounterKey, C>>]>,
    /// Fixed windows, which are aligned to the time of day.
    windows: Arc<StoredKeyLimiter<CounterKey, W>>,
    concurrency: Arc<KeyedConcurrencyLimiter<CounterKey, C>>,
    quotas: Arc<QuotaLimiter<W>>,
    stack: CompositeLimiter,
    /// The lost races of checks that bypassed the composite limiter. No decision reads the number.
    lost_races: AtomicU64,
    /// How often keys were reset or refunded. Read (acquire) before a denial is cached or repeated.
    reset_epoch: AtomicU64,
    clock: C,
}

impl Memory {
    /// A memory for a million keys, on the system's clocks.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Builds a memory with another capacity or other clocks.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder {
            capacity: 1_000_000,
            clock: Monotonic::new(),
            wall: Wall,
            on_quota_file_failure: OnFileFailure::default(),
            flush_quotas_every: Duration::from_secs(1),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// Charges all checks, or none, immediately.
    #[inline]
    pub fn answer(&self, checks: &[Check<'_>]) -> Answer {
        // Most policies only use GCRA, and most requests have few checks: the code for a fixed number of them is
        // shorter.
        let together = match checks {
            [] => None,
            [a] => self.charge_together([a]),
            [a, b] => self.charge_together([a, b]),
            [a, b, c] => self.charge_together([a, b, c]),
            [a, b, c, d] => self.charge_together([a, b, c, d]),
            _ => self.charge_many_together(checks),
        };
        match together {
            Some(together) => self.answer_of(&together),
            None => self.charge_mixed(checks),
        }
    }

    /// Charges all checks, or none. `None` unless all are of GCRA.
    #[inline]
    fn charge_together<const N: usize>(&self, checks: [&Check<'_>; N]) -> Option<CombinedDecision> {
        let first = self.gcra_key(checks.first()?)?;
        let mut keys = [first; N];
        for (key, check) in keys.iter_mut().zip(checks).skip(1) {
            *key = self.gcra_key(check)?;
        }
        Some(self.rates.check_all(&keys))
    }

    #[inline(never)]
    fn charge_many_together(&self, checks: &[Check<'_>]) -> Option<CombinedDecision> {
        let first = self.gcra_key(checks.first()?)?;
        let mut keys = [first; INLINE];
        let keys = keys.get_mut(..checks.len())?;
        for (key, check) in keys.iter_mut().zip(checks).skip(1) {
            *key = self.gcra_key(check)?;
        }
        Some(self.rates.check_all(keys))
    }

    #[inline]
    fn answer_of(&self, together: &CombinedDecision) -> Answer {
        if together.lost_race {
            self.lost_races.fetch_add(1, Ordering::Relaxed);
        }
        Answer::new(together.decided_by, together.decision)
    }

    /// The key and cost of a check of GCRA.
    #[inline]
    fn gcra_key<'a>(&'a self, check: &Check<'a>) -> Option<(keyed::Key<'a, C>, u64)> {
        let CompiledLimit::Gcra(tier) = &check.limit.compiled else {
            return None;
        };
        let key = gcra_key_at(self.rates.key(&CounterKey::of(check)), tier);
        Some((key, check.cost))
    }

    #[inline(never)]
    fn charge_mixed(&self, checks: &[Check<'_>]) -> Answer {
        if checks.iter().any(is_estimated_check) {
            return self.charge_estimated(checks);
        }
        match checks.len() {
            1 => return self.charge_inline::<1>(checks),
            2..=INLINE => return self.charge_inline::<INLINE>(checks),
            _ => {}
        }
        let owned: Vec<_> = checks
            .iter()
            .map(|check| KeyStorage::of(Some(check)))
            .collect();
        let held: Vec<_> = (checks.iter().zip(&owned))
            .map(|(check, owned)| self.table_key(Some(check), owned))
            .collect();
        let levels: Vec<_> = (held.iter().zip(checks))
            .filter_map(|(held, check)| level(held, check))
            .collect();
        self.charge_levels(&levels)
    }

    /// Charges at most `N` checks without an allocation.
    fn charge_inline<const N: usize>(&self, checks: &[Check<'_>]) -> Answer {
        let owned: [KeyStorage; N] = array::from_fn(|number| KeyStorage::of(checks.get(number)));
        let held: [TableKey<'_, C, W>; N] =
            array::from_fn(|number| self.table_key(checks.get(number), &owned[number]));
        let Some(first) = checks.first().and_then(|check| level(&held[0], check)) else {
            return self.charge_levels(&[]);
        };
        let levels: [ComposedLimit<'_>; N] = array::from_fn(|number| {
            let check = checks.get(number);
            check
                .and_then(|check| level(&held[number], check))
                .unwrap_or_else(|| first.clone())
        });
        self.charge_levels(&levels[..checks.len()])
    }

    fn charge_levels(&self, levels: &[ComposedLimit<'_>]) -> Answer {
        match self.stack.check(levels) {
            CompositeDecision::Allowed(passed) => Answer {
                allowed: true,
                pass: passed.permits,
                ..Answer::new(passed.deciding_limit, passed.decision)
            },
            CompositeDecision::Denied(refusal) => Answer {
                allowed: false,
                ..Answer::new(Some(refusal.index), refusal.decision)
            },
        }
    }

    /// Charges a check of a rate as far as there is room, whatever it costs. Returns false if its key is beyond the
    /// table's bound: the bucket that such keys share isn't charged for one of them.
    pub fn charge_available(&self, check: &Check<'_>) -> bool {
        let (key, cost) = (CounterKey::of(check), check.cost);
        match &check.limit.compiled {
            CompiledLimit::Gcra(tier) => gcra_key_at(self.rates.key(&key), tier)
                .penalize(cost)
                .is_ok(),
            CompiledLimit::Exact(table, tier) => {
                let key = exact_key_at(self.exact_tables[*table].key(&key), tier);
                key.penalize(cost).is_ok()
            }
            CompiledLimit::Window(tier) => exact_key_at(self.windows.key(&key), tier)
                .penalize(cost)
                .is_ok(),
            CompiledLimit::Quota(_) | CompiledLimit::Concurrency(_) => true,
        }
    }

    /// Clears the usage of a log or a quota, before the caller sets it anew. It starts no new
    /// [epoch](Backend::deny_epoch), because this allows no request sooner.
    pub fn clear_key(&self, check: &Check<'_>) {
        match &check.limit.compiled {
            CompiledLimit::Exact(table, _) => self.exact_tables[*table]
                .key(&CounterKey::of(check))
                .reset(),
            CompiledLimit::Quota(_) => self.quotas.reset(QuotaBytes::of(check).as_slice()),
            CompiledLimit::Gcra(_) | CompiledLimit::Window(_) | CompiledLimit::Concurrency(_) => {}
        }
    }

    /// Holds a permit of a concurrency limit, even above the limit.
    pub fn hold_permit(&self, check: &Check<'_>) -> Option<HeldPermits> {
        let key = CounterKey::of(check);
        match check.limit.compiled {
            CompiledLimit::Concurrency(_) => {
                let slot = self.concurrency.key_owned(&key).at(u32::MAX);
                self.stack.allow(&[ComposedLimit::new(UNNAMED, &slot)])
            }
            _ => None,
        }
    }

    /// The clock by which rates are counted.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Refunds the cost of these checks, whatever it was charged for: at most what was spent. Permits that are held
    /// stay held.
    pub fn refund_checks(&self, checks: &[Check<'_>]) {
        for check in checks {
            let (key, units) = (CounterKey::of(check), check.cost);
            match &check.limit.compiled {
                CompiledLimit::Gcra(tier) => gcra_key_at(self.rates.key(&key), tier).refund(units),
                CompiledLimit::Exact(table, _) => self.exact_tables[*table].key(&key).refund(units),
                CompiledLimit::Window(_) => self.windows.key(&key).refund(units),
                CompiledLimit::Quota(_) => {
                    self.quotas.refund(QuotaBytes::of(check).as_slice(), units);
                }
                CompiledLimit::Concurrency(_) => {}
            }
        }
        self.reset_epoch.fetch_add(1, Ordering::Release);
    }

    /// Clears what the keys of these checks have spent. Permits that are held stay held.
    pub fn reset_checks(&self, checks: &[Check<'_>]) {
        for check in checks {
            let key = CounterKey::of(check);
            match &check.limit.compiled {
                CompiledLimit::Gcra(_) => self.rates.key(&key).reset(),
                CompiledLimit::Exact(table, _) => self.exact_tables[*table].key(&key).reset(),
                CompiledLimit::Window(_) => self.windows.key(&key).reset(),
                CompiledLimit::Quota(_) => self.quotas.reset(QuotaBytes::of(check).as_slice()),
                CompiledLimit::Concurrency(_) => {}
            }
        }
        // Incremented last: a denial from before the reset must not be repeated.
        self.reset_epoch.fetch_add(1, Ordering::Release);
    }

    /// How many requests were denied although every limit had room when it was read, because another request was
    /// charged in between.
    pub fn lost_races(&self) -> u64 {
        self.stack.lost_races() + self.lost_races.load(Ordering::Relaxed)
    }

    /// The statistics of the table of GCRA.
    pub fn rate_stats(&self) -> keyed::Stats {
        self.rates.stats()
    }

    /// How many keys of concurrency limits have requests in flight.
    pub fn keys_in_flight(&self) -> usize {
        self.concurrency.len()
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Backend for Memory<C, W> {
    type Error = Infallible;

    #[inline]
    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        let answer = self.answer(checks);
        if let Some(each) = each {
            let said = self.decisions_after(checks, answer.allowed);
            each.extend(said.into_iter().map(Ok));
        }
        ready(Ok(answer))
    }

    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<CheckResult>, Infallible>> + Send + 'a {
        ready(Ok(self.peek_each(checks).into_iter().map(Ok).collect()))
    }

    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> impl Future<Output = Result<RefundResult, Infallible>> + Send + 'a {
        match refund {
            Refund::Cost | Refund::Dropped => self.refund_checks(checks),
            Refund::Reset => self.reset_checks(checks),
        }
        ready(Ok(RefundResult::Refunded))
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            clock: Arc::new(TableClock(Arc::clone(&self.concurrency))),
            wall: Arc::new(TableClock(Arc::clone(&self.windows))),
        }
    }

    #[inline]
    fn prefetch(&self, limit: &Limit, fingerprint: [u64; 2]) {
        if let CompiledLimit::Gcra(_) = limit.compiled {
            self.rates
                .key(&CounterKey(limit.id, fingerprint))
                .prefetch();
        }
    }

    fn deny_epoch(&self) -> Option<u64> {
        // A lost race denies a request that had room, so its denial must not be repeated from a cache.
        Some(self.lost_races() + self.reset_epoch.load(Ordering::Acquire))
    }
}

/// The clock of a table, which keeps the table alive after the memory is dropped.
struct TableClock<T>(Arc<T>);

impl<C: Clock> Clock for TableClock<KeyedConcurrencyLimiter<CounterKey, C>> {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.0.clock().schedule_wakeup(at, waker)
    }
}

impl<W: Clock> Clock for TableClock<StoredKeyLimiter<CounterKey, W>> {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}

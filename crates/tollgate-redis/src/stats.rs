//! What a `Redis` counts.

use std::sync::atomic::Ordering;

use tollgate_engine::backend::TableStats;

use crate::failure::FailureStats;
use crate::fallback::{BreakerState, FallbackStats};
use crate::redis::{Home, Redis};

/// What a [`Redis`] has counted.
///
/// ```
/// use tollgate_redis::RedisStats;
///
/// /// How many questions each round trip answered.
/// fn merged(stats: &RedisStats) -> u64 {
///     stats.questions / stats.round_trips.max(1)
/// }
/// assert_eq!(merged(&RedisStats::default()), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Scripts that were run: round trips.
    pub round_trips: u64,
    /// Questions that they answered.
    pub questions: u64,
    /// Round trips that failed.
    pub failed_round_trips: u64,
    /// Questions that got no answer in time.
    pub timeouts: u64,
    /// Connections that were made.
    pub connects: u64,
    /// How often a key was asked about that holds what no limiter wrote: [`StoreError::Foreign`](crate::StoreError).
    pub strange_keys: u64,
    /// Refusals that were repeated without asking.
    pub near_hits: u64,
    /// Tokens that this node holds of leased limits.
    pub leased: u64,
    /// Slots that this node holds.
    pub slots: usize,
    /// Slots that ran out while they were held, and that others have taken: the node was asleep or the store
    /// away for too long, or the store's clock stepped forward. What was free was taken again, and isn't lost.
    pub lost_slots: u64,
    /// Nodes of the fleet, as given or learned.
    pub nodes: u64,
    /// How many microseconds the store's clock is ahead of this machine's; of a cluster, that of the node which is
    /// farthest off. None as long as it isn't known.
    pub clock_offset_micros: Option<i64>,
    /// Whether rules that circuit-break ask the store.
    pub breaker: BreakerState,
    /// What was decided without the store.
    pub fallback: FallbackStats,
    /// Every question that failed, by what sort of failure it was: those that [`fallback`](Self::fallback)
    /// counts as errors, and those that were asked without a failure policy, as by
    /// [`try_check`](crate::RedisLimiter::try_check). What nobody waited for, such as the renewal of a lease,
    /// is only in [`failed_round_trips`](Self::failed_round_trips).
    pub failures: Vec<FailureStats>,
}

impl Redis {
    /// What it has counted.
    pub fn stats(&self) -> RedisStats {
        let fallback = match &self.home {
            Home::Store(fallback) => fallback,
            Home::Memory(fallback) => {
                let inner = fallback.store();
                let counts = inner.counts();
                return RedisStats {
                    round_trips: counts.round_trips,
                    questions: counts.questions,
                    failed_round_trips: counts.failed,
                    timeouts: counts.timeouts,
                    near_hits: inner.repeated_refusals(),
                    leased: inner.leased(),
                    nodes: fallback.local().nodes(),
                    breaker: fallback.breaker_state(),
                    fallback: fallback.stats(),
                    failures: fallback.failures.stats(),
                    ..RedisStats::default()
                };
            }
        };
        let direct = fallback.store();
        let stats = direct.store.stats();
        RedisStats {
            round_trips: stats.calls.load(Ordering::Relaxed),
            questions: stats.questions.load(Ordering::Relaxed),
            failed_round_trips: stats.failed_calls.load(Ordering::Relaxed),
            timeouts: stats.timeouts.load(Ordering::Relaxed),
            connects: stats.connects.load(Ordering::Relaxed),
            strange_keys: stats.strange_keys.load(Ordering::Relaxed),
            near_hits: direct.refusals.repeated(),
            leased: direct.leases.held(),
            slots: direct.holders.held(),
            lost_slots: direct.holders.lost(),
            nodes: fallback.local().nodes(),
            clock_offset_micros: stats.skew.worst(),
            breaker: fallback.breaker_state(),
            fallback: fallback.stats(),
            failures: fallback.failures.stats(),
        }
    }

    /// The tables of this process's part of the limits, which decides while the store can't be asked: see
    /// [`Memory::tables`](tollgate_engine::backend::Memory::tables).
    pub fn tables(&self) -> Vec<TableStats> {
        match &self.home {
            Home::Store(fallback) => fallback.local().memory().tables(),
            Home::Memory(fallback) => fallback.local().memory().tables(),
        }
    }
}

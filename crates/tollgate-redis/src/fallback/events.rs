//! Events of a store, and how they are reported and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use derive_more::Display;
use tollgate::Timestamp;

/// Errors are reported at most once in this time.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct FallbackCounters {
    pub(super) errors: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) local: AtomicU64,
}

/// The counters of a [`Fallback`](super::Fallback).
///
/// ```
/// use tollgate_redis::FallbackStats;
///
/// /// Decisions without a store query.
/// fn without(stats: &FallbackStats) -> u64 {
///     stats.open + stats.closed + stats.local
/// }
/// assert_eq!(without(&FallbackStats::default()), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackStats {
    /// Queries that got no answer from the store.
    pub errors: u64,
    /// Requests that passed because the store was unreachable.
    pub open: u64,
    /// Requests that were denied because the store was unreachable.
    pub closed: u64,
    /// Requests that were decided in this process.
    pub local: u64,
    /// How often the circuit opened.
    pub trips: u64,
    /// Decisions that one side never learns of. Of those without the store: too many keys waited to be reported
    /// to it. Of the store's: there is no memory for more keys here.
    pub unrecorded: u64,
}

/// An event of a store.
///
/// ```
/// use tollgate_redis::StoreEvent;
///
/// fn line(event: &StoreEvent<'_>) -> String {
///     match event {
///         StoreEvent::Failed { error, suppressed } => format!("{error} (and {suppressed} more)"),
///         other => format!("{other:?}"),
///     }
/// }
/// let failed = StoreEvent::Failed { error: "no route", suppressed: 3 };
/// assert_eq!(line(&failed), "no route (and 3 more)");
/// // Its text is that of the log.
/// assert_eq!(failed.to_string(), "a store query failed: no route (and 3 times more)");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// A query failed. Reported at most once a second, with the number of failures in between.
    #[display("a store query failed: {error}{}", suppressed_text(*suppressed))]
    Failed {
        /// The cause.
        error: &'a str,
        /// Failures since the last report.
        suppressed: u64,
    },
    /// A key has a value that no limiter wrote. Requests of this key are decided without the store, and no
    /// others. Reported at most once a second, together with failures.
    #[display("{error}{}", suppressed_text(*suppressed))]
    KeyFailed {
        /// The key, and what to do.
        error: &'a str,
        /// Failures since the last report.
        suppressed: u64,
    },
    /// From now on, requests are decided without the store.
    #[display("requests are decided without the store from now on")]
    FallbackStarted,
    /// The store answers again.
    #[display("the store answers again, after {} s", after.as_secs())]
    FallbackEnded {
        /// How long the fallback was active.
        after: Duration,
    },
    /// The circuit opened: rules that circuit-break don't query the store.
    #[display("the store isn't queried for {} s by rules that circuit-break", open_for.as_secs())]
    CircuitOpened {
        /// For how long.
        open_for: Duration,
    },
    /// The circuit closed: the store is queried again.
    #[display("the store is queried again")]
    CircuitClosed,
}

/// The number of suppressed failures in words; empty if there are none.
fn suppressed_text(suppressed: u64) -> String {
    match suppressed {
        0 => String::new(),
        more => format!(" (and {more} times more)"),
    }
}

/// Limits how often failures are reported.
#[derive(Debug, Default)]
pub(super) struct EventThrottle {
    /// When a failure was last reported; 0 if never.
    last_emitted_at: AtomicU64,
    suppressed: AtomicU64,
}

impl EventThrottle {
    /// Whether this failure is reported. Returns how many were suppressed since the last report.
    pub(super) fn try_emit(&self, now: Timestamp) -> Option<u64> {
        let told_at = self.last_emitted_at.load(Ordering::Relaxed);
        let since = now.nanos_since(Timestamp::from_nanos(told_at));
        let is_due = told_at == 0 || u128::from(since) >= EVENT_INTERVAL.as_nanos();
        let (nanos, relaxed) = (now.as_nanos().max(1), Ordering::Relaxed);
        let claim = || (self.last_emitted_at).compare_exchange(told_at, nanos, relaxed, relaxed);
        if is_due && claim().is_ok() {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

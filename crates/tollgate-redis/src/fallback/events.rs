//! What happens to a store, as it is told and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use derive_more::Display;
use tollgate::Timestamp;

/// Errors are told of at most once in this time.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct FallbackCounters {
    pub(super) errors: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) local: AtomicU64,
}

/// What a [`Fallback`](super::Fallback) has counted.
///
/// ```
/// use tollgate_redis::FallbackStats;
///
/// /// Decisions that no store was asked about.
/// fn without(stats: &FallbackStats) -> u64 {
///     stats.open + stats.closed + stats.local
/// }
/// assert_eq!(without(&FallbackStats::default()), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackStats {
    /// How often the store was asked and gave no answer.
    pub errors: u64,
    /// Requests that passed because the store couldn't be asked.
    pub open: u64,
    /// Requests that were refused because the store couldn't be asked.
    pub closed: u64,
    /// Requests that were judged in this process.
    pub local: u64,
    /// Times that the circuit was broken.
    pub trips: u64,
    /// Decisions without the store that it won't be told of, because too many keys waited for that, and
    /// decisions of the store that aren't known here, because there is no room for more keys.
    pub unrecorded: u64,
}

/// Something that happened to a store.
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
/// // Its text is as a log says it.
/// assert_eq!(failed.to_string(), "the store couldn't be asked: no route (and 3 times more)");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// It couldn't be asked. Told at most once a second, with how many more there were meanwhile.
    #[display("the store couldn't be asked: {error}{}", suppressed_text(*suppressed))]
    Failed {
        /// Why.
        error: &'a str,
        /// Failures since the last that was told.
        suppressed: u64,
    },
    /// It answered that a key holds what no limiter wrote: requests of that key are decided without it, and no others.
    /// Told at most once a second, together with failures.
    #[display("{error}{}", suppressed_text(*suppressed))]
    KeyFailed {
        /// Which key, and what to do.
        error: &'a str,
        /// Failures since the last that was told.
        suppressed: u64,
    },
    /// From now on requests are decided without it.
    #[display("requests are decided without the store from now on")]
    FallbackStarted,
    /// It answers again.
    #[display("the store answers again, after {} s", after.as_secs())]
    FallbackEnded {
        /// For how long it hadn't.
        after: Duration,
    },
    /// It isn't asked for a while, by rules that circuit-break.
    #[display("the store isn't asked for {} s by rules that circuit-break", open_for.as_secs())]
    CircuitOpened {
        /// For how long.
        open_for: Duration,
    },
    /// It is asked again.
    #[display("the store is asked again")]
    CircuitClosed,
}

/// How many more failures there were, if any.
fn suppressed_text(suppressed: u64) -> String {
    match suppressed {
        0 => String::new(),
        more => format!(" (and {more} times more)"),
    }
}

/// Which failures are told of.
#[derive(Debug, Default)]
pub(super) struct EventThrottle {
    /// When one was; 0 if none was yet.
    last_emitted_at: AtomicU64,
    suppressed: AtomicU64,
}

impl EventThrottle {
    /// Whether this failure is told of, and how many weren't since the last that was.
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

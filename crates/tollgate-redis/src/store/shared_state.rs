//! State that the driver and requests share: the queue and the counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::clock_skew::ClockSkew;
use super::queue::Queue;
use crate::error::StoreError;
use crate::host::Host;

/// The counters of queries and round trips.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    /// Scripts that were run: round trips.
    pub(crate) calls: AtomicU64,
    /// Queries in these calls.
    pub(crate) questions: AtomicU64,
    pub(crate) failed_calls: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) strange_keys: AtomicU64,
    /// Whether the latest known result of the store is a failure.
    pub(crate) is_failing: AtomicBool,
    /// Whether some node of a cluster has answered, and its connection wasn't lost since.
    pub(super) answers_in_part: AtomicBool,
    /// How far the store's clock is off.
    pub(crate) skew: ClockSkew,
}

impl StoreCounters {
    /// Counts a finished call with this many queries; 0 is no call.
    pub(crate) fn record_call(&self, questions: usize) {
        let questions = u64::try_from(questions).unwrap_or(u64::MAX);
        self.calls.fetch_add(questions.min(1), Ordering::Relaxed);
        self.questions.fetch_add(questions, Ordering::Relaxed);
    }

    /// Counts a request that timed out after this duration.
    pub(crate) fn record_timeout(&self, after: Duration) -> StoreError {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
        self.is_failing.store(true, Ordering::Relaxed);
        StoreError::TimedOut { after }
    }
}

/// State that the driver and requests share.
#[derive(Debug)]
pub(crate) struct DriverState {
    pub(crate) queue: Queue,
    pub(crate) stats: StoreCounters,
    pub(super) host: Host,
}

impl DriverState {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            queue: Queue::default(),
            stats: StoreCounters::default(),
            host: host.clone(),
        }
    }

    /// A random part of a duration.
    pub(super) fn random_part(&self, most: u128) -> Duration {
        let number = u128::from(self.host.random());
        let nanos = (most * number) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

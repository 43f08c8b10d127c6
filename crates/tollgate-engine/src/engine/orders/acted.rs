//! How often an order has decided a request, and when last.
//!
//! Both numbers are read by people only, and nothing follows from one about the other: they are written and read relaxed, and a
//! reader may see the count of a request whose time it doesn't see yet.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Timestamp;

/// What one order has done so far.
#[derive(Debug, Default)]
pub(crate) struct Acted {
    count: AtomicU64,
    /// Nanoseconds of the wall clock; zero if never.
    last: AtomicU64,
}

impl Acted {
    pub(super) fn new(count: u64, last: Option<Timestamp>) -> Self {
        Self {
            count: AtomicU64::new(count),
            last: AtomicU64::new(last.map_or(0, Timestamp::as_nanos)),
        }
    }

    pub(super) fn note(&self, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.last
            .fetch_max(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> (u64, Option<Timestamp>) {
        let last = self.last.load(Ordering::Relaxed);
        let last = (last > 0).then(|| Timestamp::from_nanos(last));
        (self.count.load(Ordering::Relaxed), last)
    }
}

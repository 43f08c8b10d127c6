//! Refusals that a node remembers, and repeats without asking the store while they hold.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Check, DenyCache, DenyVersion};

/// The refusals that are remembered, if any are to be.
#[derive(Debug)]
pub(crate) struct Refusals {
    cache: Option<DenyCache>,
    /// How often one was repeated.
    repeated: AtomicU64,
}

impl Refusals {
    /// Remembers so many; none if that is 0.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            cache: (most > 0).then(|| DenyCache::new(most)),
            repeated: AtomicU64::new(0),
        }
    }

    /// Whether any are remembered.
    pub(crate) const fn are_kept(&self) -> bool {
        self.cache.is_some()
    }

    /// A refusal of this check that still holds. It counts as repeated.
    pub(crate) fn find(
        &self,
        check: &Check<'_>,
        now: Timestamp,
        version: impl FnOnce() -> DenyVersion,
    ) -> Option<Decision> {
        let cache = self.cache.as_ref()?;
        let (_, decision) = cache.find(&[*check], now, version())?;
        self.repeated.fetch_add(1, Ordering::Relaxed);
        Some(decision)
    }

    /// The store said this to a check, asked at that time.
    pub(crate) fn note(
        &self,
        check: &Check<'_>,
        said: &Decision,
        at: Timestamp,
        version: impl FnOnce() -> DenyVersion,
    ) {
        if let Some(cache) = self.cache.as_ref()
            && said.outcome == Outcome::Denied
        {
            cache.note(check, said, at, version());
        }
    }

    /// How often a refusal was repeated.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }
}

//! Denials that a node remembers, and repeats without asking the store: for a second at most, as any other process may
//! have reset the key. Then one request asks again.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Answer, Check, DenyCache, DenyRecheck, DenyVersion, KnownDenial};

/// The denials that are remembered, if any are to be.
#[derive(Debug)]
pub(crate) struct RememberedDenials {
    cache: Option<DenyCache>,
    /// How often one was repeated.
    repeat_count: AtomicU64,
}

/// This came of asking again about a denial, which was noted by itself if it was of the same check.
pub(crate) fn finish_recheck<E>(recheck: DenyRecheck<'_>, came: &Result<Answer, E>) {
    match came {
        Ok(answer) if answer.allowed => recheck.passed(),
        Ok(_) => {}
        // The denial decides for those who have a policy for that.
        Err(_) => drop(recheck.failed()),
    }
}

impl RememberedDenials {
    /// Remembers so many; none if that is 0.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            cache: (most > 0).then(|| DenyCache::new(most)),
            repeat_count: AtomicU64::new(0),
        }
    }

    /// Whether any are remembered.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.cache.is_some()
    }

    /// What is known of this check. A denial that is told counts as repeated.
    pub(crate) fn look_up(
        &self,
        check: &Check<'_>,
        now: Timestamp,
        version: DenyVersion,
    ) -> KnownDenial<'_> {
        let cache = self.cache.as_ref();
        let known = cache.map_or(KnownDenial::None, |cache| {
            cache.look_up(&[*check], now, version)
        });
        if let KnownDenial::Repeat(..) = known {
            self.repeat_count.fetch_add(1, Ordering::Relaxed);
        }
        known
    }

    /// The first denial of one of these checks that still holds as far as is known, however long ago the store was asked.
    /// It counts as repeated.
    pub(crate) fn find(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        version: impl Fn(&Check<'_>) -> Option<DenyVersion>,
    ) -> Option<(usize, Decision)> {
        let cache = self.cache.as_ref()?;
        let known = checks.iter().enumerate().find_map(|(number, check)| {
            let (_, decision) = cache.find_denial(&[*check], now, version(check)?)?;
            Some((number, decision))
        })?;
        self.repeat_count.fetch_add(1, Ordering::Relaxed);
        Some(known)
    }

    /// The store said this to a check, asked at that time.
    pub(crate) fn remember(
        &self,
        check: &Check<'_>,
        said: &Decision,
        at: Timestamp,
        version: DenyVersion,
    ) {
        if let Some(cache) = self.cache.as_ref()
            && said.outcome == Outcome::Denied
        {
            cache.record_denial(check, said, at, version);
        }
    }

    /// How often a refusal was repeated.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeat_count.load(Ordering::Relaxed)
    }
}

//! Denials that a node remembers and repeats without a query, for at most a second. Any other process may have
//! reset the key, so one request then queries the store again.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Answer, Check, DenyCache, DenyRecheck, DenyVersion, KnownDenial};

/// The remembered denials, unless the cache is disabled.
#[derive(Debug)]
pub(crate) struct RememberedDenials {
    cache: Option<DenyCache>,
    /// How often a denial was repeated.
    repeat_count: AtomicU64,
}

/// Records the result of rechecking a denial. If the same check denied again, the new denial was remembered
/// already.
pub(crate) fn finish_recheck<E>(recheck: DenyRecheck<'_>, came: &Result<Answer, E>) {
    match came {
        Ok(answer) if answer.allowed => recheck.passed(),
        Ok(_) => {}
        // The old denial still decides for callers with a failure policy.
        Err(_) => drop(recheck.failed()),
    }
}

impl RememberedDenials {
    /// Remembers this many; 0 disables the cache.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            cache: (most > 0).then(|| DenyCache::new(most)),
            repeat_count: AtomicU64::new(0),
        }
    }

    /// Whether denials are remembered.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.cache.is_some()
    }

    /// The remembered denial of this check. A denial that is returned counts as repeated.
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

    /// The first denial of one of these checks that hasn't expired, however old the store's answer is. It
    /// counts as repeated.
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

    /// Remembers the store's decision about a check, queried at that time.
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

    /// How often a denial was repeated.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeat_count.load(Ordering::Relaxed)
    }
}

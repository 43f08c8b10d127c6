//! A cache of denials that are known to hold. A key that was denied until some time is denied again without a backend
//! query, for one second at most before the backend is queried again.
//!
//! Only denials that time alone can end are cached: those of rates, except for the sliding counter, whose wait is an
//! upper bound. A cached denial answers checks of the same cost, or of a higher cost whose wait can be computed,
//! until the policy's version or the backend's epoch changes. A reset or refund by another process changes neither,
//! hence the limit of one second. After it, one caller queries the backend, and the others repeat the denial
//! meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::{Algorithm, Decision, Outcome, Timestamp};

use super::check::Check;
use super::kind::LimitKind;

/// How many denials share a set of the table. If a set is full, the denial that expires first is replaced.
const ENTRIES_PER_SET: usize = 4;
/// How long a denial is repeated before the backend is queried again: another process may have reset the key.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A bounded table of denials, for a remote backend.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, Decision, Outcome, Rate, Timestamp};
/// use tollgate_engine::backend::{DenyCache, DenyVersion, KnownDenial, LimitKind, StandaloneLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_second(2), algorithm: Algorithm::Gcra };
/// let (limit, ada) = (StandaloneLimit::new("logins", kind)?, StandaloneLimit::facts("ada"));
/// let check = limit.check(&ada, 1);
/// let (cache, version) = (DenyCache::new(100), DenyVersion(0, 0));
/// let half = Duration::from_millis(500);
/// let denied = Decision::new(Outcome::Denied, 2, 0, half, 2 * half);
/// let at = Timestamp::from_millis;
/// cache.record_denial(&check, &denied, at(0), version);
/// let (_, again) = cache.find_denial(&[check], at(100), version).expect("for 400 ms");
/// assert_eq!(again.wait_or_max(), Duration::from_millis(400));
/// assert!(cache.find_denial(&[check], at(500), version).is_none());
///
/// // A longer denial is repeated for a second. Then one caller queries the backend, and the others repeat it.
/// let minute = Duration::from_secs(60);
/// let denied = Decision::new(Outcome::Denied, 2, 0, minute, 2 * minute);
/// cache.record_denial(&check, &denied, at(0), version);
/// assert!(matches!(cache.look_up(&[check], at(999), version), KnownDenial::Repeat(0, _)));
/// let KnownDenial::Due(asks) = cache.look_up(&[check], at(1_000), version) else { panic!("a second is over") };
/// assert!(matches!(cache.look_up(&[check], at(1_000), version), KnownDenial::Repeat(0, _)));
/// asks.passed();
/// assert!(matches!(cache.look_up(&[check], at(1_000), version), KnownDenial::None));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
pub struct DenyCache {
    sets: Box<[Mutex<[Entry; ENTRIES_PER_SET]>]>,
    /// The latest expiry of any denial: most requests read nothing else. It orders no other memory access, since the
    /// entries are behind locks. A request that misses a new denial queries the backend.
    latest: AtomicU64,
    /// How many rechecks were handed out. The count numbers them.
    rechecks: AtomicU64,
}

/// What is known of checks before the backend is queried.
///
/// Returned by [`DenyCache::look_up`].
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{Algorithm, Decision, Outcome, Rate, Timestamp};
/// # use tollgate_engine::backend::{DenyCache, DenyVersion, KnownDenial, LimitKind, StandaloneLimit};
/// # let kind = LimitKind::Rate { rate: Rate::per_hour(2), algorithm: Algorithm::Gcra };
/// # let (limit, ada) = (StandaloneLimit::new("logins", kind)?, StandaloneLimit::facts("ada"));
/// # let (check, cache, version) = (limit.check(&ada, 1), DenyCache::new(100), DenyVersion(0, 0));
/// # let (hour, at) = (Duration::from_secs(3600), Timestamp::from_millis);
/// # let denied = Decision::new(Outcome::Denied, 2, 0, hour / 2, hour);
/// cache.record_denial(&check, &denied, at(0), version);
/// let look_up = |millis| cache.look_up(&[check], at(millis), version);
/// assert!(matches!(look_up(500), KnownDenial::Repeat(0, _)));
/// let asks = look_up(1_500); // a second later one caller rechecks, and the others repeat the denial
/// assert!(matches!(asks, KnownDenial::Due(_)));
/// assert!(matches!(look_up(1_600), KnownDenial::Repeat(0, _)));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "one who is to ask again keeps others from asking until it is dropped"]
pub enum KnownDenial<'c> {
    /// Nothing is known: query the backend.
    None,
    /// This check is denied, with this decision.
    Repeat(usize, Decision),
    /// A check was denied a second ago, and this caller should query the backend again.
    Due(DenyRecheck<'c>),
}

/// The right to recheck a denial that was repeated for a second. Other callers repeat it meanwhile, for another
/// second at most. If it is dropped without an answer, the next caller rechecks.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{Algorithm, Decision, Outcome, Rate, Timestamp};
/// # use tollgate_engine::backend::{DenyCache, DenyVersion, KnownDenial, LimitKind, StandaloneLimit};
/// # let kind = LimitKind::Rate { rate: Rate::per_hour(2), algorithm: Algorithm::Gcra };
/// # let (limit, ada) = (StandaloneLimit::new("logins", kind)?, StandaloneLimit::facts("ada"));
/// # let (check, cache, version) = (limit.check(&ada, 1), DenyCache::new(100), DenyVersion(0, 0));
/// # let (hour, at) = (Duration::from_secs(3600), Timestamp::from_millis);
/// # let denied = Decision::new(Outcome::Denied, 2, 0, hour / 2, hour);
/// cache.record_denial(&check, &denied, at(0), version);
/// if let KnownDenial::Due(recheck) = cache.look_up(&[check], at(2_000), version) {
///     recheck.passed(); // another process had reset the key
/// }
/// assert!(matches!(cache.look_up(&[check], at(2_000), version), KnownDenial::None));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, another caller asks"]
pub struct DenyRecheck<'c> {
    cache: &'c DenyCache,
    place: usize,
    number: u64,
    check: usize,
    decision: Decision,
}

impl DenyRecheck<'_> {
    /// The check that is denied as far as is known, and its decision.
    pub fn denial(&self) -> (usize, Decision) {
        (self.check, self.decision)
    }

    /// Reports that the backend allowed the request: the denial is removed.
    pub fn passed(self) {
        self.set_entry(|entry| *entry = Entry::default());
    }

    /// Reports that the backend is unavailable: the denial is repeated, and the next recheck is in a second.
    pub fn failed(self) -> (usize, Decision) {
        self.set_entry(|entry| entry.asked_by = 0);
        self.denial()
    }

    fn set_entry(&self, change: impl FnOnce(&mut Entry)) {
        let mut set = self.cache.lock(self.place);
        // If another request has recorded a denial since, that one is newer and stays.
        if let Some(entry) = set.iter_mut().find(|entry| entry.asked_by == self.number) {
            change(entry);
        }
    }
}

impl Drop for DenyRecheck<'_> {
    fn drop(&mut self) {
        self.set_entry(|entry| (entry.asked_by, entry.repeat_until) = (0, Timestamp::ZERO));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    counter: u64,
    fingerprint: [u64; 2],
    cost: u64,
    until: Timestamp,
    idle: Timestamp,
    limit: u64,
    remaining: u64,
    version: DenyVersion,
    /// From this time on, the backend is queried again.
    repeat_until: Timestamp,
    /// The number of the recheck in progress, or 0.
    asked_by: u64,
}

/// The versions that a denial depends on: the policy's or limit's version, and the backend's
/// [epoch](crate::backend::Backend::deny_epoch).
///
/// ```
/// use tollgate_engine::backend::DenyVersion;
///
/// // After a refund, a denied request may be allowed.
/// assert_ne!(DenyVersion(1, 0), DenyVersion(1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyVersion(pub u64, pub u64);

impl DenyCache {
    /// A cache for at most `entries` denials, rounded up to a power of two of sets.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(ENTRIES_PER_SET).max(1).next_power_of_two();
        Self {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            latest: AtomicU64::new(0),
            rechecks: AtomicU64::new(0),
        }
    }

    /// Looks these checks up: one of them is known to be denied, or the caller should recheck, or nothing is known.
    #[inline]
    pub fn look_up(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        version: DenyVersion,
    ) -> KnownDenial<'_> {
        if self.latest.load(Ordering::Relaxed) <= now.as_nanos() {
            return KnownDenial::None;
        }
        self.look_up_sets(checks, now, version)
    }

    fn look_up_sets(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        version: DenyVersion,
    ) -> KnownDenial<'_> {
        let mut due = None;
        for (number, check) in checks.iter().enumerate() {
            let place = self.set_number(check);
            let mut set = self.lock(place);
            let known = set
                .iter_mut()
                .find_map(|entry| Some((entry.denial(check, now, version)?, entry)));
            let Some((decision, entry)) = known else {
                continue;
            };
            if now < entry.repeat_until {
                // Rechecks of earlier checks are dropped, and left to another request.
                drop(set);
                return KnownDenial::Repeat(number, decision);
            }
            if due.is_none() {
                // Relaxed: the number only has to be unique.
                let own = self.rechecks.fetch_add(1, Ordering::Relaxed) + 1;
                (entry.asked_by, entry.repeat_until) = (own, now + REPEAT_INTERVAL);
                drop(set);
                due = Some(DenyRecheck {
                    cache: self,
                    place,
                    number: own,
                    check: number,
                    decision,
                });
            }
        }
        due.map_or(KnownDenial::None, KnownDenial::Due)
    }

    /// The first of these checks whose denial hasn't expired, and its decision, however long ago the backend was
    /// queried. For use while the backend is unavailable.
    #[inline]
    pub fn find_denial(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        version: DenyVersion,
    ) -> Option<(usize, Decision)> {
        if self.latest.load(Ordering::Relaxed) <= now.as_nanos() {
            return None;
        }
        checks.iter().enumerate().find_map(|(number, check)| {
            let set = self.lock(self.set_number(check));
            let decision = set
                .iter()
                .find_map(|entry| entry.denial(check, now, version));
            decision.map(|decision| (number, decision))
        })
    }

    /// Caches a denial.
    pub fn record_denial(
        &self,
        check: &Check<'_>,
        decision: &Decision,
        now: Timestamp,
        version: DenyVersion,
    ) {
        let until = now + decision.wait_or_max();
        if !check.limit.is_lasting || decision.outcome != Outcome::Denied || until <= now {
            return;
        }
        let mut set = self.lock(self.set_number(check));
        let place = set
            .iter()
            .position(|entry| entry.is_of(check))
            .or_else(|| (0..ENTRIES_PER_SET).min_by_key(|place| set[*place].until));
        set[place.unwrap_or(0)] = Entry {
            counter: check.limit.id,
            fingerprint: check.key.fingerprint(),
            cost: check.cost,
            until,
            idle: now + decision.reset_after,
            limit: decision.limit,
            remaining: decision.remaining,
            version,
            repeat_until: now + REPEAT_INTERVAL,
            asked_by: 0,
        };
        drop(set);
        self.latest.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// The index of a check's set.
    fn set_number(&self, check: &Check<'_>) -> usize {
        let mixed = check.key.fingerprint()[0] ^ check.limit.id.rotate_left(32);
        let place = usize::try_from(mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).unwrap_or(0);
        place & (self.sets.len() - 1)
    }

    fn lock(&self, place: usize) -> MutexGuard<'_, [Entry; ENTRIES_PER_SET]> {
        self.sets[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// The decision of this entry for a check, if the entry is for it and still holds.
    fn denial(&self, check: &Check<'_>, now: Timestamp, version: DenyVersion) -> Option<Decision> {
        let holds = self.is_of(check)
            && check.limit.is_lasting
            && check.cost > 0
            && self.version == version
            && self.cost <= check.cost
            && now < self.until;
        // Only the backend knows whether a cost above the limit can ever be allowed.
        if !holds || check.cost > self.limit {
            return None;
        }
        let retry_after = self.until - now + self.extra_wait(check)?;
        let idle = self.idle - now;
        let (denied, limit, remaining) = (Outcome::Denied, self.limit, self.remaining);
        Some(Decision::new(denied, limit, remaining, retry_after, idle))
    }

    /// How much longer the wait of this check is than that of the cached denial, if that can be computed.
    fn extra_wait(&self, check: &Check<'_>) -> Option<Duration> {
        let LimitKind::Rate { algorithm, .. } = check.limit.kind() else {
            return None;
        };
        let (more, rest) = (check.cost - self.cost, self.limit.saturating_sub(self.cost));
        match algorithm {
            _ if more == 0 => Some(Duration::ZERO),
            // All of a window expires together.
            Algorithm::FixedWindow(_) => Some(Duration::ZERO),
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket if rest > 0 => {
                // A bucket drains steadily, so the time from `until` to `idle` drains the rest of the bucket, and a
                // part of it drains `more`. The extra microsecond covers the rounding of both times.
                let drains = u128::from(self.idle.nanos_since(self.until));
                let nanos = (drains * u128::from(more)).div_ceil(u128::from(rest)) + 1_000;
                Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
            }
            _ => None,
        }
    }

    fn is_of(&self, check: &Check<'_>) -> bool {
        self.counter == check.limit.id && self.fingerprint == check.key.fingerprint()
    }
}

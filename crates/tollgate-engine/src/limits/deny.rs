//! Refusals that are known to hold: a key that was refused until a time is refused again without a
//! question to the backend.
//!
//! It never refuses what would pass. Only refusals that time alone can end are remembered (rates, but
//! for the sliding counter, which promises an upper bound), for the same cost or a higher one whose wait can be
//! told too, and only until what the policy or the backend says has changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::{Algorithm, Decision, Outcome, Timestamp};

use super::check::Check;
use super::kind::LimitKind;

/// How many refusals share a set of the table: the one that ends first gives way.
const WAYS: usize = 4;

/// A bounded table of refusals, for a backend that is far.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, Decision, Outcome, Rate, Timestamp};
/// use tollgate_engine::backend::{DenyCache, DenyVersion, LimitKind, SoleLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_second(2), algorithm: Algorithm::Gcra };
/// let (limit, ada) = (SoleLimit::new("logins", kind)?, SoleLimit::facts("ada"));
/// let check = limit.check(&ada, 1);
/// let (cache, version) = (DenyCache::new(100), DenyVersion(0, 0));
/// let half = Duration::from_millis(500);
/// let refused = Decision::new(Outcome::Denied, 2, 0, half, 2 * half);
/// let at = Timestamp::from_millis;
/// cache.note(&check, &refused, at(0), version);
/// let (_, again) = cache.find(&[check], at(100), version).expect("for 400 ms");
/// assert_eq!(again.retry_after, Duration::from_millis(400));
/// assert!(cache.find(&[check], at(500), version).is_none());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
pub struct DenyCache {
    sets: Box<[Mutex<[Entry; WAYS]>]>,
    /// No refusal holds longer: most requests read no more than this. It orders nothing; the entries
    /// are behind locks, and a request that misses a new one asks the backend.
    latest: AtomicU64,
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
}

/// What a refusal depends on: the policy's or limit's version, and the backend's [epoch](crate::backend::Backend::epoch).
///
/// ```
/// use tollgate_engine::backend::DenyVersion;
///
/// // After something was given back, what was refused before may pass.
/// assert_ne!(DenyVersion(1, 0), DenyVersion(1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyVersion(pub u64, pub u64);

impl DenyCache {
    /// Room for so many refusals.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).max(1).next_power_of_two();
        Self {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            latest: AtomicU64::new(0),
        }
    }

    /// The first of these checks that is known to be refused, and what it is told.
    #[inline]
    pub fn find(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        version: DenyVersion,
    ) -> Option<(usize, Decision)> {
        if self.latest.load(Ordering::Relaxed) <= now.as_nanos() {
            return None;
        }
        checks.iter().enumerate().find_map(|(number, check)| {
            if !check.limit.lasting || check.cost == 0 {
                return None;
            }
            let set = self.set(check);
            let entry = set.iter().find(|entry| {
                entry.is_of(check)
                    && entry.version == version
                    && entry.cost <= check.cost
                    && now < entry.until
            })?;
            let longer = entry.longer(check)?;
            // Of a cost that can never pass, the backend tells.
            (check.cost <= entry.limit).then(|| {
                let retry_after = entry.until - now + longer;
                let denied = Outcome::Denied;
                let idle = entry.idle - now;
                (
                    number,
                    Decision::new(denied, entry.limit, entry.remaining, retry_after, idle),
                )
            })
        })
    }

    /// Remembers a refusal.
    pub fn note(
        &self,
        check: &Check<'_>,
        decision: &Decision,
        now: Timestamp,
        version: DenyVersion,
    ) {
        let until = now + decision.retry_after;
        if !check.limit.lasting || decision.outcome != Outcome::Denied || until <= now {
            return;
        }
        let mut set = self.set(check);
        let place = set
            .iter()
            .position(|entry| entry.is_of(check))
            .or_else(|| (0..WAYS).min_by_key(|place| set[*place].until));
        set[place.unwrap_or(0)] = Entry {
            counter: check.limit.id,
            fingerprint: check.key.fingerprint(),
            cost: check.cost,
            until,
            idle: now + decision.reset_after,
            limit: decision.limit,
            remaining: decision.remaining,
            version,
        };
        drop(set);
        self.latest.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    fn set(&self, check: &Check<'_>) -> MutexGuard<'_, [Entry; WAYS]> {
        let mixed = check.key.fingerprint()[0] ^ check.limit.id.rotate_left(32);
        let place = usize::try_from(mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).unwrap_or(0);
        let set = &self.sets[place & (self.sets.len() - 1)];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// How much longer than what was refused this takes, if that can be told.
    fn longer(&self, check: &Check<'_>) -> Option<Duration> {
        let LimitKind::Rate { algorithm, .. } = check.limit.kind() else {
            return None;
        };
        let (more, rest) = (check.cost - self.cost, self.limit.saturating_sub(self.cost));
        match algorithm {
            _ if more == 0 => Some(Duration::ZERO),
            // All of a window ends at once.
            Algorithm::FixedWindow(_) => Some(Duration::ZERO),
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket if rest > 0 => {
                // What is owed drains steadily: the rest of the bucket in the time from when this passes until
                // it is full. A microsecond for what those two were rounded by.
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

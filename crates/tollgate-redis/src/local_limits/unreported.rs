//! Keys that were decided here, and whose usage the store doesn't know yet.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::{Rate, Timestamp};

use tollgate_engine::backend::Check;

use crate::lock::lock;

/// How many keys can wait to be reported.
const MAX_UNREPORTED_KEYS: usize = 65_536;
/// How often at most the keys are swept for those that owe nothing any more.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The usage of a key here: the store has to know of at least as much.
///
/// It is a state, not a difference. Reporting it twice changes nothing, so a report that the store counted
/// although its reply was lost isn't counted twice.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::UnreportedUsage;
///
/// /// How much of a bucket, in thousandths of a token, rounded up.
/// fn thousandths(owed: &UnreportedUsage) -> u128 {
///     owed.tokens(1_000)
/// }
/// # let _ = thousandths;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UnreportedUsage {
    /// The number of the latest decision here.
    pub(super) since: u64,
    /// The usage in whole tokens, rounded up.
    pub used: u64,
    /// How long until nothing is used.
    pub resets_in: Duration,
    /// The rate; unlimited for a limit that isn't a rate.
    pub(super) rate: Rate,
}

impl UnreportedUsage {
    /// The debt of a bucket that drains steadily, in units of which a token has `price`, rounded up.
    pub fn tokens(&self, price: u64) -> u128 {
        // In units of 2^-20 tokens, so that no product exceeds 128 bits.
        let Some(period) = self.rate.period() else {
            return 0;
        };
        let nanos = u128::from(u64::try_from(self.resets_in.as_nanos()).unwrap_or(u64::MAX));
        let count = u128::from(self.rate.count().min(1 << 43));
        let tokens = ((nanos * count) << 20).div_ceil(period.as_nanos().max(1));
        let tokens = tokens.min(u128::from(self.used) << 20);
        (tokens * u128::from(price)).div_ceil(1 << 20)
    }
}

/// Keys whose usage has to be reported to the store.
#[derive(Default, derive_more::Debug)]
#[debug("UnreportedKeys({count:?})")]
pub(super) struct UnreportedKeys {
    /// How many keys there are. Every query reads it, so that nothing is locked while there are none. Relaxed:
    /// a thread that decided here before its query sees its own write, and of two concurrent threads either may
    /// be first.
    count: AtomicUsize,
    keys: Mutex<UnreportedTable>,
    numbers: AtomicU64,
    forgotten: AtomicU64,
}

/// The keys, and when they are next swept for those that owe nothing any more.
#[derive(Default)]
struct UnreportedTable {
    all: HashMap<CounterAndKey, UnreportedEntry>,
    /// The earliest next sweep.
    next_sweep_at: Timestamp,
    /// How often the keys were swept.
    #[cfg(test)]
    looked: u32,
}

/// A counter and the fingerprint of a key.
type CounterAndKey = (u64, [u64; 2]);

#[derive(Clone, Copy, Debug, Default)]
struct UnreportedEntry {
    /// The number of the latest decision that passed.
    number: u64,
    /// Decisions in progress.
    pending: u32,
    /// Tokens admitted here since the last report.
    admitted: u64,
    /// When nothing is owed any more.
    until: Timestamp,
}

fn counter_and_key(check: &Check<'_>) -> CounterAndKey {
    (check.limit.counter().id, check.key.fingerprint())
}

impl UnreportedTable {
    /// Whether there is room for a key, or it has an entry.
    fn has_room(&mut self, check: &Check<'_>, now: Timestamp) -> bool {
        if self.all.len() < MAX_UNREPORTED_KEYS || self.all.contains_key(&counter_and_key(check)) {
            return true;
        }
        // A sweep looks at all keys. It is limited in frequency, because in a flood of keys every request comes
        // here.
        if now >= self.next_sweep_at {
            self.all.retain(|_, entry| now < entry.until);
            self.next_sweep_at = now + SWEEP_INTERVAL;
            #[cfg(test)]
            {
                self.looked += 1;
            }
        }
        self.all.len() < MAX_UNREPORTED_KEYS
    }

    fn entry(&mut self, check: &Check<'_>) -> &mut UnreportedEntry {
        self.all.entry(counter_and_key(check)).or_default()
    }

    /// Forgets a key that has nothing to report.
    fn remove_if_reported(&mut self, check: &Check<'_>) {
        let is_told = |entry: &UnreportedEntry| entry.pending == 0 && entry.admitted == 0;
        if self.all.get(&counter_and_key(check)).is_some_and(is_told) {
            self.all.remove(&counter_and_key(check));
        }
    }
}

impl UnreportedKeys {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Registers a key before a decision about it, whose debt lasts at most this long.
    pub(super) fn begin(&self, check: &Check<'_>, now: Timestamp, lasts: Duration) {
        let mut keys = lock(&self.keys);
        if keys.has_room(check, now) {
            let entry = keys.entry(check);
            entry.pending += 1;
            entry.until = entry.until.max(now + lasts);
        } else {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        self.count.store(keys.all.len(), Ordering::Relaxed);
    }

    /// Ends a decision. If it didn't pass, there may be nothing to report.
    pub(super) fn end(&self, check: &Check<'_>, is_admitted: bool) {
        let mut keys = lock(&self.keys);
        if let Some(entry) = keys.all.get_mut(&counter_and_key(check)) {
            entry.pending = entry.pending.saturating_sub(1);
            if is_admitted {
                entry.number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
                entry.admitted = entry.admitted.saturating_add(check.cost);
            }
        }
        keys.remove_if_reported(check);
        self.count.store(keys.all.len(), Ordering::Relaxed);
    }

    /// The number of the latest decision about a key, and how much was admitted; `None` if the store knows of
    /// all.
    pub(super) fn find(&self, check: &Check<'_>) -> Option<(u64, u64)> {
        let keys = lock(&self.keys);
        let entry = keys.all.get(&counter_and_key(check))?;
        Some((entry.number, entry.admitted))
    }

    /// Records that the store knows of all decisions up to this number.
    pub(super) fn mark_reported(&self, check: &Check<'_>, number: u64) {
        let mut keys = lock(&self.keys);
        if let Some(entry) = keys.all.get_mut(&counter_and_key(check))
            && entry.number <= number
        {
            entry.admitted = 0;
        }
        keys.remove_if_reported(check);
        self.count.store(keys.all.len(), Ordering::Relaxed);
    }

    pub(super) fn lost_reports(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Algorithm;

    use super::*;
    use tollgate_engine::backend::{LimitKind, StandaloneLimit};

    #[test]
    fn a_flood_of_keys_does_not_look_through_all_of_them_each_time() {
        let kind = LimitKind::Rate {
            rate: Rate::per_hour(5),
            algorithm: Algorithm::Gcra,
        };
        let limit = StandaloneLimit::new("logins", kind).unwrap();
        let (untold, hour) = (UnreportedKeys::default(), Duration::from_secs(3_600));
        let add = |number: usize, now| {
            let name = number.to_string();
            let facts = StandaloneLimit::facts(&name);
            untold.begin(&limit.check(&facts, 1), now, hour);
            untold.end(&limit.check(&facts, 1), true);
        };
        let now = Timestamp::from_secs(1);
        (0..MAX_UNREPORTED_KEYS + 1_000).for_each(|number| add(number, now));
        assert_eq!(
            (lock(&untold.keys).looked, untold.lost_reports()),
            (1, 1_000)
        );
        // Once they owe nothing any more there is room again.
        add(MAX_UNREPORTED_KEYS + 2_000, now + hour);
        assert_eq!(
            (lock(&untold.keys).looked, untold.lost_reports()),
            (2, 1_000)
        );
        assert_eq!(lock(&untold.keys).all.len(), 1);
    }
}

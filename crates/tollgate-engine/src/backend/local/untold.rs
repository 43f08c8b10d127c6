//! Which keys were decided about here, and the store doesn't know it yet.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::{Rate, Timestamp};

use crate::backend::Check;

/// Keys that wait to be told of.
const MOST: usize = 65_536;

/// What a key owes here: the store is to know of at least as much.
///
/// It is a state, not a difference: told twice it changes nothing, and a question that the store was asked in
/// vain, but counted, isn't counted twice.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::backend::Owed;
///
/// /// How much of a bucket, in thousandths of a token, rounded up.
/// fn thousandths(owed: &Owed) -> u128 {
///     owed.tokens(1_000)
/// }
/// # let _ = thousandths;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Owed {
    /// Which decision here was the latest.
    pub(super) since: u64,
    /// How much is used, in whole tokens, rounded up.
    pub used: u64,
    /// How long until nothing is.
    pub drains_in: Duration,
    /// At this rate; unlimited of what isn't a rate.
    pub(super) rate: Rate,
}

impl Owed {
    /// How much of a bucket that drains steadily is owed, in units of which a token has `price`, rounded up.
    pub fn tokens(&self, price: u64) -> u128 {
        // Tokens in 2^-20, so that no product leaves 128 bits.
        let Some(period) = self.rate.period() else {
            return 0;
        };
        let nanos = u128::from(u64::try_from(self.drains_in.as_nanos()).unwrap_or(u64::MAX));
        let count = u128::from(self.rate.count().min(1 << 43));
        let tokens = ((nanos * count) << 20).div_ceil(period.as_nanos().max(1));
        let tokens = tokens.min(u128::from(self.used) << 20);
        (tokens * u128::from(price)).div_ceil(1 << 20)
    }
}

/// Keys that the store has to be told of.
#[derive(Default)]
pub(super) struct Untold {
    /// How many. Read by every question: nothing is locked while there are none. Relaxed: who decided here
    /// before he asks sees his own, and of others' at the same moment either order is true.
    count: AtomicUsize,
    keys: Mutex<HashMap<Place, Entry>>,
    numbers: AtomicU64,
    forgotten: AtomicU64,
}

/// A counter and the fingerprint of a key.
type Place = (u64, [u64; 2]);

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    /// Nothing is owed any more.
    until: Timestamp,
}

fn place(check: &Check<'_>) -> Place {
    (check.limit.counter().id, check.key.fingerprint())
}

impl Untold {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Something is decided here about a key, and owed for so long at most.
    pub(super) fn add(&self, check: &Check<'_>, now: Timestamp, lasts: Duration) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut keys = self.lock();
        if keys.len() >= MOST && !keys.contains_key(&place(check)) {
            keys.retain(|_, entry| now < entry.until);
            if keys.len() >= MOST {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let until = now + lasts;
        keys.insert(place(check), Entry { number, until });
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// The number of the latest decision about a key, if the store doesn't know of it.
    pub(super) fn find(&self, check: &Check<'_>) -> Option<u64> {
        self.lock().get(&place(check)).map(|entry| entry.number)
    }

    /// The store knows of all up to this one.
    pub(super) fn remove(&self, check: &Check<'_>, number: u64) {
        let mut keys = self.lock();
        if keys
            .get(&place(check))
            .is_some_and(|entry| entry.number <= number)
        {
            keys.remove(&place(check));
        }
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Untold")
            .field("keys", &self.count)
            .finish_non_exhaustive()
    }
}

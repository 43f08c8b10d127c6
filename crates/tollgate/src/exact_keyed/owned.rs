//! A key that shares its limiter, for reservations, waits and holds that live in a task.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::{ExactKeyedLimiter, Key, Tier};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::stack::limit::Shares;
use crate::{Refused, Reservation};

/// One key of an [`ExactKeyedLimiter`] that is shared in an `Arc`: what it reserves and waits for borrows
/// nothing.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ExactKeyedLimiter, Rate};
///
/// let limiter = ExactKeyedLimiter::<String>::builder(Rate::per_second(10), 1_000).build()?;
/// let limiter = Arc::new(limiter);
/// let key = limiter.key_owned("user:42");
/// assert!(key.key().allow());
/// let wait = key.acquire_n(2);
/// std::thread::spawn(move || wait.wait_blocking()).join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedKey<K, C: Clock = Monotonic> {
    limiter: Arc<ExactKeyedLimiter<K, C>>,
    key: K,
    hash: u64,
    tier: Option<Tier>,
}

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// One key at the limiter's own rate, for a task of its own.
    pub fn key_owned<Q>(self: &Arc<Self>, key: &Q) -> OwnedKey<K, C>
    where
        K: Borrow<Q>,
        Q: Hash + ToOwned<Owned = K> + ?Sized,
    {
        OwnedKey {
            hash: self.key(key).hash,
            limiter: Arc::clone(self),
            key: key.to_owned(),
            tier: None,
        }
    }
}

impl<K: Eq + Clone, C: Clock> OwnedKey<K, C> {
    /// The key, borrowed, with all of its verbs.
    pub fn key(&self) -> Key<'_, K, K, C> {
        Key {
            limiter: &self.limiter,
            key: &self.key,
            hash: self.hash,
            tier: self.tier.as_ref(),
        }
    }

    /// The same key at a rate of its own, as [`ExactKeyedLimiter::key_at_rate`].
    ///
    /// # Panics
    /// If the tier is of another algorithm than the limiter's.
    #[must_use]
    pub fn at_rate(&self, tier: &Tier) -> Self {
        self.limiter.tables.expect(tier);
        Self {
            tier: Some(tier.clone()),
            ..self.clone()
        }
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// As [`ExactKeyedLimiter::reserve`].
    pub fn reserve(&self, cost: u64) -> Result<Reservation<Self>, Refused> {
        let key = self.key();
        let ticket = key.reserve_in_turn(key.now(), cost)?;
        Ok(Reservation::new(self.clone(), ticket))
    }
    /// Waits for one token, first come first served: [`acquire_n`](Self::acquire_n) of 1.
    pub fn acquire(&self) -> Acquire<Self> {
        self.acquire_n(1)
    }

    /// Waits for `cost` tokens, first come first served.
    pub fn acquire_n(&self, cost: u64) -> Acquire<Self> {
        Acquire::new(self.clone(), cost)
    }
}

impl<K: Eq + Clone, C: Clock> Lends for OwnedKey<K, C> {
    type Limit<'a>
        = Key<'a, K, K, C>
    where
        Self: 'a;

    fn limit(&self) -> Key<'_, K, K, C> {
        self.key()
    }
}

impl<K: Eq + Clone + Send + Sync, C: Clock> Shares for OwnedKey<K, C> {
    type Key<'a>
        = Key<'a, K, K, C>
    where
        Self: 'a;

    fn borrowed(&self) -> Key<'_, K, K, C> {
        self.key()
    }
}

impl<K: Clone, C: Clock> Clone for OwnedKey<K, C> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            key: self.key.clone(),
            hash: self.hash,
            tier: self.tier.clone(),
        }
    }
}

impl<K, C: Clock> fmt::Debug for OwnedKey<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

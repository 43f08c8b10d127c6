//! A key that shares its limiter, for reservations and waits that live in a task.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use tollgate_core::Gcra;

use super::pace::InForce;
use super::{Key, KeyParts, KeyedLimiter};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::{Refused, Reservation};

/// One key of a [`KeyedLimiter`] that is shared in an `Arc`: what it reserves and waits for borrows nothing.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{KeyedLimiter, Rate};
///
/// let limiter = Arc::new(KeyedLimiter::new(Rate::per_second(10), 1_000));
/// let key = limiter.key_owned("user:42");
/// assert!(key.key().allow());
/// let slot = key.reserve(2)?;
/// let wait = key.acquire_n(1);
/// std::thread::spawn(move || {
///     slot.wait_blocking();
///     wait.wait_blocking()
/// }).join().unwrap()?;
/// # Ok::<(), tollgate::Refused>(())
/// ```
pub struct OwnedKey<C: Clock = Monotonic> {
    limiter: Arc<KeyedLimiter<C>>,
    parts: KeyParts,
}

impl<C: Clock> KeyedLimiter<C> {
    /// One key at the limiter's own rate, for a task of its own.
    pub fn key_owned<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> OwnedKey<C> {
        let (_, parts) = self.key(key).parts();
        OwnedKey {
            limiter: Arc::clone(self),
            parts,
        }
    }
}

impl<C: Clock> OwnedKey<C> {
    /// The key, borrowed, with all of its verbs.
    pub fn key(&self) -> Key<'_, C> {
        self.limiter.key_of(&self.parts)
    }

    pub(crate) fn into_parts(self) -> (Arc<KeyedLimiter<C>>, KeyParts) {
        (self.limiter, self.parts)
    }

    /// The same key at a rate of its own, as [`KeyedLimiter::key_at_rate`].
    #[must_use]
    pub fn at_rate(&self, rate: &Gcra) -> Self {
        let in_force = InForce::of(rate, self.limiter.table.intervals());
        let key = Key {
            in_force,
            is_own: false,
            ..self.key()
        };
        let (_, parts) = key.parts();
        Self {
            limiter: Arc::clone(&self.limiter),
            parts,
        }
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// As [`KeyedLimiter::reserve`].
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

impl<C: Clock> Lends for OwnedKey<C> {
    type Limit<'a>
        = Key<'a, C>
    where
        Self: 'a;

    fn limit(&self) -> Key<'_, C> {
        self.key()
    }
}

impl<C: Clock> Clone for OwnedKey<C> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            parts: self.parts,
        }
    }
}

impl<C: Clock> fmt::Debug for OwnedKey<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

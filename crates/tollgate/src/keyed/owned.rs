//! A key that shares its limiter, for reservations and waits that live in a task.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, LimitError, Timestamp};

use super::pace::InForce;
use super::rated::Rated;
use super::{Key, KeyParts, KeyedLimiter, NoSlot, OneRate, TierOf};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::{Refused, Reservation, Tier};

/// One key of a [`KeyedLimiter`] that is shared in an `Arc`: what it reserves and waits for borrows nothing.
/// Made by [`KeyedLimiter::key_owned`]; it has every verb of a [`Key`].
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{KeyedLimiter, Rate};
///
/// let limiter = Arc::new(KeyedLimiter::new(Rate::per_second(10), 1_000));
/// let key = limiter.key_owned("user:42");
/// assert!(key.allow());
/// let slot = key.reserve(2)?;
/// let wait = key.acquire();
/// std::thread::spawn(move || {
///     slot.wait_blocking();
///     wait.wait_blocking()
/// }).join().unwrap()?;
/// # Ok::<(), tollgate::Refused>(())
/// ```
pub struct OwnedKey<C: Clock = Monotonic, T = OneRate> {
    limiter: Arc<KeyedLimiter<C, T>>,
    fingerprint: u64,
    tier: Option<InForce>,
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// One key, as [`key`](Self::key) gives it, for a task of its own.
    pub fn key_owned<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> OwnedKey<C, T>
    where
        T: TierOf<K>,
    {
        let Key {
            fingerprint, tier, ..
        } = self.key(key);
        OwnedKey {
            limiter: Arc::clone(self),
            fingerprint,
            tier,
        }
    }
}

impl<C: Clock, T> OwnedKey<C, T> {
    /// The key, borrowed.
    #[inline]
    pub fn key(&self) -> Key<'_, C, T> {
        Key {
            limiter: &self.limiter,
            fingerprint: self.fingerprint,
            tier: self.tier,
        }
    }

    pub(crate) fn into_parts(self) -> (Arc<KeyedLimiter<C, T>>, KeyParts) {
        let (_, parts) = self.key().parts();
        (self.limiter, parts)
    }

    /// The same key under another limit, as [`Key::at`].
    ///
    /// # Errors
    /// [`LimitError::OtherAlgorithm`] if the tier isn't one of GCRA.
    pub fn at(&self, tier: &Tier) -> Result<Self, LimitError> {
        Ok(Self {
            tier: self.key().at(tier)?.tier,
            ..self.clone()
        })
    }

    /// Whether one request passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self) -> bool {
        self.key().allow()
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow_n(&self, cost: u64) -> bool {
        self.key().allow_n(cost)
    }

    /// Decides one request.
    pub fn check(&self) -> Decision {
        self.key().check()
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    pub fn check_n(&self, cost: u64) -> Decision {
        self.key().check_n(cost)
    }

    /// Decides a request of this cost at a time on the limiter's clock.
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.key().check_at(now, cost)
    }

    /// What is left, without charging anything.
    pub fn peek(&self) -> Decision {
        self.key().peek()
    }

    /// What is left at a time on the limiter's clock.
    pub fn peek_at(&self, now: Timestamp) -> Decision {
        self.key().peek_at(now)
    }

    /// Takes `cost` tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// As [`Key::reserve`].
    pub fn reserve(&self, cost: u64) -> Result<Reservation<Self>, Refused> {
        self.reserve_at(self.limiter.clock.now(), cost)
    }

    /// Takes `cost` tokens at a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`Key::reserve`].
    pub fn reserve_at(&self, now: Timestamp, cost: u64) -> Result<Reservation<Self>, Refused> {
        let ticket = self.key().rated().reserve_in_turn(now, cost)?;
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

    /// Gives the key `tokens` back, as [`Key::refund`].
    pub fn refund(&self, tokens: u64) {
        self.key().refund(tokens);
    }

    /// Takes `tokens` from the key though no request asked for them, as [`Key::penalize`].
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full.
    pub fn penalize(&self, tokens: u64) -> Result<(), NoSlot> {
        self.key().penalize(tokens)
    }

    /// Forgets what the key has spent, and any block.
    pub fn reset(&self) {
        self.key().reset();
    }

    /// Refuses the key everything for this long, as [`Key::block_for`].
    ///
    /// # Errors
    /// [`NoSlot`] if the key is new and the table is full, with the part that is kept for blocks.
    pub fn block_for(&self, duration: Duration) -> Result<(), NoSlot> {
        self.key().block_for(duration)
    }
}

impl<C: Clock, T> Lends for OwnedKey<C, T> {
    type Limit<'a>
        = Rated<'a, C, T>
    where
        Self: 'a;

    fn limit(&self) -> Rated<'_, C, T> {
        self.key().rated()
    }

    fn nap_until(&self, at: Timestamp) {
        self.limiter.clock.nap_until(at);
    }
}

impl<C: Clock, T> Clone for OwnedKey<C, T> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            fingerprint: self.fingerprint,
            tier: self.tier,
        }
    }
}

impl<C: Clock, T> fmt::Debug for OwnedKey<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

//! A key that shares its limiter, for reservations, waits and holds that live in a task.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, LimitError, Timestamp};

use super::held::Held;
use super::{ExactKeyedLimiter, Key, NoSlot};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::home::sealed::{Home, Lends};
use crate::{Refused, Reservation, Tier};

/// One key of an [`ExactKeyedLimiter`] that is shared in an `Arc`: what it reserves and waits for borrows
/// nothing. Made by [`ExactKeyedLimiter::key_owned`]; it has every verb of a [`Key`].
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ExactKeyedLimiter, Rate};
///
/// let limiter = ExactKeyedLimiter::<String>::builder(Rate::per_second(10), 1_000).build()?;
/// let limiter = Arc::new(limiter);
/// let key = limiter.key_owned("user:42");
/// assert!(key.allow());
/// let wait = key.acquire_n(2);
/// std::thread::spawn(move || wait.wait_blocking()).join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedKey<K, C: Clock = Monotonic> {
    limiter: Arc<ExactKeyedLimiter<K, C>>,
    key: K,
    hash: u64,
    tier: Option<Tier>,
    /// Where what it waits for is put, if that is held.
    pub(crate) held: Option<Arc<Held>>,
}

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// One key, as [`key`](Self::key) gives it, for a task of its own.
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
            held: None,
        }
    }
}

impl<K: Eq + Clone, C: Clock> OwnedKey<K, C> {
    /// The key, borrowed.
    pub fn key(&self) -> Key<'_, K, K, C> {
        Key {
            limiter: &self.limiter,
            key: &self.key,
            hash: self.hash,
            tier: self.tier.as_ref(),
            held: self.held.as_ref(),
        }
    }

    /// The same key under another limit, as [`Key::at`].
    ///
    /// # Errors
    /// [`LimitError::OtherAlgorithm`] if the tier was made for another algorithm than this limiter's.
    pub fn at(&self, tier: &Tier) -> Result<Self, LimitError> {
        self.limiter.tables.expect(tier)?;
        Ok(Self {
            tier: Some(tier.clone()),
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
        let ticket = self.key().reserve_in_turn(now, cost)?;
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

impl<K: Eq + Clone, C: Clock> Lends for OwnedKey<K, C> {
    type Limit<'a>
        = Key<'a, K, K, C>
    where
        Self: 'a;

    fn limit(&self) -> Key<'_, K, K, C> {
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
            held: self.held.clone(),
        }
    }
}

impl<K, C: Clock> fmt::Debug for OwnedKey<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

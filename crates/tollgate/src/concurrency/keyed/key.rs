//! The handle of one key, and the source of its permits and waits.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_core::Timestamp;

use super::KeyedConcurrencyLimiter;
use crate::clock::{Clock, Monotonic};
use crate::concurrency::gate::Gate;
use crate::concurrency::permit_source::PermitSettings;
use crate::concurrency::permit_source::sealed::PermitSource;
use crate::concurrency::{Acquire, Occupancy, Permit, PermitDenied};

/// A permit of one key that borrows the limiter.
pub type KeyedPermit<'a, K, C = Monotonic> =
    Permit<KeyedPermitSource<&'a KeyedConcurrencyLimiter<K, C>>>;

/// A permit of one key that shares the limiter, so that it can move into a task.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{KeyedConcurrencyLimiter, concurrency::OwnedKeyedPermit};
///
/// let limiter = Arc::new(KeyedConcurrencyLimiter::<String>::new(5, 1_000));
/// let permit: OwnedKeyedPermit<String> = limiter.key_owned("acme").try_acquire()?;
/// std::thread::spawn(move || permit.success()).join().unwrap();
/// assert!(limiter.is_empty());
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
pub type OwnedKeyedPermit<K, C = Monotonic> =
    Permit<KeyedPermitSource<Arc<KeyedConcurrencyLimiter<K, C>>>>;

/// A pointer to a keyed limiter: borrowed or shared.
pub trait KeyedPointer:
    Clone + Deref<Target = KeyedConcurrencyLimiter<Self::Key, Self::Clock>>
{
    type Key;
    type Clock: Clock;
}

impl<K, C: Clock> KeyedPointer for &KeyedConcurrencyLimiter<K, C> {
    type Key = K;
    type Clock = C;
}

impl<K, C: Clock> KeyedPointer for Arc<KeyedConcurrencyLimiter<K, C>> {
    type Key = K;
    type Clock = C;
}

/// One key of a [`KeyedConcurrencyLimiter`], with the methods of a
/// [`ConcurrencyLimiter`](crate::ConcurrencyLimiter), and possibly another limit.
///
/// Made by [`KeyedConcurrencyLimiter::key`] and [`KeyedConcurrencyLimiter::key_owned`].
///
/// ```
/// use tollgate::KeyedConcurrencyLimiter;
///
/// let limiter = KeyedConcurrencyLimiter::<String>::new(5, 1_000);
/// // Each call passes the limit of the key's tier.
/// let permit = limiter.key("acme").at(500).try_acquire_n(300)?;
/// assert_eq!(limiter.key("acme").peek().available(), 200);
/// # drop(permit);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
#[must_use = "a key handle does nothing until one of its methods is called"]
pub struct Key<'q, L: KeyedPointer, Q: ?Sized> {
    limiter: L,
    key: &'q Q,
    hash: u64,
    limit: Option<u32>,
}

impl<'q, L: KeyedPointer, Q: ?Sized> Key<'q, L, Q> {
    pub(super) fn new(limiter: L, key: &'q Q) -> Self
    where
        Q: Hash,
    {
        Self {
            hash: limiter.hasher.fingerprint(key),
            limiter,
            key,
            limit: None,
        }
    }

    /// Uses this limit for the key instead of the limiter's.
    ///
    /// The limit of the latest call applies to the key's waiters, too. So use the same limit in all
    /// calls of a key, and another only when its tier has changed.
    pub fn at(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The permits in use and the waiters of this key, without acquiring any. For a new key in a full
    /// table, these are those of the shared limit, or a limit of 0.
    pub fn peek(&self) -> Occupancy
    where
        L::Key: Borrow<Q>,
        Q: Eq,
    {
        self.limiter.occupancy(self.hash, self.key, self.limit)
    }

    pub(crate) fn limiter(&self) -> &KeyedConcurrencyLimiter<L::Key, L::Clock> {
        &self.limiter
    }
}

impl<L: KeyedPointer, Q: ?Sized> Key<'_, L, Q>
where
    L::Key: Borrow<Q>,
    Q: Eq + ToOwned<Owned = L::Key>,
{
    /// Acquires a permit without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    pub fn try_acquire(&self) -> Result<Permit<KeyedPermitSource<L>>, PermitDenied> {
        self.try_acquire_n(1)
    }

    /// Acquires a permit of this weight without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    pub fn try_acquire_n(&self, weight: u32) -> Result<Permit<KeyedPermitSource<L>>, PermitDenied> {
        Permit::try_new(self.pin_gate()?, weight)
    }

    /// Waits for a permit in the key's queue.
    pub fn acquire(&self) -> Acquire<KeyedPermitSource<L>> {
        self.acquire_n(1)
    }

    /// Waits for a permit of this weight in the key's queue. The key has its entry from now on, until
    /// the wait and its permit have ended.
    pub fn acquire_n(&self, weight: u32) -> Acquire<KeyedPermitSource<L>> {
        Acquire::new(self.pin_gate(), weight)
    }

    fn pin_gate(&self) -> Result<KeyedPermitSource<L>, PermitDenied> {
        let (gate, slot) = self.limiter.pin_gate(self.hash, self.key, self.limit)?;
        Ok(KeyedPermitSource {
            limiter: self.limiter.clone(),
            gate,
            hash: self.hash,
            slot,
        })
    }
}

impl<L: KeyedPointer, Q: fmt::Debug + ?Sized> fmt::Debug for Key<'_, L, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("key", &self.key)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A pin on one key's entry: while it is held, the key stays in the table.
pub struct KeyedPermitSource<L: KeyedPointer> {
    limiter: L,
    gate: Arc<Gate>,
    hash: u64,
    /// None if the key has no entry and uses the shared gate.
    slot: Option<u32>,
}

impl<L: KeyedPointer> Drop for KeyedPermitSource<L> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.limiter.unpin_gate(self.hash, slot);
        }
    }
}

impl<L: KeyedPointer> fmt::Debug for KeyedPermitSource<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySlot")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl<L: KeyedPointer> PermitSource for KeyedPermitSource<L> {
    #[inline]
    fn gate(&self) -> &Gate {
        &self.gate
    }

    #[inline]
    fn context(&self) -> &PermitSettings<dyn Clock + '_> {
        &self.limiter.context
    }

    fn now(&self) -> Timestamp {
        self.limiter.context.clock.now()
    }

    /// Hides the occupancy of the shared gate, which isn't the key's: the key itself may have nothing
    /// in flight.
    fn refusal(&self, by_gate: PermitDenied) -> PermitDenied {
        match by_gate {
            PermitDenied::Full(shared)
            | PermitDenied::DeadlineExceeded(shared)
            | PermitDenied::QueueFull(shared)
                if self.slot.is_none() =>
            {
                PermitDenied::TooManyKeys(shared)
            }
            own => own,
        }
    }
}

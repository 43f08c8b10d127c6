//! One key of a keyed concurrency limiter: the verbs, and what its permits and waits hold.

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

/// A permit of one key that shares the limiter, to be moved into a task.
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

/// A reference to a keyed limiter: borrowed or shared.
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

/// One key of a [`KeyedConcurrencyLimiter`], with the verbs of a
/// [`ConcurrencyLimiter`](crate::ConcurrencyLimiter) and maybe a limit of its own.
///
/// Made by [`KeyedConcurrencyLimiter::key`] and [`KeyedConcurrencyLimiter::key_owned`].
///
/// ```
/// use tollgate::KeyedConcurrencyLimiter;
///
/// let limiter = KeyedConcurrencyLimiter::<String>::new(5, 1_000);
/// // A tier's limit is given with the call.
/// let permit = limiter.key("acme").at(500).try_acquire_n(300)?;
/// assert_eq!(limiter.key("acme").peek().available(), 200);
/// # drop(permit);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
#[must_use = "a key does nothing until it is asked"]
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

    /// Judges the key by this limit instead of the one of all keys.
    ///
    /// The limit of the latest call is in force for those who wait, too: give all calls of a key
    /// the same, and another only when its tier has changed.
    pub fn at(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// How full this key's limit is, without taking anything. At the capacity a new key is told
    /// what it would meet: the shared limit, or none at all.
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
    /// A permit now, or why not.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was taken.
    pub fn try_acquire(&self) -> Result<Permit<KeyedPermitSource<L>>, PermitDenied> {
        self.try_acquire_n(1)
    }

    /// A permit of this weight now, or why not.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was taken.
    pub fn try_acquire_n(&self, weight: u32) -> Result<Permit<KeyedPermitSource<L>>, PermitDenied> {
        Permit::try_new(self.pin_gate()?, weight)
    }

    /// Waits for a permit, first come first served.
    pub fn acquire(&self) -> Acquire<KeyedPermitSource<L>> {
        self.acquire_n(1)
    }

    /// Waits for a permit of this weight, first come first served. The key has its entry from now
    /// on, until the wait and its permit are over.
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
    /// None if it has no entry and shares the gate of those without.
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

    /// What keys without an entry share isn't this one's: it may have nothing in flight at all.
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

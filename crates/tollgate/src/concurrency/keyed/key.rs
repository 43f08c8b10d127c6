//! One key of a keyed concurrency limiter: the verbs, and what its permits and waits hold.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_core::Timestamp;

use super::KeyedConcurrency;
use crate::clock::{Clock, Monotonic};
use crate::concurrency::gate::Gate;
use crate::concurrency::home::PermitContext;
use crate::concurrency::home::sealed::PermitHome;
use crate::concurrency::{Acquire, NoPermit, Occupancy, Permit};

/// A permit of one key that borrows the limiter.
pub type KeyedPermit<'a, K, C = Monotonic> = Permit<KeySlot<&'a KeyedConcurrency<K, C>>>;

/// A permit of one key that shares the limiter, to be moved into a task.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{KeyedConcurrency, concurrency::OwnedKeyedPermit};
///
/// let limiter = Arc::new(KeyedConcurrency::<String>::new(5, 1_000));
/// let permit: OwnedKeyedPermit<String> = limiter.key_owned("acme").try_acquire()?;
/// std::thread::spawn(move || permit.success()).join().unwrap();
/// assert!(limiter.is_empty());
/// # Ok::<(), tollgate::concurrency::NoPermit>(())
/// ```
pub type OwnedKeyedPermit<K, C = Monotonic> = Permit<KeySlot<Arc<KeyedConcurrency<K, C>>>>;

/// A reference to a keyed limiter: borrowed or shared.
pub trait Handle: Clone + Deref<Target = KeyedConcurrency<Self::Key, Self::Clock>> {
    type Key;
    type Clock: Clock;
}

impl<K, C: Clock> Handle for &KeyedConcurrency<K, C> {
    type Key = K;
    type Clock = C;
}

impl<K, C: Clock> Handle for Arc<KeyedConcurrency<K, C>> {
    type Key = K;
    type Clock = C;
}

/// One key of a [`KeyedConcurrency`], with the verbs of a
/// [`ConcurrencyLimiter`](crate::ConcurrencyLimiter) and maybe a limit of its own.
///
/// Made by [`KeyedConcurrency::key`] and [`KeyedConcurrency::key_owned`].
///
/// ```
/// use tollgate::KeyedConcurrency;
///
/// let limiter = KeyedConcurrency::<String>::new(5, 1_000);
/// // A tier's limit is given with the call.
/// let permit = limiter.key("acme").at(500).try_acquire_n(300)?;
/// assert_eq!(limiter.key("acme").peek().available(), 200);
/// # drop(permit);
/// # Ok::<(), tollgate::concurrency::NoPermit>(())
/// ```
#[must_use = "a key does nothing until it is asked"]
pub struct Key<'q, L: Handle, Q: ?Sized> {
    limiter: L,
    key: &'q Q,
    hash: u64,
    limit: Option<u32>,
}

impl<'q, L: Handle, Q: ?Sized> Key<'q, L, Q> {
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

    pub(crate) fn keyed(&self) -> &KeyedConcurrency<L::Key, L::Clock> {
        &self.limiter
    }
}

impl<L: Handle, Q: ?Sized> Key<'_, L, Q>
where
    L::Key: Borrow<Q>,
    Q: Eq + ToOwned<Owned = L::Key>,
{
    /// A permit now, or why not.
    ///
    /// # Errors
    /// [`NoPermit`]: nothing was taken.
    pub fn try_acquire(&self) -> Result<Permit<KeySlot<L>>, NoPermit> {
        self.try_acquire_n(1)
    }

    /// A permit of this weight now, or why not.
    ///
    /// # Errors
    /// [`NoPermit`]: nothing was taken.
    pub fn try_acquire_n(&self, weight: u32) -> Result<Permit<KeySlot<L>>, NoPermit> {
        Permit::try_new(self.pin()?, weight)
    }

    /// Waits for a permit, first come first served.
    pub fn acquire(&self) -> Acquire<KeySlot<L>> {
        self.acquire_n(1)
    }

    /// Waits for a permit of this weight, first come first served. The key has its entry from now
    /// on, until the wait and its permit are over.
    pub fn acquire_n(&self, weight: u32) -> Acquire<KeySlot<L>> {
        Acquire::new(self.pin(), weight)
    }

    fn pin(&self) -> Result<KeySlot<L>, NoPermit> {
        let (gate, slot) = self.limiter.pin(self.hash, self.key, self.limit)?;
        Ok(KeySlot {
            limiter: self.limiter.clone(),
            gate,
            hash: self.hash,
            slot,
        })
    }
}

impl<L: Handle, Q: fmt::Debug + ?Sized> fmt::Debug for Key<'_, L, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("key", &self.key)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A pin on one key's entry: while it is held, the key stays in the table.
pub struct KeySlot<L: Handle> {
    limiter: L,
    gate: Arc<Gate>,
    hash: u64,
    /// None if it has no entry and shares the gate of those without.
    slot: Option<u32>,
}

impl<L: Handle> Drop for KeySlot<L> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.limiter.unpin(self.hash, slot);
        }
    }
}

impl<L: Handle> fmt::Debug for KeySlot<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySlot")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl<L: Handle> PermitHome for KeySlot<L> {
    #[inline]
    fn gate(&self) -> &Gate {
        &self.gate
    }

    #[inline]
    fn context(&self) -> &PermitContext<dyn Clock + '_> {
        &self.limiter.context
    }

    fn now(&self) -> Timestamp {
        self.limiter.context.clock.now()
    }

    /// What keys without an entry share isn't this one's: it may have nothing in flight at all.
    fn refusal(&self, by_gate: NoPermit) -> NoPermit {
        match by_gate {
            NoPermit::Full(shared) | NoPermit::TooLate(shared) | NoPermit::QueueFull(shared)
                if self.slot.is_none() =>
            {
                NoPermit::TooManyKeys(shared)
            }
            own => own,
        }
    }
}

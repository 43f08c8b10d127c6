//! What can be a level of a stack: borrowed, or shared by value; and what of it settles an estimate.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::sealed::Exactly;
use super::{AnyLimit, Inner};
use crate::clock::Clock;
use crate::keyed::Key;
use crate::{
    ConcurrencyLimiter, KeyedConcurrency, Limiter, concurrency, exact_keyed, keyed, tree::TreeLevel,
};

impl<'a, C: Clock> From<&'a Limiter<C>> for AnyLimit<'a> {
    #[inline]
    fn from(limiter: &'a Limiter<C>) -> Self {
        Self::new(limiter)
    }
}

impl<'a, C: Clock> From<&'a Arc<Limiter<C>>> for AnyLimit<'a> {
    fn from(limiter: &'a Arc<Limiter<C>>) -> Self {
        Self::new(&**limiter)
    }
}

impl<'a, C: Clock + 'a> From<Arc<Limiter<C>>> for AnyLimit<'a> {
    fn from(limiter: Arc<Limiter<C>>) -> Self {
        Self(Inner::Owned(limiter))
    }
}

impl<C: Clock> Exactly for &Limiter<C> {}
impl<C: Clock> Exactly for &Arc<Limiter<C>> {}
impl<C: Clock> Exactly for Arc<Limiter<C>> {}

impl<'a, C: Clock + 'static> From<&'a Arc<ConcurrencyLimiter<C>>> for AnyLimit<'a> {
    fn from(limiter: &'a Arc<ConcurrencyLimiter<C>>) -> Self {
        Self::new(limiter)
    }
}

impl<C: Clock + 'static> From<Arc<ConcurrencyLimiter<C>>> for AnyLimit<'_> {
    fn from(limiter: Arc<ConcurrencyLimiter<C>>) -> Self {
        Self::owned(limiter)
    }
}

/// Of the key itself nothing is kept, so it may be made for this call alone.
impl<'a, C: Clock, T: Send + Sync> From<&Key<'a, C, T>> for AnyLimit<'a> {
    #[inline]
    fn from(key: &Key<'a, C, T>) -> Self {
        let (limiter, key) = key.parts();
        Self(Inner::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&'a keyed::OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: &'a keyed::OwnedKey<C, T>) -> Self {
        (&key.key()).into()
    }
}

impl<'a, C: Clock + 'a, T: Send + Sync + 'a> From<keyed::OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: keyed::OwnedKey<C, T>) -> Self {
        let (limiter, key) = key.into_parts();
        Self(Inner::OwnedKeyParts { limiter, key })
    }
}

impl<'a, K, Q, C> From<&'a exact_keyed::Key<'a, K, Q, C>> for AnyLimit<'a>
where
    K: Borrow<Q> + Send,
    Q: Eq + ToOwned<Owned = K> + Sync + ?Sized,
    C: Clock,
{
    fn from(key: &'a exact_keyed::Key<'a, K, Q, C>) -> Self {
        Self::new(key)
    }
}

impl<'a, K, C> From<&'a exact_keyed::OwnedKey<K, C>> for AnyLimit<'a>
where
    K: Eq + Clone + Send + Sync,
    C: Clock,
{
    fn from(key: &'a exact_keyed::OwnedKey<K, C>) -> Self {
        Self::new(key)
    }
}

impl<'a, K, C> From<exact_keyed::OwnedKey<K, C>> for AnyLimit<'a>
where
    K: Eq + Clone + Send + Sync + 'a,
    C: Clock + 'a,
{
    fn from(key: exact_keyed::OwnedKey<K, C>) -> Self {
        Self::owned(key)
    }
}

impl<K, Q: ?Sized, C: Clock> Exactly for &exact_keyed::Key<'_, K, Q, C> {}
impl<K, C: Clock> Exactly for &exact_keyed::OwnedKey<K, C> {}
impl<K, C: Clock> Exactly for exact_keyed::OwnedKey<K, C> {}

impl<'a, K, Q, C> From<&'a concurrency::Key<'a, Arc<KeyedConcurrency<K, C>>, Q>> for AnyLimit<'a>
where
    K: Borrow<Q> + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + fmt::Debug + Sync + ?Sized,
    C: Clock + 'static,
{
    fn from(key: &'a concurrency::Key<'a, Arc<KeyedConcurrency<K, C>>, Q>) -> Self {
        Self::new(key)
    }
}

#[cfg(feature = "quota")]
impl<'a, C: Clock> From<&'a crate::quota::Key<'a, C>> for AnyLimit<'a> {
    fn from(key: &'a crate::quota::Key<'a, C>) -> Self {
        Self::new(key)
    }
}

#[cfg(feature = "quota")]
impl<'a, C: Clock> From<&'a crate::quota::OwnedKey<C>> for AnyLimit<'a> {
    fn from(key: &'a crate::quota::OwnedKey<C>) -> Self {
        Self::new(key)
    }
}

#[cfg(feature = "quota")]
impl<'a, C: Clock + 'a> From<crate::quota::OwnedKey<C>> for AnyLimit<'a> {
    fn from(key: crate::quota::OwnedKey<C>) -> Self {
        Self::owned(key)
    }
}

#[cfg(feature = "quota")]
impl<C: Clock> Exactly for &crate::quota::Key<'_, C> {}
#[cfg(feature = "quota")]
impl<C: Clock> Exactly for &crate::quota::OwnedKey<C> {}
#[cfg(feature = "quota")]
impl<C: Clock> Exactly for crate::quota::OwnedKey<C> {}

impl<'a, C: Clock> From<&'a TreeLevel<'a, C>> for AnyLimit<'a> {
    fn from(leaf: &'a TreeLevel<'a, C>) -> Self {
        Self::new(leaf)
    }
}

//! A tier for each key of a keyed limiter, told by a function of the key; or none.

use std::fmt;

use crate::Tier;
use crate::tier::Chooses;

/// No function of the key: keys are at the limiter's own rate, unless their handles are put
/// [at](super::Key::at) a tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneRate(());

/// A function of keys of this type, given to [`tier_of`](super::Builder::tier_of): which tier a key is in.
pub struct ByKey<K: ?Sized>(pub(super) Box<dyn Chooses<K>>);

/// What says which tier a key of this type is in: [`OneRate`] of any, [`ByKey`] of its own.
///
/// The trait is sealed: it is there to be named, not to be implemented.
pub trait TierOf<K: ?Sized>: sealed::TierOf<K> {}

impl<K: ?Sized, T: sealed::TierOf<K>> TierOf<K> for T {}

pub(super) mod sealed {
    use crate::Tier;

    /// Says which tier a key is in.
    pub trait TierOf<K: ?Sized> {
        fn tier_of(&self, key: &K) -> Option<&Tier>;
    }
}

impl OneRate {
    pub(super) const fn new() -> Self {
        Self(())
    }
}

impl<K: ?Sized> sealed::TierOf<K> for OneRate {
    #[inline(always)]
    fn tier_of(&self, _key: &K) -> Option<&Tier> {
        None
    }
}

impl<K: ?Sized> sealed::TierOf<K> for ByKey<K> {
    #[inline]
    fn tier_of(&self, key: &K) -> Option<&Tier> {
        self.0.tier_of(key)
    }
}

/// A reference to a key is hashed as the key is.
impl<K: ?Sized> sealed::TierOf<&K> for ByKey<K> {
    #[inline]
    fn tier_of(&self, key: &&K) -> Option<&Tier> {
        self.0.tier_of(key)
    }
}

impl<K: ?Sized> fmt::Debug for ByKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByKey").field(&self.0.tiers()).finish()
    }
}

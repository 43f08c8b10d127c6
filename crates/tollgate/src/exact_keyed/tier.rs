//! The function of the key that a limiter may be built with: which tier a key is in.

use std::fmt;
use std::sync::Arc;

use super::kept::Kept;
use crate::tier::Chooses;

/// The function of the key that a limiter was built with, if any.
pub(super) struct RateOf<K>(pub(super) Option<Box<dyn Chooses<K>>>);

impl<K> RateOf<K> {
    /// What it says of this key, compiled for the limiter's algorithm.
    pub(super) fn tier<A: Kept>(&self, key: &K) -> Option<Arc<A>> {
        let tier = self.0.as_ref()?.tier_of(key)?;
        A::of(tier).map(Arc::clone)
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl<K> fmt::Debug for RateOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "None" } else { "Some(fn)" })
    }
}

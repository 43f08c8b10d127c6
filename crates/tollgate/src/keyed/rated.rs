//! A rate for each key, told by a function of the key.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use tollgate_core::{Decision, Gcra};

use super::{Key, KeyedLimiter};
use crate::acquire::Acquire;
use crate::clock::{Clock, Monotonic};
use crate::{Refused, Reservation};

/// A [`KeyedLimiter`] whose keys are of one type and have rates of their own, told by a function of
/// the key. Made by [`KeyedLimiter::rated_by`].
///
/// The function runs with every call, so it should be a look-up of rates that were compiled before.
///
/// ```
/// use tollgate::core::{Arithmetic, Gcra};
/// use tollgate::{KeyedLimiter, Rate, clock::Manual};
///
/// let staff = Gcra::new(Rate::per_hour(100))?;
/// let limiter = KeyedLimiter::builder(Rate::per_hour(1), 1_000)
///     .clock(Manual::new())
///     .build()?
///     .rated_by(move |user: &str| user.starts_with("staff:").then_some(staff));
/// assert!(limiter.allow("guest") && !limiter.allow("guest"));
/// assert!(limiter.key("staff:7").allow_n(100));
/// assert_eq!(limiter.limiter().stats().denied, 1);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct RatedBy<K: ?Sized, F, C: Clock = Monotonic> {
    limiter: KeyedLimiter<C>,
    rate_of: F,
    keys: PhantomData<fn(&K)>,
}

impl<C: Clock> KeyedLimiter<C> {
    /// Keys of this type at the rates that a function says, or at the limiter's own where it says
    /// nothing.
    pub fn rated_by<K, F>(self, rate_of: F) -> RatedBy<K, F, C>
    where
        K: Hash + ?Sized,
        F: Fn(&K) -> Option<Gcra>,
    {
        RatedBy {
            limiter: self,
            rate_of,
            keys: PhantomData,
        }
    }
}

impl<K, F, C> RatedBy<K, F, C>
where
    K: Hash + ?Sized,
    F: Fn(&K) -> Option<Gcra>,
    C: Clock,
{
    /// One key at its rate, with all verbs.
    #[inline]
    pub fn key(&self, key: &K) -> Key<'_, C> {
        match (self.rate_of)(key) {
            Some(rate) => self.limiter.key_at_rate(key, &rate),
            None => self.limiter.key(key),
        }
    }

    /// Whether one request of this key passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow(&self, key: &K) -> bool {
        self.key(key).allow()
    }

    /// Decides one request of this key.
    pub fn check(&self, key: &K) -> Decision {
        self.check_n(key, 1)
    }

    /// Decides a request of this key and cost. A cost of 0 peeks.
    pub fn check_n(&self, key: &K, cost: u64) -> Decision {
        self.key(key).check_n(cost)
    }

    /// Takes `cost` of this key's tokens, to be used after the reservation's delay.
    ///
    /// # Errors
    /// As [`KeyedLimiter::reserve`].
    pub fn reserve(&self, key: &K, cost: u64) -> Result<Reservation<Key<'_, C>>, Refused> {
        self.key(key).reserve(cost)
    }

    /// Waits for one of this key's tokens, first come first served.
    pub fn acquire(&self, key: &K) -> Acquire<Key<'_, C>> {
        self.key(key).acquire_n(1)
    }

    /// The limiter itself, for what doesn't depend on a key's rate: blocks, refunds, counts.
    pub fn limiter(&self) -> &KeyedLimiter<C> {
        &self.limiter
    }
}

impl<K: ?Sized, F, C: Clock> fmt::Debug for RatedBy<K, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RatedBy")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

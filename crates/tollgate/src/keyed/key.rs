//! One key of a keyed limiter: the content of its handle, and the operations that only this table's keys have.

use std::hash::Hash;
use std::sync::Arc;

use sealed::LimiterPointer;
use tollgate_core::{Gcra, LimitError, Timestamp};

use super::key_at_rate::{FastCheck, KeyAtRate, KeyRate};
use super::rate_cell::RateInForce;
use super::{KeyedLimiter, SingleRate, TierOf};
use crate::clock::{Clock, Monotonic};
use crate::key_handle::KeyHandle;
use crate::key_handle::sealed::KeyTarget;
use crate::key_table::hasher::KEY_BITS;
use crate::{Algorithm, Tier};

/// One key of a [`KeyedLimiter`], with a borrow of the limiter. [`KeyedLimiter::key`] makes it; [`KeyHandle`] has the
/// verbs.
pub type Key<'a, C = Monotonic, T = SingleRate> = KeyHandle<FingerprintKey<&'a KeyedLimiter<C, T>>>;

/// One key of a [`KeyedLimiter`], with a shared pointer to the limiter: its reservations and waits borrow nothing.
/// [`KeyedLimiter::key_owned`] makes it; [`KeyHandle`] has the verbs.
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
/// # Ok::<(), tollgate::RateDenied>(())
/// ```
pub type OwnedKey<C = Monotonic, T = SingleRate> =
    KeyHandle<FingerprintKey<Arc<KeyedLimiter<C, T>>>>;

/// A key of a table of fingerprints, with a pointer to its limiter: the content of the handles of such keys.
#[derive(Clone, Copy, Debug)]
pub struct FingerprintKey<L> {
    pub(crate) limiter: L,
    /// The fingerprint, without the tag of the rate's interval.
    pub(super) fingerprint: u64,
    /// The tier of the key; `None` stands for the limiter's rate at the time of each call.
    pub(super) tier: Option<RateInForce>,
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// One key, with all verbs. Its limit is the limiter's own rate, or the tier that the function chooses with which
    /// the limiter was [built](super::Builder::tier_of). [`at`](Key::at) selects another limit.
    #[inline(always)]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<'_, C, T>
    where
        T: TierOf<K>,
    {
        KeyHandle(FingerprintKey {
            limiter: self,
            fingerprint: self.hasher.fingerprint(key),
            tier: self.tier(key),
        })
    }

    /// One key, as [`key`](Self::key) returns it, for use in another task.
    pub fn key_owned<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> OwnedKey<C, T>
    where
        T: TierOf<K>,
    {
        KeyHandle(FingerprintKey {
            limiter: Arc::clone(self),
            fingerprint: self.hasher.fingerprint(key),
            tier: self.tier(key),
        })
    }
}

mod sealed {
    use std::ops::Deref;

    use super::{Arc, Clock, KeyedLimiter};

    /// A reference to a limiter, or an `Arc` of one.
    pub trait LimiterPointer:
        Clone + Deref<Target = KeyedLimiter<Self::Clock, Self::Tiers>>
    {
        type Clock: Clock;
        type Tiers;
    }

    impl<C: Clock, T> LimiterPointer for &KeyedLimiter<C, T> {
        type Clock = C;
        type Tiers = T;
    }

    impl<C: Clock, T> LimiterPointer for Arc<KeyedLimiter<C, T>> {
        type Clock = C;
        type Tiers = T;
    }
}

impl<L: LimiterPointer> KeyHandle<FingerprintKey<L>> {
    /// Identifies this key, as [`KeyedLimiter::fingerprint`].
    #[inline]
    pub const fn fingerprint(&self) -> u64 {
        self.0.fingerprint & KEY_BITS
    }

    /// The same key under another limit: a plan, or an override.
    ///
    /// Each call may use another limit: spent tokens stay spent. So in any window no more passes than the largest burst
    /// and the fastest rate of the limits that were used in it, in any order. Debt is paid back at the rate that last
    /// let the key pass, or at a faster rate that denied it. An upgraded key waits until its debt (at most the largest
    /// burst and the bookings) is paid back at the new rate. A downgraded key waits no longer than at the old rate.
    ///
    /// A limiter distinguishes 1,023 intervals between tokens. Beyond those, spent tokens carry over as the time that
    /// they take to refill, so that rates may add up.
    ///
    /// # Errors
    /// [`LimitError::TierAlgorithmMismatch`] if the tier's algorithm isn't GCRA.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(10), 100).clock(Manual::new()).build()?;
    /// assert!(limiter.key("tenant").allow_n(10));
    /// let gold = Tier::new(Algorithm::Gcra, Rate::per_second(10).burst(5))?;
    /// // Six of the ten have to be paid back before one fits a bucket of five: not an hour.
    /// let denied = limiter.key("tenant").at(&gold)?.check();
    /// assert_eq!(denied.wait_or_max(), Duration::from_millis(600));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn at(&self, tier: &Tier) -> Result<Self, LimitError> {
        match tier.gcra() {
            Some(limit) => Ok(self.at_limit(limit)),
            None => Err(tier.algorithm_mismatch(Algorithm::Gcra)),
        }
    }

    /// The same key under this limit.
    #[inline]
    pub(crate) fn at_limit(&self, limit: &Gcra) -> Self {
        let intervals = self.0.limiter.table.intervals();
        let tier = Some(RateInForce::of(limit, intervals));
        Self(FingerprintKey {
            tier,
            ..self.0.clone()
        })
    }

    /// The fast path: decides a request of this cost at a time on the limiter's clock, if one read of the key's slot
    /// suffices. If not, it charges and counts nothing, and returns `None`: call one of the other verbs then.
    ///
    /// Use it where an allowed request needs only a yes and a denied one needs the whole decision. Read the clock
    /// before you make the key, so that the CPU can overlap the two latencies.
    ///
    /// ```
    /// use tollgate::{Clock, KeyedLimiter, Rate, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(2), 100).clock(Manual::new()).build()?;
    /// let now = limiter.clock().now();
    /// let user = limiter.key("user");
    /// // A key that was never seen takes a closer look.
    /// assert!(user.try_fast_check(now, 1).is_none());
    /// assert!(user.check().is_allowed());
    /// let passed = user.try_fast_check(now, 1).expect("a key that was seen");
    /// assert!(passed.is_allowed() && passed.decision().remaining == 0);
    /// assert!(user.try_fast_check(now, 1).is_some_and(|denied| !denied.is_allowed()));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline(always)]
    pub fn try_fast_check(
        &self,
        now: Timestamp,
        cost: u64,
    ) -> Option<FastCheck<'_, L::Clock, L::Tiers>> {
        self.0.key().check_at_a_glance(now, cost)
    }

    /// Starts to fetch the key's cache lines for a later check, and doesn't wait for them.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let limiter = KeyedLimiter::new(Rate::per_second(1), 1_000);
    /// let user = limiter.key("user:42");
    /// user.prefetch();
    /// // What else there is to do for this request.
    /// assert!(user.allow());
    /// ```
    #[inline]
    pub fn prefetch(&self) {
        self.0.key().prefetch();
    }
}

impl<L: LimiterPointer> KeyTarget for FingerprintKey<L> {
    type Key<'a>
        = KeyAtRate<'a, L::Clock, L::Tiers>
    where
        Self: 'a;

    #[inline(always)]
    fn key(&self) -> KeyAtRate<'_, L::Clock, L::Tiers> {
        let limiter = &*self.limiter;
        let (in_force, is_own) = match self.tier {
            Some(tier) => (tier, false),
            None => (limiter.pace.read(), true),
        };
        KeyAtRate {
            limiter,
            key: KeyRate {
                fingerprint: self.fingerprint,
                in_force,
                is_limiter_rate: is_own,
            },
        }
    }

    #[inline]
    fn allow(&self, cost: u64) -> bool {
        let limiter = &*self.limiter;
        let allowed = limiter.admit(self.fingerprint, self.tier, cost);
        if cost > 0 {
            limiter.counters.count(allowed);
        }
        allowed
    }

    fn nap_until(&self, at: Timestamp) {
        self.limiter.clock.park_until_woken(at);
    }
}

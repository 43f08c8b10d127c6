//! A rate compiled for a limiter: what is given with a call, or by a function of the key.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{
    Arithmetic as _, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    TokenBucket,
};

use super::kept::Kept;
use crate::Algorithm;

/// A rate compiled for one [`Algorithm`]: a plan, or an override for one customer. Made by
/// [`ExactKeyedLimiter::tier`](crate::ExactKeyedLimiter::tier) or
/// [`Builder::tier`](crate::exact_keyed::Builder::tier), given to
/// [`key_at_rate`](crate::ExactKeyedLimiter::key_at_rate).
///
/// Make it once and keep it. Clones share it, and so do the keys that are at it.
///
/// ```
/// use tollgate::{ExactKeyedLimiter, Rate};
///
/// let limiter = ExactKeyedLimiter::<String>::new(Rate::per_minute(60), 10_000);
/// let gold = limiter.tier(Rate::per_minute(600))?;
/// assert!(limiter.key_at_rate("user:42", &gold).allow_n(100));
/// assert_eq!(gold.rate(), Rate::per_minute(600));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tier(pub(super) Compiled);

/// The limit of a tier.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Compiled {
    Gcra(Arc<Gcra>),
    TokenBucket(Arc<TokenBucket>),
    LeakyBucket(Arc<LeakyBucket>),
    FixedWindow(Arc<FixedWindow>),
    SlidingLog(Arc<SlidingLog>),
    SlidingCounter(Arc<SlidingCounter>),
}

impl Tier {
    pub(super) fn new(algorithm: Algorithm, rate: Rate) -> Result<Self, LimitError> {
        Ok(Self(match algorithm {
            Algorithm::Gcra => Compiled::Gcra(Arc::new(Gcra::new(rate)?)),
            Algorithm::TokenBucket => Compiled::TokenBucket(Arc::new(TokenBucket::new(rate)?)),
            Algorithm::LeakyBucket => Compiled::LeakyBucket(Arc::new(LeakyBucket::new(rate)?)),
            Algorithm::FixedWindow(align) => {
                Compiled::FixedWindow(Arc::new(FixedWindow::new(rate)?.align(align)))
            }
            Algorithm::SlidingLog => Compiled::SlidingLog(Arc::new(SlidingLog::new(rate)?)),
            Algorithm::SlidingCounter => {
                Compiled::SlidingCounter(Arc::new(SlidingCounter::new(rate)?))
            }
        }))
    }

    /// The rate it was made from.
    pub fn rate(&self) -> Rate {
        match &self.0 {
            Compiled::Gcra(limit) => limit.rate(),
            Compiled::TokenBucket(limit) => limit.rate(),
            Compiled::LeakyBucket(limit) => limit.rate(),
            Compiled::FixedWindow(limit) => limit.rate(),
            Compiled::SlidingLog(limit) => limit.rate(),
            Compiled::SlidingCounter(limit) => limit.rate(),
        }
    }
}

/// The function of the key that a limiter was built with, if any.
pub(super) struct RateOf<K>(pub(super) Option<Box<TierOf<K>>>);

pub(super) type TierOf<K> = dyn Fn(&K) -> Option<Tier> + Send + Sync;

impl<K> RateOf<K> {
    /// What it says of this key, compiled for the limiter's algorithm.
    pub(super) fn tier<A: Kept>(&self, key: &K) -> Option<Arc<A>> {
        let tier = self.0.as_ref()?(key)?;
        Some(Arc::clone(A::expect(&tier)))
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

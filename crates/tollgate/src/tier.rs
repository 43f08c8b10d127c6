//! Tiers: limits that apply to some keys, selected by a handle or by a function of the key.

use std::any::Any;
use std::mem::discriminant;
use std::sync::Arc;

use tollgate_core::{
    Arithmetic as _, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter, SlidingLog,
    TokenBucket,
};

use crate::Algorithm;

/// A limit for some keys: a plan, or an override for one customer. It has an algorithm and a rate.
///
/// `limiter.key(k).at(&tier)` puts a key of a [`KeyedLimiter`](crate::KeyedLimiter) or a
/// [`StoredKeyLimiter`](crate::StoredKeyLimiter) under the tier, if the limiter has the same algorithm. The builders of
/// both have a method `tier_of` for a function that selects each key's tier.
///
/// Make a tier once and keep it. Its clones share it, and so do the keys at it.
///
/// ```
/// use tollgate::{Algorithm, StoredKeyLimiter, KeyedLimiter, Rate, Tier};
///
/// let gold = Tier::new(Algorithm::Gcra, Rate::per_minute(600))?;
/// assert_eq!((gold.algorithm(), gold.rate()), (Algorithm::Gcra, Rate::per_minute(600)));
///
/// let limiter = KeyedLimiter::new(Rate::per_minute(60), 10_000);
/// assert!(limiter.key("user:42").at(&gold)?.allow_n(100));
/// let exact = StoredKeyLimiter::<String>::new(Rate::per_minute(60), 10_000);
/// assert!(exact.key("user:42").at(&gold)?.allow_n(100));
///
/// let log = Tier::new(Algorithm::SlidingLog, Rate::per_minute(600))?;
/// assert_eq!(
///     limiter.key("user:42").at(&log).unwrap_err().to_string(),
///     "tier \"600/m\" was made for a sliding log, and this limiter counts by GCRA; \
///      make the tier with the limiter's algorithm"
/// );
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tier(pub(crate) CompiledLimit);

/// The limit of a tier.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CompiledLimit {
    Gcra(Arc<Gcra>),
    TokenBucket(Arc<TokenBucket>),
    LeakyBucket(Arc<LeakyBucket>),
    FixedWindow(Arc<FixedWindow>),
    SlidingLog(Arc<SlidingLog>),
    SlidingCounter(Arc<SlidingCounter>),
}

impl Tier {
    /// This rate, counted by this algorithm.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn new(algorithm: Algorithm, rate: Rate) -> Result<Self, LimitError> {
        Ok(Self(match algorithm {
            Algorithm::Gcra => CompiledLimit::Gcra(Arc::new(Gcra::new(rate)?)),
            Algorithm::TokenBucket => CompiledLimit::TokenBucket(Arc::new(TokenBucket::new(rate)?)),
            Algorithm::LeakyBucket => CompiledLimit::LeakyBucket(Arc::new(LeakyBucket::new(rate)?)),
            Algorithm::FixedWindow(align) => {
                CompiledLimit::FixedWindow(Arc::new(FixedWindow::new(rate)?.with_alignment(align)))
            }
            Algorithm::SlidingLog => CompiledLimit::SlidingLog(Arc::new(SlidingLog::new(rate)?)),
            Algorithm::SlidingCounter => {
                CompiledLimit::SlidingCounter(Arc::new(SlidingCounter::new(rate)?))
            }
        }))
    }

    /// The algorithm of the tier.
    pub fn algorithm(&self) -> Algorithm {
        match &self.0 {
            CompiledLimit::Gcra(_) => Algorithm::Gcra,
            CompiledLimit::TokenBucket(_) => Algorithm::TokenBucket,
            CompiledLimit::LeakyBucket(_) => Algorithm::LeakyBucket,
            CompiledLimit::FixedWindow(limit) => Algorithm::FixedWindow(limit.alignment()),
            CompiledLimit::SlidingLog(_) => Algorithm::SlidingLog,
            CompiledLimit::SlidingCounter(_) => Algorithm::SlidingCounter,
        }
    }

    /// The rate of the tier.
    pub fn rate(&self) -> Rate {
        match &self.0 {
            CompiledLimit::Gcra(limit) => limit.rate(),
            CompiledLimit::TokenBucket(limit) => limit.rate(),
            CompiledLimit::LeakyBucket(limit) => limit.rate(),
            CompiledLimit::FixedWindow(limit) => limit.rate(),
            CompiledLimit::SlidingLog(limit) => limit.rate(),
            CompiledLimit::SlidingCounter(limit) => limit.rate(),
        }
    }

    /// Its limit, in an `Arc`.
    pub(crate) fn limit(&self) -> &dyn Any {
        match &self.0 {
            CompiledLimit::Gcra(limit) => limit,
            CompiledLimit::TokenBucket(limit) => limit,
            CompiledLimit::LeakyBucket(limit) => limit,
            CompiledLimit::FixedWindow(limit) => limit,
            CompiledLimit::SlidingLog(limit) => limit,
            CompiledLimit::SlidingCounter(limit) => limit,
        }
    }

    /// The tier's limit, if it is GCRA.
    #[inline(always)]
    pub(crate) fn gcra(&self) -> Option<&Gcra> {
        match &self.0 {
            CompiledLimit::Gcra(limit) => Some(limit),
            _ => None,
        }
    }

    /// Checks that the tier has the algorithm of a limiter, with any window alignment.
    #[inline]
    pub(crate) fn expect_algorithm(&self, limiter: Algorithm) -> Result<(), LimitError> {
        if discriminant(&self.algorithm()) == discriminant(&limiter) {
            Ok(())
        } else {
            Err(self.algorithm_mismatch(limiter))
        }
    }

    /// The error of a tier with another algorithm than this limiter's.
    #[cold]
    pub(crate) fn algorithm_mismatch(&self, limiter: Algorithm) -> LimitError {
        LimitError::TierAlgorithmMismatch {
            rate: self.rate(),
            tier: algorithm_name(self.algorithm()),
            limiter: algorithm_name(limiter),
        }
    }
}

/// Checks and names of an algorithm, for errors.
impl Algorithm {
    /// Whether it can represent a rate.
    ///
    /// # Errors
    /// Why it can't, and what it can represent.
    ///
    /// ```
    /// use tollgate::{Algorithm, Rate};
    ///
    /// let slow = Rate::per_day(1).burst(1_000);
    /// assert!(Algorithm::Gcra.check_rate(slow).is_err());
    /// assert!(Algorithm::TokenBucket.check_rate(slow).is_ok());
    /// ```
    pub fn check_rate(self, rate: Rate) -> Result<(), LimitError> {
        Tier::new(self, rate).map(drop)
    }
}

const fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Gcra => "GCRA",
        Algorithm::TokenBucket => "a token bucket",
        Algorithm::LeakyBucket => "a leaky bucket",
        Algorithm::FixedWindow(_) => "a fixed window",
        Algorithm::SlidingLog => "a sliding log",
        Algorithm::SlidingCounter => "a sliding counter",
    }
}

/// Selects the tier of a key.
pub(crate) trait ChooseTier<K: ?Sized>: Send + Sync {
    /// The tier of a key; `None` for the limiter's own rate.
    fn tier_of(&self, key: &K) -> Option<&Tier>;

    /// All tiers that it selects from.
    fn tiers(&self) -> &[Tier];
}

/// Tiers, and a function that selects one of them for a key.
pub(crate) struct TierChooser<S, F> {
    pub(crate) tiers: S,
    pub(crate) choose: F,
}

impl<K, S, F> ChooseTier<K> for TierChooser<S, F>
where
    K: ?Sized,
    S: AsRef<[Tier]> + Send + Sync,
    F: for<'a> Fn(&'a S, &K) -> Option<&'a Tier> + Send + Sync,
{
    #[inline]
    fn tier_of(&self, key: &K) -> Option<&Tier> {
        (self.choose)(&self.tiers, key)
    }

    fn tiers(&self) -> &[Tier] {
        self.tiers.as_ref()
    }
}

/// Checks that all tiers of a function have the algorithm of the limiter.
pub(crate) fn check_tier_algorithms<K: ?Sized>(
    choice: &dyn ChooseTier<K>,
    limiter: Algorithm,
) -> Result<(), LimitError> {
    let mut tiers = choice.tiers().iter();
    tiers.try_for_each(|tier| tier.expect_algorithm(limiter))
}

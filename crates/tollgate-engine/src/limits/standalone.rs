//! A limit of no policy, for those who use a backend directly.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::LimitError;

use super::check::Check;
use super::hashers::KeyHashers;
use super::key::KeyPlan;
use super::kind::LimitKind;
use super::limit::{CarryOver, Counter, Limit};
use super::request_key::RequestKey;
use crate::facts::Facts;
use crate::matcher::FactIndex;
use crate::policy::{Counting, KeyPart, OnStoreFailure};

/// A limit of no policy, by one key: what asks a [`Backend`](crate::backend::Backend) without an engine.
///
/// ```
/// use tollgate::{Algorithm, Rate, clock::Manual};
/// use tollgate_engine::Facts;
/// use tollgate_engine::backend::{LimitKind, Memory, StandaloneLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_second(2), algorithm: Algorithm::Gcra };
/// let limit = StandaloneLimit::new("logins", kind)?;
/// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let ada = StandaloneLimit::facts("ada");
/// let passed = (0..5).filter(|_| memory.answer(&[limit.check(&ada, 1)]).allowed);
/// assert_eq!(passed.count(), 2);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
pub struct StandaloneLimit {
    limit: Limit,
    plan: KeyPlan,
    hashers: KeyHashers,
}

/// Counters of no rule are numbered downwards from the largest number; those of rules upwards from one.
static NEXT_COUNTER: AtomicU64 = AtomicU64::new(1);

/// The fact that is the key.
const KEY: &str = "key";

impl StandaloneLimit {
    /// A limit that is kept under this name.
    ///
    /// # Errors
    /// If the algorithm doesn't take the rate.
    pub fn new(name: &str, kind: LimitKind) -> Result<Self, LimitError> {
        let mut slots = FactIndex::default();
        let plan = KeyPlan::new(&[KeyPart::Fact(KEY.to_owned())], &mut slots);
        let counter = Counter {
            name: name.to_owned(),
            ordinal: 0,
            id: u64::MAX - NEXT_COUNTER.fetch_add(1, Ordering::Relaxed),
        };
        let limit = Limit::new(kind, counter)?.with_own_counter();
        let limit = limit.with_storage(OnStoreFailure::Local, Counting::Exact, None);
        Ok(Self {
            limit,
            plan,
            hashers: KeyHashers::random(),
        })
    }

    /// What happens while the store can't be asked: local unless said otherwise.
    #[must_use]
    pub fn on_store_failure(mut self, failure: OnStoreFailure) -> Self {
        let counting = self.limit.counting();
        self.limit = self.limit.with_storage(failure, counting, None);
        self
    }

    /// How a fleet counts it: exactly unless said otherwise.
    #[must_use]
    pub fn counting(mut self, counting: Counting) -> Self {
        let failure = self.limit.on_store_failure();
        self.limit = self.limit.with_storage(failure, counting, None);
        self
    }

    /// What a key keeps in a store when it is asked [by another rate](Self::at): tokens unless said otherwise.
    #[must_use]
    pub fn carry_over(mut self, carry_over: CarryOver) -> Self {
        self.limit = self.limit.with_carry_over(carry_over);
        self
    }

    /// The same counter and keys by another limit.
    ///
    /// # Errors
    /// If the algorithm doesn't take the rate.
    ///
    /// ```
    /// use tollgate::{Algorithm, Rate, clock::Manual};
    /// use tollgate_engine::backend::{LimitKind, Memory, StandaloneLimit};
    ///
    /// let kind = |rate| LimitKind::Rate { rate, algorithm: Algorithm::Gcra };
    /// let hourly = StandaloneLimit::new("calls", kind(Rate::per_hour(3)))?;
    /// let minutely = hourly.with_kind(kind(Rate::per_minute(4)))?;
    /// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let ada = StandaloneLimit::facts("ada");
    /// assert!(memory.answer(&[hourly.check(&ada, 3)]).allowed);
    /// // Three of its four are spent.
    /// assert!(!memory.answer(&[minutely.check(&ada, 2)]).allowed);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn with_kind(&self, kind: LimitKind) -> Result<Self, LimitError> {
        Ok(Self {
            limit: self.limit.with_kind(kind)?,
            plan: self.plan.clone(),
            hashers: self.hashers.clone(),
        })
    }

    /// The limit itself.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The facts of a key.
    #[inline]
    pub fn facts(key: &str) -> Facts<'_> {
        let mut facts = Facts::new();
        facts.set(KEY, key);
        facts
    }

    /// A question about the key of [these facts](Self::facts).
    #[inline]
    pub fn check<'a>(&'a self, facts: &'a Facts<'a>, cost: u64) -> Check<'a> {
        let fingerprint = facts.get(KEY).map(|key| self.hashers.of_text(key));
        Check {
            limit: &self.limit,
            key: RequestKey::new(&self.plan, facts, fingerprint.unwrap_or_default()),
            cost,
        }
    }
}

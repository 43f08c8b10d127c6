//! A limit outside a policy, for programs that use a backend directly.

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

/// A limit outside a policy, with one key, to query a [`Backend`](crate::backend::Backend) without an engine.
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

/// Numbers standalone counters downwards from the largest number. Those of rules count upwards from one.
static NEXT_COUNTER: AtomicU64 = AtomicU64::new(1);

/// The fact that is the key.
const KEY: &str = "key";

impl StandaloneLimit {
    /// A limit whose counter has this name.
    ///
    /// # Errors
    /// If the algorithm doesn't support the rate.
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

    /// Sets what happens while the store is unavailable: local by default.
    #[must_use]
    pub fn on_store_failure(mut self, failure: OnStoreFailure) -> Self {
        let counting = self.limit.counting();
        self.limit = self.limit.with_storage(failure, counting, None);
        self
    }

    /// Sets how a fleet counts: exactly by default.
    #[must_use]
    pub fn counting(mut self, counting: Counting) -> Self {
        let failure = self.limit.on_store_failure();
        self.limit = self.limit.with_storage(failure, counting, None);
        self
    }

    /// Sets what a key keeps in a store when it is checked [with another kind](Self::with_kind): tokens by default.
    #[must_use]
    pub fn carry_over(mut self, carry_over: CarryOver) -> Self {
        self.limit = self.limit.with_carry_over(carry_over);
        self
    }

    /// Another limit with the same counter and keys.
    ///
    /// # Errors
    /// If the algorithm doesn't support the rate.
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
    /// // Three of the four are spent.
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

    /// The facts for a key.
    #[inline]
    pub fn facts(key: &str) -> Facts<'_> {
        let mut facts = Facts::new();
        facts.set(KEY, key);
        facts
    }

    /// A check of the key of [these facts](Self::facts).
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

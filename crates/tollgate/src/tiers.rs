//! Tiers: what each sort of tenant may do, as data: rate, quota and concurrency together.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate};

use crate::clock::{Clock, Monotonic, Wall};
use crate::quota::{Quota, QuotaLimiter};
use crate::{
    KeyedConcurrency, KeyedLimiter, Level, Stack,
    stack::{Pass, StackVerdict},
};

mod builder;
mod operator;
mod parse;
mod usage;

pub use builder::{Builder, Settings};
pub use operator::Stats;
pub use parse::AllowanceParseError;
pub use usage::{TenantUsage, Usage};

/// What a tier allows each of its tenants.
///
/// ```
/// use tollgate::{Quota, Rate, tiers::Allowance};
///
/// let free = Allowance::new(Rate::per_second(10).burst(20))
///     .quota(Quota::per_day(1_000))
///     .concurrency(5);
/// assert_eq!(free.to_string(), "10/s burst 20, 1000/day, 5 at once");
/// assert_eq!("10/s burst 20, 1000/day, 5 at once".parse(), Ok(free));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    rate: Rate,
    quota: Option<Quota>,
    concurrency: Option<u32>,
}

impl Allowance {
    /// This rate, with no quota and any number at once.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            quota: None,
            concurrency: None,
        }
    }

    /// And no more than this in a period.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// And no more than this many at once.
    #[must_use]
    pub const fn concurrency(mut self, limit: u32) -> Self {
        self.concurrency = Some(limit);
        self
    }
}

impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rate)?;
        if let Some(quota) = &self.quota {
            write!(f, ", {quota}")?;
        }
        if let Some(limit) = self.concurrency {
            write!(f, ", {limit} at once")?;
        }
        Ok(())
    }
}

/// Why tiers could not be made or changed; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierError {
    /// No tier has this name.
    Unknown {
        /// The name.
        tier: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The rate can't be represented.
    Rate(LimitError),
    /// Too many tenants are assigned to tiers.
    TooManyTenants {
        /// How many may.
        most: usize,
    },
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { tier, known } => {
                write!(f, "no tier {tier:?}; there are {}", known.join(", "))
            }
            Self::Rate(error) => error.fmt(f),
            Self::TooManyTenants { most } => write!(
                f,
                "{most} tenants are assigned already; unassign some, or build them with a larger capacity"
            ),
        }
    }
}

impl std::error::Error for TierError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rate(error) => Some(error),
            _ => None,
        }
    }
}

impl From<LimitError> for TierError {
    fn from(error: LimitError) -> Self {
        Self::Rate(error)
    }
}

/// Tenants, their tiers, and the limits that follow: a request passes its tenant's rate, quota and
/// concurrency together or none of them.
///
/// A tenant without an assignment is in the default tier. Tiers, assignments and overrides change
/// live: what a tenant has spent stays spent, and what is in flight stays valid.
///
/// ```
/// use tollgate::{Quota, Rate, Tiers, tiers::Allowance, stack::Kind};
///
/// let free = Allowance::new(Rate::per_second(10).burst(20)).quota(Quota::per_day(1_000));
/// let tiers = Tiers::builder("free", free.concurrency(5), 1_000_000).tier(
///     "enterprise",
///     Allowance::new(Rate::per_second(1_000).burst(2_000))
///         .quota(Quota::per_day(10_000_000))
///         .concurrency(500),
/// )
/// .build()?;
/// tiers.assign("acme", "enterprise")?;
///
/// let passes: Vec<_> = (0..9).filter_map(|_| tiers.allow("hobbyist")).collect();
/// assert_eq!(passes.len(), 5); // five at once, and they are all still running
/// let verdict = tiers.check("hobbyist");
/// assert_eq!(verdict.refusal().expect("refused").kind, Kind::Concurrency);
/// assert!(tiers.check("acme").refusal().is_none());
/// # Ok::<(), tollgate::tiers::TierError>(())
/// ```
#[derive(Debug)]
pub struct Tiers<C: Clock = Monotonic, W: Clock = Wall> {
    directory: RwLock<Directory>,
    rates: KeyedLimiter<C>,
    quotas: QuotaLimiter<W>,
    slots: Arc<KeyedConcurrency<String, C>>,
    stack: Stack,
    capacity: usize,
}

/// Which limits are whose.
#[derive(Debug)]
struct Directory {
    default: Arc<Plan>,
    tiers: HashMap<String, Arc<Plan>>,
    tenants: HashMap<String, LimitsOf>,
}

/// Where a tenant's limits come from.
#[derive(Debug)]
enum LimitsOf {
    Tier(String),
    Own(Arc<Plan>),
}

/// An allowance, compiled.
#[derive(Debug)]
struct Plan {
    name: String,
    allowance: Allowance,
    rate: Gcra,
}

impl Plan {
    fn new(name: &str, allowance: Allowance) -> Result<Arc<Self>, LimitError> {
        Ok(Arc::new(Self {
            name: name.to_owned(),
            rate: Gcra::new(allowance.rate)?,
            allowance,
        }))
    }
}

impl Directory {
    fn plan(&self, tenant: &str) -> &Arc<Plan> {
        let own = self.tenants.get(tenant).and_then(|place| match place {
            LimitsOf::Own(plan) => Some(plan),
            LimitsOf::Tier(tier) => self.tiers.get(tier),
        });
        own.unwrap_or(&self.default)
    }

    fn expect(&self, tier: &str) -> Result<(), TierError> {
        if self.tiers.contains_key(tier) {
            return Ok(());
        }
        let mut known: Vec<_> = self.tiers.keys().cloned().collect();
        known.sort();
        Err(TierError::Unknown {
            tier: tier.to_owned(),
            known,
        })
    }

    fn place(&mut self, tenant: &str, place: LimitsOf, most: usize) -> Result<(), TierError> {
        if self.tenants.len() >= most && !self.tenants.contains_key(tenant) {
            return Err(TierError::TooManyTenants { most });
        }
        self.tenants.insert(tenant.to_owned(), place);
        Ok(())
    }
}

impl Tiers {
    /// Starts with the name and the allowance of the tier of every tenant that is not assigned to another.
    ///
    /// The capacity is how many tenants may be active at once, and how many may be assigned to a tier or have
    /// limits of their own. Beyond it new tenants share one rate and one concurrency limit.
    pub fn builder(default: &str, allowance: Allowance, capacity: usize) -> Builder {
        Builder::new(default, allowance, capacity)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Whether one request of this tenant passes now; what comes back holds its slot.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self, tenant: &str) -> Option<Pass> {
        self.with_levels(tenant, 1, |levels| self.stack.allow(levels))
    }

    /// Decides one request of this tenant.
    pub fn check(&self, tenant: &str) -> StackVerdict<'static> {
        self.check_n(tenant, 1)
    }

    /// Decides a request of this tenant that costs its rate and its quota so much, and one slot.
    pub fn check_n(&self, tenant: &str, cost: u64) -> StackVerdict<'static> {
        self.with_levels(tenant, cost, |levels| {
            self.stack.check(levels).named_by_kind()
        })
    }

    /// Whether one request of this tenant would pass, without charging anything;
    /// [`usage`](Self::usage) tells of each limit by itself.
    pub fn peek(&self, tenant: &str) -> StackVerdict<'static> {
        self.with_levels(tenant, 1, |levels| self.stack.peek(levels).named_by_kind())
    }

    /// The tenant's limits as levels, at this cost, to be met together with others.
    ///
    /// ```
    /// use tollgate::{Level, Limiter, Rate, Stack, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_second(10)), 1_000_000).build()?;
    /// let (global, stack) = (Limiter::new(Rate::per_second(1_000)), Stack::new());
    /// let pass = tiers.with_levels("acme", 1, |own| {
    ///     let mut levels = own.to_vec();
    ///     levels.push(Level::new("global", &global));
    ///     stack.allow(&levels)
    /// });
    /// assert!(pass.is_some());
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn with_levels<T>(
        &self,
        tenant: &str,
        cost: u64,
        meet: impl FnOnce(&[Level<'_>]) -> T,
    ) -> T {
        let plan = self.plan(tenant);
        let allowance = &plan.allowance;
        let rate = Level::new("rate", &self.rates.key(tenant).counted_by(&plan.rate)).cost(cost);
        let key = self.quotas.key(tenant);
        let quota = allowance.quota.as_ref().map(|quota| key.at(quota));
        let quota = quota
            .as_ref()
            .map(|key| Level::new("quota", key).cost(cost));
        let slots = allowance
            .concurrency
            .map(|limit| self.slots.key_owned(tenant).at(limit));
        let slots = slots.as_ref().map(|key| Level::new("concurrency", key));
        match (quota, slots) {
            (None, None) => meet(&[rate]),
            (Some(quota), None) => meet(&[rate, quota]),
            (None, Some(slots)) => meet(&[rate, slots]),
            (Some(quota), Some(slots)) => meet(&[rate, quota, slots]),
        }
    }

    /// The tier that a tenant is in; its own name if it has an override.
    pub fn tier_of(&self, tenant: &str) -> String {
        self.read().plan(tenant).name.clone()
    }

    /// What a tenant is allowed.
    pub fn allowance_of(&self, tenant: &str) -> Allowance {
        self.read().plan(tenant).allowance.clone()
    }

    /// Puts a tenant into a tier, from its next request on.
    ///
    /// # Errors
    /// If there is no such tier, or too many tenants are assigned.
    pub fn assign(&self, tenant: &str, tier: &str) -> Result<(), TierError> {
        let mut directory = self.write();
        directory.expect(tier)?;
        directory.place(tenant, LimitsOf::Tier(tier.to_owned()), self.capacity)
    }

    /// Gives a tenant limits of its own, whatever its tier.
    ///
    /// # Errors
    /// If the rate can't be represented, or too many tenants are assigned.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_second(1)), 1_000_000).build()?;
    /// tiers.set_override("acme", Allowance::new(Rate::per_second(1_000)))?;
    /// assert!(tiers.check_n("acme", 1_000).refusal().is_none());
    /// assert!(tiers.check_n("other", 1_000).refusal().is_some());
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn set_override(&self, tenant: &str, allowance: Allowance) -> Result<(), TierError> {
        let plan = Plan::new(tenant, allowance)?;
        self.write()
            .place(tenant, LimitsOf::Own(plan), self.capacity)
    }

    /// Puts a tenant back into the default tier.
    pub fn unassign(&self, tenant: &str) {
        self.write().tenants.remove(tenant);
    }

    /// Changes what a tier allows, or adds a tier.
    ///
    /// # Errors
    /// If the rate can't be represented.
    pub fn set_tier(&self, tier: &str, allowance: Allowance) -> Result<(), TierError> {
        let plan = Plan::new(tier, allowance)?;
        let mut directory = self.write();
        if directory.default.name == tier {
            directory.default = Arc::clone(&plan);
        }
        directory.tiers.insert(tier.to_owned(), plan);
        Ok(())
    }

    fn plan(&self, tenant: &str) -> Arc<Plan> {
        Arc::clone(self.read().plan(tenant))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Directory> {
        self.directory
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Directory> {
        self.directory
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

//! Tiers: the rate, quota and concurrency of each plan, as data.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate, Timestamp};

use crate::clock::{Clock, Monotonic, Wall};
use crate::keyed::{self, TableFull};
use crate::queued_limit::sealed::{LimitPointer, QueuedLimit};
use crate::quota::{self, FileError, Quota, QuotaLimiter};
use crate::stack::{CompositeDecision, HeldPermits};
use crate::sync::ignore_poison;
use crate::{CompositeLimiter, KeyedConcurrencyLimiter, KeyedLimiter, Limit, concurrency};

mod builder;
mod parse;

pub use builder::{Builder, Settings};
pub use parse::AllowanceParseError;

/// The limits of each tenant of a tier.
///
/// ```
/// use tollgate::{Quota, Rate, tiers::TierLimits};
///
/// let free = TierLimits::new(Rate::per_second(10).burst(20))
///     .quota(Quota::per_day(1_000))
///     .concurrency(5);
/// assert_eq!(free.to_string(), "10/s burst 20, 1000/day, 5 concurrent");
/// assert_eq!("10/s burst 20, 1000/day, 5 concurrent".parse(), Ok(free));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierLimits {
    rate: Rate,
    quota: Option<Quota>,
    concurrency: Option<u32>,
}

impl TierLimits {
    /// This rate, without a quota or a concurrency limit.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            quota: None,
            concurrency: None,
        }
    }

    /// Adds a quota.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Adds a concurrency limit.
    #[must_use]
    pub const fn concurrency(mut self, limit: u32) -> Self {
        self.concurrency = Some(limit);
        self
    }
}

impl fmt::Display for TierLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rate)?;
        if let Some(quota) = &self.quota {
            write!(f, ", {quota}")?;
        }
        if let Some(limit) = self.concurrency {
            write!(f, ", {limit} concurrent")?;
        }
        Ok(())
    }
}

/// Why tiers could not be built or changed. After an error nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierError {
    /// No tier has this name.
    UnknownTier {
        /// The name.
        tier: String,
        /// The tiers that exist.
        known: Vec<String>,
    },
    /// The rate can't be represented.
    Rate(LimitError),
    /// Too many tenants are assigned to tiers.
    TooManyTenants {
        /// The most tenants that may be assigned.
        most: usize,
    },
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTier { tier, known } => {
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

/// Tenants, their tiers, and the limits of both. A request is charged to its tenant's rate, quota and
/// concurrency limit together, or to none.
///
/// A tenant without an assignment is in the default tier. Tiers, assignments and overrides may change
/// at any time: what a tenant has spent stays spent, and permits in flight stay valid.
///
/// ```
/// use tollgate::{Quota, Rate, Tiers, tiers::TierLimits, stack::LimitKind};
///
/// let free = TierLimits::new(Rate::per_second(10).burst(20)).quota(Quota::per_day(1_000));
/// let tiers = Tiers::builder("free", free.concurrency(5), 1_000_000).tier(
///     "enterprise",
///     TierLimits::new(Rate::per_second(1_000).burst(2_000))
///         .quota(Quota::per_day(10_000_000))
///         .concurrency(500),
/// )
/// .build()?;
/// tiers.assign("acme", "enterprise")?;
///
/// let passes: Vec<_> = (0..9).filter_map(|_| tiers.allow("hobbyist")).collect();
/// assert_eq!(passes.len(), 5); // five concurrent requests, which are all still running
/// let verdict = tiers.check("hobbyist");
/// assert_eq!(verdict.denial().expect("denied").kind, LimitKind::Concurrency);
/// assert!(tiers.check("acme").denial().is_none());
/// # Ok::<(), tollgate::tiers::TierError>(())
/// ```
#[derive(Debug)]
pub struct Tiers<C: Clock = Monotonic, W: Clock = Wall> {
    directory: RwLock<TierDirectory>,
    rates: KeyedLimiter<C>,
    quotas: QuotaLimiter<W>,
    concurrency: Arc<KeyedConcurrencyLimiter<String, C>>,
    stack: CompositeLimiter,
    capacity: usize,
}

/// The tiers, and the limits of each assigned tenant.
#[derive(Debug)]
struct TierDirectory {
    default: Arc<TierPlan>,
    tiers: HashMap<String, Arc<TierPlan>>,
    tenants: HashMap<String, TenantLimits>,
}

/// The source of a tenant's limits: a tier or an override.
#[derive(Debug)]
enum TenantLimits {
    Tier(String),
    Own(Arc<TierPlan>),
}

/// The limits of a tier or an override, with the compiled rate.
#[derive(Debug)]
struct TierPlan {
    name: String,
    allowance: TierLimits,
    rate: Gcra,
}

impl TierPlan {
    fn new(name: &str, allowance: TierLimits) -> Result<Arc<Self>, LimitError> {
        Ok(Arc::new(Self {
            name: name.to_owned(),
            rate: Gcra::new(allowance.rate)?,
            allowance,
        }))
    }
}

impl TierDirectory {
    fn plan(&self, tenant: &str) -> &Arc<TierPlan> {
        let own = self.tenants.get(tenant).and_then(|place| match place {
            TenantLimits::Own(plan) => Some(plan),
            TenantLimits::Tier(tier) => self.tiers.get(tier),
        });
        own.unwrap_or(&self.default)
    }

    fn check_tier(&self, tier: &str) -> Result<(), TierError> {
        if self.tiers.contains_key(tier) {
            return Ok(());
        }
        let mut known: Vec<_> = self.tiers.keys().cloned().collect();
        known.sort();
        Err(TierError::UnknownTier {
            tier: tier.to_owned(),
            known,
        })
    }

    fn set_tenant(
        &mut self,
        tenant: &str,
        place: TenantLimits,
        most: usize,
    ) -> Result<(), TierError> {
        if self.tenants.len() >= most && !self.tenants.contains_key(tenant) {
            return Err(TierError::TooManyTenants { most });
        }
        self.tenants.insert(tenant.to_owned(), place);
        Ok(())
    }
}

impl Tiers {
    /// Begins with the name and the limits of the default tier, which has every tenant without an
    /// assignment.
    ///
    /// The capacity bounds both the number of active tenants and the number of tenants with an
    /// assignment or an override. Beyond it, new tenants share one rate and one concurrency limit.
    pub fn builder(default: &str, allowance: TierLimits, capacity: usize) -> Builder {
        Builder::new(default, allowance, capacity)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Whether one request of this tenant is allowed now. The result holds its permit.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self, tenant: &str) -> Option<HeldPermits> {
        self.with_limits(tenant, 1, |levels| self.stack.allow(levels))
    }

    /// Decides one request of this tenant.
    pub fn check(&self, tenant: &str) -> CompositeDecision<'static> {
        self.check_n(tenant, 1)
    }

    /// Decides a request that costs the tenant's rate and quota this many tokens, and one permit.
    pub fn check_n(&self, tenant: &str, cost: u64) -> CompositeDecision<'static> {
        self.with_limits(tenant, cost, |levels| {
            self.stack.check(levels).named_by_kind()
        })
    }

    /// Whether one request of this tenant would be allowed, without charging anything;
    /// [`usage`](Self::usage) reports each limit separately.
    pub fn peek(&self, tenant: &str) -> CompositeDecision<'static> {
        self.with_limits(tenant, 1, |levels| self.stack.peek(levels).named_by_kind())
    }

    /// Passes the tenant's limits at this cost to a function, which may check them together with
    /// others.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_second(10)), 1_000_000).build()?;
    /// let (global, composite) = (Limiter::new(Rate::per_second(1_000)), CompositeLimiter::new());
    /// let pass = tiers.with_limits("acme", 1, |own| {
    ///     let mut limits = own.to_vec();
    ///     limits.push(Limit::new("global", &global));
    ///     composite.allow(&limits)
    /// });
    /// assert!(pass.is_some());
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn with_limits<T>(
        &self,
        tenant: &str,
        cost: u64,
        meet: impl FnOnce(&[Limit<'_>]) -> T,
    ) -> T {
        let plan = self.plan(tenant);
        let allowance = &plan.allowance;
        let rate = Limit::new("rate", &self.rate_key(tenant, &plan)).cost(cost);
        let key = self.quotas.key(tenant);
        let quota = allowance.quota.as_ref().map(|quota| key.at(quota));
        let quota = quota
            .as_ref()
            .map(|key| Limit::new("quota", key).cost(cost));
        let slots = allowance
            .concurrency
            .map(|limit| self.concurrency.key_owned(tenant).at(limit));
        let slots = slots.as_ref().map(|key| Limit::new("concurrency", key));
        match (quota, slots) {
            (None, None) => meet(&[rate]),
            (Some(quota), None) => meet(&[rate, quota]),
            (None, Some(slots)) => meet(&[rate, slots]),
            (Some(quota), Some(slots)) => meet(&[rate, quota, slots]),
        }
    }

    /// The tier of a tenant; its own name if it has an override.
    pub fn tier_of(&self, tenant: &str) -> String {
        ignore_poison(self.directory.read())
            .plan(tenant)
            .name
            .clone()
    }

    /// The limits of a tenant.
    pub fn allowance_of(&self, tenant: &str) -> TierLimits {
        ignore_poison(self.directory.read())
            .plan(tenant)
            .allowance
            .clone()
    }

    /// Assigns a tenant to a tier, from its next request on.
    ///
    /// # Errors
    /// If the tier doesn't exist, or too many tenants are assigned.
    pub fn assign(&self, tenant: &str, tier: &str) -> Result<(), TierError> {
        let mut directory = ignore_poison(self.directory.write());
        directory.check_tier(tier)?;
        directory.set_tenant(tenant, TenantLimits::Tier(tier.to_owned()), self.capacity)
    }

    /// Overrides the limits of one tenant, whatever its tier.
    ///
    /// # Errors
    /// If the rate can't be represented, or too many tenants are assigned.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_second(1)), 1_000_000).build()?;
    /// tiers.set_override("acme", TierLimits::new(Rate::per_second(1_000)))?;
    /// assert!(tiers.check_n("acme", 1_000).denial().is_none());
    /// assert!(tiers.check_n("other", 1_000).denial().is_some());
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn set_override(&self, tenant: &str, allowance: TierLimits) -> Result<(), TierError> {
        let plan = TierPlan::new(tenant, allowance)?;
        ignore_poison(self.directory.write()).set_tenant(
            tenant,
            TenantLimits::Own(plan),
            self.capacity,
        )
    }

    /// Returns a tenant to the default tier.
    pub fn unassign(&self, tenant: &str) {
        ignore_poison(self.directory.write()).tenants.remove(tenant);
    }

    /// Changes the limits of a tier, or adds a tier.
    ///
    /// # Errors
    /// If the rate can't be represented.
    pub fn set_tier(&self, tier: &str, allowance: TierLimits) -> Result<(), TierError> {
        let plan = TierPlan::new(tier, allowance)?;
        let mut directory = ignore_poison(self.directory.write());
        if directory.default.name == tier {
            directory.default = Arc::clone(&plan);
        }
        directory.tiers.insert(tier.to_owned(), plan);
        Ok(())
    }

    /// The tenant's key, at the rate of its tier.
    #[inline]
    fn rate_key(&self, tenant: &str, plan: &TierPlan) -> keyed::Key<'_, C> {
        self.rates.key(tenant).at_limit(&plan.rate)
    }

    fn plan(&self, tenant: &str) -> Arc<TierPlan> {
        Arc::clone(ignore_poison(self.directory.read()).plan(tenant))
    }
}

/// The counters of all tenants together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Of the rates.
    pub rates: keyed::Stats,
    /// Of the quotas, and whether their file works.
    pub quotas: quota::Stats,
    /// Of the concurrency limits.
    pub concurrency: concurrency::Stats,
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Refunds this many tokens to a tenant's rate and quota, whatever they were charged for. A block
    /// stays.
    ///
    /// ```
    /// use tollgate::{Quota, Rate, Tiers, tiers::TierLimits};
    ///
    /// let free = TierLimits::new(Rate::per_hour(10)).quota(Quota::per_day(100));
    /// let tiers = Tiers::builder("free", free, 1_000_000).build()?;
    /// let _ = tiers.check_n("acme", 8);
    /// tiers.refund("acme", 5);
    /// assert_eq!(tiers.usage("acme").rate.used, 3);
    /// assert_eq!(tiers.usage("acme").quota.expect("it has one").used, 3);
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn refund(&self, tenant: &str, cost: u64) {
        let plan = self.plan(tenant);
        self.rate_key(tenant, &plan).refund(cost);
        self.quotas.refund(tenant, cost);
    }

    /// Takes tokens of a tenant's rate without a request, at most until none remain.
    ///
    /// # Errors
    /// [`TableFull`] if the tenant is new and the table of active tenants is full.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_hour(10)), 1_000_000).build()?;
    /// tiers.penalize("acme", 8)?;
    /// assert_eq!(tiers.usage("acme").rate.used, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn penalize(&self, tenant: &str, tokens: u64) -> Result<(), TableFull> {
        let plan = self.plan(tenant);
        self.rate_key(tenant, &plan).penalize(tokens)
    }

    /// Denies a tenant everything for this duration, as [`Key::block_for`] does.
    ///
    /// # Errors
    /// [`TableFull`] if the tenant is new and the table of active tenants is full.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Rate, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_hour(10)), 1_000_000).build()?;
    /// tiers.block_for("acme", Duration::from_secs(60))?;
    /// assert!(tiers.allow("acme").is_none());
    /// tiers.reset("acme");
    /// assert!(tiers.allow("acme").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Key::block_for`]: crate::keyed::Key::block_for
    pub fn block_for(&self, tenant: &str, duration: Duration) -> Result<(), TableFull> {
        self.rates.key(tenant).block_for(duration)
    }

    /// Clears what a tenant has spent of its rate and its quota, and any block. Permits in flight stay
    /// valid, and count.
    pub fn reset(&self, tenant: &str) {
        self.rates.key(tenant).reset();
        self.quotas.reset(tenant);
    }

    /// Saves the quotas' counts, as [`QuotaLimiter::flush`](crate::QuotaLimiter::flush) does.
    ///
    /// # Errors
    /// If the file can't be written; the next flush tries again.
    pub fn flush(&self) -> Result<(), FileError> {
        self.quotas.flush()
    }

    /// The counters so far.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_hour(1)), 1_000_000).build()?;
    /// assert!(tiers.allow("acme").is_some() && tiers.allow("acme").is_none());
    /// assert_eq!(tiers.stats().rates.allowed, 1);
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn stats(&self) -> Stats {
        Stats {
            rates: self.rates.stats(),
            quotas: self.quotas.stats(),
            concurrency: self.concurrency.stats(),
        }
    }
}

/// What a tenant has used of each limit of its tier; made by [`Tiers::usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantUsage {
    /// The tier whose limits these are; the tenant's own name if it has an override.
    pub tier: String,
    /// Tokens of the rate; its limit is the burst. A blocked tenant has used all tokens until the block
    /// expires.
    pub rate: Usage,
    /// Units of the quota; none if the tier has no quota.
    pub quota: Option<Usage>,
    /// Requests in flight; none if the tier has no concurrency limit.
    pub concurrency: Option<Usage>,
}

/// The usage of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The used amount. It is above the limit if a quota or a concurrency limit was lowered since. For
    /// an unlimited rate or quota, nothing is counted.
    pub used: u64,
    /// The limit; none if unlimited.
    pub limit: Option<u64>,
    /// The time until nothing is used, if no further request comes. None for concurrency, because
    /// nobody knows when a request ends.
    pub reset_after: Option<Duration>,
    /// The wall-clock time of the same moment, for quotas: the end of the calendar period, even if
    /// nothing is used yet; for a rolling period, the time when nothing that was used counts any more.
    pub resets_at: Option<SystemTime>,
}

impl Usage {
    /// The remaining amount; none if unlimited.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_hour(10)), 1_000_000).build()?;
    /// let _ = tiers.check_n("acme", 4);
    /// assert_eq!(tiers.usage("acme").rate.remaining(), Some(6));
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn remaining(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// What this tenant has used of each of its limits, and when that resets. Nothing is charged, and
    /// an unknown tenant isn't stored: it gets the limits of the default tier.
    ///
    /// The limits are those of the tenant's next request. So after a change of its tier, earlier usage
    /// is reported against the limits of the new tier.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use tollgate::{Quota, QuotaLimiter, Rate, Tiers, Timestamp, tiers::TierLimits, clock::Manual};
    ///
    /// let noon = Timestamp::from_secs(1_717_243_200); // 1 June 2024
    /// let clock = Manual::starting_at(noon);
    /// let quotas = QuotaLimiter::builder(Quota::unlimited(), 1_000_000).clock(clock.clone()).build()?;
    /// let free = "10/s burst 20, 1000/day, 5 concurrent".parse().expect("an allowance");
    /// let tiers = Tiers::builder("free", free, 1_000_000).quotas(quotas).clock(clock).build()?;
    ///
    /// let pass = tiers.check_n("acme", 4);
    /// let usage = tiers.usage("acme");
    /// assert_eq!((usage.rate.used, usage.rate.limit), (4, Some(20)));
    /// assert_eq!(usage.rate.reset_after, Some(Duration::from_millis(400)));
    ///
    /// let daily = usage.quota.expect("the tier has one");
    /// assert_eq!((daily.used, daily.limit), (4, Some(1_000)));
    /// assert_eq!(daily.reset_after, Some(Duration::from_secs(12 * 3_600)));
    /// assert_eq!(daily.resets_at, Some(UNIX_EPOCH + Duration::from_secs(1_717_286_400)));
    ///
    /// let at_once = usage.concurrency.expect("the tier has one");
    /// assert_eq!((at_once.used, at_once.limit), (1, Some(5)));
    /// # drop(pass);
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn usage(&self, tenant: &str) -> TenantUsage {
        let plan = self.plan(tenant);
        let allowance = &plan.allowance;
        TenantUsage {
            tier: plan.name.clone(),
            rate: self.rate_used(tenant, &plan),
            quota: allowance
                .quota
                .as_ref()
                .map(|quota| self.quota_used(tenant, quota)),
            concurrency: allowance
                .concurrency
                .map(|limit| self.slots_used(tenant, limit)),
        }
    }

    fn rate_used(&self, tenant: &str, plan: &TierPlan) -> Usage {
        let key = self.rate_key(tenant, plan);
        let seen = key.limit().peek_in_order(self.rates.clock().now(), 0);
        let limited = !plan.allowance.rate.is_unlimited();
        Usage {
            used: seen.limit.saturating_sub(seen.remaining),
            limit: limited.then_some(seen.limit),
            reset_after: Some(seen.reset_after),
            resets_at: None,
        }
    }

    fn quota_used(&self, tenant: &str, quota: &Quota) -> Usage {
        let now = self.quotas.clock().now();
        let (used, ends_at) = self.quotas.key(tenant).usage_of(now, quota);
        Usage {
            used,
            limit: (!quota.is_unlimited()).then_some(quota.count()),
            reset_after: Some(ends_at.map_or(Duration::ZERO, |end| end - now)),
            resets_at: ends_at.map(wall_time),
        }
    }

    fn slots_used(&self, tenant: &str, limit: u32) -> Usage {
        let seen = self.concurrency.key(tenant).at(limit).peek();
        Usage {
            used: u64::from(seen.in_use),
            limit: Some(u64::from(seen.limit)),
            reset_after: None,
            resets_at: None,
        }
    }
}

/// Quotas count time in nanoseconds since the Unix epoch.
fn wall_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.as_nanos())
}

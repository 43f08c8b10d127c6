//! Tiers: what each sort of tenant may do, as data: rate, quota and concurrency together.

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

/// What a tier allows each of its tenants.
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

    /// And no more than this many concurrent.
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

/// Why tiers could not be made or changed; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierError {
    /// No tier has this name.
    UnknownTier {
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

/// Tenants, their tiers, and the limits that follow: a request passes its tenant's rate, quota and
/// concurrency together or none of them.
///
/// A tenant without an assignment is in the default tier. Tiers, assignments and overrides change
/// live: what a tenant has spent stays spent, and what is in flight stays valid.
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
/// assert_eq!(passes.len(), 5); // five at once, and they are all still running
/// let verdict = tiers.check("hobbyist");
/// assert_eq!(verdict.denial().expect("refused").kind, LimitKind::Concurrency);
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

/// Which limits are whose.
#[derive(Debug)]
struct TierDirectory {
    default: Arc<TierPlan>,
    tiers: HashMap<String, Arc<TierPlan>>,
    tenants: HashMap<String, TenantLimits>,
}

/// Where a tenant's limits come from.
#[derive(Debug)]
enum TenantLimits {
    Tier(String),
    Own(Arc<TierPlan>),
}

/// An allowance, compiled.
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
    /// Starts with the name and the allowance of the tier of every tenant that is not assigned to another.
    ///
    /// The capacity is how many tenants may be active at once, and how many may be assigned to a tier or have
    /// limits of their own. Beyond it new tenants share one rate and one concurrency limit.
    pub fn builder(default: &str, allowance: TierLimits, capacity: usize) -> Builder {
        Builder::new(default, allowance, capacity)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Whether one request of this tenant passes now; what comes back holds its slot.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self, tenant: &str) -> Option<HeldPermits> {
        self.with_limits(tenant, 1, |levels| self.stack.allow(levels))
    }

    /// Decides one request of this tenant.
    pub fn check(&self, tenant: &str) -> CompositeDecision<'static> {
        self.check_n(tenant, 1)
    }

    /// Decides a request of this tenant that costs its rate and its quota so much, and one slot.
    pub fn check_n(&self, tenant: &str, cost: u64) -> CompositeDecision<'static> {
        self.with_limits(tenant, cost, |levels| {
            self.stack.check(levels).named_by_kind()
        })
    }

    /// Whether one request of this tenant would pass, without charging anything;
    /// [`usage`](Self::usage) tells of each limit by itself.
    pub fn peek(&self, tenant: &str) -> CompositeDecision<'static> {
        self.with_limits(tenant, 1, |levels| self.stack.peek(levels).named_by_kind())
    }

    /// The tenant's limits as levels, at this cost, to be met together with others.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, Tiers, tiers::TierLimits};
    ///
    /// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_second(10)), 1_000_000).build()?;
    /// let (global, stack) = (Limiter::new(Rate::per_second(1_000)), CompositeLimiter::new());
    /// let pass = tiers.with_limits("acme", 1, |own| {
    ///     let mut levels = own.to_vec();
    ///     levels.push(Limit::new("global", &global));
    ///     stack.allow(&levels)
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

    /// The tier that a tenant is in; its own name if it has an override.
    pub fn tier_of(&self, tenant: &str) -> String {
        ignore_poison(self.directory.read())
            .plan(tenant)
            .name
            .clone()
    }

    /// What a tenant is allowed.
    pub fn allowance_of(&self, tenant: &str) -> TierLimits {
        ignore_poison(self.directory.read())
            .plan(tenant)
            .allowance
            .clone()
    }

    /// Puts a tenant into a tier, from its next request on.
    ///
    /// # Errors
    /// If there is no such tier, or too many tenants are assigned.
    pub fn assign(&self, tenant: &str, tier: &str) -> Result<(), TierError> {
        let mut directory = ignore_poison(self.directory.write());
        directory.check_tier(tier)?;
        directory.set_tenant(tenant, TenantLimits::Tier(tier.to_owned()), self.capacity)
    }

    /// Gives a tenant limits of its own, whatever its tier.
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

    /// Puts a tenant back into the default tier.
    pub fn unassign(&self, tenant: &str) {
        ignore_poison(self.directory.write()).tenants.remove(tenant);
    }

    /// Changes what a tier allows, or adds a tier.
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

    /// The tenant's key, at the rate of its plan.
    #[inline]
    fn rate_key(&self, tenant: &str, plan: &TierPlan) -> keyed::Key<'_, C> {
        self.rates.key(tenant).at_limit(&plan.rate)
    }

    fn plan(&self, tenant: &str) -> Arc<TierPlan> {
        Arc::clone(ignore_poison(self.directory.read()).plan(tenant))
    }
}

/// What tiers have counted, over all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// By their rates.
    pub rates: keyed::Stats,
    /// By their quotas, and whether the file of those works.
    pub quotas: quota::Stats,
    /// By their concurrency limits.
    pub concurrency: concurrency::Stats,
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Gives a tenant so much back, of its rate and of its quota, whatever it was charged for. A block stays.
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

    /// Takes tokens of a tenant's rate though no request asked for them, at most until none are left.
    ///
    /// # Errors
    /// [`TableFull`] if the tenant is new and as many are active as may be.
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

    /// Refuses a tenant everything for this long, as [`TargetedKey::block_for`] does.
    ///
    /// # Errors
    /// [`TableFull`] if the tenant is new and as many are active as may be.
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
    /// [`TargetedKey::block_for`]: crate::keyed::Key::block_for
    pub fn block_for(&self, tenant: &str, duration: Duration) -> Result<(), TableFull> {
        self.rates.key(tenant).block_for(duration)
    }

    /// Forgets what a tenant has spent of its rate and of its quota, and any block. What it has in flight stays
    /// valid, and counts.
    pub fn reset(&self, tenant: &str) {
        self.rates.key(tenant).reset();
        self.quotas.reset(tenant);
    }

    /// Saves what quotas have counted, as [`QuotaLimiter::flush`](crate::QuotaLimiter::flush) does.
    ///
    /// # Errors
    /// If the file can't be written; the next flush tries again.
    pub fn flush(&self) -> Result<(), FileError> {
        self.quotas.flush()
    }

    /// What was counted so far.
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

/// What a tenant has used of each limit that its tier has; made by [`Tiers::usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantUsage {
    /// The tier that it is told by; the tenant's own name if it has an override.
    pub tier: String,
    /// Tokens of the rate, of which the limit is the burst. A tenant that is blocked has used them all until the
    /// block ends.
    pub rate: Usage,
    /// Units of the quota; none if the tier has none.
    pub quota: Option<Usage>,
    /// What is in flight; none if the tier allows any number at once.
    pub concurrency: Option<Usage>,
}

/// What is used of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// How much. It is above the limit if a quota or the number at once got smaller since; an unlimited one
    /// counts nothing.
    pub used: u64,
    /// Of how much; none if unlimited.
    pub limit: Option<u64>,
    /// How long until nothing is used, if nobody uses more. None for what is in flight: nobody knows when that ends.
    pub reset_after: Option<Duration>,
    /// When that is by the clock on the wall, for quotas: the end of a calendar's period, though nothing was
    /// used of it yet; of a rolling one, when nothing that was used counts any more.
    pub resets_at: Option<SystemTime>,
}

impl Usage {
    /// What is left: none if unlimited.
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
    /// What this tenant has used of each of its limits, of how much, and when that is over. Nothing is charged,
    /// and a tenant that was never seen stays so: it is told what the default tier allows.
    ///
    /// The limits are those that its next request will meet, so after a change of its tier it is told what it
    /// has spent before by what the new one allows.
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

/// Quotas are counted by nanoseconds since the Unix epoch.
fn wall_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.as_nanos())
}

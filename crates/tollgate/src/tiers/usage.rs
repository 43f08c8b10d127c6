//! What a tenant has used of its limits, by the limits of its own tier.

use std::time::{Duration, SystemTime};

use tollgate_core::Timestamp;

use super::{Plan, Tiers};
use crate::clock::Clock;
use crate::home::sealed::{Home, Lends};
use crate::quota::Quota;

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
    /// use tollgate::{Rate, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_hour(10)), 1_000_000).build()?;
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
    /// use tollgate::{Quota, QuotaLimiter, Rate, Tiers, Timestamp, tiers::Allowance, clock::Manual};
    ///
    /// let noon = Timestamp::from_secs(1_717_243_200); // 1 June 2024
    /// let clock = Manual::starting_at(noon);
    /// let quotas = QuotaLimiter::builder(Quota::unlimited(), 1_000_000).clock(clock.clone()).build()?;
    /// let free = "10/s burst 20, 1000/day, 5 at once".parse().expect("an allowance");
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

    fn rate_used(&self, tenant: &str, plan: &Plan) -> Usage {
        let key = self.rates.key(tenant).counted_by(&plan.rate);
        let seen = key.limit().look_in_turn(self.rates.clock().now(), 0);
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
        let (used, ends_at) = self.quotas.key(tenant).used_of(now, quota);
        Usage {
            used,
            limit: (!quota.is_unlimited()).then_some(quota.count()),
            reset_after: Some(ends_at.map_or(Duration::ZERO, |end| end - now)),
            resets_at: ends_at.map(wall_time),
        }
    }

    fn slots_used(&self, tenant: &str, limit: u32) -> Usage {
        let seen = self.slots.key(tenant).at(limit).peek();
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

//! What an operator does to single tenants, by the limits of their own tiers, and sees of all.

use std::time::Duration;

use super::Tiers;
use crate::clock::Clock;
use crate::quota::{self, FileError};
use crate::{
    concurrency,
    keyed::{self, NoSlot},
};

/// What tiers have counted, over all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// By their rates.
    pub rates: keyed::Stats,
    /// By their quotas, and whether the file of those works.
    pub quotas: quota::Stats,
    /// By their concurrency limits.
    pub slots: concurrency::Stats,
}

impl<C: Clock + 'static, W: Clock + 'static> Tiers<C, W> {
    /// Gives a tenant so much back, of its rate and of its quota, whatever it was charged for. A block stays.
    ///
    /// ```
    /// use tollgate::{Quota, Rate, Tiers, tiers::Allowance};
    ///
    /// let free = Allowance::new(Rate::per_hour(10)).quota(Quota::per_day(100));
    /// let tiers = Tiers::builder("free", free, 1_000_000).build()?;
    /// let _ = tiers.check_n("acme", 8);
    /// tiers.refund("acme", 5);
    /// assert_eq!(tiers.usage("acme").rate.used, 3);
    /// assert_eq!(tiers.usage("acme").quota.expect("it has one").used, 3);
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn refund(&self, tenant: &str, cost: u64) {
        let plan = self.plan(tenant);
        self.rates.key(tenant).counted_by(&plan.rate).refund(cost);
        self.quotas.refund(tenant, cost);
    }

    /// Takes tokens of a tenant's rate though no request asked for them, at most until none are left.
    ///
    /// # Errors
    /// [`NoSlot`] if the tenant is new and as many are active as may be.
    ///
    /// ```
    /// use tollgate::{Rate, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_hour(10)), 1_000_000).build()?;
    /// tiers.penalize("acme", 8)?;
    /// assert_eq!(tiers.usage("acme").rate.used, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn penalize(&self, tenant: &str, tokens: u64) -> Result<(), NoSlot> {
        let plan = self.plan(tenant);
        self.rates
            .key(tenant)
            .counted_by(&plan.rate)
            .penalize(tokens)
    }

    /// Refuses a tenant everything for this long, as [`Key::block_for`] does.
    ///
    /// # Errors
    /// [`NoSlot`] if the tenant is new and as many are active as may be.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Rate, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_hour(10)), 1_000_000).build()?;
    /// tiers.block_for("acme", Duration::from_secs(60))?;
    /// assert!(tiers.allow("acme").is_none());
    /// tiers.reset("acme");
    /// assert!(tiers.allow("acme").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Key::block_for`]: crate::keyed::Key::block_for
    pub fn block_for(&self, tenant: &str, duration: Duration) -> Result<(), NoSlot> {
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
    /// use tollgate::{Rate, Tiers, tiers::Allowance};
    ///
    /// let tiers = Tiers::builder("free", Allowance::new(Rate::per_hour(1)), 1_000_000).build()?;
    /// assert!(tiers.allow("acme").is_some() && tiers.allow("acme").is_none());
    /// assert_eq!(tiers.stats().rates.allowed, 1);
    /// # Ok::<(), tollgate::tiers::TierError>(())
    /// ```
    pub fn stats(&self) -> Stats {
        Stats {
            rates: self.rates.stats(),
            quotas: self.quotas.stats(),
            slots: self.slots.stats(),
        }
    }
}

//! A handle for one key of a quota limiter.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};

use super::table::QuotaRequest;
use super::{Quota, QuotaLimiter, Receipt, into_decision};
use crate::clock::{Clock, Wall};

/// One key of a [`QuotaLimiter`], possibly under another quota, as a
/// [`CompositeLimiter`](crate::CompositeLimiter) takes it. Made by [`QuotaLimiter::key`].
///
/// ```
/// use tollgate::{Limit, Quota, QuotaLimiter, CompositeLimiter, clock::Manual};
///
/// let limiter = QuotaLimiter::builder(Quota::per_day(10), 1_000_000).clock(Manual::new()).build()?;
/// let (composite, standard) = (CompositeLimiter::new(), Quota::per_day(100));
/// let tenant = limiter.key("acme").at(&standard);
/// assert!(composite.allow(&[Limit::new("daily", &tenant).cost(60)]).is_some());
/// assert_eq!(tenant.peek().remaining, 40);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Key<'a, C = Wall> = QuotaKey<&'a QuotaLimiter<C>, &'a [u8], &'a Quota>;

/// One key of a [`QuotaLimiter`] in an `Arc`, possibly under another quota. It borrows nothing, nor do
/// reservations on it. Made by [`QuotaLimiter::key_owned`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{Limit, Quota, QuotaLimiter, CompositeLimiter, stack::CostReservation, clock::Manual};
///
/// let limiter = QuotaLimiter::builder(Quota::per_day(100), 1_000_000).clock(Manual::new()).build()?;
/// let limiter = Arc::new(limiter);
/// let limits = [Limit::estimated("daily", limiter.key_owned("acme"), 60)];
/// let hold: CostReservation<'static> = CompositeLimiter::new().hold(&limits, Duration::from_secs(60)).expect("room");
/// std::thread::spawn(move || hold.settle(20)).join().unwrap();
/// assert_eq!(limiter.peek("acme").remaining, 80);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type OwnedKey<C = Wall> = QuotaKey<Arc<QuotaLimiter<C>>, Box<[u8]>, Quota>;

/// One key of a quota limiter `L`. The limiter, the key's bytes `K` and the other quota `Q` are each
/// borrowed or owned.
#[derive(Clone)]
pub struct QuotaKey<L, K, Q> {
    limiter: L,
    key: K,
    quota: Option<Q>,
}

impl<C: Clock> QuotaLimiter<C> {
    /// A handle for one key, under its override or the quota of all keys.
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Key<'a, C> {
        QuotaKey {
            limiter: self,
            key: key.as_ref(),
            quota: None,
        }
    }

    /// An owned handle for one key, under its override or the quota of all keys: for use in another
    /// task.
    pub fn key_owned<K: AsRef<[u8]> + ?Sized>(self: &Arc<Self>, key: &K) -> OwnedKey<C> {
        QuotaKey {
            limiter: Arc::clone(self),
            key: key.as_ref().into(),
            quota: None,
        }
    }
}

impl<'a, C: Clock> Key<'a, C> {
    /// The same key under another quota: that of its tier.
    ///
    /// The key's usage stays used under any other count and period, until the end of the period in
    /// which it was charged. Each quota is evaluated by all charges within its own period, whichever
    /// quota allowed them. So no quota allows a charge that would bring its own period above its count.
    ///
    /// The first charge under a new kind of period starts with the most usage that any other kind
    /// counts, as if all of it had been charged at the latest charge. Four kinds of periods are counted
    /// separately for each key. Beyond that, the least recently charged ones are merged into one that
    /// lasts as long as any of them, so no usage is dropped early. Once nothing counts any more, the
    /// key is like an unknown one.
    ///
    /// ```
    /// use tollgate::{Quota, QuotaLimiter, clock::Manual};
    ///
    /// let limiter = QuotaLimiter::builder(Quota::per_day(1_000), 10_000).clock(Manual::new()).build()?;
    /// limiter.check_n("tenant", 1_000);
    /// let standard = Quota::per_day(100_000);
    /// assert_eq!(limiter.key("tenant").at(&standard).check().remaining, 98_999);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[must_use]
    pub fn at(mut self, quota: &'a Quota) -> Self {
        self.quota = Some(quota);
        self
    }
}

impl<C: Clock> OwnedKey<C> {
    /// The same key under another quota, as [`Key::at`].
    #[must_use]
    pub fn at(mut self, quota: &Quota) -> Self {
        self.quota = Some(quota.clone());
        self
    }
}

impl<C, L, K, Q> QuotaKey<L, K, Q>
where
    C: Clock,
    L: Deref<Target = QuotaLimiter<C>>,
    K: Deref<Target = [u8]>,
    Q: Borrow<Quota>,
{
    fn quota(&self) -> Option<&Quota> {
        self.quota.as_ref().map(Q::borrow)
    }

    /// Decides a request of one unit.
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    pub fn check_n(&self, cost: u64) -> Decision {
        self.check_at(self.limiter.clock.now(), cost)
    }

    /// Decides a request at a time on the limiter's clock.
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        into_decision(self.limiter.charge_at(now, &*self.key, self.quota(), cost))
    }

    /// The remaining units, without charging any.
    pub fn peek(&self) -> Decision {
        let now = self.limiter.clock.now();
        self.limiter.peek_at(now, &*self.key, self.quota(), 0)
    }

    /// Refunds units to the key, as [`QuotaLimiter::refund`] does.
    pub fn refund(&self, units: u64) {
        self.limiter.refund(&*self.key, units);
    }

    /// Clears the key's usage.
    pub fn reset(&self) {
        self.limiter.reset(&*self.key);
    }

    /// The key's usage under a quota, even above its count, and the time when that counts no more. For
    /// an unused key of a calendar quota, the time is the end of the period.
    pub(crate) fn usage_of(&self, now: Timestamp, quota: &Quota) -> (u64, Option<Timestamp>) {
        let judged = self.limiter.table.evaluate(&QuotaRequest {
            key: &self.key,
            quota: Some(quota),
            now,
            cost: 0,
        });
        let ends_at = match judged.used {
            0 => quota.period_at(Timestamp::from_nanos(judged.at)),
            _ => Some((now, now + judged.decision.reset_after)),
        };
        (judged.used, ends_at.map(|(_, end)| end))
    }

    pub(crate) fn clock(&self) -> &C {
        &self.limiter.clock
    }

    /// The remaining units, and whether this cost is allowed, without charging any.
    pub(crate) fn peek_at(&self, now: Timestamp, cost: u64) -> Decision {
        let look = |cost| self.limiter.peek_at(now, &*self.key, self.quota(), cost);
        match look(cost) {
            // `remaining` is what remains now, not what would remain after this charge.
            passes if passes.is_allowed() && cost > 0 => look(0),
            told => told,
        }
    }

    /// Settles a charge at what was spent.
    pub(crate) fn settle(&self, now: Timestamp, mut receipt: Receipt, spent: u64) {
        if spent < receipt.cost {
            receipt.cost -= spent;
            self.limiter.refund_receipt_at(now, &*self.key, receipt);
        } else if spent > receipt.cost {
            // Charges at most what remains, because a quota has no debt.
            let left = self.peek_at(now, 0).remaining;
            let _ = self.charge(now, (spent - receipt.cost).min(left));
        }
    }

    pub(crate) fn charge(&self, now: Timestamp, cost: u64) -> Result<Receipt, Decision> {
        let charged = self.limiter.charge_at(now, &*self.key, self.quota(), cost);
        charged.map_err(|refused| *refused.decision())
    }
}

impl<L, K: Deref<Target = [u8]>, Q: fmt::Debug> fmt::Debug for QuotaKey<L, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("key", &self.key.escape_ascii().to_string())
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

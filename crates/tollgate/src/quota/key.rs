//! One key of a quota: its verbs by name.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};

use super::table::QuotaRequest;
use super::{Quota, QuotaLimiter, Receipt, into_decision};
use crate::clock::{Clock, Wall};

/// One key of a [`QuotaLimiter`], maybe under a quota of its own: what a
/// [`CompositeLimiter`](crate::CompositeLimiter) meets. Made by [`QuotaLimiter::key`].
///
/// ```
/// use tollgate::{Limit, Quota, QuotaLimiter, CompositeLimiter, clock::Manual};
///
/// let limiter = QuotaLimiter::builder(Quota::per_day(10), 1_000_000).clock(Manual::new()).build()?;
/// let (stack, standard) = (CompositeLimiter::new(), Quota::per_day(100));
/// let tenant = limiter.key("acme").at(&standard);
/// assert!(stack.allow(&[Limit::new("daily", &tenant).cost(60)]).is_some());
/// assert_eq!(tenant.peek().remaining, 40);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Key<'a, C = Wall> = QuotaKey<&'a QuotaLimiter<C>, &'a [u8], &'a Quota>;

/// One key of a [`QuotaLimiter`] that is shared in an `Arc`, maybe under a quota of its own: what is held of it
/// borrows nothing. Made by [`QuotaLimiter::key_owned`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{Limit, Quota, QuotaLimiter, CompositeLimiter, stack::CostReservation, clock::Manual};
///
/// let limiter = QuotaLimiter::builder(Quota::per_day(100), 1_000_000).clock(Manual::new()).build()?;
/// let limiter = Arc::new(limiter);
/// let levels = [Limit::estimated("daily", limiter.key_owned("acme"), 60)];
/// let hold: CostReservation<'static> = CompositeLimiter::new().hold(&levels, Duration::from_secs(60)).expect("room");
/// std::thread::spawn(move || hold.settle(20)).join().unwrap();
/// assert_eq!(limiter.peek("acme").remaining, 80);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type OwnedKey<C = Wall> = QuotaKey<Arc<QuotaLimiter<C>>, Box<[u8]>, Quota>;

/// One key of a quota limiter `L`, which is borrowed or shared, as are the key's bytes `K` and a quota of its own `Q`.
#[derive(Clone)]
pub struct QuotaKey<L, K, Q> {
    limiter: L,
    key: K,
    quota: Option<Q>,
}

impl<C: Clock> QuotaLimiter<C> {
    /// One key, at the limiter's own quota or its override.
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Key<'a, C> {
        QuotaKey {
            limiter: self,
            key: key.as_ref(),
            quota: None,
        }
    }

    /// One key, at the limiter's own quota or its override, for a task of its own.
    pub fn key_owned<K: AsRef<[u8]> + ?Sized>(self: &Arc<Self>, key: &K) -> OwnedKey<C> {
        QuotaKey {
            limiter: Arc::clone(self),
            key: key.as_ref().into(),
            quota: None,
        }
    }
}

impl<'a, C: Clock> Key<'a, C> {
    /// The same key by another quota: that of its tier.
    ///
    /// What the key has used stays used under any other count and period, until the end of the period
    /// that it lies in: each quota is judged by all that passed within its own period, under whichever
    /// quota that was. So nothing passes under a quota that would bring its period above its count.
    ///
    /// A period that the key is charged under for the first time knows nothing of the past but what
    /// others count: the most that any of them does, as if all of it had been charged when the latest
    /// was. Four sorts of periods are told apart for each key; of more, those that were asked longest
    /// ago are counted as one that lasts as long as any of them, so nothing is forgotten early. Once
    /// nothing counts any more, the key is as one never seen.
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
    /// The same key by another quota, as [`TargetedKey::at`].
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

    /// Decides one unit.
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a cost. A cost of 0 peeks.
    pub fn check_n(&self, cost: u64) -> Decision {
        self.check_at(self.limiter.clock.now(), cost)
    }

    /// Decides a cost at a time on the limiter's clock.
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        into_decision(self.limiter.charge_at(now, &*self.key, self.quota(), cost))
    }

    /// What is left, without charging anything.
    pub fn peek(&self) -> Decision {
        let now = self.limiter.clock.now();
        self.limiter.peek_at(now, &*self.key, self.quota(), 0)
    }

    /// Gives the key units back, as [`QuotaLimiter::refund`].
    pub fn refund(&self, units: u64) {
        self.limiter.refund(&*self.key, units);
    }

    /// Forgets what the key has used.
    pub fn reset(&self) {
        self.limiter.reset(&*self.key);
    }

    /// What the key has used of a quota, more than its count included, and when that counts no more: for one
    /// that has used nothing, when the calendar's period ends.
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

    /// What is left now and whether this cost passes, without charging anything.
    pub(crate) fn peek_at(&self, now: Timestamp, cost: u64) -> Decision {
        let look = |cost| self.limiter.peek_at(now, &*self.key, self.quota(), cost);
        match look(cost) {
            // `remaining` is what is left now, not what would be left after this.
            passes if passes.is_allowed() && cost > 0 => look(0),
            told => told,
        }
    }

    /// Ends a charge of which `spent` was spent.
    pub(crate) fn settle(&self, now: Timestamp, mut receipt: Receipt, spent: u64) {
        if spent < receipt.cost {
            receipt.cost -= spent;
            self.limiter.refund_receipt_at(now, &*self.key, receipt);
        } else if spent > receipt.cost {
            // At most what is left: a quota has no debt.
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

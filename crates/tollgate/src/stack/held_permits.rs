//! What an allowed request holds while it runs.

use std::fmt;
use std::time::Duration;

use super::estimate::{ExpireScope, HeldEstimate, HeldEstimateSlot, SettlementTiming};
use super::limit::LevelCharge;
use crate::clock::Clock;
use crate::concurrency::{OwnedPermit, Permit, PermitOutcome, SharedSource};

/// The permits that a request holds, of all its concurrency limits, with its estimates if it has any.
/// Dropping this releases them; without such limits it holds nothing. It shares ownership of its
/// limiters, so it may be moved into a task, or live for as long as a response body is being sent.
///
/// Like a [`Permit`](crate::concurrency::Permit), it ends as a success, as dropped for overload, or as
/// ignored. Just dropping it means ignored.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, Limit, CompositeLimiter};
///
/// let (permits, composite) = (Arc::new(ConcurrencyLimiter::new(1)), CompositeLimiter::new());
/// let pass = composite.allow(&[Limit::new("permits", &permits)]).expect("a free permit");
/// assert_eq!(permits.available(), 0);
/// pass.success();
/// assert_eq!(permits.available(), 1);
/// ```
#[derive(Debug, Default)]
#[must_use = "dropping it releases the permits"]
pub struct HeldPermits {
    /// Stored inline, because most requests have at most one concurrency limit.
    first: Option<PermitPointer>,
    rest: Vec<PermitPointer>,
}

impl HeldPermits {
    #[inline]
    pub(super) fn push(&mut self, taken: LevelCharge) {
        if let LevelCharge::Permit(permit) = taken {
            match self.first {
                None => self.first = Some(permit),
                Some(_) => self.rest.push(permit),
            }
        }
    }

    /// Whether it holds nothing, so that dropping it has no effect.
    ///
    /// ```
    /// use tollgate::stack::HeldPermits;
    ///
    /// let mut pass = HeldPermits::default();
    /// assert!(pass.is_empty());
    /// pass.on_end(|_| ());
    /// assert!(!pass.is_empty());
    /// ```
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Calls this function once, when the request ends, with its outcome: for resources that are held
    /// elsewhere.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tollgate::stack::HeldPermits;
    ///
    /// let (held, mut pass) = (Arc::new(AtomicBool::new(true)), HeldPermits::default());
    /// let ends = Arc::clone(&held);
    /// pass.on_end(move |_| ends.store(false, Ordering::Relaxed));
    /// assert!(held.load(Ordering::Relaxed));
    /// drop(pass);
    /// assert!(!held.load(Ordering::Relaxed));
    /// ```
    pub fn on_end(&mut self, end: impl FnOnce(PermitOutcome) + Send + Sync + 'static) {
        let held = PermitPointer::Boxed(Box::new(EndCallback(Some(end))));
        self.push(LevelCharge::Permit(held));
    }

    /// Also holds this estimate, and passes the outcome of the request on to it.
    pub fn hold_estimate(&mut self, estimate: impl HeldEstimate + 'static) {
        let timed = PermitPointer::Boxed(Box::new(HeldEstimateSlot::new(estimate)));
        self.push(LevelCharge::Permit(timed));
    }

    /// Also holds this permit, which ends together with the others.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, stack::HeldPermits};
    ///
    /// let (permits, mut pass) = (Arc::new(ConcurrencyLimiter::new(1)), HeldPermits::default());
    /// pass.hold_permit(permits.try_acquire_owned()?);
    /// assert_eq!(permits.available(), 0);
    /// pass.success();
    /// assert_eq!((permits.available(), permits.stats().succeeded), (1, 1));
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn hold_permit<C: Clock + 'static>(&mut self, permit: OwnedPermit<C>) {
        self.push(LevelCharge::Permit(PermitPointer::Boxed(Box::new(permit))));
    }

    /// Reports the outcome of the request to adaptive limits while its permits are still held: see
    /// [`Permit::report`](crate::concurrency::Permit::report).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, concurrency::PermitOutcome, stack::HeldPermits};
    ///
    /// let (permits, mut pass) = (Arc::new(ConcurrencyLimiter::new(1)), HeldPermits::default());
    /// pass.hold_permit(permits.try_acquire_owned()?);
    /// pass.report(PermitOutcome::Dropped);
    /// assert_eq!((permits.available(), permits.stats().dropped), (0, 1));
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn report(&mut self, ending: PermitOutcome) {
        self.resources_mut().for_each(|slot| slot.report(ending));
    }

    /// Settles all estimates at this actual cost; permits stay held. Only the first settlement counts.
    /// If an estimate has expired, only the excess over what is still charged is charged, and nothing
    /// is refunded.
    pub fn settle(&mut self, spent: u64) -> SettlementTiming {
        let settled = self.resources_mut().map(|slot| slot.settle(spent));
        settled.fold(SettlementTiming::InTime, SettlementTiming::max)
    }

    /// The time until the first unsettled estimate expires; none if there is no such estimate.
    pub fn time_left(&self) -> Option<Duration> {
        self.resources().filter_map(HeldResource::time_left).min()
    }

    /// Whether it holds only [expired](Self::expire) estimates. All that may still come is a late
    /// [`settle`](Self::settle).
    ///
    /// ```
    /// use tollgate::stack::HeldPermits;
    ///
    /// let mut pass = HeldPermits::default();
    /// assert!(pass.is_expired());
    /// pass.on_end(|_| ());
    /// assert!(!pass.is_expired());
    /// ```
    pub fn is_expired(&self) -> bool {
        self.resources()
            .all(|slot| slot.may_be_settled() && slot.time_left().is_none())
    }

    /// Expires unsettled estimates: each is charged or refunded as its terms define. The actual cost
    /// may still be [settled](Self::settle) late.
    pub fn expire(&mut self, which: ExpireScope) {
        self.resources_mut().for_each(|slot| slot.expire(which));
    }

    /// Restarts the time of estimates that haven't expired.
    pub fn renew(&mut self) {
        self.resources_mut().for_each(HeldResource::renew);
    }

    /// Ends a request whose actual cost wasn't reported: permits end as ignored, and estimates
    /// [expire](Self::expire). The returned value holds the estimates, which may still be
    /// [settled](Self::settle) late.
    pub fn end_unsettled(mut self) -> Self {
        self.expire(ExpireScope::All);
        let mut rest = Self::default();
        for permit in self.into_permits() {
            if permit.as_resource().may_be_settled() {
                rest.push(LevelCharge::Permit(permit));
            } else {
                permit.end(PermitOutcome::Ignored);
            }
        }
        rest
    }

    fn into_permits(self) -> impl Iterator<Item = PermitPointer> {
        self.first.into_iter().chain(self.rest)
    }

    fn resources(&self) -> impl Iterator<Item = &dyn HeldResource> {
        self.first
            .iter()
            .chain(&self.rest)
            .map(PermitPointer::as_resource)
    }

    fn resources_mut(&mut self) -> impl Iterator<Item = &mut dyn HeldResource> {
        let all = self.first.iter_mut().chain(&mut self.rest);
        all.map(PermitPointer::as_resource_mut)
    }

    /// Settles all estimates at their full amount, whatever dropping them would mean. Permits stay
    /// held. A later settlement has no effect.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, clock::Manual};
    ///
    /// let limiter = Arc::new(Limiter::with_clock(Rate::per_minute(1_000), Manual::new()));
    /// let level = Limit::estimated("tokens", Arc::clone(&limiter), 400);
    /// let mut pass = CompositeLimiter::new().hold(&[level], Duration::from_secs(60))?.into_permits();
    /// pass.charge();
    /// drop(pass);
    /// assert_eq!(limiter.peek().remaining, 600);
    /// # Ok::<(), tollgate::stack::LimitDenial<'_>>(())
    /// ```
    pub fn charge(&mut self) {
        self.resources_mut().for_each(HeldResource::charge);
    }

    /// Cancels a request that never ran: estimates are refunded, whatever dropping them would mean, and
    /// permits end as ignored.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, clock::Manual};
    ///
    /// let limiter = Arc::new(Limiter::with_clock(Rate::per_minute(1_000), Manual::new()));
    /// let level = Limit::estimated("tokens", Arc::clone(&limiter), 400);
    /// let pass = CompositeLimiter::new().hold(&[level], Duration::from_secs(60))?.into_permits();
    /// pass.cancel();
    /// assert_eq!(limiter.peek().remaining, 1_000);
    /// # Ok::<(), tollgate::stack::LimitDenial<'_>>(())
    /// ```
    pub fn cancel(self) {
        self.into_permits().for_each(PermitPointer::cancel);
    }

    /// Merges two sets of held permits.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, Limit, CompositeLimiter};
    ///
    /// let (a, b) = (Arc::new(ConcurrencyLimiter::new(1)), Arc::new(ConcurrencyLimiter::new(1)));
    /// let pass = |permits| CompositeLimiter::new().allow(&[Limit::new("permits", permits)]).expect("a free permit");
    /// let both = pass(&a).merge(pass(&b));
    /// assert_eq!((a.available(), b.available()), (0, 0));
    /// drop(both);
    /// assert_eq!((a.available(), b.available()), (1, 1));
    /// ```
    pub fn merge(mut self, other: Self) -> Self {
        other
            .into_permits()
            .for_each(|permit| self.push(LevelCharge::Permit(permit)));
        self
    }

    /// The request was served.
    pub fn success(self) {
        self.end(PermitOutcome::Success);
    }

    /// The request timed out or was rejected for overload.
    pub fn dropped(self) {
        self.end(PermitOutcome::Dropped);
    }

    /// The request ended with an outcome that has no information about capacity.
    pub fn ignored(self) {
        self.end(PermitOutcome::Ignored);
    }

    /// The request ended with this outcome.
    pub fn end(self, ending: PermitOutcome) {
        self.into_permits().for_each(|permit| permit.end(ending));
    }
}

/// A permit of any kind of limiter.
pub(crate) enum PermitPointer {
    Concurrency(Permit<SharedSource>),
    Boxed(Box<dyn HeldResource + Send>),
}

/// A callback that runs at the end of a request.
struct EndCallback<F: FnOnce(PermitOutcome)>(Option<F>);

impl<F: FnOnce(PermitOutcome)> EndCallback<F> {
    fn call(&mut self, ending: PermitOutcome) {
        if let Some(end) = self.0.take() {
            end(ending);
        }
    }
}

impl<F: FnOnce(PermitOutcome) + Send + Sync> HeldResource for EndCallback<F> {
    fn end(mut self: Box<Self>, ending: PermitOutcome) {
        self.call(ending);
    }

    fn cancel(mut self: Box<Self>) {
        self.call(PermitOutcome::Ignored);
    }
}

impl<F: FnOnce(PermitOutcome)> Drop for EndCallback<F> {
    fn drop(&mut self) {
        self.call(PermitOutcome::Ignored);
    }
}

/// A resource of any kind that a request holds: a permit, an estimate, a callback.
pub(crate) trait HeldResource: Send + Sync {
    fn end(self: Box<Self>, ending: PermitOutcome);
    fn cancel(self: Box<Self>);

    /// Reports the outcome; only adaptive limits use it.
    fn report(&mut self, ending: PermitOutcome) {
        let _ = ending;
    }

    /// Settles at this actual cost; only estimates use it.
    fn settle(&mut self, spent: u64) -> SettlementTiming {
        let _ = spent;
        SettlementTiming::InTime
    }

    /// Settles an estimate at its full amount.
    fn charge(&mut self) {}

    /// The time until the estimate expires.
    fn time_left(&self) -> Option<Duration> {
        None
    }

    /// Expires an unsettled estimate.
    fn expire(&mut self, which: ExpireScope) {
        let _ = which;
    }

    /// Restarts the time of an estimate.
    fn renew(&mut self) {}

    /// Whether this is an estimate that may still be settled.
    fn may_be_settled(&self) -> bool {
        false
    }
}

impl PermitPointer {
    fn as_resource(&self) -> &dyn HeldResource {
        match self {
            Self::Concurrency(permit) => permit,
            Self::Boxed(permit) => &**permit,
        }
    }

    fn as_resource_mut(&mut self) -> &mut dyn HeldResource {
        match self {
            Self::Concurrency(permit) => permit,
            Self::Boxed(permit) => &mut **permit,
        }
    }

    pub(crate) fn end(self, ending: PermitOutcome) {
        match self {
            Self::Concurrency(permit) => permit.end(ending),
            Self::Boxed(permit) => permit.end(ending),
        }
    }

    pub(crate) fn cancel(self) {
        match self {
            Self::Concurrency(permit) => permit.cancel(),
            Self::Boxed(permit) => permit.cancel(),
        }
    }
}

impl fmt::Debug for PermitPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

//! The controller: an algorithm behind a lock, which adjusts a rate or a concurrency limit.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;
use derive_where::derive_where;
use tollgate::clock::Clock;
use tollgate::concurrency::{self, CompletedCall, PermitObserver, PermitOutcome};
use tollgate::internal::ignore_poison;
use tollgate::{ConcurrencyLimiter, LimitError, Limiter, Rate};

use super::{Bounds, ChangeReason, LimitAlgorithm, Observation, Sample};
use crate::sync::Mutex;

/// A change of a limit, with its reason.
///
/// ```
/// use tollgate_adaptive::{LimitChange, ChangeReason};
///
/// fn line(change: &LimitChange) -> String {
///     change.to_string()
/// }
/// # use tollgate_adaptive::{Aimd, Bounds, AdaptiveController, LimitAlgorithm, Sample};
/// # let controller = AdaptiveController::new(Aimd::new(Bounds::new(1.0, 100.0)?).initial(20.0));
/// # let sample = Sample::new(std::time::Duration::from_millis(1), 20).dropped();
/// # let change = controller.observe(&sample).unwrap();
/// assert_eq!(line(&change), "limit 20.0 → 10.0: a call timed out or was rejected for overload");
/// assert_eq!(change.reason, ChangeReason::Dropped);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display("limit {from:.1} → {to:.1}: {reason}")]
#[non_exhaustive]
pub struct LimitChange {
    /// The limit before.
    pub from: f64,
    /// The new limit.
    pub to: f64,
    /// The reason.
    pub reason: ChangeReason,
}

type ChangeListener = dyn Fn(&LimitChange) + Send + Sync;

struct Shared<L> {
    law: Mutex<L>,
    /// Called when a limit changes, while no other lock is held.
    on_change: Mutex<Option<Arc<ChangeListener>>>,
}

/// Applies an algorithm's limit, within its bounds, and reports every change.
///
/// Clones share the algorithm. A concurrency limit is adjusted by the permits of a limiter that
/// [`concurrency`](Self::concurrency) builds; a rate by the caller, which calls
/// [`observe_and_apply_rate`](Self::observe_and_apply_rate) after each call.
///
/// ```
/// use std::time::Duration;
/// use tollgate_adaptive::{Aimd, Bounds, AdaptiveController, LimitAlgorithm, Sample};
/// use tollgate::{Limiter, Rate};
///
/// let limiter = Limiter::new(Rate::per_second(100));
/// let controller = AdaptiveController::new(Aimd::new(Bounds::new(10.0, 500.0)?).initial(100.0))
///     .on_change(|change| println!("{change}"));
/// let answered = Sample::new(Duration::from_millis(20), u32::MAX);
/// controller.observe_and_apply_rate(&limiter, &answered.dropped())?;
/// assert_eq!(limiter.rate().to_string(), "50000 per 1000s burst 100");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive_where(Clone)]
pub struct AdaptiveController<L> {
    shared: Arc<Shared<L>>,
}

impl<L> AdaptiveController<L> {
    /// A controller with this algorithm.
    pub fn new(law: L) -> Self {
        Self {
            shared: Arc::new(Shared {
                law: Mutex::new(law),
                on_change: Mutex::new(None),
            }),
        }
    }

    /// Sets the listener for all changes, in place of an earlier one. It is called on the thread that
    /// caused the change, while no lock is held. It applies to all clones, because they share the
    /// algorithm.
    #[must_use]
    pub fn on_change(self, tell: impl Fn(&LimitChange) + Send + Sync + 'static) -> Self {
        *ignore_poison(self.shared.on_change.lock()) = Some(Arc::new(tell));
        self
    }

    /// Reads the algorithm.
    pub fn with_law<T>(&self, look: impl FnOnce(&L) -> T) -> T {
        look(&*ignore_poison(self.shared.law.lock()))
    }

    /// Adds a sample, and returns the change of the limit, if any.
    pub fn observe<S: Observation>(&self, sample: &S) -> Option<LimitChange>
    where
        L: LimitAlgorithm<S>,
    {
        self.shared.update_law(|law| law.observe(sample)).0
    }

    /// The current limit, within the bounds.
    pub fn limit<S>(&self) -> f64
    where
        L: LimitAlgorithm<S>,
    {
        self.with_law(|law| law.bounds().clamp(law.limit()))
    }

    /// Sets the limit by hand. A limiter follows with the next sample, or with
    /// [`apply_to`](Self::apply_to) or [`apply_rate_to`](Self::apply_rate_to).
    pub fn set_limit<S>(&self, limit: f64)
    where
        L: LimitAlgorithm<S>,
    {
        let set = |law: &mut L| {
            let limit = law.bounds().clamp(limit);
            law.set_limit(limit);
            Some(ChangeReason::SetByOperator)
        };
        self.shared.update_law(set);
    }

    /// Replaces the algorithm. The new one continues from the current limit, within its bounds. A
    /// limiter follows with the next sample, or with [`apply_to`](Self::apply_to).
    ///
    /// ```
    /// use tollgate_adaptive::{Aimd, Bounds, AdaptiveController, Gradient2, LimitAlgorithm};
    ///
    /// let bounds = |max| Bounds::new(5.0, max);
    /// let algorithm: Box<dyn LimitAlgorithm> = Box::new(Aimd::new(bounds(200.0)?).initial(100.0));
    /// let controller = AdaptiveController::new(algorithm);
    /// let limiter = controller.concurrency().build();
    /// controller.set_law(Box::new(Gradient2::new(bounds(50.0)?)));
    /// controller.apply_to(&limiter);
    /// assert_eq!(limiter.peek().limit, 50);
    /// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
    /// ```
    pub fn set_law<S>(&self, law: L)
    where
        L: LimitAlgorithm<S>,
    {
        let set = |own: &mut L| {
            let limit = own.bounds().clamp(own.limit());
            *own = law;
            let limit = own.bounds().clamp(limit);
            own.set_limit(limit);
            Some(ChangeReason::SetByOperator)
        };
        self.shared.update_law(set);
    }

    /// Applies the algorithm's limit to a limiter, after [`set_limit`](Self::set_limit) or
    /// [`set_law`](Self::set_law).
    pub fn apply_to<S, C: Clock>(&self, limiter: &ConcurrencyLimiter<C>)
    where
        L: LimitAlgorithm<S>,
    {
        let put = self.apply_until_stable(self.limit(), |to| {
            limiter.set_limit(to_permits(to));
            Ok::<_, Infallible>(())
        });
        let Ok(()) = put;
    }

    /// As [`observe`](Self::observe), and sets a limiter's rate per second to the algorithm's limit
    /// immediately, even if the rate was changed elsewhere. The burst stays as it is.
    ///
    /// A rate has no calls in flight. Its samples have `u32::MAX` in flight, so that the algorithm
    /// considers the limit to be in use.
    ///
    /// # Errors
    /// If the limiter can't have such a rate; then it keeps the current one.
    pub fn observe_and_apply_rate<S: Observation, C: Clock>(
        &self,
        limiter: &Limiter<C>,
        sample: &S,
    ) -> Result<Option<LimitChange>, LimitError>
    where
        L: LimitAlgorithm<S>,
    {
        let change = self.observe(sample);
        self.apply_rate_to(limiter)?;
        Ok(change)
    }

    /// Sets a limiter's rate per second to the algorithm's limit, if it differs. The burst stays as it
    /// is. Use it after [`set_limit`](Self::set_limit) or [`set_law`](Self::set_law); otherwise the
    /// next sample does the same.
    ///
    /// # Errors
    /// If the limiter can't have such a rate; then it keeps the current one.
    ///
    /// ```
    /// use tollgate_adaptive::{Aimd, Bounds, AdaptiveController, LimitAlgorithm, Sample};
    /// use tollgate::{Limiter, Rate};
    ///
    /// let limiter = Limiter::new(Rate::per_second(5_000));
    /// let controller = AdaptiveController::new(Aimd::new(Bounds::new(10.0, 5_000.0)?).initial(5_000.0));
    /// controller.set_limit::<Sample>(100.0);
    /// controller.apply_rate_to::<Sample, _>(&limiter)?;
    /// assert_eq!(limiter.rate().to_string(), "100000 per 1000s burst 5000");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply_rate_to<S, C: Clock>(&self, limiter: &Limiter<C>) -> Result<(), LimitError>
    where
        L: LimitAlgorithm<S>,
    {
        self.apply_until_stable(self.limit(), |to| {
            let before = limiter.rate();
            let rate = per_second(to, before);
            if is_same_rate(rate, before) {
                return Ok(());
            }
            limiter.set_rate(rate)
        })
    }

    /// As [`observe`](Self::observe), and applies the algorithm's limit to a limiter immediately, even
    /// if the limit was changed elsewhere. For algorithms that learn from a gauge; those that learn
    /// from calls get their samples from permits ([`concurrency`](Self::concurrency)).
    pub fn observe_and_apply<S: Observation, C: Clock>(
        &self,
        limiter: &ConcurrencyLimiter<C>,
        sample: &S,
    ) -> Option<LimitChange>
    where
        L: LimitAlgorithm<S>,
    {
        let change = self.observe(sample);
        if change.is_some() || limiter.peek().limit != to_permits(self.limit()) {
            self.apply_to(limiter);
        }
        change
    }

    /// Applies a limit, then checks again: of two concurrent changes, the earlier one may be applied
    /// last, and without the check it would stay until the next change.
    fn apply_until_stable<S, E>(
        &self,
        mut limit: f64,
        put: impl Fn(f64) -> Result<(), E>,
    ) -> Result<(), E>
    where
        L: LimitAlgorithm<S>,
    {
        loop {
            put(limit)?;
            let now = self.limit();
            if now.to_bits() == limit.to_bits() {
                return Ok(());
            }
            limit = now;
        }
    }
}

impl<L: LimitAlgorithm + 'static> AdaptiveController<L> {
    /// A builder for a concurrency limiter that follows the algorithm: every permit that ends is a
    /// sample, by which the limit may change.
    pub fn concurrency(&self) -> concurrency::Builder {
        ConcurrencyLimiter::builder(to_permits(self.limit())).observer(self.clone())
    }
}

impl<L> Shared<L> {
    /// Changes the algorithm under its lock, and notifies the listener after releasing it. Returns the
    /// limit, too.
    #[inline]
    fn update_law<S>(
        &self,
        change: impl FnOnce(&mut L) -> Option<ChangeReason>,
    ) -> (Option<LimitChange>, f64)
    where
        L: LimitAlgorithm<S>,
    {
        let mut law = ignore_poison(self.law.lock());
        let before = law.limit();
        let reason = change(&mut law);
        let (bounds, after): (Bounds, f64) = (law.bounds(), law.limit());
        drop(law);
        let to = bounds.clamp(after);
        let changed = reason.and_then(|reason| {
            let from = bounds.clamp(before);
            let change = LimitChange { from, to, reason };
            (from.to_bits() != to.to_bits()).then(|| self.notify(change))
        });
        (changed, to)
    }

    /// Outlined, because few samples change the limit.
    #[cold]
    fn notify(&self, change: LimitChange) -> LimitChange {
        let tell = ignore_poison(self.on_change.lock()).clone();
        if let Some(tell) = tell {
            tell(&change);
        }
        change
    }
}

impl<L: LimitAlgorithm> PermitObserver for AdaptiveController<L> {
    /// Returns the algorithm's limit whenever it differs from the limit in force. They differ also when
    /// two permits ended at the same time and the earlier result was applied last.
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        if ended.ending == PermitOutcome::Ignored {
            return None;
        }
        let sample = Sample::from(ended);
        let (_, limit) = self.shared.update_law(|law| law.observe(&sample));
        let limit = to_permits(limit);
        (limit != ended.limit).then_some(limit)
    }

    fn limit(&self) -> Option<u32> {
        Some(to_permits(Self::limit(self)))
    }
}

/// A whole number of permits, at least 1: a limit of 0 would never get another sample.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a part of a call is none"
)]
pub(super) fn to_permits(limit: f64) -> u32 {
    (limit as u32).clamp(1, ConcurrencyLimiter::MAX_LIMIT)
}

/// A rate per second, to a thousandth, with the burst of another rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and limits are positive"
)]
fn per_second(limit: f64, before: Rate) -> Rate {
    let count = (limit * 1_000.0).round() as u64;
    Rate::new(count.max(1), Duration::from_secs(1_000)).burst(before.burst_size())
}

/// Whether two rates are equal, apart from their bursts.
fn is_same_rate(one: Rate, other: Rate) -> bool {
    !one.is_faster_than(other) && !other.is_faster_than(one)
}

impl<L: fmt::Debug> fmt::Debug for AdaptiveController<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_law(|law| f.debug_struct("Controller").field("law", law).finish())
    }
}

//! The controller: a law, behind a lock, that steers a rate or a number of calls at once.

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

/// A limit that was changed, and why.
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
    /// The limit from now on.
    pub to: f64,
    /// Why.
    pub reason: ChangeReason,
}

type ChangeListener = dyn Fn(&LimitChange) + Send + Sync;

struct Shared<L> {
    law: Mutex<L>,
    /// Taken where a limit changes, under no other lock.
    on_change: Mutex<Option<Arc<ChangeListener>>>,
}

/// Puts what a law says in force, within its bounds, and tells of every change.
///
/// Clones share the law. How many at once is steered by the permits of a limiter that
/// [`concurrency`](Self::concurrency) begins to build; a rate by whoever calls [`observe_and_apply_rate`](Self::observe_and_apply_rate) when a
/// call is over.
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
    /// Steers by this law.
    pub fn new(law: L) -> Self {
        Self {
            shared: Arc::new(Shared {
                law: Mutex::new(law),
                on_change: Mutex::new(None),
            }),
        }
    }

    /// Reports every change to this from now on, in place of whom it was reported to before: on the thread that caused it and
    /// under no lock. It holds for all clones, as they share the law.
    #[must_use]
    pub fn on_change(self, tell: impl Fn(&LimitChange) + Send + Sync + 'static) -> Self {
        *ignore_poison(self.shared.on_change.lock()) = Some(Arc::new(tell));
        self
    }

    /// Looks at the law.
    pub fn with_law<T>(&self, look: impl FnOnce(&L) -> T) -> T {
        look(&*ignore_poison(self.shared.law.lock()))
    }

    /// Takes a sample into account, and returns what changed, if anything did.
    pub fn observe<S: Observation>(&self, sample: &S) -> Option<LimitChange>
    where
        L: LimitAlgorithm<S>,
    {
        self.shared.update_law(|law| law.observe(sample)).0
    }

    /// The limit in force, within the bounds.
    pub fn limit<S>(&self) -> f64
    where
        L: LimitAlgorithm<S>,
    {
        self.with_law(|law| law.bounds().clamp(law.limit()))
    }

    /// Goes on from this limit, as an operator orders. A limiter follows with the next sample, or with
    /// [`put_in_force`](Self::put_in_force) or [`apply_rate_to`](Self::apply_rate_to).
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

    /// Goes on by another law, from the limit in force, as far as that is within its bounds. What a limiter allows
    /// follows with the next sample, or with [`put_in_force`](Self::put_in_force).
    ///
    /// ```
    /// use tollgate_adaptive::{Aimd, Bounds, AdaptiveController, Gradient2, LimitAlgorithm};
    ///
    /// let bounds = |max| Bounds::new(5.0, max);
    /// let law: Box<dyn LimitAlgorithm> = Box::new(Aimd::new(bounds(200.0)?).initial(100.0));
    /// let controller = AdaptiveController::new(law);
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

    /// Makes the law's limit that of a limiter, for when it was [set](Self::set_limit) or the [law](Self::set_law) was.
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

    /// As [`observe`](Self::observe); the law's limit becomes the limiter's rate at once, a second, whoever changed it. The
    /// burst stays as it is.
    ///
    /// A rate has nothing in flight: samples for it have `u32::MAX`, so that the law takes it to be in use.
    ///
    /// # Errors
    /// If the limiter can't have such a rate; then it keeps the one that it has.
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

    /// Makes the law's limit the rate of a limiter, a second, if it isn't that already. The burst stays as it is. For when it
    /// was [set](Self::set_limit), or the [law](Self::set_law) was; otherwise the next sample does so.
    ///
    /// # Errors
    /// If the limiter can't have such a rate; then it keeps the one that it has.
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

    /// As [`observe`](Self::observe); the law's limit becomes the limiter's at once, whoever changed it. For laws that learn from a
    /// gauge; those that learn from calls are told by permits ([`concurrency`](Self::concurrency)).
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

    /// Puts a limit in force, and looks again: of two changes at once the earlier may come last, and nothing would put
    /// the later one in force until there is another.
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
    /// Begins a limit of how many at once that follows the law: every permit that ends is a sample, and the
    /// limit changes by what the law says of it.
    pub fn concurrency(&self) -> concurrency::Builder {
        ConcurrencyLimiter::builder(to_permits(self.limit())).observer(self.clone())
    }
}

impl<L> Shared<L> {
    /// Changes the law under its lock; tells what came of it, under none. Returns the limit, too.
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

    /// Few samples change anything.
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
    /// The limit as the law has it, whenever it isn't the one in force: also if two permits ended at the
    /// same time, and what the first one said was put in force last.
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

/// So many at once, and one at least: a limit of none would never learn anything again.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a part of a call is none"
)]
pub(super) fn to_permits(limit: f64) -> u32 {
    (limit as u32).clamp(1, ConcurrencyLimiter::MAX_LIMIT)
}

/// So many a second, to a thousandth, with the burst of another rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and limits are positive"
)]
fn per_second(limit: f64, before: Rate) -> Rate {
    let count = (limit * 1_000.0).round() as u64;
    Rate::new(count.max(1), Duration::from_secs(1_000)).burst(before.burst_size())
}

/// Whether two rates let as many pass in any time, but for their bursts.
fn is_same_rate(one: Rate, other: Rate) -> bool {
    !one.is_faster_than(other) && !other.is_faster_than(one)
}

impl<L: fmt::Debug> fmt::Debug for AdaptiveController<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_law(|law| f.debug_struct("Controller").field("law", law).finish())
    }
}

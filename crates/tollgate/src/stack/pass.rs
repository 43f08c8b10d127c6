//! What a request that passed a stack holds while it runs.

use std::fmt;
use std::time::Duration;

use super::estimate::{Estimate, Expire, Settled, Settlement, Timed, TimedEstimate};
use super::limit::Taken;
use crate::clock::Clock;
use crate::concurrency::{Ending, OwnedPermit, Permit, SharedHome};

/// The slots that a request holds, of all concurrency limits that it met: given back when this is
/// dropped. With no such limit it holds nothing. It shares its limiters, so it may be moved into a
/// task, or live as long as a response is being sent.
///
/// As a [`Permit`](crate::concurrency::Permit) it may end as a success, as dropped for overload, or ignored,
/// which is what just dropping it means.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, Level, Stack};
///
/// let (slots, stack) = (Arc::new(ConcurrencyLimiter::new(1)), Stack::new());
/// let pass = stack.allow(&[Level::new("slots", &slots)]).expect("a free slot");
/// assert_eq!(slots.available(), 0);
/// pass.success();
/// assert_eq!(slots.available(), 1);
/// ```
#[derive(Debug, Default)]
#[must_use = "a pass that is dropped gives back its slots"]
pub struct Pass {
    /// Most requests meet one such limit at most.
    first: Option<AnyPermit>,
    more: Vec<AnyPermit>,
}

impl Pass {
    #[inline]
    pub(super) fn keep(&mut self, taken: Taken) {
        if let Taken::Slot(permit) = taken {
            match self.first {
                None => self.first = Some(permit),
                Some(_) => self.more.push(permit),
            }
        }
    }

    /// Whether it holds nothing: then it makes no difference when it is dropped.
    ///
    /// ```
    /// use tollgate::stack::Pass;
    ///
    /// let mut pass = Pass::default();
    /// assert!(pass.is_empty());
    /// pass.hold(|_| ());
    /// assert!(!pass.is_empty());
    /// ```
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Also calls this when it ends, once, with how: for what is held elsewhere.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tollgate::stack::Pass;
    ///
    /// let (held, mut pass) = (Arc::new(AtomicBool::new(true)), Pass::default());
    /// let ends = Arc::clone(&held);
    /// pass.hold(move |_| ends.store(false, Ordering::Relaxed));
    /// assert!(held.load(Ordering::Relaxed));
    /// drop(pass);
    /// assert!(!held.load(Ordering::Relaxed));
    /// ```
    pub fn hold(&mut self, end: impl FnOnce(Ending) + Send + Sync + 'static) {
        let held = AnyPermit::Keyed(Box::new(Held(Some(end))));
        self.keep(Taken::Slot(held));
    }

    /// Also holds an estimate that is kept elsewhere, and calls this once when it is known what came of it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use tollgate::stack::{Pass, Settled};
    ///
    /// let (used, mut pass) = (Arc::new(AtomicU64::new(0)), Pass::default());
    /// let book = Arc::clone(&used);
    /// pass.hold_estimate(move |settled| match settled {
    ///     Settled::Spent(tokens) => book.store(tokens, Ordering::Relaxed),
    ///     Settled::Charged | Settled::Unsaid | Settled::Cancelled => {}
    /// });
    /// pass.settle(1_500);
    /// assert_eq!(used.load(Ordering::Relaxed), 1_500);
    /// ```
    pub fn hold_estimate(&mut self, end: impl FnOnce(Settled) + Send + Sync + 'static) {
        let estimate = AnyPermit::Keyed(Box::new(Estimate::new(end)));
        self.keep(Taken::Slot(estimate));
    }

    /// The same for an estimate whose time ends, and of which it may be said later what it cost.
    pub fn hold_timed_estimate(&mut self, estimate: impl TimedEstimate + 'static) {
        let timed = AnyPermit::Keyed(Box::new(Timed::new(estimate)));
        self.keep(Taken::Slot(timed));
    }

    /// Also holds this permit, which ends as this does.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, stack::Pass};
    ///
    /// let (slots, mut pass) = (Arc::new(ConcurrencyLimiter::new(1)), Pass::default());
    /// pass.hold_permit(slots.try_acquire_owned()?);
    /// assert_eq!(slots.available(), 0);
    /// pass.success();
    /// assert_eq!((slots.available(), slots.stats().succeeded), (1, 1));
    /// # Ok::<(), tollgate::concurrency::NoPermit>(())
    /// ```
    pub fn hold_permit<C: Clock + 'static>(&mut self, permit: OwnedPermit<C>) {
        self.keep(Taken::Slot(AnyPermit::Keyed(Box::new(permit))));
    }

    /// Tells limits that learn from it how the request ended, while its slots are still needed: see
    /// [`Permit::tell`](crate::concurrency::Permit::tell).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, concurrency::Ending, stack::Pass};
    ///
    /// let (slots, mut pass) = (Arc::new(ConcurrencyLimiter::new(1)), Pass::default());
    /// pass.hold_permit(slots.try_acquire_owned()?);
    /// pass.tell(Ending::Dropped);
    /// assert_eq!((slots.available(), slots.stats().dropped), (0, 1));
    /// # Ok::<(), tollgate::concurrency::NoPermit>(())
    /// ```
    pub fn tell(&mut self, ending: Ending) {
        for permit in self.first.iter_mut().chain(&mut self.more) {
            match permit {
                AnyPermit::Shared(permit) => permit.tell(ending),
                AnyPermit::Keyed(permit) => permit.tell(ending),
            }
        }
    }

    /// The request cost so much. Its slots are held on; estimates are settled, once: what is said again is too late. If the
    /// time of an estimate is over, what the request cost beyond what is still charged is charged, and nothing comes back.
    pub fn settle(&mut self, spent: u64) -> Settlement {
        let mut said = Settlement::InTime;
        for permit in self.keyed() {
            said = said.max(permit.settle(spent));
        }
        said
    }

    /// How long it takes until the time of an estimate is over that nobody has settled; none if there is none.
    pub fn time_left(&self) -> Option<Duration> {
        let all = self.first.iter().chain(&self.more);
        let left = all.filter_map(|permit| match permit {
            AnyPermit::Keyed(permit) => permit.time_left(),
            AnyPermit::Shared(_) => None,
        });
        left.min()
    }

    /// Whether it holds nothing but estimates whose time is over and which were [ended](Self::expire): all that may still come
    /// is a late [`settle`](Self::settle).
    ///
    /// ```
    /// use tollgate::stack::Pass;
    ///
    /// let mut pass = Pass::default();
    /// assert!(pass.is_over());
    /// pass.hold(|_| ());
    /// assert!(!pass.is_over());
    /// ```
    pub fn is_over(&self) -> bool {
        let mut all = self.first.iter().chain(&self.more);
        all.all(|permit| match permit {
            AnyPermit::Keyed(permit) => permit.may_be_settled() && permit.time_left().is_none(),
            AnyPermit::Shared(_) => false,
        })
    }

    /// Ends estimates as ones that nobody settles: charged, or given back, as their terms say. What they did cost may still
    /// be [said](Self::settle).
    pub fn expire(&mut self, which: Expire) {
        self.keyed().for_each(|permit| permit.expire(which));
    }

    /// The time of estimates that aren't over begins anew.
    pub fn renew(&mut self) {
        self.keyed().for_each(|permit| permit.renew());
    }

    /// The request is over, and nobody says what it cost: slots end ignored, and estimates [as ones that nobody
    /// settles](Self::expire). What they did cost may still be [said](Self::settle).
    pub fn end_unsettled(mut self) -> Self {
        self.expire(Expire::All);
        let mut rest = Self::default();
        for permit in self.first.into_iter().chain(self.more) {
            match permit {
                AnyPermit::Keyed(permit) if permit.may_be_settled() => {
                    rest.keep(Taken::Slot(AnyPermit::Keyed(permit)));
                }
                permit => permit.end(Ending::Ignored),
            }
        }
        rest
    }

    fn keyed(&mut self) -> impl Iterator<Item = &mut Box<dyn Slot + Send>> {
        let all = self.first.iter_mut().chain(&mut self.more);
        all.filter_map(|permit| match permit {
            AnyPermit::Keyed(permit) => Some(permit),
            AnyPermit::Shared(_) => None,
        })
    }

    /// The request cost what its estimates are, whatever dropping this would mean. Its slots are held on; what is said
    /// later is too late.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tollgate::stack::{Pass, Settled};
    ///
    /// let (is_spent, mut pass) = (Arc::new(AtomicBool::new(false)), Pass::default());
    /// let book = Arc::clone(&is_spent);
    /// pass.hold_estimate(move |settled| book.store(settled == Settled::Charged, Ordering::Relaxed));
    /// pass.charge();
    /// assert!(is_spent.load(Ordering::Relaxed));
    /// ```
    pub fn charge(&mut self) {
        for permit in self.first.iter_mut().chain(&mut self.more) {
            if let AnyPermit::Keyed(permit) = permit {
                permit.charge();
            }
        }
    }

    /// The request never ran: estimates are given back, whatever dropping this would mean, and slots end ignored.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tollgate::stack::{Pass, Settled};
    ///
    /// let (is_back, mut pass) = (Arc::new(AtomicBool::new(false)), Pass::default());
    /// let book = Arc::clone(&is_back);
    /// pass.hold_estimate(move |settled| book.store(settled == Settled::Cancelled, Ordering::Relaxed));
    /// pass.cancel();
    /// assert!(is_back.load(Ordering::Relaxed));
    /// ```
    pub fn cancel(self) {
        for permit in self.first.into_iter().chain(self.more) {
            permit.cancel();
        }
    }

    /// One pass that holds what both of these hold.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, Level, Stack};
    ///
    /// let (a, b) = (Arc::new(ConcurrencyLimiter::new(1)), Arc::new(ConcurrencyLimiter::new(1)));
    /// let pass = |slots| Stack::new().allow(&[Level::new("slots", slots)]).expect("a free slot");
    /// let both = pass(&a).and(pass(&b));
    /// assert_eq!((a.available(), b.available()), (0, 0));
    /// drop(both);
    /// assert_eq!((a.available(), b.available()), (1, 1));
    /// ```
    pub fn and(mut self, other: Self) -> Self {
        for permit in other.first.into_iter().chain(other.more) {
            self.keep(Taken::Slot(permit));
        }
        self
    }

    /// The request was served.
    pub fn success(self) {
        self.end(Ending::Success);
    }

    /// The request timed out or was rejected for overload.
    pub fn dropped(self) {
        self.end(Ending::Dropped);
    }

    /// The request ended in a way that says nothing about capacity.
    pub fn ignored(self) {
        self.end(Ending::Ignored);
    }

    /// The request ended like this.
    pub fn end(self, ending: Ending) {
        for permit in self.first.into_iter().chain(self.more) {
            permit.end(ending);
        }
    }
}

/// A permit of any limiter.
pub(crate) enum AnyPermit {
    Shared(Permit<SharedHome>),
    Keyed(Box<dyn Slot + Send>),
}

/// What is held elsewhere, and how that ends.
struct Held<F: FnOnce(Ending)>(Option<F>);

impl<F: FnOnce(Ending)> Held<F> {
    fn call(&mut self, ending: Ending) {
        if let Some(end) = self.0.take() {
            end(ending);
        }
    }
}

impl<F: FnOnce(Ending) + Send + Sync> Slot for Held<F> {
    fn end(mut self: Box<Self>, ending: Ending) {
        self.call(ending);
    }

    fn cancel(mut self: Box<Self>) {
        self.call(Ending::Ignored);
    }
}

impl<F: FnOnce(Ending)> Drop for Held<F> {
    fn drop(&mut self) {
        self.call(Ending::Ignored);
    }
}

/// A permit of a key, whatever its limiter.
pub(crate) trait Slot: Send + Sync {
    fn end(self: Box<Self>, ending: Ending);
    fn cancel(self: Box<Self>);

    /// The request ended like this, which concerns those who learn from it.
    fn tell(&mut self, ending: Ending) {
        let _ = ending;
    }

    /// The request cost so much, which concerns estimates alone.
    fn settle(&mut self, spent: u64) -> Settlement {
        let _ = spent;
        Settlement::InTime
    }

    /// And that it cost what was estimated.
    fn charge(&mut self) {}

    /// How long the time of an estimate still is.
    fn time_left(&self) -> Option<Duration> {
        None
    }

    /// Ends an estimate as one that nobody settles.
    fn expire(&mut self, which: Expire) {
        let _ = which;
    }

    /// The time of an estimate begins anew.
    fn renew(&mut self) {}

    /// Whether it is an estimate that may still be settled.
    fn may_be_settled(&self) -> bool {
        false
    }
}

impl AnyPermit {
    pub(crate) fn end(self, ending: Ending) {
        match self {
            Self::Shared(permit) => permit.end(ending),
            Self::Keyed(permit) => permit.end(ending),
        }
    }

    pub(crate) fn cancel(self) {
        match self {
            Self::Shared(permit) => permit.cancel(),
            Self::Keyed(permit) => permit.cancel(),
        }
    }
}

impl fmt::Debug for AnyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

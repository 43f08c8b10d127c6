//! A `Limit` of a composite limiter: a limit with a name, and what the request costs it.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};

use super::LimitKind;
use super::hold::ReservationTerms;
pub(super) use super::limit::LimitScope;
use super::limit::{ClockReading, ComposableKeyedLimit, ComposableLimit, FastCharge, LevelCharge};
use crate::keyed::KeyRate;

/// One limit of a request: its name, and what the request costs it.
///
/// ```
/// use tollgate::{KeyedLimiter, Limit, Limiter, Rate};
///
/// let tenants = KeyedLimiter::new(Rate::per_second(100), 1_000);
/// let service = Limiter::new(Rate::per_second(10_000));
/// let limits = [
///     Limit::new("tenant", &tenants.key("acme")).cost(5),
///     Limit::new("service", &service),
/// ];
/// assert_eq!(limits[0].name(), "tenant");
/// ```
#[derive(Clone, Debug)]
pub struct Limit<'a> {
    pub(super) name: &'a str,
    pub(super) cost: u64,
    /// Whether the cost is an estimate, which a reservation settles.
    pub(super) is_estimated: bool,
    /// The terms of this limit's estimate, in place of the reservation's.
    pub(super) terms: Option<ReservationTerms>,
    pub(super) limit: LimitRef<'a>,
}

impl<'a> Limit<'a> {
    /// A limit at a cost of 1, by reference: `&Limiter`, `&Arc<Limiter>`, `&Arc<ConcurrencyLimiter>`,
    /// or `&key` of any keyed limiter, whose handle borrows or shares the limiter. Permits need a
    /// shared limiter (an `Arc`, and keys by [`key_owned`](crate::KeyedConcurrencyLimiter::key_owned)),
    /// because a permit may outlive the call.
    ///
    /// A limit that is shared may also be passed by value: `Arc<Limiter>`, `Arc<ConcurrencyLimiter>`,
    /// and handles of the type `OwnedKey`. If all limits of a
    /// [`CostReservation`](super::CostReservation) are passed so, it borrows nothing and can live in a
    /// task.
    #[inline]
    pub fn new(name: &'a str, limit: impl Into<LimitRef<'a>>) -> Self {
        Self {
            name,
            cost: 1,
            is_estimated: false,
            terms: None,
            limit: limit.into(),
        }
    }

    /// A limit with an estimated cost, at least 1, which
    /// [`CostReservation::settle`](super::CostReservation::settle) replaces by the actual cost. Only
    /// limits that settle exactly accept an estimate: a `&Limiter` of any algorithm, a reference to a
    /// key of a `StoredKeyLimiter` or of a quota, or an owned handle of one of these.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let limiter = Limiter::new(Rate::per_hour(30_000));
    /// let limits = [Limit::estimated("tokens", &limiter, 4_000)];
    /// let hold = CompositeLimiter::new().hold(&limits, Duration::from_secs(60)).expect("room");
    /// assert!(limiter.allow_n(2)); // others go on meanwhile
    /// hold.settle(1_500);
    /// assert_eq!(limiter.peek().remaining, 28_498);
    /// ```
    ///
    /// A key of a [`KeyedLimiter`](crate::KeyedLimiter) has 16 bytes, and no room for open estimates;
    /// one of a [`StoredKeyLimiter`](crate::StoredKeyLimiter) has. So this doesn't compile, and the
    /// compiler's message names the alternative:
    ///
    /// ```compile_fail,E0277
    /// use tollgate::{KeyedLimiter, Level, Rate};
    ///
    /// let tenants = KeyedLimiter::new(Rate::per_minute(30_000), 1_000);
    /// let level = Level::estimated("tokens", tenants.key("acme"), 4_000);
    /// ```
    ///
    /// The same holds for a class of a tree, which doesn't track partial refunds, and for permits,
    /// which have no cost to settle:
    ///
    /// ```compile_fail,E0277
    /// use tollgate::{Level, Rate, Tree, tree::Class};
    ///
    /// let tree = Tree::new(Rate::per_second(10));
    /// let leaf = tree.add_leaf("search", tree.root(), Class::new(Rate::per_second(2))).unwrap();
    /// let level = Level::estimated("tree", &tree.level(leaf), 2);
    /// ```
    ///
    /// ```compile_fail,E0277
    /// use std::sync::Arc;
    /// use tollgate::{ConcurrencyLimiter, Level};
    ///
    /// let level = Level::estimated("slots", &Arc::new(ConcurrencyLimiter::new(5)), 2);
    /// ```
    #[inline]
    pub fn estimated(name: &'a str, limit: impl SettlesEstimates<'a>, cost: u64) -> Self {
        Self {
            cost,
            is_estimated: true,
            ..Self::new(name, limit)
        }
    }

    /// Sets what the request costs this limit: the estimate, if the cost is estimated.
    #[must_use]
    #[inline]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Holds this limit's estimate on these terms, in place of those of the
    /// [reservation](super::CompositeLimiter::hold).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, stack::ReservationTerms, clock::Manual};
    ///
    /// let limiter = Limiter::with_clock(Rate::per_minute(1_000), Manual::new());
    /// let minute = Duration::from_secs(60);
    /// let level = Limit::estimated("tokens", &limiter, 400).with_terms(ReservationTerms::for_at_most(minute).refund_on_drop());
    /// drop(CompositeLimiter::new().hold(&[level], minute));
    /// assert_eq!(limiter.peek().remaining, 1_000);
    /// ```
    #[must_use]
    pub fn with_terms(mut self, terms: impl Into<ReservationTerms>) -> Self {
        self.terms = Some(terms.into());
        self
    }

    /// The cost that is charged first. An estimate is at least 1, so that a wrong estimate of 0 still
    /// has a charge to settle.
    pub(super) fn held_cost(&self) -> u64 {
        if self.is_estimated {
            self.cost.max(1)
        } else {
            self.cost
        }
    }

    /// The name of the limit.
    pub const fn name(&self) -> &'a str {
        self.name
    }
}

/// A limit that settles an estimate exactly: the final charge is the actual cost. [`Limit::estimated`]
/// lists these limits.
///
/// The trait is sealed: use it in bounds, but don't implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't settle an estimate",
    label = "keeps what it was charged, whatever was spent",
    note = "a key of a `KeyedLimiter` has no room for it: use `&exact.key(k)` of an `ExactKeyedLimiter`, a quota's \
            `&key`, or `&limiter`; in tasks an `Arc<Limiter>` or a `key_owned(k)`; or charge a plain cost: \
            `Level::new(name, limit).cost(n)`"
)]
pub trait SettlesEstimates<'a>: Into<LimitRef<'a>> + SettlesExactly {}

impl<'a, L: Into<LimitRef<'a>> + SettlesExactly> SettlesEstimates<'a> for L {}

pub(super) use sealed::SettlesExactly;

mod sealed {
    /// The sealed part: every type that settles an estimate exactly.
    pub trait SettlesExactly {}
}

/// A limit of any kind, as a [`Limit`] takes it. Converts by `into()` from the types that
/// [`Limit::new`] lists.
#[derive(Clone)]
pub struct LimitRef<'a>(pub(super) LimitPointer<'a>);

#[derive(Clone)]
pub(super) enum LimitPointer<'a> {
    /// With its scope, so that sorting by the charging order needs no virtual call.
    Borrowed(LimitScope, &'a (dyn ComposableLimit + 'a)),
    /// By value, because the handle of a key is made for one call.
    KeyParts {
        limiter: &'a (dyn ComposableKeyedLimit + 'a),
        key: KeyRate,
    },
    /// The same with a shared limiter.
    OwnedKeyParts {
        limiter: Arc<dyn ComposableKeyedLimit + 'a>,
        key: KeyRate,
    },
    /// Any other limit, shared.
    Owned(Arc<dyn ComposableLimit + Send + 'a>),
}

/// A view of a limit, borrowed or owned.
enum LimitView<'v> {
    Whole(&'v dyn ComposableLimit),
    KeyParts(&'v dyn ComposableKeyedLimit, &'v KeyRate),
}

/// Calls the same method on either kind of view.
macro_rules! each {
    ($self:expr, $method:ident($($argument:expr),*)) => {
        match $self.as_view() {
            LimitView::Whole(limit) => limit.$method($($argument),*),
            LimitView::KeyParts(limiter, key) => limiter.$method(key, $($argument),*),
        }
    };
}

impl<'a, L: ComposableLimit> From<&'a L> for LimitRef<'a> {
    #[inline]
    fn from(limit: &'a L) -> Self {
        Self(LimitPointer::Borrowed(limit.kind_and_scope().1, limit))
    }
}

impl<'a> LimitRef<'a> {
    pub(super) fn owned(limit: impl ComposableLimit + Send + 'a) -> Self {
        Self(LimitPointer::Owned(Arc::new(limit)))
    }

    #[inline(always)]
    fn as_view(&self) -> LimitView<'_> {
        match &self.0 {
            LimitPointer::Borrowed(_, limit) => LimitView::Whole(*limit),
            LimitPointer::KeyParts { limiter, key } => LimitView::KeyParts(*limiter, key),
            LimitPointer::OwnedKeyParts { limiter, key } => LimitView::KeyParts(&**limiter, key),
            LimitPointer::Owned(limit) => LimitView::Whole(&**limit),
        }
    }

    pub(super) fn kind(&self) -> LimitKind {
        match self.as_view() {
            LimitView::Whole(limit) => limit.kind_and_scope().0,
            LimitView::KeyParts(..) => LimitKind::Rate,
        }
    }

    #[inline]
    pub(super) fn breadth(&self) -> LimitScope {
        match &self.0 {
            LimitPointer::Borrowed(breadth, _) => *breadth,
            LimitPointer::KeyParts { .. } | LimitPointer::OwnedKeyParts { .. } => LimitScope::Key,
            LimitPointer::Owned(limit) => limit.kind_and_scope().1,
        }
    }

    pub(super) fn now(&self, seen: &mut ClockReading) -> Timestamp {
        each!(self, now(seen))
    }

    #[inline]
    pub(super) fn prefetch(&self) {
        if let LimitPointer::KeyParts { limiter, key } = &self.0 {
            limiter.prefetch(key);
        }
    }

    #[inline]
    pub(super) fn fits(&self, seen: &mut ClockReading, cost: u64) -> bool {
        each!(self, fits(seen, cost))
    }

    pub(super) fn peek(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, look(now, cost))
    }

    pub(super) fn peek_with_demand(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, ask(now, cost))
    }

    #[inline]
    pub(super) fn charge_fast(&self, seen: &mut ClockReading, cost: u64) -> Option<FastCharge> {
        each!(self, charge(seen, cost))
    }

    pub(super) fn charge_slow(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        each!(self, take(now, cost))
    }

    pub(super) fn hold_estimate(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<LevelCharge, Decision> {
        match self.as_view() {
            LimitView::Whole(limit) => limit.hold(now, cost, until),
            LimitView::KeyParts(limiter, key) => limiter.take(key, now, cost),
        }
    }

    pub(super) fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64) {
        each!(self, settle(now, taken, spent));
    }

    pub(super) fn extend_hold(&self, taken: &mut LevelCharge, until: Timestamp) {
        // Keys by their parts don't track estimates, so they have nothing to prolong.
        if let LimitView::Whole(limit) = self.as_view() {
            limit.prolong(taken, until);
        }
    }

    pub(super) fn charge_late(&self, now: Timestamp, cost: u64) {
        match self.as_view() {
            LimitView::Whole(limit) => limit.charge_late(now, cost),
            LimitView::KeyParts(limiter, key) => {
                let room = limiter.look(key, now, 0).remaining;
                let _ = limiter.take(key, now, cost.min(room));
            }
        }
    }
}

impl fmt::Debug for LimitRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_view() {
            LimitView::Whole(limit) => limit.fmt(f),
            LimitView::KeyParts(..) => f.write_str("Key"),
        }
    }
}

//! A level of a stack: a limit by name, and what a request costs it.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};

use super::LimitKind;
use super::hold::ReservationTerms;
pub(super) use super::limit::LimitScope;
use super::limit::{ClockReading, ComposableKeyedLimit, ComposableLimit, FastCharge, LevelCharge};
use crate::keyed::KeyRate;

/// One limit that a request meets, by name, and what the request costs it.
///
/// ```
/// use tollgate::{KeyedLimiter, Limit, Limiter, Rate};
///
/// let tenants = KeyedLimiter::new(Rate::per_second(100), 1_000);
/// let service = Limiter::new(Rate::per_second(10_000));
/// let levels = [
///     Limit::new("tenant", &tenants.key("acme")).cost(5),
///     Limit::new("service", &service),
/// ];
/// assert_eq!(levels[0].name(), "tenant");
/// ```
#[derive(Clone, Debug)]
pub struct Limit<'a> {
    pub(super) name: &'a str,
    pub(super) cost: u64,
    /// Whether the cost is an estimate, which a hold settles.
    pub(super) is_estimated: bool,
    /// Its own, in place of its hold's.
    pub(super) terms: Option<ReservationTerms>,
    pub(super) limit: LimitRef<'a>,
}

impl<'a> Limit<'a> {
    /// A limit at a cost of 1, by reference: `&Limiter`, `&Arc<Limiter>`, `&Arc<ConcurrencyLimiter>`, or
    /// `&key` of any limiter by key, whose handle borrows the limiter or shares it. Slots are shared
    /// (`Arc`, and keys by [`key_owned`](crate::KeyedConcurrencyLimiter::key_owned)), because who holds one may outlive
    /// the call.
    ///
    /// What shares its limit may also be given by value: `Arc<Limiter>`, `Arc<ConcurrencyLimiter>`, and handles
    /// of the type `OwnedKey`. If all levels of a [`CostReservation`](super::CostReservation) are, it borrows nothing and can live in
    /// a task.
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

    /// A limit at what the request is thought to cost; [`CostReservation::settle`](super::CostReservation::settle) tells what it did
    /// cost. One at least is held. Only of limits that settle that exactly: a `&Limiter` of any algorithm, a reference to a key of
    /// an `StoredKeyLimiter` or of a quota, or one of those that shares its limiter, by value.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let limiter = Limiter::new(Rate::per_hour(30_000));
    /// let levels = [Limit::estimated("tokens", &limiter, 4_000)];
    /// let hold = CompositeLimiter::new().hold(&levels, Duration::from_secs(60)).expect("room");
    /// assert!(limiter.allow_n(2)); // others go on meanwhile
    /// hold.settle(1_500);
    /// assert_eq!(limiter.peek().remaining, 28_498);
    /// ```
    ///
    /// A key of a [`KeyedLimiter`](crate::KeyedLimiter) has 16 bytes, and no room for what is out; an
    /// [`StoredKeyLimiter`](crate::StoredKeyLimiter) has. So this doesn't compile, and says so:
    ///
    /// ```compile_fail,E0277
    /// use tollgate::{KeyedLimiter, Level, Rate};
    ///
    /// let tenants = KeyedLimiter::new(Rate::per_minute(30_000), 1_000);
    /// let level = Level::estimated("tokens", tenants.key("acme"), 4_000);
    /// ```
    ///
    /// Nor do a class of a tree, which keeps no track of parts, and slots, which are held as long as it takes:
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

    /// What the request costs at this level; if it was estimated, what it is thought to cost.
    #[must_use]
    #[inline]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Holds its estimate on terms of its own, in place of those of the [hold](super::CompositeLimiter::hold).
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

    /// What is held of it. An estimate is of one at least: who thinks that it costs nothing, and is wrong, has
    /// something to settle.
    pub(super) fn held_cost(&self) -> u64 {
        if self.is_estimated {
            self.cost.max(1)
        } else {
            self.cost
        }
    }

    /// What people call it.
    pub const fn name(&self) -> &'a str {
        self.name
    }
}

/// A limit that settles an estimate: what is charged in the end is what was spent. [`Limit::estimated`] lists
/// them.
///
/// The trait is sealed: it is there to be named, not to be implemented.
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
    /// Whoever settles an estimate.
    pub trait SettlesExactly {}
}

/// A limit of any kind, as a [`Limit`] takes it. Made by `into()` from what [`Limit::new`] lists.
#[derive(Clone)]
pub struct LimitRef<'a>(pub(super) LimitPointer<'a>);

#[derive(Clone)]
pub(super) enum LimitPointer<'a> {
    /// With who shares it, so that the order of charging is known without a call.
    Borrowed(LimitScope, &'a (dyn ComposableLimit + 'a)),
    /// By value, because a key is made for one call.
    KeyParts {
        limiter: &'a (dyn ComposableKeyedLimit + 'a),
        key: KeyRate,
    },
    /// The same, shared.
    OwnedKeyParts {
        limiter: Arc<dyn ComposableKeyedLimit + 'a>,
        key: KeyRate,
    },
    /// Any other, shared.
    Owned(Arc<dyn ComposableLimit + Send + 'a>),
}

/// What there is of one, whoever owns it.
enum LimitView<'v> {
    Whole(&'v dyn ComposableLimit),
    KeyParts(&'v dyn ComposableKeyedLimit, &'v KeyRate),
}

/// Calls the same method on whichever limit it is.
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
        // Keys by their parts keep no track of estimates.
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

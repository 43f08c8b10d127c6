//! A level of a stack: a limit by name, and what a request costs it.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};

use super::Kind;
pub(super) use super::limit::Breadth;
use super::limit::{KeyedBook, Limit, Mark, Seen, Taken};
use crate::clock::Clock;
use crate::keyed::{Key, KeyParts};
use crate::{ConcurrencyKey, ConcurrencyLimiter, ExactKey, KeyedConcurrency, Limiter, TreeLevel};

/// One limit that a request meets, by name, and what the request costs it.
///
/// ```
/// use tollgate::{KeyedLimiter, Level, Limiter, Rate};
///
/// let tenants = KeyedLimiter::new(Rate::per_second(100), 1_000);
/// let service = Limiter::new(Rate::per_second(10_000));
/// let levels = [
///     Level::new("tenant", tenants.key("acme")).cost(5),
///     Level::new("service", &service),
/// ];
/// assert_eq!(levels[0].name(), "tenant");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Level<'a> {
    pub(super) name: &'a str,
    pub(super) cost: u64,
    /// Whether the cost is an estimate, which a hold settles.
    pub(super) estimated: bool,
    pub(super) limit: AnyLimit<'a>,
}

impl<'a> Level<'a> {
    /// A limit at a cost of 1: a `&Limiter`, a [`Key`] of a `KeyedLimiter`, a reference to a key of
    /// another keyed limiter or of a quota, a `&Arc<ConcurrencyLimiter>`, or a reference to an owned
    /// key of a `KeyedConcurrency`. Slots are shared (`Arc`), because who holds one may outlive the
    /// call.
    #[inline]
    pub fn new(name: &'a str, limit: impl Into<AnyLimit<'a>>) -> Self {
        Self {
            name,
            cost: 1,
            estimated: false,
            limit: limit.into(),
        }
    }

    /// What the request costs at this level.
    #[must_use]
    #[inline]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What the request is thought to cost at this level; [`Hold::settle`](super::Hold::settle)
    /// tells what it did cost.
    #[must_use]
    pub const fn estimate(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.estimated = true;
        self
    }

    /// What people call it.
    pub const fn name(&self) -> &'a str {
        self.name
    }
}

/// A limit of any kind, as a [`Level`] takes it. Made by `into()` from what [`Level::new`] lists.
#[derive(Clone, Copy)]
pub struct AnyLimit<'a>(Inner<'a>);

#[derive(Clone, Copy)]
enum Inner<'a> {
    Key(&'a (dyn Limit + 'a)),
    Shared(&'a (dyn Limit + 'a)),
    Slots(&'a (dyn Limit + 'a)),
    /// By value, because a key is made for one call.
    KeyParts {
        limiter: &'a (dyn KeyedBook + 'a),
        key: KeyParts,
    },
}

/// Calls the same method on whichever limit it is.
macro_rules! each {
    ($self:expr, $method:ident($($argument:expr),*)) => {
        match &$self.0 {
            Inner::Key(limit) | Inner::Shared(limit) | Inner::Slots(limit) => {
                limit.$method($($argument),*)
            }
            Inner::KeyParts { limiter, key } => limiter.$method(key, $($argument),*),
        }
    };
}

impl<'a> AnyLimit<'a> {
    #[inline]
    fn new(limit: &'a impl Limit) -> Self {
        Self(match limit.breadth() {
            Breadth::Key => Inner::Key(limit),
            Breadth::Shared => Inner::Shared(limit),
            Breadth::Slots => Inner::Slots(limit),
        })
    }

    pub(super) fn kind(&self) -> Kind {
        match self.0 {
            Inner::Key(limit) | Inner::Shared(limit) | Inner::Slots(limit) => limit.kind(),
            Inner::KeyParts { .. } => Kind::Rate,
        }
    }

    #[inline]
    pub(super) fn breadth(&self) -> Breadth {
        match self.0 {
            Inner::Key(_) | Inner::KeyParts { .. } => Breadth::Key,
            Inner::Shared(_) => Breadth::Shared,
            Inner::Slots(_) => Breadth::Slots,
        }
    }

    pub(super) fn now(&self, seen: &mut Seen) -> Timestamp {
        match self.0 {
            Inner::Key(limit) | Inner::Shared(limit) | Inner::Slots(limit) => limit.now(seen),
            Inner::KeyParts { limiter, .. } => limiter.now(seen),
        }
    }

    #[inline]
    pub(super) fn prefetch(&self) {
        if let Inner::KeyParts { limiter, key } = self.0 {
            limiter.prefetch(&key);
        }
    }

    #[inline]
    pub(super) fn fits(&self, seen: &mut Seen, cost: u64) -> bool {
        each!(self, fits(seen, cost))
    }

    pub(super) fn look(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, look(now, cost))
    }

    pub(super) fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, ask(now, cost))
    }

    #[inline]
    pub(super) fn charge(&self, seen: &mut Seen, cost: u64) -> Option<Mark> {
        each!(self, charge(seen, cost))
    }

    pub(super) fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        each!(self, take(now, cost))
    }

    pub(super) fn put_back(&self, now: Timestamp, taken: Taken) {
        each!(self, put_back(now, taken));
    }

    pub(super) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<Taken, Decision> {
        match self.0 {
            Inner::Key(limit) | Inner::Shared(limit) | Inner::Slots(limit) => {
                limit.hold(now, cost, until)
            }
            Inner::KeyParts { limiter, key } => limiter.take(&key, now, cost),
        }
    }

    pub(super) fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        each!(self, settle(now, taken, spent));
    }
}

impl fmt::Debug for AnyLimit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Inner::Key(limit) | Inner::Shared(limit) | Inner::Slots(limit) => limit.fmt(f),
            Inner::KeyParts { .. } => f.write_str("Key"),
        }
    }
}

impl<'a, C: Clock> From<&'a Limiter<C>> for AnyLimit<'a> {
    #[inline]
    fn from(limiter: &'a Limiter<C>) -> Self {
        Self::new(limiter)
    }
}

impl<'a, C: Clock + 'static> From<&'a Arc<ConcurrencyLimiter<C>>> for AnyLimit<'a> {
    fn from(limiter: &'a Arc<ConcurrencyLimiter<C>>) -> Self {
        Self::new(limiter)
    }
}

impl<'a, C: Clock> From<Key<'a, C>> for AnyLimit<'a> {
    #[inline]
    fn from(key: Key<'a, C>) -> Self {
        let (limiter, key) = key.parts();
        Self(Inner::KeyParts { limiter, key })
    }
}

impl<'a, K, Q, C> From<&'a ExactKey<'a, K, Q, C>> for AnyLimit<'a>
where
    K: Borrow<Q> + Send,
    Q: Eq + ToOwned<Owned = K> + Sync + ?Sized,
    C: Clock,
{
    fn from(key: &'a ExactKey<'a, K, Q, C>) -> Self {
        Self::new(key)
    }
}

impl<'a, K, Q, C> From<&'a ConcurrencyKey<'a, Arc<KeyedConcurrency<K, C>>, Q>> for AnyLimit<'a>
where
    K: Borrow<Q> + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + fmt::Debug + Sync + ?Sized,
    C: Clock + 'static,
{
    fn from(key: &'a ConcurrencyKey<'a, Arc<KeyedConcurrency<K, C>>, Q>) -> Self {
        Self::new(key)
    }
}

#[cfg(feature = "quota")]
impl<'a, C: Clock> From<&'a crate::quota::QuotaKey<'a, C>> for AnyLimit<'a> {
    fn from(key: &'a crate::quota::QuotaKey<'a, C>) -> Self {
        Self::new(key)
    }
}

impl<'a, C: Clock> From<&'a TreeLevel<'a, C>> for AnyLimit<'a> {
    fn from(leaf: &'a TreeLevel<'a, C>) -> Self {
        Self::new(leaf)
    }
}

//! Who says which requests have room: a limiter, or what divides one by classes or shares.

use std::fmt;
use std::sync::Arc;

use http::Request;
use tollgate::concurrency::{NoPermit, Permit, PermitHome};
use tollgate::{Clock, ConcurrencyLimiter};
use tollgate_adaptive::shed::{Criticality, Partitions, Share, Shedder};

/// Gives requests with bodies `I` a permit, or not: a [`ConcurrencyLimiter`], or what divides one ([`By`]).
///
/// ```
/// use std::sync::Arc;
/// use http::Request;
/// use tollgate::ConcurrencyLimiter;
/// use tollgate::concurrency::{NoPermit, Permit};
/// use tollgate_tower::{Admits, ShedLayer};
///
/// /// Uploads take the room of ten.
/// #[derive(Clone)]
/// struct ByWeight(Arc<ConcurrencyLimiter>);
///
/// impl<I> Admits<I> for ByWeight {
///     type Home = Arc<ConcurrencyLimiter>;
///
///     fn admit(&self, request: &Request<I>) -> Result<Permit<Self::Home>, NoPermit> {
///         let weight = if request.method() == "PUT" { 10 } else { 1 };
///         self.0.try_acquire_owned_n(weight)
///     }
/// }
///
/// let layer = ShedLayer::by(ByWeight(Arc::new(ConcurrencyLimiter::new(100))));
/// # let _ = layer;
/// ```
pub trait Admits<I> {
    /// Who gives the permits.
    type Home: PermitHome;

    /// A permit now, or why not.
    ///
    /// # Errors
    /// [`NoPermit`]: nothing was taken.
    fn admit(&self, request: &Request<I>) -> Result<Permit<Self::Home>, NoPermit>;
}

/// A limit that is divided, and what of a request says which part it is of: see
/// [`ShedLayer::by_class`](crate::ShedLayer::by_class) and [`by_share`](crate::ShedLayer::by_share).
#[derive(Clone)]
pub struct By<T, F> {
    pub(super) limit: T,
    pub(super) by: F,
}

impl<I, C: Clock> Admits<I> for Arc<ConcurrencyLimiter<C>> {
    type Home = Self;

    fn admit(&self, _: &Request<I>) -> Result<Permit<Self>, NoPermit> {
        self.try_acquire_owned()
    }
}

impl<I, C, F> Admits<I> for By<Arc<Shedder<C>>, F>
where
    C: Clock,
    F: Fn(&Request<I>) -> Criticality,
{
    type Home = Arc<ConcurrencyLimiter<C>>;

    fn admit(&self, request: &Request<I>) -> Result<Permit<Self::Home>, NoPermit> {
        self.limit.try_acquire_owned((self.by)(request))
    }
}

impl<I, C, F> Admits<I> for By<Arc<Partitions<C>>, F>
where
    C: Clock,
    F: Fn(&Request<I>) -> &str,
{
    type Home = Share<Arc<ConcurrencyLimiter<C>>>;

    fn admit(&self, request: &Request<I>) -> Result<Permit<Self::Home>, NoPermit> {
        self.limit.try_acquire_owned((self.by)(request))
    }
}

impl<T: fmt::Debug, F> fmt::Debug for By<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

//! The layer, and the service that it makes of another.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate::{Clock, Rate};
use tollgate_engine::Engine;
use tollgate_engine::backend::Memory;
use tollgate_http::guard::{Answers, Asked, ByPolicy, Guard, KeyOf, Limits, PerKey, keys};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::Body;
use crate::future::{self, ResponseFuture};
use crate::parts::Head;

/// Puts limits around services. Clones, and all services that it makes, count together.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_tower::{RateLimitLayer, client::Trust, keys};
///
/// // By the client's address, behind a load balancer of your own:
/// let trust = Trust::proxies(["10.0.0.0/8".parse()?]);
/// let layer = RateLimitLayer::per_key(Rate::per_minute(100), keys::Address::new().behind(trust))
///     .exempt_probes();
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<L> {
    guard: Arc<Guard<Head, L>>,
}

/// A service behind limits.
pub struct RateLimit<S, L> {
    inner: S,
    guard: Arc<Guard<Head, L>>,
}

impl RateLimitLayer<PerKey<keys::Address>> {
    /// Each address that connects has this rate.
    ///
    /// # Panics
    /// If the rate can't be kept (its burst takes more than two years): see [`PerKey::new`] for an error in place of that.
    pub fn per_client(rate: Rate) -> Self {
        Self::per_key(rate, keys::Address::new())
    }
}

impl<K: KeyOf<Head>> RateLimitLayer<PerKey<K>> {
    /// Each key has this rate.
    ///
    /// # Panics
    /// As [`per_client`](RateLimitLayer::per_client).
    pub fn per_key(rate: Rate, key: K) -> Self {
        match PerKey::new(rate, key) {
            Ok(limits) => Self::new(limits),
            Err(error) => panic!("{error}"),
        }
    }
}

impl<C: Clock + 'static, W: Clock + 'static> RateLimitLayer<ByPolicy<Memory<C, W>>> {
    /// The rules of a policy decide, and count in this process. For a store say
    /// `RateLimitLayer::new(ByPolicy::new(engine))`.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Policy};
    /// use tollgate_tower::RateLimitLayer;
    ///
    /// let text = "limits: [{name: logins, match: {path: /login}, key: ip, rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let layer = RateLimitLayer::by_policy(engine);
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_policy(engine: impl Into<Arc<Engine<Memory<C, W>>>>) -> Self {
        Self::new(ByPolicy::in_memory(engine))
    }
}

impl<L: Limits<Head>> RateLimitLayer<L> {
    /// These limits are asked about every request.
    pub fn new(limits: L) -> Self {
        Self {
            guard: Arc::new(Guard::new(limits)),
        }
    }

    /// How clients are told.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_tower::{Answers, Dialect, RateLimitLayer};
    ///
    /// let github = Answers::new().dialects([Dialect::Github]);
    /// let layer = RateLimitLayer::per_client(Rate::per_second(10)).answers(github);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn answers(self, answers: Answers) -> Self {
        self.change(|guard| guard.set_answers(answers))
    }

    /// No limit is for requests like this.
    #[must_use]
    pub fn exempt(self, is_exempt: impl Fn(&Head) -> bool + Send + Sync + 'static) -> Self {
        self.change(|guard| guard.exempt(is_exempt))
    }

    /// No limit is for GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    #[must_use]
    pub fn exempt_probes(self) -> Self {
        self.change(Guard::exempt_probes)
    }

    /// # Panics
    /// If it was cloned before, or put around a service: what is said of it is said before that.
    fn change(mut self, change: impl FnOnce(&mut Guard<Head, L>)) -> Self {
        let Some(guard) = Arc::get_mut(&mut self.guard) else {
            panic!("a layer is set up before it is cloned or put around a service");
        };
        change(guard);
        self
    }
}

impl<L> Clone for RateLimitLayer<L> {
    fn clone(&self) -> Self {
        Self {
            guard: Arc::clone(&self.guard),
        }
    }
}

impl<S, L> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> RateLimit<S, L> {
        RateLimit {
            inner,
            guard: Arc::clone(&self.guard),
        }
    }
}

impl<S: Clone, L> Clone for RateLimit<S, L> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            guard: Arc::clone(&self.guard),
        }
    }
}

impl<S, L, I, O> Service<Request<I>> for RateLimit<S, L>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    L: Limits<Head>,
    I: Send + 'static,
{
    type Response = Response<Body<O, L::Held>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, O, S::Error, L::Held>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<I>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let head = Head(parts);
        match self.guard.ask(&head) {
            Asked::Now(admission) => ResponseFuture::by(admission, || {
                self.inner.call(Request::from_parts(head.0, body))
            }),
            Asked::Later(question) => {
                // The service that is ready is called later; one that may not be takes its place.
                let fresh = self.inner.clone();
                let mut ready = std::mem::replace(&mut self.inner, fresh);
                let guard = Arc::clone(&self.guard);
                ResponseFuture::later(async move {
                    let admission = guard.answer(question).await;
                    future::by(admission, || ready.call(Request::from_parts(head.0, body))).await
                })
            }
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for RateLimitLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("guard", &self.guard)
            .finish()
    }
}

impl<S, L: fmt::Debug> fmt::Debug for RateLimit<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

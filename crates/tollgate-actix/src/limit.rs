//! The middleware, before it wraps an app.

use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};
use tollgate::{Clock, Rate};
use tollgate_engine::Engine;
use tollgate_engine::backend::Memory;
use tollgate_http::guard::{
    ConcurrencyLimit, CountedResponses, KeyExtractor, PolicyLimits, RatePerKey, RequestLimiter,
    RequestLimits, ResponseFormat, SettlingRatePerKey, keys,
};

use crate::body::Body;
use crate::head::RequestHead;
use crate::service::RateLimitService;

/// A middleware that limits the requests to apps. Clones share their counters.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_actix::{RateLimit, client::Trust, keys};
///
/// // By the client address, behind a load balancer of your own:
/// let trust = Trust::proxies(["10.0.0.0/8".parse()?]);
/// let limit = RateLimit::per_key(Rate::per_minute(100), keys::ClientAddress::new().trust(trust))
///     .exempt_probes();
/// # let _ = limit;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[derive_where::derive_where(Clone)]
#[must_use]
pub struct RateLimit<L> {
    guard: Arc<RequestLimiter<RequestHead, L>>,
}

impl RateLimit<RatePerKey<keys::ClientAddress>> {
    /// Limits each client address to this rate.
    ///
    /// # Panics
    /// If the rate is invalid (its burst takes more than two years to refill). [`RatePerKey::new`] returns an error
    /// instead.
    pub fn per_client(rate: Rate) -> Self {
        Self::per_key(rate, keys::ClientAddress::new())
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimit<RatePerKey<K>> {
    /// Limits each key to this rate.
    ///
    /// # Panics
    /// As [`per_client`](RateLimit::per_client).
    pub fn per_key(rate: Rate, key: K) -> Self {
        Self::new(RatePerKey::new(rate, key).unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<C: Clock + 'static, W: Clock + 'static> RateLimit<PolicyLimits<Memory<C, W>>> {
    /// Applies the rules of a policy, with counters in this process.
    ///
    /// For a store use `RateLimit::new(PolicyLimits::new(engine))`; behind proxies see
    /// [`PolicyLimits::client_address`]. Keep an `Arc` of the engine to [reload](Engine::reload) the policy later.
    ///
    /// ```
    /// use tollgate_actix::RateLimit;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Policy};
    ///
    /// let text = "limits: [{name: logins, match: {path: /login}, key: ip, rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let limit = RateLimit::from_policy(engine);
    /// # let _ = limit;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_policy(engine: impl Into<Arc<Engine<Memory<C, W>>>>) -> Self {
        Self::new(PolicyLimits::in_memory(engine))
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimit<SettlingRatePerKey<K>> {
    /// Limits the failures of each key. Only responses that are [failures](CountedResponses::Failures) count:
    /// statuses from 400 on. Those are wrong passwords, but also 404 and 500, so put this middleware on the login
    /// route alone.
    ///
    /// To count only some statuses, use [`CountedResponses::By`] with a [`SettlingRatePerKey`]. A service that
    /// responds to a wrong password with 200 or a redirect isn't limited.
    ///
    /// Each request reserves its cost until its response, so ten thousand concurrent attempts get no further than
    /// sequential ones.
    ///
    /// # Panics
    /// As [`per_client`](RateLimit::per_client).
    pub fn limit_failures(rate: Rate, key: K) -> Self {
        let limits = SettlingRatePerKey::new(rate, key).unwrap_or_else(|error| panic!("{error}"));
        Self::from_limiter(
            RequestLimiter::new(limits.named("failures"))
                .count_responses(CountedResponses::Failures),
        )
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimit<ConcurrencyLimit<K>> {
    /// Limits the concurrent requests of each key. A request counts until the body of its response has ended.
    pub fn concurrency(limit: u32, key: K) -> Self {
        Self::new(ConcurrencyLimit::new(limit, key))
    }
}

impl<L: RequestLimits<RequestHead>> RateLimit<L> {
    /// Checks every request by these limits.
    pub fn new(limits: L) -> Self {
        Self::from_limiter(RequestLimiter::new(limits))
    }

    /// Checks every request by this request limiter.
    pub fn from_limiter(guard: RequestLimiter<RequestHead, L>) -> Self {
        Self {
            guard: Arc::new(guard),
        }
    }

    /// Sets the format of responses.
    pub fn response_format(self, answers: ResponseFormat) -> Self {
        self.configure(|guard| guard.response_format(answers))
    }

    /// Exempts requests for which `is_exempt` is true from all limits.
    pub fn exempt(self, is_exempt: impl Fn(&RequestHead) -> bool + Send + Sync + 'static) -> Self {
        self.configure(|guard| guard.exempt(is_exempt))
    }

    /// Exempts GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    pub fn exempt_probes(self) -> Self {
        self.configure(RequestLimiter::exempt_probes)
    }

    /// Changes any setting of the [`RequestLimiter`]. Earlier clones and apps keep their settings, and share their
    /// counters with the new middleware.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_actix::{RateLimit, Request};
    ///
    /// let limit = RateLimit::per_client(Rate::per_second(10))
    ///     .configure(|guard| guard.cost(|head| if head.path() == "/search" { 5 } else { 1 }));
    /// # let _ = limit;
    /// ```
    pub fn configure(
        self,
        change: impl FnOnce(RequestLimiter<RequestHead, L>) -> RequestLimiter<RequestHead, L>,
    ) -> Self {
        Self {
            guard: RequestLimiter::configure(self.guard, change),
        }
    }
}

impl<S, B, L> Transform<S, ServiceRequest> for RateLimit<L>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    S::Future: 'static,
    B: MessageBody + 'static,
    L: RequestLimits<RequestHead>,
{
    type Response = ServiceResponse<Body<B, L::Held>>;
    type Error = Error;
    type Transform = RateLimitService<S, L>;
    type InitError = ();
    type Future = Ready<Result<RateLimitService<S, L>, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(RateLimitService::new(
            Rc::new(service),
            Arc::clone(&self.guard),
        )))
    }
}

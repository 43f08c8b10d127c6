//! The middleware, before it is put around an app.

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

/// Puts limits around apps. Clones count together.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_actix::{RateLimit, client::Trust, keys};
///
/// // By the client's address, behind a load balancer of your own:
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
    /// Each address that connects has this rate.
    ///
    /// # Panics
    /// If the rate can't be kept (its burst takes more than two years): see [`RatePerKey::new`] for an error in place of that.
    pub fn per_client(rate: Rate) -> Self {
        Self::per_key(rate, keys::ClientAddress::new())
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimit<RatePerKey<K>> {
    /// Each key has this rate.
    ///
    /// # Panics
    /// As [`per_client`](RateLimit::per_client).
    pub fn per_key(rate: Rate, key: K) -> Self {
        Self::new(RatePerKey::new(rate, key).unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<C: Clock + 'static, W: Clock + 'static> RateLimit<PolicyLimits<Memory<C, W>>> {
    /// The rules of a policy decide, and count in this process. For a store say `RateLimit::new(PolicyLimits::new(engine))`, behind
    /// proxies [`PolicyLimits::address`]. Keep an `Arc` of the engine to [reload](Engine::reload) the policy later.
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
    /// Each key may fail so often: only answers that are [failures](Counts::Failures) count, which are those from 400 on: wrong
    /// passwords, but also 404 and 500. So put it on the route of the login alone, and if only some statuses are to count, say so
    /// by [`Counts::By`] on an [`SettlingRatePerKey`]. What answers a wrong password with 200 or a redirect isn't counted.
    /// Until it is answered each request holds its place, so ten thousand at once get no further than one by one.
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
    /// So many requests of each key may be under way at once, until the bodies of their answers have ended.
    pub fn concurrency(limit: u32, key: K) -> Self {
        Self::new(ConcurrencyLimit::new(limit, key))
    }
}

impl<L: RequestLimits<RequestHead>> RateLimit<L> {
    /// These limits are asked about every request.
    pub fn new(limits: L) -> Self {
        Self::from_limiter(RequestLimiter::new(limits))
    }

    /// This guard is asked about every request.
    pub fn from_limiter(guard: RequestLimiter<RequestHead, L>) -> Self {
        Self {
            guard: Arc::new(guard),
        }
    }

    /// How clients are told.
    pub fn response_format(self, answers: ResponseFormat) -> Self {
        self.configure(|guard| guard.response_format(answers))
    }

    /// No limit is for requests like this.
    pub fn exempt(self, is_exempt: impl Fn(&RequestHead) -> bool + Send + Sync + 'static) -> Self {
        self.configure(|guard| guard.exempt(is_exempt))
    }

    /// No limit is for GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    pub fn exempt_probes(self) -> Self {
        self.configure(RequestLimiter::exempt_probes)
    }

    /// All else that can be chosen of a [`RequestLimiter`]. Clones that were made before, and apps, stay as they are, and count together with
    /// the new one.
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

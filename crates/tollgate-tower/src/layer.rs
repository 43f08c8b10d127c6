//! The rate-limit layer and its service.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use derive_more::Debug;
use http::{Request, Response};
use tollgate::{Clock, Rate};
use tollgate_engine::Engine;
use tollgate_engine::backend::Memory;
use tollgate_http::guard::{
    Admission, AskOutcome, AskedAdmission, ConcurrencyLimit, CountedResponses, HoldRequest,
    KeyExtractor, Outdated, PolicyLimits, RatePerKey, RequestLimiter, RequestLimits, RequestPermit,
    ResponseFormat, SettlingRatePerKey, UsageReporter, keys,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{BodyMode, KeepBody, WrapBody};
use crate::future::{ResponseFuture, State, denial_response};
use crate::head::RequestHead;

/// A layer that limits the requests to services. Its clones, and all services that it wraps, share their counters.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_tower::{RateLimitLayer, client::Trust, keys};
///
/// // By the client address, behind a load balancer of your own:
/// let trust = Trust::proxies(["10.0.0.0/8".parse()?]);
/// let layer = RateLimitLayer::per_key(Rate::per_minute(100), keys::ClientAddress::new().trust(trust))
///     .exempt_probes();
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[derive_where::derive_where(Clone)]
#[must_use]
pub struct RateLimitLayer<L, M = KeepBody> {
    guard: Arc<RequestLimiter<RequestHead, L>>,
    #[debug(skip)]
    bodies: PhantomData<fn() -> M>,
}

/// A service behind a [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<S, L, M = KeepBody> {
    #[debug(skip)]
    inner: S,
    /// Whether the inner service was made ready for the next call.
    #[debug(skip)]
    is_ready: bool,
    guard: Arc<RequestLimiter<RequestHead, L>>,
    #[debug(skip)]
    bodies: PhantomData<fn() -> M>,
}

impl RateLimitLayer<RatePerKey<keys::ClientAddress>> {
    /// Limits each client address to this rate.
    ///
    /// # Panics
    /// If the rate is invalid (its burst takes more than two years to refill). [`RatePerKey::new`] returns an error
    /// instead.
    pub fn per_client(rate: Rate) -> Self {
        Self::per_key(rate, keys::ClientAddress::new())
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimitLayer<RatePerKey<K>> {
    /// Limits each key to this rate.
    ///
    /// # Panics
    /// As [`per_client`](RateLimitLayer::per_client).
    pub fn per_key(rate: Rate, key: K) -> Self {
        Self::new(RatePerKey::new(rate, key).unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<C: Clock + 'static, W: Clock + 'static> RateLimitLayer<PolicyLimits<Memory<C, W>>> {
    /// Applies the rules of a policy, with counters in this process.
    ///
    /// For a store use `RateLimitLayer::new(PolicyLimits::new(engine))`; behind proxies see
    /// [`PolicyLimits::client_address`]. Keep an `Arc` of the engine to [reload](Engine::reload) the policy later.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Policy};
    /// use tollgate_tower::RateLimitLayer;
    ///
    /// let text = "limits: [{name: logins, match: {path: /login}, key: ip, rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let layer = RateLimitLayer::from_policy(engine);
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_policy(engine: impl Into<Arc<Engine<Memory<C, W>>>>) -> Self {
        Self::new(PolicyLimits::in_memory(engine))
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimitLayer<SettlingRatePerKey<K>> {
    /// Limits the failures of each key. Only responses that are [failures](CountedResponses::Failures) count:
    /// statuses from 400 on. Those are wrong passwords, but also 404 and 500, so put this layer on the login route
    /// alone.
    ///
    /// To count only some statuses, use [`CountedResponses::By`] with a [`SettlingRatePerKey`]. A service that
    /// responds to a wrong password with 200 or a redirect isn't limited.
    ///
    /// Each request reserves its cost until its response, so ten thousand concurrent attempts get no further than
    /// sequential ones.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_tower::{RateLimitLayer, keys};
    ///
    /// let logins = RateLimitLayer::limit_failures(Rate::per_minute(5), keys::ClientAddress::new());
    /// # let _ = logins;
    /// ```
    ///
    /// # Panics
    /// As [`per_client`](RateLimitLayer::per_client).
    pub fn limit_failures(rate: Rate, key: K) -> Self {
        let limits = SettlingRatePerKey::new(rate, key).unwrap_or_else(|error| panic!("{error}"));
        Self::from_limiter(
            RequestLimiter::new(limits.named("failures"))
                .count_responses(CountedResponses::Failures),
        )
    }
}

impl<K: KeyExtractor<RequestHead>> RateLimitLayer<ConcurrencyLimit<K>> {
    /// Limits the concurrent requests of each key. A request counts until the body of its response has ended.
    ///
    /// ```
    /// use tollgate_tower::{RateLimitLayer, keys};
    ///
    /// // 20 for each client, and 1,000 for the whole service, which responds 503 above that:
    /// let each = RateLimitLayer::concurrency(20, keys::ClientAddress::new());
    /// let all = RateLimitLayer::concurrency(1_000, keys::Global);
    /// # let _ = (each, all);
    /// ```
    pub fn concurrency(limit: u32, key: K) -> Self {
        Self::new(ConcurrencyLimit::new(limit, key))
    }
}

impl<L: RequestLimits<RequestHead>> RateLimitLayer<L> {
    /// Checks every request by these limits.
    pub fn new(limits: L) -> Self {
        Self::from_limiter(RequestLimiter::new(limits))
    }

    /// Checks every request by this request limiter.
    pub fn from_limiter(guard: RequestLimiter<RequestHead, L>) -> Self {
        Self {
            guard: Arc::new(guard),
            bodies: PhantomData,
        }
    }

    /// Wraps response bodies, for services whose body type isn't axum's or tonic's (a
    /// [`FromBytesBody`](crate::FromBytesBody)). The response body is then a [`HoldingBody`](crate::HoldingBody)
    /// around the service's own.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http_body_util::Full;
    /// use tollgate::Rate;
    /// use tollgate_tower::RateLimitLayer;
    /// use tower::{Layer, ServiceExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hello = tower::service_fn(|_: http::Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(bytes::Bytes::from("hello"))))
    /// });
    /// let limited = RateLimitLayer::per_client(Rate::per_second(10)).wrap_body().layer(hello);
    /// let mut request = http::Request::new(());
    /// // axum sets the address of the connection by itself.
    /// request.extensions_mut().insert("127.0.0.1:1".parse::<SocketAddr>()?);
    /// let answer = limited.oneshot(request).await?;
    /// assert_eq!(answer.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wrap_body(self) -> RateLimitLayer<L, WrapBody> {
        RateLimitLayer {
            guard: self.guard,
            bodies: PhantomData,
        }
    }
}

impl<L: RequestLimits<RequestHead>, M> RateLimitLayer<L, M> {
    /// Sets the format of responses.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_tower::{ResponseFormat, HeaderDialect, RateLimitLayer};
    ///
    /// let github = ResponseFormat::new().dialects([HeaderDialect::XRateLimit]);
    /// let layer = RateLimitLayer::per_client(Rate::per_second(10)).response_format(github);
    /// # let _ = layer;
    /// ```
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

    /// Changes any setting of the [`RequestLimiter`]. Earlier clones and services keep their settings, and share
    /// their counters with the new layer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rate;
    /// use tollgate_tower::{RateLimitLayer, Tarpit, keys};
    ///
    /// let layer = RateLimitLayer::per_client(Rate::per_second(10)).configure(|guard| {
    ///     guard
    ///         .cost(|request| if request.uri().path() == "/search" { 5 } else { 1 })
    ///         .tarpit(Tarpit::new(Duration::from_secs(2), 100), keys::ClientAddress::new())
    /// });
    /// # let _ = layer;
    /// ```
    pub fn configure(
        self,
        change: impl FnOnce(RequestLimiter<RequestHead, L>) -> RequestLimiter<RequestHead, L>,
    ) -> Self {
        Self {
            guard: RequestLimiter::configure(self.guard, change),
            bodies: PhantomData,
        }
    }
}

impl<S, L, M> Layer<S> for RateLimitLayer<L, M> {
    type Service = RateLimit<S, L, M>;

    fn layer(&self, inner: S) -> RateLimit<S, L, M> {
        RateLimit {
            inner,
            is_ready: false,
            guard: Arc::clone(&self.guard),
            bodies: PhantomData,
        }
    }
}

impl<S: Clone, L, M> Clone for RateLimit<S, L, M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            // Readiness belongs to one instance of the service, so a clone isn't ready.
            is_ready: false,
            guard: Arc::clone(&self.guard),
            bodies: PhantomData,
        }
    }
}

impl<S, L, M, I, O> Service<Request<I>> for RateLimit<S, L, M>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    L: RequestLimits<RequestHead>,
    M: BodyMode<O, L::Held>,
    I: Send + 'static,
{
    type Response = Response<M::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, M::Body, S::Error, L::Held, M>;

    /// Always ready if decisions may take time. The inner service is then made ready in the call, so that a request
    /// in a queue doesn't hold a permit of the inner service.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.is_ready || self.guard.takes_time() {
            return Poll::Ready(Ok(()));
        }
        let ready = self.inner.poll_ready(context);
        self.is_ready = matches!(ready, Poll::Ready(Ok(())));
        ready
    }

    #[inline(always)]
    fn call(&mut self, request: Request<I>) -> Self::Future {
        let fields = match self.guard.glance(&request) {
            Ok(fields) => fields,
            Err(asked) => return self.call_slow(request, asked),
        };
        // Not ready: `poll_ready` returned early because decisions may take time. So the service is made ready first.
        if !std::mem::take(&mut self.is_ready) {
            let passed = Admission::Passed(RequestPermit::with_fields(fields));
            return self.call_slow(request, AskOutcome::Now(passed));
        }
        let future = self.inner.call(request);
        if fields.is_empty() {
            ResponseFuture::of(State::Plain { future })
        } else {
            let ticket = Some(RequestPermit::with_fields(fields));
            ResponseFuture::of(State::Ticketed { future, ticket })
        }
    }
}

impl<S, L: RequestLimits<RequestHead>, M> RateLimit<S, L, M> {
    #[inline(never)]
    fn call_slow<I, O>(
        &mut self,
        mut request: Request<I>,
        asked: AskedAdmission<L::Held, L::Question>,
    ) -> ResponseFuture<S::Future, M::Body, S::Error, L::Held, M>
    where
        S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
        S::Future: Send,
        M: BodyMode<O, L::Held>,
        I: Send + 'static,
    {
        let later = match asked {
            AskOutcome::Later(later) => later,
            AskOutcome::Now(admission) => {
                return match self.guard.admit(&request, admission) {
                    Err(refused) => {
                        let response = Some(denial_response(refused, M::refusal));
                        ResponseFuture::of(State::Refused { response })
                    }
                    Ok(ticket) if !std::mem::take(&mut self.is_ready) => {
                        let (inner, guard) = (self.inner.clone(), Arc::clone(&self.guard));
                        ResponseFuture::later(async move {
                            call_when_ready::<S, L, M, I, O>(inner, guard, request, ticket).await
                        })
                    }
                    Ok(ticket) if ticket.is_noop() => {
                        let future = self.inner.call(request);
                        ResponseFuture::of(State::Plain { future })
                    }
                    Ok(mut ticket) => {
                        attach_usage(&mut ticket, &mut request);
                        let (future, ticket) = (self.inner.call(request), Some(ticket));
                        ResponseFuture::of(State::Ticketed { future, ticket })
                    }
                };
            }
        };
        let (inner, guard) = (self.take_inner(), Arc::clone(&self.guard));
        ResponseFuture::later(async move {
            let mut later = later;
            // The policy may be replaced while the request waits: then the question lacks facts, so ask again.
            let admission = loop {
                match guard.answer(later).await {
                    Ok(admission) => break admission,
                    Err(Outdated) => match guard.ask(&request) {
                        AskOutcome::Now(admission) => break admission,
                        AskOutcome::Later(again) => later = again,
                    },
                }
            };
            let admitted = guard.admit(&request, admission);
            match admitted {
                Ok(ticket) => call_when_ready::<S, L, M, I, O>(inner, guard, request, ticket).await,
                Err(refused) => Ok(denial_response(refused, M::refusal)),
            }
        })
    }

    /// The service for a call that takes time. A service that was already made ready is used itself: a clone might
    /// wait for the very permit that this one holds.
    fn take_inner(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        if std::mem::take(&mut self.is_ready) {
            std::mem::replace(&mut self.inner, clone)
        } else {
            clone
        }
    }
}

/// Makes the service ready, and calls it for an allowed request.
async fn call_when_ready<S, L, M, I, O>(
    mut inner: S,
    guard: Arc<RequestLimiter<RequestHead, L>>,
    mut request: Request<I>,
    mut ticket: RequestPermit<L::Held>,
) -> Result<Response<M::Body>, S::Error>
where
    S: Service<Request<I>, Response = Response<O>>,
    L: RequestLimits<RequestHead>,
    M: BodyMode<O, L::Held>,
    I: 'static,
{
    attach_usage(&mut ticket, &mut request);
    let mut waiter_permit = None;
    let is_ready = poll_fn(|context| {
        let is_ready = inner.poll_ready(context);
        if is_ready.is_ready() || waiter_permit.is_some() {
            return is_ready.map(Ok);
        }
        // Pending on the first poll: the request has to wait, so it needs a permit to do so.
        match guard.wait_for_service() {
            Ok(permit) => waiter_permit = Some(permit),
            Err(denial) => return Poll::Ready(Err(denial)),
        }
        Poll::Pending
    });
    match is_ready.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            ticket.failed();
            return Err(error);
        }
        Err(denial) => {
            ticket.failed();
            return Ok(denial_response(
                guard.denied_response(&request, &denial),
                M::refusal,
            ));
        }
    }
    // The request doesn't wait any more, so another one may, while this one is served.
    drop(waiter_permit);
    let (mut answer, mut ticket) = (pin!(inner.call(request)), Some(ticket));
    poll_fn(|context| M::ticketed(answer.as_mut().poll(context), &mut ticket)).await
}

/// Puts the usage reporter into the extensions of the request, for the service.
#[inline]
fn attach_usage<H: HoldRequest, I>(ticket: &mut RequestPermit<H>, request: &mut Request<I>) {
    let Some(usage) = ticket.usage() else { return };
    match request.extensions().get::<UsageReporter>() {
        Some(outer) => ticket.use_outer_usage(outer.clone()),
        None => {
            request.extensions_mut().insert(usage.clone());
        }
    }
}

//! A layer that limits concurrent requests and reports the outcome of each to the limit, so that adaptive limits can
//! learn. In front of a service, denials are 503; around a client, they are errors.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use derive_more::Debug;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode, Version};
use pin_project_lite::pin_project;
use tollgate::concurrency::{Permit, PermitDenied, PermitOutcome, PermitSource};
use tollgate::{Clock, ConcurrencyLimiter, Decision, Outcome};
use tollgate_adaptive::shed::{Criticality, LoadShedder, PartitionPermitSource, Partitions};
use tollgate_http::guard::{Denial, DeniedResponse, ending_of};
use tollgate_http::{DenyReason, grpc};
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::body::ConcurrencyBody;
use crate::client_layer::{LayeredService, ReadyCall, ending_of_error, status_of};

/// The retry delay of denials. The time until a permit is released is unknown, so it is the least that `Retry-After`
/// can state.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Limits concurrent requests by a [`ConcurrencyLimiter`](tollgate::ConcurrencyLimiter). Denied requests get 503
/// immediately, with a body of `application/problem+json`; denied gRPC calls are `UNAVAILABLE`.
///
/// An [adaptive](tollgate_adaptive) limit learns from each request: from the time between admission and the head of
/// the response, and from the outcome.
///
/// | result | outcome | reason |
/// |---|---|---|
/// | 502, 503, 504, or an error of the service | [dropped](PermitOutcome::Dropped) | a timeout, or an overload |
/// | 4xx, 500 and all other 5xx | [ignored](PermitOutcome::Ignored) | a bad request or a bug is no sign of capacity |
/// | all other responses | [success](PermitOutcome::Success) | the latency shows the load of the service |
/// | dropped before its response, or panicked | ignored | the outcome is unknown |
///
/// [`classify_status`](Self::classify_status) changes that. For gRPC, a `grpc-status` in the head counts as well; one
/// in the trailers is too late. A request holds its permit until the body of its response has ended or is dropped.
///
/// Put timeouts inside this layer. Put limits by client outside, so that requests that they deny take no permit.
///
/// ```
/// use std::sync::Arc;
/// use axum::{Router, routing::get};
/// use tollgate_adaptive::{Bounds, AdaptiveController, Little};
/// use tollgate_tower::ConcurrencyLimitLayer;
///
/// let controller = AdaptiveController::new(Little::new(Bounds::new(10.0, 200.0)?));
/// let limiter = Arc::new(controller.concurrency().build());
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(ConcurrencyLimitLayer::with_limiter(limiter));
/// # let _ = app;
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
///
/// Around a client, a denied call fails with [`PermitDenied`](tollgate::concurrency::PermitDenied), and nothing is
/// sent:
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use http::{Request, Response};
/// use tollgate::ConcurrencyLimiter;
/// use tollgate::concurrency::PermitDenied;
/// use tollgate_tower::ConcurrencyLimitLayer;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # let executor = tokio::runtime::Builder::new_current_thread().build()?;
/// # executor.block_on(async {
/// // Instead of a hyper client:
/// let client = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::from("hello"))) });
/// let limiter = Arc::new(ConcurrencyLimiter::new(1));
/// let layer = ConcurrencyLimitLayer::with_limiter(limiter).for_client();
/// let mut client = ServiceBuilder::new().layer(layer).service(client);
/// let first = client.call(Request::new(())).await?;
/// let error = client.call(Request::new(())).await.expect_err("the first has its body yet");
/// assert!(error.is::<PermitDenied>());
/// drop(first);
/// assert!(client.call(Request::new(())).await.is_ok());
/// # Ok::<(), tollgate_tower::BoxError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ConcurrencyLimitLayer<A> {
    name: Arc<str>,
    admits: A,
    /// None: the default of a service, or of a client.
    #[debug(skip)]
    ending_of: Option<fn(StatusCode) -> PermitOutcome>,
}

/// A [`ConcurrencyLimitLayer`] for outgoing calls: a denied call isn't sent, and fails with
/// [`PermitDenied`](tollgate::concurrency::PermitDenied).
///
/// Outcomes differ in two ways. 429 is dropped, as the server wants fewer calls. An error of an inner layer that
/// didn't make the call (an open circuit breaker, a paced host) is ignored.
#[derive(Clone, Debug)]
pub struct ClientConcurrencyLimitLayer<A>(ConcurrencyLimitLayer<A>);

impl<A> ConcurrencyLimitLayer<A> {
    /// Uses a limiter that others may share, or any other [`AcquirePermit`].
    pub fn with_limiter(admits: A) -> Self {
        Self {
            admits,
            ending_of: None,
            name: "requests-at-once".into(),
        }
    }

    /// Sets the outcome of a response with a status.
    pub fn classify_status(mut self, means: fn(StatusCode) -> PermitOutcome) -> Self {
        self.ending_of = Some(means);
        self
    }

    /// Sets the name of the limit in denials.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Converts the layer to one around a client.
    #[must_use]
    pub fn for_client(self) -> ClientConcurrencyLimitLayer<A> {
        ClientConcurrencyLimitLayer(self)
    }

    /// Acquires a permit and calls the service, or responds with `refuse`.
    fn admit_and_call<S, I, O, E>(
        &self,
        service: &S,
        request: Request<I>,
        mut means: EndingRules<E>,
        refuse: impl FnOnce(&Self, &Request<I>, BoxError) -> Answer<O, E, A::Home>,
    ) -> ConcurrencyLimitFuture<S, I, O, E, A::Home>
    where
        A: AcquirePermit<I>,
        S: Service<Request<I>, Response = Response<O>> + Clone,
    {
        let state = match self.admits.try_acquire(&request) {
            Ok(permit) => {
                means.answer = self.ending_of.unwrap_or(means.answer);
                State::Admitted {
                    call: ReadyCall::new(service.clone(), request),
                    permit: Some(permit),
                    means,
                }
            }
            Err(refused) => State::Refused {
                answer: Some(refuse(self, &request, refused.into())),
            },
        };
        ConcurrencyLimitFuture { state }
    }
}

impl<F, C: Clock> ConcurrencyLimitLayer<DividedLimit<Arc<LoadShedder<C>>, F>> {
    /// Sheds load by criticality: as the limit fills up, sheddable requests are denied first and critical ones last.
    ///
    /// Don't read the criticality from a field that clients can write, as every client would claim to be critical.
    /// Let an outer layer that knows the users set it, or use the route.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use axum::{Router, body::Body, routing::{get, post}};
    /// use http::Request;
    /// use tollgate::ConcurrencyLimiter;
    /// use tollgate_adaptive::shed::{Criticality, LoadShedder};
    /// use tollgate_tower::ConcurrencyLimitLayer;
    ///
    /// let shedder = Arc::new(LoadShedder::new(Arc::new(ConcurrencyLimiter::new(100))));
    /// let criticality = |request: &Request<Body>| match request.uri().path() {
    ///     "/pay" => Criticality::Critical,
    ///     "/report" => Criticality::Sheddable,
    ///     _ => request.extensions().get().copied().unwrap_or_default(),
    /// };
    /// let layer = ConcurrencyLimitLayer::by_criticality(shedder, criticality);
    /// let app: Router = Router::new()
    ///     .route("/pay", post(|| async { "paid" }))
    ///     .route("/report", get(|| async { "a report" }))
    ///     .layer(layer);
    /// # let _ = app;
    /// ```
    pub fn by_criticality<I>(shedder: Arc<LoadShedder<C>>, class_of: F) -> Self
    where
        F: Fn(&Request<I>) -> Criticality,
    {
        Self::with_limiter(DividedLimit {
            limit: shedder,
            by: class_of,
        })
    }
}

impl<F, C: Clock> ConcurrencyLimitLayer<DividedLimit<Arc<Partitions<C>>, F>> {
    /// Guarantees each partition its share of the limit: `name_of` returns the partition of a request.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use axum::body::Body;
    /// use http::Request;
    /// use tollgate::ConcurrencyLimiter;
    /// use tollgate_adaptive::shed::Partitions;
    /// use tollgate_tower::ConcurrencyLimitLayer;
    ///
    /// let limiter = Arc::new(ConcurrencyLimiter::new(100));
    /// let partitions = Arc::new(Partitions::new(limiter, &[("live", 90), ("batch", 10)]));
    /// let layer = ConcurrencyLimitLayer::by_partition(partitions, |request: &Request<Body>| {
    ///     if request.uri().path().starts_with("/batch/") { "batch" } else { "live" }
    /// });
    /// # let _ = layer;
    /// ```
    pub fn by_partition<I>(partitions: Arc<Partitions<C>>, name_of: F) -> Self
    where
        F: Fn(&Request<I>) -> &str,
    {
        Self::with_limiter(DividedLimit {
            limit: partitions,
            by: name_of,
        })
    }
}

/// The outcome of a response of a service, for the limit in front of it.
fn service_ending(status: StatusCode) -> PermitOutcome {
    ending_of(status.as_u16())
}

/// The outcome for a client: 429 means that the server wants fewer calls.
fn client_ending(status: StatusCode) -> PermitOutcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS => PermitOutcome::Dropped,
        other => service_ending(other),
    }
}

impl<S, A: Clone> Layer<S> for ConcurrencyLimitLayer<A> {
    type Service = LayeredService<S, Self>;

    fn layer(&self, inner: S) -> LayeredService<S, Self> {
        LayeredService::new(inner, self.clone())
    }
}

impl<S, A: Clone> Layer<S> for ClientConcurrencyLimitLayer<A> {
    type Service = LayeredService<S, Self>;

    fn layer(&self, inner: S) -> LayeredService<S, Self> {
        LayeredService::new(inner, self.clone())
    }
}

impl<S, I, O, A> Service<Request<I>> for LayeredService<S, ConcurrencyLimitLayer<A>>
where
    S: Service<Request<I>, Response = Response<O>> + Clone,
    O: http_body::Body,
    A: AcquirePermit<I>,
{
    type Response = Response<ConcurrencyBody<O, A::Home>>;
    type Error = S::Error;
    type Future = ConcurrencyLimitFuture<S, I, O, S::Error, A::Home>;

    /// Always ready: denials are immediate, and the call itself makes the service ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let means = EndingRules {
            answer: service_ending,
            error: |_| PermitOutcome::Dropped,
        };
        let refuse = |layer: &ConcurrencyLimitLayer<A>, request: &_, _| {
            Ok(denial_response(request, &layer.name))
        };
        self.layer
            .admit_and_call(&self.inner, request, means, refuse)
    }
}

impl<S, I, O, A> Service<Request<I>> for LayeredService<S, ClientConcurrencyLimitLayer<A>>
where
    S: Service<Request<I>, Response = Response<O>> + Clone,
    S::Error: Into<BoxError>,
    O: http_body::Body,
    A: AcquirePermit<I>,
{
    type Response = Response<ConcurrencyBody<O, A::Home>>;
    type Error = BoxError;
    type Future = ConcurrencyLimitFuture<S, I, O, BoxError, A::Home>;

    /// Always ready: the call itself makes the client ready, and only with a permit.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let means = EndingRules {
            answer: client_ending,
            error: ending_of_error,
        };
        let (layer, client) = (&self.layer.0, &self.inner);
        layer.admit_and_call(client, request, means, |_, _, error| Err(error))
    }
}

/// The response to a denied request.
#[cold]
fn denial_response<I, O, H: PermitSource>(
    request: &Request<I>,
    limit: &str,
) -> Response<ConcurrencyBody<O, H>> {
    let decision = Decision::new(Outcome::Denied, 0, 0, RETRY_AFTER, RETRY_AFTER);
    let denial = Denial::new(DenyReason::Shed, limit, decision);
    let refused = if is_grpc(request) {
        DeniedResponse::grpc(&denial)
    } else {
        DeniedResponse::http(&denial)
    };
    crate::future::denial_response(refused, ConcurrencyBody::of_refusal)
}

/// Whether a request is a gRPC call: POST over HTTP/2. Any other request with that content type gets an HTTP status.
fn is_grpc<I>(request: &Request<I>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.method() == Method::POST
        && request.version() >= Version::HTTP_2
        && content_type.is_some_and(|value| grpc::is_call(value.as_bytes()))
}

/// Acquires permits for requests with the body type `I`: a [`ConcurrencyLimiter`], or a [`DividedLimit`].
///
/// ```
/// use std::sync::Arc;
/// use http::Request;
/// use tollgate::ConcurrencyLimiter;
/// use tollgate::concurrency::{PermitDenied, Permit};
/// use tollgate_tower::{AcquirePermit, ConcurrencyLimitLayer};
///
/// /// Uploads take ten permits.
/// #[derive(Clone)]
/// struct ByWeight(Arc<ConcurrencyLimiter>);
///
/// impl<I> AcquirePermit<I> for ByWeight {
///     type Home = Arc<ConcurrencyLimiter>;
///
///     fn try_acquire(&self, request: &Request<I>) -> Result<Permit<Self::Home>, PermitDenied> {
///         let weight = if request.method() == "PUT" { 10 } else { 1 };
///         self.0.try_acquire_owned_n(weight)
///     }
/// }
///
/// let layer = ConcurrencyLimitLayer::with_limiter(ByWeight(Arc::new(ConcurrencyLimiter::new(100))));
/// # let _ = layer;
/// ```
pub trait AcquirePermit<I> {
    /// The limiter that owns the permits.
    type Home: PermitSource;

    /// Acquires a permit without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: no permit was taken.
    fn try_acquire(&self, request: &Request<I>) -> Result<Permit<Self::Home>, PermitDenied>;
}

/// A limit that is divided into parts, and a function that returns the part of a request: see
/// [`ConcurrencyLimitLayer::by_criticality`](crate::ConcurrencyLimitLayer::by_criticality) and
/// [`by_partition`](crate::ConcurrencyLimitLayer::by_partition).
#[derive(Clone, Debug)]
pub struct DividedLimit<T, F> {
    limit: T,
    #[debug(skip)]
    by: F,
}

impl<I, C: Clock> AcquirePermit<I> for Arc<ConcurrencyLimiter<C>> {
    type Home = Self;

    fn try_acquire(&self, _: &Request<I>) -> Result<Permit<Self>, PermitDenied> {
        self.try_acquire_owned()
    }
}

impl<I, C, F> AcquirePermit<I> for DividedLimit<Arc<LoadShedder<C>>, F>
where
    C: Clock,
    F: Fn(&Request<I>) -> Criticality,
{
    type Home = Arc<ConcurrencyLimiter<C>>;

    fn try_acquire(&self, request: &Request<I>) -> Result<Permit<Self::Home>, PermitDenied> {
        self.limit.try_acquire_owned((self.by)(request))
    }
}

impl<I, C, F> AcquirePermit<I> for DividedLimit<Arc<Partitions<C>>, F>
where
    C: Clock,
    F: Fn(&Request<I>) -> &str,
{
    type Home = PartitionPermitSource<Arc<ConcurrencyLimiter<C>>>;

    fn try_acquire(&self, request: &Request<I>) -> Result<Permit<Self::Home>, PermitDenied> {
        self.limit.try_acquire_owned((self.by)(request))
    }
}

type Answer<O, E, H> = Result<Response<ConcurrencyBody<O, H>>, E>;

/// How results of requests become outcomes for the limit.
struct EndingRules<E> {
    answer: fn(StatusCode) -> PermitOutcome,
    error: fn(&E) -> PermitOutcome,
}

pin_project! {
    /// The response to a request. Dropping it releases the permit, and the outcome is ignored.
    pub struct ConcurrencyLimitFuture<S, I, O, E, H>
    where
        S: Service<Request<I>>,
        H: PermitSource,
    {
        #[pin]
        state: State<S, I, O, E, H>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<S, I, O, E, H>
    where
        S: Service<Request<I>>,
        H: PermitSource,
    {
        Admitted { #[pin] call: ReadyCall<S, I>, permit: Option<Permit<H>>, means: EndingRules<E> },
        Refused { answer: Option<Answer<O, E, H>> },
    }
}

impl<S, I, O, E, H> Future for ConcurrencyLimitFuture<S, I, O, E, H>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Error: Into<E>,
    O: http_body::Body,
    H: PermitSource,
{
    type Output = Answer<O, E, H>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.project().state.project() {
            StateProjected::Admitted {
                call,
                permit,
                means,
            } => {
                let answer = ready!(call.poll(context));
                permit.take().map(|permit| match answer {
                    Ok(answer) => Ok(hold_until_end(answer, permit, means.answer)),
                    Err(error) => {
                        let error = error.into();
                        permit.end((means.error)(&error));
                        Err(error)
                    }
                })
            }
            StateProjected::Refused { answer } => answer.take(),
        };
        match answer {
            Some(answer) => Poll::Ready(answer),
            None => panic!("polled after it was ready"),
        }
    }
}

/// Reports the latency and the outcome, which are known with the head. The permit is held until the body has ended.
fn hold_until_end<O: http_body::Body, H: PermitSource>(
    answer: Response<O>,
    mut permit: Permit<H>,
    means: fn(StatusCode) -> PermitOutcome,
) -> Response<ConcurrencyBody<O, H>> {
    permit.report(means(status_of(&answer)));
    answer.map(|body| {
        // An empty body releases the permit immediately.
        let permit = (!body.is_end_stream()).then_some(permit);
        ConcurrencyBody::of_service(body, permit)
    })
}

impl<S: Service<Request<I>>, I, O, E, H: PermitSource> fmt::Debug
    for ConcurrencyLimitFuture<S, I, O, E, H>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedFuture").finish_non_exhaustive()
    }
}

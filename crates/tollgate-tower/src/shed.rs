//! A layer that admits as many at once as a limit has room for, and tells the limit how each call went: what an adaptive limit
//! learns from. In front of a service it answers what is too much with 503, for a client it is an error.

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

/// When it is worth another try: nobody knows when there is room, so it is the least that can be said.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Admits as many requests at once as a [`ConcurrencyLimiter`](tollgate::ConcurrencyLimiter) has room for. Others are answered 503 at
/// once, with a body of `application/problem+json`; calls of gRPC are `UNAVAILABLE`.
///
/// The limit learns from each request, if it is one that [adapts](tollgate_adaptive): how long the head of its answer took from
/// its admission on, and how it went.
///
/// | what came of it | is to the limit | because |
/// |---|---|---|
/// | 502, 503, 504, or an error of the service | [dropped](Ending::OnDrop) | it timed out, or was refused for overload |
/// | 4xx, 500 and all other of 5xx | [ignored](Ending::Ignored) | what is wrong with a request, or with the program, says nothing about capacity |
/// | all other answers | [a success](Ending::Success) | its latency tells how loaded the service is |
/// | it was dropped before its answer, or panicked | ignored | nobody knows what it would have become |
///
/// [`classify_status`](Self::classify_status) says otherwise. Of gRPC the head counts as well, if that tells how the call ended; what comes in trailers
/// is too late. A request keeps its place until the body of its answer has ended or is dropped. A layer that times requests out belongs inside of
/// this one, and limits by client outside, so that what they refuse takes no place.
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
/// For a client, where what isn't admitted is a [`PermitDenied`](tollgate::concurrency::PermitDenied), and nothing is sent:
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
/// // In place of a client of hyper:
/// let client = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::from("hello"))) });
/// let limiter = Arc::new(ConcurrencyLimiter::new(1));
/// let mut client = ServiceBuilder::new().layer(ConcurrencyLimitLayer::with_limiter(limiter).for_client()).service(client);
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
    /// The usual of a service, or of a client, unless it was said.
    #[debug(skip)]
    ending_of: Option<fn(StatusCode) -> PermitOutcome>,
}

/// A [`ConcurrencyLimitLayer`] for the calls that a program makes: what isn't admitted isn't sent, and fails with a
/// [`PermitDenied`](tollgate::concurrency::PermitDenied).
///
/// It differs from that of a service in two more things. 429 is a drop, as the one that is called wants fewer calls; and an error of a layer inside that
/// kept the call back (a breaker that is open, a host that is paced) is ignored.
#[derive(Clone, Debug)]
pub struct ClientConcurrencyLimitLayer<A>(ConcurrencyLimitLayer<A>);

impl<A> ConcurrencyLimitLayer<A> {
    /// By a limiter that others may share, or whatever else [`AcquirePermit`].
    pub fn with_limiter(admits: A) -> Self {
        Self {
            admits,
            ending_of: None,
            name: "requests-at-once".into(),
        }
    }

    /// What an answer of a status means.
    pub fn classify_status(mut self, means: fn(StatusCode) -> PermitOutcome) -> Self {
        self.ending_of = Some(means);
        self
    }

    /// What those who are refused are told that the limit is called.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// The same around a client.
    #[must_use]
    pub fn for_client(self) -> ClientConcurrencyLimitLayer<A> {
        ClientConcurrencyLimitLayer(self)
    }

    /// Asks, and calls the service if there is room; or else does what `refuse` says.
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
    /// By how critical a request is: as the limit fills up, sheddable ones are refused first and critical ones last.
    ///
    /// Who says it? A field that clients can write makes all of them critical: let a layer in front find it, as one that
    /// knows users, or go by the route.
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
    /// let layer = ConcurrencyLimitLayer::by_criticality(shedder, |request: &Request<Body>| match request.uri().path() {
    ///     "/pay" => Criticality::Critical,
    ///     "/report" => Criticality::Sheddable,
    ///     _ => request.extensions().get().copied().unwrap_or_default(),
    /// });
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
    /// By guaranteed shares: a request is of the partition that is named.
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

/// What an answer of a service means to a limit in front of it.
fn service_ending(status: StatusCode) -> PermitOutcome {
    ending_of(status.as_u16())
}

/// And what it means to a client: the one that is called wants fewer calls.
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

    /// Always: who is refused learns it at once, and the service is made ready in the call.
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

    /// Always: the client is made ready in the call, and not at all without a permit.
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

/// The answer to a request that isn't admitted.
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

/// Whether it is a call of gRPC: POST over HTTP/2. Anything else that says so reads a status.
fn is_grpc<I>(request: &Request<I>) -> bool {
    let asked = request.headers().get(CONTENT_TYPE);
    request.method() == Method::POST
        && request.version() >= Version::HTTP_2
        && asked.is_some_and(|asked| grpc::is_call(asked.as_bytes()))
}

/// Gives requests with bodies `I` a permit, or not: a [`ConcurrencyLimiter`], or what divides one ([`DividedLimit`]).
///
/// ```
/// use std::sync::Arc;
/// use http::Request;
/// use tollgate::ConcurrencyLimiter;
/// use tollgate::concurrency::{PermitDenied, Permit};
/// use tollgate_tower::{AcquirePermit, ConcurrencyLimitLayer};
///
/// /// Uploads take the room of ten.
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
    /// Who gives the permits.
    type Home: PermitSource;

    /// A permit now, or why not.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was taken.
    fn try_acquire(&self, request: &Request<I>) -> Result<Permit<Self::Home>, PermitDenied>;
}

/// A limit that is divided, and what of a request says which part it is of: see
/// [`ConcurrencyLimitLayer::by_criticality`](crate::ConcurrencyLimitLayer::by_criticality) and [`by_partition`](crate::ConcurrencyLimitLayer::by_partition).
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

/// What comes of a request means to the limit.
struct EndingRules<E> {
    answer: fn(StatusCode) -> PermitOutcome,
    error: fn(&E) -> PermitOutcome,
}

pin_project! {
    /// The answer to a request, on its way. Dropping it gives back the place, and tells the limit nothing.
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

/// The head is there, and with it how long the request took and how it went; its place is needed until its body has ended.
fn hold_until_end<O: http_body::Body, H: PermitSource>(
    answer: Response<O>,
    mut permit: Permit<H>,
    means: fn(StatusCode) -> PermitOutcome,
) -> Response<ConcurrencyBody<O, H>> {
    permit.report(means(status_of(&answer)));
    answer.map(|body| {
        // A body that has nothing to send keeps no place.
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

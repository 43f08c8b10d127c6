//! A layer that admits as many at once as a limit has room for, and tells the limit how each call went: what an adaptive limit
//! learns from. In front of a service it answers what is too much with 503, for a client it is an error.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode, Version};
use tollgate::concurrency::{Ending, PermitHome};
use tollgate::{Clock, Decision, Outcome};
use tollgate_adaptive::shed::{Criticality, Partitions, Shedder};
use tollgate_http::guard::{Denial, Refused, ending_of};
use tollgate_http::{DenyReason, grpc};
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::body::ShedBody;
use crate::layered::{Layered, failed};

mod admits;
mod future;

pub use admits::{Admits, By};
pub use future::ShedFuture;

use future::Means;

/// When it is worth another try: nobody knows when there is room, so it is the least that can be said.
const SOON: Duration = Duration::from_secs(1);

/// Admits as many requests at once as a [`ConcurrencyLimiter`](tollgate::ConcurrencyLimiter) has room for. Others are answered 503 at
/// once, with a body of `application/problem+json`; calls of gRPC are `UNAVAILABLE`.
///
/// The limit learns from each request, if it is one that [adapts](tollgate_adaptive): how long the head of its answer took from
/// its admission on, and how it went.
///
/// | what came of it | is to the limit | because |
/// |---|---|---|
/// | 502, 503, 504, or an error of the service | [dropped](Ending::Dropped) | it timed out, or was refused for overload |
/// | 4xx, 500 and all other of 5xx | [ignored](Ending::Ignored) | what is wrong with a request, or with the program, says nothing about capacity |
/// | all other answers | [a success](Ending::Success) | its latency tells how loaded the service is |
/// | it was dropped before its answer, or panicked | ignored | nobody knows what it would have become |
///
/// [`by_status`](Self::by_status) says otherwise. Of gRPC the head counts as well, if that tells how the call ended; what comes in trailers
/// is too late. A request keeps its place until the body of its answer has ended or is dropped. A layer that times requests out belongs inside of
/// this one, and limits by client outside, so that what they refuse takes no place.
///
/// ```
/// use std::sync::Arc;
/// use axum::{Router, routing::get};
/// use tollgate_adaptive::{Bounds, Controller, Little};
/// use tollgate_tower::ShedLayer;
///
/// let controller = Controller::new(Little::new(Bounds::new(10.0, 200.0)?));
/// let limiter = Arc::new(controller.concurrency().build());
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(ShedLayer::by(limiter));
/// # let _ = app;
/// # Ok::<(), tollgate_adaptive::LawError>(())
/// ```
///
/// For a client, where what isn't admitted is a [`NoPermit`](tollgate::concurrency::NoPermit), and nothing is sent:
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use http::{Request, Response};
/// use tollgate::ConcurrencyLimiter;
/// use tollgate::concurrency::NoPermit;
/// use tollgate_tower::ShedLayer;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # let executor = tokio::runtime::Builder::new_current_thread().build()?;
/// # executor.block_on(async {
/// // In place of a client of hyper:
/// let client = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::from("hello"))) });
/// let limiter = Arc::new(ConcurrencyLimiter::new(1));
/// let mut client = ServiceBuilder::new().layer(ShedLayer::by(limiter).for_client()).service(client);
/// let first = client.call(Request::new(())).await?;
/// let error = client.call(Request::new(())).await.expect_err("the first has its body yet");
/// assert!(error.is::<NoPermit>());
/// drop(first);
/// assert!(client.call(Request::new(())).await.is_ok());
/// # Ok::<(), tollgate_tower::BoxError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct ShedLayer<A> {
    admits: A,
    /// The usual of a service, or of a client, unless it was said.
    means: Option<fn(StatusCode) -> Ending>,
    name: Arc<str>,
}

/// A [`ShedLayer`] for the calls that a program makes: what isn't admitted isn't sent, and fails with a
/// [`NoPermit`](tollgate::concurrency::NoPermit).
///
/// It differs from that of a service in two more things. 429 is a drop, as the one that is called wants fewer calls; and an error of a layer inside that
/// kept the call back (a breaker that is open, a host that is paced) is ignored.
#[derive(Clone, Debug)]
pub struct ShedClientLayer<A>(ShedLayer<A>);

impl<A> ShedLayer<A> {
    /// By a limiter that others may share, or whatever else [`Admits`].
    pub fn by(admits: A) -> Self {
        Self {
            admits,
            means: None,
            name: "requests-at-once".into(),
        }
    }

    /// What an answer of a status means.
    pub fn by_status(mut self, means: fn(StatusCode) -> Ending) -> Self {
        self.means = Some(means);
        self
    }

    /// What those who are refused are told that the limit is called.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// The same around a client.
    #[must_use]
    pub fn for_client(self) -> ShedClientLayer<A> {
        ShedClientLayer(self)
    }

    /// Asks, and calls the service if there is room; or else does what `refuse` says.
    fn ask<S, I, O, E>(
        &self,
        service: &S,
        request: Request<I>,
        mut means: Means<E>,
        refuse: impl FnOnce(&Self, &Request<I>, BoxError) -> future::Answer<O, E, A::Home>,
    ) -> ShedFuture<S, I, O, E, A::Home>
    where
        A: Admits<I>,
        S: Service<Request<I>, Response = Response<O>> + Clone,
    {
        match self.admits.admit(&request) {
            Ok(permit) => {
                means.answer = self.means.unwrap_or(means.answer);
                ShedFuture::admitted(service.clone(), request, permit, means)
            }
            Err(refused) => ShedFuture::refused(refuse(self, &request, refused.into())),
        }
    }
}

impl<F, C: Clock> ShedLayer<By<Arc<Shedder<C>>, F>> {
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
    /// use tollgate_adaptive::shed::{Criticality, Shedder};
    /// use tollgate_tower::ShedLayer;
    ///
    /// let shedder = Arc::new(Shedder::new(Arc::new(ConcurrencyLimiter::new(100))));
    /// let layer = ShedLayer::by_class(shedder, |request: &Request<Body>| match request.uri().path() {
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
    pub fn by_class<I>(shedder: Arc<Shedder<C>>, class_of: F) -> Self
    where
        F: Fn(&Request<I>) -> Criticality,
    {
        Self::by(By {
            limit: shedder,
            by: class_of,
        })
    }
}

impl<F, C: Clock> ShedLayer<By<Arc<Partitions<C>>, F>> {
    /// By guaranteed shares: a request is of the partition that is named.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use axum::body::Body;
    /// use http::Request;
    /// use tollgate::ConcurrencyLimiter;
    /// use tollgate_adaptive::shed::Partitions;
    /// use tollgate_tower::ShedLayer;
    ///
    /// let limiter = Arc::new(ConcurrencyLimiter::new(100));
    /// let partitions = Arc::new(Partitions::new(limiter, &[("live", 90), ("batch", 10)]));
    /// let layer = ShedLayer::by_share(partitions, |request: &Request<Body>| {
    ///     if request.uri().path().starts_with("/batch/") { "batch" } else { "live" }
    /// });
    /// # let _ = layer;
    /// ```
    pub fn by_share<I>(partitions: Arc<Partitions<C>>, name_of: F) -> Self
    where
        F: Fn(&Request<I>) -> &str,
    {
        Self::by(By {
            limit: partitions,
            by: name_of,
        })
    }
}

/// What an answer of a service means to a limit in front of it.
fn served(status: StatusCode) -> Ending {
    ending_of(status.as_u16())
}

/// And what it means to a client: the one that is called wants fewer calls.
fn called(status: StatusCode) -> Ending {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Ending::Dropped,
        other => served(other),
    }
}

impl<S, A: Clone> Layer<S> for ShedLayer<A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Layered<S, Self> {
        Layered::new(inner, self.clone())
    }
}

impl<S, A: Clone> Layer<S> for ShedClientLayer<A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Layered<S, Self> {
        Layered::new(inner, self.clone())
    }
}

impl<S, I, O, A> Service<Request<I>> for Layered<S, ShedLayer<A>>
where
    S: Service<Request<I>, Response = Response<O>> + Clone,
    O: http_body::Body,
    A: Admits<I>,
{
    type Response = Response<ShedBody<O, A::Home>>;
    type Error = S::Error;
    type Future = ShedFuture<S, I, O, S::Error, A::Home>;

    /// Always: who is refused learns it at once, and the service is made ready in the call.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let means = Means {
            answer: served,
            error: |_| Ending::Dropped,
        };
        let refuse = |layer: &ShedLayer<A>, request: &_, _| Ok(refusal(request, &layer.name));
        self.layer.ask(&self.inner, request, means, refuse)
    }
}

impl<S, I, O, A> Service<Request<I>> for Layered<S, ShedClientLayer<A>>
where
    S: Service<Request<I>, Response = Response<O>> + Clone,
    S::Error: Into<BoxError>,
    O: http_body::Body,
    A: Admits<I>,
{
    type Response = Response<ShedBody<O, A::Home>>;
    type Error = BoxError;
    type Future = ShedFuture<S, I, O, BoxError, A::Home>;

    /// Always: the client is made ready in the call, and not at all without a permit.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let means = Means {
            answer: called,
            error: failed,
        };
        let (layer, client) = (&self.layer.0, &self.inner);
        layer.ask(client, request, means, |_, _, error| Err(error))
    }
}

/// The answer to a request that isn't admitted.
#[cold]
fn refusal<I, O, H: PermitHome>(request: &Request<I>, limit: &str) -> Response<ShedBody<O, H>> {
    let decision = Decision::new(Outcome::Denied, 0, 0, SOON, SOON);
    let denial = Denial::new(DenyReason::Shed, limit, decision);
    let refused = if is_grpc(request) {
        Refused::grpc(&denial)
    } else {
        Refused::http(&denial)
    };
    crate::future::refusal(refused, ShedBody::of_refusal)
}

/// Whether it is a call of gRPC: POST over HTTP/2. Anything else that says so reads a status.
fn is_grpc<I>(request: &Request<I>) -> bool {
    let asked = request.headers().get(CONTENT_TYPE);
    request.method() == Method::POST
        && request.version() >= Version::HTTP_2
        && asked.is_some_and(|asked| grpc::is_call(asked.as_bytes()))
}

impl<A: fmt::Debug> fmt::Debug for ShedLayer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer")
            .field("name", &self.name)
            .field("admits", &self.admits)
            .finish_non_exhaustive()
    }
}

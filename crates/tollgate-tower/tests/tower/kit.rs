//! A service for tests, and its responses.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate};
use tollgate_tower::{KeyExtractor, RateLimitLayer, RatePerKey, RequestHead, RequestLimits};
use tower::ServiceExt;

/// What a client read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Without those that the service itself writes.
    pub(crate) fields: Vec<String>,
    pub(crate) body: String,
}

/// A rate for each key on a clock that stands still.
pub(crate) fn per_key<K: KeyExtractor<RequestHead>>(
    rate: Rate,
    key: K,
) -> (RatePerKey<K, Arc<Manual>>, Arc<Manual>) {
    let clock = Arc::new(Manual::new());
    let limiter = KeyedLimiter::builder(rate, 1_000).clock(Arc::clone(&clock));
    let limiter = limiter.build().expect("a rate");
    (RatePerKey::with_limiter(Arc::new(limiter), key), clock)
}

/// A service of axum behind this layer.
pub(crate) fn app<L: RequestLimits<RequestHead>>(layer: RateLimitLayer<L>) -> Router {
    let hello = || async { "hello" };
    Router::new()
        .route("/", get(hello))
        .route("/users/{id}", get(hello).post(hello))
        .route("/healthz", get(hello))
        .layer(layer)
}

/// A request from this address.
pub(crate) fn from(address: &str, path: &str) -> Request<axum::body::Body> {
    let mut request = Request::new(axum::body::Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    let address: SocketAddr = format!("{address}:1").parse().expect("an address");
    request.extensions_mut().insert(address);
    request
}

/// The same request as a call of gRPC: POST over HTTP/2 with its content type.
pub(crate) fn as_grpc<B>(mut request: Request<B>) -> Request<B> {
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    let grpc = http::HeaderValue::from_static("application/grpc+proto");
    request.headers_mut().insert("content-type", grpc);
    request
}

pub(crate) async fn ask(app: &Router, request: Request<axum::body::Body>) -> Answer {
    let response = app.clone().oneshot(request).await.expect("an answer");
    read(response).await
}

async fn read(response: Response<axum::body::Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Answer {
        status: parts.status.as_u16(),
        fields: fields(&parts.headers),
        body: String::from_utf8(body.to_vec()).expect("text"),
    }
}

pub(crate) fn fields(headers: &HeaderMap) -> Vec<String> {
    let own = headers
        .iter()
        .filter(|(name, _)| !["content-length", "allow"].contains(&name.as_str()));
    let line = |(name, value): (_, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().expect("text"))
    };
    own.map(line).collect()
}

/// The remaining tokens in the response.
pub(crate) fn left(answer: &Answer) -> u64 {
    let field = |line: &&String| line.starts_with("ratelimit: ");
    let line = answer.fields.iter().find(field).expect("a field");
    let (_, rest) = line.split_once(";r=").expect("what is left");
    // Of concurrent requests nobody knows when there are more.
    let left = rest.split(';').next().expect("what is left");
    left.parse().expect("a number")
}

/// An axum service in which the layer knows the route of a request.
pub(crate) fn routed<L: RequestLimits<RequestHead>>(layer: RateLimitLayer<L>) -> Router {
    let hello = || async { "hello" };
    Router::new()
        .route("/", get(hello))
        .route("/users/{id}", get(hello).post(hello))
        .route_layer(layer)
}

/// A future that is polled by hand.
pub(crate) fn task<F: Future>(future: F) -> Task<F> {
    Task(Box::pin(future))
}

pub(crate) struct Task<F>(Pin<Box<F>>);

impl<F: Future> Task<F> {
    pub(crate) fn poll_once(&mut self) -> Option<F::Output> {
        let mut context = Context::from_waker(Waker::noop());
        match self.0.as_mut().poll(&mut context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

/// Frames that are ready immediately.
pub(crate) fn frames<I>(frames: I) -> Frames<I::IntoIter>
where
    I: IntoIterator<Item = Result<Frame<Bytes>, Infallible>>,
{
    Frames(frames.into_iter())
}

pub(crate) struct Frames<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Frames<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

/// Requests these statuses one after the other, and returns the responses.
pub(crate) async fn statuses(app: &Router, codes: &[u16]) -> Vec<u16> {
    let mut seen = Vec::new();
    for code in codes {
        let request = from("192.0.2.1", &format!("/{code}"));
        seen.push(ask(app, request).await.status);
    }
    seen
}

//! The bodies of responses: the service's own, or a wrapper around it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::clock::Manual;
use tollgate::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Rate};
use tollgate_http::guard::Fingerprint;
use tollgate_tower::{ConcurrencyLimit, ConcurrencyLimitLayer, RateLimitLayer, RatePerKey, keys};
use tower::{Layer, Service, ServiceExt};

use crate::kit::{from, per_key};

/// The body of each answer is of a type that can't hold others.
async fn hello(_: Request<axum::body::Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// The same of one that can.
async fn boxed(
    request: Request<axum::body::Body>,
) -> Result<Response<axum::body::Body>, Infallible> {
    Ok(hello(request).await?.map(axum::body::Body::new))
}

async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

/// Asks a service that lets one request of a client through, whose answers have this type of body.
async fn passes_once<S, B>(mut limited: S)
where
    S: Service<Request<axum::body::Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let Ok(passed) = limited.call(from("192.0.2.1", "/")).await;
    assert_eq!(passed.status(), 200);
    assert_eq!(passed.body().size_hint().exact(), Some(5));
    assert_eq!(text(passed).await, "hello");
    let Ok(refused) = limited.call(from("192.0.2.1", "/")).await;
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains(r#""reason":"rate""#));
}

/// The same with one permit for each client, and this limiter.
async fn holds_one<S, B>(limited: S, limiter: &KeyedConcurrencyLimiter<Fingerprint>)
where
    S: Service<Request<axum::body::Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let ask = || limited.clone().oneshot(from("192.0.2.1", "/"));
    let Ok(held) = ask().await;
    let Ok(refused) = ask().await;
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains(r#""reason":"concurrency""#));
    let size = held.body().size_hint().exact();
    assert_eq!((size, limiter.is_empty()), (Some(5), false));
    assert_eq!(text(held).await, "hello");
    assert!(limiter.is_empty());
    let Ok(dropped) = ask().await;
    assert!(!limiter.is_empty());
    drop(dropped);
    assert!(limiter.is_empty());
}

fn once() -> RateLimitLayer<RatePerKey<keys::ClientAddress, Arc<Manual>>> {
    RateLimitLayer::new(per_key(Rate::per_hour(1), keys::ClientAddress::new()).0)
}

fn one_slot() -> (
    RateLimitLayer<ConcurrencyLimit<keys::ClientAddress>>,
    Arc<KeyedConcurrencyLimiter<Fingerprint>>,
) {
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    (RateLimitLayer::new(limits), limiter)
}

#[tokio::test]
async fn a_body_of_any_type_is_put_into_one_that_can_be_a_refusal() {
    passes_once(once().wrap_body().layer(tower::service_fn(hello))).await;
    let (layer, limiter) = one_slot();
    holds_one(layer.wrap_body().layer(tower::service_fn(hello)), &limiter).await;
}

#[tokio::test]
async fn a_body_that_can_hold_any_stays_what_it_is() {
    let limited = once().layer(tower::service_fn(boxed));
    passes_once::<_, axum::body::Body>(limited).await;
    let (layer, limiter) = one_slot();
    let limited = layer.layer(tower::service_fn(boxed));
    holds_one::<_, axum::body::Body>(limited, &limiter).await;
}

#[tokio::test]
async fn the_body_of_tonic_stays_what_it_is() {
    let service = tower::service_fn(|request| async {
        Ok::<_, Infallible>(boxed(request).await?.map(tonic::body::Body::new))
    });
    passes_once::<_, tonic::body::Body>(once().layer(service)).await;
    let (layer, limiter) = one_slot();
    holds_one::<_, tonic::body::Body>(layer.layer(service), &limiter).await;
}

/// A layer like CORS or a timeout, which needs a body when the service isn't called.
#[tokio::test]
async fn layers_outside_can_answer_with_an_empty_body() {
    fn instead<R, B: Default>(_: &impl Service<R, Response = Response<B>>) -> Response<B> {
        Response::new(B::default())
    }
    let limited = RateLimitLayer::per_client(Rate::per_hour(1)).wrap_body();
    let limited = limited.layer(tower::service_fn(hello));
    assert_eq!(text(instead(&limited)).await, "");
    let shed = ConcurrencyLimitLayer::with_limiter(Arc::new(ConcurrencyLimiter::new(1)));
    let shed = shed.layer(tower::service_fn(hello));
    assert_eq!(text(instead(&shed)).await, "");
}

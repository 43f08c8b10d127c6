//! What answers have for a body: the service's own, or one around it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tollgate::Rate;
use tollgate_tower::{AtOnce, RateLimitLayer, keys};
use tower::{Layer, Service, ServiceExt};

use crate::kit::{from, per_key};

/// The body of each answer is of a type that can't hold others.
async fn hello(_: Request<axum::body::Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// The same of one that can, with a frame that isn't there at once.
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

#[tokio::test]
async fn a_body_of_any_type_is_put_into_one_that_can_be_a_refusal() {
    let (limits, _clock) = per_key(Rate::per_hour(1), keys::Address::new());
    let mut limited = RateLimitLayer::new(limits)
        .any_body()
        .layer(tower::service_fn(hello));
    let passed = limited
        .call(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(passed.status(), 200);
    assert_eq!(passed.body().size_hint().exact(), Some(5));
    assert_eq!(text(passed).await, "hello");
    let refused = limited
        .call(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains(r#""kind":"rate""#));
}

#[tokio::test]
async fn a_body_of_any_type_keeps_a_slot_until_it_has_ended() {
    let limits = AtOnce::new(1, keys::Address::new());
    let limiter = Arc::clone(limits.limiter());
    let layer = RateLimitLayer::new(limits).any_body();
    let limited = layer.layer(tower::service_fn(hello));
    let ask = || limited.clone().oneshot(from("192.0.2.1", "/"));
    let first = ask().await.expect("an answer");
    assert_eq!(ask().await.expect("an answer").status(), 429);
    assert_eq!(text(first).await, "hello");
    assert!(limiter.is_empty());
}

/// Compiles only if the layer has the service's own type of answers, and answers with it for a request that is refused,
/// waits, or holds a slot as well.
fn same<S, A>(service: S) -> S
where
    S: Service<Request<axum::body::Body>, Response = Response<A>>,
    A: tollgate_tower::OpenBody,
{
    service
}

#[tokio::test]
async fn a_body_that_can_hold_any_stays_what_it_is() {
    let (limits, _clock) = per_key(Rate::per_hour(1), keys::Address::new());
    let mut limited = same(RateLimitLayer::new(limits).layer(tower::service_fn(boxed)));
    let passed: Response<axum::body::Body> = limited
        .call(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(passed.body().size_hint().exact(), Some(5));
    assert_eq!(text(passed).await, "hello");
    let refused = limited
        .call(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains(r#""kind":"rate""#));

    let limits = AtOnce::new(1, keys::Address::new());
    let limiter = Arc::clone(limits.limiter());
    let limited = same(RateLimitLayer::new(limits).layer(tower::service_fn(boxed)));
    let held = limited
        .clone()
        .oneshot(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(
        (held.body().size_hint().exact(), limiter.is_empty()),
        (Some(5), false)
    );
    assert_eq!(text(held).await, "hello");
    assert!(limiter.is_empty());
}

#[tokio::test]
async fn the_body_of_tonic_stays_what_it_is() {
    let service = tower::service_fn(|request| async {
        Ok::<_, Infallible>(boxed(request).await?.map(tonic::body::Body::new))
    });
    let limits = AtOnce::new(1, keys::Address::new());
    let limiter = Arc::clone(limits.limiter());
    let limited = same(RateLimitLayer::new(limits).layer(service));
    let ask = || limited.clone().oneshot(from("192.0.2.1", "/"));
    let held: Response<tonic::body::Body> = ask().await.expect("an answer");
    let refused = ask().await.expect("an answer");
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains(r#""kind":"concurrency""#));
    drop(held);
    assert!(limiter.is_empty());
}

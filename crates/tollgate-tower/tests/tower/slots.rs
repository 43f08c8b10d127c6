//! So many at once, until the bodies of their answers have ended.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use tollgate::KeyedConcurrency;
use tollgate::clock::Tokio;
use tollgate_tower::{AtOnce, RateLimitLayer, keys};
use tower::ServiceExt;

use crate::kit::{app, ask, from, left};

fn from_port(port: u16) -> Request<axum::body::Body> {
    let mut request = from("192.0.2.1", "/");
    let address = std::net::SocketAddr::from(([192, 0, 2, 1], port));
    request.extensions_mut().insert(address);
    request
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_has_ended_or_is_dropped() {
    let limits = AtOnce::new(1, keys::Address::new());
    let limiter = Arc::clone(limits.limiter());
    let app = app(RateLimitLayer::new(limits));
    let request = || from("192.0.2.1", "/");
    let mut first = app.clone().oneshot(request()).await.expect("an answer");
    let second = ask(&app, request()).await;
    assert_eq!(second.status, 429);
    assert!(
        second.body.contains(r#""kind":"concurrency""#),
        "{second:?}"
    );
    assert!(
        second.fields.contains(&"retry-after: 1".to_owned()),
        "{second:?}"
    );
    assert_eq!(ask(&app, from("192.0.2.2", "/")).await.status, 200);
    // The last frame ends it, though the body is still there.
    let frame = first.body_mut().frame().await;
    assert!(frame.is_some());
    assert!(limiter.is_empty());
    let third = app.clone().oneshot(request()).await.expect("an answer");
    assert_eq!(third.status(), 200);
    drop(third);
    assert!(limiter.is_empty());
}

#[tokio::test]
async fn a_service_that_is_full_says_503() {
    let app = app(RateLimitLayer::at_once(2, keys::Everyone));
    let one = app.clone().oneshot(from("192.0.2.1", "/")).await;
    let two = app.clone().oneshot(from("192.0.2.2", "/")).await;
    let shed = ask(&app, from("192.0.2.3", "/")).await;
    assert_eq!(shed.status, 503);
    assert!(shed.body.contains(r#""kind":"shed""#), "{shed:?}");
    drop((one, two));
    let answer = ask(&app, from("192.0.2.3", "/")).await;
    assert_eq!((answer.status, left(&answer)), (200, 1));
}

#[tokio::test]
async fn each_connection_has_its_own() {
    let app = app(RateLimitLayer::at_once(1, keys::Connection));
    let first = app.clone().oneshot(from_port(1)).await;
    assert_eq!(ask(&app, from_port(1)).await.status, 429);
    assert_eq!(ask(&app, from_port(2)).await.status, 200);
    drop(first);
    assert_eq!(ask(&app, from_port(1)).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_waited_for() {
    let limiter = KeyedConcurrency::builder(1, 100).clock(Arc::new(Tokio::new()));
    let limits = AtOnce::by(
        Arc::new(limiter.build().expect("a limiter")),
        keys::Everyone,
    );
    let app = app(RateLimitLayer::new(limits.wait(Duration::from_secs(2))));
    let first = app.clone().oneshot(from("192.0.2.1", "/")).await;
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(first);
    };
    let (second, ()) = tokio::join!(app.clone().oneshot(from("192.0.2.2", "/")), late);
    let second = second.expect("an answer");
    assert_eq!(second.status(), 200);
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&app, from("192.0.2.3", "/")).await.status, 503);
    assert_eq!(began.elapsed().as_secs(), 2);
}

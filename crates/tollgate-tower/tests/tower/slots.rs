//! Concurrent requests: each holds its permit until the body of its response has ended.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use tollgate::clock::Tokio;
use tollgate::{KeyedConcurrencyLimiter, WhenFull};
use tollgate_tower::{BlockAfter, ConcurrencyLimit, RateLimitLayer, RequestLimiter, keys};
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
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let app = app(RateLimitLayer::new(limits));
    let request = || from("192.0.2.1", "/");
    let mut first = app.clone().oneshot(request()).await.expect("an answer");
    let second = ask(&app, request()).await;
    assert_eq!(second.status, 429);
    assert!(
        second.body.contains(r#""reason":"concurrency""#),
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
    let app = app(RateLimitLayer::concurrency(2, keys::Global));
    let one = app.clone().oneshot(from("192.0.2.1", "/")).await;
    let two = app.clone().oneshot(from("192.0.2.2", "/")).await;
    let shed = ask(&app, from("192.0.2.3", "/")).await;
    assert_eq!(shed.status, 503);
    assert!(shed.body.contains(r#""reason":"shed""#), "{shed:?}");
    drop((one, two));
    let answer = ask(&app, from("192.0.2.3", "/")).await;
    assert_eq!((answer.status, left(&answer)), (200, 1));
}

#[tokio::test]
async fn each_connection_has_its_own() {
    let app = app(RateLimitLayer::concurrency(1, keys::Connection));
    let first = app.clone().oneshot(from_port(1)).await;
    assert_eq!(ask(&app, from_port(1)).await.status, 429);
    assert_eq!(ask(&app, from_port(2)).await.status, 200);
    drop(first);
    assert_eq!(ask(&app, from_port(1)).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_waited_for() {
    let limiter = KeyedConcurrencyLimiter::builder(1, 100).clock(Arc::new(Tokio::new()));
    let limits =
        ConcurrencyLimit::with_limiter(Arc::new(limiter.build().expect("a limiter")), keys::Global);
    let app = app(RateLimitLayer::new(limits.max_wait(Duration::from_secs(2))));
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

/// A table that has room for ten keys, all of which have a request under way: newcomers find none, or share one limit.
fn full(
    at_cap: WhenFull,
) -> (
    ConcurrencyLimit<keys::ClientAddress, Arc<Tokio>>,
    Vec<impl Sized>,
) {
    let limiter = KeyedConcurrencyLimiter::builder(1, 10)
        .at_cap(at_cap)
        .clock(Arc::new(Tokio::new()));
    let limiter = Arc::new(limiter.build().expect("a limiter"));
    let others = (0..10).map(|other| [other, u64::MAX]);
    let there = others.map(|other| limiter.key_owned(&other).try_acquire().expect("room"));
    let there = there.collect();
    (
        ConcurrencyLimit::with_limiter(limiter, keys::ClientAddress::new()),
        there,
    )
}

/// A client without requests in flight isn't blamed for an exhausted shared limit: the answer is the server's overload.
#[tokio::test]
async fn who_finds_what_newcomers_share_taken_is_told_that_the_server_is_full() {
    let (limits, there) = full(WhenFull::SharedBucket);
    let limiter = Arc::clone(limits.limiter());
    let block = BlockAfter::after(NonZero::<u32>::MIN, Duration::from_secs(60));
    let guard = RequestLimiter::new(limits)
        .block(block, keys::ClientAddress::new())
        .expect("a block");
    let app = app(RateLimitLayer::from_limiter(guard));
    let first = app.clone().oneshot(from("192.0.2.1", "/")).await;
    assert_eq!(first.as_ref().expect("an answer").status(), 200);
    let second = ask(&app, from("192.0.2.2", "/")).await;
    assert_eq!(second.status, 503, "{second:?}");
    assert!(second.body.contains(r#""reason":"shed""#), "{second:?}");
    // A limit that others use up isn't this client's, and its numbers say nothing of it.
    let told = second.fields.iter();
    assert_eq!(told.filter(|line| line.starts_with("ratelimit")).count(), 0);
    // It was nobody's offence, and of a key that has its place the limit is its own.
    drop((there, first));
    assert!(limiter.is_empty());
    assert_eq!(ask(&app, from("192.0.2.2", "/")).await.status, 200);
    let own = app.clone().oneshot(from("192.0.2.3", "/")).await;
    assert_eq!(ask(&app, from("192.0.2.3", "/")).await.status, 429);
    drop(own);
}

/// They wait for a shared limit as for a limit of their own, and a timeout has the same answer.
#[tokio::test(start_paused = true)]
async fn newcomers_wait_for_what_they_share() {
    for (at_cap, waited) in [(WhenFull::SharedBucket, 2), (WhenFull::DenyNew, 0)] {
        let (limits, there) = full(at_cap);
        let app = app(RateLimitLayer::new(limits.max_wait(Duration::from_secs(2))));
        let first = app.clone().oneshot(from("192.0.2.1", "/")).await;
        let began = tokio::time::Instant::now();
        let late = ask(&app, from("192.0.2.2", "/")).await;
        assert_eq!((late.status, began.elapsed().as_secs()), (503, waited));
        drop(first);
        let next = ask(&app, from("192.0.2.2", "/")).await.status;
        assert_eq!(next, if waited == 0 { 503 } else { 200 });
        drop(there);
    }
}

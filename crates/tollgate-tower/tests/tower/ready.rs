//! Limits that decide slowly, around services whose readiness bounds their concurrency.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tokio::sync::Notify;
use tollgate::clock::{Manual, Tokio};
use tollgate::{KeyedLimiter, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    ConcurrencyLimit, PolicyLimits, RateLimitLayer, RatePerKey, RequestHead, RequestLimits, Tarpit,
    keys,
};
use tower::limit::ConcurrencyLimit as TowerConcurrencyLimit;
use tower::{Layer, Service, ServiceExt};

use crate::kit::{from, task};

async fn hello(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

fn waiting(rate: Rate) -> RatePerKey<keys::ClientAddress, Arc<Tokio>> {
    let limiter = KeyedLimiter::builder(rate, 1_000).clock(Arc::new(Tokio::new()));
    let limiter = Arc::new(limiter.build().expect("a rate"));
    RatePerKey::with_limiter(limiter, keys::ClientAddress::new()).max_wait(Duration::from_secs(60))
}

/// One instance of a service, called again and again as a connection does: each call is answered, though the service has room for one.
async fn asks_all<L: RequestLimits<RequestHead>>(
    layer: RateLimitLayer<L>,
    count: usize,
) -> Vec<u16> {
    let mut service = layer.layer(TowerConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut seen = Vec::new();
    for _ in 0..count {
        let service = service.ready().await.expect("it is ready");
        let answer = service.call(from("192.0.2.1", "/"));
        let answer = tokio::time::timeout(Duration::from_secs(600), answer).await;
        let answer = answer.expect("it never answers").expect("an answer");
        seen.push(answer.status().as_u16());
    }
    seen
}

fn engine(text: &str) -> Engine<Memory<Tokio, Manual>> {
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
    Engine::new(policy.policy, memory.build()).expect("an engine")
}

#[tokio::test(start_paused = true)]
async fn a_wait_around_a_service_with_one_place_ends() {
    let rate = Rate::per_second(1).burst(1);
    assert_eq!(
        asks_all(RateLimitLayer::new(waiting(rate)), 5).await,
        [200; 5]
    );
    let text = "limits: [{name: a, key: ip, rate: 1/s burst 1, over: wait 1m}]";
    assert_eq!(
        asks_all(RateLimitLayer::from_policy(engine(text)), 5).await,
        [200; 5]
    );
    // A policy that is asked in time, as one on a store.
    let text = "limits: [{name: a, key: ip, rate: 3/h}]";
    let layer = RateLimitLayer::new(PolicyLimits::new(engine(text)));
    assert_eq!(asks_all(layer, 5).await, [200, 200, 200, 429, 429]);
    let at_once =
        ConcurrencyLimit::new(1, keys::ClientAddress::new()).max_wait(Duration::from_secs(1));
    assert_eq!(asks_all(RateLimitLayer::new(at_once), 3).await, [200; 3]);
    // A tarpit is a wait, too.
    let limiter = KeyedLimiter::builder(Rate::per_hour(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let layer = RateLimitLayer::new(limits).configure(|guard| {
        let tarpit = Tarpit::new(Duration::from_secs(1), 10);
        guard
            .clock(Tokio::new())
            .tarpit(tarpit, keys::ClientAddress::new())
    });
    assert_eq!(asks_all(layer, 3).await, [200, 429, 429]);
}

/// A policy that begins to let requests wait after the service was made ready.
#[tokio::test(start_paused = true)]
async fn a_reload_between_ready_and_call_ends_no_service() {
    let engine = Arc::new(engine("limits: [{name: a, key: ip, rate: 1/s burst 1}]"));
    let layer = RateLimitLayer::from_policy(Arc::clone(&engine));
    let mut service = layer.layer(TowerConcurrencyLimit::new(tower::service_fn(hello), 1));
    let text = "limits: [{name: a, key: ip, rate: 1/s burst 1, over: wait 1m}]";
    let first = service.ready().await.expect("it is ready");
    let answer = first.call(from("192.0.2.1", "/")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    service.ready().await.expect("it is ready");
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    engine.reload(policy.policy).expect("it is in force");
    for _ in 0..3 {
        let answer = service.call(from("192.0.2.1", "/"));
        let answer = tokio::time::timeout(Duration::from_secs(600), answer).await;
        let answer = answer.expect("it never answers").expect("an answer");
        assert_eq!(answer.status(), 200);
        service.ready().await.expect("it is ready");
    }
}

/// The number of waiters for the service is bounded, and one that leaves frees its position there and here.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_the_service_are_bounded() {
    let open = Arc::new(Notify::new());
    let gate = Arc::clone(&open);
    let slow = tower::service_fn(move |_: Request<Body>| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let layer = RateLimitLayer::new(waiting(Rate::per_second(1_000).burst(1_000)));
    let layer = layer.configure(|guard| guard.max_waiters(2));
    let service = layer.layer(TowerConcurrencyLimit::new(slow, 1));
    let call = || {
        let service = service.clone();
        task(service.oneshot(from("192.0.2.1", "/")))
    };
    let status = |answer: Result<Response<Body>, Infallible>| answer.expect("an answer").status();
    let mut running = call();
    assert!(running.poll_once().is_none());
    let (mut second, mut third) = (call(), call());
    assert!(second.poll_once().is_none() && third.poll_once().is_none());
    let answer = call().poll_once().expect("it isn't kept");
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "1");
    drop(second);
    let mut fourth = call();
    assert!(fourth.poll_once().is_none(), "there is a place again");
    open.notify_one();
    assert_eq!(status(running.poll_once().expect("it is done")), 200);
    // The place of the service is the next one's.
    assert!(third.poll_once().is_none() && fourth.poll_once().is_none());
    open.notify_one();
    assert_eq!(status(third.poll_once().expect("it is done")), 200);
    drop(fourth);
    let mut fifth = call();
    assert!(fifth.poll_once().is_none());
    open.notify_one();
    assert_eq!(status(fifth.poll_once().expect("it is done")), 200);
}

/// The advice of `docs/reference/middleware.md` about clients that disappear unnoticed: a timeout inside of the limit
/// bounds how long they hold a permit.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_of_the_limit_gives_back_the_place() {
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let never =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<_, Infallible>>());
    let longest = Duration::from_secs(10);
    let service = RateLimitLayer::new(limits).layer(tower::timeout::Timeout::new(never, longest));
    let answer = tokio::spawn(service.oneshot(from("192.0.2.1", "/")));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!limiter.is_empty());
    let answer: Result<Response<Body>, _> = answer.await.expect("no panic");
    assert!(answer.is_err() && limiter.is_empty());
}

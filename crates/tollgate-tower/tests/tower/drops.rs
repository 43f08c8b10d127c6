//! A request that is dropped at any point leaves nothing behind.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tollgate::clock::Manual;
use tollgate::{Algorithm, Rate, StoredKeyLimiter};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    ConcurrencyLimit, CountedResponses, PolicyLimits, RateLimitLayer, RequestHead, RequestLimits,
    Settle, SettlingRatePerKey, keys,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::kit::{from, task};
use crate::points::{self, Twice, slow_body};

async fn slow(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    for _ in 0..3 {
        Twice::default().await;
    }
    Ok(Response::new(Body::new(slow_body())))
}

/// Every point at which something is awaited behind this layer.
fn at_every_point<L: RequestLimits<RequestHead>>(
    layer: &RateLimitLayer<L>,
    is_free: impl Fn() -> bool,
) -> usize {
    let request = || from("192.0.2.1", "/");
    points::at_every_point(|| layer.layer(service_fn(slow)), request, || (), is_free)
}

#[test]
fn slots_come_back_wherever_a_request_is_dropped() {
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let layer = RateLimitLayer::new(limits);
    let points = at_every_point(&layer, || limiter.is_empty());
    assert!(points > 10, "{points}");
}

#[test]
fn slots_of_a_policy_that_takes_its_time_come_back() {
    let policy = Policy::from_text("limits: [{name: slots, concurrency: 1}]", Format::Yaml);
    let engine = Engine::new(policy.expect("a policy").policy, Memory::new());
    let engine = Arc::new(engine.expect("an engine"));
    let layer = RateLimitLayer::new(PolicyLimits::new(Arc::clone(&engine)));
    let points = at_every_point(&layer, || engine.backend().in_flight() == 0);
    assert!(points > 10, "{points}");
}

/// A hold is charged or refunded; never both, and never neither.
#[test]
fn holds_end_wherever_a_request_is_dropped() {
    for (settle, counts) in [
        (None, CountedResponses::Failures),
        (Some(Settle::ReportedByHandler), CountedResponses::All),
        (Some(Settle::ReportedByHandler), CountedResponses::Successes),
    ] {
        let clock = Arc::new(Manual::new());
        let limiter = StoredKeyLimiter::builder(Rate::per_hour(1_000), 10)
            .algorithm(Algorithm::TokenBucket)
            .clock(Arc::clone(&clock));
        let limiter = Arc::new(limiter.build().expect("a rate"));
        let limits =
            SettlingRatePerKey::with_limiter(Arc::clone(&limiter), keys::ClientAddress::new());
        let layer = RateLimitLayer::new(limits).configure(|guard| {
            let guard = guard.count_responses(counts.clone());
            match settle {
                Some(settle) => guard.settle(settle),
                None => guard,
            }
        });
        at_every_point(&layer, || {
            let left = || {
                let mut found = None;
                limiter.for_each_active(|key| found = Some(*key.key));
                found.map_or(1_000, |key| limiter.key(&key).peek().remaining)
            };
            let spent = 1_000 - left();
            // What is held doesn't drain, and what was charged is gone after an hour.
            clock.advance(Duration::from_secs(3_600));
            spent <= 1 && left() == 1_000
        });
    }
}

/// The same of what is waited for before it is held.
#[test]
fn estimates_that_are_waited_for_end_wherever_a_request_is_dropped() {
    let clock = Arc::new(Manual::new());
    let limiter = StoredKeyLimiter::builder(Rate::per_second(1), 10)
        .algorithm(Algorithm::TokenBucket)
        .clock(Arc::clone(&clock));
    let limiter = Arc::new(limiter.build().expect("a rate"));
    let limits = SettlingRatePerKey::with_limiter(Arc::clone(&limiter), keys::ClientAddress::new());
    let layer = RateLimitLayer::new(limits.max_wait(Duration::from_secs(9)));
    let quick = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    // Another of the same client has just passed.
    let request = || {
        let first = layer
            .layer(service_fn(quick))
            .oneshot(from("192.0.2.1", "/"));
        let first = task(first).poll_once().expect("an answer");
        assert_eq!(first.expect("an answer").status(), 200);
        from("192.0.2.1", "/")
    };
    let step = || clock.advance(Duration::from_millis(300));
    let is_free = || {
        let nobody_waits = limiter.waiters() == 0;
        clock.advance(Duration::from_secs(3_600));
        let mut left = 1;
        limiter.for_each_active(|key| left = limiter.key(key.key).peek().remaining);
        nobody_waits && left == 1
    };
    let service = || layer.layer(service_fn(slow));
    let points = points::at_every_point(service, request, step, is_free);
    assert!(points > 13, "{points}");
}

/// And of a request that waits while rules change, and is decided again.
#[test]
fn who_is_asked_about_again_leaves_nothing_wherever_it_is_dropped() {
    let policy = |text: &str| {
        let read = Policy::from_text(text, Format::Yaml);
        read.expect("a policy").policy
    };
    let slots = "{name: slots, concurrency: 1}, {name: slow, rate: 1/s, over: wait 9s}";
    let slow_rate = format!("limits: [{slots}]");
    let by_header = format!(
        "limits: [{slots}, {{name: apps, match: {{header.x-app: '*'}}, key: header.x-app, rate: 9/s}}]"
    );
    let clock = Manual::new();
    let memory = Memory::builder().clock(clock.clone()).wall(Manual::new());
    let engine = Engine::new(policy(&slow_rate), memory.build()).expect("an engine");
    let engine = Arc::new(engine);
    let layer = RateLimitLayer::new(PolicyLimits::new(Arc::clone(&engine)));
    let quick = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    let of_app = || {
        let mut request = from("192.0.2.1", "/");
        let name = "one".parse().expect("a value");
        request.headers_mut().insert("x-app", name);
        request
    };
    let passes = || {
        let call = layer.layer(service_fn(quick)).oneshot(of_app());
        let answer = task(call).poll_once().expect("an answer");
        assert_eq!(answer.expect("an answer").status(), 200);
    };
    // Another has just passed, so this one waits, and when it is asked about again it waits on.
    let request = || {
        clock.advance(Duration::from_secs(3_600));
        engine.reload(policy(&slow_rate)).expect("a policy");
        passes();
        of_app()
    };
    let step = || {
        engine.reload(policy(&by_header)).expect("a policy");
        clock.advance(Duration::from_millis(300));
    };
    let is_free = || engine.waiter_count() == 0 && engine.backend().in_flight() == 0;
    let service = || layer.layer(service_fn(slow));
    let points = points::at_every_point(service, request, step, is_free);
    assert!(points > 13, "{points}");
}

/// A call is dropped by another thread while it completes: whichever is first, its permit is released and its hold
/// ends, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_from_outside_may_race_the_completion() {
    let slots = ConcurrencyLimit::new(1_000_000, keys::ClientAddress::new());
    let limiter = Arc::clone(slots.limiter());
    let clock = Arc::new(Manual::new());
    let exact = StoredKeyLimiter::builder(Rate::per_hour(1_000_000), 10)
        .algorithm(Algorithm::TokenBucket)
        .clock(Arc::clone(&clock));
    let exact = Arc::new(exact.build().expect("a rate"));
    let limits = SettlingRatePerKey::with_limiter(Arc::clone(&exact), keys::ClientAddress::new());
    let counted = RateLimitLayer::new(limits)
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    let quick = |_: Request<Body>| async {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(Response::new(Body::from("hello")))
    };
    let service = RateLimitLayer::new(slots).layer(counted.layer(service_fn(quick)));
    let mut ended = 0_u32;
    for round in 0..2_000 {
        let call = tokio::spawn(service.clone().oneshot(from("192.0.2.1", "/")));
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        call.abort();
        ended += u32::from(call.await.is_err());
    }
    assert!(limiter.is_empty());
    let left = || {
        let mut found = None;
        exact.for_each_active(|key| found = Some(*key.key));
        found.map_or(1_000_000, |key| exact.key(&key).peek().remaining)
    };
    // Those that were ended before their answer count, at most, and nothing is held.
    assert!(1_000_000 - left() <= u64::from(ended), "{ended}");
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(left(), 1_000_000);
}

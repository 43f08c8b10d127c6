//! Which responses count, and their actual costs.

use std::convert::Infallible;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Notify;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Rate, StoredKeyLimiter};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    ActualCost, Cost, CountedResponses, PolicyLimits, RateLimitLayer, RequestHead, RequestLimiter,
    RequestLimits, Settle, SettleCosts, SettlingRatePerKey, UsageReporter, keys,
};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::kit::{ask, frames, from, left, statuses, task};

type Exact = SettlingRatePerKey<keys::ClientAddress, Arc<Manual>>;

fn exact(count: u64) -> Exact {
    let limiter = StoredKeyLimiter::builder(Rate::per_hour(count), 1_000)
        .algorithm(Algorithm::TokenBucket)
        .clock(Arc::new(Manual::new()));
    let limiter = limiter.build().expect("a rate");
    SettlingRatePerKey::with_limiter(Arc::new(limiter), keys::ClientAddress::new())
}

/// Answers with the requested status.
fn answering<L: RequestLimits<RequestHead>>(layer: RateLimitLayer<L>) -> Router {
    let status =
        |Path(code): Path<u16>| async move { StatusCode::from_u16(code).expect("a status") };
    Router::new().route("/{code}", get(status)).layer(layer)
}

fn counting(count: u64, counts: CountedResponses) -> Router {
    answering(RateLimitLayer::new(exact(count)).configure(|guard| guard.count_responses(counts)))
}

#[tokio::test]
async fn only_failures_count() {
    let app = counting(2, CountedResponses::Failures);
    let asked = [200, 302, 200, 401, 200, 200, 500, 200, 401];
    let seen = statuses(&app, &asked).await;
    assert_eq!(seen, [200, 302, 200, 401, 200, 200, 500, 429, 429]);
}

#[tokio::test]
async fn only_successes_count() {
    let app = counting(2, CountedResponses::Successes);
    let seen = statuses(&app, &[401, 404, 200, 500, 204, 401]).await;
    assert_eq!(seen, [401, 404, 200, 500, 204, 429]);
}

#[tokio::test]
async fn any_rule_says_which_count() {
    let is_counted = CountedResponses::By(Arc::new(|reply| reply.status() == 404));
    let app = counting(1, is_counted);
    let seen = statuses(&app, &[401, 200, 404, 200]).await;
    assert_eq!(seen, [401, 200, 404, 429]);
}

/// Each holds its place until it is known how it went: else all of them would pass before the first was counted.
#[tokio::test]
async fn ten_thousand_logins_at_once_get_as_far_as_five() {
    let (tried, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let login = {
        let (tried, go) = (Arc::clone(&tried), Arc::clone(&go));
        move || async move {
            tried.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            StatusCode::UNAUTHORIZED
        }
    };
    let layer = RateLimitLayer::new(exact(5))
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    let app = Router::new().route("/", get(login)).layer(layer);
    let calls: Vec<_> = (0..10_000)
        .map(|_| tokio::spawn(app.clone().oneshot(from("192.0.2.1", "/"))))
        .collect();
    let mut refused = 0;
    while refused < 9_995 {
        tokio::task::yield_now().await;
        refused = calls.iter().filter(|call| call.is_finished()).count();
    }
    assert_eq!((refused, tried.load(Ordering::Relaxed)), (9_995, 5));
    go.notify_waiters();
    let mut seen = [0, 0];
    for call in calls {
        let status = call.await.expect("a task").expect("an answer").status();
        seen[usize::from(status == StatusCode::TOO_MANY_REQUESTS)] += 1;
    }
    assert_eq!(seen, [5, 9_995]);
}

/// Whoever hangs up before the answer has had its try.
#[tokio::test]
async fn what_is_dropped_before_its_answer_counts() {
    let layer = RateLimitLayer::new(exact(1))
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    let never = || async { std::future::pending::<()>().await };
    let app = Router::new()
        .route("/", get(never))
        .route("/ok", get(|| async { "ok" }))
        .layer(layer);
    let mut call = task(app.clone().oneshot(from("192.0.2.1", "/")));
    assert!(call.poll_once().is_none());
    drop(call);
    assert_eq!(ask(&app, from("192.0.2.1", "/ok")).await.status, 429);
}

#[tokio::test]
async fn a_service_that_fails_without_an_answer_has_failed() {
    for (counts, expected) in [
        (CountedResponses::Failures, 0),
        (CountedResponses::Successes, 1),
        (CountedResponses::All, 0),
    ] {
        let limits = exact(1);
        let layer =
            RateLimitLayer::new(limits).configure(|guard| guard.count_responses(counts.clone()));
        let failing = service_fn(|request: Request<Body>| async move {
            if request.uri().path() == "/fails" {
                return Err("it broke");
            }
            Ok(Response::new(Body::empty()))
        });
        let service = ServiceBuilder::new().layer(layer).service(failing);
        let broken = service.clone().oneshot(from("192.0.2.1", "/fails")).await;
        assert_eq!(broken.err(), Some("it broke"));
        let next = service
            .oneshot(from("192.0.2.1", "/"))
            .await
            .expect("an answer");
        let passed = u16::from(next.status() == StatusCode::OK);
        assert_eq!(passed, expected, "{counts:?}");
    }
}

/// A gRPC call has its status in the trailers.
#[tokio::test]
async fn trailers_of_grpc_are_waited_for() {
    let layer = RateLimitLayer::new(exact(1))
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    let call = |Path(status): Path<String>| async move {
        let trailers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            status.parse().expect("a value"),
        )]);
        let parts = [
            Ok(Frame::data(Bytes::from("x"))),
            Ok(Frame::trailers(trailers)),
        ];
        let body = StreamBody::new(frames(parts));
        let mut response = Response::new(Body::new(body));
        let kind = "application/grpc".parse().expect("a value");
        response.headers_mut().insert("content-type", kind);
        response
    };
    let app = Router::new().route("/{status}", get(call)).layer(layer);
    for (status, expected) in [("0", 200), ("0", 200), ("13", 200), ("0", 429)] {
        let answer = ask(&app, from("192.0.2.1", &format!("/{status}"))).await;
        assert_eq!(answer.status, expected, "{status}");
    }
}

fn guard_settling(count: u64, estimate: u64, settle: Settle) -> RateLimitLayer<Exact> {
    let guard = RequestLimiter::new(exact(count));
    RateLimitLayer::from_limiter(guard.cost_table(Cost::Fixed(estimate)).settle(settle))
}

fn looks<L: RequestLimits<RequestHead> + SettleCosts>(
    layer: RateLimitLayer<L>,
) -> RateLimitLayer<L> {
    layer.configure(|guard| guard.cost(|head| if head.uri().path() == "/look" { 0 } else { 400 }))
}

#[tokio::test]
async fn what_was_used_is_settled_by_the_answer() {
    let layer = looks(guard_settling(1_000, 400, Settle::ReportedByHandler));
    let told = || async {
        let mut response = Response::new(Body::from("a story"));
        response.extensions_mut().insert(ActualCost(150));
        response
    };
    let app = Router::new()
        .route("/", get(told))
        .route("/unsaid", get(|| async { "a story" }))
        .route("/look", get(|| async {}))
        .layer(layer);
    let first = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(left(&first), 600, "an estimate");
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/look")).await), 850);
    // Nothing was told, so the estimate counts.
    let _unsaid = ask(&app, from("192.0.2.1", "/unsaid")).await;
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/look")).await), 450);
}

#[tokio::test]
async fn what_a_stream_uses_is_told_while_it_is_sent_and_counts_if_the_client_hangs_up() {
    let layer = looks(guard_settling(1_000, 400, Settle::ReportedByHandler));
    let stream = |request: Request<Body>| async move {
        let usage = request
            .extensions()
            .get::<UsageReporter>()
            .expect("a usage")
            .clone();
        let parts = (0..4).map(move |_| {
            usage.add(50);
            Ok::<_, Infallible>(Frame::data(Bytes::from("chunk")))
        });
        Response::new(Body::new(StreamBody::new(frames(parts))))
    };
    let app = Router::new()
        .route("/", get(stream))
        .route("/look", get(|| async {}))
        .layer(layer);
    let whole = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(whole.body, "chunkchunkchunkchunk");
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/look")).await), 800);
    let mut half = app
        .clone()
        .oneshot(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    for _ in 0..2 {
        let frame = half.body_mut().frame().await;
        assert!(frame.is_some());
    }
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/look")).await), 400);
    drop(half);
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/look")).await), 700);
}

#[tokio::test]
async fn bytes_that_were_sent_are_settled() {
    let per = NonZero::new(10).expect("more than zero");
    let layer = looks(guard_settling(1_000, 400, Settle::BytesSent { per }));
    let app = Router::new()
        .route("/", get(|| async { "x".repeat(1_001) }))
        .route("/look", get(|| async {}))
        .layer(layer);
    let _answer = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(
        left(&ask(&app, from("192.0.2.1", "/look")).await),
        1_000 - 101
    );
}

#[tokio::test]
async fn rules_with_an_estimate_settle_too() {
    let text = "limits:
                - {name: logins, key: ip, rate: 2/h, cost: {default: 1, settle_within: 60s}}";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let engine = Engine::new(policy, memory.build()).expect("an engine");
    let limits = PolicyLimits::in_memory(engine);
    let app = answering(
        RateLimitLayer::new(limits)
            .configure(|guard| guard.count_responses(CountedResponses::Failures)),
    );
    let seen = statuses(&app, &[200, 200, 401, 200, 401, 200]).await;
    assert_eq!(seen, [200, 200, 401, 200, 401, 429]);
}

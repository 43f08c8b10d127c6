//! The load-shedding layer, in process and on a clock that the test moves: the outcomes reported to the limit, and the
//! release of permits.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::ConcurrencyLimiter;
use tollgate::clock::Manual;
use tollgate::concurrency::{CompletedCall, PermitDenied, PermitObserver, PermitOutcome};
use tollgate_adaptive::shed::{Criticality, LoadShedder, Partitions};
use tollgate_tower::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::kit::{as_grpc, fields, task};
use crate::points::{Gradual, at_every_point};

fn request() -> Request<String> {
    Request::new(String::new())
}

/// The outcomes that were reported to a limit, in order.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(PermitOutcome, u128)>>>);

impl Told {
    fn take(&self) -> Vec<(PermitOutcome, u128)> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl PermitObserver for Told {
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        let told = (ended.ending, ended.latency.as_millis());
        self.0.lock().expect("no panic").push(told);
        None
    }
}

fn limiter(limit: u32) -> (Arc<ConcurrencyLimiter<Arc<Manual>>>, Told, Arc<Manual>) {
    let (told, clock) = (Told::default(), Arc::new(Manual::new()));
    let limiter = ConcurrencyLimiter::builder(limit)
        .observer(told.clone())
        .clock(Arc::clone(&clock));
    (Arc::new(limiter.build()), told, clock)
}

#[test]
fn places_come_back_wherever_a_request_is_dropped() {
    let (limiter, told, _) = limiter(1);
    let is_free = || limiter.peek().in_use == 0;
    let by = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter));
    let served = || by.layer(Gradual::default());
    let points = at_every_point(served, request, || (), is_free);
    assert!(points > 12, "{points}");
    // Dropped before its head it says nothing, and with it all is said.
    let endings: Vec<_> = told.take().into_iter().map(|(ending, _)| ending).collect();
    let first = endings
        .iter()
        .position(|ending| *ending != PermitOutcome::Ignored);
    let (ignored, done) = endings.split_at(first.expect("a success"));
    assert!(
        ignored.len() == 4
            && done.len() > 7
            && done.iter().all(|ending| *ending == PermitOutcome::Success),
        "{endings:?}"
    );

    let calls = by.clone().for_client();
    let called = || calls.layer(Gradual::default());
    assert_eq!(at_every_point(called, request, || (), is_free), points);

    let shedder = Arc::new(LoadShedder::new(Arc::clone(&limiter)));
    let by = ConcurrencyLimitLayer::by_criticality(shedder, |_: &Request<String>| {
        Criticality::Sheddable
    });
    let served = || by.layer(Gradual::default());
    assert_eq!(at_every_point(served, request, || (), is_free), points);

    let parts = Arc::new(Partitions::new(Arc::clone(&limiter), &[("all", 100)]));
    let by = ConcurrencyLimitLayer::by_partition(Arc::clone(&parts), |_: &Request<String>| "all");
    let served = || by.layer(Gradual::default());
    let is_free = || is_free() && parts.in_use("all") == 0;
    assert_eq!(at_every_point(served, request, || (), is_free), points);
}

#[test]
fn latency_is_from_admission_to_the_head() {
    let (limiter, told, clock) = limiter(1);
    let mut service =
        ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).layer(Gradual::default());
    let mut call = task(service.call(request()));
    let answer = loop {
        match call.poll_once() {
            Some(answer) => break answer.expect("an answer"),
            // To be made ready is part of it, too.
            None => clock.advance(Duration::from_millis(10)),
        }
    };
    assert_eq!(told.take(), [(PermitOutcome::Success, 40)]);
    assert!(limiter.try_acquire().is_err(), "its body is to be sent");
    clock.advance(Duration::from_secs(9));
    drop(answer);
    assert_eq!((told.take(), limiter.peek().in_use), (vec![], 0));
}

/// Answers so, or fails.
async fn answers(answer: Result<(u16, Option<&'static str>), ()>) -> io::Result<Response<String>> {
    let (status, grpc) = answer.map_err(|()| io::ErrorKind::ConnectionReset)?;
    let mut answer = Response::builder().status(status);
    if let Some(code) = grpc {
        answer = answer.header("grpc-status", code);
    }
    Ok(answer.body(String::new()).expect("a status"))
}

#[tokio::test]
async fn what_came_of_a_request_is_what_the_limit_learns() {
    use PermitOutcome::{Dropped, Ignored, Success};
    // What it means in front of a service, and to a client.
    for (answer, serving, calling) in [
        (Ok((200, None)), Success, Success),
        (Ok((302, None)), Success, Success),
        (Ok((404, None)), Ignored, Ignored),
        (Ok((429, None)), Ignored, Dropped),
        (Ok((500, None)), Ignored, Ignored),
        (Ok((502, None)), Dropped, Dropped),
        (Ok((503, None)), Dropped, Dropped),
        (Ok((504, None)), Dropped, Dropped),
        (Ok((505, None)), Ignored, Ignored),
        (Ok((200, Some("0"))), Success, Success),
        (Ok((200, Some("3"))), Ignored, Ignored),
        (Ok((200, Some("4"))), Dropped, Dropped),
        (Ok((200, Some("8"))), Ignored, Dropped),
        (Ok((200, Some("13"))), Ignored, Ignored),
        (Ok((200, Some("14"))), Dropped, Dropped),
        (Err(()), Dropped, Dropped),
    ] {
        let (limiter, told, _) = limiter(1);
        let layer = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter));
        let service = service_fn(move |_: Request<String>| answers(answer));
        drop(layer.layer(service).oneshot(request()).await);
        let client = layer.clone().for_client().layer(service);
        drop(client.oneshot(request()).await);
        let other = layer.classify_status(|_| Success).layer(service);
        drop(other.oneshot(request()).await);
        let otherwise = if answer.is_ok() { Success } else { Dropped };
        let told: Vec<_> = told.take().into_iter().map(|(ending, _)| ending).collect();
        assert_eq!(told, [serving, calling, otherwise], "{answer:?}");
        assert_eq!(limiter.peek().in_use, 0);
    }
}

/// A service that is not ready, and returns `Pending`.
#[derive(Clone)]
struct Unready;

impl Service<Request<String>> for Unready {
    type Response = Response<String>;
    type Error = io::Error;
    type Future = std::future::Pending<io::Result<Response<String>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        panic!("it isn't ready");
    }
}

#[tokio::test]
async fn a_service_that_never_gets_ready_is_an_error_and_keeps_no_place() {
    let (limiter, told, _) = limiter(1);
    let layer = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter));
    let error = layer.layer(Unready).oneshot(request()).await.err();
    assert_eq!(
        error.map(|error| error.kind()),
        Some(io::ErrorKind::ConnectionRefused)
    );
    let client = layer.for_client().layer(Unready);
    let error = client.oneshot(request()).await.expect_err("not ready");
    assert!(error.is::<io::Error>(), "{error}");
    assert_eq!(told.take(), [(PermitOutcome::Dropped, 0); 2]);
    assert_eq!(limiter.peek().in_use, 0);
}

/// Where a service panics.
#[derive(Clone, Copy, PartialEq)]
enum Panics {
    Readying,
    Calling,
    Answering,
    Sending,
}

impl Service<Request<String>> for Panics {
    type Response = Response<Self>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        assert!(*self != Self::Readying, "on purpose");
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(*self != Self::Calling, "on purpose");
        let me = *self;
        Box::pin(async move {
            assert!(me != Self::Answering, "on purpose");
            Ok(Response::new(me))
        })
    }
}

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        panic!("on purpose");
    }
}

#[test]
fn places_come_back_wherever_a_service_panics() {
    let points = [
        (Panics::Readying, PermitOutcome::Ignored),
        (Panics::Calling, PermitOutcome::Ignored),
        (Panics::Answering, PermitOutcome::Ignored),
        (Panics::Sending, PermitOutcome::Success),
    ];
    for (number, (panics, ending)) in points.into_iter().enumerate() {
        let (limiter, told, _) = limiter(1);
        let service = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).layer(panics);
        let crashed = catch_unwind(AssertUnwindSafe(|| {
            let mut call = task(async {
                let answer = service.oneshot(request()).await.expect("an answer");
                answer
                    .into_body()
                    .collect()
                    .await
                    .expect("a body")
                    .to_bytes()
            });
            call.poll_once()
        }));
        assert!(crashed.is_err(), "point {number}");
        assert_eq!(told.take(), [(ending, 0)], "point {number}");
        assert_eq!(limiter.peek().in_use, 0, "point {number}");
    }
}

/// Answers with a body that has to be sent yet.
async fn full(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn clones_share_the_limit_and_refusals_say_what_to_do() {
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let layer = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).named("workers");
    let service = layer.layer(service_fn(full));
    let mut first = service.clone().oneshot(request()).await.expect("an answer");
    assert_eq!(first.status(), 200);
    for other in [service.clone(), layer.clone().layer(service_fn(full))] {
        let refused = other.oneshot(request()).await.expect("an answer");
        assert_eq!(refused.status(), 503);
        let said = fields(refused.headers());
        let expected = [
            "retry-after: 1",
            "content-type: application/problem+json",
            "cache-control: no-store",
        ];
        assert_eq!(said, expected);
        let body = refused.into_body().collect().await.expect("a body");
        assert_eq!(
            String::from_utf8_lossy(&body.to_bytes()),
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"The server is overloaded: try again later","status":503,"reason":"shed","violated-policies":["workers"],"retry_after":1}"#,
        );
    }
    let client = layer.for_client().layer(service_fn(full));
    let error = client.clone().oneshot(request()).await.expect_err("full");
    assert!(error.is::<PermitDenied>());
    assert_eq!(
        error.to_string(),
        "concurrency limit: 1 of 1 in use, 0 waiting"
    );
    // The last frame ends it, though the body is still there.
    assert!(first.body_mut().frame().await.is_some());
    assert_eq!(limiter.peek().in_use, 0);
    assert!(client.oneshot(request()).await.is_ok());
    assert_eq!(limiter.stats().denied, 3);
}

#[tokio::test]
async fn an_answer_without_a_body_keeps_no_place() {
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let empty = |_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) };
    let service =
        ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).layer(service_fn(empty));
    let answer = service.oneshot(request()).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), limiter.peek().in_use), (200, 0));
}

#[tokio::test]
async fn a_refused_call_of_grpc_is_unavailable() {
    let layer = ConcurrencyLimitLayer::with_limiter(Arc::new(ConcurrencyLimiter::new(0)));
    let service = layer.layer(service_fn(full));
    let refused = service
        .oneshot(as_grpc(request()))
        .await
        .expect("an answer");
    assert_eq!(refused.status(), 200);
    let said = fields(refused.headers());
    let expected = [
        "content-type: application/grpc",
        "grpc-status: 14",
        "grpc-message: The server is overloaded: try again later",
        "grpc-retry-pushback-ms: 1000",
    ];
    assert_eq!(said[..4], expected);
    assert!(http_body::Body::is_end_stream(refused.body()));
}

/// Anything else with that content type reads a status, and no cache keeps it.
#[tokio::test]
async fn only_post_over_http_2_is_refused_as_grpc_does() {
    for (method, version, status) in [
        ("GET", http::Version::HTTP_2, 503),
        ("POST", http::Version::HTTP_11, 503),
        ("POST", http::Version::HTTP_2, 200),
    ] {
        let layer = ConcurrencyLimitLayer::with_limiter(Arc::new(ConcurrencyLimiter::new(0)));
        let mut request = as_grpc(request());
        *request.method_mut() = method.parse().expect("a method");
        *request.version_mut() = version;
        let service = layer.layer(service_fn(full));
        let refused = service.oneshot(request).await.expect("an answer");
        assert_eq!(refused.status(), status, "{method} {version:?}");
        let kept = refused.headers().get("cache-control");
        let expected = (status == 503).then_some("no-store");
        assert_eq!(kept.and_then(|value| value.to_str().ok()), expected);
    }
}

#[tokio::test]
async fn a_share_is_there_whatever_others_use() {
    let limiter = Arc::new(ConcurrencyLimiter::new(4));
    let parts = Arc::new(Partitions::new(limiter, &[("live", 50), ("batch", 50)]));
    let layer = ConcurrencyLimitLayer::by_partition(parts, |request: &Request<String>| {
        request.uri().path().trim_start_matches('/')
    });
    let service = layer.layer(service_fn(full));
    let mut held = Vec::new();
    let mut passed = Vec::new();
    for path in ["/batch", "/live", "/others"] {
        let mut count = 0;
        for _ in 0..5 {
            let mut request = request();
            *request.uri_mut() = path.parse().expect("a path");
            let answer = service.clone().oneshot(request).await.expect("an answer");
            count += u32::from(answer.status() == 200);
            held.push(answer);
        }
        passed.push(count);
    }
    assert_eq!(passed, [4, 2, 0], "all that is free, and what was promised");
}

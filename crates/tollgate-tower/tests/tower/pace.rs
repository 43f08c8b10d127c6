//! The layer for clients, around a service with a limit.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response};
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate};
use tollgate_tower::outgoing::{HostPacer, HostPacerBuilder, MaxWait, PaceError};
use tollgate_tower::{BoxError, PaceLayer, RateLimitLayer, RatePerKey, keys};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt};

use crate::kit::app;

type Client = BoxCloneService<Request<axum::body::Body>, Response<axum::body::Body>, BoxError>;

/// A client that is paced, of a service with this rate, on one clock.
fn client(
    server: Rate,
    builder: HostPacerBuilder,
) -> (Client, Arc<HostPacer<Manual, Manual>>, Manual) {
    let clock = Manual::new();
    let limiter = KeyedLimiter::builder(server, 10).clock(clock.clone());
    let limiter = Arc::new(limiter.build().expect("a rate"));
    let app = app(RateLimitLayer::new(RatePerKey::with_limiter(
        limiter,
        keys::Global,
    )));
    let pacer = Arc::new(
        builder
            .build_on(clock.clone(), clock.clone())
            .expect("a rate"),
    );
    let client = PaceLayer::with_pacer(Arc::clone(&pacer)).layer(app);
    (BoxCloneService::new(client), pacer, clock)
}

fn request() -> Request<axum::body::Body> {
    let request = Request::get("http://user:secret@API.example.com/");
    request.body(axum::body::Body::empty()).expect("a request")
}

/// Sends a request, and moves the time while it waits; returns the steps of 10 ms.
fn ask(client: &mut Client, clock: &Manual) -> (u16, u32) {
    let mut answer = pin!(client.call(request()));
    for steps in 0..10_000 {
        match answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(answer) => return (answer.expect("an answer").status().as_u16(), steps),
            Poll::Pending => clock.advance(Duration::from_millis(10)),
        }
    }
    panic!("it never ends");
}

#[test]
fn a_client_that_is_told_what_is_left_is_never_refused() {
    let own = HostPacer::builder(Rate::per_second(1_000));
    let (mut client, _, clock) = client(Rate::per_second(5).burst(10), own);
    let mut steps = 0;
    for _ in 0..60 {
        let (status, more) = ask(&mut client, &clock);
        assert_eq!(status, 200);
        steps += more;
    }
    assert!(
        steps >= 900,
        "the service lets 10 pass, then 5 a second: {steps}"
    );
}

#[test]
fn a_call_that_can_not_be_made_in_time_is_not_made() {
    let own = HostPacer::builder(Rate::per_second(1).burst(1));
    let (mut client, pacer, clock) = client(Rate::per_second(100), own);
    assert_eq!(ask(&mut client, &clock), (200, 0));
    let mut hasty = request();
    hasty
        .extensions_mut()
        .insert(MaxWait(Duration::from_millis(500)));
    let mut answer = pin!(client.call(hasty));
    match answer
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(Err(error)) => {
            let stalled = error.downcast_ref::<PaceError>().expect("it wasn't made");
            assert_eq!(
                stalled.to_string(),
                "api.example.com:80 may be asked in 1s, and a call waits for 500ms at most"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pacer.waiting(), 0);
    // With more patience it waits, and frees its place when it is dropped.
    {
        let mut answer = pin!(client.call(request()));
        let polled = answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(pacer.waiting(), 1);
    }
    assert_eq!(pacer.waiting(), 0);
    assert_eq!(ask(&mut client, &clock), (200, 100));
}

/// A service must not be polled for readiness and then left: others may need the permit it keeps for that.
#[derive(Clone)]
struct Readied(Arc<AtomicU32>);

impl Service<Request<()>> for Readied {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(())))
    }
}

#[test]
fn the_client_is_made_ready_when_the_wait_is_over() {
    let clock = Manual::new();
    let pacer = HostPacer::builder(Rate::per_second(1).burst(1));
    let pacer = pacer
        .build_on(clock.clone(), clock.clone())
        .expect("a rate");
    let readied = Arc::new(AtomicU32::new(0));
    let client = PaceLayer::with_pacer(Arc::new(pacer)).layer(Readied(Arc::clone(&readied)));
    let mut context = Context::from_waker(Waker::noop());
    let first = pin!(client.clone().oneshot(Request::new(()))).poll(&mut context);
    assert!(first.is_ready());
    assert_eq!(readied.load(Ordering::Relaxed), 1);
    let mut second = pin!(client.oneshot(Request::new(())));
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert_eq!(readied.load(Ordering::Relaxed), 1, "it waits");
    clock.advance(Duration::from_secs(1));
    assert!(second.as_mut().poll(&mut context).is_ready());
    assert_eq!(readied.load(Ordering::Relaxed), 2);
}

/// The same host with its usual port written, or not, in whatever case, and with a password before it.
#[test]
fn one_host_has_one_pace_however_it_is_written() {
    let clock = Manual::new();
    let pacer = HostPacer::builder(Rate::per_second(1).burst(1));
    let pacer = pacer
        .build_on(clock.clone(), clock.clone())
        .expect("a rate");
    let client = PaceLayer::with_pacer(Arc::new(pacer)).layer(Readied(Arc::default()));
    let mut made = Vec::new();
    for address in [
        "https://api.example.com/",
        "https://api.example.com:443/a",
        "https://me:secret@API.example.com/b",
        "http://api.example.com/",
        "http://api.example.com:80/",
    ] {
        let mut request = Request::get(address).body(()).expect("a request");
        request.extensions_mut().insert(MaxWait(Duration::ZERO));
        let call = pin!(client.clone().oneshot(request));
        let polled = call.poll(&mut Context::from_waker(Waker::noop()));
        made.push(matches!(polled, Poll::Ready(Ok(_))));
    }
    assert_eq!(made, [true, false, false, true, false]);
}

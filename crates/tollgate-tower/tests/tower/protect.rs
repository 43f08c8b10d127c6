//! The client layers with a circuit breaker and retries, on a clock that the test moves, dropped wherever they wait.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Method, Request, Response};
use tollgate::ConcurrencyLimiter;
use tollgate::clock::Manual;
use tollgate::concurrency::{PermitDenied, PermitOutcome};
use tollgate_adaptive::breaker::{
    CircuitBreaker, CircuitOpen, CircuitState, ForcedState, Thresholds,
};
use tollgate_adaptive::protect::{Backoff, Retry, RetryBudget};
use tollgate_tower::{BoxError, BreakerLayer, ConcurrencyLimitLayer, RetryLayer};
use tower::{Layer, Service, service_fn};

use crate::points::{Gradual, at_every_point};

/// What a call comes to.
#[derive(Clone, Copy, Debug)]
enum Comes {
    Status(u16),
    /// 503, with this `Retry-After`.
    Later(&'static str),
    Error,
    /// Not even ready.
    Unready,
    /// Never.
    Hangs,
}

use Comes::{Error, Hangs, Later, Status, Unready};

/// A client that comes to these, one after another, and to 200 after that.
#[derive(Clone, Default)]
struct Client {
    script: Arc<Mutex<VecDeque<Comes>>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Client {
    fn new(script: &[Comes]) -> Self {
        let client = Self::default();
        client.script.lock().expect("no panic").extend(script);
        client
    }

    fn calls(&self) -> usize {
        self.calls.lock().expect("no panic").len()
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<()>, io::Error>> + Send>>;

impl Service<Request<String>> for Client {
    type Response = Response<()>;
    type Error = io::Error;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        let mut script = self.script.lock().expect("no panic");
        match script.front() {
            Some(Unready) => {
                script.pop_front();
                Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<String>) -> Answering {
        let mut calls = self.calls.lock().expect("no panic");
        calls.push(request.into_body());
        let comes = self.script.lock().expect("no panic").pop_front();
        Box::pin(async move {
            let answer = Response::builder();
            let answer = match comes {
                None => answer.status(200),
                Some(Status(status)) => answer.status(status),
                Some(Later(when)) => answer.status(503).header("retry-after", when),
                Some(Error | Unready) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(Hangs) => std::future::pending().await,
            };
            Ok(answer.body(()).expect("a status"))
        })
    }
}

fn request(method: Method) -> Request<String> {
    let request = Request::builder().method(method);
    request.body("the same".to_owned()).expect("a request")
}

fn look<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Asks, and moves the time while that waits; the status or error, and after how many steps of 10 ms it came.
fn ask<S>(client: &mut S, clock: &Manual, method: Method) -> (Result<u16, BoxError>, u64)
where
    S: Service<Request<String>, Response = Response<()>, Error = BoxError>,
{
    let mut answer = pin!(client.call(request(method)));
    for step in 0..100_000 {
        match look(answer.as_mut()) {
            Some(answer) => return (answer.map(|answer| answer.status().as_u16()), step),
            None => clock.advance(Duration::from_millis(10)),
        }
    }
    panic!("it never ends");
}

fn breaker(clock: &Manual) -> Arc<CircuitBreaker<Manual>> {
    let terms = Thresholds {
        min_calls: 2,
        ..Thresholds::default()
    };
    Arc::new(CircuitBreaker::with_clock(terms, clock.clone()))
}

#[test]
fn what_fails_isnt_called_until_a_probe_succeeds() {
    let clock = Manual::new();
    let backend = Client::new(&[Status(500), Error, Status(404)]);
    let mut client = BreakerLayer::with_breaker(breaker(&clock)).layer(backend.clone());
    assert_eq!(
        ask(&mut client, &clock, Method::GET).0.expect("a status"),
        500
    );
    ask(&mut client, &clock, Method::GET)
        .0
        .expect_err("an error");
    let refused = ask(&mut client, &clock, Method::GET).0.expect_err("open");
    assert!(refused.is::<CircuitOpen>(), "{refused}");
    assert_eq!(backend.calls(), 2, "nothing was called");
    clock.advance(Duration::from_secs(1));
    // What isn't found is an answer all the same.
    assert_eq!(
        ask(&mut client, &clock, Method::GET).0.expect("a status"),
        404
    );
    assert_eq!(
        ask(&mut client, &clock, Method::GET).0.expect("a status"),
        200
    );
}

#[test]
fn what_an_answer_means_can_be_said() {
    for (script, state) in [
        (Status(429), CircuitState::Closed),
        (Status(503), CircuitState::Open),
        (Status(400), CircuitState::Closed),
        (Unready, CircuitState::Open),
    ] {
        let clock = Manual::new();
        let breaker = breaker(&clock);
        let layer = BreakerLayer::with_breaker(Arc::clone(&breaker));
        let mut client = layer.layer(Client::new(&[script; 2]));
        for _ in 0..2 {
            let _ = ask(&mut client, &clock, Method::GET);
        }
        assert_eq!(breaker.state(), state, "{script:?}");
    }
    let clock = Manual::new();
    let breaker = breaker(&clock);
    let layer = BreakerLayer::with_breaker(Arc::clone(&breaker))
        .classify_status(|_| PermitOutcome::Dropped);
    let mut client = layer.layer(Client::default());
    for _ in 0..2 {
        let _ = ask(&mut client, &clock, Method::GET);
    }
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[test]
fn a_probe_that_is_dropped_keeps_the_circuit_open_as_long_again() {
    let clock = Manual::new();
    let breaker = breaker(&clock);
    let backend = Client::new(&[Error, Error, Hangs]);
    let mut client = BreakerLayer::with_breaker(Arc::clone(&breaker)).layer(backend);
    for _ in 0..2 {
        ask(&mut client, &clock, Method::GET)
            .0
            .expect_err("an error");
    }
    clock.advance(Duration::from_secs(1));
    // Before it is looked at nothing was asked, and while it hangs others are refused.
    drop(client.call(request(Method::GET)));
    {
        let mut hangs = pin!(client.call(request(Method::GET)));
        assert!(look(hangs.as_mut()).is_none());
        ask(&mut client, &clock, Method::GET)
            .0
            .expect_err("one probe at a time");
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        ask(&mut client, &clock, Method::GET).0.expect("a status"),
        200
    );
    assert_eq!(breaker.state(), CircuitState::Closed);
}

/// Waits of exactly 0, so that only what servers say is waited for.
fn at_once(clock: &Manual) -> Retry<Manual> {
    let backoff = Backoff::new().waits(Duration::ZERO, Duration::ZERO);
    Retry::with_clock(backoff, clock.clone())
}

#[track_caller]
fn check(script: &[Comes], method: Method, status: Option<u16>, calls: usize, millis: u64) {
    let clock = Manual::new();
    let backend = Client::new(script);
    let layer = RetryLayer::with_retry(Arc::new(at_once(&clock)));
    let layer = layer.retry_errors(|error| error.is::<io::Error>());
    let (answer, steps) = ask(&mut layer.layer(backend.clone()), &clock, method);
    assert_eq!(answer.ok(), status);
    let sent = backend.calls.lock().expect("no panic").clone();
    assert_eq!(sent, vec!["the same"; calls]);
    assert_eq!(steps * 10, millis);
}

#[test]
fn only_what_is_named_is_tried_again_and_no_earlier_than_servers_say() {
    check(&[], Method::GET, Some(200), 1, 0);
    check(&[Status(502), Status(504)], Method::GET, Some(200), 3, 0);
    check(&[Status(503); 9], Method::GET, Some(503), 3, 0);
    check(&[Status(500)], Method::GET, Some(500), 1, 0);
    check(&[Status(503)], Method::POST, Some(503), 1, 0);
    check(&[Status(503)], Method::PUT, Some(200), 2, 0);
    check(&[Error, Unready], Method::GET, Some(200), 2, 0);
    check(&[Error; 3], Method::DELETE, None, 3, 0);
    check(&[Later("2"), Later("1")], Method::GET, Some(200), 3, 3_000);
    check(&[Later("60")], Method::GET, Some(200), 2, 60_000);
    check(&[Later("61")], Method::GET, Some(503), 1, 0);
    check(
        &[Later("99999999999999999999")],
        Method::GET,
        Some(503),
        1,
        0,
    );
    check(&[Later("soon")], Method::GET, Some(200), 2, 0);
}

#[test]
fn errors_are_tried_again_only_if_they_are_named() {
    let clock = Manual::new();
    let backend = Client::new(&[Error]);
    let layer = RetryLayer::with_retry(Arc::new(at_once(&clock)));
    let answer = ask(&mut layer.layer(backend.clone()), &clock, Method::GET).0;
    answer.expect_err("an error");
    assert_eq!(backend.calls(), 1);
    let layer = layer
        .retry_methods(|_| true)
        .retry_statuses(|status| status == 500);
    let backend = Client::new(&[Status(500), Status(503)]);
    let answer = ask(&mut layer.layer(backend.clone()), &clock, Method::POST).0;
    assert_eq!(answer.expect("a status"), 503);
    assert_eq!(backend.calls(), 2);
}

#[test]
fn a_budget_is_shared_by_all_clients_of_a_layer() {
    let clock = Manual::new();
    let retry = at_once(&clock).budget(Arc::new(RetryBudget::percent(10)));
    let layer = RetryLayer::with_retry(Arc::new(retry));
    let backend = Client::new(&[Status(503); 1_000]);
    for _ in 0..100 {
        let answer = ask(&mut layer.layer(backend.clone()), &clock, Method::GET).0;
        assert_eq!(answer.expect("a status"), 503);
    }
    assert_eq!(backend.calls(), 110);
}

#[test]
fn a_call_that_is_dropped_is_tried_no_more() {
    for script in [[Hangs, Hangs], [Later("5"), Hangs], [Status(503), Hangs]] {
        let clock = Manual::new();
        let backend = Client::new(&script);
        let mut client = RetryLayer::with_retry(Arc::new(at_once(&clock))).layer(backend.clone());
        let mut call = client.call(request(Method::GET));
        assert!(look(call.as_mut()).is_none());
        let calls = backend.calls();
        drop(call);
        clock.advance(Duration::from_secs(10));
        assert_eq!(backend.calls(), calls, "{script:?}");
    }
}

/// An inner layer that sends nothing reports no outcome for the backend.
#[test]
fn what_isnt_sent_is_neither_a_failure_nor_a_drop() {
    let clock = Manual::new();
    let breaker = breaker(&clock);
    let limiter = Arc::new(ConcurrencyLimiter::new(0));
    let breaks = BreakerLayer::with_breaker(Arc::clone(&breaker));
    let sheds = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).for_client();
    let mut full = breaks.layer(sheds.layer(Gradual::default()));
    for _ in 0..9 {
        let mut call = pin!(full.call(request(Method::GET)));
        let refused = look(call.as_mut()).expect("at once").expect_err("full");
        assert!(refused.is::<PermitDenied>(), "{refused}");
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
    breaker.force(ForcedState::Open);
    limiter.set_limit(1);
    let mut open = sheds.layer(breaks.layer(Gradual::default()));
    let mut call = pin!(open.call(request(Method::GET)));
    let refused = look(call.as_mut()).expect("at once").expect_err("open");
    assert!(refused.is::<CircuitOpen>(), "{refused}");
    let stats = limiter.stats();
    assert_eq!((stats.ignored, stats.dropped), (1, 0));
}

/// What was answered is of no use any more, and may hold a connection and a place.
#[test]
fn a_call_that_waits_to_be_tried_again_holds_no_place() {
    let clock = Manual::new();
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let backend = service_fn(|_: Request<String>| async {
        let answer = Response::builder().status(503).header("retry-after", "5");
        answer.body("down".to_owned())
    });
    let sheds = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).for_client();
    let mut client = RetryLayer::with_retry(Arc::new(at_once(&clock))).layer(sheds.layer(backend));
    let mut call = client.call(request(Method::GET));
    assert!(look(call.as_mut()).is_none());
    assert_eq!(limiter.peek().in_use, 0);
}

/// A client behind all three: retries around a breaker around a concurrency limit.
///
/// A retry costs from the moment its client is made ready, as that may connect; one that waits for its time costs nothing.
#[test]
fn places_probes_and_budget_come_back_wherever_a_call_is_dropped() {
    let clock = Manual::new();
    let (breaker, budget) = (breaker(&clock), Arc::new(RetryBudget::percent(100)));
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let retry = at_once(&clock).budget(Arc::clone(&budget));
    let retries = RetryLayer::with_retry(Arc::new(retry));
    // Open, and ready for one probe; what a probe finds says nothing here, so that each of them is one.
    let breaks = BreakerLayer::with_breaker(Arc::clone(&breaker))
        .classify_status(|_| PermitOutcome::Ignored);
    let sheds = ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter)).for_client();
    for _ in 0..2 {
        breaker.try_call().expect("closed").failure();
    }
    clock.advance(Duration::from_secs(1));
    let backend = Gradual::failing_first();
    let (mut left, mut retried) = (0, 0);
    let points = at_every_point(
        || {
            backend.begun.store(0, Ordering::Relaxed);
            retries.layer(breaks.layer(sheds.layer(backend.clone())))
        },
        || request(Method::GET),
        || clock.advance(Duration::from_millis(1)),
        || {
            let begun = backend.begun.load(Ordering::Relaxed);
            // Each call adds one, but for what was never looked at; and a second try takes one.
            left += u64::from(budget.left() > left || begun > 0);
            left -= begun.saturating_sub(1);
            retried += begun.saturating_sub(1);
            // One that was dropped keeps the circuit open for as long again, and then the next one is a probe.
            clock.advance(Duration::from_secs(1));
            let probes = breaker.try_call().map(|probe| probe.ignored()).is_ok();
            budget.left() == left && limiter.peek().in_use == 0 && probes
        },
    );
    assert!(points > 15 && retried > 5, "{points} points, {retried}");
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
}

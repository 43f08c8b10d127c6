//! The fast path from several threads: full tables, changing rates, and services that panic and fail.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate, WhenFull};
use tollgate_tower::{ConcurrencyLimit, RateLimitLayer, RatePerKey, RequestLimiter, Tarpit, keys};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::kit::{app, frames, from, per_key, task};

/// Each request is counted once, with its answer, under concurrent requests.
#[test]
fn a_crowd_is_counted_one_by_one() {
    const EACH: u64 = 3_000;
    for at_cap in [
        WhenFull::SharedBucket,
        WhenFull::DenyNew,
        WhenFull::AdmitNew,
        WhenFull::EvictNearestIdle,
    ] {
        let clock = Arc::new(Manual::new());
        let limiter = KeyedLimiter::builder(Rate::per_second(50).burst(5), 8);
        let limiter = limiter.at_cap(at_cap).clock(Arc::clone(&clock)).build();
        let limiter = Arc::new(limiter.expect("a rate"));
        let app = app(RateLimitLayer::new(RatePerKey::with_limiter(
            Arc::clone(&limiter),
            keys::ClientAddress::new(),
        )));
        let (passed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let callers = [0_u64, 1].map(|thread| {
                let (app, passed, refused, clock) = (&app, &passed, &refused, &clock);
                scope.spawn(move || {
                    for number in 0..EACH {
                        // Some that both ask for all the time, and many that come once in a while.
                        let client = if number % 3 == 0 {
                            number % 2
                        } else {
                            (number * 7 + thread) % 97
                        };
                        let request = from(&format!("192.0.2.{client}"), "/");
                        let answer = task(app.clone().oneshot(request)).poll_once();
                        let answer = answer.expect("at once").expect("an answer");
                        let count = if answer.status() == 200 {
                            passed
                        } else {
                            refused
                        };
                        count.fetch_add(1, Ordering::Relaxed);
                        if number % 5 == 0 {
                            clock.advance(Duration::from_millis(1));
                        }
                    }
                })
            });
            scope.spawn(|| {
                let mut rate = 0;
                while !is_over.load(Ordering::Relaxed) {
                    rate += 1;
                    let next = Rate::per_second(10 + rate % 200).burst(1 + rate % 7);
                    limiter.set_rate(next).expect("a rate");
                    std::thread::yield_now();
                }
            });
            for caller in callers {
                assert!(caller.join().is_ok());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let (passed, refused) = (passed.into_inner(), refused.into_inner());
        let stats = limiter.stats();
        assert_eq!(
            (stats.allowed, stats.denied),
            (passed, refused),
            "{at_cap:?}"
        );
        assert_eq!(passed + refused, 2 * EACH);
        assert!(passed > 0);
    }
}

/// What a service does by the path of a request.
async fn wild(request: Request<Body>) -> Result<Response<Body>, &'static str> {
    match request.uri().path() {
        "/panics" => panic!("as a service may"),
        "/fails" => Err("no answer"),
        "/breaks" => {
            let part = Ok::<_, Infallible>(Frame::data(Bytes::from("part")));
            let parts = std::iter::once(part);
            let parts = parts.chain(std::iter::from_fn(|| panic!("in its body")));
            Ok(Response::new(Body::new(StreamBody::new(frames(parts)))))
        }
        _ => Ok(Response::new(Body::from("hello"))),
    }
}

#[test]
fn slots_come_back_from_services_that_panic_and_fail() {
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let layer = RateLimitLayer::new(limits);
    let call = |path: &str| {
        let mut same = layer.layer(service_fn(wild));
        let mut context = Context::from_waker(Waker::noop());
        let is_ready = Service::<Request<Body>>::poll_ready(&mut same, &mut context);
        assert!(is_ready.is_ready());
        task(same.call(from("192.0.2.1", path)))
    };
    for path in ["/panics", "/fails", "/breaks", "/"] {
        let mut call = call(path);
        let answer = catch_unwind(AssertUnwindSafe(|| call.poll_once()));
        match path {
            "/panics" => assert!(answer.is_err() && !limiter.is_empty()),
            "/fails" => {
                assert!(matches!(answer, Ok(Some(Err(_)))) && limiter.is_empty());
            }
            _ => {
                let answer = answer
                    .expect("no panic")
                    .expect("at once")
                    .expect("an answer");
                let again = catch_unwind(AssertUnwindSafe(|| call.poll_once()));
                assert!(again.is_err(), "polled after it was ready");
                drop(call);
                assert!(!limiter.is_empty(), "it is held until the body has ended");
                let mut body = task(answer.into_body().collect());
                let read = catch_unwind(AssertUnwindSafe(|| body.poll_once()));
                assert_eq!(read.is_err(), path == "/breaks");
                drop((read, body));
                assert!(limiter.is_empty());
                continue;
            }
        }
        drop(call);
        assert!(limiter.is_empty(), "{path}");
    }
}

/// Tarpits of any size, and times of any length.
#[test]
fn tarpits_of_any_size_hold_and_let_go() {
    for (longest, places) in [
        (Duration::MAX, u32::MAX),
        (Duration::MAX, 1),
        (Duration::from_secs(1), 0),
        (Duration::ZERO, 5),
    ] {
        let (limits, clock) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
        let guard = RequestLimiter::new(limits).clock(Arc::clone(&clock));
        let guard = guard.tarpit(Tarpit::new(longest, places), keys::ClientAddress::new());
        let app = app(RateLimitLayer::from_limiter(guard));
        let call = || task(app.clone().oneshot(from("192.0.2.1", "/")));
        let mut statuses = Vec::new();
        let mut stuck = Vec::new();
        for _ in 0..4 {
            let mut call = call();
            match call.poll_once() {
                Some(answer) => statuses.push(answer.expect("an answer").status().as_u16()),
                None => stuck.push(call),
            }
        }
        let is_held = places > 0 && !longest.is_zero();
        assert_eq!(stuck.len(), usize::from(is_held), "{longest:?} {places}");
        assert_eq!(statuses[0], 200);
        assert!(statuses[1..].iter().all(|status| *status == 429));
        if let Some(mut one) = stuck.pop() {
            clock.advance(Duration::from_secs(3_601));
            let answer = one.poll_once().expect("its time has come");
            assert_eq!(answer.expect("an answer").status(), 429);
        }
    }
}

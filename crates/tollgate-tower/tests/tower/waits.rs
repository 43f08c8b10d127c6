//! Requests that wait in a queue instead of being denied.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tollgate::clock::Tokio;
use tollgate::{Algorithm, KeyedLimiter, Rate, StoredKeyLimiter};
use tollgate_tower::{
    ActualCost, CountedResponses, RateLimitLayer, RatePerKey, RequestLimiter, Settle,
    SettlingRatePerKey, keys,
};
use tower::{Layer, Service, ServiceExt};

use crate::kit::{app, ask, from, left, statuses, task};

fn waiting(longest: Duration) -> RatePerKey<keys::ClientAddress, Arc<Tokio>> {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    limits.max_wait(longest)
}

fn limited(longest: Duration) -> Router {
    app(RateLimitLayer::new(waiting(longest)))
}

#[tokio::test(start_paused = true)]
async fn who_can_pass_in_time_waits_and_others_are_refused_at_once() {
    let app = limited(Duration::from_millis(2_500));
    let began = tokio::time::Instant::now();
    let request = || ask(&app, from("192.0.2.1", "/"));
    let (a, b, c, d) = tokio::join!(request(), request(), request(), request());
    let statuses = [a.status, b.status, c.status, d.status];
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(left(&c), 0);
    assert_eq!(began.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_frees_its_place() {
    let app = limited(Duration::from_millis(1_500));
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    let mut second = task(app.clone().oneshot(from("192.0.2.1", "/")));
    assert!(second.poll_once().is_none());
    // Behind it there is no time left.
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 429);
    drop(second);
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
}

/// Has places of which one is taken by getting ready, as services with a pool of something do.
struct Places {
    taken: Arc<AtomicUsize>,
    is_ready: bool,
}

impl Clone for Places {
    fn clone(&self) -> Self {
        Self {
            taken: Arc::clone(&self.taken),
            is_ready: false,
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if self.is_ready {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Service<Request<Body>> for Places {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if !self.is_ready {
            self.taken.fetch_add(1, Ordering::Relaxed);
            self.is_ready = true;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(self.is_ready, "called before it was ready");
        self.is_ready = false;
        self.taken.fetch_sub(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::new(Body::empty())))
    }
}

/// Whoever waits here holds no place there.
#[tokio::test(start_paused = true)]
async fn the_service_is_made_ready_after_the_wait() {
    let taken = Arc::new(AtomicUsize::new(0));
    let places = Places {
        taken: Arc::clone(&taken),
        is_ready: false,
    };
    let layer = RateLimitLayer::new(waiting(Duration::from_secs(5)));
    let service = layer.layer(places);
    let first = service.clone().oneshot(from("192.0.2.1", "/")).await;
    assert_eq!(first.expect("an answer").status(), 200);
    let mut second = task(service.clone().oneshot(from("192.0.2.1", "/")));
    assert!(second.poll_once().is_none());
    assert_eq!(taken.load(Ordering::Relaxed), 0, "it waits");
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    let second = second.poll_once().expect("its turn").expect("an answer");
    assert_eq!(second.status(), 200);
    assert_eq!(taken.load(Ordering::Relaxed), 0);
}

fn exact(rate: Rate, longest: Duration) -> SettlingRatePerKey<keys::ClientAddress, Arc<Tokio>> {
    let limiter = StoredKeyLimiter::builder(rate, 1_000)
        .algorithm(Algorithm::TokenBucket)
        .clock(Arc::new(Tokio::new()));
    let limiter = Arc::new(limiter.build().expect("a rate"));
    SettlingRatePerKey::with_limiter(limiter, keys::ClientAddress::new()).max_wait(longest)
}

/// The same for limits that settle: one after the other, no longer than configured, and in shadow mode not at all.
#[tokio::test(start_paused = true)]
async fn what_settles_waits_as_well() {
    let limits = || exact(Rate::per_second(1), Duration::from_millis(2_500));
    let enforced = app(RateLimitLayer::new(limits()));
    let began = tokio::time::Instant::now();
    let request = || ask(&enforced, from("192.0.2.1", "/"));
    let (a, b, c, d) = tokio::join!(request(), request(), request(), request());
    let seen = [a.status, b.status, c.status, d.status];
    assert_eq!((seen, left(&c)), ([200, 200, 200, 429], 0));
    assert_eq!(began.elapsed().as_secs(), 2);
    let shadow = app(RateLimitLayer::new(limits()).configure(RequestLimiter::shadow));
    let began = tokio::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(ask(&shadow, from("192.0.2.1", "/")).await.status, 200);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// Who waits for what others hold has it as soon as they give it back, and holds it then.
#[tokio::test(start_paused = true)]
async fn what_did_not_count_goes_to_those_who_wait() {
    let limits = exact(Rate::per_hour(1), Duration::from_secs(3_600));
    let limiter = Arc::clone(limits.limiter());
    let slow = |Path(code): Path<u16>| async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        StatusCode::from_u16(code).expect("a status")
    };
    let layer = RateLimitLayer::new(limits)
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    let app = Router::new().route("/{code}", get(slow)).layer(layer);
    let began = tokio::time::Instant::now();
    let (ada, bob) = ([200, 200], [200, 401]);
    let (first, second) = tokio::join!(statuses(&app, &ada), async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        statuses(&app, &bob).await
    });
    // By turns: each waits for the answer of the other, which takes 10 seconds.
    assert_eq!((first, second), (ada.to_vec(), bob.to_vec()));
    assert_eq!(began.elapsed().as_secs(), 40);
    // The failure counts, so the next one waits for an hour, and one behind it has no time left.
    let began = tokio::time::Instant::now();
    let (next, behind) = tokio::join!(statuses(&app, &[200]), statuses(&app, &[200]));
    assert_eq!((next, behind), (vec![200], vec![429]));
    assert_eq!(began.elapsed().as_secs(), 3_610);
    assert_eq!(limiter.waiters(), 0);
}

/// A request that is dropped at any point leaks nothing; and an estimate after a wait is settled like any other.
#[tokio::test(start_paused = true)]
async fn who_waited_is_charged_what_it_used() {
    let limits = exact(Rate::per_second(10).burst(100), Duration::from_secs(60));
    let limiter = Arc::clone(limits.limiter());
    let told = || async {
        let mut response = Response::new(Body::from("a story"));
        response.extensions_mut().insert(ActualCost(30));
        response
    };
    let guard = RequestLimiter::new(limits)
        .cost(|_| 80)
        .settle(Settle::ReportedByHandler);
    let app = Router::new()
        .route("/", get(told))
        .layer(RateLimitLayer::from_limiter(guard));
    let request = || from("192.0.2.1", "/");
    assert_eq!(left(&ask(&app, request()).await), 20);
    // 70 are left: one waits a second, and another leaves the line behind it.
    let mut first = task(app.clone().oneshot(request()));
    let mut gone = task(app.clone().oneshot(request()));
    assert!(first.poll_once().is_none() && gone.poll_once().is_none());
    assert_eq!(limiter.waiters(), 2);
    drop(gone);
    tokio::time::sleep(Duration::from_millis(1_010)).await;
    let answer = first.poll_once().expect("its turn").expect("an answer");
    assert_eq!((answer.status().as_u16(), limiter.waiters()), (200, 0));
    drop(answer);
    // One whose turn came, and who left before it noticed.
    let mut late = task(app.clone().oneshot(request()));
    assert!(late.poll_once().is_none());
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(late);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(left(&ask(&app, request()).await));
    }
    // Full, less an estimate; then less what was used and another estimate, which has to wait a second.
    assert_eq!(seen, [20, 0]);
}

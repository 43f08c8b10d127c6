//! Requests that wait for their turn in place of a refusal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use tollgate::clock::Tokio;
use tollgate::{KeyedLimiter, Rate};
use tollgate_tower::{PerKey, RateLimitLayer, keys};
use tower::{Layer, Service, ServiceExt};

use crate::kit::{app, ask, from, left, task};

fn waiting(longest: Duration) -> PerKey<keys::Address, Arc<Tokio>> {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = PerKey::by(
        Arc::new(limiter.build().expect("a rate")),
        keys::Address::new(),
    );
    limits.wait(longest)
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

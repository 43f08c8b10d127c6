//! A request that is dropped at any point leaves nothing behind.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tollgate::clock::Manual;
use tollgate::{Algorithm, ExactKeyedLimiter, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    AtOnce, ByPolicy, Counts, ExactPerKey, Head, Limits, RateLimitLayer, Settle, keys,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::kit::from;

/// Is there when it was asked a second time.
#[derive(Default)]
struct Twice {
    is_asked: bool,
}

impl Future for Twice {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.is_asked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Three frames, each of which takes a while.
struct Slow {
    left: u32,
    wait: Twice,
}

impl futures_core::Stream for Slow {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        if pin!(&mut self.wait).poll(context).is_pending() {
            return Poll::Pending;
        }
        self.wait = Twice::default();
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("chunk")))))
    }
}

async fn slow(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    for _ in 0..3 {
        Twice::default().await;
    }
    let wait = Twice::default();
    Ok(Response::new(Body::new(StreamBody::new(Slow {
        left: 3,
        wait,
    }))))
}

/// Goes as far as so many polls, and drops what there is then; says whether that was all.
fn drop_after<L: Limits<Head>>(layer: &RateLimitLayer<L>, polls: usize) -> bool {
    let service = layer.layer(service_fn(slow));
    let mut context = Context::from_waker(Waker::noop());
    let mut left = polls;
    let mut call = pin!(service.oneshot(from("192.0.2.1", "/")));
    let response = loop {
        if left == 0 {
            return false;
        }
        left -= 1;
        if let Poll::Ready(response) = call.as_mut().poll(&mut context) {
            break response.expect("an answer");
        }
    };
    assert_eq!(response.status(), 200, "after {polls}");
    let mut body = pin!(response.into_body());
    loop {
        if left == 0 {
            return false;
        }
        left -= 1;
        if let Poll::Ready(None) = http_body::Body::poll_frame(body.as_mut(), &mut context) {
            return true;
        }
    }
}

/// Every point at which something is awaited: more than ten of them, and nothing is held after any.
fn at_every_point<L: Limits<Head>>(layer: &RateLimitLayer<L>, is_free: impl Fn() -> bool) -> usize {
    let mut polls = 0;
    loop {
        let is_done = drop_after(layer, polls);
        assert!(is_free(), "dropped after {polls}");
        if is_done {
            return polls;
        }
        polls += 1;
    }
}

#[test]
fn slots_come_back_wherever_a_request_is_dropped() {
    let limits = AtOnce::new(1, keys::Address::new());
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
    let layer = RateLimitLayer::new(ByPolicy::new(Arc::clone(&engine)));
    let points = at_every_point(&layer, || engine.backend().in_flight() == 0);
    assert!(points > 10, "{points}");
}

/// What was held is charged or given back; never both, and never neither.
#[test]
fn holds_end_wherever_a_request_is_dropped() {
    for (settle, counts) in [
        (None, Counts::Failures),
        (Some(Settle::Told), Counts::All),
        (Some(Settle::Told), Counts::Successes),
    ] {
        let clock = Arc::new(Manual::new());
        let limiter = ExactKeyedLimiter::builder(Rate::per_hour(1_000), 10)
            .algorithm(Algorithm::TokenBucket)
            .clock(Arc::clone(&clock));
        let limiter = Arc::new(limiter.build().expect("a rate"));
        let limits = ExactPerKey::by(Arc::clone(&limiter), keys::Address::new());
        let layer = RateLimitLayer::new(limits).with(|guard| {
            let guard = guard.count(counts.clone());
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

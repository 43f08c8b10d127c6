//! A policy with adaptive concurrency: it learns from the statuses and latencies of responses, and sheds what it
//! denies.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::AdaptiveState;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::RateLimitLayer;
use tower::ServiceExt;

use crate::kit::{ask, from};

type Limits = Engine<Memory<Manual, Manual>>;

/// Each call takes a millisecond and is answered with the status in its path.
fn service(text: &str) -> (Arc<Limits>, Router) {
    let clock = Manual::new();
    let memory = Memory::builder().clock(clock.clone()).wall(Manual::new());
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    let engine = Arc::new(Engine::new(policy.policy, memory.build()).expect("a policy"));
    let answer = move |status: axum::extract::Path<u16>| {
        clock.advance(Duration::from_millis(1));
        std::future::ready(StatusCode::from_u16(*status).expect("a status"))
    };
    let layer = RateLimitLayer::from_policy(Arc::clone(&engine));
    (
        engine,
        Router::new().route("/{status}", get(answer)).layer(layer),
    )
}

fn state(engine: &Limits) -> AdaptiveState {
    engine.limiter_states()[0].adaptive.expect("it adapts")
}

#[tokio::test]
async fn only_what_is_overload_makes_the_limit_smaller() {
    let text = "limits: [{name: api, concurrency: {adaptive: aimd, max: 100}}]";
    for (status, limit) in [
        (200, 20),
        (302, 20),
        (400, 20),
        (429, 20),
        (500, 20),
        (502, 18),
        (503, 18),
        (504, 18),
    ] {
        let (engine, app) = service(text);
        let answer = ask(&app, from("192.0.2.1", &format!("/{status}"))).await;
        assert_eq!(answer.status, status);
        let now = state(&engine);
        assert_eq!((now.limit, now.in_flight), (limit, 0), "{status}");
    }
}

#[tokio::test]
async fn a_place_is_held_until_the_body_has_ended_and_what_is_too_much_is_shed() {
    let text = "limits: [{name: api, concurrency: {adaptive: aimd, max: 2}, shed: header.x-class}]";
    let (engine, app) = service(text);
    let held = app.clone().oneshot(from("192.0.2.1", "/200")).await;
    assert_eq!(state(&engine).in_flight, 1);
    let refused = ask(&app, from("192.0.2.1", "/200")).await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains(r#""reason":"shed""#), "{refused:?}");
    // Nobody knows when a place comes back, and nobody is to come again at once.
    assert!(
        refused.fields.contains(&"retry-after: 1".to_owned()),
        "{refused:?}"
    );
    assert!(refused.body.contains(r#""retry_after":1"#), "{refused:?}");
    let mut critical = from("192.0.2.1", "/200");
    let class = http::HeaderValue::from_static("critical");
    critical.headers_mut().insert("x-class", class);
    assert_eq!(ask(&app, critical).await.status, 200);
    drop(held);
    assert_eq!(state(&engine).in_flight, 0);
    assert_eq!(ask(&app, from("192.0.2.1", "/200")).await.status, 200);
}

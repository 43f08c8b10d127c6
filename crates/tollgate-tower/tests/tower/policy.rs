//! A policy decides about requests.

use axum::Router;
use axum::routing::get;
use http::Request;
use tollgate::clock::{Manual, Tokio};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{ByPolicy, MoreFacts, RateLimitLayer, Tier, User};
use tower::ServiceExt;

use crate::kit::{app, ask, from};

fn policy(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.expect("a policy").policy
}

/// A service behind the limits of this policy, on clocks that stand still.
fn limited(text: &str) -> Router {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let engine = Engine::new(policy(text), memory.build()).expect("a policy");
    app(RateLimitLayer::by_policy(engine))
}

fn with_user(user: &str, path: &str) -> Request<axum::body::Body> {
    let mut request = from("192.0.2.1", path);
    request.extensions_mut().insert(User::from(user));
    request
}

#[tokio::test]
async fn rules_are_asked_by_the_facts_that_they_name() {
    let app = limited(
        "limits:
         - {name: users, match: {path: '/users/*'}, key: [user, method], rate: 2/h}
         - {name: address, match: {path: /}, key: ip, rate: 1/h}",
    );
    let first = ask(&app, with_user("ada", "/users/1")).await;
    assert_eq!(first.status, 200);
    assert!(
        first
            .fields
            .contains(&"ratelimit: \"users\";r=1;t=1800".to_owned()),
        "{first:?}"
    );
    assert_eq!(ask(&app, with_user("ada", "/users/2")).await.status, 200);
    let refused = ask(&app, with_user("ada", "/users/3")).await;
    assert_eq!(refused.status, 429);
    assert!(
        refused
            .body
            .contains(r#""kind":"rate","violated-policies":["users"]"#),
        "{refused:?}"
    );
    assert_eq!(ask(&app, with_user("bob", "/users/1")).await.status, 200);
    let statuses = ["192.0.2.1", "192.0.2.1", "192.0.2.2"].map(|address| from(address, "/"));
    let mut seen = Vec::new();
    for request in statuses {
        seen.push(ask(&app, request).await.status);
    }
    assert_eq!(seen, [200, 429, 200]);
}

#[tokio::test]
async fn headers_tiers_and_facts_of_ones_own_are_filled_in() {
    let app = limited(
        "limits:
         - {name: apps, match: {header.x-app: '*'}, key: header.x-app, rate: 1/h}
         - {name: plans, match: {plan: free, tier: basic}, rate: 1/h}",
    );
    let by_app = |name: &str| {
        let mut request = from("192.0.2.1", "/");
        request
            .headers_mut()
            .insert("X-App", name.parse().expect("a value"));
        request
    };
    assert_eq!(ask(&app, by_app("one")).await.status, 200);
    assert_eq!(ask(&app, by_app("one")).await.status, 429);
    assert_eq!(ask(&app, by_app("two")).await.status, 200);
    let by_plan = || {
        let mut request = from("192.0.2.1", "/");
        request
            .extensions_mut()
            .insert(MoreFacts::default().with("plan", "free"));
        request.extensions_mut().insert(Tier::from("basic"));
        request
    };
    assert_eq!(ask(&app, by_plan()).await.status, 200);
    assert_eq!(ask(&app, by_plan()).await.status, 429);
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
}

#[tokio::test]
async fn a_slot_is_held_until_the_answer_was_read_or_dropped() {
    let app = limited("limits: [{name: slots, concurrency: 1}]");
    let request = || from("192.0.2.1", "/");
    let first = app.clone().oneshot(request()).await.expect("an answer");
    let second = ask(&app, request()).await;
    assert_eq!(second.status, 429);
    assert!(
        second.body.contains(r#""kind":"concurrency""#),
        "{second:?}"
    );
    drop(first);
    // This one is read to its end.
    assert_eq!(ask(&app, request()).await.status, 200);
    assert_eq!(ask(&app, request()).await.status, 200);
    // A call that is dropped before it was answered.
    let call = app.clone().oneshot(request());
    drop(call);
    assert_eq!(ask(&app, request()).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_rule_may_let_requests_wait() {
    let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
    let text = "limits: [{name: all, rate: 1/s, over: wait 1500ms}]";
    let engine = Engine::new(policy(text), memory.build()).expect("a policy");
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(ByPolicy::in_memory(engine)));
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    let (second, third) = tokio::join!(
        ask(&app, from("192.0.2.1", "/")),
        ask(&app, from("192.0.2.1", "/"))
    );
    assert_eq!((second.status, third.status), (200, 429));
    assert_eq!(began.elapsed().as_secs(), 1);
}

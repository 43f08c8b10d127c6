//! The costs of requests.

use std::num::NonZero;

use http::Request;
use tollgate::Rate;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{Cost, RateLimitLayer, Request as _, keys};

use crate::kit::{app, ask, from, left, per_key, routed};

fn post(path: &str, size: Option<u64>) -> Request<axum::body::Body> {
    let mut request = from("192.0.2.1", path);
    *request.method_mut() = http::Method::POST;
    if let Some(size) = size {
        request.headers_mut().insert("content-length", size.into());
    }
    request
}

#[tokio::test]
async fn a_closure_says_what_a_request_costs() {
    let (limits, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
    let cost = |request: &tollgate_tower::RequestHead| if request.path() == "/" { 10 } else { 3 };
    let app = app(RateLimitLayer::new(limits).configure(|guard| guard.cost(cost)));
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/")).await), 90);
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/users/1")).await), 87);
}

#[tokio::test]
async fn what_costs_nothing_passes_and_looks() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    let cost = |request: &tollgate_tower::RequestHead| u64::from(request.path() == "/");
    let app = app(RateLimitLayer::new(limits).configure(|guard| guard.cost(cost)));
    for expected in [200, 429] {
        let spends = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(spends.status, expected);
        let looks = ask(&app, from("192.0.2.1", "/users/1")).await;
        assert_eq!((looks.status, left(&looks)), (200, 0));
    }
}

#[tokio::test]
async fn routes_cost_what_the_table_says() {
    let (limits, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
    let cost = Cost::routes([("/users/{id}", 20)], 1);
    let app = routed(RateLimitLayer::new(limits).configure(|guard| guard.cost_table(cost)));
    let rest = [("/users/1", 80), ("/", 79), ("/users/2", 59)];
    for (path, expected) in rest {
        let answer = ask(&app, from("192.0.2.1", path)).await;
        // Without the feature nobody knows which route it is, so all are others.
        #[cfg(feature = "axum")]
        assert_eq!(left(&answer), expected, "{path}");
        #[cfg(not(feature = "axum"))]
        assert!(left(&answer) > expected, "{path}");
    }
}

#[tokio::test]
async fn bodies_cost_by_their_size() {
    let (limits, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
    let per = NonZero::new(1_000).expect("more than zero");
    let cost = Cost::BodySize { per, unknown: 30 };
    let app = app(RateLimitLayer::new(limits).configure(|guard| guard.cost_table(cost)));
    for (size, expected) in [
        (Some(1), 99),
        (Some(1_000), 98),
        (Some(1_001), 96),
        (Some(0), 95),
        (None, 65),
    ] {
        let answer = ask(&app, post("/users/1", size)).await;
        assert_eq!(left(&answer), expected, "{size:?}");
    }
    // One without a body says nothing of its size.
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/")).await), 64);
}

#[tokio::test]
async fn what_never_fits_is_told_so_and_not_to_come_again() {
    let (limits, _) = per_key(Rate::per_hour(10), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits).configure(|guard| guard.cost_table(Cost::Fixed(11))));
    let answer = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(answer.status, 429);
    assert!(
        answer.body.contains(r#""reason":"too_large""#),
        "{answer:?}"
    );
    let has_wait = answer
        .fields
        .iter()
        .any(|field| field.starts_with("retry-after"));
    assert!(!has_wait, "{answer:?}");
}

#[tokio::test]
async fn a_policy_is_asked_by_the_same_cost() {
    let policy = Policy::from_text("limits: [{name: all, rate: 10/h}]", Format::Yaml);
    let engine = Engine::new(policy.expect("a policy").policy, Memory::new()).expect("an engine");
    let layer =
        RateLimitLayer::from_policy(engine).configure(|guard| guard.cost_table(Cost::Fixed(4)));
    let app = app(layer);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(ask(&app, from("192.0.2.1", "/")).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
}

//! A policy decides requests.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::Request;
use tollgate::clock::{Manual, Tokio};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{ExtraFacts, PolicyLimits, RateLimitLayer, RequestLimiter, Tier, User};
use tower::ServiceExt;

use crate::kit::{app, ask, from, task};

fn policy(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.expect("a policy").policy
}

/// A service behind the limits of this policy, on clocks that stand still.
fn limited(text: &str) -> Router {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let engine = Engine::new(policy(text), memory.build()).expect("a policy");
    app(RateLimitLayer::from_policy(engine))
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
            .contains(r#""reason":"rate","violated-policies":["users"]"#),
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
            .insert(ExtraFacts::default().with("plan", "free"));
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
        second.body.contains(r#""reason":"concurrency""#),
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
        .layer(RateLimitLayer::new(PolicyLimits::in_memory(engine)));
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    let (second, third) = tokio::join!(
        ask(&app, from("192.0.2.1", "/")),
        ask(&app, from("192.0.2.1", "/"))
    );
    assert_eq!((second.status, third.status), (200, 429));
    assert_eq!(began.elapsed().as_secs(), 1);
}

type OnTokio = Engine<Memory<Tokio, Manual>>;

fn on_tokio(text: &str) -> Arc<OnTokio> {
    let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
    Arc::new(Engine::new(policy(text), memory.build()).expect("an engine"))
}

/// Decides immediately, and like a remote store.
fn both_ways(engine: &Arc<OnTokio>) -> [PolicyLimits<Memory<Tokio, Manual>>; 2] {
    [
        PolicyLimits::in_memory(Arc::clone(engine)),
        PolicyLimits::new(Arc::clone(engine)),
    ]
}

/// Shadow mode only peeks, also with a slow store.
#[tokio::test(start_paused = true)]
async fn in_shadow_no_rule_makes_anybody_wait() {
    let engine = on_tokio("limits: [{name: all, rate: 1/s, over: wait 9s}]");
    for limits in both_ways(&engine) {
        let app = app(RateLimitLayer::new(limits).configure(RequestLimiter::shadow));
        let began = tokio::time::Instant::now();
        for _ in 0..5 {
            assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
        }
        assert_eq!(
            (began.elapsed(), engine.waiter_count()),
            (Duration::ZERO, 0)
        );
    }
    // Nor does it take what others wait for, and those have their turns.
    let [_, enforced] = both_ways(&engine);
    let [_, shadow] = both_ways(&engine);
    let enforced = app(RateLimitLayer::new(enforced));
    let shadow = app(RateLimitLayer::new(shadow).configure(RequestLimiter::shadow));
    let waits = tokio::spawn(enforced.oneshot(from("192.0.2.1", "/")));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(engine.waiter_count(), 1);
    assert_eq!(ask(&shadow, from("192.0.2.1", "/")).await.status, 200);
    let waited = waits.await.expect("a task").expect("an answer");
    assert_eq!(waited.status(), 200);
}

fn of_app(name: &str) -> Request<axum::body::Body> {
    let mut request = from("192.0.2.1", "/");
    let name = name.parse().expect("a value");
    request.headers_mut().insert("x-app", name);
    request
}

/// Rules that arrive while a request waits may need a header that none needed before: it is extracted then.
#[tokio::test(start_paused = true)]
async fn who_waits_while_rules_change_is_asked_for_the_headers_of_the_new_ones() {
    for way in [0, 1] {
        let engine = on_tokio("limits: [{name: all, rate: 1/s, over: wait 9s}]");
        let limits = both_ways(&engine).into_iter().nth(way).expect("two ways");
        let app = app(RateLimitLayer::new(limits));
        assert_eq!(ask(&app, of_app("one")).await.status, 200);
        let calls = ["one", "one", "two", "two"].map(of_app);
        let waiting = calls.map(|request| tokio::spawn(app.clone().oneshot(request)));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(engine.waiter_count(), 4);
        let text =
            "limits: [{name: apps, match: {header.x-app: '*'}, key: header.x-app, rate: 1/h}]";
        engine.reload(policy(text)).expect("a policy");
        let mut seen = Vec::new();
        for call in waiting {
            let answer = call.await.expect("a task").expect("an answer");
            seen.push(answer.status().as_u16());
        }
        assert_eq!(seen, [200, 429, 200, 429], "way {way}");
        assert_eq!(engine.waiter_count(), 0);
    }
}

/// A new decision charges nothing twice, and a client that disconnects meanwhile leaks nothing.
#[tokio::test(start_paused = true)]
async fn rules_that_change_under_those_who_wait_charge_them_once() {
    let common = "{name: common, rate: 5/h, over: wait 9s}";
    let engine = on_tokio(&format!(
        "limits: [{common}, {{name: slow, rate: 1/s, over: wait 9s}}, {{name: slots, concurrency: 3}}]"
    ));
    let limits = PolicyLimits::new(Arc::clone(&engine));
    let app = app(RateLimitLayer::new(limits));
    assert_eq!(ask(&app, of_app("one")).await.status, 200);
    let mut calls = ["one", "two", "one"].map(|name| task(app.clone().oneshot(of_app(name))));
    for call in &mut calls {
        assert!(call.poll_once().is_none());
    }
    for header in ["x-other", "x-app"] {
        let text = format!(
            "limits: [{common}, {{name: apps, match: {{header.{header}: '*'}}, key: header.{header}, rate: 1/h}}, \
             {{name: slots, concurrency: 3}}]"
        );
        engine.reload(policy(&text)).expect("a policy");
    }
    tokio::time::advance(Duration::from_secs(8)).await;
    let [mut first, mut second, third] = calls;
    drop(third);
    let status = |answer: Option<Result<http::Response<_>, _>>| {
        let answer: http::Response<axum::body::Body> = answer
            .expect("its turn")
            .unwrap_or_else(|never| match never {});
        answer.status().as_u16()
    };
    assert_eq!(
        [first.poll_once(), second.poll_once()].map(status),
        [200; 2]
    );
    // Three of five are gone, and no slot.
    let mut left = Vec::new();
    for name in ["three", "four"] {
        left.push(ask(&app, of_app(name)).await.status);
    }
    assert_eq!((left, engine.waiter_count()), (vec![200, 200], 0));
}

/// A customer sees the month, however few concurrent requests are left.
#[tokio::test]
async fn an_answer_lists_all_limits_that_were_met_the_most_urgent_first() {
    for over in ["", ", over: wait 1ms"] {
        let text = format!(
            "limits:
             - {{name: plan, key: ip, rate: 2/s, quota: 3/month, concurrency: 1{over}}}
             - {{name: all, rate: 100/m}}"
        );
        let app = limited(&text);
        let first = ask(&app, from("192.0.2.1", "/")).await;
        let month = 2_678_400;
        assert_eq!(
            first.fields,
            [
                "content-type: text/plain; charset=utf-8".to_owned(),
                "ratelimit-policy: \"plan:2/s\";q=2;w=1, \"plan:3/month\";q=3, \"all\";q=100;w=60, \
                 \"plan:concurrency\";q=1"
                    .to_owned(),
                format!(
                    "ratelimit: \"plan:2/s\";r=1;t=1, \"plan:3/month\";r=2;t={month}, \"all\";r=99;t=1, \
                     \"plan:concurrency\";r=0"
                ),
            ]
        );
        ask(&app, from("192.0.2.1", "/")).await;
        let denied = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(denied.status, 429);
        assert!(
            denied.fields[1]
                .starts_with("ratelimit: \"plan:2/s\";r=0;t=1, \"plan:3/month\";r=1;t="),
            "{denied:?}"
        );
        assert!(denied.body.contains(r#""violated-policies":["plan"]"#));
    }
}

/// The fields stay short however many limits a policy has.
#[tokio::test]
async fn an_answer_lists_eight_limits_at_most() {
    let rules = (0..20).map(|number| format!("{{name: rule-{number}, rate: {}/h}}", 50 - number));
    let rules = rules.collect::<Vec<_>>().join(", ");
    let app = limited(&format!("limits: [{rules}]"));
    let answer = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(answer.fields[2].matches(";r=").count(), 8);
    assert!(
        answer.fields[2].starts_with("ratelimit: \"rule-19\";r=30"),
        "{answer:?}"
    );
}

//! Mixes of options, and changes while requests are in flight, that could get past a limit or misinform clients.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tollgate::clock::{Manual, Tokio};
use tollgate::{
    Algorithm, KeyedConcurrencyLimiter, KeyedLimiter, Rate, StoredKeyLimiter, WhenFull,
};
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;
use tollgate_tower::{
    ActualCost, BlockAfter, ConcurrencyLimit, CountedResponses, PolicyLimits, RateLimitLayer,
    RatePerKey, Request as _, RequestHead, RequestLimiter, Settle, SettlingRatePerKey, Tarpit,
    UsageReporter, User, client::Trust, keys,
};
use tower::ServiceExt;

use crate::kit::{app, ask, from, left, per_key, statuses, task};

fn policy(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.expect("a policy").policy
}

/// An engine on a clock that stands still.
fn engine(text: &str) -> Arc<Engine<Memory<Manual, Manual>>> {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    Arc::new(Engine::new(policy(text), memory.build()).expect("an engine"))
}

/// Answers with the requested status; only failures count.
fn counting_failures<B: Backend + 'static>(limits: PolicyLimits<B>) -> Router {
    let status =
        |Path(code): Path<u16>| async move { StatusCode::from_u16(code).expect("a status") };
    let layer = RateLimitLayer::new(limits)
        .configure(|guard| guard.count_responses(CountedResponses::Failures));
    Router::new().route("/{code}", get(status)).layer(layer)
}

/// The cost that a policy sets is the cost of a failure.
#[tokio::test]
async fn a_failure_costs_what_its_rule_says() {
    for unsettled in ["charge", "refund"] {
        let text = format!(
            "limits: [{{name: logins, key: ip, rate: 10/h, \
             cost: {{default: 5, settle_within: 60s, unsettled: {unsettled}}}}}]"
        );
        let app = counting_failures(PolicyLimits::in_memory(engine(&text)));
        let seen = statuses(&app, &[200, 401, 200, 401, 200]).await;
        assert_eq!(seen, [200, 401, 200, 401, 429], "{unsettled}");
    }
}

/// Who tries a limit in shadow has its service untouched, whatever is missing yet.
#[tokio::test]
async fn in_shadow_a_request_without_a_key_passes() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::Header::new("x-api-key"));
    let app = app(RateLimitLayer::new(limits).configure(RequestLimiter::shadow));
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
}

/// And nobody is held up.
#[tokio::test(start_paused = true)]
async fn in_shadow_nobody_waits() {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let limits = limits.max_wait(Duration::from_secs(5));
    let app = app(RateLimitLayer::new(limits).configure(RequestLimiter::shadow));
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

fn of_user(user: &str) -> Request<Body> {
    let mut request = from("192.0.2.1", "/");
    request.extensions_mut().insert(User::from(user));
    request
}

/// A waiting request is decided again by the rules in force then, which may need more facts.
#[tokio::test(start_paused = true)]
async fn who_waits_while_rules_change_is_known_to_the_new_ones() {
    let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
    let text = "limits: [{name: all, rate: 1/s, over: wait 9s}]";
    let engine = Arc::new(Engine::new(policy(text), memory.build()).expect("a policy"));
    let layer = RateLimitLayer::new(PolicyLimits::in_memory(Arc::clone(&engine)));
    let app = app(layer);
    assert_eq!(ask(&app, of_user("ada")).await.status, 200);
    let waiting: Vec<_> = (0..4)
        .map(|_| tokio::spawn(app.clone().oneshot(of_user("ada"))))
        .collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let text = "limits: [{name: per-user, key: user, rate: 1/h}]";
    engine.reload(policy(text)).expect("a policy");
    let mut passed = 0;
    for call in waiting {
        let status = call.await.expect("a task").expect("an answer").status();
        passed += u32::from(status == 200);
    }
    assert_eq!(passed, 1);
}

/// However long a block is to last, it is one.
#[tokio::test]
async fn a_block_of_any_length_is_a_block() {
    for lasting in [
        Duration::from_secs(86_400 * 365),
        Duration::from_secs(86_400 * 365 * 100),
        Duration::MAX,
    ] {
        let (limits, clock) = per_key(Rate::per_second(1), keys::ClientAddress::new());
        let two = NonZero::new(2).expect("more than zero");
        let block = BlockAfter::after(two, Duration::from_secs(60)).lasting(lasting);
        let guard = RequestLimiter::new(limits)
            .clock(Arc::clone(&clock))
            .block(block, keys::ClientAddress::new())
            .expect("a block");
        let app = app(RateLimitLayer::from_limiter(guard));
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(ask(&app, from("192.0.2.1", "/")).await.status);
        }
        assert_eq!(seen, [200, 429, 429]);
        clock.advance(Duration::from_secs(3_600));
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert!(answer.body.contains("blocked"), "{lasting:?}: {answer:?}");
    }
}

/// No places in the tarpit are none.
#[tokio::test]
async fn a_pit_without_places_holds_nobody_up() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    let tarpit = Tarpit::new(Duration::from_secs(5), 0);
    let guard = RequestLimiter::new(limits).tarpit(tarpit, keys::ClientAddress::new());
    let app = app(RateLimitLayer::from_limiter(guard));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(ask(&app, from("192.0.2.1", "/")).await.status);
    }
    assert_eq!(seen, [200, 429, 429, 429]);
}

/// A client that never got a `retry-after` can't have come too early.
#[tokio::test(start_paused = true)]
async fn who_was_denied_once_does_not_wait_for_other_refusals() {
    let limiter = KeyedLimiter::builder(Rate::per_minute(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let guard = RequestLimiter::new(limits)
        .clock(Tokio::new())
        .deny(|head: &RequestHead| head.path() == "/users/666")
        .tarpit(
            Tarpit::new(Duration::from_secs(5), 2),
            keys::ClientAddress::new(),
        );
    let app = app(RateLimitLayer::from_limiter(guard));
    let began = tokio::time::Instant::now();
    for (path, expected) in [("/users/666", 429), ("/", 200), ("/", 429)] {
        assert_eq!(ask(&app, from("192.0.2.1", path)).await.status, expected);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// Room for keys is the server's, so to lack it is nobody's offence.
#[tokio::test]
async fn who_finds_no_room_for_its_key_is_not_at_fault() {
    let limiter = KeyedConcurrencyLimiter::builder(1, 2).at_cap(WhenFull::DenyNew);
    let limiter = Arc::new(limiter.build().expect("a limit"));
    let block = BlockAfter::after(NonZero::<u32>::MIN, Duration::from_secs(60));
    let guard = RequestLimiter::new(ConcurrencyLimit::with_limiter(
        limiter,
        keys::ClientAddress::new(),
    ))
    .block(block, keys::ClientAddress::new())
    .expect("a block");
    let never = || async { std::future::pending::<()>().await };
    let app = Router::new()
        .route("/slow", get(never))
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::from_limiter(guard));
    let mut held = Vec::new();
    for number in 0..200 {
        let request = from(&format!("198.51.100.{number}"), "/slow");
        let mut call = task(app.clone().oneshot(request));
        if call.poll_once().is_none() {
            held.push(call);
        }
    }
    let refused = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    drop(held);
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
}

fn exact(
    rate: Rate,
) -> (
    SettlingRatePerKey<keys::ClientAddress, Arc<Manual>>,
    Arc<Manual>,
) {
    let clock = Arc::new(Manual::new());
    let limiter = StoredKeyLimiter::builder(rate, 1_000)
        .algorithm(Algorithm::TokenBucket)
        .clock(Arc::clone(&clock));
    let limiter = limiter.build().expect("a rate");
    (
        SettlingRatePerKey::with_limiter(Arc::new(limiter), keys::ClientAddress::new()),
        clock,
    )
}

/// An absurd `retry-after` of a service keeps its client out for a while, and not forever.
#[tokio::test]
async fn a_debt_is_bounded() {
    for used in [1_000_000, u64::MAX / 2, u64::MAX] {
        let (limits, clock) = exact(Rate::per_second(10));
        let told = move || async move {
            let mut response = Response::new(Body::from("a story"));
            response.extensions_mut().insert(ActualCost(used));
            response
        };
        let layer =
            RateLimitLayer::new(limits).configure(|guard| guard.settle(Settle::ReportedByHandler));
        let app = Router::new().route("/", get(told)).layer(layer);
        assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
        let refused = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(refused.status, 429);
        // No more than the whole burst is owed.
        let told = refused.fields.contains(&"retry-after: 1".to_owned());
        assert!(told, "{refused:?}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    }
}

/// The reported limit is the one in force.
#[tokio::test]
async fn a_rate_that_changes_is_told_at_once() {
    let (limits, _) = per_key(Rate::per_minute(60).burst(20), keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let app = app(RateLimitLayer::new(limits));
    let mut told = Vec::new();
    for rate in [
        Rate::per_minute(60).burst(20),
        Rate::per_minute(120).burst(20),
        Rate::per_minute(120).burst(40),
        Rate::per_minute(60).burst(20),
    ] {
        limiter.set_rate(rate).expect("a rate");
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        let line = answer
            .fields
            .into_iter()
            .find(|line| line.starts_with("ratelimit-policy"));
        told.push(line.expect("a policy"));
    }
    let expected =
        [("20", "20"), ("20", "10"), ("40", "20"), ("20", "20")].map(|(quota, window)| {
            format!("ratelimit-policy: \"requests:60/m burst 20\";q={quota};w={window}")
        });
    assert_eq!(told, expected);
}

/// What a handler adds that can't be written isn't, and the rest is.
#[tokio::test]
async fn a_handler_that_writes_nonsense_breaks_nothing() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    let guard = RequestLimiter::new(limits).on_denied(|_, _, refused| {
        refused.status = 42;
        refused.fields.push("x-a", "line\r\nset-cookie: a=b");
        refused.fields.push("not a name", "value");
        refused.fields.push("", "value");
        refused.fields.push("x-b", "\u{1F6A7}");
        refused.fields.set("retry-after", "\0");
        refused.fields.push("X-Mixed", "Case");
        refused.body = bytes::Bytes::new();
    });
    let app = app(RateLimitLayer::from_limiter(guard));
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    let response = app
        .clone()
        .oneshot(from("192.0.2.1", "/"))
        .await
        .expect("an answer");
    assert_eq!(response.status(), 429);
    assert!(response.headers().get("set-cookie").is_none());
    assert_eq!(response.headers()["x-mixed"], "Case");
}

/// Ten thousand concurrent clients, and all disconnect.
#[tokio::test]
async fn ten_thousand_keys_leave_nothing_behind() {
    let limits = ConcurrencyLimit::new(1, keys::Header::new("x-api-key"));
    let limiter = Arc::clone(limits.limiter());
    let never = || async { std::future::pending::<()>().await };
    let app = Router::new()
        .route("/", get(never))
        .layer(RateLimitLayer::new(limits));
    let long = "k".repeat(65_000);
    let request = |number: usize| {
        let mut request = from("192.0.2.1", "/");
        let key = if number.is_multiple_of(100) {
            format!("{long}{number}")
        } else {
            number.to_string()
        };
        request
            .headers_mut()
            .insert("x-api-key", key.parse().expect("a value"));
        request
    };
    let mut calls: Vec<_> = (0..10_000)
        .map(|number| task(app.clone().oneshot(request(number))))
        .collect();
    assert!(calls.iter_mut().all(|call| call.poll_once().is_none()));
    assert_eq!(limiter.len(), 10_000);
    let again = task(app.clone().oneshot(request(100))).poll_once();
    let again = again.expect("an answer").expect("an answer");
    assert_eq!(again.status(), 429);
    drop(calls);
    assert_eq!(limiter.len(), 0);
}

/// Addresses of IPv6 with a scope, and those of IPv4 inside, are the clients that they are.
#[tokio::test]
async fn one_client_is_one_however_its_address_is_written() {
    let two = NonZero::new(2).expect("more than zero");
    let key = || keys::ClientAddress::new().trust(Trust::proxy_count(two));
    let (limits, _) = per_key(Rate::per_hour(100), key());
    let app = app(RateLimitLayer::new(limits));
    let mut lefts = Vec::new();
    for (peer, told) in [
        ("[::ffff:10.0.0.1]", "203.0.113.7, 10.0.0.2"),
        ("10.0.0.1", "203.0.113.7, 10.0.0.2"),
        ("10.0.0.1", "::ffff:203.0.113.7, 10.0.0.2"),
        ("[fe80::1%3]", "[::ffff:203.0.113.7]:80, fe80::2"),
        ("10.0.0.1", "spoofed, 203.0.113.7:4711, 10.0.0.2"),
    ] {
        let mut request = from(peer, "/");
        request
            .headers_mut()
            .insert("x-forwarded-for", told.parse().expect("a value"));
        lefts.push(left(&ask(&app, request).await));
    }
    assert_eq!(lefts, [99, 98, 97, 96, 95]);
}

/// A hold belongs to the same limits after a reload, and is refunded there.
#[tokio::test]
async fn what_is_held_while_rules_are_read_again_is_given_back() {
    let text = "limits:
                - {name: slots, concurrency: 2}
                - {name: tokens, rate: 100/h, cost: {default: 40, settle_within: 60s}}";
    let engine = engine(text);
    let layer = RateLimitLayer::new(PolicyLimits::in_memory(Arc::clone(&engine)));
    let app = app(layer.configure(|guard| guard.count_responses(CountedResponses::Failures)));
    let request = || from("192.0.2.1", "/");
    let call = || app.clone().oneshot(request());
    let held = [
        call().await.expect("an answer"),
        call().await.expect("an answer"),
    ];
    engine.reload(policy(text)).expect("a policy");
    assert_eq!(ask(&app, request()).await.status, 429, "no slot");
    drop(held);
    for _ in 0..4 {
        assert_eq!(ask(&app, request()).await.status, 200, "all is back");
    }
}

/// An unreachable store is neither a client's failure nor a way past limits on failures.
#[tokio::test]
async fn failures_count_as_rules_say_while_the_store_is_away() {
    for (on_failure, expected) in [
        ("open", [200, 401, 401, 401, 200]),
        ("closed", [503; 5]),
        ("local", [200, 401, 401, 429, 429]),
    ] {
        let text = format!(
            "limits: [{{name: logins, key: ip, rate: 2/h, on_store_failure: {on_failure}, \
             cost: {{default: 1, settle_within: 60s}}}}]"
        );
        let store = Server::start();
        let redis = Redis::builder(&store.url()).expect("a server's own URL");
        let redis = redis.node_count(1).build().expect("a runtime");
        let engine = Engine::new(policy(&text), redis).expect("an engine");
        let app = counting_failures(PolicyLimits::new(engine));
        let other = || from("192.0.2.9", "/200");
        // Admitted by the store, and answered when it is gone.
        let held = app.clone().oneshot(other()).await.expect("an answer");
        assert_eq!(held.status(), 200);
        store.kill();
        drop(held);
        let seen = statuses(&app, &[200, 401, 401, 401, 200]).await;
        assert_eq!(seen, expected, "{on_failure}");
    }
}

/// The cost reported behind a layer that lets requests wait reaches the layer before it.
#[tokio::test(start_paused = true)]
async fn what_was_used_is_told_through_a_layer_that_waits() {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 1_000).clock(Arc::new(Tokio::new()));
    let waits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let settles = |rate| {
        let guard = RequestLimiter::new(exact(rate).0).settle(Settle::ReportedByHandler);
        RateLimitLayer::from_limiter(
            guard.cost(|head: &RequestHead| if head.path() == "/look" { 0 } else { 40 }),
        )
    };
    let used = |request: Request<Body>| async move {
        let usage = request.extensions().get::<UsageReporter>();
        usage.expect("a usage").add(3);
    };
    let app = Router::new()
        .route("/", get(used))
        .route("/look", get(|| async {}))
        .layer(settles(Rate::per_hour(1_000)))
        .layer(RateLimitLayer::new(waits.max_wait(Duration::from_secs(9))))
        .layer(settles(Rate::per_hour(100)));
    let calls: Vec<_> = (0..2)
        .map(|_| tokio::spawn(app.clone().oneshot(from("192.0.2.1", "/"))))
        .collect();
    for call in calls {
        let answer = call.await.expect("a task").expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    // One that goes away while it waits is charged its estimate by the first, and nothing by the last.
    let mut gone = task(app.clone().oneshot(from("192.0.2.1", "/")));
    assert!(gone.poll_once().is_none());
    drop(gone);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let answer = ask(&app, from("192.0.2.1", "/look")).await;
    let line = answer
        .fields
        .iter()
        .filter(|line| line.starts_with("ratelimit: "));
    let line: Vec<_> = line.filter_map(|line| line.split(';').nth(1)).collect();
    assert_eq!(line, ["r=994", "r=0", "r=54"]);
}

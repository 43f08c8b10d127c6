//! Clients with too many failures: denied, delayed, or only observed.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tollgate::KeyedLimiter;
use tollgate::Rate;
use tollgate::clock::{Manual, Tokio};
use tollgate_tower::{
    BlockAfter, DenyReason, RateLimitLayer, RatePerKey, Request as _, RequestHead, RequestLimiter,
    Tarpit, keys,
};
use tower::ServiceExt;

use crate::kit::{Answer, app, ask, from, per_key, task};

type ByAddress = RequestLimiter<RequestHead, RatePerKey<keys::ClientAddress, Arc<Manual>>>;

/// A guard of one request an hour for each address, on clocks that stand still.
fn guard() -> (ByAddress, Arc<Manual>) {
    let (limits, clock) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    (RequestLimiter::new(limits).clock(Arc::clone(&clock)), clock)
}

async fn statuses(app: &Router, address: &str, times: usize) -> Vec<u16> {
    let mut seen = Vec::new();
    for _ in 0..times {
        seen.push(ask(app, from(address, "/")).await.status);
    }
    seen
}

fn field<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let mut lines = answer.fields.iter();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn lists_say_who_is_let_in_and_who_isnt() {
    let network = |text: &str| text.parse().expect("a range");
    let (guard, _) = guard();
    let guard = guard
        .allow(keys::ClientAddress::new().within([network("10.0.0.0/8")]))
        .deny(
            keys::ClientAddress::new().within([network("10.6.6.0/24"), network("203.0.113.0/24")]),
        )
        .deny(|head: &RequestHead| head.path() == "/users/666");
    let app = app(RateLimitLayer::from_limiter(guard));
    assert_eq!(statuses(&app, "10.1.2.3", 3).await, [200, 200, 200]);
    // Who is on both lists is let in.
    assert_eq!(statuses(&app, "10.6.6.6", 2).await, [200, 200]);
    let denied = ask(&app, from("203.0.113.7", "/")).await;
    assert_eq!(denied.status, 429);
    assert!(denied.body.contains(r#""reason":"blocked""#), "{denied:?}");
    assert_eq!(field(&denied, "retry-after"), None);
    assert_eq!(field(&denied, "ratelimit"), None);
    assert_eq!(ask(&app, from("192.0.2.1", "/users/666")).await.status, 429);
    // It was denied, so nothing was spent.
    assert_eq!(statuses(&app, "192.0.2.1", 2).await, [200, 429]);
}

#[tokio::test]
async fn in_shadow_nothing_is_refused_and_nobody_told() {
    let (guard, _) = guard();
    let app = app(RateLimitLayer::from_limiter(guard.shadow()));
    assert_eq!(statuses(&app, "192.0.2.1", 3).await, [200, 200, 200]);
    let over = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(field(&over, "ratelimit"), None);
}

#[tokio::test]
async fn who_is_refused_too_often_is_blocked_for_a_while() {
    let three = NonZero::new(3).expect("more than zero");
    let block = BlockAfter::after(three, Duration::from_secs(60)).lasting(Duration::from_secs(600));
    let (limits, clock) = per_key(Rate::per_second(1), keys::ClientAddress::new());
    let guard = RequestLimiter::new(limits)
        .clock(Arc::clone(&clock))
        .block(block, keys::ClientAddress::new());
    let app = app(RateLimitLayer::from_limiter(guard.expect("times")));
    assert_eq!(statuses(&app, "192.0.2.1", 3).await, [200, 429, 429]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        statuses(&app, "192.0.2.1", 2).await,
        [200, 429],
        "the third"
    );
    clock.advance(Duration::from_secs(1));
    let blocked = ask(&app, from("192.0.2.1", "/")).await;
    assert!(
        blocked.body.contains(r#""reason":"blocked""#),
        "{blocked:?}"
    );
    assert_eq!(field(&blocked, "retry-after"), Some("599"));
    assert_eq!(statuses(&app, "192.0.2.2", 1).await, [200], "another");
    // What is refused while it is blocked makes it no longer.
    clock.advance(Duration::from_secs(598));
    assert_eq!(statuses(&app, "192.0.2.1", 1).await, [429]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&app, "192.0.2.1", 1).await, [200]);
}

#[tokio::test]
async fn refusals_that_are_forgotten_dont_add_up() {
    let two = NonZero::new(2).expect("more than zero");
    let block = BlockAfter::after(two, Duration::from_secs(60));
    let (limits, clock) = per_key(Rate::per_second(1), keys::ClientAddress::new());
    let guard = RequestLimiter::new(limits)
        .clock(Arc::clone(&clock))
        .block(block, keys::ClientAddress::new());
    let app = app(RateLimitLayer::from_limiter(guard.expect("times")));
    for _ in 0..5 {
        assert_eq!(statuses(&app, "192.0.2.1", 2).await, [200, 429]);
        clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn a_handler_says_what_is_answered() {
    let (guard, _) = guard();
    let guard = guard.on_denied(|head, denial, refused| {
        assert_eq!(
            (denial.reason, &*denial.limit),
            (DenyReason::Rate, "requests:1/h")
        );
        refused.status = 420;
        refused.body = format!("calm down, {}", head.path()).into();
        refused.fields.set("content-type", "text/plain");
        refused.fields.push("x-mood", "calm");
        refused.fields.push("Not A Name", "isn't written");
    });
    let app = app(RateLimitLayer::from_limiter(guard));
    let _first = ask(&app, from("192.0.2.1", "/")).await;
    let second = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!((second.status, &*second.body), (420, "calm down, /"));
    assert_eq!(field(&second, "content-type"), Some("text/plain"));
    assert_eq!(field(&second, "x-mood"), Some("calm"));
    assert_eq!(field(&second, "retry-after"), Some("3600"));
}

/// Over the window, or the time that all who were refused need, if that is longer; and never sooner than it may pass.
#[tokio::test]
async fn those_who_are_refused_together_are_told_different_times() {
    let (limits, clock) = per_key(Rate::per_second(10).burst(100), keys::Global);
    let day = Duration::from_secs(86_400);
    let guard = RequestLimiter::new(limits).clock(clock).jitter(day);
    let app = app(RateLimitLayer::from_limiter(guard));
    assert_eq!(statuses(&app, "192.0.2.1", 100).await, [200; 100]);
    let mut told = Vec::new();
    for _ in 0..1_000 {
        let refused = ask(&app, from("192.0.2.1", "/")).await;
        let wait = field(&refused, "retry-after").expect("a time");
        told.push(wait.parse::<u64>().expect("a number"));
    }
    assert!(
        told[..100].iter().all(|wait| (1..=11).contains(wait)),
        "{told:?}"
    );
    // A thousand at 10 a second take 100 seconds.
    assert!(told.iter().all(|wait| (1..=101).contains(wait)), "{told:?}");
    let late = told[500..].iter().filter(|wait| **wait > 40).count();
    assert!(late > 100, "{late} {told:?}");
    told.sort_unstable();
    told.dedup();
    assert!(told.len() > 50, "{told:?}");
}

/// A guard whose pit takes two, for five seconds.
fn pit() -> Router {
    let limiter = KeyedLimiter::builder(Rate::per_minute(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let tarpit = Tarpit::new(Duration::from_secs(5), 2);
    let guard = RequestLimiter::new(limits)
        .clock(Tokio::new())
        .tarpit(tarpit, keys::ClientAddress::new());
    app(RateLimitLayer::from_limiter(guard))
}

#[tokio::test(start_paused = true)]
async fn who_comes_before_it_was_told_to_waits_for_its_refusal() {
    let app = pit();
    let took = async |address: &str| {
        let began = tokio::time::Instant::now();
        let status = ask(&app, from(address, "/")).await.status;
        (status, began.elapsed().as_secs())
    };
    assert_eq!(took("192.0.2.1").await, (200, 0));
    assert_eq!(took("192.0.2.1").await, (429, 0), "it is told");
    assert_eq!(took("192.0.2.1").await, (429, 5), "it didn't listen");
    // One of a key waits at a time.
    let both = tokio::join!(took("192.0.2.1"), took("192.0.2.1"));
    assert_eq!(both, ((429, 5), (429, 0)));
    // Who listens never waits.
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(took("192.0.2.1").await, (200, 0));
    assert_eq!(took("192.0.2.1").await, (429, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_there_are_places_and_who_goes_away_frees_one() {
    let app = pit();
    for address in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        assert_eq!(statuses(&app, address, 2).await, [200, 429]);
    }
    let request = |address: &str| task(app.clone().oneshot(from(address, "/")));
    let mut first = request("192.0.2.1");
    let mut second = request("192.0.2.2");
    let mut third = request("192.0.2.3");
    assert!(first.poll_once().is_none() && second.poll_once().is_none());
    assert!(third.poll_once().is_some(), "there is no place");
    drop(first);
    let mut fourth = request("192.0.2.3");
    assert!(fourth.poll_once().is_none(), "there is one again");
}

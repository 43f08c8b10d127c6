//! Requests that try to get past a limit, and mixes of options that could leak permits.

use std::convert::Infallible;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Extension, Router};
use http::Request;
use tollgate::clock::{Manual, Tokio};
use tollgate::{Decision, KeyedLimiter, Outcome, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    AskOutcome, BlockAfter, Cost, Denial, DenyReason, HeaderDialect, LimitOutcome, RateLimitLayer,
    RatePerKey, Request as _, RequestHead, RequestLimiter, RequestLimits, ResponseFormat, Settle,
    SettlingRatePerKey, Tarpit, Terms, UsageReporter, keys,
};

use crate::kit::{Answer, app, as_grpc, ask, from, left, per_key};

fn with(
    mut request: Request<axum::body::Body>,
    lines: &[(&str, &str)],
) -> Request<axum::body::Body> {
    for (name, value) in lines {
        let name: http::HeaderName = name.parse().expect("a name");
        request
            .headers_mut()
            .append(name, value.parse().expect("a value"));
    }
    request
}

fn lines<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let prefix = format!("{name}: ");
    let own = answer
        .fields
        .iter()
        .filter_map(|line| line.strip_prefix(&prefix));
    own.collect()
}

/// One host, however a client writes it.
#[tokio::test]
async fn a_rule_of_a_host_is_for_all_ways_to_write_it() {
    let text = "limits: [{name: api, match: {host: api.example.com}, rate: 2/h}]";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let engine = Engine::new(policy, memory.build()).expect("a policy");
    let app = app(RateLimitLayer::from_policy(engine));
    for host in ["api.example.com", "api.example.com:8080"] {
        let request = with(from("192.0.2.1", "/"), &[("host", host)]);
        assert_eq!(ask(&app, request).await.status, 200, "{host}");
    }
    for host in [
        "api.example.com",
        "API.Example.COM",
        "api.example.com:80",
        "api.example.com.",
        "Api.Example.Com.:443",
        " api.example.com ",
    ] {
        let request = with(from("192.0.2.1", "/"), &[("host", host)]);
        assert_eq!(ask(&app, request).await.status, 429, "{host}");
    }
    // As HTTP/2 has it.
    let request = from("192.0.2.1", "http://API.example.com:8443/");
    assert_eq!(ask(&app, request).await.status, 429);
    // And another is another.
    let request = with(from("192.0.2.1", "/"), &[("host", "[2001:db8::1]:80")]);
    assert_eq!(ask(&app, request).await.status, 200);
}

/// Two `transfer-encoding` fields declare a body, too.
#[tokio::test]
async fn a_body_of_unknown_size_costs_so_however_it_is_announced() {
    let cost = Cost::BodySize {
        per: NonZero::new(1_024).expect("more than zero"),
        unknown: 64,
    };
    let (limits, _) = per_key(Rate::per_hour(1_000), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits).configure(|guard| guard.cost_table(cost)));
    let rows: [(&[(&str, &str)], u64); 3] = [
        (&[], 999),
        (&[("transfer-encoding", "chunked")], 935),
        (
            &[
                ("transfer-encoding", "gzip"),
                ("transfer-encoding", "chunked"),
            ],
            871,
        ),
    ];
    for (lines, expected) in rows {
        let request = with(from("192.0.2.1", "/"), lines);
        assert_eq!(left(&ask(&app, request).await), expected, "{lines:?}");
    }
}

/// Cookie parsers remove quotes and percent signs, so one session has thousands of spellings.
#[tokio::test]
async fn a_cookie_is_one_key_however_it_is_spelled() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::Cookie::new("sid"));
    let app = app(RateLimitLayer::new(limits));
    let mut seen = Vec::new();
    for cookie in [
        "sid=ab%2Fc",
        "sid=%61b%2fc",
        "a=1; sid=\"ab/c\"",
        "sid=ab/c",
        "sid=%zz",
        "sid=%",
    ] {
        let request = with(from("192.0.2.1", "/"), &[("cookie", cookie)]);
        seen.push(ask(&app, request).await.status);
    }
    assert_eq!(seen, [200, 429, 429, 429, 200, 200]);
}

/// A request that can never pass gets no `retry-after`, so a later request isn't early.
#[tokio::test(start_paused = true)]
async fn what_is_too_large_once_does_not_make_its_sender_wait_for_ever() {
    let limiter = KeyedLimiter::builder(Rate::per_minute(1), 1_000).clock(Arc::new(Tokio::new()));
    let limits = RatePerKey::with_limiter(
        Arc::new(limiter.build().expect("a rate")),
        keys::ClientAddress::new(),
    );
    let guard = RequestLimiter::new(limits)
        .clock(Tokio::new())
        .cost(|head: &RequestHead| if head.path() == "/" { 1 } else { 100 })
        .tarpit(
            Tarpit::new(Duration::from_secs(5), 2),
            keys::ClientAddress::new(),
        );
    let app = app(RateLimitLayer::from_limiter(guard));
    let took = async |path: &str| {
        let began = tokio::time::Instant::now();
        let status = ask(&app, from("192.0.2.1", path)).await.status;
        (status, began.elapsed().as_secs())
    };
    assert_eq!(took("/users/1").await, (429, 0), "it never passes");
    assert_eq!(took("/").await, (200, 0));
    assert_eq!(
        took("/").await,
        (429, 0),
        "nobody has told it yet when to come"
    );
    assert_eq!(took("/").await, (429, 5), "now it was told");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(took("/").await, (200, 0));
    assert_eq!(took("/").await, (429, 0), "it did as it was told");
}

/// A layer around another adds to its header fields, and never reports more remaining tokens than there are.
#[tokio::test]
async fn what_an_inner_layer_tells_stays() {
    for dialects in [
        vec![HeaderDialect::Draft8],
        vec![HeaderDialect::Draft7, HeaderDialect::XRateLimit],
    ] {
        let (user, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
        let (address, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
        let answers = ResponseFormat::new().dialects(dialects.clone());
        let inner = RateLimitLayer::new(user.named("user")).response_format(answers.clone());
        let outer = RateLimitLayer::new(address.named("address")).response_format(answers);
        let app = app(inner).layer(outer);
        assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
        let refused = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(refused.status, 429);
        assert_eq!(lines(&refused, "retry-after"), ["3600"]);
        let told = lines(&refused, "ratelimit");
        if dialects == [HeaderDialect::Draft8] {
            assert_eq!(told, ["\"user\";r=0;t=3600", "\"address\";r=98;t=36"]);
            let policies = lines(&refused, "ratelimit-policy");
            assert_eq!(
                policies,
                ["\"user\";q=1;w=3600", "\"address\";q=100;w=3600"]
            );
        } else {
            assert_eq!(told, ["limit=1, remaining=0, reset=3600"]);
            assert_eq!(lines(&refused, "x-ratelimit-remaining"), ["0"]);
        }
    }
}

/// A user's budget around a tenant's: the service's reported cost counts for both.
#[tokio::test]
async fn what_was_used_is_told_to_all_layers() {
    let budget = |name| {
        let limits = SettlingRatePerKey::new(Rate::per_hour(100), keys::ClientAddress::new())
            .expect("a rate");
        let layer = RateLimitLayer::new(limits.named(name));
        layer.configure(|guard| guard.cost(|_| 60).settle(Settle::ReportedByHandler))
    };
    let story = |Extension(usage): Extension<UsageReporter>| async move {
        usage.add(15);
        "a short story"
    };
    let app: Router = Router::new()
        .route("/", get(story))
        .layer(budget("inner"))
        .layer(budget("outer"));
    for status in [200, 200, 200, 429] {
        assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, status);
    }
}

/// Scripts may read `retry-after` whichever limit denied.
#[tokio::test]
async fn refusals_without_numbers_are_exposed_as_well() {
    let one = NonZero::new(1).expect("more than zero");
    let (limits, clock) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    let guard = RequestLimiter::new(limits)
        .clock(clock)
        .response_format(ResponseFormat::new().expose())
        .block(
            BlockAfter::after(one, Duration::from_secs(60)),
            keys::ClientAddress::new(),
        );
    let app = app(RateLimitLayer::from_limiter(guard.expect("times")));
    for _ in 0..2 {
        ask(&app, from("192.0.2.1", "/")).await;
    }
    let blocked = ask(&app, from("192.0.2.1", "/")).await;
    assert!(blocked.body.contains("blocked"), "{blocked:?}");
    assert_eq!(
        lines(&blocked, "access-control-expose-headers"),
        ["retry-after, ratelimit-policy, ratelimit"]
    );
}

/// Limits of one's own that say to come again at the end of time.
struct Later;

impl RequestLimits<RequestHead> for Later {
    type Held = ();
    type Question = Infallible;

    fn ask(&self, _: &RequestHead, _: &Terms<'_>) -> AskOutcome<LimitOutcome<()>, Infallible> {
        let decision = Decision::new(Outcome::Denied, 1, 0, Duration::MAX, Duration::MAX);
        AskOutcome::Now(LimitOutcome::Denied(Box::new(Denial::new(
            DenyReason::Rate,
            "late",
            decision,
        ))))
    }

    async fn answer(&self, question: Infallible, _: &Terms<'_>) -> LimitOutcome<()> {
        match question {}
    }
}

#[tokio::test]
async fn the_longest_wait_there_is_can_be_told() {
    let guard = RequestLimiter::new(Later)
        .jitter(Duration::MAX)
        .tarpit(Tarpit::new(Duration::ZERO, 0), keys::ClientAddress::new());
    let app = app(RateLimitLayer::from_limiter(guard));
    let refused = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(lines(&refused, "retry-after"), ["999999999999999"]);
    let refused = ask(&app, as_grpc(from("192.0.2.1", "/"))).await;
    assert_eq!(lines(&refused, "grpc-status"), ["8"]);
    assert_eq!(lines(&refused, "grpc-retry-pushback-ms").len(), 1);
}

/// A service that falls over, a body that does, and a closure that does: nothing stays held.
#[tokio::test]
async fn what_falls_over_gives_back_its_place() {
    use tollgate::KeyedConcurrencyLimiter;
    use tollgate_tower::ConcurrencyLimit;

    let slots = Arc::new(KeyedConcurrencyLimiter::new(1, 100));
    let layer = RateLimitLayer::new(ConcurrencyLimit::with_limiter(
        Arc::clone(&slots),
        keys::ClientAddress::new(),
    ));
    let falls = || async { panic!("as it is meant to") as () };
    let app: Router = Router::new().route("/", post(falls)).layer(layer);
    for _ in 0..3 {
        let mut request = from("192.0.2.1", "/");
        *request.method_mut() = http::Method::POST;
        let app = app.clone();
        let fallen = tokio::spawn(async move { ask(&app, request).await.status }).await;
        assert!(fallen.is_err(), "{fallen:?}");
        assert!(slots.is_empty());
    }
}

//! The facts of a request that a policy gets, and requests that lack them.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::facts::COMMON_FACTS;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{ExtraFacts, RateLimitLayer, Tenant, Tier, User};

use crate::kit::{ask, from, routed};
use crate::log::{Log, run};

/// A service behind the limits of this policy, on clocks that stand still; it knows its routes.
fn limited(text: &str) -> Router {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    let engine = Engine::new(policy.policy, memory.build()).expect("an engine");
    routed(RateLimitLayer::from_policy(engine))
}

fn with(lines: &[(&'static str, &[u8])]) -> http::Request<axum::body::Body> {
    let mut request = from("192.0.2.1", "/");
    for (name, value) in lines {
        let value = http::HeaderValue::from_bytes(value).expect("a value");
        request.headers_mut().append(*name, value);
    }
    request
}

/// A rule by a fact that the layer never fills in would limit nobody.
#[tokio::test]
async fn every_known_fact_is_filled_in() {
    let facts = COMMON_FACTS
        .into_iter()
        .chain(["header.x-app", "header:x-app"]);
    for fact in facts {
        let text = format!("limits: [{{name: one, key: \"{fact}\", rate: 1/h}}]");
        let app = limited(&text);
        let request = || {
            let mut request = with(&[
                ("host", b"api.example.com"),
                ("x-api-key", b"k"),
                ("x-app", b"a"),
            ]);
            let extensions = request.extensions_mut();
            extensions.insert(User::from("ada"));
            extensions.insert(Tenant::from("acme"));
            extensions.insert(Tier::from("gold"));
            // Only requests of descriptors have these two of their own.
            let more = ExtraFacts::default().with("domain", "edge");
            extensions.insert(more.with("descriptor", "d"));
            request
        };
        assert_eq!(ask(&app, request()).await.status, 200, "{fact}");
        assert_eq!(ask(&app, request()).await.status, 429, "{fact}");
    }
}

#[tokio::test]
async fn an_api_key_is_found_wherever_clients_send_it() {
    let app = limited("limits: [{name: keys, key: api_key, rate: 4/h}]");
    let places: [&[(&str, &[u8])]; 4] = [
        &[("x-api-key", b"k")],
        &[("api-key", b" k ")],
        &[("apikey", b"k")],
        &[("authorization", b"apikey k")],
    ];
    for place in places {
        assert_eq!(ask(&app, with(place)).await.status, 200, "{place:?}");
    }
    for place in places {
        assert_eq!(ask(&app, with(place)).await.status, 429, "{place:?}");
    }
    // The same key in two places is one, and two different ones are no choice of the client's.
    let both = with(&[("x-api-key", b"k"), ("authorization", b"ApiKey k")]);
    assert_eq!(ask(&app, both).await.status, 429);
    let two = ask(&app, with(&[("x-api-key", b"k"), ("apikey", b"other")])).await;
    assert_eq!(two.status, 400);
    let detail = r#""detail":"The request lacks a single API key","reason":"missing_key"}"#;
    assert!(two.body.ends_with(detail), "{}", two.body);
    // A token of another scheme is no API key.
    let bearer = with(&[("authorization", b"Bearer k")]);
    assert_eq!(ask(&app, bearer).await.status, 200);
}

/// A header that is left out, because it is there twice or is no text, would switch off its rule.
#[tokio::test]
async fn no_client_gets_past_a_rule_by_how_it_sends_a_header() {
    let text = "limits: [{name: apps, match: {header.x-app: '*'}, key: header.x-app, rate: 1/h}]";
    let app = limited(text);
    for (lines, status) in [
        (&[("x-app", &b"a"[..])][..], 200),
        (&[("x-app", b"a")], 429),
        // A key has one line: nobody knows which of two the service reads, or whether it puts them together.
        (&[("x-app", b"a"), ("x-app", b"a")], 400),
        (&[("x-app", b"a"), ("x-app", b"b")], 400),
        (&[("x-app", b"a"), ("x-app", b"")], 400),
        (&[("x-app", b"\xff")], 200),
        (&[("x-app", b"\xff")], 429),
        // Bytes that are no text are told apart.
        (&[("x-app", b"\xfe")], 200),
        (&[("x-app", "\u{fffd}".as_bytes())], 200),
    ] {
        assert_eq!(ask(&app, with(lines)).await.status, status, "{lines:?}");
    }
    // Lines of a list are one list, also of a policy whose rules let requests wait.
    for over in ["", ", over: wait 1ms"] {
        let rule = format!("{{name: lists, key: [header.accept, header.cookie], rate: 1/h{over}}}");
        let app = limited(&format!("limits: [{rule}]"));
        let apart = [
            ("accept", &b"text/html"[..]),
            ("accept", b"text/plain"),
            ("cookie", b"a=1"),
            ("cookie", b"b=2"),
        ];
        let together = [
            ("accept", &b"text/html, text/plain"[..]),
            ("cookie", b"a=1; b=2"),
        ];
        assert_eq!(ask(&app, with(&apart)).await.status, 200);
        assert_eq!(ask(&app, with(&together)).await.status, 429);
    }
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(User::from("ada"));
    next.run(request).await
}

/// A policy for users, behind a layer that extracts them.
fn by_user(order: &str) -> Router {
    let text = "limits: [{name: per-user, match: {path: /}, key: user, rate: 10/h}]";
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    let engine = Engine::new(policy.policy, memory.build()).expect("an engine");
    let limits = RateLimitLayer::from_policy(engine);
    let app = Router::new().route("/", axum::routing::get(|| async { "hello" }));
    match order {
        "outside" => app.layer(limits).layer(from_fn(authenticate)),
        "inside" => app.layer(from_fn(authenticate)).layer(limits),
        _ => app.layer(limits),
    }
}

/// Auth outside: the key is there. Inside, or without it: nobody is limited, and that is warned of within 100 requests.
#[test]
fn layers_in_the_wrong_order_are_warned_of_within_100_requests() {
    for (order, passing) in [("outside", 10), ("inside", 200), ("none", 200)] {
        let log = Log::new(tracing::Level::WARN);
        tracing::subscriber::with_default(log.clone(), || {
            run(async {
                let app = by_user(order);
                let mut passed = 0;
                for number in 1..=200 {
                    let status = ask(&app, from("192.0.2.1", "/")).await.status;
                    passed += usize::from(status == 200);
                    if number == 99 {
                        assert_eq!(log.take(), [] as [String; 0], "{order}");
                    }
                }
                assert_eq!(passed, passing, "{order}");
                let lines = log.take();
                if order == "outside" {
                    assert_eq!(lines, [] as [String; 0]);
                    return;
                }
                assert_eq!(lines.len(), 1, "{order}: {lines:?}");
                for part in [
                    "WARN tollgate",
                    "the rule \"per-user\" found its key in none of its first 100 requests, and let all of them pass: it \
                     counts by user, and the last request had path.",
                    "put that layer outside of this one",
                ] {
                    assert!(lines[0].contains(part), "{order}: {part}: {lines:?}");
                }
            });
        });
    }
}

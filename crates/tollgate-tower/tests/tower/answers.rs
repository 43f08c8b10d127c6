//! The responses to clients.

use tollgate::Rate;
use tollgate_tower::{DenialBodyFormat, HeaderDialect, RateLimitLayer, ResponseFormat, keys};

use crate::kit::{Answer, app, as_grpc, ask, from, per_key};

/// What keeps caches from keeping a denial.
const NO_STORE: &str = "cache-control: no-store";

/// The answers to the first and the second request of a client that may ask once a minute.
async fn two(answers: ResponseFormat) -> [Answer; 2] {
    two_of(answers, || from("192.0.2.1", "/users/1")).await
}

async fn two_of(
    answers: ResponseFormat,
    request: impl Fn() -> http::Request<axum::body::Body>,
) -> [Answer; 2] {
    let (limits, _) = per_key(Rate::per_minute(1), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits.named("per-client")).response_format(answers));
    [ask(&app, request()).await, ask(&app, request()).await]
}

fn answer(status: u16, fields: &[&str], body: &str) -> Answer {
    Answer {
        status,
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        body: body.to_owned(),
    }
}

#[tokio::test]
async fn by_default_what_is_left_is_told_by_draft_8_and_why_by_problem_details() {
    let [first, second] = two(ResponseFormat::new()).await;
    let text = "content-type: text/plain; charset=utf-8";
    let policy = "ratelimit-policy: \"per-client\";q=1;w=60";
    let left = "ratelimit: \"per-client\";r=0;t=60";
    assert_eq!(first, answer(200, &[text, policy, left], "hello"));
    let problem = "content-type: application/problem+json";
    let body = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: try again later","status":429,"reason":"rate","violated-policies":["per-client"],"retry_after":60}"#;
    let fields = [policy, left, "retry-after: 60", problem, NO_STORE];
    assert_eq!(second, answer(429, &fields, body));
}

#[tokio::test]
async fn dialects_are_told_one_after_the_other_and_may_be_read_by_scripts() {
    let answers = ResponseFormat::new()
        .dialects([HeaderDialect::Draft7, HeaderDialect::Draft6])
        .form(DenialBodyFormat::Plain)
        .expose();
    let [first, second] = two(answers).await;
    let told = [
        "ratelimit: limit=1, remaining=0, reset=60",
        "ratelimit-policy: 1;w=60",
        "ratelimit-limit: 1",
        "ratelimit-remaining: 0",
        "ratelimit-reset: 60",
    ];
    let exposed = "access-control-expose-headers: retry-after, ratelimit, ratelimit-policy, ratelimit-limit, \
                   ratelimit-remaining, ratelimit-reset";
    for field in told.iter().chain([&exposed]) {
        assert!(
            first.fields.iter().any(|own| own == field),
            "{field} {first:?}"
        );
        assert!(
            second.fields.iter().any(|own| own == field),
            "{field} {second:?}"
        );
    }
    assert_eq!(
        second.body,
        r#"{"code":"RATE_LIMIT","limit_dim":"per-client"}"#
    );
}

#[tokio::test]
async fn without_a_dialect_nothing_is_told_but_when_to_come_again() {
    let answers = ResponseFormat::new()
        .dialects([])
        .form(DenialBodyFormat::Empty);
    let [first, second] = two(answers).await;
    assert_eq!(first.fields, ["content-type: text/plain; charset=utf-8"]);
    assert_eq!(second, answer(429, &["retry-after: 60", NO_STORE], ""));
}

#[tokio::test]
async fn a_call_of_grpc_is_refused_as_grpc_does() {
    let [_, second] = two_of(ResponseFormat::new(), || {
        as_grpc(from("192.0.2.1", "/users/1"))
    })
    .await;
    assert_eq!((second.status, &*second.body), (200, ""));
    assert_eq!(
        second.fields[..4],
        [
            "content-type: application/grpc",
            "grpc-status: 8",
            "grpc-message: Too many requests: try again later",
            "grpc-retry-pushback-ms: 60000",
        ]
    );
    assert!(
        second.fields[4].starts_with("grpc-status-details-bin: CAgSIlRvbyBtYW55"),
        "{second:?}"
    );
}

/// A gRPC client reads a status in trailers; anything else would look like a broken connection.
#[tokio::test]
async fn a_call_of_grpc_without_a_key_is_told_in_its_own_way() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::Header::new("x-api-key"));
    let app = app(RateLimitLayer::new(limits));
    let answer = ask(&app, as_grpc(from("192.0.2.1", "/"))).await;
    assert_eq!((answer.status, &*answer.body), (200, ""));
    let expected = [
        "content-type: application/grpc",
        "grpc-status: 3",
        "grpc-message: The call lacks exactly one header x-api-key",
    ];
    assert_eq!(answer.fields, expected);
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 400);
}

/// What the server has to supply is the server's mistake, in gRPC as well.
#[tokio::test]
async fn a_call_of_grpc_whose_user_nobody_found_fails_in_its_own_way() {
    let (limits, _) = per_key(
        Rate::per_hour(1),
        keys::Extension::<tollgate_tower::User>::new(),
    );
    let app = app(RateLimitLayer::new(limits));
    let failed = ask(&app, as_grpc(from("192.0.2.1", "/"))).await;
    let expected = [
        "content-type: application/grpc",
        "grpc-status: 13",
        "grpc-message: The server can't tell whose request this is: its log says why",
    ];
    assert_eq!(failed.fields, expected);
    let other = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!(other, answer(500, &[NO_STORE], ""));
}

/// A client that writes `application/grpc` into any other request is answered with a status, not with 200 OK and an empty body,
/// which a cache could keep and hand to others.
#[tokio::test]
async fn only_post_over_http_2_is_a_call_of_grpc() {
    let rows = [
        ("GET", http::Version::HTTP_11, 429),
        ("GET", http::Version::HTTP_2, 429),
        ("HEAD", http::Version::HTTP_2, 429),
        ("POST", http::Version::HTTP_10, 429),
        ("POST", http::Version::HTTP_11, 429),
        ("PUT", http::Version::HTTP_2, 429),
        ("POST", http::Version::HTTP_2, 200),
        ("POST", http::Version::HTTP_3, 200),
    ];
    for (method, version, status) in rows {
        let [_, second] = two_of(ResponseFormat::new(), || {
            let mut request = as_grpc(from("192.0.2.1", "/users/1"));
            *request.method_mut() = method.parse().expect("a method");
            *request.version_mut() = version;
            request
        })
        .await;
        let is_grpc = second.fields.iter().any(|line| line == "grpc-status: 8");
        assert_eq!(
            (second.status, is_grpc),
            (status, status == 200),
            "{method} {version:?}"
        );
        let is_kept_by_none = second.fields.iter().any(|line| line == NO_STORE);
        assert_eq!(is_kept_by_none, status == 429, "{method} {version:?}");
    }
}

/// Also a request without a key, and one that nothing can be said of.
#[tokio::test]
async fn no_cache_keeps_a_denial_whatever_its_reason_is() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::Header::new("x-api-key"));
    let missing = app(RateLimitLayer::new(limits));
    let user = keys::Extension::<tollgate_tower::User>::new();
    let (limits, _) = per_key(Rate::per_hour(1), user);
    let failed = app(RateLimitLayer::new(limits));
    for (app, status) in [(missing, 400), (failed, 500)] {
        let mut request = from("192.0.2.1", "/");
        let grpc = "application/grpc".parse().expect("a value");
        request.headers_mut().insert("content-type", grpc);
        let answer = ask(&app, request).await;
        assert_eq!(answer.status, status);
        let no_store = |line: &String| line == NO_STORE;
        assert!(answer.fields.iter().any(no_store), "{answer:?}");
    }
}

/// Clients distinguish limits by their names.
#[tokio::test]
async fn two_layers_on_one_path_have_two_names_by_default() {
    let by_address = |rate| RateLimitLayer::new(per_key(rate, keys::ClientAddress::new()).0);
    let slots = |most| RateLimitLayer::concurrency(most, keys::ClientAddress::new());
    let app = app(by_address(Rate::per_second(10)))
        .layer(by_address(Rate::per_hour(1_000)))
        .layer(slots(20))
        .layer(slots(30));
    let answer = ask(&app, from("192.0.2.1", "/")).await;
    for field in ["ratelimit: ", "ratelimit-policy: "] {
        let told = answer
            .fields
            .iter()
            .filter_map(|line| line.strip_prefix(field));
        let names: Vec<_> = told.filter_map(|item| item.split(';').next()).collect();
        assert_eq!(
            names,
            [
                "\"requests:10/s\"",
                "\"requests:1000/h\"",
                "\"requests-at-once:20\"",
                "\"requests-at-once:30\""
            ]
        );
    }
}

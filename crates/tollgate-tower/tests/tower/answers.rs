//! What clients read.

use tollgate::Rate;
use tollgate_tower::{Answers, Dialect, Form, RateLimitLayer, keys};

use crate::kit::{Answer, app, ask, from, per_key};

/// The answers to the first and the second request of a client that may ask once a minute.
async fn two(answers: Answers, content_type: &str) -> [Answer; 2] {
    let (limits, _) = per_key(Rate::per_minute(1), keys::Address::new());
    let app = app(RateLimitLayer::new(limits.named("per-client")).answers(answers));
    let request = || {
        let mut request = from("192.0.2.1", "/");
        let value = content_type.parse().expect("a value");
        request.headers_mut().insert("content-type", value);
        request
    };
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
    let [first, second] = two(Answers::new(), "text/plain").await;
    let text = "content-type: text/plain; charset=utf-8";
    let policy = "ratelimit-policy: \"per-client\";q=1;w=60";
    let left = "ratelimit: \"per-client\";r=0;t=60";
    assert_eq!(first, answer(200, &[text, policy, left], "hello"));
    let problem = "content-type: application/problem+json";
    let body = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: try again later","status":429,"kind":"rate","violated-policies":["per-client"],"retry_after":60}"#;
    let fields = [policy, left, "retry-after: 60", problem];
    assert_eq!(second, answer(429, &fields, body));
}

#[tokio::test]
async fn dialects_are_told_one_after_the_other_and_may_be_read_by_scripts() {
    let answers = Answers::new()
        .dialects([Dialect::Draft7, Dialect::Draft6])
        .form(Form::Plain)
        .expose();
    let [first, second] = two(answers, "text/plain").await;
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
    let answers = Answers::new().dialects([]).form(Form::Empty);
    let [first, second] = two(answers, "text/plain").await;
    assert_eq!(first.fields, ["content-type: text/plain; charset=utf-8"]);
    assert_eq!(second, answer(429, &["retry-after: 60"], ""));
}

#[tokio::test]
async fn a_call_of_grpc_is_refused_as_grpc_does() {
    let [_, second] = two(Answers::new(), "application/grpc+proto").await;
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

/// A call of gRPC reads a status in trailers, and nothing else that it could tell from a broken connection.
#[tokio::test]
async fn a_call_of_grpc_without_a_key_is_told_in_its_own_way() {
    let (limits, _) = per_key(Rate::per_hour(1), keys::Header::new("x-api-key"));
    let app = app(RateLimitLayer::new(limits));
    let mut call = from("192.0.2.1", "/");
    let grpc = "application/grpc+proto".parse().expect("a value");
    call.headers_mut().insert("content-type", grpc);
    let answer = ask(&app, call).await;
    assert_eq!((answer.status, &*answer.body), (200, ""));
    let expected = [
        "content-type: application/grpc",
        "grpc-status: 13",
        "grpc-message: The server can't tell whose request this is: its log says why",
    ];
    assert_eq!(answer.fields, expected);
    let other = ask(&app, from("192.0.2.1", "/")).await;
    assert_eq!((other.status, other.fields.len()), (500, 0), "{other:?}");
}

//! Whole responses in each header dialect, checked by a parser of structured fields.

use std::fmt::Write;
use std::time::Duration;

use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::Rate;
use tollgate::clock::{Clock, Wall};
use tollgate_tower::{Cost, DenialBodyFormat, HeaderDialect, RateLimitLayer, ResponseFormat, keys};

use crate::kit::{Answer, app, as_grpc, ask, from, per_key};

/// The expected responses, with a heading line before each.
const GOLDEN: &str = include_str!("golden.txt");

type Asked = http::Request<axum::body::Body>;

async fn answers_of(answers: ResponseFormat, form: fn(Asked) -> Asked, cost: u64) -> [Answer; 2] {
    let (limits, _) = per_key(Rate::per_minute(10).burst(2), keys::ClientAddress::new());
    let layer = RateLimitLayer::new(limits.named("per-client")).response_format(answers);
    let app = app(layer.configure(|guard| guard.cost_table(Cost::Fixed(cost))));
    let request = || form(from("192.0.2.1", "/users/1"));
    let passed = ask(&app, request()).await;
    let _last = ask(&app, request()).await;
    [passed, ask(&app, request()).await]
}

/// The answer as text; a time since 1970 is given from now.
fn text(answer: &Answer) -> String {
    let mut text = format!("{}\n", answer.status);
    for field in &answer.fields {
        let line = match field.strip_prefix("x-ratelimit-reset: ") {
            Some(seconds) if seconds.len() >= 10 => {
                let at: u64 = seconds.parse().expect("a number");
                let now = Wall.now().as_nanos() / 1_000_000_000;
                let left = at.saturating_sub(now);
                // A test may take a while.
                assert!(left <= 13, "{field}");
                "x-ratelimit-reset: (now + what is left)".to_owned()
            }
            _ => field.clone(),
        };
        writeln!(text, "{line}").expect("a string");
    }
    writeln!(text, "\n{}", answer.body).expect("a string");
    text
}

#[tokio::test]
async fn answers_are_these_to_the_letter() {
    let mut found = String::new();
    let plain = |request| request;
    let mut add = |name: &str, answers: &[Answer]| {
        for answer in answers {
            write!(found, "== {name}\n{}", text(answer)).expect("a string");
        }
    };
    for dialect in HeaderDialect::ALL {
        let answers = ResponseFormat::new()
            .dialects([dialect])
            .form(DenialBodyFormat::Empty);
        add(dialect.name(), &answers_of(answers, plain, 1).await);
    }
    let both = ResponseFormat::new().dialects([HeaderDialect::Draft8, HeaderDialect::Draft3]);
    add(
        "draft-8 and draft-3, exposed",
        &answers_of(both.expose(), plain, 1).await,
    );
    let none = ResponseFormat::new()
        .dialects([])
        .form(DenialBodyFormat::Plain);
    add("none, plain", &answers_of(none, plain, 1).await);
    add("grpc", &answers_of(ResponseFormat::new(), as_grpc, 1).await);
    let [_, too_large] = answers_of(ResponseFormat::new(), plain, 3).await;
    add("a cost above the burst", &[too_large]);
    if std::env::var_os("TOLLGATE_GOLDEN").is_some() {
        std::fs::write("tests/tower/golden.txt", &found).expect("written");
    }
    assert_eq!(found, GOLDEN, "to accept it, run with TOLLGATE_GOLDEN=1");
}

/// The names of a list of strings, each with its parameters.
fn list(value: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(value)
        .parse()
        .unwrap_or_else(|error| panic!("{value}: {error}"));
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else {
                panic!("an inner list: {value}")
            };
            let BareItem::String(name) = item.bare_item else {
                panic!("no string: {value}")
            };
            let params = item.params.into_iter().map(|(key, value)| {
                let BareItem::Integer(number) = value else {
                    panic!("no number: {key}")
                };
                (key.to_string(), i64::from(number))
            });
            (name.to_string(), params.collect())
        })
        .collect()
}

/// Whatever a limit is called, and however large its numbers are.
#[tokio::test]
async fn a_parser_of_structured_fields_reads_what_is_written() {
    let names = [
        "a",
        "per client",
        "say \"hi\"\\",
        "é\r\n%",
        "",
        "\u{7f}\u{0}",
        &"long".repeat(100),
    ];
    let rates = [
        Rate::per_second(1),
        Rate::per_second(1_000_000).burst(1),
        Rate::new(1, Duration::from_secs(31_000_000)),
        Rate::new(3, Duration::from_millis(1)),
    ];
    for name in names {
        for rate in rates {
            let (limits, _) = per_key(rate, keys::ClientAddress::new());
            let app = app(RateLimitLayer::new(limits.named(name)));
            for _ in 0..4 {
                let answer = ask(&app, from("192.0.2.1", "/")).await;
                let field = |name: &str| {
                    let mut lines = answer.fields.iter();
                    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                };
                let policy = list(field("ratelimit-policy").expect("a policy"));
                let left = list(field("ratelimit").expect("what is left"));
                assert_eq!((policy.len(), left.len()), (1, 1));
                assert_eq!(policy[0].0, left[0].0, "one name in both");
                let keys = |list: &[(String, i64)]| {
                    list.iter().map(|one| one.0.clone()).collect::<Vec<_>>()
                };
                assert_eq!(
                    (keys(&policy[0].1), keys(&left[0].1)),
                    (vec!["q".into(), "w".into()], vec!["r".into(), "t".into()])
                );
                let [(_, quota), (_, window)] = policy[0].1[..] else {
                    panic!("{policy:?}")
                };
                let [(_, rest), (_, more)] = left[0].1[..] else {
                    panic!("{left:?}")
                };
                assert!(
                    quota >= rest && rest >= 0 && window >= 1 && more >= 0,
                    "{answer:?}"
                );
                // It says not to come again before there is more.
                if let Some(wait) = field("retry-after") {
                    assert!(wait.parse::<i64>().expect("a number") >= more, "{answer:?}");
                }
            }
        }
    }
}

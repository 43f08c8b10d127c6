//! Adaptive limits: they learn from the outcomes that callers report with their permits, and operators see the current
//! limits.

use std::time::Duration;

use serde_json::{Value, json};

use crate::admin_kit::Operated;
use crate::metrics::{scraped, value};

const JSON: &str = "content-type: application/json\r\n";
const POLICY: &str =
    "limits: [{name: api, concurrency: {adaptive: aimd, min: 2, max: 100}, shed: priority}]";

fn post(operated: &Operated, path: &str, text: &str) -> u16 {
    let client = &operated.running;
    client.http().request("POST", path, JSON, text).0
}

fn shown(operated: &Operated) -> Value {
    let limiters = operated.done(("GET", "/debug/limiters", ""));
    limiters["limiters"][0].clone()
}

#[test]
fn an_outcome_that_is_overload_makes_the_limit_smaller() {
    let operated = Operated::by(POLICY, "adaptive-outcomes", |_| {});
    for (number, (outcome, limit)) in [
        ("", 20),
        (r#", "outcome": "success""#, 20),
        (r#", "outcome": "ignored""#, 20),
        (r#", "outcome": "dropped""#, 18),
    ]
    .into_iter()
    .enumerate()
    {
        let begin = format!(r#"{{"id": "{number}", "facts": {{"user": "ada"}}}}"#);
        assert_eq!(post(&operated, "/v1/permits", &begin), 200);
        assert_eq!(shown(&operated)["in_flight"], json!(1));
        operated.running.clock.advance(Duration::from_millis(5));
        let end = format!(r#"{{"id": "{number}"{outcome}}}"#);
        assert_eq!(post(&operated, "/v1/permits/release", &end), 200);
        let now = shown(&operated);
        assert_eq!(now["limit_now"], json!(limit), "{outcome}");
        assert_eq!(
            (&now["in_flight"], &now["tokens"]),
            (&json!(0), &json!(limit))
        );
    }
    let end = r#"{"id": "a", "outcome": "exploded"}"#;
    assert_eq!(post(&operated, "/v1/permits/release", end), 400);
}

#[test]
fn operators_and_metrics_show_where_it_is() {
    let operated = Operated::by(POLICY, "adaptive-shown", |_| {});
    for number in 0..30 {
        let class = if number < 16 { "sheddable" } else { "critical" };
        let begin = format!(r#"{{"id": "{number}", "facts": {{"priority": "{class}"}}}}"#);
        let passes = number < 14 || (16..22).contains(&number);
        let status = post(&operated, "/v1/permits", &begin);
        assert_eq!(status == 200, passes, "{number}: {status}");
    }
    let now = shown(&operated);
    assert_eq!(now["limit"], json!("2 to 100 concurrent by aimd"));
    assert_eq!(
        (&now["law"], &now["limit_now"]),
        (&json!("aimd"), &json!(20))
    );
    assert_eq!((&now["in_flight"], &now["tokens"]), (&json!(20), &json!(0)));
    let text = scraped(&operated.running);
    for (series, expected) in [
        (r#"tollgate_adaptive_limit{limiter="api"}"#, "20"),
        (r#"tollgate_adaptive_in_flight{limiter="api"}"#, "20"),
        (r#"tollgate_limit_burst{limiter="api"}"#, "20"),
        (
            r#"tollgate_denied_total{limiter="api",reason="shed"}"#,
            "10",
        ),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
}

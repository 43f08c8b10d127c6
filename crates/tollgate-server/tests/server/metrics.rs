//! `/metrics`, `/healthz` and `/readyz`: their content, their listeners, and that Prometheus' own linter finds no
//! fault.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_engine::Policy;
use tollgate_engine::document::Format;
use tollgate_server::{Log, LogFormat};

use crate::kit::{Running, Said};

const POLICY: &str = "
limits:
  - {name: per-user, key: user, rate: 2/m}
  - {name: slots, key: user, concurrency: 5}
  - {name: tried, key: user, rate: 1/m, mode: shadow}
";

/// What the admin listener has at a path: the status, and all that came.
fn of_admin(running: &Running, path: &str, fields: &str) -> (u16, String) {
    let mut client = running.admin();
    // It answers no name but its own.
    let host = client.0.peer_addr().expect("an address");
    let asked = format!("GET {path} HTTP/1.0\r\nhost: {host}\r\n{fields}\r\n");
    client.0.write_all(asked.as_bytes()).expect("written");
    let answer = client.rest();
    let status = answer.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), answer)
}

/// The body of a scrape.
pub(crate) fn scraped(running: &Running) -> String {
    let (status, answer) = of_admin(running, "/metrics", "");
    assert_eq!(status, 200, "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    let media = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n";
    assert!(head.contains(media), "{head}");
    body.to_owned()
}

/// The value of one series, as it is written.
pub(crate) fn value<'t>(text: &'t str, series: &str) -> &'t str {
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{text}"))
}

/// Series of a scrape.
pub(crate) fn series(text: &str) -> usize {
    let lines = text.lines();
    lines.filter(|line| !line.starts_with('#')).count()
}

/// Prometheus' own linter has nothing to say.
#[track_caller]
pub(crate) fn is_clean(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: apt-get install prometheus");
    let mut input = promtool.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).expect("read");
    drop(input);
    let said = promtool.wait_with_output().expect("promtool ends");
    let told = [said.stdout, said.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(said.status.success() && told.is_empty(), "{told}\n{text}");
}

fn check(running: &Running, user: &str) -> u16 {
    let body = format!(r#"{{"facts":{{"user":"{user}"}}}}"#);
    let json = "content-type: application/json\r\n";
    running.http().request("POST", "/v1/check", json, &body).0
}

#[test]
fn all_series_are_there_from_the_start() {
    let running = Running::new(POLICY, |_| {});
    let text = scraped(&running);
    is_clean(&text);
    for (series, expected) in [
        (r#"tollgate_allowed_total{limiter="per-user"}"#, "0"),
        (
            r#"tollgate_denied_total{limiter="per-user",reason="rate"}"#,
            "0",
        ),
        (
            r#"tollgate_denied_total{limiter="slots",reason="concurrency"}"#,
            "0",
        ),
        (r#"tollgate_shadow_denied_total{limiter="tried"}"#, "0"),
        (r#"tollgate_near_limit_total{limiter="(none)"}"#, "0"),
        ("tollgate_wait_seconds_count", "0"),
        (
            r#"tollgate_limit_rate{limiter="per-user"}"#,
            "0.03333333333333333",
        ),
        (r#"tollgate_limit_burst{limiter="per-user"}"#, "2"),
        (r#"tollgate_limit_burst{limiter="slots"}"#, "5"),
        (r#"tollgate_active_keys{table="gcra"}"#, "0"),
        (r#"tollgate_key_capacity{table="gcra"}"#, "1000000"),
        (r#"tollgate_key_capacity{table="throttle"}"#, "1000000"),
        (r#"tollgate_evictions_total{reason="idle"}"#, "0"),
        (r#"tollgate_evictions_total{reason="capacity"}"#, "0"),
        ("tollgate_waiters", "0"),
        ("tollgate_in_flight", "0"),
        (r#"tollgate_store_failures_total{kind="timed-out"}"#, "0"),
        ("tollgate_store_clock_offset_seconds", "0.0"),
        ("tollgate_fallback_active", "0"),
        ("tollgate_breaker_state", "0"),
        ("tollgate_lease_tokens", "0"),
        (r#"tollgate_reloads_total{outcome="ok"}"#, "0"),
        (r#"tollgate_reloads_total{outcome="rejected"}"#, "0"),
        (r#"tollgate_request_seconds_count{protocol="http"}"#, "0"),
        (r#"tollgate_request_seconds_count{protocol="grpc"}"#, "0"),
        (r#"tollgate_request_seconds_count{protocol="resp"}"#, "0"),
        (r#"tollgate_connections{protocol="admin"}"#, "1"),
        (r#"tollgate_connections{protocol="http"}"#, "0"),
        (r#"tollgate_concern{concern="draining"}"#, "0"),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let build = format!(r#"tollgate_build_info{{version="{version}",backend="memory","#);
    assert!(text.contains(&build), "{text}");
    let policy = Policy::from_text(POLICY, Format::Yaml).expect("a policy");
    let hash = policy.policy.fingerprint();
    let series = format!(r#"tollgate_policy_info{{hash="{hash:016x}"}}"#);
    assert_eq!(value(&text, &series), "1");
}

#[test]
fn what_is_decided_is_counted_by_limiter_and_reason() {
    let running = Running::new(POLICY, |_| {});
    let statuses: Vec<_> = (0..5).map(|_| check(&running, "ada")).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    running.resp().expect(
        "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n",
        "+PONG\r\n+PONG\r\n",
    );
    let text = scraped(&running);
    is_clean(&text);
    for (series, expected) in [
        (r#"tollgate_allowed_total{limiter="per-user"}"#, "2"),
        (
            r#"tollgate_denied_total{limiter="per-user",reason="rate"}"#,
            "3",
        ),
        (
            r#"tollgate_denied_total{limiter="per-user",reason="quota"}"#,
            "0",
        ),
        (r#"tollgate_shadow_denied_total{limiter="tried"}"#, "1"),
        (r#"tollgate_active_keys{table="concurrency"}"#, "1"),
        ("tollgate_in_flight", "2"),
        ("tollgate_holds", "2"),
        (r#"tollgate_request_seconds_count{protocol="http"}"#, "5"),
        // What comes in one read counts each for itself.
        (r#"tollgate_request_seconds_count{protocol="resp"}"#, "2"),
        (
            r#"tollgate_request_seconds_bucket{le="+Inf",protocol="http"}"#,
            "5",
        ),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
    assert!(
        !text.contains("\"ada") && !text.contains("=ada"),
        "a key in\n{text}"
    );
}

#[test]
fn open_metrics_are_told_to_those_who_ask() {
    let running = Running::new(POLICY, |_| {});
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (status, answer) = of_admin(&running, "/metrics", accept);
    assert_eq!(status, 200);
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(answer.contains("# TYPE tollgate_allowed counter\n"));
    assert!(answer.ends_with("# EOF\n"));
}

#[test]
fn metrics_and_probes_need_no_token_and_are_where_they_belong() {
    let any = "127.0.0.1:0".parse().expect("an address");
    let running = Running::new(POLICY, |settings| {
        settings.metrics = any;
        settings.http_client_token = Some(crate::kit::secret("sesame"));
        settings.http_operator_token = Some(crate::kit::secret("operator"));
    });
    let ask = |mut client: crate::kit::Client, method: &str, path: &str| {
        client.request(method, path, "", "").0
    };
    for (path, public, admin, metrics) in [
        ("/healthz", 200, 200, 200),
        ("/readyz", 200, 200, 200),
        ("/metrics", 401, 200, 200),
        ("/v1/usage", 401, 404, 404),
        ("/openapi.json", 401, 404, 404),
        ("/", 401, 404, 404),
    ] {
        assert_eq!(ask(running.http(), "GET", path), public, "{path}");
        assert_eq!(of_admin(&running, path, "").0, admin, "admin {path}");
        assert_eq!(
            ask(running.metrics(), "GET", path),
            metrics,
            "metrics {path}"
        );
    }
    let (status, answer) =
        running
            .http()
            .request("GET", "/metrics", "authorization: Bearer operator\r\n", "");
    assert_eq!(status, 404, "{answer}");
    for path in ["/metrics", "/readyz", "/healthz"] {
        assert_eq!(ask(running.metrics(), "POST", path), 405, "{path}");
        assert_eq!(ask(running.metrics(), "HEAD", path), 200, "{path}");
    }
}

#[test]
fn a_service_without_concerns_is_ready() {
    let running = Running::new(POLICY, |_| {});
    for (status, answer) in [
        running.http().request("GET", "/readyz", "", ""),
        running.admin().request("GET", "/readyz", "", ""),
    ] {
        assert_eq!(status, 200);
        assert!(
            answer.ends_with("{\"status\":\"ready\",\"reasons\":{}}\n"),
            "{answer}"
        );
    }
}

/// Asks so many times, each of which counts.
fn ask_often(running: &Running, times: usize) {
    for _ in 0..times {
        check(running, "ada");
    }
}

#[test]
fn a_minute_of_refusals_is_a_concern_and_clients_come_all_the_same() {
    let policy = "limits: [{name: per-user, key: user, rate: 5/h}]";
    let said = Said::default();
    let log = Log::to_writer(said.clone(), LogFormat::Text);
    let running = Running::in_still_time(policy, |settings| {
        settings.log = log;
        settings.denial_log.share = "0".parse().expect("a share");
    });
    let ready = || running.http().request("GET", "/readyz", "", "");
    let look = Duration::from_secs(5);
    running.pass(look);
    // 94 of 99: too few to say anything.
    ask_often(&running, 99);
    running.pass(look);
    assert!(
        ready()
            .1
            .ends_with("{\"status\":\"ready\",\"reasons\":{}}\n")
    );
    // 95 of 100.
    ask_often(&running, 1);
    running.pass(look);
    let (status, answer) = ready();
    assert_eq!(status, 200);
    let why = "95 of the 100 requests of the last minute were denied";
    let expected = format!("{{\"status\":\"degraded\",\"reasons\":{{\"denials\":\"{why}\"}}}}\n");
    assert!(answer.ends_with(&expected), "{answer}");
    assert_eq!(running.http().request("GET", "/healthz", "", "").0, 200);
    assert_eq!(
        value(&scraped(&running), r#"tollgate_concern{concern="denials"}"#),
        "1"
    );
    running.pass(look);
    // A minute later nobody asks any more.
    for _ in 0..12 {
        running.pass(look);
    }
    assert!(
        ready()
            .1
            .ends_with("{\"status\":\"ready\",\"reasons\":{}}\n")
    );
    let said = said.text();
    let lines: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once("Z "))
        .collect();
    let lines: Vec<_> = lines.iter().map(|(_, line)| *line).collect();
    let expected = [
        &format!("warning: nearly all requests are denied why={why}"),
        "info: no longer nearly all requests are denied",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn most_that_pass_is_no_concern_however_many_are_refused() {
    let policy = "limits: [{name: per-user, key: user, rate: 11/h}]";
    let running = Running::in_still_time(policy, |_| {});
    running.pass(Duration::from_secs(5));
    // 189 of 200.
    ask_often(&running, 200);
    running.pass(Duration::from_secs(5));
    let (_, answer) = running.http().request("GET", "/readyz", "", "");
    assert!(
        answer.ends_with("{\"status\":\"ready\",\"reasons\":{}}\n"),
        "{answer}"
    );
}

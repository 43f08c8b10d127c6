//! Alerts: Prometheus loads them, each fires when it should, and all metrics they use exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tollgate_testkit::certificates::Authority;
use tollgate_testkit::external_programs::find_program;
use tollgate_testkit::temp_folder::TempFolder;

use super::{contrib, get, run, text};
use crate::kit::{ANY, Service};

const ALERTS: &str = "prometheus/alerts.yaml";
const TESTS: &str = "prometheus/alerts_test.yaml";

fn promtool() -> Command {
    Command::new(find_program("promtool", "apt-get install prometheus"))
}

/// The words of a text that begin so.
fn words<'t>(text: &'t str, start: &str) -> BTreeSet<&'t str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let all = text.split(|letter| !is_part(letter));
    all.filter(|word| word.starts_with(start)).collect()
}

#[test]
fn prometheus_reads_the_rules_and_the_settings() {
    for (what, name) in [("rules", ALERTS), ("config", "prometheus/prometheus.yaml")] {
        let (is_content, said) = run(promtool().args(["check", what]).arg(contrib(name)));
        assert!(is_content, "{said}");
    }
}

#[test]
fn each_alert_fires_when_it_should() {
    let (is_content, said) = run(promtool().args(["test", "rules"]).arg(contrib(TESTS)));
    assert!(is_content, "{said}");
    let named = |text: &str, field: &str| -> BTreeSet<String> {
        let rest = text.split(field).skip(1);
        let names =
            rest.filter_map(|rest| Some(rest.split_whitespace().next()?.replace([',', '}'], "")));
        names.collect()
    };
    let (alerts, tested) = (
        named(&text(ALERTS), "alert: "),
        named(&text(TESTS), "alertname: "),
    );
    assert_eq!(
        alerts, tested,
        "an alert without a test, or the other way round"
    );
}

#[test]
fn an_alert_that_says_something_else_would_be_told_of() {
    let scratch = TempFolder::new("alerts");
    let changed = text(ALERTS).replace(
        "tollgate_fallback_active > 0",
        "tollgate_fallback_active > 1",
    );
    fs::write(scratch.path("alerts.yaml"), changed).expect("a file");
    fs::write(scratch.path("alerts_test.yaml"), text(TESTS)).expect("a file");
    let (is_content, said) = run(promtool()
        .args(["test", "rules"])
        .arg(scratch.path("alerts_test.yaml")));
    assert!(
        !is_content && said.contains("TollgateWithoutStore"),
        "{said}"
    );
}

#[test]
fn all_that_alerts_ask_about_is_measured() {
    let scratch = TempFolder::new("measured");
    let authority = Authority::new(scratch.folder(), "authority");
    let own = authority.server("server");
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let (certificate, key) = (path(&own.certificate), path(&own.key));
    let tls = [
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-on",
        "grpc",
    ];
    let service = Service::start(&[&ANY[..], &["--metrics", "0"], &tls].concat());
    let address = service.ready["metrics"].as_str().expect("an address");
    let shown = get(address, "/metrics");
    let (alerts, measured) = (text(ALERTS), words(&shown, "tollgate_"));
    let missing: Vec<_> = words(&alerts, "tollgate_")
        .into_iter()
        .filter(|name| !measured.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?} aren't in {shown}");
    // A concern that there isn't would never be one.
    for concern in ["reload", "state", "certificate", "secret"] {
        let series = format!("tollgate_concern{{concern=\"{concern}\"}} 0");
        assert!(
            alerts.contains(concern) && shown.contains(&series),
            "{series}"
        );
    }
}

#[test]
fn a_page_says_what_to_do_about_each_alert() {
    let (alerts, page) = (text(ALERTS), text("../docs/reference/metrics.md"));
    let known = words(&page, "Tollgate");
    let missing: Vec<_> = words(&alerts, "Tollgate")
        .into_iter()
        .filter(|alert| !known.contains(alert))
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:?} aren't in docs/reference/metrics.md"
    );
}

//! Requests without the key of a rule: the clients' responses, and the operators' warnings.

use tollgate_server::{Log, LogFormat};

use crate::kit::{Running, Said};
use crate::metrics::{scraped, value};

const JSON: &str = "content-type: application/json\r\n";

fn status(running: &Running, path: &str, body: &str) -> u16 {
    running.http().request("POST", path, JSON, body).0
}

#[test]
fn the_address_of_envoy_is_the_fact_ip() {
    let policy = "limits: [{name: per-address, key: ip, rate: 2/h}]";
    let by = |key: &str, address: &str| {
        let entry = format!(r#"{{"key":"{key}","value":"{address}"}}"#);
        format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{entry}]}}]}}"#)
    };
    for path in ["/json", "/v1/check"] {
        let running = Running::new(policy, |_| {});
        let ask = |key: &str, address: &str| status(&running, path, &by(key, address));
        let asked = [ask("remote_address", "10.0.0.1"), ask("ip", "10.0.0.1")];
        assert_eq!(asked, [200, 200], "{path}");
        assert_eq!(ask("remote_address", "10.0.0.1"), 429, "{path}");
        assert_eq!(ask("remote_address", "10.0.0.2"), 200, "{path}");
        let text = scraped(&running);
        let series = r#"tollgate_missing_key_total{limiter="per-address"}"#;
        assert_eq!(value(&text, series), "0", "{path}");
    }
    // An entry by our own name says more than Envoy's.
    let running = Running::new(policy, |_| {});
    let both = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"10.0.0.1"},{"key":"ip","value":"10.0.0.9"}]}]}"#;
    let asked: Vec<_> = (0..3).map(|_| status(&running, "/json", both)).collect();
    assert_eq!(asked, [200, 200, 429]);
    assert_eq!(
        status(&running, "/json", &by("remote_address", "10.0.0.1")),
        200
    );
}

#[test]
fn a_rule_that_never_finds_its_key_is_in_the_log_and_in_the_metrics() {
    let said = Said::default();
    let log = Log::to_writer(said.clone(), LogFormat::Text);
    let policy = "
limits:
  - {name: per-user, key: user, rate: 2/m}
  - {name: written-out, key: session, rate: 2/m, on_missing_key: pass}
  - {name: strict, match: {path: /pay}, key: user, rate: 2/m, on_missing_key: deny}
";
    let running = Running::new(policy, |settings| {
        settings.log = log;
        settings.denial_log.share = "0".parse().expect("a share");
    });
    for _ in 0..120 {
        assert_eq!(
            status(&running, "/v1/check", r#"{"facts":{"usr":"ada"}}"#),
            200
        );
    }
    let answer = running
        .http()
        .request("POST", "/v1/check", JSON, r#"{"facts":{"path":"/pay"}}"#);
    assert_eq!(answer.0, 400);
    assert!(answer.1.contains(r#""rule":"strict""#), "{}", answer.1);
    let lines = said.text();
    let warned: Vec<_> = lines
        .lines()
        .filter(|line| line.contains("a limit applies to nobody"))
        .collect();
    assert_eq!(warned.len(), 1, "{lines}");
    assert!(
        warned[0].contains("rule=per-user")
            && warned[0].contains("did you mean user where you say usr?"),
        "{lines}"
    );
    let text = scraped(&running);
    for (series, expected) in [
        (r#"tollgate_missing_key_total{limiter="per-user"}"#, "121"),
        (
            r#"tollgate_missing_key_total{limiter="written-out"}"#,
            "121",
        ),
        (r#"tollgate_missing_key_total{limiter="strict"}"#, "1"),
        (r#"tollgate_key_never_found{limiter="per-user"}"#, "1"),
        (r#"tollgate_key_never_found{limiter="written-out"}"#, "0"),
        (
            r#"tollgate_denied_total{limiter="strict",reason="missing_key"}"#,
            "1",
        ),
        ("tollgate_unknown_tier_total", "0"),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
}

//! Whatever clients send and policies name, the number of series stays within the documented bound.

use std::fmt::Write as _;

use tollgate_engine::Policy;

use crate::kit::{Client, Running, read};
use crate::metrics::{is_clean, scraped, series};

/// What the pages state for a service that shows so many limiters by name.
const fn bound(limiters: usize) -> usize {
    16 * limiters + 299
}

const LIMITERS: usize = 40;

const TREE: &str = "
domain: edge
descriptors:
  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 3}}
  - key: path
    descriptors: [{key: method, value: \"P\\\"O\\nST\", rate_limit: {unit: hour, requests_per_unit: 3}}]
";

/// Names as nobody should choose them.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "quote\"s",
        "line\nbreak",
        "back\\slash\\n",
        "carriage\rreturn",
        "tab\tand space ",
        "{limiter=\"x\"} 1",
        "# EOF",
        "(none)",
        "((none)",
        "ключ λ 🦀",
        "a\u{0}b",
        "\u{202e}back",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("long ".repeat(2_000));
    names.push(format!("{}x", "long ".repeat(2_000)));
    names
}

/// A rule for each name, and a tree of descriptors. No file may have such names; programs make policies, too.
fn policy(names: &[String]) -> Policy {
    let plain = (0..names.len()).map(|number| {
        let name = format!("plain-{number}");
        serde_json::json!({"name": name, "key": "user", "rate": "1000000/s"})
    });
    let plain: Vec<_> = plain.collect();
    let mut policy = read(&serde_json::json!({"limits": plain}).to_string());
    for (rule, name) in policy.rules.iter_mut().zip(names) {
        rule.name.clone_from(name);
    }
    policy.domains = read(TREE).domains;
    policy
}

/// Thousands of users, and descriptors of any value.
fn flood(running: &Running, from: usize) {
    let mut resp = running.resp();
    let mut asked = String::new();
    for user in from..from + 1_000 {
        let _ = write!(asked, "TG.CHECK user=u{user}\r\n");
    }
    until_pong(&mut resp, &asked);
    let json = "content-type: application/json\r\n";
    for number in from..from + 50 {
        let value = format!("v{number}\"\n\\{}", "\u{1F980}".repeat(number % 7));
        for entries in [
            serde_json::json!([{"key": "tenant", "value": value}]),
            serde_json::json!([{"key": "path", "value": value}, {"key": "method", "value": "P\"O\nST"}]),
            serde_json::json!([{"key": value, "value": value}]),
        ] {
            let body = serde_json::json!({"domain": "edge", "descriptors": [{"entries": entries}]});
            running
                .http()
                .request("POST", "/json", json, &body.to_string());
        }
    }
}

/// Asks, and reads until the answer to one more question.
fn until_pong(client: &mut Client, asked: &str) {
    use std::io::{Read, Write};
    let all = format!("{asked}PING\r\n");
    client.0.write_all(all.as_bytes()).expect("written");
    let (mut heard, mut bytes) = (Vec::new(), [0; 65_536]);
    while !heard.ends_with(b"+PONG\r\n") {
        let read = client.0.read(&mut bytes).expect("an answer");
        heard.extend(&bytes[..read]);
    }
}

#[test]
fn no_flood_makes_more_series_than_are_stated() {
    let running = Running::by(policy(&odd_names()), |settings| {
        settings.max_named_limiters = LIMITERS
    });
    let server = running.server.as_ref().expect("it runs");
    let mut most = 0;
    for round in 0..6 {
        flood(&running, round * 1_000);
        let text = scraped(&running);
        is_clean(&text);
        let count = series(&text);
        assert!(count <= bound(LIMITERS), "{count} in round {round}");
        assert!(
            !text.contains("u1") && !text.contains("v1"),
            "a client's value"
        );
        most = most.max(count);
        // Each reload has more limiters than are shown, under other names.
        let mut names = odd_names();
        names.extend((0..2 * LIMITERS).map(|number| format!("r{round}-{number}\"\n")));
        server.apply_policy(policy(&names)).expect("a policy");
    }
    // All that there may be was there, but for a certificate, rates of limiters that are gone, and limits that adapt.
    assert!(most >= bound(LIMITERS) - 4 * LIMITERS - 1, "{most}");
}

#[test]
fn the_pages_state_what_there_is() {
    let empty = Running::by(Policy::default(), |_| {});
    // One more with TLS: when its certificate ends.
    assert_eq!(series(&scraped(&empty)) + 1, bound(0));
    let pages = include_str!("../../../../docs/reference/metrics.md");
    assert!(pages.contains("16 × L + 299"));
    // Every name that is told is explained, and the other way round.
    let text = scraped(&empty);
    let told = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let told: Vec<_> = told.filter_map(|rest| rest.split(' ').next()).collect();
    for name in &told {
        assert!(
            pages.contains(&format!("`{name}`")),
            "{name} isn't in the pages"
        );
    }
    let names = pages
        .split('`')
        .filter(|text| text.starts_with("tollgate_"));
    for name in names.filter(|text| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    }) {
        let is_told =
            told.contains(&name) || name == "tollgate_certificate_expiry_timestamp_seconds";
        assert!(is_told, "{name} is in the pages alone");
    }
}

//! What can't be said when their form becomes ours, and is told.

use tollgate_engine::document::Format;
use tollgate_engine::envoy;
use tollgate_engine::policy::{OnStoreFailure, Policy};

#[test]
fn a_circle_of_replaced_limits_is_opened_and_told() {
    let file = "
domain: edge
descriptors:
- {key: a, rate_limit: {name: a, unit: day, requests_per_unit: 1, replaces: [{name: b}]}}
- {key: b, rate_limit: {name: b, unit: day, requests_per_unit: 1, replaces: [{name: c}]}}
- {key: c, rate_limit: {name: c, unit: day, requests_per_unit: 1, replaces: [{name: a}, {name: d}]}}
- {key: d, rate_limit: {name: d, unit: day, requests_per_unit: 1}}
";
    let domains = envoy::decode(&[(0, file)])
        .expect("a configuration")
        .domains;
    let converted = envoy::to_rules(&domains);
    let replaces: Vec<_> = converted
        .rules
        .iter()
        .map(|rule| &rule.replaces[..])
        .collect();
    assert_eq!(replaces, [&["b"][..], &["c"], &["d"], &[]]);
    let [told] = &converted.unsaid[..] else {
        panic!("one loss")
    };
    assert_eq!(
        (told.rule.as_deref(), told.limit.as_str()),
        (Some("c"), "edge/c")
    );
}

#[test]
fn a_quota_stays_closed_without_the_store_when_it_becomes_ours() {
    let file = "
domain: edge
descriptors:
- {key: a, rate_limit: {quota: 5/day}}
- {key: header.B, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let decoded = envoy::decode(&[(0, file)]).expect("a configuration");
    let domains = decoded.domains;
    let rules = envoy::to_rules(&domains).rules;
    let ours = envoy::convert(&Policy {
        domains,
        ..Policy::default()
    });
    let read = Policy::from_text(&ours, Format::Yaml).expect("our form");
    for (rule, again) in rules.iter().zip(&read.policy.rules) {
        assert_eq!(rule.on_store_failure, again.on_store_failure);
        assert_eq!((&rule.key, &rule.name), (&again.key, &again.name));
    }
    assert_eq!(rules[0].on_store_failure, OnStoreFailure::Closed);
    assert_eq!(rules[1].key[0].fact(), "header.b");
}

#[test]
fn a_domain_that_charges_each_is_told() {
    let file = "domain: edge\ncharging: each\ndescriptors: [{key: a, rate_limit: {rate: 5/s}}]";
    let policy = Policy::from_text(file, Format::Yaml)
        .expect("their form")
        .policy;
    let ours = envoy::convert(&policy);
    let note = "# Not converted, \"edge\": charging: each: rules charge a request that one of them \
                refuses to none\n";
    assert!(ours.contains(note), "{ours}");
    let read = Policy::from_text(&ours, Format::Yaml).expect("our form");
    assert_eq!(read.policy.rules.len(), 1);
    // Our own form has no such field, and says where it belongs.
    let wrong = Policy::from_text(
        "charging: each\nlimits: [{name: a, rate: 5/s}]",
        Format::Yaml,
    );
    let error = &wrong.unwrap_err().errors[0];
    let help = "rules are charged all or none; a domain of envoyproxy/ratelimit's form may say it";
    assert_eq!(error.help.as_deref(), Some(help));
}

#[test]
fn thousands_of_siblings_are_converted_in_no_time() {
    let mut file = String::from("domain: edge\ndescriptors:\n");
    let limit = "rate_limit: {unit: day, requests_per_unit: 5";
    for number in 0..8_000 {
        file += &format!(
            "- {{key: a, value: v{number}, detailed_metric: true, {limit}, name: n{number}, replaces: [{{name: base}}]}}}}\n"
        );
    }
    for number in 0..500 {
        file += &format!("- {{key: a, value: v{number}*x, {limit}}}}}\n");
    }
    file += &format!("- {{key: a, {limit}, name: base}}}}\n");
    let decoded = envoy::decode(&[(0, &file)]).expect("a configuration");
    let policy = Policy {
        domains: decoded.domains,
        ..Policy::default()
    };
    let converted = envoy::to_rules(&policy.domains);
    assert_eq!(converted.rules.len(), 8_501);
    assert_eq!(converted.rules[7].replaces, ["base"]);
    let ours = envoy::convert(&policy);
    assert_eq!(ours.matches("# lost: detailed_metric").count(), 8_000);
}

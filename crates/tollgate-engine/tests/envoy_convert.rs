//! What can't be said when their form becomes ours, and is told.

use tollgate_engine::envoy;

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

//! The preview of a change, and that it comes true.

use tollgate::clock::Manual;
use tollgate_engine::diff::{CounterState, PolicyDiff};
use tollgate_engine::document::Format;
use tollgate_engine::{Facts, Policy};

use crate::common::engine;

fn read(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.unwrap_or_else(|rejected| panic!("{text}\n{rejected}"))
        .policy
}

fn diff(old: &str, new: &str) -> PolicyDiff {
    PolicyDiff::new(&read(old), &read(new))
}

/// One rule or tier, before and after, and what becomes of what its keys have spent.
const STATES: [(&str, &str, Option<CounterState>); 15] = [
    ("rate: 9/h", "rate: 5/h", Some(CounterState::Kept)),
    ("rate: 9/h", "rate: 9/h burst 20", Some(CounterState::Kept)),
    ("rate: 9/h", "rate: 9/d", Some(CounterState::Kept)),
    (
        "rate: 9/h",
        "rate: 9/h, mode: shadow",
        Some(CounterState::Kept),
    ),
    (
        "rate: 9/h",
        "rate: 9/h, match: {tenant: t}",
        Some(CounterState::Kept),
    ),
    ("rate: 9/h", "rate: 9/h, cost: 2", Some(CounterState::Kept)),
    (
        "rate: 9/h",
        "rate: [9/h, 50/d]",
        Some(CounterState::PartlyKept),
    ),
    (
        "rate: 9/h",
        "rate: 9/h, quota: 50/day",
        Some(CounterState::PartlyKept),
    ),
    ("rate: 9/h", "quota: 9/day", Some(CounterState::Anew)),
    (
        "rate: 9/h",
        "rate: 9/h, algorithm: sliding-log",
        Some(CounterState::Anew),
    ),
    (
        "rate: 9/h",
        "rate: 9/h, mode: off",
        Some(CounterState::Retired),
    ),
    (
        "rate: 9/h, mode: off",
        "rate: 9/h",
        Some(CounterState::Anew),
    ),
    ("rate: 9/h", "unlimited: true", Some(CounterState::Retired)),
    (
        "rate: 9/h, key: user",
        "rate: 9/h, key: tenant",
        Some(CounterState::OtherKeys),
    ),
    ("unlimited: true, mode: shadow", "unlimited: true", None),
];

#[test]
fn what_is_said_of_counts_comes_true() {
    for (old, new, state) in STATES {
        let text = |rule: &str| {
            let key = if rule.contains("key:") {
                ""
            } else {
                ", key: user"
            };
            format!("limits: [{{name: a, {rule}{key}}}]")
        };
        let (old, new) = (text(old), text(new));
        let found = diff(&old, &new);
        assert_eq!(found.changes.len(), 1, "{new}: {found}");
        assert_eq!(found.changes[0].state, state, "{new}");
        // One is spent, and then it is seen whether that counts.
        let clock = Manual::new();
        let engine = engine(read(&old), &clock);
        let facts = Facts::new().with("user", "u").with("tenant", "t");
        assert!(engine.decide(&facts).allowed().is_some());
        engine.reload(read(&new)).expect("a policy");
        let findings = engine.peek(&facts);
        let decision = findings.decision();
        let is_full = decision.is_unlimited() || decision.remaining == decision.limit;
        let counts = matches!(state, Some(CounterState::Kept | CounterState::PartlyKept))
            && !new.contains("shadow");
        assert_eq!(is_full, !counts, "{new}: {decision:?}");
    }
}

#[test]
fn a_store_counts_another_period_by_itself_and_that_is_said() {
    let rule = |rest: &str| format!("limits: [{{name: a, key: [user, tenant], {rest}}}]");
    for (new, in_store) in [
        ("rate: 5/h", None),
        ("rate: 9/d", Some(CounterState::Anew)),
        ("rate: 9/h, counting: leased", Some(CounterState::Anew)),
        ("rate: 9/h, hash_tag: tenant", Some(CounterState::Anew)),
    ] {
        let found = diff(&rule("rate: 9/h"), &rule(new));
        let change = &found.changes[0];
        assert_eq!(
            (change.state, change.in_store),
            (Some(CounterState::Kept), in_store),
            "{new}"
        );
    }
    let found = diff(&rule("rate: 9/h"), &rule("rate: 9/d")).to_string();
    assert_eq!(
        found,
        "~ rule \"a\": keeps what its keys have spent; in a store it starts anew\n    rate: 9/h -> 9/d\n"
    );
}

#[test]
fn what_is_gone_is_forgotten_unless_others_count_there() {
    let both = "limits: [{name: a, rate: 9/h, shared: s}, {name: b, rate: 9/h, shared: s}, \
                {name: d, rate: 9/h, shared: s}, {name: c, rate: 1/h}]";
    let one = "limits: [{name: b, rate: 9/h, shared: s}, {name: d, rate: 9/h, shared: s}]";
    let states: Vec<_> = diff(both, one)
        .changes
        .iter()
        .map(|one| one.state)
        .collect();
    assert_eq!(
        states,
        [Some(CounterState::Kept), Some(CounterState::Retired)]
    );
    assert_eq!(
        diff(one, both).to_string(),
        "+ rule \"a\": keeps what its keys have spent\n    rate: 9/h\n    shared: s\n\
         + rule \"c\": starts anew\n    rate: 1/h\n"
    );
}

const BASE: &str = "
limits:
- {name: a, match: {path: /a/**, method: GET}, key: [user], rate: 9/h}
- {name: b, rate: 5/s}
tiers: {free: {rate: 1/s}, paid: {rate: 9/s}}
tenants: {acme: paid}
default_tier: free
block: [{user: eve}]
exempt: [{path: /healthz}]
";

/// Changes of one thing, and their descriptions.
const CHANGES: [(&str, &str, &str); 16] = [
    (
        "rate: 9/h",
        "rate: 8/h",
        "~ rule \"a\": keeps what its keys have spent\n    rate: 9/h -> 8/h\n",
    ),
    (
        "method: GET",
        "method: PUT",
        "~ rule \"a\": keeps what its keys have spent\n    match: {method: \"GET\", path: {glob: \"/a/**\"}} -> {method: \"PUT\", path: {glob: \"/a/**\"}}\n",
    ),
    (
        "key: [user]",
        "key: [user, ip/64]",
        "~ rule \"a\": counts by other keys, which start anew\n    key: [user] -> [user, \"ip/64\"]\n",
    ),
    (
        "rate: 5/s",
        "rate: 5/s, over: wait 2s",
        "~ rule \"b\": keeps what its keys have spent\n    over: deny (the default) -> wait 2s\n",
    ),
    (
        "rate: 5/s",
        "rate: 5/s, on_store_failure: closed",
        "~ rule \"b\": keeps what its keys have spent\n    on_store_failure: quota closed, rate and concurrency local (the default) -> closed\n",
    ),
    (
        "rate: 5/s",
        "rate: 5/s, replaces: a",
        "~ rule \"b\": keeps what its keys have spent\n    replaces: nothing -> [a]\n",
    ),
    (
        "rate: 5/s",
        "rate: 5/s, warm_up: 1m",
        "~ rule \"b\": keeps what its keys have spent\n    warm_up: nothing -> 60s\n",
    ),
    (
        "rate: 5/s",
        "rate: 5/s, cost: {fact: tokens, default: 3, settle_within: 9s}",
        "~ rule \"b\": keeps what its keys have spent\n    cost: 1 (the default) -> {fact: tokens, default: 3, settle_within: 9s, unsettled: charge}\n",
    ),
    (
        "free: {rate: 1/s}",
        "free: {rate: 2/s}",
        "~ tier \"free\": keeps what its keys have spent\n    rate: 1/s -> 2/s\n",
    ),
    (
        "acme: paid",
        "acme: free",
        "~ tenant \"acme\"\n    tier: paid -> free\n",
    ),
    (
        "default_tier: free",
        "default_tier: paid",
        "~ policy\n    default_tier: free -> paid\n",
    ),
    (
        "user: eve",
        "user: bob",
        "+ block {user: \"bob\"}\n- block {user: \"eve\"}\n",
    ),
    (
        "exempt:",
        "near_limit: 90%\nexempt:",
        "~ policy\n    near_limit: 80% -> 90%\n",
    ),
    (
        "exempt:",
        "mode: shadow\nexempt:",
        "~ policy\n    mode: enforce -> shadow\n",
    ),
    (
        "exempt:",
        "mode: off\nexempt:",
        "~ policy: limits nobody, and what its keys have spent counts if it returns\n    mode: enforce -> off\n",
    ),
    (
        "exempt: [{path: /healthz}]",
        "",
        "- exempt {path: \"/healthz\"}\n",
    ),
];

#[test]
fn every_field_that_changes_is_told_with_both_values() {
    for (old, new, told) in CHANGES {
        let changed = BASE.replacen(old, new, 1);
        assert_ne!(changed, BASE);
        let found = diff(BASE, &changed);
        assert_eq!(found.to_string(), told);
        let json: serde_json::Value = serde_json::from_str(&found.to_json()).expect("JSON");
        assert_eq!(
            json["changes"].as_array().map(Vec::len),
            Some(found.changes.len())
        );
    }
}

#[test]
fn where_things_stand_is_no_change_unless_it_decides() {
    let spread = format!(
        "# Said first.\n\n{}",
        BASE.replace("path: /a/**, method: GET", "method: GET, path: /a/**")
    );
    assert_eq!(diff(BASE, &spread).to_string(), "");
    let a = "{name: a, rate: 9/h}";
    let b = "{name: b, rate: 5/s}";
    let turned = diff(
        &format!("limits: [{a}, {b}]"),
        &format!("limits: [{b}, {a}]"),
    );
    assert_eq!(
        turned.to_string(),
        "~ policy\n    order: [a, b] -> [b, a]\n"
    );
    let more = diff(&format!("limits: [{a}]"), &format!("limits: [{b}, {a}]"));
    assert_eq!(more.summary(), "1 added");
}

#[test]
fn trees_are_told_by_their_paths() {
    let tree = |below: &str| {
        format!(
            "domain: edge\ndescriptors:\n- key: user\n  descriptors: [{below}]\n- {{key: a, value: x*}}\n- {{key: a, value: y*}}"
        )
    };
    let limit = |count: u32| {
        format!("{{key: path, value: /a, rate_limit: {{unit: hour, requests_per_unit: {count}}}}}")
    };
    let (old, new) = (tree(&limit(5)), tree(&limit(6)));
    assert_eq!(
        diff(&old, &new).to_string(),
        "~ descriptor \"edge/user/path=%2Fa\": keeps what its keys have spent\n    rate: 5/h -> 6/h\n"
    );
    assert_eq!(
        diff(&old, &tree("")).to_string(),
        "- descriptor \"edge/user/path=%2Fa\": limits nobody, and what its keys have spent counts if it returns\n    rate: 5/h\n    algorithm: fixed-window\n    unit: hour\n"
    );
    let turned = old
        .replace("x*", "-")
        .replace("y*", "x*")
        .replace("value: -", "value: y*");
    assert_eq!(
        diff(&old, &turned).to_string(),
        "~ domain \"edge\"\n    order: a=x*, a=y* -> a=y*, a=x*\n"
    );
    let each = format!("charging: each\n{old}");
    assert_eq!(
        diff(&old, &each).to_string(),
        "~ domain \"edge\"\n    charging: all-or-none -> each\n"
    );
}

//! Values that Envoy copies from clients can't disable limits: any bytes of any length, several values of one name,
//! limits that come along, unknown domains, and undecidable requests.

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate_server::RlsFailureMode;

use crate::kit::Running;
use crate::metrics::scraped;
use crate::rls_client::{Failed, Grpc, SHOULD};

const RULES: &str = "
block: [{agent: {prefix: bot}}]
limits:
- {name: per-user, match: {user: {present: true}}, key: user, rate: 2/h, algorithm: fixed-window}
";

const TREE: &str =
    "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]";

/// A field of a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    out.push(length.to_le_bytes()[0]);
    out.extend(bytes);
    out
}

/// A question by bytes: a domain, and descriptors of entries.
fn message(domain: &[u8], descriptors: &[&[(&str, &[u8])]]) -> Vec<u8> {
    let mut out = field(1, domain);
    for entries in descriptors {
        let mut descriptor = Vec::new();
        for (key, value) in *entries {
            descriptor.extend(field(
                1,
                &[field(1, key.as_bytes()), field(2, value)].concat(),
            ));
        }
        out.extend(field(2, &descriptor));
    }
    out
}

fn ask(running: &Running, message: &[u8]) -> Result<bool, Failed> {
    let answer = Grpc::to(running).call(SHOULD, message)?;
    // The first field is the code: 1 is OK, 2 is OVER_LIMIT.
    assert_eq!(answer[0], 0x08);
    Ok(answer[1] == 1)
}

fn ask_json(running: &Running, question: &Value) -> Result<Value, Failed> {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    Grpc::to(running).call_json(&pool, method, &question.to_string())
}

fn metric(running: &Running, line: &str) -> String {
    let text = scraped(running);
    let found = text.lines().find(|own| own.starts_with(line));
    found
        .unwrap_or_else(|| panic!("no {line} in {text}"))
        .to_owned()
}

#[test]
fn a_value_of_any_bytes_and_length_leaves_limits_on() {
    let long = vec![b'x'; 20_000];
    let mut odd_long = long.clone();
    odd_long[19_999] = 0xff;
    for policy in [RULES, TREE] {
        for agent in [
            &b"\xff\xfe"[..],
            b"curl",
            &long,
            &odd_long,
            "grün \u{f7ff}".as_bytes(),
        ] {
            let running = Running::new(policy, |_| {});
            let question = message(b"edge", &[&[("agent", agent)], &[("user", b"ada")]]);
            let passed = (0..6)
                .filter(|_| ask(&running, &question).expect("an answer"))
                .count();
            assert_eq!(passed, 2, "{policy}");
        }
    }
}

#[test]
fn keys_of_any_bytes_and_length_are_told_apart_by_all_of_them() {
    let mut users: Vec<Vec<u8>> = vec![
        b"\xff".to_vec(),
        b"\xfe".to_vec(),
        "\u{f7ff}".as_bytes().to_vec(),
        "\u{f7ef}\u{f79f}\u{f7bf}".as_bytes().to_vec(),
        vec![b'x'; 20_000],
        vec![b'x'; 20_001],
    ];
    let mut last = vec![b'x'; 20_000];
    last[19_999] = b'y';
    users.push(last);
    for policy in [RULES, TREE] {
        let running = Running::new(policy, |_| {});
        for round in 0..3 {
            for user in &users {
                let question = message(b"edge", &[&[("user", user)]]);
                assert_eq!(ask(&running, &question), Ok(round < 2), "{policy}");
            }
        }
    }
}

#[test]
fn conditions_see_all_of_a_long_value() {
    let running = Running::new(RULES, |_| {});
    let mut agent = b"bot".to_vec();
    agent.extend([b'x'; 20_000]);
    agent.push(0xff);
    let question = message(b"edge", &[&[("agent", &agent)], &[("user", b"ada")]]);
    assert_eq!(ask(&running, &question), Ok(false));
}

#[test]
fn what_cant_be_decided_is_told_and_counted_as_the_operator_chose() {
    let none = message(b"edge", &[]);
    let nameless = message(b"", &[&[("user", b"ada")]]);
    let one = [("user", &b"ada"[..])];
    let many = vec![&one[..]; 65];
    let many = message(b"edge", &many);
    let broken = [0x0a, 5, b'a'].to_vec();
    let long = message(b"edge", &[&[("user", &[b'x'; 300_000])]]);
    let each = [none, nameless, many, broken, long];
    let running = Running::new(RULES, |_| {});
    for (question, code) in each.iter().zip([3, 3, 3, 3, 8]) {
        assert_eq!(
            ask(&running, question).map_err(|failed| failed.code),
            Err(code)
        );
    }
    let line = "tollgate_rls_undecided_total{answer=\"error\"}";
    assert_eq!(metric(&running, line), format!("{line} 5"));
    let running = Running::new(RULES, |settings| {
        settings.rls_failure_mode = RlsFailureMode::Deny
    });
    for question in &each {
        assert_eq!(ask(&running, question), Ok(false));
    }
    let line = "tollgate_rls_undecided_total{answer=\"deny\"}";
    assert_eq!(metric(&running, line), format!("{line} 5"));
}

#[test]
fn several_values_of_a_fact_are_each_asked_and_all_must_pass() {
    let running = Running::new(RULES, |_| {});
    let both = message(
        b"edge",
        &[
            &[("user", b"ada")],
            &[("user", b"bob")],
            &[("user", b"ada")],
        ],
    );
    let bob = message(b"edge", &[&[("user", b"bob")]]);
    let ada = message(b"edge", &[&[("user", b"ada")]]);
    assert_eq!(ask(&running, &both), Ok(true));
    assert_eq!(ask(&running, &bob), Ok(true));
    // Bob has nothing left, so neither is charged.
    assert_eq!(ask(&running, &both), Ok(false));
    assert_eq!(ask(&running, &ada), Ok(true));
    assert_eq!(ask(&running, &ada), Ok(false));
}

#[test]
fn a_blocked_value_is_blocked_wherever_it_stands() {
    let running = Running::new(RULES, |_| {});
    let second = message(b"edge", &[&[("agent", b"curl")], &[("agent", b"bot")]]);
    assert_eq!(ask(&running, &second), Ok(false));
}

#[test]
fn values_of_one_descriptor_stand_together() {
    let policy = "limits: [{name: pairs, key: [user, path], rate: 1/h}]";
    let running = Running::new(policy, |_| {});
    let both = message(
        b"edge",
        &[
            &[("user", b"a"), ("path", b"/x")],
            &[("user", b"b"), ("path", b"/y")],
        ],
    );
    assert_eq!(ask(&running, &both), Ok(true));
    for (user, path, passes) in [
        ("a", "/y", true),
        ("b", "/x", true),
        ("a", "/x", false),
        ("b", "/y", false),
    ] {
        let one = message(
            b"edge",
            &[&[("user", user.as_bytes()), ("path", path.as_bytes())]],
        );
        assert_eq!(ask(&running, &one), Ok(passes), "{user} {path}");
    }
}

#[test]
fn more_ways_to_combine_values_than_are_asked_cant_be_decided() {
    let policy = "limits: [{name: triples, key: [a, b], rate: 1/h}]";
    let values: Vec<String> = (0..9).map(|number| number.to_string()).collect();
    let entries: Vec<_> = values
        .iter()
        .flat_map(|value| [("a", value.as_bytes()), ("b", value.as_bytes())])
        .collect();
    let question = message(b"edge", &[&entries]);
    let running = Running::new(policy, |_| {});
    let why =
        "facts have several values, with more than 64 ways to combine them: send one value of each";
    assert_eq!(
        ask(&running, &question),
        Err(Failed {
            code: 3,
            why: why.to_owned()
        })
    );
    let running = Running::new(policy, |settings| {
        settings.rls_failure_mode = RlsFailureMode::Deny
    });
    assert_eq!(ask(&running, &question), Ok(false));
    // Facts that no rule asks for have as many values as they like.
    let running = Running::new("limits: [{name: all, rate: 1/h}]", |_| {});
    assert_eq!(
        [ask(&running, &question), ask(&running, &question)],
        [Ok(true), Ok(false)]
    );
}

#[test]
fn a_limit_that_comes_along_is_enforced_beside_rules_all_or_none() {
    let running = Running::new("limits: [{name: per-user, key: user, rate: 4/h}]", |_| {});
    let with = |limit: Option<Value>| {
        let mut descriptor = json!({"entries": [{"key": "user", "value": "ada"}]});
        if let Some(limit) = limit {
            descriptor["limit"] = limit;
        }
        let answer = ask_json(
            &running,
            &json!({"domain": "edge", "descriptors": [descriptor]}),
        );
        answer.expect("an answer")["overallCode"] == "OK"
    };
    let three = || Some(json!({"requestsPerUnit": 3, "unit": "DAY"}));
    assert_eq!((0..6).filter(|_| with(three())).count(), 3);
    // The rule was charged by those that passed, and by no other.
    assert_eq!((0..6).filter(|_| with(None)).count(), 1);
}

#[test]
fn an_unknown_domain_is_counted() {
    let running = Running::new(TREE, |_| {});
    let question = message(b"egde", &[&[("user", b"ada")]]);
    for _ in 0..3 {
        assert_eq!(ask(&running, &question), Ok(true));
    }
    let known = message(b"edge", &[&[("user", b"ada")]]);
    assert_eq!(ask(&running, &known), Ok(true));
    let line = "tollgate_unknown_domain_total";
    assert_eq!(metric(&running, line), format!("{line} 3"));
}

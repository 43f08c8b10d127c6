//! Envoy's settings of charging and of a store, and what our format can't express.

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::{Charging, Policy};
use tollgate_engine::{Engine, Facts, envoy};

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
    let converted = envoy::convert_to_rules(&domains);
    let replaces: Vec<_> = converted
        .rules
        .iter()
        .map(|rule| &rule.replaces[..])
        .collect();
    assert_eq!(replaces, [&["b"][..], &["c"], &["d"], &[]]);
    let [told] = &converted.losses[..] else {
        panic!("one loss")
    };
    assert_eq!(
        (told.rule.as_deref(), told.limit.as_str()),
        (Some("c"), "edge/c")
    );
}

#[test]
fn what_is_said_of_the_store_stays_when_it_becomes_ours() {
    let file = "
domain: edge
descriptors:
- {key: a, rate_limit: {quota: 5/day}}
- {key: header.B, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: c, rate_limit: {quota: 5/day, on_store_failure: local}}
- {key: d, rate_limit: {rate: 5/s, counting: leased, on_store_failure: closed}}
- {key: e, rate_limit: {concurrency: 5, counting: local}}
";
    let decoded = envoy::decode(&[(0, file)]).expect("a configuration");
    let domains = decoded.domains;
    let rules = envoy::convert_to_rules(&domains).rules;
    let ours = envoy::convert_to_yaml(&Policy {
        domains,
        ..Policy::default()
    });
    let ours = ours.expect("a policy");
    let read = Policy::from_text(&ours, Format::Yaml).expect("our form");
    for (rule, again) in rules.iter().zip(&read.policy.rules) {
        assert_eq!(rule.on_store_failure, again.on_store_failure);
        assert_eq!(rule.counting, again.counting);
        assert_eq!((&rule.key, &rule.name), (&again.key, &again.name));
    }
    let failures: Vec<_> = rules
        .iter()
        .map(|rule| rule.on_store_failure.to_text(&rule.limits))
        .collect();
    assert_eq!(failures, ["closed", "local", "local", "closed", "local"]);
    let counted: Vec<_> = rules.iter().map(|rule| rule.counting.name()).collect();
    assert_eq!(counted, ["exact", "exact", "exact", "leased", "local"]);
    assert_eq!(rules[1].key[0].fact(), "header.b");
}

#[test]
fn a_domain_that_charges_each_is_told() {
    let file = "domain: edge\ncharging: each\ndescriptors: [{key: a, rate_limit: {rate: 5/s}}]";
    let policy = Policy::from_text(file, Format::Yaml)
        .expect("their form")
        .policy;
    let ours = envoy::convert_to_yaml(&policy).expect("a policy");
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
    let converted = envoy::convert_to_rules(&policy.domains);
    assert_eq!(converted.rules.len(), 8_501);
    assert_eq!(converted.rules[7].replaces, ["base"]);
    let ours = envoy::convert_to_yaml(&policy).expect("a policy");
    assert_eq!(ours.matches("# lost: detailed_metric").count(), 8_000);
}

#[test]
fn each_domain_says_how_it_charges() {
    let text = "domain: a\n---\ndomain: b\ncharging: each\n---\ndomain: c\ncharging: all-or-none\n";
    let domains = envoy::decode(&[(0, text)]).expect("three domains").domains;
    let found: Vec<_> = domains.values().map(|domain| domain.charging).collect();
    let (all, each) = (Charging::AllOrNone, Charging::Each);
    assert_eq!(found, [all, each, all]);
    for (word, help) in [
        ("eech", "did you mean \"each\"?"),
        ("some", "use all-or-none, each"),
    ] {
        let text = format!("domain: a\ncharging: {word}\n");
        let problems = envoy::decode(&[(0, &text)]).expect_err(word);
        let message = format!("error[bad-charging]: {word:?} is no way to charge");
        assert_eq!(problems[0].to_string(), message);
        assert_eq!(problems[0].help.as_deref(), Some(help));
    }
    let elsewhere =
        "domain: a\ndescriptors: [{key: a, rate_limit: {unlimited: true, charging: each}}]";
    let problems = envoy::decode(&[(0, elsewhere)]).expect_err("not there");
    assert_eq!(problems[0].help.as_deref(), Some("it belongs in the file"));
}

#[test]
fn a_failure_is_said_by_the_limit_or_the_domain_or_the_kind_of_limit() {
    let tree = "descriptors:
- {key: a, rate_limit: {rate: 5/s}}
- {key: b, rate_limit: {quota: 5/day}}
- {key: c, rate_limit: {quota: 5/day, on_store_failure: local}}
- {key: d, rate_limit: {rate: 5/s, on_store_failure: inherit}}
";
    let failures = |text: &str| {
        let domains = envoy::decode(&[(0, text)]).expect("a domain").domains;
        let rules = domains["edge"].descriptors.iter();
        let limits = rules.filter_map(|rule| rule.limit.as_ref());
        let names = limits.map(|limit| limit.on_store_failure.to_text(&limit.limits));
        names.collect::<Vec<_>>()
    };
    let default = ["local", "closed", "local", "local"];
    assert_eq!(failures(&format!("domain: edge\n{tree}")), default);
    let open = ["open", "open", "local", "open"];
    let first = format!("on_store_failure: open\ndomain: edge\n{tree}");
    let last = format!("domain: edge\n{tree}on_store_failure: open\n");
    assert_eq!(
        (failures(&first), failures(&last)),
        (
            open.map(str::to_owned).to_vec(),
            open.map(str::to_owned).to_vec()
        )
    );
    let wrong = envoy::decode(&[(0, "domain: edge\non_store_failure: opne")]);
    let problems = wrong.expect_err("no such word");
    assert_eq!(
        problems[0].to_string(),
        "error[bad-on-store-failure]: \"opne\" is no way to fail"
    );
}

#[test]
fn what_a_limit_in_shadow_replaces_in_force_is_told() {
    let file = "
domain: edge
descriptors:
- {key: a, shadow_mode: true, rate_limit: {name: a, unit: day, requests_per_unit: 1, replaces: [{name: b}, {name: c}]}}
- {key: b, rate_limit: {name: b, unit: day, requests_per_unit: 1}}
- {key: c, shadow_mode: true, rate_limit: {name: c, unit: day, requests_per_unit: 1}}
";
    let policy = Policy::from_text(file, Format::Yaml)
        .expect("theirs")
        .policy;
    let converted = envoy::convert_to_rules(&policy.domains);
    assert_eq!(converted.rules[0].replaces, ["c"]);
    let [told] = &converted.losses[..] else {
        panic!("one loss: {:?}", converted.losses)
    };
    let what =
        "replaces of a limit in force: in shadow, a rule takes only the place of others in shadow";
    assert_eq!((told.limit.as_str(), told.what), ("edge/a", what));
    let ours = envoy::convert_to_yaml(&policy).expect("a policy");
    assert!(ours.contains(&format!("  # lost: {what}\n")), "{ours}");
}

#[test]
fn long_and_invisible_values_become_a_file_that_can_be_read() {
    let (long, longer) = ("v".repeat(300), "w".repeat(5_000));
    let many: Vec<_> = (0..18).map(|number| format!("k{number}")).collect();
    let deep = many.iter().rev().fold(String::new(), |below, key| {
        let below = match below.as_str() {
            "" => "rate_limit: {rate: 1/s}".to_owned(),
            below => format!("descriptors: [{below}]"),
        };
        format!("{{key: {key}, {below}}}")
    });
    let file = format!(
        "domain: \"ed\\u202ege\"
descriptors:
- {{key: a, value: {long}, rate_limit: {{rate: 1/s}}}}
- {{key: a, value: {long}x, rate_limit: {{rate: 1/s}}}}
- {{key: b, value: {longer}, rate_limit: {{rate: 1/s}}}}
- {{key: b, value: \"{longer}*x\", rate_limit: {{rate: 1/s}}}}
- {{key: b, rate_limit: {{rate: 1/s}}}}
- {{key: c, value: \" a\\ufeff\\e[31m \", rate_limit: {{rate: 1/s, name: \" n\\u200b \"}}}}
- {{key: {long}, rate_limit: {{rate: 1/s}}}}
- {deep}
"
    );
    let policy = Policy::from_text(&file, Format::Yaml)
        .expect("theirs")
        .policy;
    let ours = envoy::convert_to_yaml(&policy).expect("a policy");
    let again = Policy::from_text(&ours, Format::Yaml)
        .expect("what we wrote")
        .policy;
    let converted = envoy::convert_to_rules(&policy.domains);
    assert_eq!(again.rules.len(), converted.rules.len());
    // Two that differ beyond what a name has room for are two still; of what is left out it is said why.
    assert_eq!(converted.rules.len(), 3, "{ours}");
    let why: Vec<_> = converted.losses.iter().map(|unsaid| unsaid.what).collect();
    let value = "a value of more than 4096 bytes, of its own or of one that is asked before it";
    let key = "a key of more than 200 characters";
    let facts = "more than 16 keys that tell one counter from another";
    assert_eq!(why, [value, value, value, key, facts], "{ours}");
    for (rule, read) in converted.rules.iter().zip(&again.rules) {
        assert_eq!(rule.matches.conditions, read.matches.conditions);
        assert_eq!(rule.name, read.name);
    }
}

#[test]
fn what_would_be_refused_is_not_converted() {
    let mut file = String::from("domain: edge\ndescriptors:\n");
    for number in 0..1_001 {
        file += &format!("- {{key: a, value: '{number}*x', rate_limit: {{rate: 1/s}}}}\n");
    }
    let policy = Policy::from_text(&file, Format::Yaml)
        .expect("theirs")
        .policy;
    let rejected = envoy::convert_to_yaml(&policy).expect_err("too many patterns");
    assert_eq!(
        rejected.errors[0].to_string(),
        "error[bad-regex]: more than 1000 regular expressions"
    );
}

/// How many of three requests pass that meet all of a chain: the first replaces the second, that the third.
fn pass_of_three(modes: [&str; 3]) -> usize {
    let mut file = String::from("limits:\n");
    let chain = [("a", "3/h", "b"), ("b", "2/h", "c"), ("c", "1/h", "")];
    for ((name, rate, replaces), mode) in chain.into_iter().zip(modes) {
        let replaces = match replaces {
            "" => String::new(),
            other => format!(", replaces: {other}"),
        };
        file += &format!("- {{name: {name}, rate: {rate}, mode: {mode}{replaces}}}\n");
    }
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock).build();
    let policy = Policy::from_text(&file, Format::Yaml).expect("ours").policy;
    let engine = Engine::new(policy, memory).expect("a policy");
    let passed = (0..3).filter(|_| engine.decide(&Facts::new()).allowed().is_some());
    passed.count()
}

#[test]
fn a_rule_that_is_replaced_still_replaces() {
    assert_eq!(pass_of_three(["enforce"; 3]), 3);
    // One that is off does nothing, and one in shadow replaces nothing in force.
    assert_eq!(pass_of_three(["enforce", "off", "enforce"]), 1);
    assert_eq!(pass_of_three(["off", "enforce", "enforce"]), 2);
    assert_eq!(pass_of_three(["enforce", "shadow", "enforce"]), 1);
    assert_eq!(pass_of_three(["shadow", "enforce", "enforce"]), 2);
    // Theirs does the same.
    let file = "
domain: edge
descriptors:
- {key: a, rate_limit: {name: a, rate: 3/h, replaces: [{name: b}]}}
- {key: b, rate_limit: {name: b, rate: 2/h, replaces: [{name: c}]}}
- {key: c, rate_limit: {name: c, rate: 1/h}}
";
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock).build();
    let policy = Policy::from_text(file, Format::Yaml)
        .expect("theirs")
        .policy;
    let engine = Engine::new(policy, memory).expect("a policy");
    let all = [&[("a", "1")][..], &[("b", "1")], &[("c", "1")]].map(Descriptor::new);
    let passed = (0..5).filter(|_| {
        engine
            .decide_descriptors("edge", &all, 1)
            .denied()
            .is_none()
    });
    assert_eq!(passed.count(), 3);
}

//! The meaning of valid files, in YAML and in TOML, whole or in parts.

mod include;

use tollgate::core::WindowAlignment;
use tollgate::{Algorithm, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::policy::{
    Cost, Counting, FailureModes, KeyPart, Mode, OnStoreFailure, Pattern, Policy, Tier,
};
use tollgate_engine::{Engine, Facts, LoadError, LoadedPolicy};

fn yaml(text: &str) -> Policy {
    read(Policy::from_text(text, Format::Yaml))
}

fn read(checked: Result<LoadedPolicy, LoadError>) -> Policy {
    match checked {
        Ok(checked) => checked.policy,
        Err(rejected) => panic!("{rejected}"),
    }
}

/// The pattern that a fact's condition has.
fn pattern(fact: &str, condition: &str) -> Pattern {
    let text = format!("limits: [{{name: a, match: {{{fact}: {condition}}}, rate: 1/s}}]");
    yaml(&text).rules[0].matches.conditions[0].1.clone()
}

#[test]
fn every_kind_of_condition() {
    let exact = |text: &str| Pattern::Exact(text.into());
    let net = |text: &str| Pattern::Cidr(text.into());
    for (fact, condition, expect) in [
        ("path", "/a", exact("/a")),
        ("path", "\"/api/**\"", Pattern::Glob("/api/**".into())),
        ("path", "'/a?b'", exact("/a?b")),
        ("path", "{exact: '/a*b'}", exact("/a*b")),
        ("path", "{glob: '/a?b'}", Pattern::Glob("/a?b".into())),
        ("path", "{prefix: /a}", Pattern::Prefix("/a".into())),
        (
            "path",
            "{regex: '/v[0-9]+/.*'}",
            Pattern::Regex("/v[0-9]+/.*".into()),
        ),
        (
            "method",
            "[GET, PUT]",
            Pattern::OneOf(vec![exact("GET"), exact("PUT")]),
        ),
        ("method", "[GET]", exact("GET")),
        ("ip", "10.0.0.0/8", net("10.0.0.0/8")),
        ("ip", "192.0.2.7", net("192.0.2.7/32")),
        ("ip", "'2001:DB8:0::/32'", net("2001:db8::/32")),
        ("peer", "{cidr: 10.0.0.0/8}", net("10.0.0.0/8")),
        ("peer", "10.0.0.0/8", exact("10.0.0.0/8")),
        ("user", "{present: true}", Pattern::Present),
        ("user", "{present: false}", Pattern::Absent),
        ("user", "42", exact("42")),
        ("beta", "true", exact("true")),
        ("user", "{not: root}", Pattern::Not(Box::new(exact("root")))),
        (
            "ip",
            "{not: [10.0.0.0/8, '::1']}",
            Pattern::Not(Box::new(Pattern::OneOf(vec![
                net("10.0.0.0/8"),
                net("::1/128"),
            ]))),
        ),
        (
            "path",
            "[/a, {prefix: [/b, /c]}]",
            Pattern::OneOf(vec![
                exact("/a"),
                Pattern::OneOf(vec![
                    Pattern::Prefix("/b".into()),
                    Pattern::Prefix("/c".into()),
                ]),
            ]),
        ),
    ] {
        assert_eq!(pattern(fact, condition), expect, "{fact}: {condition}");
    }
}

#[test]
fn what_is_left_out_has_a_default() {
    let policy = yaml("limits: [{name: a, rate: 10/s}, {name: b, rate: 1/s, quota: 5/day}]");
    let rule = &policy.rules[0];
    assert_eq!(rule.limits.rates, [Rate::per_second(10)]);
    assert_eq!(
        (rule.algorithm, rule.mode),
        (Algorithm::Gcra, Mode::Enforce)
    );
    assert_eq!(
        rule.cost,
        Cost {
            fact: None,
            default: 1,
            settle: None,
        }
    );
    assert!(rule.key.is_empty() && rule.matches.conditions.is_empty());
    let modes = policy.rules[1].on_store_failure;
    assert_eq!(rule.on_store_failure, modes);
    let own = (modes.rate, modes.quota, modes.concurrency);
    let (local, closed) = (OnStoreFailure::Local, OnStoreFailure::Closed);
    assert_eq!(own, (local, closed, local), "each kind has its own");
    assert_eq!(
        (policy.near_limit_percent, policy.mode),
        (80, Mode::Enforce)
    );
}

#[test]
fn a_failure_is_said_by_the_rule_or_the_file_or_the_kind_of_limit() {
    let policy = yaml(
        "on_store_failure: open\n\
         limits:\n\
         - {name: a, rate: 1/s}\n\
         - {name: b, rate: 1/s, on_store_failure: closed}\n\
         - {name: c, rate: 1/s, on_store_failure: inherit}\n",
    );
    let found = policy.rules.iter().map(|rule| rule.on_store_failure);
    let expect = [
        OnStoreFailure::Open,
        OnStoreFailure::Closed,
        OnStoreFailure::Open,
    ];
    let expect = expect.map(FailureModes::from);
    assert_eq!(found.collect::<Vec<_>>(), expect);
}

#[test]
fn a_tier_says_as_much_as_a_rule_of_how_it_is_counted() {
    let policy = yaml(
        "on_store_failure: open\n\
         tiers:\n\
         \x20 free: {rate: 5/s}\n\
         \x20 paid:\n\
         \x20   rate: 9/s\n\
         \x20   algorithm: sliding-log\n\
         \x20   cost: {fact: tokens, default: 2}\n\
         \x20   counting: local\n\
         \x20   on_store_failure: inherit\n\
         \x20 large: {rate: 9/s, counting: leased, cost: 3, on_store_failure: closed}\n\
         tier_fact: plan\n",
    );
    let [free, large, paid] = ["free", "large", "paid"].map(|name| &policy.tiers[name]);
    assert_eq!(free.on_store_failure, OnStoreFailure::Open.into());
    let plain = Tier {
        span: free.span,
        on_store_failure: OnStoreFailure::Open.into(),
        ..Tier::new(free.limits.clone())
    };
    assert_eq!(*free, plain);
    assert_eq!(
        (paid.algorithm, paid.counting),
        (Algorithm::SlidingLog, Counting::Local)
    );
    assert_eq!(paid.cost.fact.as_deref(), Some("tokens"));
    assert_eq!(paid.on_store_failure, OnStoreFailure::Open.into());
    assert_eq!((large.cost.default, large.counting), (3, Counting::Leased));
    assert_eq!(large.on_store_failure, OnStoreFailure::Closed.into());
}

#[test]
fn whatever_a_rule_limits_can_be_counted_in_this_process() {
    for limit in [
        "rate: 5/s",
        "quota: 5/day",
        "concurrency: 5",
        "rate: 5/s, algorithm: fixed-window",
    ] {
        let policy = yaml(&format!(
            "limits: [{{name: a, key: user, {limit}, counting: local}}]"
        ));
        assert_eq!(policy.rules[0].counting, Counting::Local, "{limit}");
    }
}

#[test]
fn keys_take_facts_and_networks() {
    let policy = yaml("limits: [{name: a, key: [user, ip/64, header.x-plan], rate: 1/s}]");
    let expect = [
        KeyPart::Fact("user".into()),
        KeyPart::Network {
            fact: "ip".into(),
            bits: 64,
        },
        KeyPart::Fact("header.x-plan".into()),
    ];
    assert_eq!(policy.rules[0].key, expect);
    let single = yaml("limits: [{name: a, key: user, rate: 1/s}]");
    assert_eq!(single.rules[0].key, expect[..1]);
}

#[test]
fn every_algorithm_has_its_name() {
    let window = Algorithm::FixedWindow(WindowAlignment::default());
    for (name, expect) in [
        ("gcra", Algorithm::Gcra),
        ("token-bucket", Algorithm::TokenBucket),
        ("leaky", Algorithm::LeakyBucket),
        ("fixed-window", window),
        ("sliding-window", Algorithm::SlidingCounter),
        ("sliding-log", Algorithm::SlidingLog),
    ] {
        let policy = yaml(&format!(
            "limits: [{{name: a, rate: 9/s, algorithm: {name}}}]"
        ));
        assert_eq!(policy.rules[0].algorithm, expect);
    }
}

#[test]
fn a_part_is_written_in_two_ways() {
    for (text, expect) in [("90%", 90), ("0.9", 90), ("0.29", 29), ("1.0", 100)] {
        let policy = yaml(&format!(
            "near_limit: {text}\nlimits: [{{name: a, rate: 1/s}}]"
        ));
        assert_eq!(policy.near_limit_percent, expect);
    }
    for text in ["0.0", "1.1", "0.805", "80", "0%", "101%", "x%"] {
        let text = format!("near_limit: {text}\nlimits: [{{name: a, rate: 1/s}}]");
        let rejected = Policy::from_text(&text, Format::Yaml).unwrap_err();
        assert_eq!(rejected.errors[0].code.0, "out-of-range", "{text}");
    }
}

#[test]
fn yaml_and_toml_say_the_same() {
    let yaml = yaml(
        "limits:\n\
         - name: per-user\n  \
           match: {path: \"/api/**\", method: [POST, PUT]}\n  \
           key: [user]\n  \
           rate: [10/s burst 20, 1000/h]\n  \
           cost: {fact: tokens, default: 2}\n  \
           mode: shadow\n\
         tiers: {free: {rate: 10/s, quota: 1000/day, concurrency: 5, algorithm: leaky, cost: 2,\n  \
           counting: local}}\n\
         tenants: {acme: free}\n\
         exempt: [{path: /healthz}]\n",
    );
    let toml = read(Policy::from_text(
        "tenants = { acme = 'free' }\n\
         exempt = [{ path = '/healthz' }]\n\
         [[limits]]\n\
         name = 'per-user'\n\
         match = { path = '/api/**', method = ['POST', 'PUT'] }\n\
         key = ['user']\n\
         rate = ['10/s burst 20', '1000/h']\n\
         cost = { fact = 'tokens', default = 2 }\n\
         mode = 'shadow'\n\
         [tiers.free]\n\
         rate = '10/s'\n\
         quota = '1000/day'\n\
         concurrency = 5\n\
         algorithm = 'leaky'\n\
         cost = 2\n\
         counting = 'local'\n",
        Format::Toml,
    ));
    assert_eq!(bare(yaml), bare(toml));
}

/// A policy without the places that it came from.
fn bare(mut policy: Policy) -> Policy {
    for rule in &mut policy.rules {
        rule.span = Default::default();
        rule.matches.span = Default::default();
    }
    for tier in policy.tiers.values_mut() {
        tier.span = Default::default();
    }
    for exempt in policy.exempt.iter_mut().chain(&mut policy.block) {
        exempt.span = Default::default();
    }
    policy
}

#[test]
fn a_file_full_of_errors_is_told_in_part() {
    let mut text = String::from("limits:\n");
    for number in 0..20_000 {
        text.push_str(&format!("- {{nam: r{number}, rate: 10/x}}\n"));
    }
    let rejected = Policy::from_text(&text, Format::Yaml).unwrap_err();
    assert_eq!(rejected.errors.len(), 1_001);
    let last = &rejected.errors[1_000];
    assert_eq!(last.message, "59000 more errors are not shown");
}

#[test]
fn what_is_open_at_the_end_is_blamed_where_it_opens() {
    for (text, line, column, close) in [
        ("limits: [", 1, 9, ']'),
        ("limits: [\n\n  \n", 1, 9, ']'),
        ("limits:\r- {name: ä\r", 2, 3, '}'),
    ] {
        let errors = Policy::from_text(text, Format::Yaml).unwrap_err().errors;
        let [error] = &errors[..] else {
            panic!("one error of {text:?}")
        };
        let place = error.span.start;
        assert_eq!((place.line, place.column), (line, column), "{text:?}");
        let help = format!("end it with {close}, and put a comma between two entries");
        assert_eq!(error.help, Some(help));
    }
}

#[test]
fn headers_are_the_same_however_they_are_written() {
    let text = "
limits:
- name: a
  match: {header.X-Plan: gold}
  key: [header.X-Client, header.X-Net/64]
  rate: 5/s
  cost: {fact: header.X-Tokens}
tiers: {gold: {rate: 5/s}}
tier_fact: header.X-Tier
";
    let policy = yaml(text);
    let rule = &policy.rules[0];
    assert_eq!(rule.matches.conditions[0].0, "header.x-plan");
    let key: Vec<_> = rule.key.iter().map(KeyPart::fact).collect();
    assert_eq!(key, ["header.x-client", "header.x-net"]);
    assert_eq!(rule.cost.fact.as_deref(), Some("header.x-tokens"));
    assert_eq!(policy.tier_fact.as_deref(), Some("header.x-tier"));
}

#[test]
fn who_gives_a_wrong_path_is_told_of_that_and_not_of_includes() {
    let rejected = Policy::from_path("no/such/file.yaml").unwrap_err();
    let help = rejected.errors[0].help.as_deref();
    assert_eq!(help, Some("give the path of a policy file"));
}

#[test]
fn what_is_accepted_can_be_put_in_force() {
    let clock = tollgate::clock::Manual::new();
    let policy = |condition: &str| {
        let text = format!("limits: [{{name: a, match: {{path: {condition}}}, rate: 1/h}}]");
        Policy::from_text(&text, Format::Yaml)
    };
    // With this flag, what follows a # is a comment.
    let read = read(policy("{regex: \"(?x)a+ # some\"}"));
    let memory = Memory::builder().clock(clock.clone()).wall(clock).build();
    let engine = Engine::new(read, memory).expect("a policy");
    let paths = ["aa", "aab", "aa"].map(|path| Facts::new().with("path", path));
    let passed = paths
        .each_ref()
        .map(|facts| engine.decide(facts).allowed().is_some());
    assert_eq!(passed, [true, true, false]);
    // More than a walk can follow.
    for (glob, fits) in [
        (format!("/{}*b", "a".repeat(300)), true),
        (format!("*{}", "a".repeat(255)), false),
    ] {
        let errors = policy(&format!("{{glob: \"{glob}\"}}")).err();
        let codes = errors.map_or_else(Vec::new, |rejected| {
            rejected.errors.iter().map(|error| error.code.0).collect()
        });
        assert_eq!(
            codes,
            if fits { vec![] } else { vec!["bad-glob"] },
            "{glob}"
        );
    }
}

#[test]
fn a_tier_counts_by_its_own_algorithm() {
    let text = "tiers: {log: {rate: 2/h, algorithm: sliding-log}, smooth: {rate: 2/h}}\n\
                tier_fact: plan\n";
    let clock = tollgate::clock::Manual::starting_at(tollgate::Timestamp::from_secs(1));
    let memory = Memory::builder().capacity(10).clock(clock);
    let engine = Engine::new(yaml(text), memory.build()).expect("a policy");
    let waits = |plan: &str| {
        let facts = Facts::new().with("tenant", plan).with("plan", plan);
        let _ = (engine.decide(&facts), engine.decide(&facts));
        engine.decide(&facts).decision().wait_or_max().as_secs()
    };
    assert_eq!((waits("log"), waits("smooth")), (3_600, 1_800));
}

#[test]
fn what_is_done_without_a_store_is_said_by_the_kind_of_limit() {
    let policy = yaml(
        "on_store_failure: {quota: local, concurrency: open}\n\
         limits:\n\
         - {name: a, rate: 1/s, quota: 5/day, on_store_failure: {rate: circuit-break}}\n\
         - {name: b, rate: 1/s, quota: 5/day, on_store_failure: {quota: closed, rate: inherit}}\n\
         - {name: c, rate: 1/s, quota: 5/day, on_store_failure: closed}\n\
         - {name: d, rate: 1/s, quota: 5/day, concurrency: 5}\n",
    );
    let shown = policy
        .rules
        .iter()
        .map(|rule| rule.on_store_failure.to_text(&rule.limits));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            "rate circuit-break, quota local",
            "rate local, quota closed",
            "closed",
            "rate local, quota local, concurrency open",
        ]
    );
    let errors = |words: &str| {
        let text = format!("limits: [{{name: a, rate: 1/s, {words}}}]");
        let rejected = Policy::from_text(&text, Format::Yaml).expect_err("wrong");
        let told = rejected.errors.iter();
        let told = told.map(|error| format!("{}: {}", error.code, error.message));
        told.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        errors("on_store_failure: {quota: open}"),
        "conflict: quota does nothing here: there is no quota"
    );
    assert_eq!(
        errors("on_store_failure: {}"),
        "empty: expected ways to fail by kind, but there is nothing in it"
    );
    assert_eq!(
        errors("on_store_failure: {rates: open}"),
        "unknown-field: unknown field \"rates\" in ways to fail by kind"
    );
    assert_eq!(
        errors("on_store_failure: {rate: opne}"),
        "unknown-value: unknown way to fail \"opne\""
    );
    assert_eq!(
        errors("counting: local, on_store_failure: {rate: open}"),
        "conflict: on_store_failure does nothing where counting is local: no store is asked"
    );
}

//! Rules converted from Envoy's format, on random trees and requests: both decide alike.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::Algorithm;
use tollgate_engine::document::{self, Format, Value};
use tollgate_engine::envoy::{self, DescriptorIndex, LookupResult};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::{KeyPart, Mode, OnStoreFailure, Pattern, Policy, Rule};

use crate::matching;
use crate::random_trees::{KEYS, counter, domains};

type Known = BTreeMap<&'static str, String>;

/// The limits that are enforced, by number with their counters, if the proxy sends each list of keys that the
/// domain has and that is known.
fn envoy_applies(
    compiled: &DescriptorIndex,
    domain: &str,
    facts: &Known,
    lost: &BTreeSet<String>,
) -> BTreeMap<u32, Vec<u8>> {
    let of_domain = compiled
        .leaves()
        .iter()
        .filter(|leaf| &*leaf.domain == domain);
    let lists: BTreeSet<Vec<&str>> = of_domain
        .map(|leaf| leaf.steps.iter().map(|step| &*step.key).collect())
        .collect();
    let requests: Vec<Vec<(&str, &str)>> = lists
        .iter()
        .filter_map(|keys| {
            let entries = keys
                .iter()
                .map(|key| Some((*key, facts.get(key)?.as_str())));
            entries.collect()
        })
        .collect();
    let requests = requests.iter();
    let (requests, mut found): (Vec<_>, Vec<_>) = requests
        .map(|request| (request, compiled.lookup(domain, &Descriptor::new(request))))
        .filter(|(_, found)| {
            found
                .leaf()
                .is_none_or(|leaf| !lost.contains(&leaf.to_string()))
        })
        .unzip();
    envoy::remove_replaced_limits(&mut found);
    let limits = found.into_iter().zip(requests);
    limits
        .filter_map(|(found, request)| match found {
            LookupResult::Limited(leaf) if !leaf.limit.limits.unlimited => {
                Some((leaf.limit.span.start.line, counter(leaf, request)))
            }
            _ => None,
        })
        .collect()
}

/// The same by rules: all conditions hold, and all of the key is known.
fn native_applies(rules: &[Rule], domain: &str, facts: &Known) -> BTreeMap<u32, Vec<String>> {
    let fact = |name: &str| match name {
        "domain" => Some(domain.to_owned()),
        name => facts.get(name).cloned(),
    };
    let applying: Vec<_> = rules
        .iter()
        .filter_map(|rule| {
            let mut conditions = rule.matches.conditions.iter();
            let all = conditions.all(|(name, pattern)| holds(pattern, fact(name).as_deref()));
            let key = rule.key.iter().map(|part| match part {
                KeyPart::Fact(name) => fact(name),
                KeyPart::Network { .. } => None,
            });
            let key = key.collect::<Option<Vec<_>>>()?;
            all.then_some((rule, key))
        })
        .collect();
    let is_replaced = |rule: &Rule| {
        let mut others = applying.iter();
        others.any(|(other, _)| other.replaces.contains(&rule.name))
    };
    applying
        .iter()
        .filter(|(rule, _)| !rule.limits.unlimited && !is_replaced(rule))
        .map(|(rule, key)| (rule.span.start.line, key.clone()))
        .collect()
}

fn holds(pattern: &Pattern, value: Option<&str>) -> bool {
    match (pattern, value) {
        (Pattern::Not(inner), _) => !holds(inner, value),
        (Pattern::OneOf(all), _) => all.iter().any(|one| holds(one, value)),
        (Pattern::Present, _) => value.is_some(),
        (Pattern::Absent, _) => value.is_none(),
        (_, None) => false,
        (Pattern::Exact(text), Some(value)) => text == value,
        (Pattern::Prefix(text), Some(value)) => value.starts_with(text),
        (Pattern::Regex(text), Some(value)) => {
            // Only what is converted: literal characters and `.*`.
            let text = text.strip_prefix("(?s)").expect("it begins so");
            let (mut glob, mut chars) = (String::new(), text.chars());
            while let Some(c) = chars.next() {
                match c {
                    '\\' => glob.extend(chars.next()),
                    '.' => {
                        assert_eq!(chars.next(), Some('*'));
                        glob.push('*');
                    }
                    c => glob.push(c),
                }
            }
            matching::fits(&glob, value)
        }
        (other, _) => panic!("{other:?} is never converted to"),
    }
}

#[test]
fn what_conversion_writes() {
    let file = "
domain: edge
descriptors:
- {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 10}}
- {key: user, value: root, rate_limit: {unlimited: true, replaces: [{name: per-user}]}}
- {key: user, value: bot-*, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 1}}
- key: path
  value: '/files/*.pdf'
  share_threshold: true
  detailed_metric: true
  rate_limit: {rate: [10/s burst 20, 1000/h], quota: 10000/month, concurrency: 5}
- {key: ip, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: shop, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: a, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}
";
    let domains = envoy::decode(&[(0, file)])
        .expect("a configuration")
        .domains;
    let rules = envoy::convert_to_rules(&domains).rules;
    assert_eq!(rules[2].mode, Mode::Shadow);
    let text = envoy::convert_to_yaml(&Policy {
        domains,
        ..Policy::default()
    })
    .expect("a policy");
    let expected = r#"# Converted from the form of envoyproxy/ratelimit. The facts are named like its keys. A rule is for
# descriptors of just its keys; where a request comes as facts, for all that have its keys.
# Not converted, "edge/shop": quota_mode: a limit that refuses only together with all others of its kind
# Not converted, "edge/a/a": a key that is given twice on the way: a fact has one value
limits:
- name: "per-user"
  match: {domain: [{present: false}, "edge"], descriptor: [{present: false}, "user"], user: {not: [{present: false}, "root", {prefix: "bot-"}]}}
  key: [user]
  rate: 10/m
  algorithm: fixed-window
- name: "edge/user=root"
  match: {domain: [{present: false}, "edge"], descriptor: [{present: false}, "user"], user: "root"}
  unlimited: true
  replaces: ["per-user"]
- name: "edge/user=bot-*"
  match: {domain: [{present: false}, "edge"], descriptor: [{present: false}, "user"], user: {prefix: "bot-"}}
  key: [user]
  rate: 1 per 30d
  algorithm: fixed-window
  mode: shadow
- name: "edge/path=/files/*.pdf"
  match: {domain: [{present: false}, "edge"], descriptor: [{present: false}, "path"], path: {regex: "(?s)/files/.*\\.pdf"}}
  rate: [10/s burst 20, 1000/h]
  quota: 10000/month
  concurrency: 5
  algorithm: gcra
  # lost: detailed_metric
- name: "edge/ip=10.0.0.0/8"
  match: {domain: [{present: false}, "edge"], descriptor: [{present: false}, "ip"], ip: {exact: "10.0.0.0/8"}}
  rate: zero
  algorithm: fixed-window
"#;
    assert_eq!(text, expected);
}

proptest! {
    #[test]
    fn converted_rules_decide_alike(
        domains in domains(),
        facts in vec(btree_map(select(KEYS.to_vec()), "[xy.+]{0,4}", 0..4), 2),
    ) {
        let compiled = DescriptorIndex::new(&domains);
        let converted = envoy::convert_to_rules(&domains);
        // What is lost of a rule that there is: a circle of replaced ones.
        prop_assume!(converted.losses.iter().all(|unsaid| unsaid.rule.is_none()));
        let lost: BTreeSet<_> = converted.losses.iter().map(|unsaid| unsaid.limit.clone()).collect();
        for domain in domains.keys() {
            let theirs: Vec<_> = facts.iter().map(|facts| envoy_applies(&compiled, domain, facts, &lost)).collect();
            let ours: Vec<_> = facts.iter().map(|facts| native_applies(&converted.rules, domain, facts)).collect();
            for at in [0, 1] {
                let numbers = |applied: &BTreeMap<u32, _>| applied.keys().copied().collect::<Vec<_>>();
                let theirs: Vec<_> = theirs[at].keys().copied().collect();
                prop_assert_eq!(theirs, numbers(&ours[at]), "{:?} of {:#?}", facts[at], converted);
            }
            for (number, counter) in &theirs[0] {
                let Some(other) = theirs[1].get(number) else { continue };
                prop_assert_eq!(counter == other, ours[0][number] == ours[1][number]);
            }
        }
    }

    #[test]
    fn converted_text_is_yaml_with_all_rules(domains in domains()) {
        let rules = envoy::convert_to_rules(&domains).rules;
        let text = envoy::convert_to_yaml(&Policy { domains, ..Policy::default() }).expect("a policy");
        let tree = document::parse(&text, Format::Yaml, 0).expect("YAML");
        let field = |map: &Value, name: &str| match map {
            Value::Map(fields) => fields.iter().find(|(field, _)| field.value == Value::Text(name.to_owned()))
                .map(|(_, value)| value.value.clone()),
            _ => None,
        };
        let limits = match field(&tree.value, "limits") {
            Some(Value::List(limits)) => limits,
            None if rules.is_empty() => Vec::new(),
            other => panic!("{other:?} in {text}"),
        };
        prop_assert_eq!(limits.len(), rules.len());
        let mut names = BTreeSet::new();
        for (limit, rule) in limits.iter().zip(&rules) {
            prop_assert_eq!(field(&limit.value, "name"), Some(Value::Text(rule.name.clone())));
            prop_assert!(names.insert(rule.name.clone()), "{} twice", rule.name);
        }
    }

    #[test]
    fn what_is_converted_is_read_back_as_the_same_rules(domains in domains()) {
        let rules = envoy::convert_to_rules(&domains).rules;
        prop_assume!(!rules.is_empty());
        let text = envoy::convert_to_yaml(&Policy { domains, ..Policy::default() }).expect("a policy");
        let read = Policy::from_text(&text, Format::Yaml).map_err(|it| TestCaseError::fail(it.to_string()))?;
        let plain = |mut rule: Rule| {
            (rule.span, rule.matches.span) = Default::default();
            rule.on_store_failure = OnStoreFailure::Local.into();
            if rule.limits.rates.is_empty() {
                rule.algorithm = Algorithm::default();
            }
            rule
        };
        let read: Vec<_> = read.policy.rules.into_iter().map(plain).collect();
        prop_assert_eq!(read, rules.into_iter().map(plain).collect::<Vec<_>>());
    }
}

//! Envoy's form on random trees and requests: the compiled form finds what the naive one finds, no two
//! counters share a key, and the converted rules decide alike.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::{Algorithm, Rate, core::Align};
use tollgate_engine::document::{self, Format, Place, Span, Value};
use tollgate_engine::envoy::{self, Compiled, Domains, Leaf, Lookup, matching};
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::{
    Counting, DescriptorLimit, DescriptorRule, Domain, KeyPart, Limits, Mode, OnStoreFailure,
    Pattern, Policy, Rule,
};

const KEYS: [&str; 4] = ["a", "b", "c", "a_b"];
const VALUES: [&str; 12] = [
    "x", "y", "xy", "x*", "xy*", "*", "*x", "x*y", "x*y*x", "*y*", "y**x", "x.y*+x",
];

const PIECES: [&str; 40] = [
    "domain: ",
    "edge",
    "\n",
    "\n",
    "\r",
    "---\n",
    "descriptors:\n",
    "- ",
    "  ",
    "key: ",
    "value: ",
    "rate_limit: ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "unit: second",
    "requests_per_unit: 010",
    "'é*'",
    "yes",
    "1.5",
    "~",
    "7",
    "unlimited: ",
    "true",
    "name: n",
    "replaces: ",
    "share_threshold: ",
    "rate: 10/s",
    "algorithm: gcra",
    "quota: 5/day",
    "&a ",
    "*a",
    "<<: ",
    "metadata: ",
    "# x\n",
    "\u{feff}",
    "...\n",
    "descriptors: [{key: a, rate_limit: {unit: day}}]\n",
];

fn limit() -> impl Strategy<Value = Option<DescriptorLimit>> {
    let name = select(vec![None, None, Some("n"), Some("m"), Some("o")]);
    let replaces = vec(select(vec!["n", "m", "o"]), 0..2);
    let flags = (any::<bool>(), any::<bool>());
    let limit = (name, replaces, flags).prop_map(|(name, replaces, (unlimited, shadow))| {
        let replaces = replaces.into_iter().filter(|other| Some(*other) != name);
        DescriptorLimit {
            name: name.map(str::to_owned),
            limits: Limits {
                rates: if unlimited {
                    Vec::new()
                } else {
                    vec![Rate::per_second(5)]
                },
                unlimited,
                ..Limits::default()
            },
            unit: (!unlimited).then_some(Unit::Second),
            algorithm: Algorithm::FixedWindow(Align::default()),
            counting: Counting::default(),
            on_store_failure: OnStoreFailure::Local,
            shadow,
            quota_mode: false,
            replaces: replaces.map(str::to_owned).collect(),
            span: Span::default(),
        }
    });
    proptest::option::weighted(0.7, limit)
}

fn rule(below: BoxedStrategy<Vec<DescriptorRule>>) -> impl Strategy<Value = DescriptorRule> {
    let value = proptest::option::of(select(VALUES.to_vec()));
    let parts = (select(KEYS.to_vec()), value, limit(), any::<bool>(), below);
    parts.prop_map(|(key, value, limit, share, descriptors)| DescriptorRule {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        limit,
        share_threshold: share && value.is_some_and(|value| value.contains('*')),
        detailed_metric: false,
        value_to_metric: false,
        metadata: None,
        descriptors,
        span: Span::default(),
    })
}

/// Descriptors side by side, no two for the same entry, so many levels deep.
fn tree(depth: u32) -> BoxedStrategy<Vec<DescriptorRule>> {
    let below = if depth == 0 {
        Just(Vec::new()).boxed()
    } else {
        tree(depth - 1)
    };
    let most = if depth == 2 { 10 } else { 4 };
    vec(rule(below), 0..most)
        .prop_map(|mut rules| {
            let mut known = BTreeSet::new();
            rules.retain(|rule| known.insert((rule.key.clone(), rule.value.clone())));
            rules
        })
        .boxed()
}

/// One or two domains; the span of each limit is its number.
fn domains() -> impl Strategy<Value = Domains> {
    fn number(rules: &mut [DescriptorRule], next: &mut u32) {
        for rule in rules {
            if let Some(limit) = &mut rule.limit {
                *next += 1;
                limit.span.start = Place {
                    line: *next,
                    column: 1,
                };
            }
            number(&mut rule.descriptors, next);
        }
    }
    btree_map(select(vec!["edge", "core"]), tree(2), 1..3).prop_map(|trees| {
        let mut next = 0;
        let mut named = Domains::new();
        for (name, mut tree) in trees {
            number(&mut tree, &mut next);
            let descriptors = tree;
            named.insert(
                name.to_owned(),
                Domain {
                    descriptors,
                    ..Domain::default()
                },
            );
        }
        named
    })
}

fn entries() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    vec((select(KEYS.to_vec()), "[xy*.+]{0,4}"), 0..5)
}

fn borrowed<'e>(entries: &'e [(&'static str, String)]) -> Vec<(&'e str, &'e str)> {
    let pairs = entries.iter();
    pairs.map(|(key, value)| (*key, value.as_str())).collect()
}

/// A leaf's path and number, to compare with rules.
fn path_of(leaf: &Leaf) -> (Vec<(&str, Option<&str>)>, u32) {
    let steps = leaf.steps.iter();
    let steps = steps.map(|step| (&*step.key, step.value.as_deref()));
    (steps.collect(), leaf.limit.span.start.line)
}

proptest! {
    #[test]
    fn compiled_finds_what_naive_finds(domains in domains(), requests in vec(entries(), 1..20)) {
        let compiled = Compiled::new(&domains);
        for request in &requests {
            let request = borrowed(request);
            for domain in ["edge", "core", "none"] {
                let naive = matching::find(&domains, domain, &request);
                let naive = naive.map(|path| {
                    let limit = path.last().and_then(|rule| rule.limit.as_ref());
                    let line = limit.map_or(0, |limit| limit.span.start.line);
                    let steps = path.iter().map(|rule| (rule.key.as_str(), rule.value.as_deref()));
                    (steps.collect::<Vec<_>>(), line)
                });
                let found = compiled.lookup(domain, &Descriptor::new(&request)).leaf();
                prop_assert_eq!(found.map(path_of), naive, "{} {:?}", domain, request);
            }
        }
    }

    #[test]
    fn the_first_of_many_wildcards_that_fits_is_found(
        patterns in vec("[xyé]{0,2}\\*[xyé*]{0,4}", 1..12),
        values in vec("[xyé*]{0,7}", 1..20),
    ) {
        let mut text = String::from("domain: d\ndescriptors:\n");
        let patterns: BTreeSet<_> = patterns.into_iter().collect();
        // By length, so that the order of the file isn't that of the alphabet.
        let mut patterns: Vec<_> = patterns.into_iter().collect();
        patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
        for pattern in &patterns {
            text.push_str(&format!("- {{key: k, value: '{pattern}', rate_limit: {{unlimited: yes}}}}\n"));
        }
        let domains = envoy::decode(&[(0, &text)]).expect("patterns").domains;
        let compiled = Compiled::new(&domains);
        for value in &values {
            let exact = patterns.iter().find(|pattern| *pattern == value);
            let first = patterns.iter().find(|pattern| matching::fits(pattern, value));
            let request = [("k", value.as_str())];
            let found = compiled.lookup("d", &Descriptor::new(&request)).leaf();
            let found = found.and_then(|leaf| leaf.steps[0].value.as_deref());
            prop_assert_eq!(found, exact.or(first).map(String::as_str));
        }
    }

    /// Short texts of few characters, with those that lengths are written as, so that pieces could be
    /// taken for others.
    #[test]
    fn other_entries_have_another_key(
        one in vec("[a_\u{1}\u{2}]{0,3}", 3..8),
        other in vec("[a_\u{1}\u{2}]{0,3}", 3..8),
    ) {
        let (one, other) = (Request::new(&one), Request::new(&other));
        let (key, other_key) = (one.key(), other.key());
        prop_assert_eq!(one == other, key == other_key, "{:?} {:?}", one, other);
        prop_assert!(one == other || !key.starts_with(&other_key), "{:?} begins {:?}", other, one);
        prop_assert_ne!(one.asked(Unit::Hour), other_key);
        prop_assert_ne!(one.asked(Unit::Hour), one.asked(Unit::Day));
        prop_assert_eq!(one == other, one.asked(Unit::Day) == other.asked(Unit::Day));
    }

    #[test]
    fn no_key_is_the_beginning_of_another(
        one in vec("[a_\u{1}\u{2}]{0,3}", 3..8),
        more in vec("[a_\u{0}\u{1}\u{2}]{0,3}", 2..6),
    ) {
        let longer = Request::new(&[&one[..one.len() - (one.len() + 1) % 2], &more].concat());
        let one = Request::new(&one);
        prop_assert!(longer.entries.starts_with(&one.entries) && longer != one);
        prop_assert!(!longer.key().starts_with(&one.key()));
        prop_assert!(!longer.asked(Unit::Day).starts_with(&one.asked(Unit::Day)));
    }

    /// Pieces of files in any order: read or refused, with every place inside the text, or on the line after
    /// it where something is missing.
    #[test]
    fn no_text_breaks_the_decoder(pieces in vec(select(PIECES.to_vec()), 0..40)) {
        let text = pieces.concat();
        let lines = u32::try_from(text.split(['\n', '\r']).count()).expect("few");
        let problems = match envoy::decode(&[(3, &text)]) {
            Ok(decoded) => decoded.warnings,
            Err(problems) => problems,
        };
        for problem in problems {
            prop_assert!(problem.span.file == 3 && problem.span.start.line <= lines + 1, "{text:?} {problem:?}");
        }
    }

    #[test]
    fn shared_values_share_a_counter_and_no_others_do(
        domains in domains(),
        one in entries(),
        other in entries(),
    ) {
        let compiled = Compiled::new(&domains);
        let (one, other) = (borrowed(&one), borrowed(&other));
        let found = [&one, &other].map(|request| {
            compiled.lookup("edge", &Descriptor::new(request)).leaf()
        });
        let [Some(leaf), Some(other_leaf)] = found else { return Ok(()) };
        let same_counter = leaf.id == other_leaf.id
            && leaf.steps.iter().zip(one.iter().zip(&other)).all(|(step, (one, other))| {
                step.shared || one == other
            });
        prop_assert_eq!(counter(leaf, &one) == counter(other_leaf, &other), same_counter);
    }

    #[test]
    fn converted_rules_decide_alike(
        domains in domains(),
        facts in vec(btree_map(select(KEYS.to_vec()), "[xy.+]{0,4}", 0..4), 2),
    ) {
        let compiled = Compiled::new(&domains);
        let converted = envoy::to_rules(&domains);
        // What is lost of a rule that there is: a circle of replaced ones.
        prop_assume!(converted.unsaid.iter().all(|unsaid| unsaid.rule.is_none()));
        let lost: BTreeSet<_> = converted.unsaid.iter().map(|unsaid| unsaid.limit.clone()).collect();
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
        let rules = envoy::to_rules(&domains).rules;
        let text = envoy::convert(&Policy { domains, ..Policy::default() }).expect("a policy");
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
}

/// A domain and entries, from a list of texts.
#[derive(Debug, PartialEq)]
struct Request {
    domain: String,
    entries: Vec<(String, String)>,
}

impl Request {
    fn new(texts: &[String]) -> Self {
        let pairs = texts[1..].chunks_exact(2);
        Self {
            domain: texts[0].clone(),
            entries: pairs
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect(),
        }
    }

    fn entries(&self) -> Vec<(&str, &str)> {
        let pairs = self.entries.iter();
        pairs
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }

    /// The key of its counter, where just these keys have a limit.
    fn key(&self) -> Vec<u8> {
        let mut rules: Vec<DescriptorRule> = Vec::new();
        for (key, _) in self.entries.iter().rev() {
            let is_last = rules.is_empty();
            rules = vec![DescriptorRule {
                key: key.clone(),
                value: None,
                limit: is_last.then(|| DescriptorLimit {
                    name: None,
                    limits: Limits::default(),
                    unit: None,
                    algorithm: Algorithm::Gcra,
                    counting: Counting::default(),
                    on_store_failure: OnStoreFailure::Local,
                    shadow: false,
                    quota_mode: false,
                    replaces: Vec::new(),
                    span: Span::default(),
                }),
                share_threshold: false,
                detailed_metric: false,
                value_to_metric: false,
                metadata: None,
                descriptors: rules,
                span: Span::default(),
            }];
        }
        let domain = Domain {
            descriptors: rules,
            ..Domain::default()
        };
        let compiled = Compiled::new(&Domains::from([(self.domain.clone(), domain)]));
        let entries = self.entries();
        let leaf = compiled
            .lookup(&self.domain, &Descriptor::new(&entries))
            .leaf();
        counter(leaf.expect("its limit"), &entries)
    }

    fn asked(&self, unit: Unit) -> Vec<u8> {
        let mut key = Vec::new();
        envoy::asked_key(&self.domain, &self.entries(), unit, |piece| {
            key.extend_from_slice(piece);
        });
        key
    }
}

fn counter(leaf: &Leaf, entries: &[(&str, &str)]) -> Vec<u8> {
    let mut key = Vec::new();
    envoy::counter_key(leaf, entries, |piece| key.extend_from_slice(piece));
    key
}

type Known = BTreeMap<&'static str, String>;

/// The limits that bite, by number with their counters, if the proxy sends each list of keys that the
/// domain has and that is known.
fn envoy_applies(
    compiled: &Compiled,
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
    envoy::drop_replaced(&mut found);
    let limits = found.into_iter().zip(requests);
    limits
        .filter_map(|(found, request)| match found {
            Lookup::Limited(leaf) if !leaf.limit.limits.unlimited => {
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
    let rules = envoy::to_rules(&domains).rules;
    assert_eq!(rules[2].mode, Mode::Shadow);
    let text = envoy::convert(&Policy {
        domains,
        ..Policy::default()
    })
    .expect("a policy");
    let expected = r#"# Converted from the form of envoyproxy/ratelimit. The facts are named like its keys, and those of a
# request stand for all its descriptors: a limit applies where all of its keys are known.
# Not converted, "edge/shop": quota_mode: a limit that refuses only together with all others of its kind
# Not converted, "edge/a/a": a key that is given twice on the way: a fact has one value
limits:
- name: "per-user"
  match: {user: {not: [{present: false}, "root", {prefix: "bot-"}]}}
  key: [user]
  rate: 10/m
  algorithm: fixed-window
- name: "edge/user=root"
  match: {user: "root"}
  unlimited: true
  replaces: ["per-user"]
- name: "edge/user=bot-*"
  match: {user: {prefix: "bot-"}}
  key: [user]
  rate: 1 per 30d
  algorithm: fixed-window
  mode: shadow
- name: "edge/path=/files/*.pdf"
  match: {path: {regex: "(?s)/files/.*\\.pdf"}}
  rate: [10/s burst 20, 1000/h]
  quota: 10000/month
  concurrency: 5
  algorithm: gcra
  # lost: detailed_metric
- name: "edge/ip=10.0.0.0/8"
  match: {ip: {exact: "10.0.0.0/8"}}
  rate: zero
  algorithm: fixed-window
"#;
    assert_eq!(text, expected);
}

proptest! {
    #[test]
    fn what_is_converted_is_read_back_as_the_same_rules(domains in domains()) {
        let rules = envoy::to_rules(&domains).rules;
        prop_assume!(!rules.is_empty());
        let text = envoy::convert(&Policy { domains, ..Policy::default() }).expect("a policy");
        let read = Policy::from_text(&text, Format::Yaml).map_err(|it| TestCaseError::fail(it.to_string()))?;
        let plain = |mut rule: Rule| {
            (rule.span, rule.matches.span) = Default::default();
            rule.on_store_failure = OnStoreFailure::Local;
            if rule.limits.rates.is_empty() {
                rule.algorithm = Algorithm::default();
            }
            rule
        };
        let read: Vec<_> = read.policy.rules.into_iter().map(plain).collect();
        prop_assert_eq!(read, rules.into_iter().map(plain).collect::<Vec<_>>());
    }
}

//! Envoy's format on random trees and requests: the compiled form matches as the naive one does, and no two counters
//! share a key.

use std::collections::BTreeSet;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::{Algorithm, Rate, core::WindowAlignment};
use tollgate_engine::document::{Position, Span};
use tollgate_engine::envoy::{self, CompiledLimit, DescriptorDomains, DescriptorIndex};
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::{
    Counting, DescriptorLimit, DescriptorRule, Domain, Limits, OnStoreFailure,
};

use crate::matching;

pub(crate) const KEYS: [&str; 4] = ["a", "b", "c", "a_b"];
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
            algorithm: Algorithm::FixedWindow(WindowAlignment::default()),
            counting: Counting::default(),
            on_store_failure: OnStoreFailure::Local.into(),
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
pub(crate) fn domains() -> impl Strategy<Value = DescriptorDomains> {
    fn number(rules: &mut [DescriptorRule], next: &mut u32) {
        for rule in rules {
            if let Some(limit) = &mut rule.limit {
                *next += 1;
                limit.span.start = Position {
                    line: *next,
                    column: 1,
                };
            }
            number(&mut rule.descriptors, next);
        }
    }
    btree_map(select(vec!["edge", "core"]), tree(2), 1..3).prop_map(|trees| {
        let mut next = 0;
        let mut named = DescriptorDomains::new();
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
fn path_of(leaf: &CompiledLimit) -> (Vec<(&str, Option<&str>)>, u32) {
    let steps = leaf.steps.iter();
    let steps = steps.map(|step| (&*step.key, step.value.as_deref()));
    (steps.collect(), leaf.limit.span.start.line)
}

proptest! {
    #[test]
    fn compiled_finds_what_naive_finds(domains in domains(), requests in vec(entries(), 1..20)) {
        let compiled = DescriptorIndex::new(&domains);
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
        let compiled = DescriptorIndex::new(&domains);
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
        let compiled = DescriptorIndex::new(&domains);
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
                    on_store_failure: OnStoreFailure::Local.into(),
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
        let compiled =
            DescriptorIndex::new(&DescriptorDomains::from([(self.domain.clone(), domain)]));
        let entries = self.entries();
        let leaf = compiled
            .lookup(&self.domain, &Descriptor::new(&entries))
            .leaf();
        counter(leaf.expect("its limit"), &entries)
    }

    fn asked(&self, unit: Unit) -> Vec<u8> {
        let mut key = Vec::new();
        envoy::requested_limit_key(&self.domain, &self.entries(), unit, |piece| {
            key.extend_from_slice(piece);
        });
        key
    }
}

pub(crate) fn counter(leaf: &CompiledLimit, entries: &[(&str, &str)]) -> Vec<u8> {
    let mut key = Vec::new();
    envoy::counter_key(leaf, entries, |piece| key.extend_from_slice(piece));
    key
}

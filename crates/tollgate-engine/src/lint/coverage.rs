//! Decides whether a condition holds whenever another one does. In doubt, the answer is no.

use std::cell::Cell;
use std::collections::HashMap;

use crate::address::Network;
use crate::matcher::glob::Glob;
use crate::policy::{KeyPart, MatchConditions, Pattern, Rule};

/// A budget of comparisons, which bounds the time to check a huge file. Once it is spent, no condition is found to
/// cover another.
pub(super) struct StepBudget(Cell<usize>);

impl StepBudget {
    /// A few times the comparisons that ten thousand rules need.
    pub(super) fn new() -> Self {
        Self(Cell::new(5_000_000))
    }

    /// Spends this many steps, if the budget has them.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let left = self.0.get().checked_sub(steps);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}

/// Whether every request that meets `inner` also meets `outer`.
pub(super) fn match_covers(
    outer: &MatchConditions,
    inner: &MatchConditions,
    fuel: &StepBudget,
) -> bool {
    outer.conditions.iter().all(|(fact, wide)| {
        let mut same = inner.conditions.iter().filter(|(other, _)| other == fact);
        fuel.spend(inner.conditions.len())
            && same.any(|(_, narrow)| pattern_covers(wide, narrow, fuel))
    })
}

/// Whether every request that `rule` applies to has a key of `other`, or `other` needs none.
pub(super) fn always_has_key_of(rule: &Rule, other: &Rule) -> bool {
    // A rule with several keys, or one that applies without a key, guarantees no single fact.
    let own: &[KeyPart] = match rule.fallback_keys.as_slice() {
        [] if rule.needs_its_key() => &rule.key,
        _ => &[],
    };
    let is_known = |part: &KeyPart| {
        let mut conditions = rule.matches.conditions.iter();
        own.contains(part)
            || matches!(part, KeyPart::Fact(fact) if conditions.any(
                |(known, pattern)| known == fact && implies_present(pattern),
            ))
    };
    let needs_none = other.key.is_empty() || !other.needs_its_key();
    needs_none || other.keys().any(|key| key.iter().all(is_known))
}

fn implies_present(pattern: &Pattern) -> bool {
    let mut each = pattern.alternatives().into_iter();
    each.all(|one| !matches!(one, Pattern::Absent | Pattern::Not(_)))
}

/// Whether `wide` matches every text that `narrow` matches.
fn pattern_covers(wide: &Pattern, narrow: &Pattern, fuel: &StepBudget) -> bool {
    if !fuel.spend(1) {
        return false;
    }
    if wide == narrow {
        return true;
    }
    match (wide, narrow) {
        (_, Pattern::OneOf(each)) => each
            .iter()
            .all(|pattern| pattern_covers(wide, pattern, fuel)),
        (Pattern::OneOf(any), _) => any
            .iter()
            .any(|pattern| pattern_covers(pattern, narrow, fuel)),
        (Pattern::Present, _) => implies_present(narrow),
        (Pattern::Not(wide), Pattern::Not(narrow)) => pattern_covers(narrow, wide, fuel),
        (Pattern::Prefix(prefix), _) => {
            common_prefix(narrow).is_some_and(|text| text.starts_with(prefix))
        }
        (Pattern::Glob(glob), Pattern::Exact(text)) => {
            fuel.spend(glob.len().saturating_mul(text.len())) && glob_matches(glob, text)
        }
        (Pattern::Glob(glob), _) => match glob.strip_suffix("**") {
            // The glob is only a prefix.
            Some(prefix) if !prefix.contains(['*', '?']) => {
                common_prefix(narrow).is_some_and(|text| text.starts_with(prefix))
            }
            _ => false,
        },
        (Pattern::Cidr(outer), Pattern::Cidr(inner)) => {
            match (Network::parse(outer), Network::parse(inner)) {
                (Some(outer), Some(inner)) => outer.covers(&inner),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The common prefix of every text that a pattern matches.
pub(super) fn common_prefix(pattern: &Pattern) -> Option<&str> {
    match pattern {
        Pattern::Exact(text) | Pattern::Prefix(text) => Some(text),
        Pattern::Glob(glob) => {
            let end = glob.find(['*', '?']).unwrap_or(glob.len());
            glob.get(..end)
        }
        _ => None,
    }
}

/// Whether a glob matches a text.
fn glob_matches(glob: &str, text: &str) -> bool {
    Glob::new(glob).is_some_and(|glob| glob.matches(text))
}

/// Rules by the facts of their conditions and by the prefixes of those conditions.
pub(super) struct RuleIndex<'a> {
    rules: usize,
    facts: HashMap<&'a str, FactRules<'a>>,
}

#[derive(Default)]
struct FactRules<'a> {
    all: Vec<usize>,
    /// The prefixes of the rules' conditions, sorted, each with the rule's index.
    starts: Vec<(&'a str, usize)>,
}

impl<'a> RuleIndex<'a> {
    pub(super) fn new(rules: &'a [Rule]) -> Self {
        let mut facts: HashMap<&str, FactRules<'a>> = HashMap::new();
        for (index, rule) in rules.iter().enumerate() {
            for (fact, pattern) in &rule.matches.conditions {
                let known = facts.entry(fact).or_default();
                known.all.push(index);
                // A pattern that covers a list covers its first item, so the first item is enough to find candidates.
                let first = pattern.alternatives().first().copied();
                if let Some(start) = first.and_then(common_prefix) {
                    known.starts.push((start, index));
                }
            }
        }
        for known in facts.values_mut() {
            known.starts.sort_unstable();
        }
        Self {
            rules: rules.len(),
            facts,
        }
    }

    /// All rules whose requests all meet these conditions, and possibly some other rules.
    pub(super) fn covered_candidates(&self, outer: &MatchConditions) -> Vec<usize> {
        let each = outer.conditions.iter();
        let candidates = each.map(|condition| self.candidates(condition));
        // The condition with the fewest candidates is enough: its candidates include every covered rule.
        match candidates.min_by_key(CandidateRules::len) {
            Some(fewest) => fewest.indices(),
            None => (0..self.rules).collect(),
        }
    }

    fn candidates(&self, (fact, pattern): &(String, Pattern)) -> CandidateRules<'_> {
        let Some(known) = self.facts.get(fact.as_str()) else {
            return CandidateRules::Some(Vec::new());
        };
        let ranges = pattern.alternatives().into_iter().map(|alternative| {
            let prefix = common_prefix(alternative)?;
            let starts = known.starts.as_slice();
            let from = starts.partition_point(|(start, _)| *start < prefix);
            let fits = |start: &str| start < prefix || start.starts_with(prefix);
            let to = starts.partition_point(|(start, _)| fits(start));
            starts.get(from..to)
        });
        match ranges.collect::<Option<Vec<_>>>() {
            Some(ranges) => CandidateRules::Some(ranges),
            None => CandidateRules::All(&known.all),
        }
    }
}

/// Rules that may be covered by a condition.
enum CandidateRules<'a> {
    /// All rules with a condition on the fact.
    All(&'a [usize]),
    /// The rules in these ranges, which may overlap.
    Some(Vec<&'a [(&'a str, usize)]>),
}

impl CandidateRules<'_> {
    fn len(&self) -> usize {
        match self {
            Self::All(indices) => indices.len(),
            Self::Some(ranges) => ranges.iter().map(|range| range.len()).sum(),
        }
    }

    fn indices(&self) -> Vec<usize> {
        match self {
            Self::All(indices) => indices.to_vec(),
            Self::Some(ranges) => {
                let each = ranges.iter().flat_map(|range| range.iter());
                let mut indices: Vec<usize> = each.map(|(_, index)| *index).collect();
                // A rule is in several ranges if its list has both a path and a prefix of the path.
                indices.sort_unstable();
                indices.dedup();
                indices
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::document::Format;
    use crate::policy::{Policy, Rule};

    #[test]
    fn wide_conditions_hold_where_narrow_ones_do() {
        let exact = |text: &str| Pattern::Exact(text.into());
        let prefix = |text: &str| Pattern::Prefix(text.into());
        let glob = |text: &str| Pattern::Glob(text.into());
        let net = |text: &str| Pattern::Cidr(text.into());
        let not = |pattern| Pattern::Not(Box::new(pattern));
        let any = |patterns: &[Pattern]| Pattern::OneOf(patterns.to_vec());
        for (wide, narrow, expect) in [
            (prefix("/a"), exact("/ab"), true),
            (prefix("/a"), glob("/a/*"), true),
            (prefix("/a/b"), glob("/a/*"), false),
            (glob("/a/**"), prefix("/a/b"), true),
            (glob("/a/*"), prefix("/a/b"), false),
            (glob("/a/**"), any(&[exact("/a/b"), exact("/c")]), false),
            (any(&[exact("GET"), exact("PUT")]), exact("PUT"), true),
            (
                any(&[exact("GET")]),
                any(&[exact("GET"), exact("PUT")]),
                false,
            ),
            (Pattern::Present, glob("*"), true),
            (Pattern::Present, not(exact("a")), false),
            (Pattern::Present, Pattern::Absent, false),
            (not(exact("a")), not(prefix("a")), true),
            (not(prefix("a")), not(exact("a")), false),
            (net("10.0.0.0/8"), net("10.1.0.0/16"), true),
            (net("10.1.0.0/16"), net("10.0.0.0/8"), false),
            (exact("a"), prefix("a"), false),
        ] {
            assert_eq!(
                pattern_covers(&wide, &narrow, &StepBudget::new()),
                expect,
                "{wide:?} {narrow:?}"
            );
        }
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        let simple = prop_oneof![
            "[ab/]{1,3}".prop_map(Pattern::Exact),
            "[ab/]{1,3}".prop_map(Pattern::Prefix),
            "[ab/*?]{1,4}".prop_map(Pattern::Glob),
            "[ab/]{0,2}".prop_map(|start| Pattern::Glob(format!("{start}**"))),
            Just(Pattern::Present),
            Just(Pattern::Absent),
        ];
        simple.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..3).prop_map(Pattern::OneOf),
                inner.prop_map(|pattern| Pattern::Not(Box::new(pattern))),
            ]
        })
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let condition = ("[xy]", pattern());
        prop::collection::vec(condition, 0..3).prop_map(|mut conditions| {
            conditions.sort_by(|a, b| a.0.cmp(&b.0));
            conditions.dedup_by(|a, b| a.0 == b.0);
            let text = "limits: [{name: a, rate: 1/s}]";
            let mut policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
            let mut rule = policy.rules.remove(0);
            rule.matches.conditions = conditions;
            rule
        })
    }

    /// Whether a pattern matches, implemented directly from its documentation.
    fn meets(pattern: &Pattern, text: Option<&str>) -> bool {
        match (pattern, text) {
            (Pattern::Not(inner), _) => !meets(inner, text),
            (Pattern::OneOf(any), _) => any.iter().any(|pattern| meets(pattern, text)),
            (Pattern::Absent, _) => text.is_none(),
            (_, None) => false,
            (Pattern::Exact(exact), Some(text)) => exact == text,
            (Pattern::Prefix(prefix), Some(text)) => text.starts_with(prefix),
            (Pattern::Glob(glob), Some(text)) => glob_matches(glob, text),
            (Pattern::Present, Some(_)) => true,
            (other, _) => panic!("{other:?} is not made here"),
        }
    }

    /// No text, and every text of up to four letters.
    fn all_texts() -> Vec<Option<String>> {
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer = texts.iter().flat_map(|text| {
                let longer = ["a", "b", "/"].map(|letter| format!("{text}{letter}"));
                longer.into_iter().chain([text.clone()])
            });
            let longer: std::collections::BTreeSet<_> = longer.collect();
            texts = longer.into_iter().collect();
        }
        texts.into_iter().map(Some).chain([None]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_covers_holds_of_every_text(wide in pattern(), narrow in pattern()) {
            if pattern_covers(&wide, &narrow, &StepBudget::new()) {
                for text in all_texts() {
                    let text = text.as_deref();
                    prop_assert!(!meets(&narrow, text) || meets(&wide, text), "{text:?}");
                }
            }
        }

        #[test]
        fn the_index_finds_every_rule_that_is_covered(rules in prop::collection::vec(rule(), 1..12)) {
            let index = RuleIndex::new(&rules);
            for outer in &rules {
                let found = index.covered_candidates(&outer.matches);
                for (number, inner) in rules.iter().enumerate() {
                    if match_covers(&outer.matches, &inner.matches, &StepBudget::new()) {
                        prop_assert!(found.contains(&number), "{outer:?} {inner:?}");
                    }
                }
            }
        }
    }
}

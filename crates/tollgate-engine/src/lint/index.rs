//! Finds the few rules that a condition may cover among thousands.

use std::collections::HashMap;

use super::cover::start;
use crate::policy::{Match, Pattern, Rule};

/// Rules by the facts that they have conditions on, and by what these begin with.
pub(super) struct Index<'a> {
    rules: usize,
    facts: HashMap<&'a str, Facts<'a>>,
}

#[derive(Default)]
struct Facts<'a> {
    all: Vec<usize>,
    /// What a text must begin with to meet the rule's condition, sorted.
    starts: Vec<(&'a str, usize)>,
}

impl<'a> Index<'a> {
    pub(super) fn new(rules: &'a [Rule]) -> Self {
        let mut facts: HashMap<&str, Facts<'a>> = HashMap::new();
        for (index, rule) in rules.iter().enumerate() {
            for (fact, pattern) in &rule.matches.conditions {
                let known = facts.entry(fact).or_default();
                known.all.push(index);
                if let Some(start) = first(pattern).and_then(start) {
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

    /// All rules, and maybe some more, whose requests all meet these conditions.
    pub(super) fn covered_by(&self, outer: &Match) -> Vec<usize> {
        let each = outer.conditions.iter();
        let candidates = each.map(|condition| self.candidates(condition));
        // The condition with the fewest candidates is enough: all that are covered are among them.
        match candidates.min_by_key(Candidates::len) {
            Some(fewest) => fewest.indices(),
            None => (0..self.rules).collect(),
        }
    }

    fn candidates(&self, (fact, pattern): &(String, Pattern)) -> Candidates<'_> {
        let Some(known) = self.facts.get(fact.as_str()) else {
            return Candidates::Some(Vec::new());
        };
        let alternatives = match pattern {
            Pattern::OneOf(patterns) => patterns.as_slice(),
            one => std::slice::from_ref(one),
        };
        let ranges = alternatives.iter().map(|alternative| {
            let prefix = start(alternative)?;
            let starts = known.starts.as_slice();
            let from = starts.partition_point(|(start, _)| *start < prefix);
            let fits = |start: &str| start < prefix || start.starts_with(prefix);
            let to = starts.partition_point(|(start, _)| fits(start));
            starts.get(from..to)
        });
        match ranges.collect::<Option<Vec<_>>>() {
            Some(ranges) => Candidates::Some(ranges),
            None => Candidates::All(&known.all),
        }
    }
}

/// Rules that may be covered.
enum Candidates<'a> {
    /// All with a condition on the fact.
    All(&'a [usize]),
    /// Those in these ranges, which may overlap.
    Some(Vec<&'a [(&'a str, usize)]>),
}

impl Candidates<'_> {
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
                // A list may have both a path and what it begins with.
                indices.sort_unstable();
                indices.dedup();
                indices
            }
        }
    }
}

/// A pattern, or the first of a list: what covers the list covers this.
fn first(pattern: &Pattern) -> Option<&Pattern> {
    match pattern {
        Pattern::OneOf(patterns) => patterns.first().and_then(first),
        one => Some(one),
    }
}

//! Finds which of many rules match a request, without comparing most of them.
//!
//! Each rule is indexed under its most selective condition: exact ones by value, prefixes and the literal prefixes of
//! globs in a sorted table, networks in a binary tree. A request looks up each of its facts once. Only the rules
//! under the results are compared in full.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hint::black_box;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::facts::{Facts, name_prefix};
use crate::policy::{MatchConditions, Pattern};

pub(crate) mod glob;
mod glob_sets;
mod index;
mod inline_text;
pub(crate) mod inline_vec;
mod pattern;
mod prefix_index;
pub(crate) mod regex;
#[cfg(test)]
mod tests;

pub use pattern::{Explained, explain};

use crate::address::Address;
use glob::Glob;
use glob_sets::{GlobMatches, GlobSetBuilder, GlobSets};
use index::RuleIndex;
use inline_vec::InlineVec;
use pattern::CompiledPattern;
use regex::RegexCache;

/// How many facts are stored without an allocation. If a policy reads more facts, the others are looked up when a
/// rule reads them.
const SLOTS: usize = 16;
/// How many facts are parsed as addresses once per request. Others are parsed when a rule reads them.
const ADDRESSES: usize = 2;

/// Numbers of rules, in the order of the file.
pub(crate) type Numbers = InlineVec<u32, 32>;

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display, derive_more::Error)]
#[display("pattern {pattern:?}: {why}")]
pub struct PatternError {
    /// The pattern as it was written.
    pub pattern: String,
    /// Why it is invalid.
    pub why: String,
}

/// The compiled conditions of many rules.
///
/// ```
/// use tollgate_engine::Facts;
/// use tollgate_engine::matcher::Matcher;
/// use tollgate_engine::policy::{MatchConditions, Pattern};
///
/// let rule = |pattern| MatchConditions {
///     conditions: vec![("path".to_owned(), pattern)],
///     ..MatchConditions::default()
/// };
/// let matcher = Matcher::new(&[
///     rule(Pattern::Glob("/api/**".to_owned())),
///     rule(Pattern::Exact("/healthz".to_owned())),
///     MatchConditions::default(),
/// ])?;
/// assert_eq!(matcher.matching(&Facts::new().with("path", "/api/x")), [0, 2]);
/// # Ok::<(), tollgate_engine::matcher::PatternError>(())
/// ```
#[derive(Debug)]
pub struct Matcher {
    pub(crate) slots: FactIndex,
    /// The conditions of all rules, one rule after the other.
    conditions: Box<[Condition]>,
    /// The index of each rule's first condition, and at the end the number of all conditions.
    starts: Box<[u32]>,
    index: RuleIndex,
    /// Globs that are matched together.
    glob_sets: GlobSets,
}

/// A test of one fact.
#[derive(Debug)]
struct Condition {
    slot: u32,
    wants_address: bool,
    test: CompiledPattern,
}

/// The facts that a policy reads, by number.
#[derive(Debug, Default)]
pub(crate) struct FactIndex {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32, FixedState>,
    /// The prefix and the length of each name.
    short: Vec<(u64, usize)>,
    /// The facts that are parsed as addresses.
    addresses: Vec<u32>,
}

impl FactIndex {
    /// The number of this fact, which is added if it is new.
    pub(crate) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.into());
        self.short.push((name_prefix(name), name.len()));
        self.numbers.insert(name.into(), number);
        number
    }

    /// The number of this fact, if the policy reads it.
    pub(crate) fn number_of(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// All names, by number.
    pub(crate) fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The name with this number.
    pub(crate) fn name(&self, slot: u32) -> &str {
        &self.names[slot as usize]
    }

    /// Has this fact parsed as an address once per request.
    pub(crate) fn read_as_address(&mut self, slot: u32) {
        if self.addresses.len() < ADDRESSES && !self.addresses.contains(&slot) {
            self.addresses.push(slot);
        }
    }

    #[inline]
    fn find(&self, head: u64, name: &str) -> Option<usize> {
        if self.short.len() > SLOTS {
            return self.numbers.get(name).map(|number| *number as usize);
        }
        let own = (head, name.len());
        let is_own = |(slot, short): (usize, &(u64, usize))| {
            // The prefix and the length identify a name of at most eight bytes.
            *short == own && (name.len() <= 8 || *self.names[slot] == *name)
        };
        self.short.iter().enumerate().position(is_own)
    }

    /// The values of a request's facts.
    #[cfg(test)]
    pub(crate) fn look_up<'s, 'f>(&'s self, facts: &'f Facts<'f>) -> FactValues<'s, 'f> {
        let mut known = FactValues::new(self, facts);
        known.look_up();
        known.read_addresses();
        known
    }
}

/// The values of a request's facts, by number.
pub(crate) struct FactValues<'s, 'f> {
    slots: &'s FactIndex,
    pub(crate) facts: &'f Facts<'f>,
    texts: [Option<&'f str>; SLOTS],
    addresses: [Option<Address>; ADDRESSES],
    /// The longest value of a fact that the policy reads: its number and its length.
    pub(crate) longest: (u32, usize),
}

impl<'s, 'f> FactValues<'s, 'f> {
    /// No values yet.
    #[inline]
    pub(crate) fn new(slots: &'s FactIndex, facts: &'f Facts<'f>) -> Self {
        Self {
            slots,
            facts,
            texts: [None; SLOTS],
            addresses: [None; ADDRESSES],
            longest: (0, 0),
        }
    }

    /// Looks up the values of the request. It is separate from [`new`](Self::new), so that this large struct is
    /// filled in place and never moved.
    #[inline]
    pub(crate) fn look_up(&mut self) {
        let (slots, texts, longest) = (self.slots, &mut self.texts, &mut self.longest);
        self.facts.each(|head, name, value| {
            let Some(slot) = slots.find(head, name) else {
                return;
            };
            if let Some(text) = texts.get_mut(slot) {
                *text = Some(value);
            }
            if value.len() > longest.1 {
                *longest = (u32::try_from(slot).unwrap_or(u32::MAX), value.len());
            }
        });
    }

    /// Parses the facts that are addresses.
    #[inline]
    pub(crate) fn read_addresses(&mut self) {
        let slots = self.slots;
        for (place, slot) in slots.addresses.iter().enumerate() {
            self.addresses[place] = self.text(*slot).and_then(Address::parse);
        }
    }

    #[inline(always)]
    pub(crate) fn text(&self, slot: u32) -> Option<&'f str> {
        let slot = slot as usize;
        match self.texts.get(slot) {
            Some(text) => *text,
            None => self.facts.get(&self.slots.names[slot]),
        }
    }

    #[inline]
    pub(crate) fn address(&self, slot: u32) -> Option<Address> {
        match self.slots.addresses.iter().position(|own| *own == slot) {
            Some(place) => self.addresses[place],
            None => self.text(slot).and_then(Address::parse),
        }
    }

    #[inline]
    fn holds(&self, condition: &Condition) -> bool {
        let (text, address) = self.condition_input(condition);
        condition.test.holds(text, address)
    }

    fn holds_with_globs(&self, condition: &Condition, found: &mut GlobMatches<'_>) -> bool {
        let (text, address) = self.condition_input(condition);
        let mut globs = |glob: &Glob, text: &str| found.matches(glob, condition.slot, text);
        condition.test.holds_by(text, address, &mut globs)
    }

    /// The value that a condition tests.
    #[inline]
    fn condition_input(&self, condition: &Condition) -> (Option<&'f str>, Option<Address>) {
        let address = if condition.wants_address {
            self.address(condition.slot)
        } else {
            None
        };
        (self.text(condition.slot), address)
    }
}

impl Matcher {
    /// Compiles these rules.
    ///
    /// # Errors
    /// If a pattern is invalid: a regular expression, a network, or a glob that is too long.
    pub fn new(rules: &[MatchConditions]) -> Result<Self, PatternError> {
        Self::with_slots(rules.iter(), FactIndex::default())
    }

    /// Compiles rules, and adds their facts to an index that has others already.
    pub(crate) fn with_slots<'a>(
        rules: impl Iterator<Item = &'a MatchConditions>,
        mut slots: FactIndex,
    ) -> Result<Self, PatternError> {
        let mut compiled = Vec::new();
        let mut known: HashMap<String, Arc<CompiledPattern>, FixedState> = HashMap::default();
        let (mut regexes, mut globs) = (RegexCache::default(), GlobSetBuilder::default());
        for rule in rules {
            let mut conditions = Vec::with_capacity(rule.conditions.len());
            for (fact, pattern) in &rule.conditions {
                let slot = slots.number(fact);
                let test = match pattern {
                    // Rules seldom share these patterns, so each rule has its own.
                    Pattern::Exact(_) | Pattern::Glob(_) | Pattern::Prefix(_) => {
                        CompiledPattern::new(pattern, &mut regexes, &mut globs)?
                    }
                    pattern => CompiledPattern::Shared(match known.entry(format!("{pattern:?}")) {
                        Entry::Occupied(known) => Arc::clone(known.get()),
                        Entry::Vacant(new) => {
                            let test = CompiledPattern::new(pattern, &mut regexes, &mut globs)?;
                            Arc::clone(new.insert(Arc::new(test)))
                        }
                    }),
                };
                let wants_address = test.wants_address();
                if wants_address {
                    slots.read_as_address(slot);
                }
                conditions.push(Condition {
                    slot,
                    wants_address,
                    test,
                });
            }
            compiled.push(conditions.into_boxed_slice());
        }
        let index = RuleIndex::new(&compiled, slots.names.len());
        let mut starts = Vec::with_capacity(compiled.len() + 1);
        let mut start: u32 = 0;
        for rule in &compiled {
            starts.push(start);
            start = start.saturating_add(u32::try_from(rule.len()).unwrap_or(u32::MAX));
        }
        starts.push(start);
        Ok(Self {
            slots,
            conditions: compiled.into_iter().flatten().collect(),
            starts: starts.into(),
            index,
            glob_sets: globs.into_sets(),
        })
    }

    /// The numbers of all rules that match these facts, in order.
    pub fn matching(&self, facts: &Facts<'_>) -> Vec<u32> {
        let mut numbers = Numbers::new();
        let mut known = FactValues::new(&self.slots, facts);
        known.look_up();
        known.read_addresses();
        self.candidates(&known, &mut numbers);
        self.keep_matching(&known, &mut numbers);
        numbers.as_slice().to_vec()
    }

    /// Adds the numbers of rules that may match, and starts to load their conditions. It allocates only if there are
    /// very many. Rules that nearly every request matches come first.
    #[inline]
    pub(crate) fn candidates(&self, known: &FactValues<'_, '_>, numbers: &mut Numbers) {
        self.index.candidates(known, numbers);
        for number in numbers.as_slice() {
            for condition in self.conditions_of(*number) {
                // Loads whose results aren't used yet, so that the cache misses of several rules overlap.
                black_box(condition.slot);
            }
        }
    }

    /// Keeps the candidates that match, in order.
    #[inline]
    pub(crate) fn keep_matching(&self, known: &FactValues<'_, '_>, numbers: &mut Numbers) {
        if self
            .glob_sets
            .is_worthwhile(numbers.as_slice().len(), known.longest.1)
        {
            return self.keep_matching_together(known, numbers);
        }
        self.retain_matching(numbers, |condition| known.holds(condition));
    }

    /// The same for many rules on a long text: globs with a common prefix are matched in one pass.
    #[cold]
    #[inline(never)]
    fn keep_matching_together(&self, known: &FactValues<'_, '_>, numbers: &mut Numbers) {
        let mut found = GlobMatches::new(&self.glob_sets);
        self.retain_matching(numbers, |condition| {
            known.holds_with_globs(condition, &mut found)
        });
    }

    /// Keeps the candidates whose conditions all hold, sorted and without duplicates.
    #[inline(always)]
    fn retain_matching(&self, numbers: &mut Numbers, mut holds: impl FnMut(&Condition) -> bool) {
        let candidates = numbers.as_mut_slice();
        sort_nearly_sorted(candidates);
        let (mut kept, mut last) = (0, None);
        for place in 0..candidates.len() {
            let number = candidates[place];
            if last == Some(number) {
                continue;
            }
            last = Some(number);
            if self.conditions_of(number).iter().all(&mut holds) {
                candidates[kept] = number;
                kept += 1;
            }
        }
        numbers.truncate(kept);
    }

    /// Whether a rule has a condition on a fact. Tiers have no conditions.
    pub(crate) fn has_condition_on(&self, number: usize, slot: u32) -> bool {
        let starts = self.starts.get(number).zip(self.starts.get(number + 1));
        starts.is_some_and(|(start, end)| {
            let conditions = &self.conditions[*start as usize..*end as usize];
            conditions.iter().any(|condition| condition.slot == slot)
        })
    }

    #[inline]
    fn conditions_of(&self, number: u32) -> &[Condition] {
        let number = number as usize;
        let (start, end) = (self.starts[number], self.starts[number + 1]);
        &self.conditions[start as usize..end as usize]
    }
}

/// Sorts numbers that are usually few and nearly sorted: an insertion sort is fastest for these.
#[inline]
fn sort_nearly_sorted(numbers: &mut [u32]) {
    if numbers.len() > 16 {
        return numbers.sort_unstable();
    }
    for end in 1..numbers.len() {
        let mut place = end;
        while place > 0 && numbers[place - 1] > numbers[place] {
            numbers.swap(place - 1, place);
            place -= 1;
        }
    }
}

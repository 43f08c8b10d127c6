//! Indexes rules by their most selective condition: the one that the fewest other rules share.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::pattern::CompiledPattern;
use super::prefix_index::{Buckets, PrefixTable};
use super::{Condition, FactValues, Numbers};
use crate::address::{Network, NetworkTree};

/// All rules, indexed by one condition each.
#[derive(Debug)]
pub(super) struct RuleIndex {
    /// The entries of facts that have rules, each with the slot of its fact in [`FactValues`].
    shelves: Box<[(u32, FactIndexEntry)]>,
    /// Rules without a condition that can be indexed. They are candidates for every request.
    unindexed: Box<[u32]>,
    hasher: FixedState,
}

/// The rules whose indexed condition is on one fact.
#[derive(Debug, Default)]
struct FactIndexEntry {
    /// Rules by the hash of an exact value. Rules of colliding values are candidates too, and their full check
    /// rejects them.
    exact: Buckets,
    prefixes: Option<PrefixTable>,
    networks: Option<NetworkTree>,
    /// Rules that may match any value of the fact.
    known: Box<[u32]>,
}

/// The index key for one alternative of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum IndexKey<'a> {
    Exact(&'a str),
    Prefix(&'a str),
    Network(&'a Network),
    /// Any value of the fact.
    Known,
}

impl<'a> IndexKey<'a> {
    fn beginning(prefix: &'a str) -> Self {
        match prefix {
            "" => Self::Known,
            prefix => Self::Prefix(prefix),
        }
    }
}

/// The index keys for the alternatives of a condition. `None` if a request without the fact may meet it, so that no
/// value finds it.
fn index_keys(test: &CompiledPattern) -> Option<Vec<IndexKey<'_>>> {
    match test {
        CompiledPattern::Exact(text) => Some(vec![IndexKey::Exact(text.as_str())]),
        CompiledPattern::Prefix(prefix) => Some(vec![IndexKey::beginning(prefix.as_str())]),
        CompiledPattern::Glob(glob) => Some(vec![IndexKey::beginning(glob.head())]),
        CompiledPattern::Cidr(network) => Some(vec![IndexKey::Network(network)]),
        CompiledPattern::OneOf(tests) => {
            let filings: Option<Vec<_>> = tests.iter().map(index_keys).collect();
            filings.map(|filings| filings.concat())
        }
        CompiledPattern::Present | CompiledPattern::Regex(_) => Some(vec![IndexKey::Known]),
        CompiledPattern::Shared(test) => index_keys(test),
        CompiledPattern::Absent | CompiledPattern::Not(_) => None,
    }
}

/// Collects the rules for a [`FactIndexEntry`].
#[derive(Default)]
struct EntryBuilder<'a> {
    exact: Vec<(&'a str, u32)>,
    prefixes: Vec<(Box<str>, u32)>,
    networks: Option<NetworkTree>,
    known: Vec<u32>,
}

impl<'a> EntryBuilder<'a> {
    fn file(&mut self, filing: IndexKey<'a>, number: u32) {
        match filing {
            IndexKey::Exact(text) => self.exact.push((text, number)),
            IndexKey::Prefix(prefix) => self.prefixes.push((prefix.into(), number)),
            IndexKey::Known => self.known.push(number),
            IndexKey::Network(network) => {
                let networks = self.networks.get_or_insert_with(NetworkTree::default);
                networks.add(network, number);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty()
            && self.prefixes.is_empty()
            && self.networks.is_none()
            && self.known.is_empty()
    }

    fn shelf(self, hasher: &FixedState) -> FactIndexEntry {
        let exact = self.exact.into_iter();
        FactIndexEntry {
            exact: Buckets::new(exact.map(|(text, number)| (hasher.hash_one(text), number))),
            prefixes: (!self.prefixes.is_empty()).then(|| PrefixTable::new(&self.prefixes)),
            networks: self.networks,
            known: self.known.into(),
        }
    }
}

impl RuleIndex {
    pub(super) fn new(rules: &[Box<[Condition]>], slots: usize) -> Self {
        let hasher = FixedState::default();
        let mut sharers: HashMap<(u32, IndexKey<'_>), u32, FixedState> = HashMap::default();
        for Condition { slot, test, .. } in rules.iter().flatten() {
            for filing in index_keys(test).into_iter().flatten() {
                *sharers.entry((*slot, filing)).or_default() += 1;
            }
        }
        let mut drafts: Vec<EntryBuilder<'_>> =
            (0..slots).map(|_| EntryBuilder::default()).collect();
        let mut rest = Vec::new();
        for (number, conditions) in (0..).zip(rules) {
            // The number of rules that share the keys. `Known` finds every request with the fact, so it comes last.
            let crowd = |slot: u32, filings: &[IndexKey<'_>]| {
                filings.iter().fold(0, |sum: u32, filing| match filing {
                    IndexKey::Known => u32::MAX,
                    filing => {
                        let sharers = sharers.get(&(slot, *filing)).copied();
                        sum.saturating_add(sharers.unwrap_or(0))
                    }
                })
            };
            let fileable = conditions
                .iter()
                .filter_map(|condition| Some((condition.slot, index_keys(&condition.test)?)));
            match fileable.min_by_key(|(slot, filings)| crowd(*slot, filings)) {
                Some((slot, filings)) => {
                    let draft = &mut drafts[slot as usize];
                    filings
                        .into_iter()
                        .for_each(|filing| draft.file(filing, number));
                }
                None => rest.push(number),
            }
        }
        Self {
            shelves: (0..)
                .zip(drafts)
                .filter(|(_, draft)| !draft.is_empty())
                .map(|(slot, draft)| (slot, draft.shelf(&hasher)))
                .collect(),
            unindexed: rest.into(),
            hasher,
        }
    }

    /// Adds every rule that may match, and some that don't, in any order. A rule may be added twice.
    #[inline]
    pub(super) fn candidates(&self, known: &FactValues<'_, '_>, found: &mut Numbers) {
        self.unindexed.iter().for_each(|number| found.push(*number));
        for (slot, shelf) in &self.shelves {
            let Some(text) = known.text(*slot) else {
                continue;
            };
            if !shelf.exact.is_empty() {
                shelf.exact.each(self.hasher.hash_one(text), found);
            }
            shelf.known.iter().for_each(|number| found.push(*number));
            if let Some(prefixes) = &shelf.prefixes {
                prefixes.each(text, found);
            }
            if let Some(networks) = &shelf.networks
                && let Some(address) = known.address(*slot)
            {
                networks.each(address, |number| found.push(number));
            }
        }
    }
}

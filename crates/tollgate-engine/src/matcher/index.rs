//! Where rules are filed: each under one of its conditions, the one that fewest others share.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::pattern::CompiledPattern;
use super::prefix_index::{Buckets, PrefixTable};
use super::{Condition, FactValues, Numbers};
use crate::address::{Network, NetworkTree};

/// All rules by the condition that they are filed under.
#[derive(Debug)]
pub(super) struct RuleIndex {
    /// The shelves that have rules, each with the slot of its fact.
    shelves: Box<[(u32, FactIndexEntry)]>,
    /// Rules without a condition to file them under: looked at by every request.
    unindexed: Box<[u32]>,
    hasher: FixedState,
}

/// The rules that are filed under one fact.
#[derive(Debug, Default)]
struct FactIndexEntry {
    /// By the hash of a value: rules of values that hash alike are told apart when they are checked.
    exact: Buckets,
    prefixes: Option<PrefixTable>,
    networks: Option<NetworkTree>,
    /// Rules that may match whatever the fact says.
    known: Box<[u32]>,
}

/// Where one alternative of a condition is filed in the index.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum IndexKey<'a> {
    Exact(&'a str),
    Prefix(&'a str),
    Network(&'a Network),
    /// Wherever the fact is known.
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

/// Where a condition can be filed, for each of its alternatives. None if it can't be.
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

/// What is to become a shelf.
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

    /// Adds every rule that may match, and some that don't; maybe twice, and in any order.
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

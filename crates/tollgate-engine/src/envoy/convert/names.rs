//! Names for limits that have none of their own, or one that our form doesn't take.

use std::collections::{BTreeMap, BTreeSet};

use super::Leaf;
use crate::escape::is_hidden;
use crate::native::LONGEST_NAME;

/// Room in a name for what tells it from others.
const SUFFIX: usize = 10;

/// A text as a name of our own form can be: without signs that can't be seen, and not too long.
fn tidy(text: &str) -> String {
    let seen = text
        .chars()
        .map(|sign| if is_hidden(sign) { '_' } else { sign });
    let short: String = seen.take(LONGEST_NAME - SUFFIX).collect();
    match short.trim() {
        "" => "_".to_owned(),
        name => name.to_owned(),
    }
}

/// A name for each limit, no two the same: its own if no other has it, else its path.
pub(super) fn of(leaves: &[Leaf]) -> Vec<String> {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for name in leaves.iter().filter_map(|leaf| leaf.limit.name.as_deref()) {
        // One that has to be changed isn't one's own.
        let count = if tidy(name) == name { 1 } else { 2 };
        *owners.entry(name).or_default() += count;
    }
    let mut used: BTreeSet<String> = owners.keys().map(|name| (*name).to_owned()).collect();
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let own = leaf.limit.name.as_deref();
        if let Some(own) = own.filter(|own| owners.get(own) == Some(&1)) {
            names.push(own.to_owned());
            continue;
        }
        let path = tidy(&leaf.to_string());
        let mut name = path.clone();
        // Of many that begin alike, each goes on where the one before it ended.
        let number = next.entry(path.clone()).or_insert(2);
        while !used.insert(name.clone()) {
            name = format!("{path}-{number}");
            *number += 1;
        }
        names.push(name);
    }
    names
}

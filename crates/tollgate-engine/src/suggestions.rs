//! "Did you mean": the known word that is closest to a wrong one.

use std::collections::BTreeSet;

use crate::facts::{Facts, TENANT};
use crate::policy::Policy;

/// The most candidates to compare, which bounds the time for thousands of wrong names.
const MAX_CANDIDATES: usize = 300;
/// The longest word to compare. A longer one is hardly a typing mistake.
const MAX_WORD_LENGTH: usize = 40;

/// The closest candidate, if at most three letters and at most a third of them differ.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = normalized_word(word)?;
    let candidates = candidates.into_iter().take(MAX_CANDIDATES);
    let near = candidates.filter_map(|candidate| {
        let other = normalized_word(candidate)?;
        let (length, other_length) = (word.chars().count(), other.chars().count());
        let most = (length.max(other_length) / 3).clamp(1, 3);
        if length.abs_diff(other_length) > most {
            return None;
        }
        // The number of letters to insert, delete, change or swap with their neighbor.
        let distance = strsim::osa_distance(&word, &other);
        (distance <= most).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// "did you mean …?" if a candidate is close.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    closest(word, candidates).map(|near| format!("did you mean {near:?}?"))
}

/// "did you mean …?" if a candidate is close, otherwise the list of candidates, if that is short.
pub(crate) fn suggestion_or_list(word: &str, candidates: &[&str]) -> Option<String> {
    if let Some(near) = did_you_mean(word, candidates.iter().copied()) {
        return Some(near);
    }
    match candidates {
        [] => None,
        few if few.len() <= 15 => Some(format!("use {}", or_list(few))),
        _ => None,
    }
}

/// `a, b or c`.
pub(crate) fn or_list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The word in lower case, with `_` for `-`: confusing these is the most common mistake.
fn normalized_word(word: &str) -> Option<String> {
    let is_comparable = !word.is_empty() && word.chars().count() <= MAX_WORD_LENGTH;
    is_comparable.then(|| word.to_ascii_lowercase().replace('-', "_"))
}

/// Facts of a request that nothing in the policy reads, but whose names are close to one that it does read, each with
/// that name.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::misspelled_facts;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "limits: [{name: per-plan, match: {region: eu}, key: [plan, user], rate: 5/s}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let facts = Facts::new().with("plna", "pro").with("usr", "42").with("colour", "red");
/// assert_eq!(misspelled_facts(&policy, &facts), [("plna", "plan"), ("usr", "user")]);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
pub fn misspelled_facts<'a>(policy: &'a Policy, facts: &Facts<'a>) -> Vec<(&'a str, &'a str)> {
    let conditions = policy.block.iter().chain(&policy.exempt);
    let conditions = conditions.chain(policy.rules.iter().map(|rule| &rule.matches));
    let conditions =
        conditions.flat_map(|one| one.conditions.iter().map(|(fact, _)| fact.as_str()));
    let keys = policy.rules.iter().flat_map(|rule| rule.key_facts());
    let costs = policy.rules.iter().map(|rule| &rule.cost);
    let costs = costs.chain(policy.tiers.values().map(|tier| &tier.cost));
    let costs = costs.filter_map(|cost| cost.fact.as_deref());
    let shed = policy.rules.iter().filter_map(|rule| rule.shed.as_ref());
    let costs = costs.chain(shed.map(|shed| shed.by.as_str()));
    let tenant = (!policy.tiers.is_empty()).then_some(TENANT);
    let asked: BTreeSet<&str> = (conditions.chain(keys).chain(costs))
        .chain(policy.tier_fact.as_deref())
        .chain(tenant)
        .collect();
    let given: Vec<_> = facts.iter().map(|(name, _)| name).collect();
    let unasked = given.iter().filter(|name| !asked.contains(*name));
    let near = unasked.filter_map(|name| {
        // A fact that the request also has isn't the one that was meant.
        let others = asked.iter().copied().filter(|other| !given.contains(other));
        Some((*name, closest(name, others)?))
    });
    near.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_not() {
        let fields = [
            "name",
            "match",
            "key",
            "rate",
            "replaces",
            "on_store_failure",
        ];
        for (word, expect) in [
            ("rat", Some("rate")),
            ("rtae", Some("rate")),
            ("Rate", Some("rate")),
            ("on-store-failure", Some("on_store_failure")),
            ("replace", Some("replaces")),
            ("ky", Some("key")),
            ("limit", None),
            ("x", None),
            ("", None),
            ("fortnight", None),
        ] {
            assert_eq!(closest(word, fields), expect, "{word}");
        }
    }

    #[test]
    fn what_there_is_stands_in_for_a_guess() {
        let words = ["enforce", "shadow", "off"];
        assert_eq!(
            suggestion_or_list("shadw", &words).unwrap(),
            "did you mean \"shadow\"?"
        );
        assert_eq!(
            suggestion_or_list("maybe", &words).unwrap(),
            "use enforce, shadow or off"
        );
        assert_eq!(suggestion_or_list("maybe", &[]), None);
    }
}

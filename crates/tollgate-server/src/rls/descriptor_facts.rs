//! The facts of a descriptor request: those of all descriptors together, and those of each descriptor.
//!
//! If a fact has several values, each value is decided, with the other facts of its own descriptor: a proxy that sends
//! two users means both, and neither may hide the other.

use std::collections::BTreeSet;

use tollgate_engine::Facts;
use tollgate_engine::facts::{
    ALL_DESCRIPTORS, DESCRIPTOR, DOMAIN, Descriptor, descriptor_name, fact_name,
};

use super::rls_request::{RlsRequest, Undecided};

/// How many sets of facts one request may have.
pub(crate) const MOST_SETS: usize = 64;

/// Texts that the facts of a request borrow, in addition to those of the request.
#[derive(Debug, Default)]
pub(crate) struct FactTexts {
    /// The joined keys of each descriptor, if a rule uses them.
    keys: Vec<String>,
    /// The fact names of entries whose key isn't the name, by the index among all entries.
    names: Vec<(usize, String)>,
    /// Whether a rule uses the domain.
    asks_domain: bool,
    /// Whether `ip` is filled from Envoy's `remote_address`, as no entry has it.
    fills_ip: bool,
    /// Facts that rules use and that have several values.
    multi_valued: Vec<String>,
}

/// The sets of facts of a request.
pub(crate) struct FactSets<'a> {
    pub(crate) first: Facts<'a>,
    pub(crate) others: Vec<Facts<'a>>,
}

/// An entry: the index of its descriptor, its fact's name, and its value.
type Entry<'a> = (usize, &'a str, &'a str);

/// The values of one fact.
struct FactValues<'a> {
    name: &'a str,
    values: Vec<&'a str>,
}

impl FactTexts {
    /// The texts for a request, if the policy uses these facts.
    pub(crate) fn of(question: &RlsRequest<'_>, asked: &[Box<str>]) -> Self {
        let is_asked = |name: &str| asked.iter().any(|own| **own == *name);
        let mut texts = Self::default();
        let entries = question.descriptors.iter().flat_map(|one| one.entries);
        for (place, (key, _)) in entries.enumerate() {
            if let std::borrow::Cow::Owned(name) = fact_name(key) {
                texts.names.push((place, name));
            }
        }
        if is_asked(DESCRIPTOR) {
            let keys =
                |one: &Descriptor<'_>| descriptor_name(one.entries.iter().map(|(key, _)| *key));
            texts.keys = question.descriptors.iter().map(keys).collect();
        }
        texts.asks_domain = is_asked(DOMAIN);
        texts.fills_ip = is_asked("ip") && !texts.entries(question).any(|entry| entry.1 == "ip");
        let several = texts.several(question, is_asked);
        texts.multi_valued = several;
        texts
    }

    /// The entries of a request that are facts. No entry can set the domain or the descriptor.
    fn entries<'a>(
        &'a self,
        question: &RlsRequest<'a>,
    ) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let descriptors = question.descriptors.iter().enumerate();
        let entries = descriptors.flat_map(|(number, one)| {
            let entries = one.entries.iter();
            entries.map(move |(key, value)| (number, *key, *value))
        });
        let named = entries.enumerate().map(|(place, (number, key, value))| {
            let other = self.names.iter().find(|(own, _)| *own == place);
            (number, other.map_or(key, |(_, name)| name), value)
        });
        let named = named.filter(|(_, name, _)| *name != DOMAIN && *name != DESCRIPTOR);
        named.flat_map(|(number, name, value)| {
            let is_address = self.fills_ip && name == "remote_address";
            let address = is_address.then_some((number, "ip", value));
            [Some((number, name, value)), address].into_iter().flatten()
        })
    }

    /// The facts that rules use and that have several values.
    fn several(&self, question: &RlsRequest<'_>, is_asked: impl Fn(&str) -> bool) -> Vec<String> {
        let mut first = Facts::new();
        let mut several = Vec::new();
        for (_, name, value) in self.entries(question) {
            match first.get(name) {
                None => first.set(name, value),
                Some(known) if known == value => {}
                Some(_) if several.iter().any(|other| other == name) => {}
                Some(_) if is_asked(name) => several.push(name.to_owned()),
                Some(_) => {}
            }
        }
        several
    }

    /// The sets of facts that rules decide.
    pub(crate) fn sets<'a>(&'a self, question: &RlsRequest<'a>) -> Result<FactSets<'a>, Undecided> {
        let mut whole = self.whole(question)?.into_iter();
        let first = whole.next().unwrap_or_default();
        let mut others: Vec<_> = whole.collect();
        self.add_parts(question, question.is_refund(), &mut others)?;
        Ok(FactSets { first, others })
    }

    /// The facts of each descriptor whose hits are refunded, in a request that also takes tokens.
    pub(crate) fn refunded<'a>(
        &'a self,
        question: &RlsRequest<'a>,
    ) -> Result<Vec<Facts<'a>>, Undecided> {
        let mut sets = Vec::new();
        if !question.is_refund() {
            self.add_parts(question, true, &mut sets)?;
        }
        Ok(sets)
    }

    /// The facts of all descriptors together: one set, unless a fact has several values.
    fn whole<'a>(
        &'a self,
        question: &RlsRequest<'a>,
    ) -> Result<smallvec::SmallVec<[Facts<'a>; 1]>, Undecided> {
        let mut base = Facts::new();
        if self.asks_domain {
            base.set(DOMAIN, question.domain);
        }
        if !self.keys.is_empty() {
            base.set(DESCRIPTOR, ALL_DESCRIPTORS);
        }
        for (_, name, value) in self.entries(question) {
            if base.get(name).is_none() {
                base.set(name, value);
            }
        }
        if let Some(cost) = question.cost() {
            base.set_cost(cost);
        }
        if self.multi_valued.is_empty() {
            return Ok(smallvec::smallvec![base]);
        }
        let each = 0..question.descriptors.len();
        Ok(self.combine_values(question, &base, each)?.into())
    }

    /// Adds the facts of each single descriptor, if a rule uses its keys: of those that refund, or of those that don't.
    fn add_parts<'a>(
        &'a self,
        question: &RlsRequest<'a>,
        is_refund: bool,
        sets: &mut Vec<Facts<'a>>,
    ) -> Result<(), Undecided> {
        for (number, keys) in self.keys.iter().enumerate() {
            let own = &question.descriptors[number];
            if own.refund != is_refund {
                continue;
            }
            let mut base = Facts::new()
                .with(DOMAIN, question.domain)
                .with(DESCRIPTOR, keys)
                .as_descriptor();
            for (_, name, value) in self.entries(question).filter(|entry| entry.0 == number) {
                if base.get(name).is_none() {
                    base.set(name, value);
                }
            }
            if let Some(cost) = own.cost.or(question.whole_cost()) {
                base.set_cost(cost);
            }
            let repeats = |name: &String| {
                let mut values = self
                    .entries(question)
                    .filter(|entry| entry.0 == number && entry.1 == name);
                let first = values.next();
                values.any(|other| first.is_some_and(|first| first.2 != other.2))
            };
            if self.multi_valued.iter().any(repeats) {
                // A key that is twice in one descriptor: rare enough to read the descriptor once more.
                sets.extend(self.combine_values(question, &base, number..number + 1)?);
            } else {
                sets.push(base);
            }
            if sets.len() > MOST_SETS + question.descriptors.len() {
                return Err(too_many());
            }
        }
        Ok(())
    }

    /// All combinations of one value for each fact, in which a descriptor's own values stay together.
    fn combine_values<'a>(
        &'a self,
        question: &RlsRequest<'a>,
        base: &Facts<'a>,
        descriptors: std::ops::Range<usize>,
    ) -> Result<Vec<Facts<'a>>, Undecided> {
        let own = |number: Option<usize>, name: &str| {
            let entries = self.entries(question);
            let entries = entries.filter(|entry| match number {
                Some(number) => entry.0 == number,
                None => descriptors.contains(&entry.0),
            });
            let mut values = Vec::new();
            for (_, _, value) in entries.filter(|entry| entry.1 == name) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            values
        };
        // A set, as descriptors with the same values give the same combination.
        let mut chosen = BTreeSet::new();
        for number in descriptors.clone() {
            let each = self.multi_valued.iter().map(|name| {
                let values = own(Some(number), name);
                let is_apart = values.is_empty();
                FactValues {
                    name,
                    values: if is_apart { own(None, name) } else { values },
                }
            });
            let each: Vec<_> = each.filter(|own| !own.values.is_empty()).collect();
            let ways = each.iter().try_fold(1_usize, |ways, own| {
                ways.checked_mul(own.values.len())
                    .filter(|ways| *ways <= MOST_SETS)
            });
            let ways = ways.ok_or_else(too_many)?;
            for way in 0..ways {
                chosen.insert(choose(&each, way));
            }
            if chosen.len() > MOST_SETS {
                return Err(too_many());
            }
        }
        let sets = chosen.into_iter().map(|values| {
            let mut set = base.clone();
            for (name, value) in values {
                set.set(name, value);
            }
            set
        });
        Ok(sets.collect())
    }
}

/// The values of the combination with this number: a mixed-radix number with one digit for each fact.
fn choose<'a>(each: &[FactValues<'a>], mut way: usize) -> Vec<(&'a str, &'a str)> {
    let mut chosen = Vec::with_capacity(each.len());
    for own in each {
        chosen.push((own.name, own.values[way % own.values.len()]));
        way /= own.values.len();
    }
    chosen
}

fn too_many() -> Undecided {
    Undecided::Invalid(format!(
        "facts have several values, with more than {MOST_SETS} ways to combine them: send one value of each"
    ))
}

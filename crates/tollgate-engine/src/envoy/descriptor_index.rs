//! Domains ready to be asked: no scan over siblings, no allocation.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use tollgate::Algorithm;

use super::DescriptorDomains;
use super::counter_keys::path_name;
use crate::document::Value;
use crate::facts::{Descriptor, Unit};
use crate::policy::{Charging, DescriptorLimit, DescriptorRule, Domain, Mode};

type Map<K, V> = HashMap<K, V, RandomState>;

/// Trees of descriptors in a form that finds a limit in two or three look-ups a level.
///
/// At each level the key leads to a table of exact values; then to its wildcards by the text before
/// their first `*`, of which the first in the file that fits is taken; then to the key alone.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex, LookupResult};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, rate_limit: {unit: second, requests_per_unit: 5}}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let entries = [("user", "42")];
/// let found = compiled.lookup("edge", &Descriptor::new(&entries));
/// assert_eq!(found.leaf().expect("a limit").to_string(), "edge/user");
/// let other = [("tenant", "acme")];
/// assert!(matches!(compiled.lookup("edge", &Descriptor::new(&other)), LookupResult::NoMatch));
/// ```
#[derive(Clone, Debug)]
pub struct DescriptorIndex {
    domains: Map<Box<str>, (Charging, Level)>,
    leaves: Box<[CompiledLimit]>,
}

/// A limit of the tree, and how it is reached.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, value: v*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let found = compiled.lookup("edge", &Descriptor::new(&[("user", "vera")]));
/// let leaf = found.leaf().expect("a limit");
/// assert_eq!((leaf.id, &*leaf.domain, leaf.to_string()), (0, "edge", "edge/user=v*".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledLimit {
    /// Its number: from 0, without gaps, in the order of domains and then of the file.
    pub id: u32,
    /// The domain.
    pub domain: Arc<str>,
    /// The descriptors that lead to it, from the outermost.
    pub steps: Box<[PathEntry]>,
    /// What it allows.
    pub limit: DescriptorLimit,
    /// Metrics by all values.
    pub detailed_metric: bool,
    /// What an answer tells about it.
    pub metadata: Option<Value>,
}

impl CompiledLimit {
    /// A name that no other has: [as it is shown](fmt::Display), with signs of its parts escaped.
    pub(crate) fn counter_name(&self) -> String {
        let steps = self.steps.iter();
        let steps = steps.map(|step| (&*step.key, step.value.as_deref()));
        path_name(&self.domain, steps)
    }

    /// Whether it is enforced, or only counts.
    pub(crate) const fn mode(&self) -> Mode {
        if self.limit.shadow {
            Mode::Shadow
        } else {
            Mode::Enforce
        }
    }

    /// Whether it counts each list of entries by itself, in windows of this unit.
    fn counts_in_unit(&self, unit: Unit) -> bool {
        self.limit.unit == Some(unit)
            && matches!(self.limit.algorithm, Algorithm::FixedWindow(_))
            && !self.steps.iter().any(|step| step.shared)
    }
}

/// A descriptor on the way to a limit.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, value: v*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let found = compiled.lookup("edge", &Descriptor::new(&[("user", "vera")]));
/// let step = &found.leaf().expect("a limit").steps[0];
/// assert_eq!((&*step.key, step.value.as_deref(), step.shared), ("user", Some("v*"), true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathEntry {
    /// The entry's key.
    pub key: Box<str>,
    /// The value or pattern; none for any value.
    pub value: Option<Box<str>>,
    /// All values of the pattern count together.
    pub shared: bool,
    /// Metrics by the value.
    pub value_to_metric: bool,
}

/// `domain/key=value/key`.
impl fmt::Display for CompiledLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.domain)?;
        for step in &self.steps {
            write!(f, "/{}", step.key)?;
            if let Some(value) = &step.value {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

/// What the policy says about one descriptor of a request.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex, LookupResult};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, value: v*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let found = compiled.lookup("edge", &Descriptor::new(&[("user", "vera")]));
/// assert!(matches!(found, LookupResult::Limited(_)));
/// assert_eq!(compiled.lookup("edge", &Descriptor::new(&[("user", "ann")])), LookupResult::NoMatch);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LookupResult<'p> {
    /// Nothing: it passes, and no limit is named.
    NoMatch,
    /// The proxy asks for a limit of its own: so many in this unit.
    Requested {
        /// How many.
        requests: u32,
        /// In how long.
        unit: Unit,
        /// The limit whose place it takes, if it counts by the same windows: then what one has counted is
        /// spent for the other too.
        counts_as: Option<&'p CompiledLimit>,
    },
    /// This limit.
    Limited(&'p CompiledLimit),
    /// This limit, but another of the same request replaces it.
    Replaced(&'p CompiledLimit),
}

impl<'p> LookupResult<'p> {
    /// The limit whose counter is charged, if that is a configured one's.
    pub(crate) const fn counts_as(&self) -> Option<&'p CompiledLimit> {
        match self {
            Self::Limited(leaf) | Self::Replaced(leaf) => Some(leaf),
            Self::Requested { counts_as, .. } => *counts_as,
            Self::NoMatch => None,
        }
    }

    /// The limit that was found, replaced or not.
    pub const fn leaf(&self) -> Option<&'p CompiledLimit> {
        match self {
            Self::Limited(leaf) | Self::Replaced(leaf) => Some(leaf),
            Self::NoMatch | Self::Requested { .. } => None,
        }
    }
}

impl DescriptorIndex {
    /// Compiles domains.
    pub fn new(domains: &DescriptorDomains) -> Self {
        let mut leaves = Vec::new();
        let domains = domains.iter().map(|(name, domain)| {
            let mut way = TreeCompiler {
                domain: Arc::from(name.as_str()),
                steps: Vec::new(),
                leaves: &mut leaves,
            };
            let level = way.compile_level(&domain.descriptors);
            (Box::from(name.as_str()), (domain.charging, level))
        });
        let domains = domains.collect();
        Self {
            domains,
            leaves: leaves.into(),
        }
    }

    /// All limits, by their number.
    pub fn leaves(&self) -> &[CompiledLimit] {
        &self.leaves
    }

    /// What a request of several descriptors of this domain is charged.
    pub fn charging(&self, domain: &str) -> Charging {
        let domain = self.domains.get(domain);
        domain.map(|(charging, _)| *charging).unwrap_or_default()
    }

    /// What is said about one descriptor, before [`replaces`](super::remove_replaced_limits).
    #[inline]
    pub fn lookup(&self, domain: &str, descriptor: &Descriptor<'_>) -> LookupResult<'_> {
        let found = match self.domains.get(domain) {
            Some((_, level)) => find_leaf(level, descriptor.entries),
            // Where there are no trees at all, rules decide, and what a proxy asks for stands beside them.
            None if self.domains.is_empty() => None,
            None => return LookupResult::NoMatch,
        };
        let leaf = found.and_then(|number| self.leaves.get(number));
        if let Some((requests, unit)) = descriptor.limit {
            return LookupResult::Requested {
                requests,
                unit,
                counts_as: leaf.filter(|leaf| leaf.counts_in_unit(unit)),
            };
        }
        leaf.map_or(LookupResult::NoMatch, LookupResult::Limited)
    }
}

/// Descriptors side by side, by key.
type Level = Map<Box<str>, KeyValues>;

/// Places of wildcards in the order of the file, by the text before their first `*`.
type WildcardsByPrefix = Map<Box<[u8]>, Vec<usize>>;

/// Those of one key.
#[derive(Clone, Debug, Default)]
struct KeyValues {
    /// By value; a wildcard is also found by its own text.
    exact: Map<Box<str>, TreeNode>,
    /// In the order of the file.
    wildcards: Vec<(Wildcard, TreeNode)>,
    /// Which wildcards begin with a text, by its length, from the shortest.
    prefixes: Vec<(usize, WildcardsByPrefix)>,
    any_value: Option<TreeNode>,
}

/// What is at a descriptor.
#[derive(Clone, Debug, Default)]
struct TreeNode {
    leaf: Option<usize>,
    below: Option<Arc<Level>>,
}

fn find_leaf(mut level: &Level, entries: &[(&str, &str)]) -> Option<usize> {
    let (last, before) = entries.split_last()?;
    for (key, value) in before {
        level = level.get(*key)?.select_branch(value)?.below.as_deref()?;
    }
    level.get(last.0)?.select_branch(last.1)?.leaf
}

impl KeyValues {
    fn select_branch(&self, value: &str) -> Option<&TreeNode> {
        self.exact
            .get(value)
            .or_else(|| self.first_matching_wildcard(value))
            .or(self.any_value.as_ref())
    }

    /// The first wildcard in the order of the file.
    fn first_matching_wildcard(&self, value: &str) -> Option<&TreeNode> {
        let mut first = self.wildcards.len();
        for (length, by_prefix) in &self.prefixes {
            let Some(prefix) = value.as_bytes().get(..*length) else {
                // They are in the order of their lengths.
                break;
            };
            let candidates = by_prefix.get(prefix).map_or(&[][..], Vec::as_slice);
            let fits = |at: &&usize| self.wildcards[**at].0.matches(value);
            let found = candidates.iter().take_while(|at| **at < first).find(fits);
            first = found.copied().unwrap_or(first);
        }
        self.wildcards.get(first).map(|(_, branch)| branch)
    }

    fn add(&mut self, value: Option<&str>, branch: TreeNode) {
        let Some(value) = value else {
            self.any_value = Some(branch);
            return;
        };
        if let Some(wildcard) = Wildcard::new(value) {
            let (at, length) = (self.wildcards.len(), wildcard.prefix.len());
            let place = self
                .prefixes
                .binary_search_by_key(&length, |(length, _)| *length);
            let place = place.unwrap_or_else(|place| {
                self.prefixes
                    .insert(place, (length, WildcardsByPrefix::default()));
                place
            });
            let prefix = wildcard.prefix.as_bytes();
            let of_prefix = self.prefixes[place].1.entry(prefix.into()).or_default();
            of_prefix.push(at);
            self.wildcards.push((wildcard, branch.clone()));
        }
        self.exact.insert(value.into(), branch);
    }
}

/// A pattern, cut at its `*`.
#[derive(Clone, Debug)]
pub(super) struct Wildcard {
    prefix: Box<str>,
    middle: Box<[Box<str>]>,
    suffix: Box<str>,
}

impl Wildcard {
    pub(super) fn new(pattern: &str) -> Option<Self> {
        let (prefix, rest) = pattern.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty());
        Some(Self {
            prefix: prefix.into(),
            middle: middle.map(Box::from).collect(),
            suffix: suffix.into(),
        })
    }

    /// Taking each part at its first place leaves the most for those after it.
    pub(super) fn matches(&self, value: &str) -> bool {
        let rest = value.strip_prefix(&*self.prefix);
        let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(&*self.suffix)) else {
            return false;
        };
        self.middle.iter().all(|part| {
            let found = rest.split_once(&**part);
            rest = found.map_or("", |(_, after)| after);
            found.is_some()
        })
    }
}

/// Where compiling is.
struct TreeCompiler<'l> {
    domain: Arc<str>,
    steps: Vec<PathEntry>,
    leaves: &'l mut Vec<CompiledLimit>,
}

impl TreeCompiler<'_> {
    fn compile_level(&mut self, tree: &[DescriptorRule]) -> Level {
        let mut level = Level::default();
        for rule in tree {
            self.steps.push(PathEntry {
                key: rule.key.as_str().into(),
                value: rule.value.as_deref().map(Box::from),
                shared: rule.share_threshold,
                value_to_metric: rule.value_to_metric,
            });
            let leaf = rule.limit.as_ref().map(|limit| self.leaf(rule, limit));
            let below = (!rule.descriptors.is_empty())
                .then(|| Arc::new(self.compile_level(&rule.descriptors)));
            self.steps.pop();
            let values = level.entry(rule.key.as_str().into()).or_default();
            values.add(rule.value.as_deref(), TreeNode { leaf, below });
        }
        level
    }

    fn leaf(&mut self, rule: &DescriptorRule, limit: &DescriptorLimit) -> usize {
        let number = self.leaves.len();
        self.leaves.push(CompiledLimit {
            // Files hold far fewer values.
            id: u32::try_from(number).unwrap_or(u32::MAX),
            domain: self.domain.clone(),
            steps: self.steps.clone().into(),
            limit: limit.clone(),
            detailed_metric: rule.detailed_metric,
            metadata: rule.metadata.clone(),
        });
        number
    }
}

/// A descriptor that is more specific than another, is taken in its place, and leads to no limit.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::envoy::HiddenLimit;
/// use tollgate_engine::facts::Descriptor;
/// use tollgate_engine::Policy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - key: path
///   rate_limit: {unit: second, requests_per_unit: 5}
/// - key: path
///   value: /login
///   descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]
/// ";
/// let domain = &Policy::from_text(file, Format::Yaml)?.policy.domains["edge"];
/// let hidden = HiddenLimit::of(domain, &Descriptor::new(&[("path", "/login")])).expect("no limit");
/// assert_eq!((hidden.by.as_str(), hidden.hidden.as_str()), ("path=/login", "path"));
/// assert!(HiddenLimit::of(domain, &Descriptor::new(&[("path", "/")])).is_none());
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HiddenLimit {
    /// The one that is taken, as `key=value`.
    pub by: String,
    /// The one that would lead to a limit, as `key=value` or `key`.
    pub hidden: String,
}

impl HiddenLimit {
    /// What hides a limit from this descriptor; none if it meets one, or there is none for it in any case.
    pub fn of(domain: &Domain, descriptor: &Descriptor<'_>) -> Option<Self> {
        let mut level = domain.descriptors.as_slice();
        let mut entries = descriptor.entries;
        while let Some(((key, value), rest)) = entries.split_first() {
            let candidates = matching_rules(level, key, value);
            let (chosen, others) = candidates.split_first()?;
            if !leads_to_limit(chosen, rest) {
                let other = others.iter().find(|other| leads_to_limit(other, rest))?;
                return Some(Self {
                    by: entry_text(chosen),
                    hidden: entry_text(other),
                });
            }
            level = &chosen.descriptors;
            entries = rest;
        }
        None
    }
}

/// Those that an entry fits, the one that is taken first.
fn matching_rules<'d>(
    level: &'d [DescriptorRule],
    key: &str,
    value: &str,
) -> Vec<&'d DescriptorRule> {
    let resolve_key = level.iter().filter(|rule| rule.key == key);
    let fit = resolve_key.filter_map(|rule| {
        let rank = match rule.value.as_deref() {
            Some(own) if own == value => 0,
            Some(own) => Wildcard::new(own)?.matches(value).then_some(1)?,
            None => 2,
        };
        Some((rank, rule))
    });
    let mut fit: Vec<_> = fit.collect();
    fit.sort_by_key(|(rank, _)| *rank);
    fit.into_iter().map(|(_, rule)| rule).collect()
}

/// Whether one of the ways on from here ends at a limit.
fn leads_to_limit(rule: &DescriptorRule, rest: &[(&str, &str)]) -> bool {
    match rest.split_first() {
        None => rule.limit.is_some(),
        Some(((key, value), rest)) => {
            let next = matching_rules(&rule.descriptors, key, value);
            next.iter().any(|next| leads_to_limit(next, rest))
        }
    }
}

fn entry_text(rule: &DescriptorRule) -> String {
    match &rule.value {
        Some(value) => format!("{}={value}", rule.key),
        None => rule.key.clone(),
    }
}

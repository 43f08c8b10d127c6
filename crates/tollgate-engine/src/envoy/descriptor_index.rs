//! Domains in a form for fast lookups: without a scan over siblings, without allocation.

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

/// Trees of descriptors in a form that finds a limit with two or three hash lookups a level.
///
/// On each level, an exact value has precedence. Next are the key's wildcards: the first in the file that matches.
/// They are found by the text before their first `*`. Last is the descriptor with the key alone.
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

/// A limit of a tree, and the path to it.
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
    /// The limit's index: from 0, without gaps, in the order of domains and then of the file.
    pub id: u32,
    /// The domain.
    pub domain: Arc<str>,
    /// The descriptors on the path to the limit, from the outermost.
    pub steps: Box<[PathEntry]>,
    /// The limit itself.
    pub limit: DescriptorLimit,
    /// Whether metrics are labelled by all values of the path.
    pub detailed_metric: bool,
    /// What a response reports about the limit.
    pub metadata: Option<Value>,
}

impl CompiledLimit {
    /// The unique name of the limit's counters: its [displayed path](fmt::Display) with the separators escaped inside
    /// its parts.
    pub(crate) fn counter_name(&self) -> String {
        let steps = self.steps.iter();
        let steps = steps.map(|step| (&*step.key, step.value.as_deref()));
        path_name(&self.domain, steps)
    }

    /// Whether the limit is enforced or in shadow mode.
    pub(crate) const fn mode(&self) -> Mode {
        if self.limit.shadow {
            Mode::Shadow
        } else {
            Mode::Enforce
        }
    }

    /// Whether the limit has a counter for each list of entries, with windows of this unit.
    fn counts_in_unit(&self, unit: Unit) -> bool {
        self.limit.unit == Some(unit)
            && matches!(self.limit.algorithm, Algorithm::FixedWindow(_))
            && !self.steps.iter().any(|step| step.shared)
    }
}

/// A descriptor on the path to a limit.
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
    /// The value or pattern. `None` matches any value.
    pub value: Option<Box<str>>,
    /// Whether all values of the pattern share one counter.
    pub shared: bool,
    /// Whether metrics are labelled by the value of this entry.
    pub value_to_metric: bool,
}

/// The path as `domain/key=value/key`.
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

/// The result of looking up one descriptor of a request.
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
    /// No limit: the request passes, and the response names no limit.
    NoMatch,
    /// The proxy requests a limit of its own: this many requests in this unit.
    Requested {
        /// The number of requests.
        requests: u32,
        /// The unit.
        unit: Unit,
        /// The configured limit that the requested limit stands for, if both count in the same windows. Both then
        /// share a counter, so requests counted by one are spent for the other too.
        counts_as: Option<&'p CompiledLimit>,
    },
    /// This limit applies.
    Limited(&'p CompiledLimit),
    /// This limit, but another limit of the same request replaces it.
    Replaced(&'p CompiledLimit),
}

impl<'p> LookupResult<'p> {
    /// The configured limit whose counter is charged, if any.
    pub(crate) const fn counts_as(&self) -> Option<&'p CompiledLimit> {
        match self {
            Self::Limited(leaf) | Self::Replaced(leaf) => Some(leaf),
            Self::Requested { counts_as, .. } => *counts_as,
            Self::NoMatch => None,
        }
    }

    /// The limit that was found, whether or not it is replaced.
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

    /// All limits, by their [`id`](CompiledLimit::id).
    pub fn leaves(&self) -> &[CompiledLimit] {
        &self.leaves
    }

    /// How requests of several descriptors of this domain are charged.
    pub fn charging(&self, domain: &str) -> Charging {
        let domain = self.domains.get(domain);
        domain.map(|(charging, _)| *charging).unwrap_or_default()
    }

    /// Looks up one descriptor, before [limits are replaced](super::remove_replaced_limits).
    #[inline]
    pub fn lookup(&self, domain: &str, descriptor: &Descriptor<'_>) -> LookupResult<'_> {
        let found = match self.domains.get(domain) {
            Some((_, level)) => find_leaf(level, descriptor.entries),
            // Without any tree, rules decide, and a limit that the proxy requests applies in addition to them.
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

/// The descriptors of a level, by key.
type Level = Map<Box<str>, KeyValues>;

/// Indices of wildcards in the order of the file, by the text before their first `*`.
type WildcardsByPrefix = Map<Box<[u8]>, Vec<usize>>;

/// The descriptors of one key.
#[derive(Clone, Debug, Default)]
struct KeyValues {
    /// By value. A wildcard is also here by its own text, as envoyproxy/ratelimit finds it.
    exact: Map<Box<str>, TreeNode>,
    /// Wildcards in the order of the file.
    wildcards: Vec<(Wildcard, TreeNode)>,
    /// Wildcards by the length of the text before their first `*`, from the shortest, and then by that text.
    prefixes: Vec<(usize, WildcardsByPrefix)>,
    any_value: Option<TreeNode>,
}

/// The limit at a descriptor and the level below it.
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

    /// The first wildcard in the order of the file that matches.
    fn first_matching_wildcard(&self, value: &str) -> Option<&TreeNode> {
        let mut first = self.wildcards.len();
        for (length, by_prefix) in &self.prefixes {
            let Some(prefix) = value.as_bytes().get(..*length) else {
                // The lengths ascend, so all further prefixes are longer than the value.
                break;
            };
            let candidates = by_prefix.get(prefix).map_or(&[][..], Vec::as_slice);
            let fits = |at: &&usize| self.wildcards[**at].0.matches(value);
            // A longer prefix may hold an earlier wildcard, so all lengths are tried; later wildcards are skipped.
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

/// A pattern, split at its `*`.
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

    /// Whether a value matches. Taking the first occurrence of each part leaves the most text for the parts after it,
    /// so no backtracking is needed.
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

/// The state of compiling a tree.
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
            // A file can't hold as many values as a `u32` counts.
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

/// A more specific descriptor that hides a limit: it takes precedence over another descriptor, but leads to no limit.
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
    /// The descriptor that takes precedence, as `key=value`.
    pub by: String,
    /// The descriptor that would lead to a limit, as `key=value` or `key`.
    pub hidden: String,
}

impl HiddenLimit {
    /// The descriptor that hides a limit from this descriptor. `None` if the descriptor has a limit, or none is
    /// hidden.
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

/// The rules that match an entry, in their order of precedence.
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

/// Whether any path from this rule ends at a limit.
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

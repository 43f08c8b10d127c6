//! Their trees as limits of our own form: first as rules, then as text with notes on what can't be said.

use std::collections::{BTreeMap, BTreeSet};

use super::compiled::Wildcard;
use super::{Compiled, Domains, Leaf, PathEntry};
use crate::checked::Rejected;
use crate::document::Format;
use crate::facts::{DESCRIPTOR, DOMAIN, IP, descriptor_name, fact_name};
use crate::native::{LONGEST_CONDITION, LONGEST_NAME, MOST_KEY_FACTS};
use crate::policy::{Charging, DescriptorRule, KeyPart, Match, Mode, Pattern, Policy, Rule};

mod names;
mod text;
mod unsaid;

pub use unsaid::{Converted, Loss, Unsaid};

/// What is said of a limit in shadow that replaces one that isn't.
const IN_SHADOW: &str =
    "replaces of a limit in force: in shadow, a rule takes only the place of others in shadow";

/// What is said of a limit that replaces one that replaces it.
const CIRCLE: &str = "replaces in a circle: there all of them give way";

/// Their domains as a file of our own form.
///
/// The facts are named like the keys. A request of descriptors is decided as by the original: a rule is for descriptors of
/// just its keys, in their order, which its condition on `descriptor` says. Requests of facts have none: there a limit applies
/// if all its keys are known, as if the proxy sent each list of keys that the file has.
///
/// # Errors
/// What our own reader says to the file that this would be: that it is too large, or has too many patterns.
///
/// ```
/// use tollgate_engine::{Policy, envoy};
///
/// let file = "
/// domain: edge
/// descriptors:
/// - key: path
///   value: /login
///   descriptors:
///   - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}
/// ";
/// let domains = envoy::decode(&[(0, file)]).expect("a configuration").domains;
/// let ours = envoy::convert(&Policy { domains, ..Policy::default() }).expect("a policy");
/// assert!(ours.ends_with(
///     "limits:
/// - name: \"edge/path=/login/ip\"
///   match: {domain: [{present: false}, \"edge\"], descriptor: [{present: false}, \"path/ip\"], path: \"/login\", ip: {present: true}}
///   key: [\"ip/128\"]
///   rate: 5/m
///   algorithm: fixed-window
/// "
/// ));
/// ```
pub fn convert(policy: &Policy) -> Result<String, Rejected> {
    let converted = to_rules(&policy.domains);
    let text = text::write(&converted);
    if !converted.rules.is_empty() {
        Policy::from_text(&text, Format::Yaml)?;
    }
    Ok(text)
}

/// Their domains as rules of our own form, with the same decisions but for what is unsaid, and but for
/// values that read like a pattern (`a*`), which theirs takes for the pattern itself.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// assert!(converted.rules.is_empty());
/// assert_eq!(converted.unsaid[0].limit, "edge/user");
/// ```
pub fn to_rules(domains: &Domains) -> Converted {
    let compiled = Compiled::new(domains);
    let names = names::of(compiled.leaves());
    let called = called(compiled.leaves());
    let mut ways = Vec::with_capacity(names.len());
    for domain in domains.values() {
        conditions(&domain.descriptors, &mut Vec::new(), &mut ways);
    }
    let mut paths = Vec::new();
    let each = domains.iter();
    let each = each.filter(|(_, domain)| domain.charging == Charging::Each);
    let mut converted = Converted {
        rules: Vec::new(),
        unsaid: each.map(|(name, _)| charged_each(name)).collect(),
    };
    for (leaf, mut matches) in compiled.leaves().iter().zip(ways) {
        let (name, limit) = (&names[index(leaf)], leaf.to_string());
        let mut unsaid = |rule: Option<&String>, what, loss| {
            converted.unsaid.push(Unsaid {
                rule: rule.cloned(),
                limit: limit.clone(),
                what,
                loss,
            });
        };
        matches.splice(0..0, place(leaf, domains.len()));
        if let Some(why) = why_not(leaf).or_else(|| too_long(leaf, &matches)) {
            unsaid(None, why, Loss::Limit);
            continue;
        }
        for (is_lost, what) in losses(leaf) {
            if is_lost {
                unsaid(Some(name), what, Loss::Told);
            }
        }
        let replaced = leaf.limit.replaces.iter().flat_map(|name| {
            let named = called.get(&(&*leaf.domain, name.as_str()));
            named.map_or(&[][..], Vec::as_slice)
        });
        // In their order, and each once.
        let mut replaced: BTreeSet<usize> = replaced.copied().collect();
        let named = replaced.len();
        let leaves = compiled.leaves();
        replaced.retain(|other| !leaf.limit.shadow || leaves[*other].limit.shadow);
        if replaced.len() < named {
            unsaid(Some(name), IN_SHADOW, Loss::Otherwise);
        }
        let replaces = replaced.iter().map(|other| names[*other].clone()).collect();
        converted.rules.push(rule(leaf, name, matches, replaces));
        paths.push(limit);
    }
    keep_named(&mut converted, &paths);
    converted
}

/// Leaves out of `replaces` what isn't converted, and what closes a circle: rules that replace one
/// another all give way, which our own form refuses.
fn keep_named(converted: &mut Converted, paths: &[String]) {
    let rules = converted.rules.iter().enumerate();
    let places: BTreeMap<String, usize> = rules.map(|(at, rule)| (rule.name.clone(), at)).collect();
    // What each rule replaces so far.
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); converted.rules.len()];
    for (at, rule) in converted.rules.iter_mut().enumerate() {
        let mut closes = false;
        rule.replaces.retain(|replaced| {
            let Some(&to) = places.get(replaced) else {
                return false;
            };
            if reaches(&kept, to, at) {
                closes = true;
                return false;
            }
            kept[at].push(to);
            true
        });
        if closes {
            converted.unsaid.push(Unsaid {
                rule: Some(rule.name.clone()),
                limit: paths[at].clone(),
                what: CIRCLE,
                loss: Loss::Otherwise,
            });
        }
    }
}

/// Whether one rule replaces another, by others between them if need be.
fn reaches(replaced_by: &[Vec<usize>], from: usize, to: usize) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::from([from]));
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        open.extend(replaced_by[at].iter().filter(|next| seen.insert(**next)));
    }
    false
}

/// A descriptor counts each value by itself. Of the fact `ip`, which counts by networks unless its bits are said, all of them.
fn counted_by(fact: String) -> KeyPart {
    match &*fact {
        IP => KeyPart::Network { fact, bits: 128 },
        _ => KeyPart::Fact(fact),
    }
}

fn rule(
    leaf: &Leaf,
    name: &str,
    conditions: Vec<(String, Pattern)>,
    replaces: Vec<String>,
) -> Rule {
    Rule {
        matches: Match {
            conditions,
            span: leaf.limit.span,
        },
        key: counted(leaf)
            .map(|step| counted_by(fact_name(&step.key).into_owned()))
            .collect(),
        algorithm: leaf.limit.algorithm,
        mode: if leaf.limit.shadow {
            Mode::Shadow
        } else {
            Mode::Enforce
        },
        on_store_failure: leaf.limit.on_store_failure,
        counting: leaf.limit.counting,
        replaces,
        span: leaf.limit.span,
        ..Rule::new(name, leaf.limit.limits.clone())
    }
}

/// What is said of a domain whose requests are charged in their way.
fn charged_each(domain: &str) -> Unsaid {
    Unsaid {
        rule: None,
        limit: domain.to_owned(),
        what: "charging: each: rules charge a request that one of them refuses to none",
        loss: Loss::Otherwise,
    }
}

/// The numbers of limits by domain and name.
fn called(leaves: &[Leaf]) -> BTreeMap<(&str, &str), Vec<usize>> {
    let mut called: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (number, leaf) in leaves.iter().enumerate() {
        if let Some(name) = &leaf.limit.name {
            let named = called.entry((&*leaf.domain, name.as_str())).or_default();
            named.push(number);
        }
    }
    called
}

type Conditions = Vec<(String, Pattern)>;

/// Where a limit is, of so many domains: its domain, and the keys of the descriptors that it is for. Requests of facts have no
/// descriptors, and needn't name the only domain.
fn place(leaf: &Leaf, domains: usize) -> [(String, Pattern); 2] {
    let or_absent = |text| Pattern::OneOf(vec![Pattern::Absent, Pattern::Exact(text)]);
    let domain = leaf.domain.to_string();
    let domain = match domains {
        1 => or_absent(domain),
        _ => Pattern::Exact(domain),
    };
    let keys = descriptor_name(leaf.steps.iter().map(|step| &*step.key));
    [
        (DOMAIN.to_owned(), domain),
        (DESCRIPTOR.to_owned(), or_absent(keys)),
    ]
}

/// What each limit below a level wants of the facts on its way, in the order of the limits: of each its
/// own value, and not one that a sibling takes first.
fn conditions(level: &[DescriptorRule], way: &mut Conditions, found: &mut Vec<Conditions>) {
    let siblings = Siblings::all(level);
    for (at, rule) in level.iter().enumerate() {
        let wanted = rule.value.as_deref().map_or(Pattern::Present, pattern);
        let taken = siblings.get(rule.key.as_str());
        let taken = taken.map_or_else(Vec::new, |siblings| siblings.before(at, rule));
        let taken = taken.into_iter().map(pattern).collect();
        way.push((fact_name(&rule.key).into_owned(), but_not(wanted, taken)));
        if rule.limit.is_some() {
            found.push(way.clone());
        }
        conditions(&rule.descriptors, way, found);
        way.pop();
    }
}

/// Descriptors of one key side by side.
#[derive(Default)]
struct Siblings<'a> {
    /// Values and their places, sorted.
    exact: Vec<(&'a str, usize)>,
    /// Patterns and their places, in the order of the file.
    wild: Vec<(&'a str, usize)>,
}

impl<'a> Siblings<'a> {
    /// Those of a level, by key.
    fn all(level: &'a [DescriptorRule]) -> BTreeMap<&'a str, Self> {
        let mut all: BTreeMap<_, Self> = BTreeMap::new();
        for (at, rule) in level.iter().enumerate() {
            let siblings = all.entry(rule.key.as_str()).or_default();
            match rule.value.as_deref() {
                Some(value) if value.contains('*') => siblings.wild.push((value, at)),
                Some(value) => siblings.exact.push((value, at)),
                None => {}
            }
        }
        for siblings in all.values_mut() {
            siblings.exact.sort_unstable();
        }
        all
    }

    /// The values and patterns that are asked before a descriptor and may take what fits it, in the
    /// order of the file.
    fn before(&self, at: usize, rule: &DescriptorRule) -> Vec<&'a str> {
        let mut before: Vec<(&str, usize)> = match rule.value.as_deref() {
            None => [&self.exact[..], &self.wild].concat(),
            Some(own) => match Wildcard::new(own) {
                // Just a value comes first of all.
                None => Vec::new(),
                Some(wildcard) => {
                    let prefix = ends(own).map_or("", |(prefix, _)| prefix);
                    let from = self.exact.partition_point(|(value, _)| *value < prefix);
                    let alike = self.exact[from..].iter();
                    let alike = alike.take_while(|(value, _)| value.starts_with(prefix));
                    let earlier = self.wild.iter().take_while(|(_, place)| *place < at);
                    alike
                        .filter(|(value, _)| wildcard.fits(value))
                        .chain(earlier.filter(|(value, _)| may_overlap(own, value)))
                        .copied()
                        .collect()
                }
            },
        };
        before.sort_unstable_by_key(|(_, place)| *place);
        before.into_iter().map(|(value, _)| value).collect()
    }
}

/// Whether a value may fit both patterns: not if they begin or end differently.
fn may_overlap(one: &str, other: &str) -> bool {
    let (Some(one), Some(other)) = (ends(one), ends(other)) else {
        return true;
    };
    (one.0.starts_with(other.0) || other.0.starts_with(one.0))
        && (one.1.ends_with(other.1) || other.1.ends_with(one.1))
}

/// The texts before the first `*` and after the last.
fn ends(pattern: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = pattern.split_once('*')?;
    Some((
        prefix,
        rest.rsplit_once('*').map_or(rest, |(_, suffix)| suffix),
    ))
}

/// This and none of those, as one condition: not its contrary, nor one of those.
fn but_not(wanted: Pattern, mut taken: Vec<Pattern>) -> Pattern {
    if taken.is_empty() {
        return wanted;
    }
    let contrary = match wanted {
        Pattern::Present => Pattern::Absent,
        wanted => Pattern::Not(Box::new(wanted)),
    };
    taken.insert(0, contrary);
    Pattern::Not(Box::new(Pattern::OneOf(taken)))
}

fn pattern(value: &str) -> Pattern {
    let Some((before, after)) = value.split_once('*') else {
        return Pattern::Exact(value.to_owned());
    };
    if after.chars().all(|c| c == '*') {
        return if before.is_empty() {
            Pattern::Present
        } else {
            Pattern::Prefix(before.to_owned())
        };
    }
    let parts: Vec<_> = value.split('*').map(escaped).collect();
    Pattern::Regex(format!("(?s){}", parts.join(".*")))
}

/// Text as a regular expression for just itself.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Why a limit can't be said at all.
fn why_not(leaf: &Leaf) -> Option<&'static str> {
    let mut keys = BTreeSet::new();
    let facts = leaf.steps.iter().map(|step| fact_name(&step.key));
    if !facts.into_iter().all(|fact| keys.insert(fact)) {
        return Some("a key that is given twice on the way: a fact has one value");
    }
    let fits = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
    if !keys.iter().all(|key| key.chars().all(fits)) {
        return Some("a key with other signs than letters, digits, _ - . and :");
    }
    if keys.iter().any(|key| key == DOMAIN) {
        return Some("a key called domain, which is the fact that holds the domain");
    }
    if keys.iter().any(|key| key == DESCRIPTOR) {
        return Some("a key called descriptor, which is the fact that holds a descriptor's keys");
    }
    if leaf.limit.quota_mode {
        return Some("quota_mode: a limit that refuses only together with all others of its kind");
    }
    None
}

/// What makes a limit too long to be said.
fn too_long(leaf: &Leaf, matches: &Conditions) -> Option<&'static str> {
    let long = |key: &str| key.chars().count() > LONGEST_NAME;
    if leaf.steps.iter().any(|step| long(&step.key)) {
        return Some("a key of more than 200 characters");
    }
    if matches
        .iter()
        .any(|(_, pattern)| longest(pattern) > LONGEST_CONDITION)
    {
        return Some(
            "a value of more than 4096 bytes, of its own or of one that is asked before it",
        );
    }
    if counted(leaf).count() > MOST_KEY_FACTS {
        return Some("more than 16 keys that tell one counter from another");
    }
    None
}

/// The bytes of the longest text in a condition.
fn longest(pattern: &Pattern) -> usize {
    match pattern {
        Pattern::Exact(text) | Pattern::Glob(text) | Pattern::Prefix(text) => text.len(),
        Pattern::Regex(text) | Pattern::Cidr(text) => text.len(),
        Pattern::OneOf(patterns) => patterns.iter().map(longest).max().unwrap_or(0),
        Pattern::Not(pattern) => longest(pattern),
        Pattern::Present | Pattern::Absent => 0,
    }
}

/// The steps whose values tell one counter from another.
fn counted(leaf: &Leaf) -> impl Iterator<Item = &PathEntry> {
    leaf.steps.iter().filter(|step| {
        let value = step.value.as_ref();
        !step.shared && value.is_none_or(|value| value.contains('*'))
    })
}

/// What is lost of a limit that can be said: nothing that decides.
fn losses(leaf: &Leaf) -> [(bool, &'static str); 3] {
    let by_value = leaf.steps.iter().any(|step| step.value_to_metric);
    [
        (leaf.detailed_metric, "detailed_metric"),
        (by_value, "value_to_metric"),
        (leaf.metadata.is_some(), "metadata"),
    ]
}

fn index(leaf: &Leaf) -> usize {
    usize::try_from(leaf.id).unwrap_or(usize::MAX)
}

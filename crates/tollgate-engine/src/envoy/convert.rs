//! Converts envoyproxy/ratelimit's trees of descriptors to the native form: first to rules, then to text with notes
//! on what was lost.

use std::collections::{BTreeMap, BTreeSet};

use super::descriptor_index::Wildcard;
use super::{CompiledLimit, DescriptorDomains, DescriptorIndex, PathEntry};
use crate::document::Format;
use crate::escape::is_hidden;
use crate::facts::{DESCRIPTOR, DOMAIN, IP, descriptor_name, fact_name};
use crate::load_result::LoadError;
use crate::native::yaml_text::{self, quoted};
use crate::native::{MAX_CONDITION_BYTES, MAX_KEY_FACTS, MAX_NAME_LENGTH};
use crate::policy::{
    Charging, Counting, DescriptorRule, KeyPart, MatchConditions, Mode, Pattern, Policy, Rule,
};

/// The loss of a limit in shadow mode that replaces an enforced limit.
const SHADOW_REPLACES_ENFORCED: &str =
    "replaces of a limit in force: in shadow, a rule takes only the place of others in shadow";

/// The loss of a limit that replaces a limit by which it is replaced.
const REPLACES_CYCLE: &str = "replaces in a circle: there all of them give way";

/// Writes the domains of a policy as a file of the native form.
///
/// The facts have the names of the descriptors' keys. A request of descriptors gets the same decision as from the
/// original: a rule applies to descriptors with exactly its keys, in their order, by a condition on the fact
/// `descriptor`. A request of facts has no `descriptor`. A rule applies to it if the request has all of the rule's
/// keys, as if the proxy sent each list of keys in the file.
///
/// # Errors
/// The converted file is invalid in the native form, such as when it is too large or has too many patterns.
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
/// let ours = envoy::convert_to_yaml(&Policy { domains, ..Policy::default() }).expect("a policy");
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
pub fn convert_to_yaml(policy: &Policy) -> Result<String, LoadError> {
    let converted = convert_to_rules(&policy.domains);
    let text = write_policy(&converted);
    if !converted.rules.is_empty() {
        Policy::from_text(&text, Format::Yaml)?;
    }
    Ok(text)
}

/// Converts domains to rules of the native form. The decisions are the same, except for the
/// [losses](ConvertedRules::losses) and for values that read like a pattern (`a*`): envoyproxy/ratelimit takes such a
/// value for the pattern itself.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: user, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::convert_to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// assert!(converted.rules.is_empty());
/// assert_eq!(converted.losses[0].limit, "edge/user");
/// ```
pub fn convert_to_rules(domains: &DescriptorDomains) -> ConvertedRules {
    let compiled = DescriptorIndex::new(domains);
    let names = unique_names(compiled.leaves());
    let called = limits_by_name(compiled.leaves());
    let mut ways = Vec::with_capacity(names.len());
    for domain in domains.values() {
        collect_conditions(&domain.descriptors, &mut Vec::new(), &mut ways);
    }
    let mut paths = Vec::new();
    let each = domains.iter();
    let each = each.filter(|(_, domain)| domain.charging == Charging::Each);
    let each =
        each.map(|(name, _)| ConversionLoss::new(None, name, CHARGES_EACH, LossKind::Decision));
    let mut converted = ConvertedRules {
        rules: Vec::new(),
        losses: each.collect(),
    };
    for (leaf, mut matches) in compiled.leaves().iter().zip(ways) {
        let (name, limit) = (&names[leaf_index(leaf)], leaf.to_string());
        let mut unsaid = |rule: Option<&String>, what, loss| {
            converted
                .losses
                .push(ConversionLoss::new(rule, &limit, what, loss));
        };
        matches.splice(0..0, scope_conditions(leaf, domains.len()));
        if let Some(why) = unconvertible_reason(leaf, &matches) {
            unsaid(None, why, LossKind::Limit);
            continue;
        }
        for (is_lost, what) in reporting_losses(leaf) {
            if is_lost {
                unsaid(Some(name), what, LossKind::Reporting);
            }
        }
        let replaced = leaf.limit.replaces.iter().flat_map(|name| {
            let named = called.get(&(&*leaf.domain, name.as_str()));
            named.map_or(&[][..], Vec::as_slice)
        });
        // A set has the order of the limits, and each limit once.
        let mut replaced: BTreeSet<usize> = replaced.copied().collect();
        let named = replaced.len();
        let leaves = compiled.leaves();
        replaced.retain(|other| !leaf.limit.shadow || leaves[*other].limit.shadow);
        if replaced.len() < named {
            unsaid(Some(name), SHADOW_REPLACES_ENFORCED, LossKind::Decision);
        }
        let replaces = replaced.iter().map(|other| names[*other].clone()).collect();
        converted.rules.push(rule(leaf, name, matches, replaces));
        paths.push(limit);
    }
    remove_dangling_replaces(&mut converted, &paths);
    converted
}

/// Removes references from `replaces` to limits that were not converted, and references that close a cycle. Rules in
/// a cycle would all be replaced, and the native form rejects them.
fn remove_dangling_replaces(converted: &mut ConvertedRules, paths: &[String]) {
    let rules = converted.rules.iter().enumerate();
    let places: BTreeMap<String, usize> = rules.map(|(at, rule)| (rule.name.clone(), at)).collect();
    // The rules that each rule replaces so far.
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); converted.rules.len()];
    for (at, rule) in converted.rules.iter_mut().enumerate() {
        let mut closes = false;
        rule.replaces.retain(|replaced| {
            let Some(&to) = places.get(replaced) else {
                return false;
            };
            // The reference would close a cycle if the replaced rule already leads back here.
            if is_reachable(&kept, to, at) {
                closes = true;
                return false;
            }
            kept[at].push(to);
            true
        });
        if closes {
            let (name, limit) = (Some(&rule.name), &paths[at]);
            let unsaid = ConversionLoss::new(name, limit, REPLACES_CYCLE, LossKind::Decision);
            converted.losses.push(unsaid);
        }
    }
}

/// Whether one rule replaces another, directly or through other rules.
fn is_reachable(overridden_by: &[Vec<usize>], from: usize, to: usize) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::from([from]));
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        open.extend(overridden_by[at].iter().filter(|next| seen.insert(**next)));
    }
    false
}

/// The key part that counts each value by itself, as a descriptor does. The fact `ip` counts by network by default,
/// so its key part has all 128 bits.
fn key_part_of(fact: String) -> KeyPart {
    match &*fact {
        IP => KeyPart::Network { fact, bits: 128 },
        _ => KeyPart::Fact(fact),
    }
}

fn rule(
    leaf: &CompiledLimit,
    name: &str,
    conditions: Vec<(String, Pattern)>,
    replaces: Vec<String>,
) -> Rule {
    Rule {
        matches: MatchConditions {
            conditions,
            span: leaf.limit.span,
        },
        key: counting_entries(leaf)
            .map(|step| key_part_of(fact_name(&step.key).into_owned()))
            .collect(),
        algorithm: leaf.limit.algorithm,
        mode: leaf.mode(),
        on_store_failure: leaf.limit.on_store_failure,
        counting: leaf.limit.counting,
        replaces,
        span: leaf.limit.span,
        ..Rule::new(name, leaf.limit.limits.clone())
    }
}

/// The loss of a domain with `charging: each`.
const CHARGES_EACH: &str =
    "charging: each: rules charge a request that one of them refuses to none";

impl ConversionLoss {
    fn new(rule: Option<&String>, limit: &str, what: &'static str, loss: LossKind) -> Self {
        Self {
            rule: rule.cloned(),
            limit: limit.to_owned(),
            what,
            loss,
        }
    }
}

/// The ids of limits by domain and name.
fn limits_by_name(leaves: &[CompiledLimit]) -> BTreeMap<(&str, &str), Vec<usize>> {
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

/// The conditions on the domain and on the descriptor's keys. A request of facts has no descriptors. With a single
/// domain, a request may omit the domain.
fn scope_conditions(leaf: &CompiledLimit, domains: usize) -> [(String, Pattern); 2] {
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

/// Collects the conditions of each limit below a level, in the order of the limits. Each condition accepts the
/// descriptor's own value, except values that a sibling takes first.
fn collect_conditions(level: &[DescriptorRule], way: &mut Conditions, found: &mut Vec<Conditions>) {
    let siblings = Siblings::all(level);
    for (at, rule) in level.iter().enumerate() {
        let wanted = rule
            .value
            .as_deref()
            .map_or(Pattern::Present, value_pattern);
        let taken = siblings.get(rule.key.as_str());
        let taken = taken.map_or_else(Vec::new, |siblings| siblings.earlier_matches(at, rule));
        let taken = taken.into_iter().map(value_pattern).collect();
        way.push((fact_name(&rule.key).into_owned(), excluding(wanted, taken)));
        if rule.limit.is_some() {
            found.push(way.clone());
        }
        collect_conditions(&rule.descriptors, way, found);
        way.pop();
    }
}

/// Descriptors with the same key on the same level.
#[derive(Default)]
struct Siblings<'a> {
    /// Exact values and their indices, sorted.
    exact: Vec<(&'a str, usize)>,
    /// Patterns and their indices, in the order of the file.
    wild: Vec<(&'a str, usize)>,
}

impl<'a> Siblings<'a> {
    /// The descriptors of a level, by key.
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

    /// The values and patterns that take precedence over a descriptor and may match the same values, in the order of
    /// the file.
    fn earlier_matches(&self, at: usize, rule: &DescriptorRule) -> Vec<&'a str> {
        let mut before: Vec<(&str, usize)> = match rule.value.as_deref() {
            None => [&self.exact[..], &self.wild].concat(),
            Some(own) => match Wildcard::new(own) {
                // An exact value has precedence over all patterns.
                None => Vec::new(),
                Some(wildcard) => {
                    let prefix = prefix_and_suffix(own).map_or("", |(prefix, _)| prefix);
                    let from = self.exact.partition_point(|(value, _)| *value < prefix);
                    let alike = self.exact[from..].iter();
                    let alike = alike.take_while(|(value, _)| value.starts_with(prefix));
                    let earlier = self.wild.iter().take_while(|(_, place)| *place < at);
                    alike
                        .filter(|(value, _)| wildcard.matches(value))
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

/// Whether a value may match both patterns. It can't if the patterns begin or end differently.
fn may_overlap(one: &str, other: &str) -> bool {
    let (Some(one), Some(other)) = (prefix_and_suffix(one), prefix_and_suffix(other)) else {
        return true;
    };
    (one.0.starts_with(other.0) || other.0.starts_with(one.0))
        && (one.1.ends_with(other.1) || other.1.ends_with(one.1))
}

/// The texts before the first `*` and after the last `*`.
fn prefix_and_suffix(pattern: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = pattern.split_once('*')?;
    Some((
        prefix,
        rest.rsplit_once('*').map_or(rest, |(_, suffix)| suffix),
    ))
}

/// One condition for "`wanted`, and none of `taken`". By De Morgan, it is "not (not `wanted`, or one of `taken`)",
/// because a condition is one pattern.
fn excluding(wanted: Pattern, mut taken: Vec<Pattern>) -> Pattern {
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

fn value_pattern(value: &str) -> Pattern {
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
    let parts: Vec<_> = value.split('*').map(regex_syntax::escape).collect();
    Pattern::Regex(format!("(?s){}", parts.join(".*")))
}

/// The first reason why a limit can't be converted, if any.
fn unconvertible_reason(leaf: &CompiledLimit, matches: &Conditions) -> Option<&'static str> {
    let mut keys = BTreeSet::new();
    let steps = || leaf.steps.iter().map(|step| &*step.key);
    let is_twice = !steps().all(|key| keys.insert(fact_name(key)));
    let fits = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
    let is_odd = |key: &str| !key.chars().all(fits);
    let is_long = |key: &str| key.chars().count() > MAX_NAME_LENGTH;
    let is_long_value = |(_, own): &(_, _)| longest_text(own) > MAX_CONDITION_BYTES;
    let quota_mode = "quota_mode: a limit that refuses only together with all others of its kind";
    let long_value =
        "a value of more than 4096 bytes, of its own or of one that is asked before it";
    let reasons = [
        (
            is_twice,
            "a key that is given twice on the way: a fact has one value",
        ),
        (keys.iter().any(|key| is_odd(key)), INVALID_KEY),
        (keys.contains(DOMAIN), DOMAIN_KEY),
        (keys.contains(DESCRIPTOR), DESCRIPTOR_KEY),
        (leaf.limit.quota_mode, quota_mode),
        (steps().any(is_long), "a key of more than 200 characters"),
        (matches.iter().any(is_long_value), long_value),
        (
            counting_entries(leaf).count() > MAX_KEY_FACTS,
            TOO_MANY_KEYS,
        ),
    ];
    let mut reasons = reasons.into_iter();
    reasons.find_map(|(holds, why)| holds.then_some(why))
}

const INVALID_KEY: &str = "a key with other signs than letters, digits, _ - . and :";
const DOMAIN_KEY: &str = "a key called domain, which is the fact that holds the domain";
const DESCRIPTOR_KEY: &str =
    "a key called descriptor, which is the fact that holds a descriptor's keys";
const TOO_MANY_KEYS: &str = "more than 16 keys that tell one counter from another";

/// The length in bytes of the longest text in a condition.
fn longest_text(pattern: &Pattern) -> usize {
    let each = pattern.alternatives().into_iter();
    let lengths = each.map(|one| match one {
        Pattern::Not(inner) => longest_text(inner),
        one => one.text().map_or(0, str::len),
    });
    lengths.max().unwrap_or(0)
}

/// The path entries whose values distinguish counters.
fn counting_entries(leaf: &CompiledLimit) -> impl Iterator<Item = &PathEntry> {
    leaf.steps.iter().filter(|step| {
        let value = step.value.as_ref();
        !step.shared && value.is_none_or(|value| value.contains('*'))
    })
}

/// What the conversion of a limit loses besides decisions: settings of its metrics and its metadata.
fn reporting_losses(leaf: &CompiledLimit) -> [(bool, &'static str); 3] {
    let by_value = leaf.steps.iter().any(|step| step.value_to_metric);
    [
        (leaf.detailed_metric, "detailed_metric"),
        (by_value, "value_to_metric"),
        (leaf.metadata.is_some(), "metadata"),
    ]
}

fn leaf_index(leaf: &CompiledLimit) -> usize {
    usize::try_from(leaf.id).unwrap_or(usize::MAX)
}

/// Rules of the native form, and what the conversion lost.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::convert_to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// assert_eq!((converted.rules.len(), converted.losses.len()), (1, 1));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ConvertedRules {
    /// The rules, in the order of the domains and then of the file.
    pub rules: Vec<Rule>,
    /// The losses, in the same order.
    pub losses: Vec<ConversionLoss>,
}

/// The effect of a loss.
///
/// ```
/// use tollgate_engine::envoy::{self, LossKind};
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::convert_to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let losses: Vec<_> = converted.losses.iter().map(|unsaid| unsaid.loss).collect();
/// assert_eq!(losses, [LossKind::Reporting, LossKind::Limit]);
/// assert!(LossKind::Limit.affects_decisions() && !LossKind::Reporting.affects_decisions());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// The limit has no rule: it no longer limits requests.
    Limit,
    /// Some requests get another decision.
    Decision,
    /// Only metrics or responses have less information.
    Reporting,
}

impl LossKind {
    /// Whether a request may get another decision than before.
    pub const fn affects_decisions(self) -> bool {
        !matches!(self, Self::Reporting)
    }
}

/// A setting that the native form can't express.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::convert_to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let unsaid = &converted.losses[0];
/// assert_eq!((unsaid.rule.as_deref(), unsaid.what), (Some("edge/a"), "detailed_metric"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionLoss {
    /// The rule that was converted from the limit, if any.
    pub rule: Option<String>,
    /// The limit as `domain/key=value/key`, or the domain.
    pub limit: String,
    /// The setting that is lost.
    pub what: &'static str,
    /// The effect of the loss.
    pub loss: LossKind,
}

/// The length that a name reserves for a suffix that makes it unique.
const SUFFIX_LENGTH: usize = 10;

/// A text as a valid name of the native form: not too long, with `_` for invisible characters.
fn sanitize_name(text: &str) -> String {
    let seen = text
        .chars()
        .map(|sign| if is_hidden(sign) { '_' } else { sign });
    let short: String = seen.take(MAX_NAME_LENGTH - SUFFIX_LENGTH).collect();
    match short.trim() {
        "" => "_".to_owned(),
        name => name.to_owned(),
    }
}

/// A unique name for each limit: its own name if no other limit has it, otherwise its path.
fn unique_names(leaves: &[CompiledLimit]) -> Vec<String> {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for name in leaves.iter().filter_map(|leaf| leaf.limit.name.as_deref()) {
        // A count of 2 keeps a name that has to be changed from being used as it is.
        let count = if sanitize_name(name) == name { 1 } else { 2 };
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
        let path = sanitize_name(&leaf.to_string());
        let mut name = path.clone();
        // The next free number of each path is kept, so that many equal paths take linear time.
        let number = next.entry(path.clone()).or_insert(2);
        while !used.insert(name.clone()) {
            name = format!("{path}-{number}");
            *number += 1;
        }
        names.push(name);
    }
    names
}

const FILE_HEADER: &str = "\
# Converted from the form of envoyproxy/ratelimit. The facts are named like its keys. A rule is for
# descriptors of just its keys; where a request comes as facts, for all that have its keys.
";

fn write_policy(converted: &ConvertedRules) -> String {
    let mut out = String::from(FILE_HEADER);
    let unsaid = converted.losses.iter();
    for ConversionLoss { limit, what, .. } in unsaid.filter(|unsaid| unsaid.rule.is_none()) {
        let text = format!("# Not converted, {}: {what}", quoted(limit));
        push_line(&mut out, &text);
    }
    if !converted.rules.is_empty() {
        push_line(&mut out, "limits:");
    }
    let mut lost: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for unsaid in &converted.losses {
        if let Some(rule) = &unsaid.rule {
            lost.entry(rule).or_default().push(unsaid.what);
        }
    }
    for rule in &converted.rules {
        write_rule(&mut out, rule);
        for what in lost.get(rule.name.as_str()).into_iter().flatten() {
            push_line(&mut out, &format!("  # lost: {what}"));
        }
    }
    out
}

fn write_rule(out: &mut String, rule: &Rule) {
    push_line(out, &format!("- name: {}", quoted(&rule.name)));
    let mut field = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            push_line(out, &format!("  {name}: {value}"));
        }
    };
    let list = |items: Vec<String>| match items.as_slice() {
        [] => None,
        items => Some(format!("[{}]", items.join(", "))),
    };
    let limits = &rule.limits;
    let conditions = yaml_text::conditions_text(&rule.matches);
    field("match", Some(format!("{{{conditions}}}")));
    field(
        "key",
        list(rule.key.iter().map(yaml_text::key_part_text).collect()),
    );
    let rates: Vec<_> = limits.rates.iter().map(ToString::to_string).collect();
    let algorithm = yaml_text::algorithm_word(rule.algorithm).filter(|_| !rates.is_empty());
    match rates.as_slice() {
        [rate] => field("rate", Some(rate.clone())),
        _ => field("rate", list(rates)),
    }
    field("quota", limits.quota.as_ref().map(ToString::to_string));
    field("concurrency", limits.concurrency.map(|own| own.to_string()));
    field("unlimited", limits.unlimited.then(|| "true".to_owned()));
    field("algorithm", algorithm.map(str::to_owned));
    // An unlimited rule counts nothing.
    let is_said = rule.counting != Counting::default() && !limits.unlimited;
    field("counting", is_said.then(|| rule.counting.name().to_owned()));
    // A limit that queries no store has no failure mode.
    let asks = rule.counting != Counting::Local && !limits.unlimited;
    let failure = rule.on_store_failure.policy_text(limits);
    field("on_store_failure", failure.filter(|_| asks));
    let is_shadow = rule.mode == Mode::Shadow;
    field("mode", is_shadow.then(|| "shadow".to_owned()));
    field(
        "replaces",
        list(rule.replaces.iter().map(|name| quoted(name)).collect()),
    );
}

fn push_line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

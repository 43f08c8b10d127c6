//! The native form of a policy: limits by facts, tiers, and requests that are exempt or blocked.
//!
//! All names of fields and values are in `native/field_names.rs`. The JSON Schema, a separate file, documents each.

use std::collections::{BTreeMap, HashMap};

use crate::document::{Node, Span, Value};
use crate::facts::{COMMON_FACTS, is_known_fact};
use crate::matcher::regex::RegexCache;
use crate::policy::{FailureModes, Limits, Policy};
use crate::sources::Sources;
use crate::suggestions;

pub mod codes;
pub(crate) mod field_names;
mod limits;
mod pattern;
mod reader;
mod references;
pub(crate) mod rule;
pub(crate) mod yaml_text;

pub(crate) use pattern::{MAX_CONDITION_BYTES, canonical_network};
use reader::{Fields, PolicyReader, RULES_EXPECTED, unchanged};
pub(crate) use reader::{MAX_NAME_LENGTH, Problems};
pub(crate) use rule::MAX_KEY_FACTS;

/// A policy with the positions of its parts, for lints.
#[derive(Debug, Default)]
pub(crate) struct DecodedPolicy {
    pub(crate) policy: Policy,
    pub(crate) places: PolicySpans,
}

/// The positions of a policy's parts: rules in the order of the policy, tiers by name.
#[derive(Debug, Default)]
pub(crate) struct PolicySpans {
    pub(crate) rules: Vec<RuleSpans>,
    pub(crate) tiers: BTreeMap<String, RuleSpans>,
    pub(crate) tenants: BTreeMap<String, Span>,
    pub(crate) default_tier: Span,
    pub(crate) tier_fact: Span,
    /// Each mention of a fact.
    pub(crate) fact_mentions: Vec<FactMention>,
    /// The text of each condition, as it is written.
    pub(crate) condition_texts: Vec<ConditionText>,
}

/// The position of a mention of a fact.
#[derive(Clone, Debug)]
pub(crate) struct FactMention {
    pub(crate) fact: String,
    pub(crate) span: Span,
    /// Whether it is in a condition.
    pub(crate) is_condition: bool,
}

/// The text of a condition on a fact.
#[derive(Clone, Debug)]
pub(crate) struct ConditionText {
    pub(crate) fact: String,
    pub(crate) text: String,
    pub(crate) form: ConditionForm,
    pub(crate) span: Span,
}

/// How a condition states the meaning of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionForm {
    /// Not stated: a glob if it has a `*`, otherwise an exact text.
    Plain,
    Exact,
    Glob,
    Prefix,
    Regex,
    Network,
}

/// The positions of the parts of a rule or a tier.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleSpans {
    pub(crate) name: Span,
    pub(crate) key: Span,
    pub(crate) on_store_failure: Span,
    pub(crate) concurrency: Span,
    pub(crate) shed: Span,
    shared: Span,
    pub(crate) replaces: Vec<Span>,
    pub(crate) rates: Vec<Span>,
    pub(crate) quota: Span,
}

impl RuleSpans {
    /// For a rule of which only the overall position is known.
    pub(crate) fn all_at(span: Span, limits: &Limits) -> Self {
        Self {
            name: span,
            key: span,
            on_store_failure: span,
            concurrency: span,
            shed: span,
            rates: vec![span; limits.rates.len()],
            quota: span,
            ..Self::default()
        }
    }
}

/// Decodes the trees of all files into one policy, and reports every error.
pub(crate) fn decode(trees: &[Node], sources: &Sources, problems: &mut Problems) -> DecodedPolicy {
    let mut reader = PolicyReader {
        sources,
        problems,
        regexes: RegexCache::default(),
        policy: Policy::default(),
        places: PolicySpans::default(),
        default_failure_modes: FailureModes::default(),
        single_fields: HashMap::new(),
        rule_names: HashMap::new(),
        lists_facts: false,
    };
    let documents = trees.iter().filter(|tree| tree.value != Value::Null);
    let files = documents
        .filter_map(|tree| reader.read_fields(tree, "a policy", field_names::POLICY_FIELDS));
    let files: Vec<_> = files.collect();
    // All settings are read first, because they apply to the rules of every file.
    files.iter().for_each(|file| reader.read_settings(file));
    files.iter().for_each(|file| reader.read_lists(file));
    reader.finish_policy(trees)
}

impl PolicyReader<'_> {
    /// Reads rules, tiers and lists of requests.
    fn read_lists(&mut self, fields: &Fields<'_>) {
        if let Some(node) = fields.get("limits") {
            for item in self.read_list(node, RULES_EXPECTED) {
                self.add_rule(item);
            }
        }
        if let Some(node) = fields.get("tiers") {
            self.add_tiers(node);
        }
        if let Some(node) = fields.get("tenants") {
            self.add_tenants(node);
        }
        let [exempt, block] = ["exempt", "block"].map(|name| {
            let node = fields.get(name);
            node.map_or_else(Vec::new, |node| self.read_match_list(node))
        });
        self.policy.exempt.extend(exempt);
        self.policy.block.extend(block);
    }

    /// Reads fields with one value for the whole policy.
    fn read_settings(&mut self, fields: &Fields<'_>) {
        if let Some(node) = fields.get("include") {
            // The loader has read the files already. Only values that aren't paths are reported here.
            for item in self.list_or_single(node, "the paths of files") {
                if item.as_text().is_none_or(str::is_empty) {
                    self.report_type(item, "the path of a file");
                }
            }
        }
        if let Some(node) = self.single_field(fields, "tier_fact") {
            self.policy.tier_fact = self.read_fact(node);
            self.places.tier_fact = node.span;
        }
        if let Some(node) = fields.get("facts") {
            let expected = "the names of facts that requests have, such as [plan, region]";
            for item in self.list_or_single(node, expected) {
                if let Some(fact) = self.read_declared_fact(item) {
                    self.policy.facts.push(fact);
                }
            }
            self.lists_facts = true;
        }
        if let Some(node) = self.single_field(fields, "default_tier") {
            self.policy.default_tier = self.read_name(node, "the name of a tier");
            self.places.default_tier = node.span;
        }
        if let Some(node) = self.single_field(fields, "mode") {
            self.policy.mode = self.read_policy_mode(node);
        }
        if let Some(node) = self.single_field(fields, "near_limit")
            && let Some(percent) = self.read_percent(node)
        {
            self.policy.near_limit_percent = percent;
        }
        if let Some(node) = self.single_field(fields, "on_store_failure") {
            self.default_failure_modes = self.read_failure_map(node).0;
        }
    }

    /// Reads a field that only one of the files may set.
    fn single_field<'n>(&mut self, fields: &Fields<'n>, name: &'static str) -> Option<&'n Node> {
        let node = fields.get(name)?;
        let place = fields.describe_place(name);
        if let Some(first) = self.single_fields.get(name) {
            let first = self.place(*first);
            let message = format!("{name:?} is set by another file already");
            let help = format!("it is set in {first}; leave it in one of them");
            self.report_with_help(codes::DUPLICATE_NAME, message, place, help);
            return None;
        }
        self.single_fields.insert(name, place);
        Some(node)
    }

    fn add_rule(&mut self, node: &Node) {
        let Some((rule, places)) = self.read_rule(node) else {
            return;
        };
        match self.rule_names.get(&rule.name) {
            Some(first) => self.report_duplicate_name("rule", &rule.name, *first, places.name),
            None => {
                self.rule_names.insert(rule.name.clone(), places.name);
            }
        }
        self.policy.rules.push(rule);
        self.places.rules.push(places);
    }

    fn add_tiers(&mut self, node: &Node) {
        let expected = "tiers by name, such as {free: {rate: 10/s burst 20}}";
        for (name, place, value) in self.read_named_fields(node, expected, unchanged) {
            let tier = self.read_tier(value);
            if let Some(first) = self.places.tiers.get(&name) {
                let first = first.name;
                self.report_duplicate_name("tier", &name, first, place.span);
                continue;
            }
            let mut places = RuleSpans::default();
            if let Some((own, own_places)) = tier {
                places = own_places;
                self.policy.tiers.insert(name.clone(), own);
            }
            places.name = place.span;
            // A tier with errors may still be named by tenants.
            self.places.tiers.insert(name, places);
        }
    }

    fn add_tenants(&mut self, node: &Node) {
        let expected = "tiers' names by tenant, such as {acme: enterprise}";
        for (tenant, place, value) in self.read_named_fields(node, expected, unchanged) {
            let Some(tier) = self.read_name(value, "the name of a tier") else {
                continue;
            };
            if let Some(first) = self.places.tenants.get(&tenant) {
                // The first is in another file: within one file, the parser has reported the duplicate.
                self.report_duplicate_name("tenant", &tenant, *first, place.span);
                continue;
            }
            self.places.tenants.insert(tenant.clone(), value.span);
            self.policy.tenants.insert(tenant, tier);
        }
    }

    /// Reports a duplicate name.
    fn report_duplicate_name(&mut self, what: &str, name: &str, first: Span, second: Span) {
        let name = reader::truncate_text(name);
        let message = format!("a second {what} of the name {name:?}");
        let help = format!("the first is in {}", self.place(first));
        self.report_with_help(codes::DUPLICATE_NAME, message, second, help);
    }

    /// Reports facts that aren't in the policy's list of facts, if it has one.
    fn check_declared_facts(&mut self) {
        let mentions = std::mem::take(&mut self.places.fact_mentions);
        let checked = if self.lists_facts { &mentions[..] } else { &[] };
        for mention in checked {
            let own = &self.policy.facts;
            if !is_known_fact(&mention.fact) && !own.contains(&mention.fact) {
                let fact = reader::truncate_text(&mention.fact);
                let message = format!("requests have no fact {fact:?}: facts doesn't list it");
                let known = own.iter().map(String::as_str).chain(COMMON_FACTS);
                let help = suggestions::did_you_mean(&mention.fact, known).unwrap_or_else(|| {
                    let all = own.iter().map(String::as_str).take(5);
                    let all: Vec<_> = all.chain([fact.as_str()]).collect();
                    format!("add it: facts: [{}], or leave facts out", all.join(", "))
                });
                self.report_with_help(codes::UNKNOWN_FACT, message, mention.span, help);
            }
        }
        self.places.fact_mentions = mentions;
    }

    fn finish_policy(mut self, trees: &[Node]) -> DecodedPolicy {
        self.check_declared_facts();
        let decoded = DecodedPolicy {
            policy: std::mem::take(&mut self.policy),
            places: std::mem::take(&mut self.places),
        };
        // Otherwise a name may be in a part that wasn't read, or in a rule with another error.
        if self.problems.is_complete() {
            references::check_references(&mut self, &decoded);
            let nothing = decoded.policy.rules.is_empty()
                && decoded.places.tiers.is_empty()
                && decoded.policy.block.is_empty();
            if nothing && self.problems.len() == 0 {
                let last = trees.last();
                let span = Span::of_file(last.map_or(0, |tree| tree.span.file));
                let message = "expected limits, tiers or block: this policy limits nothing";
                let help = "begin with limits: [{name: all, rate: 100/s burst 200}]";
                self.report_with_help(codes::EMPTY, message, span, help);
            }
        }
        decoded
    }
}

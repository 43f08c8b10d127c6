//! The native form of a policy: limits by facts, tiers, and requests that are exempt or blocked.
//!
//! Every field and every word stands once in `native/fields.rs`; the JSON Schema, a file, says what each is for.

use std::collections::{BTreeMap, HashMap};

use crate::document::{Node, Span, Value};
use crate::facts::{KNOWN_FACTS, is_known_fact};
use crate::matcher::regex::Regexes;
use crate::policy::{Limits, Policy};
use crate::sources::Sources;
use crate::suggest;

pub mod codes;
pub(crate) mod fields;
mod limits;
mod pattern;
mod reader;
mod refs;
pub(crate) mod rule;
pub(crate) mod text;

pub(crate) use pattern::{Cidr, LONGEST_CONDITION};
use reader::{Fields, RULES, Reader, as_written};
pub(crate) use reader::{LONGEST_NAME, Problems};
pub(crate) use rule::MOST_KEY_FACTS;
use rule::WrittenFailures;

/// A policy and where its parts stand, for those who judge it.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) policy: Policy,
    pub(crate) places: Places,
}

/// Where the parts of a policy stand: rules in the order of the policy, tiers by name.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) rules: Vec<RulePlaces>,
    pub(crate) tiers: BTreeMap<String, RulePlaces>,
    pub(crate) tenants: BTreeMap<String, Span>,
    pub(crate) default_tier: Span,
    pub(crate) tier_fact: Span,
    /// Each fact that is asked for.
    pub(crate) facts: Vec<Mention>,
    /// The text of each condition, as it is written.
    pub(crate) written: Vec<Written>,
}

/// Where a fact is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Mention {
    pub(crate) fact: String,
    pub(crate) span: Span,
    /// As a condition.
    pub(crate) in_match: bool,
}

/// The text of a condition on a fact.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) fact: String,
    pub(crate) text: String,
    pub(crate) form: Form,
    pub(crate) span: Span,
}

/// How a condition says what its text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Not at all: a glob if there is a `*` in it, else this very text.
    Plain,
    Exact,
    Glob,
    Prefix,
    Regex,
    Network,
}

/// Where the parts of a rule or a tier stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulePlaces {
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

impl RulePlaces {
    /// For a rule of which only the whole's place is known.
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

/// Reads the trees of all files into one policy, and notes every error.
pub(crate) fn decode(trees: &[Node], sources: &Sources, problems: &mut Problems) -> Decoded {
    let mut decoder = Decoder {
        reader: Reader {
            sources,
            problems,
            regexes: Regexes::default(),
            mentions: Vec::new(),
            written: Vec::new(),
            failure: WrittenFailures::default(),
        },
        decoded: Decoded::default(),
        once: HashMap::new(),
        names: HashMap::new(),
        declared: false,
    };
    let said = trees.iter().filter(|tree| tree.value != Value::Null);
    let files = said.filter_map(|tree| decoder.reader.fields(tree, "a policy", fields::POLICY));
    let files: Vec<_> = files.collect();
    // Rules go by what is said for all of them, whichever file says it.
    files.iter().for_each(|file| decoder.settings(file));
    files.iter().for_each(|file| decoder.limits(file));
    decoder.finish(trees)
}

struct Decoder<'a> {
    reader: Reader<'a>,
    decoded: Decoded,
    /// Where fields stand that only one of the files may have.
    once: HashMap<&'static str, Span>,
    /// Where each rule is named.
    names: HashMap<String, Span>,
    /// Whether the policy says which facts there are.
    declared: bool,
}

impl Decoder<'_> {
    /// Rules, tiers and lists of requests.
    fn limits(&mut self, fields: &Fields<'_>) {
        if let Some(node) = fields.get("limits") {
            for item in self.reader.list(node, RULES) {
                self.rule(item);
            }
        }
        if let Some(node) = fields.get("tiers") {
            self.tiers(node);
        }
        if let Some(node) = fields.get("tenants") {
            self.tenants(node);
        }
        let policy = &mut self.decoded.policy;
        for (name, list) in [("exempt", &mut policy.exempt), ("block", &mut policy.block)] {
            if let Some(node) = fields.get(name) {
                list.extend(self.reader.match_list(node));
            }
        }
    }

    /// Fields that hold one value for the whole policy.
    fn settings(&mut self, fields: &Fields<'_>) {
        if let Some(node) = fields.get("include") {
            // The loader has read them; here only what is no path is noted.
            for item in self.reader.one_or_more(node, "the paths of files") {
                if item.text().is_none_or(str::is_empty) {
                    self.reader.unexpected(item, "the path of a file");
                }
            }
        }
        if let Some(node) = self.once(fields, "tier_fact") {
            self.decoded.policy.tier_fact = self.reader.fact(node);
            self.decoded.places.tier_fact = node.span;
        }
        if let Some(node) = fields.get("facts") {
            let expected = "the names of facts that requests have, such as [plan, region]";
            for item in self.reader.one_or_more(node, expected) {
                if let Some(fact) = self.reader.own_fact(item) {
                    self.decoded.policy.facts.push(fact);
                }
            }
            self.declared = true;
        }
        if let Some(node) = self.once(fields, "default_tier") {
            self.decoded.policy.default_tier = self.reader.name(node, "the name of a tier");
            self.decoded.places.default_tier = node.span;
        }
        if let Some(node) = self.once(fields, "mode") {
            self.decoded.policy.mode = self.reader.whole_mode(node);
        }
        if let Some(node) = self.once(fields, "near_limit")
            && let Some(percent) = self.reader.percent(node)
        {
            self.decoded.policy.near_limit_percent = percent;
        }
        if let Some(node) = self.once(fields, "on_store_failure") {
            self.reader.failure = self.reader.each_failure(node);
        }
    }

    /// A field that only one of the files may have.
    fn once<'n>(&mut self, fields: &Fields<'n>, name: &'static str) -> Option<&'n Node> {
        let node = fields.get(name)?;
        let place = fields.place(name);
        if let Some(first) = self.once.get(name) {
            let first = self.reader.place(*first);
            let message = format!("{name:?} is set by another file already");
            let help = format!("it is set in {first}; leave it in one of them");
            self.reader
                .error_with(codes::DUPLICATE_NAME, message, place, help);
            return None;
        }
        self.once.insert(name, place);
        Some(node)
    }

    fn rule(&mut self, node: &Node) {
        let Some((rule, places)) = self.reader.rule(node) else {
            return;
        };
        match self.names.get(&rule.name) {
            Some(first) => self.twice("rule", &rule.name, *first, places.name),
            None => {
                self.names.insert(rule.name.clone(), places.name);
            }
        }
        self.decoded.policy.rules.push(rule);
        self.decoded.places.rules.push(places);
    }

    fn tiers(&mut self, node: &Node) {
        let expected = "tiers by name, such as {free: {rate: 10/s burst 20}}";
        for (name, place, value) in self.reader.pairs(node, expected, as_written) {
            let tier = self.reader.tier(value);
            if let Some(first) = self.decoded.places.tiers.get(&name) {
                let first = first.name;
                self.twice("tier", &name, first, place.span);
                continue;
            }
            let mut places = RulePlaces::default();
            if let Some((own, own_places)) = tier {
                places = own_places;
                self.decoded.policy.tiers.insert(name.clone(), own);
            }
            places.name = place.span;
            // A tier with errors is still one that tenants may name.
            self.decoded.places.tiers.insert(name, places);
        }
    }

    fn tenants(&mut self, node: &Node) {
        let expected = "tiers' names by tenant, such as {acme: enterprise}";
        for (tenant, place, value) in self.reader.pairs(node, expected, as_written) {
            let Some(tier) = self.reader.name(value, "the name of a tier") else {
                continue;
            };
            if self.decoded.policy.tenants.contains_key(&tenant) {
                // Only another file can have it: within one, the parser has said so.
                let first = self.decoded.places.tenants.get(&tenant);
                let first = first.copied().unwrap_or_default();
                self.twice("tenant", &tenant, first, place.span);
                continue;
            }
            self.decoded
                .places
                .tenants
                .insert(tenant.clone(), value.span);
            self.decoded.policy.tenants.insert(tenant, tier);
        }
    }

    /// Notes that two have one name.
    fn twice(&mut self, what: &str, name: &str, first: Span, second: Span) {
        let name = reader::shorten(name);
        let message = format!("a second {what} of the name {name:?}");
        let help = format!("the first is in {}", self.reader.place(first));
        self.reader
            .error_with(codes::DUPLICATE_NAME, message, second, help);
    }

    /// Notes facts that aren't in the policy's list of facts, if it has one.
    fn undeclared(&mut self) {
        self.decoded.places.written = std::mem::take(&mut self.reader.written);
        for mention in std::mem::take(&mut self.reader.mentions) {
            let own = &self.decoded.policy.facts;
            if self.declared && !is_known_fact(&mention.fact) && !own.contains(&mention.fact) {
                let fact = reader::shorten(&mention.fact);
                let message = format!("requests have no fact {fact:?}: facts doesn't list it");
                let known = own.iter().map(String::as_str).chain(KNOWN_FACTS);
                let help = suggest::did_you_mean(&mention.fact, known).unwrap_or_else(|| {
                    let all = own.iter().map(String::as_str).take(5);
                    let all: Vec<_> = all.chain([fact.as_str()]).collect();
                    format!("add it: facts: [{}], or leave facts out", all.join(", "))
                });
                self.reader
                    .error_with(codes::UNKNOWN_FACT, message, mention.span, help);
            }
            self.decoded.places.facts.push(mention);
        }
    }

    fn finish(mut self, trees: &[Node]) -> Decoded {
        self.undeclared();
        // Names may be in what wasn't read, or in a rule with another error.
        if self.reader.problems.all_was_read() {
            refs::check(&mut self.reader, &self.decoded, &self.names);
            let policy = &self.decoded.policy;
            let nothing = policy.rules.is_empty()
                && self.decoded.places.tiers.is_empty()
                && policy.block.is_empty();
            if nothing && self.reader.problems.len() == 0 {
                let last = trees.last();
                let span = Span::of_file(last.map_or(0, |tree| tree.span.file));
                let message = "expected limits, tiers or block: this policy limits nothing";
                let help = "begin with limits: [{name: all, rate: 100/s burst 200}]";
                self.reader.error_with(codes::EMPTY, message, span, help);
            }
        }
        self.decoded
    }
}

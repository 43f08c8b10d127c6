//! A document's descriptors, one level after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fields::{Level, fields, not_a_map, not_a_word, wrong_type};
use super::super::scalar::Source;
use super::super::{
    BAD_CHARGING, BAD_ON_STORE_FAILURE, Code, DUPLICATE_DESCRIPTOR, Diagnostic, EMPTY_DOMAIN,
    EMPTY_KEY, MODE_WITHOUT_LIMIT, Node, Problems, REPLACES_UNKNOWN, SHARE_WITHOUT_WILDCARD,
    STAR_IN_KEY, Value,
};
use crate::diagnostic::Severity;
use crate::document::Span;
use crate::native::words::{FAILURES, names};
use crate::policy::{Charging, DescriptorLimit, DescriptorRule, Domain, OnStoreFailure};
use crate::suggest::did_you_mean;

/// Reads one document.
pub(super) struct Reader<'a> {
    pub(super) source: Source<'a>,
    pub(super) problems: Problems,
    /// What limits do that say nothing of it while the store can't be asked.
    pub(super) failure: Option<OnStoreFailure>,
}

/// The field of limits, and of the whole document.
pub(super) const ON_STORE_FAILURE: &str = "on_store_failure";

/// What a request of several descriptors can be charged, by name.
const CHARGINGS: &[(&str, Charging)] = &[
    ("all-or-none", Charging::AllOrNone),
    ("each", Charging::Each),
];

impl Reader<'_> {
    /// The domain's name with its place, and what it says.
    pub(super) fn root(&mut self, root: &Node) -> (Option<(String, Span)>, Domain) {
        if !matches!(root.value, Value::Map(_) | Value::Null) {
            self.problems.push(wrong_type(
                "the file",
                "a map with domain and descriptors",
                root,
            ));
            return (None, Domain::default());
        }
        let (mut name, mut domain, mut wrong) = (None, Domain::default(), false);
        let fields = fields(root, Level::Root, &mut self.problems);
        // Whatever their order, limits are read by it.
        let failure = fields.iter().find(|(name, _)| *name == ON_STORE_FAILURE);
        self.failure = failure.and_then(|(_, value)| self.failure(value));
        for (field, value) in fields {
            match field {
                "domain" => match self.text(field, value) {
                    Some(text) => name = Some((text, value.span)),
                    None => wrong = true,
                },
                "charging" => {
                    let field = (field, "way to charge", BAD_CHARGING);
                    let charging = self.word(field, CHARGINGS, value);
                    domain.charging = charging.unwrap_or_default();
                }
                ON_STORE_FAILURE => {}
                _ => domain.descriptors = self.descriptors(value),
            }
        }
        let name = name.filter(|(name, _)| !name.is_empty());
        if name.is_none() && !wrong {
            let problem = Diagnostic::error(EMPTY_DOMAIN, "the file has no domain", root.span);
            self.problems
                .push(problem.help("name it: `domain: edge`, as the proxy's filter does"));
        }
        (name, domain)
    }

    fn descriptors(&mut self, node: &Node) -> Vec<DescriptorRule> {
        let items = match &node.value {
            Value::List(items) => items,
            Value::Null => return Vec::new(),
            _ => {
                let problem = wrong_type("descriptors", "a list of descriptors", node);
                self.problems.push(problem);
                return Vec::new();
            }
        };
        let mut rules: Vec<DescriptorRule> = Vec::with_capacity(items.len());
        let mut known: BTreeMap<String, Span> = BTreeMap::new();
        for item in items {
            if !matches!(item.value, Value::Map(_)) {
                self.problems.push(not_a_map(item));
                continue;
            }
            let Some(rule) = self.descriptor(item) else {
                continue;
            };
            let composite = match &rule.value {
                Some(value) => format!("{}_{value}", rule.key),
                None => rule.key.clone(),
            };
            match known.get(&composite) {
                Some(first) => {
                    let message = format!("descriptor {composite:?} is given twice");
                    let problem = Diagnostic::error(DUPLICATE_DESCRIPTOR, message, item.span);
                    self.problems.push(problem.help(format!(
                        "the first is on line {}; a key and its value are one name, joined by _",
                        first.start.line
                    )));
                }
                None => {
                    known.insert(composite, item.span);
                    rules.push(rule);
                }
            }
        }
        rules
    }

    /// None only if it has no key.
    fn descriptor(&mut self, node: &Node) -> Option<DescriptorRule> {
        let mut rule = DescriptorRule {
            key: String::new(),
            value: None,
            limit: None,
            share_threshold: false,
            detailed_metric: false,
            value_to_metric: false,
            metadata: None,
            descriptors: Vec::new(),
            span: node.span,
        };
        let (mut shadow, mut quota_mode, mut share) = (None, None, None);
        let (mut key_given, mut limit_given) = (None, false);
        for (name, value) in fields(node, Level::Descriptor, &mut self.problems) {
            match name {
                "key" => {
                    key_given = Some(value.span);
                    // A key of another kind was reported: what is below it is still read.
                    rule.key = self.text(name, value).unwrap_or_else(|| "?".to_owned());
                }
                "value" => {
                    rule.value = self.text(name, value).filter(|value| !value.is_empty());
                }
                "rate_limit" => {
                    limit_given = !matches!(value.value, Value::Null);
                    rule.limit = self.limit(value);
                }
                "descriptors" => rule.descriptors = self.descriptors(value),
                "shadow_mode" => shadow = self.truth(name, value),
                "quota_mode" => quota_mode = self.truth(name, value),
                "detailed_metric" => rule.detailed_metric = self.truth(name, value).is_some(),
                "value_to_metric" => rule.value_to_metric = self.truth(name, value).is_some(),
                "share_threshold" => share = self.truth(name, value),
                _ => match &value.value {
                    Value::Null => {}
                    Value::Map(_) => rule.metadata = Some(value.value.clone()),
                    _ => self.problems.push(wrong_type(name, "a map", value)),
                },
            }
        }
        rule.share_threshold = share.is_some();
        if let Some(limit) = &mut rule.limit {
            limit.shadow = shadow.is_some();
            limit.quota_mode = quota_mode.is_some();
        }
        let is_wild = rule.value.as_ref().is_some_and(|value| value.contains('*'));
        if let Some(span) = share.filter(|_| !is_wild) {
            let message = "share_threshold needs a wildcard: a value with a *";
            let problem = Diagnostic::error(SHARE_WITHOUT_WILDCARD, message, span);
            self.problems
                .push(problem.help("all values of one wildcard count together"));
        }
        if !limit_given {
            self.modes_do_nothing([(shadow, "shadow_mode"), (quota_mode, "quota_mode")]);
        }
        self.has_key(&rule, key_given).then_some(rule)
    }

    /// Whether a descriptor has a key. One with a `*` is warned of.
    fn has_key(&mut self, rule: &DescriptorRule, given: Option<Span>) -> bool {
        if rule.key.is_empty() {
            let at = given.unwrap_or(rule.span);
            self.problems.push(
                Diagnostic::error(EMPTY_KEY, "a descriptor has no key", at)
                    .help("say which entry it is for: `key: remote_address`"),
            );
            return false;
        }
        if let Some(span) = given.filter(|_| rule.key.contains('*')) {
            let message = "a * in a key is no wildcard";
            let problem = Diagnostic::warning(STAR_IN_KEY, message, span);
            self.problems.push(problem.help("put it into the value"));
        }
        true
    }

    /// Modes beside no limit.
    fn modes_do_nothing(&mut self, modes: [(Option<Span>, &str); 2]) {
        for (mode, name) in modes {
            if let Some(span) = mode {
                let message = format!("{name} does nothing without a rate_limit");
                self.problems.push(
                    Diagnostic::warning(MODE_WITHOUT_LIMIT, message, span)
                        .help("it isn't inherited: write it beside each rate_limit"),
                );
            }
        }
    }

    /// Names that `replaces` uses and no limit of the domain has.
    pub(super) fn check_names(&mut self, tree: &[DescriptorRule]) {
        fn limits<'t>(tree: &'t [DescriptorRule], found: &mut Vec<&'t DescriptorLimit>) {
            for rule in tree {
                found.extend(&rule.limit);
                limits(&rule.descriptors, found);
            }
        }
        let mut all = Vec::new();
        limits(tree, &mut all);
        let names: BTreeSet<_> = all
            .iter()
            .filter_map(|limit| limit.name.as_deref())
            .collect();
        for limit in &all {
            for name in &limit.replaces {
                if !names.contains(name.as_str()) {
                    let message = format!("replaces {name:?}, which no limit is called");
                    let problem = Diagnostic::warning(REPLACES_UNKNOWN, message, limit.span);
                    let near = did_you_mean(name, names.iter().copied());
                    self.problems.push(match near {
                        Some(near) => problem.help(near),
                        None => problem,
                    });
                }
            }
        }
    }

    pub(super) fn text(&mut self, name: &str, value: &Node) -> Option<String> {
        let text = self.source.text(value);
        if text.is_none() {
            self.problems.push(wrong_type(name, "text", value));
        }
        text
    }

    /// One of the words of a table, of a field, what it is a word for, and the code of a wrong one.
    pub(super) fn word<T: Copy>(
        &mut self,
        (name, what, code): (&str, &str, Code),
        table: &[(&'static str, T)],
        value: &Node,
    ) -> Option<T> {
        let text = self.text(name, value)?;
        let found = table.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let problem = not_a_word(code, what, &text, &names(table), value);
            self.problems.push(problem);
        }
        found.map(|(_, value)| *value)
    }

    /// What is to be done without the store, unless that is for others to say.
    pub(super) fn failure(&mut self, value: &Node) -> Option<OnStoreFailure> {
        let field = (ON_STORE_FAILURE, "way to fail", BAD_ON_STORE_FAILURE);
        self.word(field, FAILURES, value).flatten()
    }

    /// Where it is true, if it is.
    pub(super) fn truth(&mut self, name: &str, value: &Node) -> Option<Span> {
        let truth = self.source.truth(value);
        if truth.is_none() {
            self.problems.push(wrong_type(name, "true or false", value));
        }
        truth.filter(|is| *is).map(|_| value.span)
    }

    /// Whether there are errors after this many problems.
    pub(super) fn has_errors_since(&self, before: usize) -> bool {
        let mut since = self.problems.iter().skip(before);
        since.any(|problem| problem.severity == Severity::Error)
    }
}

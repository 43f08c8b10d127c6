//! Reads one document: its descriptors, level by level, and their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use tollgate::{Algorithm, Rate, core::WindowAlignment};

use super::field_names::{Fields, MapKind, ScalarText, not_a_map, read_fields, wrong_type};
use super::{
    BAD_ALGORITHM, BAD_CHARGING, BAD_CONCURRENCY, BAD_COUNTING, BAD_ON_STORE_FAILURE, BAD_QUOTA,
    BAD_RATE, BAD_UNIT, Code, DUPLICATE_DESCRIPTOR, Diagnostic, EMPTY_DOMAIN, EMPTY_KEY,
    EMPTY_REPLACES, MODE_WITHOUT_LIMIT, NO_REQUESTS, Node, Problems, RATE_AND_UNIT,
    REPLACES_UNKNOWN, SELF_REPLACES, SHARE_WITHOUT_WILDCARD, STAR_IN_KEY, UNLIMITED_WITH_LIMIT,
    Value,
};
use crate::diagnostic::Severity;
use crate::document::Span;
use crate::facts::Unit;
use crate::native::field_names::{
    ALGORITHM_WORDS, COUNTING_WORDS, NO_STORE_MESSAGE, NOT_LEASABLE_MESSAGE, STORE_FAILURE_WORDS,
    words_of,
};
use crate::policy::{
    Charging, Counting, DescriptorLimit, DescriptorRule, Domain, FailureModes, OnStoreFailure,
    is_bucket,
};
use crate::suggestions::did_you_mean;

/// Reads one document.
pub(super) struct DocumentReader<'a> {
    scalars: &'a ScalarText,
    pub(super) problems: Problems,
    /// The failure mode of limits that set none themselves.
    default_store_failure: Option<OnStoreFailure>,
}

/// The name of a field that both a limit and the whole document may have.
const ON_STORE_FAILURE: &str = "on_store_failure";

/// Fields that set how a limit is enforced.
const MODE_FIELDS: [&str; 2] = ["shadow_mode", "quota_mode"];
/// How a request of several descriptors can be charged, by name.
const CHARGING_WORDS: &[(&str, Charging)] = &[
    ("all-or-none", Charging::AllOrNone),
    ("each", Charging::Each),
];

impl<'a> DocumentReader<'a> {
    pub(super) fn new(scalars: &'a ScalarText) -> Self {
        Self {
            scalars,
            problems: Vec::new(),
            default_store_failure: None,
        }
    }

    fn report_error(&mut self, code: Code, message: impl Into<String>, span: Span, help: &str) {
        self.problems
            .push(Diagnostic::error(code, message, span).with_help(help));
    }

    fn report_warning(&mut self, code: Code, message: impl Into<String>, span: Span, help: &str) {
        self.problems
            .push(Diagnostic::warning(code, message, span).with_help(help));
    }

    /// Reports a value of the wrong type, and returns `None` in its place.
    fn report_mismatch<T>(&mut self, name: &str, expected: &str, value: &Node) -> Option<T> {
        self.problems.push(wrong_type(name, expected, value));
        None
    }

    /// The domain's name with its position, and the domain.
    pub(super) fn read_root(&mut self, root: &Node) -> (Option<(String, Span)>, Domain) {
        if !matches!(root.value, Value::Map(_) | Value::Null) {
            let problem = wrong_type("the file", "a map with domain and descriptors", root);
            self.problems.push(problem);
            return (None, Domain::default());
        }
        let fields = read_fields(root, MapKind::Root, &mut self.problems);
        self.default_store_failure = self.read_store_failure(&fields);
        let charging = self.read_word(
            &fields,
            "charging",
            "way to charge",
            BAD_CHARGING,
            CHARGING_WORDS,
        );
        let descriptors = fields.get("descriptors");
        let domain = Domain {
            charging: charging.unwrap_or_default(),
            descriptors: descriptors.map_or_else(Vec::new, |value| self.read_descriptors(value)),
        };
        let given = fields.get("domain");
        let name = given.and_then(|value| Some((self.read_text("domain", value)?, value.span)));
        let is_wrong = given.is_some() && name.is_none();
        let name = name.filter(|(name, _)| !name.is_empty());
        if name.is_none() && !is_wrong {
            let help = "name it: `domain: edge`, as the proxy's filter does";
            self.report_error(EMPTY_DOMAIN, "the file has no domain", root.span, help);
        }
        (name, domain)
    }

    /// The maps of a list. The list may be missing. Items that aren't maps are reported.
    fn list_of_maps<'n>(&mut self, name: &str, expected: &str, node: &'n Node) -> Vec<&'n Node> {
        let items = match &node.value {
            Value::List(items) => items.as_slice(),
            Value::Null => &[],
            _ => self
                .report_mismatch(name, expected, node)
                .unwrap_or_default(),
        };
        let is_map = |item: &&Node| matches!(item.value, Value::Map(_));
        let (maps, others): (Vec<_>, Vec<_>) = items.iter().partition(is_map);
        self.problems.extend(others.into_iter().map(not_a_map));
        maps
    }

    fn read_descriptors(&mut self, node: &Node) -> Vec<DescriptorRule> {
        let items = self.list_of_maps("descriptors", "a list of descriptors", node);
        let mut rules: Vec<DescriptorRule> = Vec::with_capacity(items.len());
        let mut known: BTreeMap<String, Span> = BTreeMap::new();
        for item in items {
            let Some(rule) = self.read_descriptor(item) else {
                continue;
            };
            let composite = match &rule.value {
                Some(value) => format!("{}_{value}", rule.key),
                None => rule.key.clone(),
            };
            if let Some(first) = known.get(&composite) {
                let message = format!("descriptor {composite:?} is given twice");
                let help = format!(
                    "the first is on line {}; a key and its value are one name, joined by _",
                    first.start.line
                );
                self.report_error(DUPLICATE_DESCRIPTOR, message, item.span, &help);
            } else {
                known.insert(composite, item.span);
                rules.push(rule);
            }
        }
        rules
    }

    /// Reads a descriptor. `None` only if it has no key.
    fn read_descriptor(&mut self, node: &Node) -> Option<DescriptorRule> {
        let fields = read_fields(node, MapKind::Descriptor, &mut self.problems);
        let [key, limit] = ["key", "rate_limit"].map(|name| fields.get(name));
        // A key of the wrong type was reported. The descriptors below it are still read, for their errors.
        let read = key.map(|value| {
            self.read_text("key", value)
                .unwrap_or_else(|| "?".to_owned())
        });
        let [shadow, quota_mode, share, detailed, by_value] = [
            MODE_FIELDS[0],
            MODE_FIELDS[1],
            "share_threshold",
            "detailed_metric",
            "value_to_metric",
        ]
        .map(|name| self.read_flag(&fields, name));
        let metadata = fields
            .get("metadata")
            .filter(|own| own.value != Value::Null);
        let metadata = metadata.and_then(|own| match &own.value {
            Value::Map(_) => Some(own.value.clone()),
            _ => self.report_mismatch("metadata", "a map", own),
        });
        let below = fields.get("descriptors");
        let rule = DescriptorRule {
            key: read.unwrap_or_default(),
            value: self.read_non_empty_text(&fields, "value"),
            limit: limit
                .and_then(|value| self.read_limit(value))
                .map(|limit| DescriptorLimit {
                    shadow: shadow.is_some(),
                    quota_mode: quota_mode.is_some(),
                    ..limit
                }),
            share_threshold: share.is_some(),
            detailed_metric: detailed.is_some(),
            value_to_metric: by_value.is_some(),
            metadata,
            descriptors: below.map_or_else(Vec::new, |value| self.read_descriptors(value)),
            span: node.span,
        };
        let is_wild = rule.value.as_ref().is_some_and(|value| value.contains('*'));
        if let Some(span) = share.filter(|_| !is_wild) {
            let message = "share_threshold needs a wildcard: a value with a *";
            let help = "all values of one wildcard count together";
            self.report_error(SHARE_WITHOUT_WILDCARD, message, span, help);
        }
        let is_limited = limit.is_some_and(|value| value.value != Value::Null);
        for (name, mode) in MODE_FIELDS.into_iter().zip([shadow, quota_mode]) {
            if let Some(span) = mode.filter(|_| !is_limited) {
                let message = format!("{name} does nothing without a rate_limit");
                let help = "it isn't inherited: write it beside each rate_limit";
                self.report_warning(MODE_WITHOUT_LIMIT, message, span, help);
            }
        }
        self.check_key(&rule, key.map(|key| key.span))
            .then_some(rule)
    }

    /// Whether a descriptor has a key. A key with a `*` causes a warning.
    fn check_key(&mut self, rule: &DescriptorRule, given: Option<Span>) -> bool {
        if rule.key.is_empty() {
            let (at, message) = (given.unwrap_or(rule.span), "a descriptor has no key");
            let help = "say which entry it is for: `key: remote_address`";
            self.report_error(EMPTY_KEY, message, at, help);
        } else if let Some(span) = given.filter(|_| rule.key.contains('*')) {
            let message = "a * in a key is no wildcard";
            self.report_warning(STAR_IN_KEY, message, span, "put it into the value");
        }
        !rule.key.is_empty()
    }

    /// Warns of names in `replaces` that no limit of the domain has.
    pub(super) fn check_replaced_names(&mut self, tree: &[DescriptorRule]) {
        fn limits<'t>(tree: &'t [DescriptorRule], found: &mut Vec<&'t DescriptorLimit>) {
            for rule in tree {
                found.extend(&rule.limit);
                limits(&rule.descriptors, found);
            }
        }
        let mut all = Vec::new();
        limits(tree, &mut all);
        let names = all.iter().filter_map(|limit| limit.name.as_deref());
        let names: BTreeSet<_> = names.collect();
        let replaces = all.iter().flat_map(|limit| {
            let names = limit.replaces.iter();
            names.map(|name| (name.as_str(), limit.span))
        });
        for (name, span) in replaces.filter(|(name, _)| !names.contains(name)) {
            let message = format!("replaces {name:?}, which no limit is called");
            self.problems.push(Diagnostic {
                help: did_you_mean(name, names.iter().copied()),
                ..Diagnostic::warning(REPLACES_UNKNOWN, message, span)
            });
        }
    }

    fn read_text(&mut self, name: &str, value: &Node) -> Option<String> {
        let text = self.scalars.text(value);
        text.or_else(|| self.report_mismatch(name, "text", value))
    }

    /// The text of a field, unless it is empty.
    fn read_non_empty_text(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let text = self.read_text(name, fields.get(name)?)?;
        (!text.is_empty()).then_some(text)
    }

    /// A field whose value must be one of the words of a table.
    fn read_word<T: Copy>(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        what: &str,
        code: Code,
        table: &[(&'static str, T)],
    ) -> Option<T> {
        let value = fields.get(name)?;
        let text = self.read_text(name, value)?;
        let found = table.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            self.report_unknown_word(code, what, &text, &words_of(table), value.span);
        }
        found.map(|(_, value)| *value)
    }

    fn report_unknown_word(
        &mut self,
        code: Code,
        what: &str,
        text: &str,
        words: &[&str],
        at: Span,
    ) {
        let near = did_you_mean(text, words.iter().copied());
        let help = near.unwrap_or_else(|| format!("use {}", words.join(", ")));
        self.report_error(code, format!("{text:?} is no {what}"), at, &help);
    }

    /// The failure mode, unless the field is missing or has the value `inherit`.
    fn read_store_failure(&mut self, fields: &Fields<'_>) -> Option<OnStoreFailure> {
        let code = BAD_ON_STORE_FAILURE;
        self.read_word(
            fields,
            ON_STORE_FAILURE,
            "way to fail",
            code,
            STORE_FAILURE_WORDS,
        )
        .flatten()
    }

    /// The position of a flag that is true.
    fn read_flag(&mut self, fields: &Fields<'_>, name: &str) -> Option<Span> {
        let value = fields.get(name)?;
        let truth = self.scalars.parse_bool(value);
        let truth = truth.or_else(|| self.report_mismatch(name, "true or false", value));
        truth.filter(|is| *is).map(|_| value.span)
    }

    /// Whether there are errors among the problems after the first `before`.
    fn has_errors_since(&self, before: usize) -> bool {
        let mut since = self.problems.iter().skip(before);
        since.any(|problem| problem.severity == Severity::Error)
    }

    /// Reads the limit of a descriptor: envoyproxy/ratelimit's unit and number, or Tollgate's own fields.
    fn read_limit(&mut self, node: &Node) -> Option<DescriptorLimit> {
        match node.value {
            Value::Map(_) => {}
            Value::Null => return None,
            _ => {
                let expected = "a map with unit and requests_per_unit";
                return self.report_mismatch("rate_limit", expected, node);
            }
        }
        let mut limit = DescriptorLimit {
            algorithm: Algorithm::FixedWindow(WindowAlignment::default()),
            span: node.span,
            ..DescriptorLimit::default()
        };
        let problems_before = self.problems.len();
        let fields = read_fields(node, MapKind::Limit, &mut self.problems);
        limit.name = self.read_non_empty_text(&fields, "name");
        if let Some(replaces) = fields.get("replaces") {
            limit.replaces = self.read_replaces(replaces, limit.name.as_deref());
        }
        limit.limits.unlimited = self.read_flag(&fields, "unlimited").is_some();
        // `rate` is a field of Tollgate, so its default algorithm is Tollgate's and not a fixed window.
        if fields.get("rate").is_some() {
            limit.algorithm = Algorithm::default();
        }
        let algorithm = self.read_word(
            &fields,
            "algorithm",
            "algorithm",
            BAD_ALGORITHM,
            ALGORITHM_WORDS,
        );
        limit.algorithm = algorithm.unwrap_or(limit.algorithm);
        self.read_amounts(&mut limit, &fields, problems_before);
        self.read_counting(&mut limit, &fields);
        if limit.limits.unlimited {
            for name in ["rate", "quota", "concurrency"] {
                if let Some(value) = fields.get(name) {
                    self.report_unlimited_conflict(name, value);
                }
            }
        }
        Some(limit)
    }

    /// Reads the rates, the quota and the concurrency limit: from Tollgate's fields, or from a unit and a number.
    fn read_amounts(
        &mut self,
        limit: &mut DescriptorLimit,
        fields: &Fields<'_>,
        problems_before: usize,
    ) {
        let requests = fields.get("requests_per_unit");
        let requests =
            requests.and_then(|value| Some((self.read_requests_per_unit(value)?, value)));
        let unit = self
            .read_non_empty_text(fields, "unit")
            .zip(fields.get("unit"));
        if let Some(quota) = fields.get("quota") {
            limit.limits.quota = self.parse_text("quota", BAD_QUOTA, quota);
        }
        if let Some(concurrency) = fields.get("concurrency") {
            limit.limits.concurrency = self.read_concurrency(concurrency);
        }
        if let Some(rates) = fields.get("rate") {
            limit.limits.rates = self.read_rates(rates, limit.algorithm);
            let both = unit.as_ref().map(|(_, value)| *value);
            if let Some(value) = both.or(requests.map(|(_, value)| value)) {
                let message = "both rate and unit with requests_per_unit";
                let help = "say it once; several limits are a list of rates";
                self.report_error(RATE_AND_UNIT, message, value.span, help);
            }
        } else if limit.limits.unlimited {
            if let Some((_, value)) = unit.filter(|(text, _)| parse_unit(text).is_some()) {
                self.report_unlimited_conflict("unit", value);
            }
        } else if unit.is_some() || (fields.get("quota").or(fields.get("concurrency"))).is_none() {
            self.set_unit_rate(limit, unit, requests.map(|(count, _)| count));
            // An error in this limit may have removed the number, so the warning would mislead.
            let report_unreachable = fields.get("requests_per_unit").is_none();
            if report_unreachable && !self.has_errors_since(problems_before) {
                let message = "no requests_per_unit: that is 0, which refuses everything";
                let help = "write `requests_per_unit: 0` if it is meant";
                self.report_warning(NO_REQUESTS, message, limit.span, help);
            }
        }
    }

    fn read_requests_per_unit(&mut self, value: &Node) -> Option<u32> {
        let expected = "a whole number from 0 to 4294967295";
        let count = self.scalars.parse_count(value);
        count.or_else(|| self.report_mismatch("requests_per_unit", expected, value))
    }

    /// Reads how the limit is counted in a store.
    fn read_counting(&mut self, limit: &mut DescriptorLimit, fields: &Fields<'_>) {
        let own = self.read_store_failure(fields);
        let said = own.or(self.default_store_failure);
        limit.on_store_failure = said.map_or_else(FailureModes::default, FailureModes::from);
        let Some(value) = fields.get("counting") else {
            return;
        };
        let counting = self.read_word(
            fields,
            "counting",
            "way to count",
            BAD_COUNTING,
            COUNTING_WORDS,
        );
        limit.counting = counting.unwrap_or_default();
        let rates = !limit.limits.rates.is_empty();
        if limit.counting == Counting::Leased && !(rates && is_bucket(limit.algorithm)) {
            let help = "give it a rate in place of unit, or say exact";
            self.report_error(BAD_COUNTING, NOT_LEASABLE_MESSAGE, value.span, help);
        }
        let asks_none = limit.counting == Counting::Local && own.is_some();
        if let Some(failure) = fields.get(ON_STORE_FAILURE).filter(|_| asks_none) {
            let help = "leave out one of them";
            self.report_error(BAD_ON_STORE_FAILURE, NO_STORE_MESSAGE, failure.span, help);
        }
    }

    fn set_unit_rate(
        &mut self,
        limit: &mut DescriptorLimit,
        unit: Option<(String, &Node)>,
        requests: Option<u32>,
    ) {
        let at = unit.as_ref().map_or(limit.span, |(_, node)| node.span);
        let text = unit.map(|(text, _)| text);
        let Some(unit) = text.as_deref().and_then(parse_unit) else {
            let words = Unit::ALL.map(Unit::name);
            return match text {
                Some(text) => self.report_unknown_word(BAD_UNIT, "unit", &text, &words, at),
                None => {
                    let help = format!("use {}", words.join(", "));
                    self.report_error(BAD_UNIT, "rate_limit has no unit", at, &help);
                }
            };
        };
        limit.unit = Some(unit);
        let period = Duration::from_secs(unit.seconds());
        let rate = Rate::new(u64::from(requests.unwrap_or(0)), period);
        self.check_rate(rate, limit.algorithm, at);
        limit.limits.rates = vec![rate];
    }

    fn read_replaces(&mut self, node: &Node, own_name: Option<&str>) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.list_of_maps("replaces", "a list of names: `- name: …`", node) {
            let field = read_fields(item, MapKind::Replaces, &mut self.problems);
            let name = match field.first() {
                Some((field, value)) => match self.read_text(field, value) {
                    Some(text) => text,
                    None => continue,
                },
                None => String::new(),
            };
            if name.is_empty() {
                let message = "replaces has an item without a name";
                let help = "name the limit that is replaced: `- name: …`";
                self.report_error(EMPTY_REPLACES, message, item.span, help);
            } else if own_name == Some(name.as_str()) {
                let message = format!("limit {name:?} replaces itself");
                self.report_error(SELF_REPLACES, message, item.span, "name another limit");
            } else {
                names.push(name);
            }
        }
        names
    }

    fn read_rates(&mut self, node: &Node, algorithm: Algorithm) -> Vec<Rate> {
        let items = match node.as_items() {
            [] => std::slice::from_ref(node),
            items => items,
        };
        let mut rates = Vec::with_capacity(items.len());
        for item in items {
            if let Some(rate) = self.parse_text("rate", BAD_RATE, item) {
                self.check_rate(rate, algorithm, item.span);
                rates.push(rate);
            }
        }
        rates
    }

    fn check_rate(&mut self, rate: Rate, algorithm: Algorithm, at: Span) {
        if rate.is_unlimited() {
            let help = "leave it out, or say unlimited: true";
            self.report_error(BAD_RATE, "an unlimited rate", at, help);
        } else if let Err(error) = algorithm.check_rate(rate) {
            let help = "take another rate, or another algorithm";
            self.report_error(BAD_RATE, error.to_string(), at, help);
        }
    }

    fn read_concurrency(&mut self, value: &Node) -> Option<u32> {
        let count = match value.value {
            Value::Integer(_) => self.scalars.parse_count(value),
            _ => None,
        };
        if count.is_none_or(|count| count == 0) {
            let message = "concurrency is not a whole number from 1";
            let help = "say how many concurrent requests: `concurrency: 50`";
            self.report_error(BAD_CONCURRENCY, message, value.span, help);
        }
        count
    }

    /// A value of one of Tollgate's fields, parsed from its text.
    fn parse_text<T>(&mut self, name: &str, code: Code, value: &Node) -> Option<T>
    where
        T: FromStr<Err: ToString>,
    {
        let Value::Text(text) = &value.value else {
            let expected = "text, such as 10/s burst 20 or, for a quota, 10000/month";
            return self.report_mismatch(name, expected, value);
        };
        let parsed = text.parse().map_err(|error: T::Err| {
            // The further lines point into the text, as the snippet of the file does too, so only the first is kept.
            let error = error.to_string();
            let message = error.lines().next().unwrap_or_default();
            self.problems
                .push(Diagnostic::error(code, message, value.span));
        });
        parsed.ok()
    }

    fn report_unlimited_conflict(&mut self, name: &str, value: &Node) {
        let message = format!("unlimited, and yet a {name}");
        let help = format!("leave out one: unlimited or {name}");
        self.report_error(UNLIMITED_WITH_LIMIT, message, value.span, &help);
    }
}

fn parse_unit(text: &str) -> Option<Unit> {
    let mut units = Unit::ALL.into_iter();
    units.find(|unit| unit.name().eq_ignore_ascii_case(text))
}

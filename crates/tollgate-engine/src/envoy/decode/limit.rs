//! What a descriptor allows: their unit, and what we add.

use std::str::FromStr;
use std::time::Duration;

use tollgate::{Algorithm, Rate, core::Align};

use super::super::fields::{Level, fields, not_a_map, not_a_word, wrong_type};
use super::super::{
    BAD_ALGORITHM, BAD_CONCURRENCY, BAD_COUNTING, BAD_ON_STORE_FAILURE, BAD_QUOTA, BAD_RATE,
    BAD_UNIT, Code, Diagnostic, EMPTY_REPLACES, NO_REQUESTS, Node, RATE_AND_UNIT, SELF_REPLACES,
    UNLIMITED_WITH_LIMIT, Value,
};
use super::descriptor::{ON_STORE_FAILURE, Reader};
use crate::facts::Unit;
use crate::native::words::{ALGORITHMS, ASKS_NO_STORE, COUNTINGS, NOT_LEASED, lends};
use crate::policy::{Counting, DescriptorLimit, FailureModes, Limits};

/// The fields of a limit, by their names.
struct Named<'n>(Vec<(&'n str, &'n Node)>);

impl<'n> Named<'n> {
    fn get(&self, wanted: &str) -> Option<&'n Node> {
        let found = self.0.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| *value)
    }
}

impl Reader<'_> {
    pub(super) fn limit(&mut self, node: &Node) -> Option<DescriptorLimit> {
        match node.value {
            Value::Map(_) => {}
            Value::Null => return None,
            _ => {
                self.problems.push(wrong_type(
                    "rate_limit",
                    "a map with unit and requests_per_unit",
                    node,
                ));
                return None;
            }
        }
        let mut limit = DescriptorLimit {
            name: None,
            limits: Limits::default(),
            unit: None,
            algorithm: Algorithm::FixedWindow(Align::default()),
            counting: Counting::default(),
            on_store_failure: FailureModes::default(),
            shadow: false,
            quota_mode: false,
            replaces: Vec::new(),
            span: node.span,
        };
        let problems_before = self.problems.len();
        let fields = Named(fields(node, Level::Limit, &mut self.problems));
        if let Some(name) = fields.get("name") {
            limit.name = self.text("name", name).filter(|name| !name.is_empty());
        }
        if let Some(replaces) = fields.get("replaces") {
            limit.replaces = self.replaces(replaces, limit.name.as_deref());
        }
        if let Some(unlimited) = fields.get("unlimited") {
            limit.limits.unlimited = self.truth("unlimited", unlimited).is_some();
        }
        // A rate is ours, and so is what it means unless an algorithm is named.
        if fields.get("rate").is_some() {
            limit.algorithm = Algorithm::default();
        }
        if let Some(value) = fields.get("algorithm")
            && let field = ("algorithm", "algorithm", BAD_ALGORITHM)
            && let Some(algorithm) = self.word(field, ALGORITHMS, value)
        {
            limit.algorithm = algorithm;
        }
        self.allowed(&mut limit, &fields, (node, problems_before));
        let (counting, failure) = (fields.get("counting"), fields.get(ON_STORE_FAILURE));
        self.kept(&mut limit, counting, failure);
        if limit.limits.unlimited {
            for name in ["rate", "quota", "concurrency"] {
                if let Some(value) = fields.get(name) {
                    self.problems.push(unlimited_with(name, value));
                }
            }
        }
        Some(limit)
    }

    /// What it allows: by our fields, or by their unit and number.
    fn allowed(
        &mut self,
        limit: &mut DescriptorLimit,
        fields: &Named<'_>,
        (node, problems_before): (&Node, usize),
    ) {
        let requests = fields
            .get("requests_per_unit")
            .and_then(|value| Some((self.requests(value)?, value)));
        let unit = fields.get("unit").and_then(|value| {
            let text = self.text("unit", value)?;
            (!text.is_empty()).then_some((text, value))
        });
        if let Some(quota) = fields.get("quota") {
            limit.limits.quota = self.parsed("quota", BAD_QUOTA, quota);
        }
        if let Some(concurrency) = fields.get("concurrency") {
            limit.limits.concurrency = self.concurrency(concurrency);
        }
        if let Some(rates) = fields.get("rate") {
            limit.limits.rates = self.rates(rates, limit.algorithm);
            let both = unit.as_ref().map(|(_, value)| *value);
            if let Some(value) = both.or(requests.map(|(_, value)| value)) {
                let message = "both rate and unit with requests_per_unit";
                let problem = Diagnostic::error(RATE_AND_UNIT, message, value.span);
                self.problems
                    .push(problem.help("say it once; several limits are a list of rates"));
            }
        } else if limit.limits.unlimited {
            if let Some((text, value)) = &unit
                && unit_of(text).is_some()
            {
                self.problems.push(unlimited_with("unit", value));
            }
        } else if unit.is_some() || (fields.get("quota").or(fields.get("concurrency"))).is_none() {
            self.rate_of_unit(limit, unit, requests.map(|(count, _)| count), node);
            // A mistake elsewhere may be why.
            let is_missing = fields.get("requests_per_unit").is_none();
            if is_missing && !self.has_errors_since(problems_before) {
                let message = "no requests_per_unit: that is 0, which refuses everything";
                let problem = Diagnostic::warning(NO_REQUESTS, message, node.span);
                self.problems
                    .push(problem.help("write `requests_per_unit: 0` if it is meant"));
            }
        }
    }

    fn requests(&mut self, value: &Node) -> Option<u32> {
        let count = self.source.count(value);
        if count.is_none() {
            let expected = "a whole number from 0 to 4294967295";
            self.problems
                .push(wrong_type("requests_per_unit", expected, value));
        }
        count
    }

    /// How it is kept in a store.
    fn kept(
        &mut self,
        limit: &mut DescriptorLimit,
        counting: Option<&Node>,
        failure: Option<&Node>,
    ) {
        let own = failure.and_then(|value| self.failure(value));
        let said = own.or(self.failure);
        limit.on_store_failure = said.map_or_else(FailureModes::default, FailureModes::from);
        let Some(value) = counting else { return };
        let field = ("counting", "way to count", BAD_COUNTING);
        limit.counting = self.word(field, COUNTINGS, value).unwrap_or_default();
        let rates = !limit.limits.rates.is_empty();
        if limit.counting == Counting::Leased && !(rates && lends(limit.algorithm)) {
            let problem = Diagnostic::error(BAD_COUNTING, NOT_LEASED, value.span);
            let help = "give it a rate in place of unit, or say exact";
            self.problems.push(problem.help(help));
        }
        if let Some(failure) =
            failure.filter(|_| limit.counting == Counting::Local && own.is_some())
        {
            let problem = Diagnostic::error(BAD_ON_STORE_FAILURE, ASKS_NO_STORE, failure.span);
            self.problems.push(problem.help("leave out one of them"));
        }
    }

    fn rate_of_unit(
        &mut self,
        limit: &mut DescriptorLimit,
        unit: Option<(String, &Node)>,
        requests: Option<u32>,
        node: &Node,
    ) {
        let (text, at) = unit.unwrap_or_else(|| (String::new(), node));
        let Some(unit) = unit_of(&text) else {
            let problem = if text.is_empty() {
                Diagnostic::error(BAD_UNIT, "rate_limit has no unit", at.span)
                    .help(format!("use {}", Unit::ALL.map(Unit::name).join(", ")))
            } else {
                not_a_word(BAD_UNIT, "unit", &text, &Unit::ALL.map(Unit::name), at)
            };
            self.problems.push(problem);
            return;
        };
        limit.unit = Some(unit);
        let period = Duration::from_secs(unit.seconds());
        let rate = Rate::new(u64::from(requests.unwrap_or(0)), period);
        self.check_rate(rate, limit.algorithm, at);
        limit.limits.rates = vec![rate];
    }

    fn replaces(&mut self, node: &Node, own_name: Option<&str>) -> Vec<String> {
        let items = match &node.value {
            Value::List(items) => items,
            Value::Null => return Vec::new(),
            _ => {
                let problem = wrong_type("replaces", "a list of names: `- name: …`", node);
                self.problems.push(problem);
                return Vec::new();
            }
        };
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            if !matches!(item.value, Value::Map(_)) {
                self.problems.push(not_a_map(item));
                continue;
            }
            let field = fields(item, Level::Replaces, &mut self.problems);
            let name = match field.first() {
                Some((field, value)) => match self.text(field, value) {
                    Some(text) => text,
                    None => continue,
                },
                None => String::new(),
            };
            if name.is_empty() {
                let message = "replaces has an item without a name";
                let problem = Diagnostic::error(EMPTY_REPLACES, message, item.span);
                self.problems
                    .push(problem.help("name the limit that is replaced: `- name: …`"));
            } else if own_name == Some(name.as_str()) {
                let message = format!("limit {name:?} replaces itself");
                let problem = Diagnostic::error(SELF_REPLACES, message, item.span);
                self.problems.push(problem.help("name another limit"));
            } else {
                names.push(name);
            }
        }
        names
    }

    fn rates(&mut self, node: &Node, algorithm: Algorithm) -> Vec<Rate> {
        let items = match &node.value {
            Value::List(items) if !items.is_empty() => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut rates = Vec::with_capacity(items.len());
        for item in items {
            let rate: Option<Rate> = self.parsed("rate", BAD_RATE, item);
            if let Some(rate) = rate {
                self.check_rate(rate, algorithm, item);
                rates.push(rate);
            }
        }
        rates
    }

    fn check_rate(&mut self, rate: Rate, algorithm: Algorithm, at: &Node) {
        if rate.is_unlimited() {
            let problem = Diagnostic::error(BAD_RATE, "an unlimited rate", at.span);
            self.problems
                .push(problem.help("leave it out, or say unlimited: true"));
        } else if let Err(error) = algorithm.takes(rate) {
            let problem = Diagnostic::error(BAD_RATE, error.to_string(), at.span);
            self.problems
                .push(problem.help("take another rate, or another algorithm"));
        }
    }

    fn concurrency(&mut self, value: &Node) -> Option<u32> {
        let count = match value.value {
            Value::Integer(_) => self.source.count(value),
            _ => None,
        };
        if count.is_none_or(|count| count == 0) {
            let message = "concurrency is not a whole number from 1";
            let problem = Diagnostic::error(BAD_CONCURRENCY, message, value.span);
            self.problems
                .push(problem.help("say how many at once: `concurrency: 50`"));
        }
        count
    }

    /// A value of ours that is written as text.
    fn parsed<T>(&mut self, name: &str, code: Code, value: &Node) -> Option<T>
    where
        T: FromStr<Err: ToString>,
    {
        let Value::Text(text) = &value.value else {
            let expected = "text, such as 10/s burst 20 or, for a quota, 10000/month";
            self.problems.push(wrong_type(name, expected, value));
            return None;
        };
        match text.parse() {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                let error: T::Err = error;
                // Further lines point into the text, which the snippet of the file does too.
                let error = error.to_string();
                let message = error.lines().next().unwrap_or_default();
                self.problems
                    .push(Diagnostic::error(code, message, value.span));
                None
            }
        }
    }
}

fn unlimited_with(name: &str, value: &Node) -> Diagnostic {
    let message = format!("unlimited, and yet a {name}");
    Diagnostic::error(UNLIMITED_WITH_LIMIT, message, value.span)
        .help(format!("leave out one: unlimited or {name}"))
}

fn unit_of(text: &str) -> Option<Unit> {
    let mut units = Unit::ALL.into_iter();
    units.find(|unit| unit.name().eq_ignore_ascii_case(text))
}

//! Reads a rule or tier: its name, key, mode, counting and failure modes.

use std::time::Duration;

use tollgate::Algorithm;

use super::RuleSpans;
use super::codes;
use super::field_names::{
    ALGORITHM_WORDS, COUNTING_WORDS, KEY_FIELDS, LIMIT_KINDS, MISSING_KEY_WORDS, MODE_WORDS,
    NO_STORE_MESSAGE, NOT_LEASABLE_MESSAGE, ROLLOUT_FIELDS, RULE_FIELDS, STORE_FAILURE_WORDS,
    TIER_FIELDS,
};
use super::limits::is_adaptive;
use super::reader::{
    FactUse, Fields, MAX_NAME_LENGTH, PolicyReader, first_char_if_multiline, truncate_text,
};
use super::yaml_text::key_part_text;
use crate::document::{Node, Span, Value};
use crate::limits::warm_up::can_warm_up;
use crate::policy::{
    Counting, FailureModes, KeyPart, Limits, Mode, OnMissingKey, OnStoreFailure, Rule, Tier,
    is_bucket,
};

/// Most facts in a key.
pub(crate) const MAX_KEY_FACTS: usize = 16;
/// Most keys in `key: {first: …}`.
pub(crate) const MAX_KEYS: usize = 8;

/// The kinds of limits that are charged a cost.
const COST_CHARGED_LIMITS: [&str; 2] = ["rate", "quota"];
/// Fields about how limits are counted. They have no effect without a counted limit.
const COUNTING_FIELDS: [&str; 4] = ["counting", "on_store_failure", "over", "hash_tag"];

impl PolicyReader<'_> {
    /// Reads a rule. References to other rules and tiers are checked later.
    pub(super) fn read_rule(&mut self, node: &Node) -> Option<(Rule, RuleSpans)> {
        let fields = self.read_fields(node, "a rule", RULE_FIELDS)?;
        let message = "expected a name for this rule";
        let help = "add one such as name: per-user; verdicts and metrics show it";
        let name = match fields.get("name") {
            Some(node) => self.read_name(node, "the name of a rule"),
            None => self.reject_with_help(
                codes::MISSING_FIELD,
                message,
                first_char_if_multiline(node.span),
                help,
            ),
        };
        let (rule, places) = self.read_rule_fields(name.as_deref().unwrap_or_default(), &fields);
        name.map(|_| (rule, places))
    }

    /// A tier has fewer fields than a rule, and its name is the key of the map around it.
    pub(super) fn read_tier(&mut self, node: &Node) -> Option<(Tier, RuleSpans)> {
        let fields = self.read_fields(node, "a tier", TIER_FIELDS)?;
        let (rule, places) = self.read_rule_fields("", &fields);
        let tier = Tier {
            algorithm: rule.algorithm,
            cost: rule.cost,
            over: rule.over,
            counting: rule.counting,
            on_store_failure: rule.on_store_failure,
            span: rule.span,
            limits: rule.limits,
        };
        Some((tier, places))
    }

    fn read_rule_fields(&mut self, name: &str, fields: &Fields<'_>) -> (Rule, RuleSpans) {
        self.check_ineffective_fields(fields);
        let matches = fields.get("match").map(|node| self.read_match(node));
        let keys = fields.get("key").map(|node| self.read_keys(node));
        let mut keys = keys.unwrap_or_default();
        let on_missing_key = self.read_on_missing_key(fields, &keys);
        let algorithm = self.read_algorithm(fields);
        let mut places = rule_spans(fields);
        let limits = self.read_limits(fields, algorithm, &mut places);
        let (adaptive, shed) = (self.read_adaptive(fields), self.read_shed(fields));
        let cost = self.read_rule_cost(fields, &limits, &places);
        let (mode, enforced_percent) = self.read_mode(fields, &keys);
        let warm_up = self.read_warm_up(fields, &limits);
        let over = self.read_over(fields);
        let (on_store_failure, says_failure) = self.read_failure_modes(fields);
        let counting = self.read_counting(fields, algorithm, says_failure);
        let hash_tag = fields.get("hash_tag");
        let hash_tag = hash_tag.and_then(|node| self.read_hash_tag(node, &keys));
        let replaces = fields.get("replaces");
        let replaces = replaces.map(|node| self.read_names(node, "the name of a rule"));
        let (replaces, at) = replaces.unwrap_or_default().into_iter().unzip();
        places.replaces = at;
        let shared = fields.get("shared");
        let shared = shared.and_then(|node| self.read_name(node, "the name of a shared counter"));
        let fallback_keys = keys.split_off(keys.len().min(1));
        let rule = Rule {
            matches: matches.unwrap_or_default(),
            key: keys.pop().unwrap_or_default(),
            fallback_keys,
            on_missing_key,
            on_store_failure,
            counting,
            hash_tag,
            adaptive,
            shed,
            algorithm,
            cost,
            over,
            mode,
            enforced_percent,
            warm_up,
            replaces,
            shared,
            span: fields.span,
            ..Rule::new(name, limits)
        };
        (rule, places)
    }

    /// Reports each field that would have no effect.
    fn check_ineffective_fields(&mut self, fields: &Fields<'_>) {
        let has = |name: &str| fields.get(name).is_some();
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        let says = |name: &str, word: &str| fields.get(name).and_then(Node::as_text) == Some(word);
        if has("cost") && !any(&COST_CHARGED_LIMITS) && (has("concurrency") || has("unlimited")) {
            let mut message = "a cost is charged to rates and quotas, but there is none".to_owned();
            let mut help = "leave it out";
            if has("concurrency") {
                message += ": a request takes one slot, whatever it costs";
                help = "add a rate or a quota, or leave it out";
            }
            self.report_with_help(
                codes::CONFLICT,
                message,
                fields.describe_place("cost"),
                help,
            );
        }
        // `read_counting` reports a lease without a rate.
        let is_told = |name: &str| name == "counting" && says("counting", "leased");
        for name in COUNTING_FIELDS
            .into_iter()
            .filter(|name| has(name) && !is_told(name))
        {
            let message = if name != "over" && is_adaptive(fields) && !any(&COST_CHARGED_LIMITS) {
                format!(
                    "{name} does nothing for a limit that adapts: it is counted in each process by itself"
                )
            } else if has("unlimited") && !any(LIMIT_KINDS) {
                format!("{name} does nothing where all is unlimited: nothing is counted")
            } else if name == "hash_tag" && says("counting", "local") {
                "hash_tag does nothing where counting is local: no store is asked".to_owned()
            } else {
                continue;
            };
            self.report_with_help(
                codes::CONFLICT,
                message,
                fields.describe_place(name),
                "leave it out",
            );
        }
    }

    /// The key of a rule, followed by its fallback keys.
    fn read_keys(&mut self, node: &Node) -> Vec<Vec<KeyPart>> {
        let Value::Map(_) = &node.value else {
            return vec![self.read_key(node)];
        };
        let Some(fields) = self.read_fields(node, "a key", KEY_FIELDS) else {
            return Vec::new();
        };
        let message = "expected the keys of which the first is taken";
        let help = "write {first: [user, ip]}, or a list of facts such as [user, method]";
        let Some(first) = self.required_field(&fields, "first", message, help) else {
            return Vec::new();
        };
        let Value::List(items) = &first.value else {
            self.report_type(first, "a list of keys, such as [user, ip]");
            return Vec::new();
        };
        let mut keys: Vec<Vec<KeyPart>> = Vec::with_capacity(items.len());
        for item in items {
            let key = self.read_key(item);
            if matches!(&item.value, Value::List(parts) if parts.is_empty()) {
                let message =
                    "a key without facts, where the first key is taken that a request has";
                let help = "leave it out, and say on_missing_key: one_counter: all others count together then";
                self.report_with_help(codes::EMPTY, message, item.span, help);
            } else if let Some(before) = keys.iter().find(|before| is_implied_by(before, &key)) {
                let message =
                    "this key is never taken: a request that has it has the one before, too";
                let names: Vec<_> = before.iter().map(key_part_text).collect();
                let help = if before.len() == key.len() {
                    "leave out one of them".to_owned()
                } else {
                    format!("put it before [{}], or leave it out", names.join(", "))
                };
                self.report_with_help(codes::BAD_KEY, message, item.span, help);
            } else if keys.len() == MAX_KEYS {
                let message = format!("more than {MAX_KEYS} keys");
                self.report(codes::BAD_KEY, message, item.span);
                break;
            } else if !key.is_empty() {
                keys.push(key);
            }
        }
        if items.is_empty() {
            let message = "expected at least one key";
            self.report(codes::EMPTY, message, first.span);
        }
        keys
    }

    /// The parts of a key: one fact or a list of facts, each once.
    fn read_key(&mut self, node: &Node) -> Vec<KeyPart> {
        let expected = "a fact or a list of facts, such as [user] or [ip/64, method]";
        // An empty list means one counter for all requests, as if there were no key.
        let items = node.as_items();
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            let Some(text) = self.read_text(item, expected) else {
                continue;
            };
            let Some(part) = self.read_key_part(&text, item) else {
                continue;
            };
            if parts.contains(&part) {
                let message = format!("{:?} is in this key twice", truncate_text(&text));
                self.report(codes::BAD_KEY, message, item.span);
            } else if parts.len() == MAX_KEY_FACTS {
                let message = format!("a key of more than {MAX_KEY_FACTS} facts");
                self.report(codes::BAD_KEY, message, item.span);
                break;
            } else {
                parts.push(part);
            }
        }
        parts
    }

    fn read_key_part(&mut self, text: &str, node: &Node) -> Option<KeyPart> {
        let Some((fact, bits)) = text.split_once('/') else {
            return self.read_fact(node).map(KeyPart::Fact);
        };
        let number = bits.parse::<u8>().ok();
        let number = number.filter(|number| (1..=128).contains(number));
        // The schema accepts only one spelling of each number, so `064` is an error.
        let Some(number) = number.filter(|number| number.to_string() == bits) else {
            let (from, length) = (fact.chars().count() + 1, bits.chars().count());
            let span = self.sources.span_within(node.span, text, from, length);
            let message = "expected 1 to 128 bits after \"/\"";
            let help = "ip/64 counts all addresses of a network of 64 bits together";
            return self.reject_with_help(codes::BAD_KEY, message, span, help);
        };
        if fact.chars().count() > MAX_NAME_LENGTH {
            let message = "the name of a fact has more than 200 characters";
            return self.reject_bare(codes::BAD_NAME, message, node.span);
        }
        if fact.is_empty() {
            let message = "expected a fact before \"/\", as in ip/64";
            return self.reject_bare(codes::BAD_KEY, message, node.span);
        }
        let fact = self.normalize_fact_name(fact.to_owned(), node.span)?;
        self.record_fact_mention(&fact, node.span, FactUse::Other);
        Some(KeyPart::Network { fact, bits: number })
    }

    /// The action for requests without the rule's key, if the rule sets one.
    fn read_on_missing_key(
        &mut self,
        fields: &Fields<'_>,
        keys: &[Vec<KeyPart>],
    ) -> Option<OnMissingKey> {
        let node = fields.get("on_missing_key")?;
        let is_keyless =
            |node: &Node| matches!(&node.value, Value::List(parts) if parts.is_empty());
        if fields.get("key").is_none_or(is_keyless) && keys.iter().all(Vec::is_empty) {
            let message =
                "on_missing_key does nothing without a key: all requests share one counter";
            let span = fields.describe_place("on_missing_key");
            let help = "add a key such as [user], or leave it out";
            self.report_with_help(codes::CONFLICT, message, span, help);
        }
        self.read_word(node, "way to treat a missing key", MISSING_KEY_WORDS)
    }

    /// The fact of the key whose value decides the hash slot of the key in a cluster.
    fn read_hash_tag(&mut self, node: &Node, keys: &[Vec<KeyPart>]) -> Option<String> {
        let fact = self.read_fact(node)?;
        if !keys.iter().flatten().any(|part| part.fact() == fact) {
            let message = format!("the hash_tag {fact:?} is no fact of the key");
            let help = "name one of the facts of the key, or leave it out: the first is taken";
            self.report_with_help(codes::CONFLICT, message, node.span, help);
        }
        Some(fact)
    }

    /// One name or a list of them.
    fn read_names(&mut self, node: &Node, what: &str) -> Vec<(String, Span)> {
        let items = self.list_or_single(node, what);
        let names = items
            .iter()
            .filter_map(|item| Some((self.read_name(item, what)?, item.span)));
        names.collect()
    }

    /// The mode of a whole policy. It has no percentage.
    pub(super) fn read_policy_mode(&mut self, node: &Node) -> Mode {
        if let Value::Map(_) = &node.value {
            let message = "expected a mode: enforce, shadow or off, found a map";
            let help = "only a rule is enforced for a part of its keys: say it there";
            self.report_with_help(codes::WRONG_TYPE, message, node.span, help);
            return Mode::Enforce;
        }
        self.read_word(node, "mode", MODE_WORDS).unwrap_or_default()
    }

    /// A rule's mode, and the percentage of keys for which the rule is enforced.
    fn read_mode(&mut self, fields: &Fields<'_>, keys: &[Vec<KeyPart>]) -> (Mode, u8) {
        const ALL: u8 = 100;
        let Some(node) = fields.get("mode") else {
            return (Mode::Enforce, ALL);
        };
        let Value::Map(_) = &node.value else {
            return (
                self.read_word(node, "mode", MODE_WORDS).unwrap_or_default(),
                ALL,
            );
        };
        let Some(part) = self.read_fields(node, "a mode", ROLLOUT_FIELDS) else {
            return (Mode::Enforce, ALL);
        };
        let message = "expected the part of the keys for which it is enforced";
        let help = "write {enforce: 10%}, or one of enforce, shadow and off";
        let percent = self.required_field(&part, "enforce", message, help);
        let percent = percent.and_then(|node| self.read_percent(node));
        if keys.iter().all(Vec::is_empty) {
            let message = "it is to be enforced for a part of its keys, but it has no key";
            let help = "give it a key such as [user], or say enforce or shadow for all requests";
            self.report_with_help(codes::CONFLICT, message, node.span, help);
        }
        (Mode::Enforce, percent.unwrap_or(ALL))
    }

    /// How long the rates of the rule grow after a start.
    fn read_warm_up(&mut self, fields: &Fields<'_>, limits: &Limits) -> Option<Duration> {
        let node = fields.get("warm_up")?;
        let place = fields.describe_place("warm_up");
        let length = self.read_duration(node, "a length of time such as 30s")?;
        if fields.get("rate").is_none() {
            let message = "warm_up lets rates grow, but there is no rate";
            let help = "add a rate, or leave it out: quotas and slots don't warm up";
            return self.reject_with_help(codes::CONFLICT, message, place, help);
        }
        if let Some(rate) = limits.rates.iter().find(|rate| !can_warm_up(**rate)) {
            let message =
                format!("{rate} can't be warmed up: a part of it can't be counted exactly enough");
            let help = "use another rate, or leave warm_up out";
            return self.reject_with_help(codes::UNREPRESENTABLE, message, place, help);
        }
        Some(length)
    }

    /// The failure modes of a rule or tier, and whether it sets them itself.
    fn read_failure_modes(&mut self, fields: &Fields<'_>) -> (FailureModes, bool) {
        let Some(node) = fields.get("on_store_failure") else {
            return (self.default_failure_modes, false);
        };
        for (name, _) in node.as_fields() {
            let kind = name.as_text().unwrap_or_default();
            if LIMIT_KINDS.contains(&kind) && fields.get(kind).is_none() {
                let message = format!("{kind} does nothing here: there is no {kind}");
                self.report_with_help(codes::CONFLICT, message, name.span, "leave it out");
            }
        }
        self.read_failure_map(node)
    }

    /// One mode for all kinds of limits, or a map with a mode for each; and whether any of them isn't `inherit`.
    pub(super) fn read_failure_map(&mut self, node: &Node) -> (FailureModes, bool) {
        let whole = self.default_failure_modes;
        if !matches!(node.value, Value::Map(_)) {
            let all = self
                .read_word(node, "way to fail", STORE_FAILURE_WORDS)
                .flatten();
            return (all.map_or(whole, FailureModes::from), all.is_some());
        }
        let before = self.problems.len();
        let Some(fields) = self.read_fields(node, "ways to fail by kind", LIMIT_KINDS) else {
            return (whole, false);
        };
        if fields.iter().next().is_none() && self.problems.len() == before {
            let message = "expected ways to fail by kind, but there is nothing in it";
            let help = "write one such as {rate: local, quota: closed}, or one word for all";
            self.report_with_help(codes::EMPTY, message, node.span, help);
        }
        let mut read = |kind: &str, whole: OnStoreFailure| {
            let word = |node| {
                self.read_word(node, "way to fail", STORE_FAILURE_WORDS)
                    .flatten()
            };
            fields.get(kind).and_then(word).unwrap_or(whole)
        };
        let modes = FailureModes {
            rate: read("rate", whole.rate),
            quota: read("quota", whole.quota),
            concurrency: read("concurrency", whole.concurrency),
        };
        (modes, true)
    }

    fn read_counting(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        says_failure: bool,
    ) -> Counting {
        let Some(node) = fields.get("counting") else {
            return Counting::default();
        };
        let counting = self.read_word(node, "way to count", COUNTING_WORDS);
        let counting = counting.unwrap_or_default();
        if counting == Counting::Leased && !(is_bucket(algorithm) && fields.get("rate").is_some()) {
            let span = fields.describe_place("counting");
            let help = "say exact, or leave it out";
            self.report_with_help(codes::CONFLICT, NOT_LEASABLE_MESSAGE, span, help);
        }
        if counting == Counting::Local && says_failure {
            let (span, help) = (
                fields.describe_place("on_store_failure"),
                "leave out one of them",
            );
            self.report_with_help(codes::CONFLICT, NO_STORE_MESSAGE, span, help);
        }
        counting
    }

    fn read_algorithm(&mut self, fields: &Fields<'_>) -> Algorithm {
        let Some(node) = fields.get("algorithm") else {
            return Algorithm::Gcra;
        };
        let meant = node.as_text().and_then(|text| match text {
            "leaky-bucket" | "leaky_bucket" => Some((text, "leaky")),
            "sliding-counter" | "sliding_counter" => Some((text, "sliding-window")),
            _ => None,
        });
        if let Some((text, meant)) = meant {
            let message = format!("unknown algorithm {text:?}");
            let help = format!("did you mean {meant:?}?");
            self.report_with_help(codes::UNKNOWN_VALUE, message, node.span, help);
            return Algorithm::Gcra;
        }
        if fields.get("rate").is_none() {
            let message = "an algorithm says how rates are counted, but there is no rate";
            let (span, help) = (
                fields.describe_place("algorithm"),
                "add a rate, or leave it out",
            );
            self.report_with_help(codes::CONFLICT, message, span, help);
        }
        self.read_word(node, "algorithm", ALGORITHM_WORDS)
            .unwrap_or(Algorithm::Gcra)
    }
}

/// Whether each request that has all facts of `key` also has those of `before`.
fn is_implied_by(before: &[KeyPart], key: &[KeyPart]) -> bool {
    let has = |fact: &str| key.iter().any(|part| part.fact() == fact);
    !key.is_empty() && before.iter().all(|part| has(part.fact()))
}

/// The positions of a rule's or tier's fields, except those of its limits.
fn rule_spans(fields: &Fields<'_>) -> RuleSpans {
    let name = fields.get("name");
    RuleSpans {
        name: name.map_or(first_char_if_multiline(fields.span), |name| name.span),
        key: fields.describe_place("key"),
        on_store_failure: fields.describe_place("on_store_failure"),
        concurrency: fields.describe_place("concurrency"),
        shed: fields.describe_place("shed"),
        shared: fields.describe_place("shared"),
        ..RuleSpans::default()
    }
}

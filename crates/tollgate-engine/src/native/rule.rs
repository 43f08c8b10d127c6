//! One rule or tier: its name, its key, its mode, where it is counted, and what happens when the store fails.

use std::time::Duration;

use tollgate::Algorithm;

use super::RuleSpans;
use super::codes;
use super::fields::{
    ALGORITHMS, COUNTINGS, FAILURES, KEY, LIMIT_KINDS, MISSING_KEY_WORDS, MODES, NO_STORE_MESSAGE,
    NOT_LEASABLE_MESSAGE, ROLLOUT, RULE, TIER,
};
use super::limits::adapts;
use super::reader::{Fields, LONGEST_NAME, Part, Reader, first_line, shorten};
use super::text::key_part;
use crate::document::{Node, Span, Value};
use crate::limits::warm_up::can_warm_up;
use crate::policy::{
    Counting, FailureModes, KeyPart, Limits, Mode, OnMissingKey, OnStoreFailure, Rule, Tier,
    is_bucket,
};

/// Most facts of a key.
pub(crate) const MOST_KEY_FACTS: usize = 16;
/// Most keys of which the first is taken.
pub(crate) const MOST_KEYS: usize = 8;

/// What a cost is charged to.
const CHARGED: [&str; 2] = ["rate", "quota"];
/// What is said of how limits are kept, which does nothing without one.
const KEPT: [&str; 4] = ["counting", "on_store_failure", "over", "slot"];

impl Reader<'_> {
    /// A rule as far as its own lines tell.
    pub(super) fn rule(&mut self, node: &Node) -> Option<(Rule, RuleSpans)> {
        let fields = self.fields(node, "a rule", RULE)?;
        let message = "expected a name for this rule";
        let help = "add one such as name: per-user; verdicts and metrics show it";
        let name = match fields.get("name") {
            Some(node) => self.name(node, "the name of a rule"),
            None => self.reject(codes::MISSING_FIELD, message, first_line(node.span), help),
        };
        let (rule, places) = self.named(name.as_deref().unwrap_or_default(), &fields);
        name.map(|_| (rule, places))
    }

    /// A tier is a rule of which less can be said, and whose name stands elsewhere.
    pub(super) fn tier(&mut self, node: &Node) -> Option<(Tier, RuleSpans)> {
        let fields = self.fields(node, "a tier", TIER)?;
        let (rule, places) = self.named("", &fields);
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

    fn named(&mut self, name: &str, fields: &Fields<'_>) -> (Rule, RuleSpans) {
        self.idle(fields);
        let matches = fields.get("match").map(|node| self.matches(node));
        let keys = fields.get("key").map(|node| self.keys(node));
        let mut keys = keys.unwrap_or_default();
        let on_missing_key = self.on_missing_key(fields, &keys);
        let algorithm = self.algorithm(fields);
        let mut places = rule_spans(fields);
        let limits = self.limits(fields, algorithm, &mut places);
        let (adaptive, shed) = (self.adaptive(fields), self.shed(fields));
        let cost = self.read_rule_cost(fields, &limits, &places);
        let (mode, enforced_percent) = self.rollout(fields, &keys);
        let warm_up = self.warm_up(fields, &limits);
        let over = self.over(fields);
        let (on_store_failure, says_failure) = self.failures(fields);
        let counting = self.counting(fields, algorithm, says_failure);
        let slot = fields.get("slot");
        let slot = slot.and_then(|node| self.slot(node, &keys));
        let replaces = fields.get("replaces");
        let replaces = replaces.map(|node| self.names(node, "the name of a rule"));
        let (replaces, at) = replaces.unwrap_or_default().into_iter().unzip();
        places.replaces = at;
        let shared = fields.get("shared");
        let shared = shared.and_then(|node| self.name(node, "the name of a shared counter"));
        let fallback_keys = keys.split_off(keys.len().min(1));
        let rule = Rule {
            matches: matches.unwrap_or_default(),
            key: keys.pop().unwrap_or_default(),
            fallback_keys,
            on_missing_key,
            on_store_failure,
            counting,
            slot,
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

    /// Notes each field that would have no effect.
    fn idle(&mut self, fields: &Fields<'_>) {
        let has = |name: &str| fields.get(name).is_some();
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        let says = |name: &str, word: &str| fields.get(name).and_then(Node::text) == Some(word);
        if has("cost") && !any(&CHARGED) && (has("concurrency") || has("unlimited")) {
            let mut message = "a cost is charged to rates and quotas, but there is none".to_owned();
            let mut help = "leave it out";
            if has("concurrency") {
                message += ": a request takes one slot, whatever it costs";
                help = "add a rate or a quota, or leave it out";
            }
            self.report_with_help(codes::CONFLICT, message, fields.place("cost"), help);
        }
        // Of a lease it is told elsewhere that there is no rate.
        let is_told = |name: &str| name == "counting" && says("counting", "leased");
        for name in KEPT.into_iter().filter(|name| has(name) && !is_told(name)) {
            let message = if name != "over" && adapts(fields) && !any(&CHARGED) {
                format!(
                    "{name} does nothing for a limit that adapts: it is counted in each process by itself"
                )
            } else if has("unlimited") && !any(LIMIT_KINDS) {
                format!("{name} does nothing where all is unlimited: nothing is counted")
            } else if name == "slot" && says("counting", "local") {
                "slot does nothing where counting is local: no store is asked".to_owned()
            } else {
                continue;
            };
            self.report_with_help(codes::CONFLICT, message, fields.place(name), "leave it out");
        }
    }

    /// The key of a rule, and those to fall back to.
    fn keys(&mut self, node: &Node) -> Vec<Vec<KeyPart>> {
        let Value::Map(_) = &node.value else {
            return vec![self.key(node)];
        };
        let Some(fields) = self.fields(node, "a key", KEY) else {
            return Vec::new();
        };
        let message = "expected the keys of which the first is taken";
        let help = "write {first: [user, ip]}, or a list of facts such as [user, method]";
        let Some(first) = self.required(&fields, "first", message, help) else {
            return Vec::new();
        };
        let Value::List(items) = &first.value else {
            self.unexpected(first, "a list of keys, such as [user, ip]");
            return Vec::new();
        };
        let mut keys: Vec<Vec<KeyPart>> = Vec::with_capacity(items.len());
        for item in items {
            let key = self.key(item);
            if matches!(&item.value, Value::List(parts) if parts.is_empty()) {
                let message =
                    "a key without facts, where the first key is taken that a request has";
                let help = "leave it out, and say on_missing_key: one_counter: all others count together then";
                self.report_with_help(codes::EMPTY, message, item.span, help);
            } else if let Some(before) = keys.iter().find(|before| is_implied_by(before, &key)) {
                let message =
                    "this key is never taken: a request that has it has the one before, too";
                let names: Vec<_> = before.iter().map(key_part).collect();
                let help = if before.len() == key.len() {
                    "leave out one of them".to_owned()
                } else {
                    format!("put it before [{}], or leave it out", names.join(", "))
                };
                self.report_with_help(codes::BAD_KEY, message, item.span, help);
            } else if keys.len() == MOST_KEYS {
                let message = format!("more than {MOST_KEYS} keys");
                self.error(codes::BAD_KEY, message, item.span);
                break;
            } else if !key.is_empty() {
                keys.push(key);
            }
        }
        if items.is_empty() {
            let message = "expected at least one key";
            self.error(codes::EMPTY, message, first.span);
        }
        keys
    }

    /// Which facts make a key: one, or a list of them, each once.
    fn key(&mut self, node: &Node) -> Vec<KeyPart> {
        let expected = "a fact or a list of facts, such as [user] or [ip/64, method]";
        // No facts at all are one counter for all, as if there were no key.
        let items = node.items();
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            let Some(text) = self.text(item, expected) else {
                continue;
            };
            let Some(part) = self.key_part(&text, item) else {
                continue;
            };
            if parts.contains(&part) {
                let message = format!("{:?} is in this key twice", shorten(&text));
                self.error(codes::BAD_KEY, message, item.span);
            } else if parts.len() == MOST_KEY_FACTS {
                let message = format!("a key of more than {MOST_KEY_FACTS} facts");
                self.error(codes::BAD_KEY, message, item.span);
                break;
            } else {
                parts.push(part);
            }
        }
        parts
    }

    fn key_part(&mut self, text: &str, node: &Node) -> Option<KeyPart> {
        let Some((fact, bits)) = text.split_once('/') else {
            return self.fact(node).map(KeyPart::Fact);
        };
        let number = bits.parse::<u8>().ok();
        let number = number.filter(|number| (1..=128).contains(number));
        // In one way only, as the schema has it.
        let Some(number) = number.filter(|number| number.to_string() == bits) else {
            let (from, length) = (fact.chars().count() + 1, bits.chars().count());
            let span = self.sources.within(node.span, text, from, length);
            let message = "expected 1 to 128 bits after \"/\"";
            let help = "ip/64 counts all addresses of a network of 64 bits together";
            return self.reject(codes::BAD_KEY, message, span, help);
        };
        if fact.chars().count() > LONGEST_NAME {
            let message = "the name of a fact has more than 200 characters";
            return self.reject_bare(codes::BAD_NAME, message, node.span);
        }
        if fact.is_empty() {
            let message = "expected a fact before \"/\", as in ip/64";
            return self.reject_bare(codes::BAD_KEY, message, node.span);
        }
        let fact = self.fact_named(fact.to_owned(), node.span)?;
        self.mention(&fact, node.span, Part::Other);
        Some(KeyPart::Network { fact, bits: number })
    }

    /// What happens to requests without the key, if that is said.
    fn on_missing_key(
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
            let span = fields.place("on_missing_key");
            let help = "add a key such as [user], or leave it out";
            self.report_with_help(codes::CONFLICT, message, span, help);
        }
        self.word(node, "way to treat a missing key", MISSING_KEY_WORDS)
    }

    /// The fact of the key that says in which slot of a cluster a key is.
    fn slot(&mut self, node: &Node, keys: &[Vec<KeyPart>]) -> Option<String> {
        let fact = self.fact(node)?;
        if !keys.iter().flatten().any(|part| part.fact() == fact) {
            let message = format!("the slot {fact:?} is no fact of the key");
            let help = "name one of the facts of the key, or leave it out: the first is taken";
            self.report_with_help(codes::CONFLICT, message, node.span, help);
        }
        Some(fact)
    }

    /// One name or a list of them.
    fn names(&mut self, node: &Node, what: &str) -> Vec<(String, Span)> {
        let items = self.list_or_single(node, what);
        let names = items
            .iter()
            .filter_map(|item| Some((self.name(item, what)?, item.span)));
        names.collect()
    }

    /// The mode of a whole policy, which has no parts.
    pub(super) fn read_policy_mode(&mut self, node: &Node) -> Mode {
        if let Value::Map(_) = &node.value {
            let message = "expected a mode: enforce, shadow or off, found a map";
            let help = "only a rule is enforced for a part of its keys: say it there";
            self.report_with_help(codes::WRONG_TYPE, message, node.span, help);
            return Mode::Enforce;
        }
        self.word(node, "mode", MODES).unwrap_or_default()
    }

    /// A rule's mode, and for how many of a hundred keys it is enforced.
    fn rollout(&mut self, fields: &Fields<'_>, keys: &[Vec<KeyPart>]) -> (Mode, u8) {
        const ALL: u8 = 100;
        let Some(node) = fields.get("mode") else {
            return (Mode::Enforce, ALL);
        };
        let Value::Map(_) = &node.value else {
            return (self.word(node, "mode", MODES).unwrap_or_default(), ALL);
        };
        let Some(part) = self.fields(node, "a mode", ROLLOUT) else {
            return (Mode::Enforce, ALL);
        };
        let message = "expected the part of the keys for which it is enforced";
        let help = "write {enforce: 10%}, or one of enforce, shadow and off";
        let percent = self.required(&part, "enforce", message, help);
        let percent = percent.and_then(|node| self.percent(node));
        if keys.iter().all(Vec::is_empty) {
            let message = "it is to be enforced for a part of its keys, but it has no key";
            let help = "give it a key such as [user], or say enforce or shadow for all requests";
            self.report_with_help(codes::CONFLICT, message, node.span, help);
        }
        (Mode::Enforce, percent.unwrap_or(ALL))
    }

    /// For how long its rates grow after a start.
    fn warm_up(&mut self, fields: &Fields<'_>, limits: &Limits) -> Option<Duration> {
        let node = fields.get("warm_up")?;
        let place = fields.place("warm_up");
        let length = self.duration(node, "a length of time such as 30s")?;
        if fields.get("rate").is_none() {
            let message = "warm_up lets rates grow, but there is no rate";
            let help = "add a rate, or leave it out: quotas and slots don't warm up";
            return self.reject(codes::CONFLICT, message, place, help);
        }
        if let Some(rate) = limits.rates.iter().find(|rate| !can_warm_up(**rate)) {
            let message =
                format!("{rate} can't be warmed up: a part of it can't be counted exactly enough");
            let help = "use another rate, or leave warm_up out";
            return self.reject(codes::UNREPRESENTABLE, message, place, help);
        }
        Some(length)
    }

    /// What a rule or tier does while the store can't be asked, and whether it says so itself.
    fn failures(&mut self, fields: &Fields<'_>) -> (FailureModes, bool) {
        let Some(node) = fields.get("on_store_failure") else {
            return (self.failure, false);
        };
        for (name, _) in node.fields() {
            let kind = name.text().unwrap_or_default();
            if LIMIT_KINDS.contains(&kind) && fields.get(kind).is_none() {
                let message = format!("{kind} does nothing here: there is no {kind}");
                self.report_with_help(codes::CONFLICT, message, name.span, "leave it out");
            }
        }
        self.read_failure_map(node)
    }

    /// One word for all, or a map of them; and whether it says more than `inherit`.
    pub(super) fn read_failure_map(&mut self, node: &Node) -> (FailureModes, bool) {
        let whole = self.failure;
        if !matches!(node.value, Value::Map(_)) {
            let all = self.word(node, "way to fail", FAILURES).flatten();
            return (all.map_or(whole, FailureModes::from), all.is_some());
        }
        let before = self.problems.len();
        let Some(fields) = self.fields(node, "ways to fail by kind", LIMIT_KINDS) else {
            return (whole, false);
        };
        if fields.iter().next().is_none() && self.problems.len() == before {
            let message = "expected ways to fail by kind, but there is nothing in it";
            let help = "write one such as {rate: local, quota: closed}, or one word for all";
            self.report_with_help(codes::EMPTY, message, node.span, help);
        }
        let mut read = |kind: &str, whole: OnStoreFailure| {
            let word = |node| self.word(node, "way to fail", FAILURES).flatten();
            fields.get(kind).and_then(word).unwrap_or(whole)
        };
        let modes = FailureModes {
            rate: read("rate", whole.rate),
            quota: read("quota", whole.quota),
            concurrency: read("concurrency", whole.concurrency),
        };
        (modes, true)
    }

    fn counting(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        says_failure: bool,
    ) -> Counting {
        let Some(node) = fields.get("counting") else {
            return Counting::default();
        };
        let counting = self.word(node, "way to count", COUNTINGS);
        let counting = counting.unwrap_or_default();
        if counting == Counting::Leased && !(is_bucket(algorithm) && fields.get("rate").is_some()) {
            let span = fields.place("counting");
            let help = "say exact, or leave it out";
            self.report_with_help(codes::CONFLICT, NOT_LEASABLE_MESSAGE, span, help);
        }
        if counting == Counting::Local && says_failure {
            let (span, help) = (fields.place("on_store_failure"), "leave out one of them");
            self.report_with_help(codes::CONFLICT, NO_STORE_MESSAGE, span, help);
        }
        counting
    }

    fn algorithm(&mut self, fields: &Fields<'_>) -> Algorithm {
        let Some(node) = fields.get("algorithm") else {
            return Algorithm::Gcra;
        };
        let meant = node.text().and_then(|text| match text {
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
            let (span, help) = (fields.place("algorithm"), "add a rate, or leave it out");
            self.report_with_help(codes::CONFLICT, message, span, help);
        }
        self.word(node, "algorithm", ALGORITHMS)
            .unwrap_or(Algorithm::Gcra)
    }
}

/// Whether each request that has all facts of `key` has those of `before`.
fn is_implied_by(before: &[KeyPart], key: &[KeyPart]) -> bool {
    let has = |fact: &str| key.iter().any(|part| part.fact() == fact);
    !key.is_empty() && before.iter().all(|part| has(part.fact()))
}

/// Where the fields of a rule or a tier stand, but those of its limits.
fn rule_spans(fields: &Fields<'_>) -> RuleSpans {
    let name = fields.get("name");
    RuleSpans {
        name: name.map_or(first_line(fields.span), |name| name.span),
        key: fields.place("key"),
        on_store_failure: fields.place("on_store_failure"),
        concurrency: fields.place("concurrency"),
        shed: fields.place("shed"),
        shared: fields.place("shared"),
        ..RuleSpans::default()
    }
}

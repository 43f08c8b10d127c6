//! One rule or tier: its limits, what a request costs, and what happens when they are reached.

use tollgate::{Algorithm, Rate};

use super::codes;
use super::failure::WrittenFailures;
use super::fields::{RULE, TIER};
use super::idle::{RULE_KEPT, TIER_KEPT};
use super::reader::{Fields, Reader};
use super::words::{ALGORITHMS, ASKS_NO_STORE, COUNTINGS, MISSING_KEYS, NOT_LEASED, lends};
use super::{LimitPlaces, RulePlaces, TierPlaces};
use crate::document::{Node, Span, Value};
use crate::policy::{Counting, KeyPart, Limits, Match, OnMissingKey, Rule, Tier};

/// Most rates of one rule or tier.
const MOST_RATES: usize = 16;

/// A rule as far as its own lines tell.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) rule: Rule,
    /// What it says itself of failures of the store.
    pub(super) failure: WrittenFailures,
    pub(super) places: RulePlaces,
}

/// A tier, likewise.
#[derive(Debug)]
pub(super) struct TierDraft {
    pub(super) tier: Tier,
    pub(super) failure: WrittenFailures,
    pub(super) places: TierPlaces,
}

impl Reader<'_> {
    pub(super) fn rule(&mut self, node: &Node) -> Option<Draft> {
        let fields = self.fields(node, "a rule", RULE)?;
        self.idle(&fields, RULE_KEPT);
        let name = self.rule_name(fields.get("name"), node);
        let matches = match fields.get("match") {
            Some(node) => self.matches(node),
            None => Match::default(),
        };
        let mut keys = fields
            .get("key")
            .map_or_else(Vec::new, |node| self.keys(node));
        let on_missing_key = self.on_missing_key(&fields, &keys);
        let algorithm = self.algorithm(&fields);
        let (limits, places) = self.limits(&fields, algorithm, "rule");
        let (adaptive, shed) = (self.adaptive(&fields), self.shed(&fields));
        let cost = self.own_cost(&fields, &limits, &places);
        let (mode, enforced_percent) = self.rollout(&fields, &keys);
        let warm_up = self.warm_up(&fields, &limits);
        let over = self.over(&fields);
        let failure = self.failures(&fields);
        let counting = self.counting(&fields, algorithm, failure);
        let slot = fields.get("slot");
        let slot = slot.and_then(|node| self.slot(node, &keys));
        let replaces = fields.get("replaces");
        let replaces = replaces.map(|node| self.names(node, "the name of a rule"));
        let (replaces, replace_places) = replaces.unwrap_or_default().into_iter().unzip();
        let shared = fields.get("shared");
        let shared = shared.and_then(|node| self.name(node, "the name of a shared counter"));
        let places = rule_places(&fields, node.span, replace_places, places);
        let fallback_keys = keys.split_off(keys.len().min(1));
        let rule = Rule {
            name: name?,
            matches,
            key: keys.pop().unwrap_or_default(),
            fallback_keys,
            on_missing_key,
            on_store_failure: failure.or(WrittenFailures::default()),
            counting,
            slot,
            limits,
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
            span: node.span,
        };
        Some(Draft {
            rule,
            failure,
            places,
        })
    }

    /// The name of a rule, which it must have.
    fn rule_name(&mut self, name: Option<&Node>, rule: &Node) -> Option<String> {
        if let Some(node) = name {
            return self.name(node, "the name of a rule");
        }
        let message = "expected a name for this rule";
        let help = "add one such as name: per-user; verdicts and metrics show it";
        self.error_with(codes::MISSING_FIELD, message, first_line(rule.span), help);
        None
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
            self.error_with(codes::CONFLICT, message, span, help);
        }
        self.word(node, "way to treat a missing key", MISSING_KEYS)
    }

    /// The fact of the key that says in which slot of a cluster a key is.
    fn slot(&mut self, node: &Node, keys: &[Vec<KeyPart>]) -> Option<String> {
        let fact = self.fact(node)?;
        if !keys.iter().flatten().any(|part| part.fact() == fact) {
            let message = format!("the slot {fact:?} is no fact of the key");
            let help = "name one of the facts of the key, or leave it out: the first is taken";
            self.error_with(codes::CONFLICT, message, node.span, help);
        }
        Some(fact)
    }

    pub(super) fn tier(&mut self, node: &Node) -> Option<TierDraft> {
        let fields = self.fields(node, "a tier", TIER)?;
        self.idle(&fields, TIER_KEPT);
        let algorithm = self.algorithm(&fields);
        let (limits, places) = self.limits(&fields, algorithm, "tier");
        let cost = self.own_cost(&fields, &limits, &places);
        let over = self.over(&fields);
        let failure = self.failures(&fields);
        let tier = Tier {
            algorithm,
            cost,
            over,
            counting: self.counting(&fields, algorithm, failure),
            span: node.span,
            ..Tier::new(limits)
        };
        Some(TierDraft {
            tier,
            failure,
            places: TierPlaces {
                name: Span::default(),
                on_store_failure: fields.place("on_store_failure"),
                limits: places,
            },
        })
    }

    /// One name or a list of them.
    pub(super) fn names(&mut self, node: &Node, what: &str) -> Vec<(String, Span)> {
        let items = self.one_or_more(node, what);
        let names = items
            .iter()
            .filter_map(|item| Some((self.name(item, what)?, item.span)));
        names.collect()
    }

    fn counting(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        failure: WrittenFailures,
    ) -> Counting {
        let Some(node) = fields.get("counting") else {
            return Counting::default();
        };
        let counting = self.word(node, "way to count", COUNTINGS);
        let counting = counting.unwrap_or_default();
        if counting == Counting::Leased && !(lends(algorithm) && fields.get("rate").is_some()) {
            let span = fields.place("counting");
            let help = "say exact, or leave it out";
            self.error_with(codes::CONFLICT, NOT_LEASED, span, help);
        }
        if counting == Counting::Local && failure.says {
            let span = fields.place("on_store_failure");
            self.error_with(
                codes::CONFLICT,
                ASKS_NO_STORE,
                span,
                "leave out one of them",
            );
        }
        counting
    }

    fn algorithm(&mut self, fields: &Fields<'_>) -> Algorithm {
        let Some(node) = fields.get("algorithm") else {
            return Algorithm::Gcra;
        };
        if let Value::Text(text) = &node.value {
            let meant = match text.as_str() {
                "leaky-bucket" | "leaky_bucket" => "leaky",
                "sliding-counter" | "sliding_counter" => "sliding-window",
                _ => "",
            };
            if !meant.is_empty() {
                let message = format!("unknown algorithm {text:?}");
                let help = format!("did you mean {meant:?}?");
                self.error_with(codes::UNKNOWN_VALUE, message, node.span, help);
                return Algorithm::Gcra;
            }
        }
        if fields.get("rate").is_none() {
            let message = "an algorithm says how rates are counted, but there is no rate";
            let span = fields.place("algorithm");
            self.error_with(
                codes::CONFLICT,
                message,
                span,
                "add a rate, or leave it out",
            );
        }
        self.word(node, "algorithm", ALGORITHMS)
            .unwrap_or(Algorithm::Gcra)
    }

    fn limits(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        what: &str,
    ) -> (Limits, LimitPlaces) {
        let mut limits = Limits::default();
        let mut places = LimitPlaces::default();
        if let Some(node) = fields.get("rate") {
            for item in self.one_or_more(node, RATE) {
                if limits.rates.len() == MOST_RATES {
                    let message = format!("more than {MOST_RATES} rates");
                    self.error(codes::OUT_OF_RANGE, message, item.span);
                    break;
                }
                if let Some(rate) = self.rate(item, algorithm) {
                    limits.rates.push(rate);
                    places.rates.push(item.span);
                }
            }
        }
        if let Some(node) = fields.get("quota") {
            limits.quota = self.quota(node);
            places.quota = node.span;
        }
        if let Some(node) = fields.get("concurrency") {
            limits.concurrency = match node.value {
                // A law that finds it, which is read by itself.
                Value::Map(_) if what == "rule" => None,
                _ => self.concurrency(node),
            };
        }
        if let Some(node) = fields.get("unlimited") {
            limits.unlimited = self.flag(node).unwrap_or(false);
        }
        let limiting = ["rate", "quota", "concurrency"];
        let limiting = limiting.iter().find(|name| fields.get(name).is_some());
        match (limiting, fields.get("unlimited")) {
            (Some(name), Some(node)) if limits.unlimited => {
                let message = format!("unlimited, but with a {name}");
                self.error_with(codes::CONFLICT, message, node.span, "leave out one of them");
            }
            (None, Some(node)) if !limits.unlimited && node.value == Value::Bool(false) => {
                self.no_limit(fields, what);
            }
            (None, None) => self.no_limit(fields, what),
            _ => {}
        }
        (limits, places)
    }

    fn no_limit(&mut self, fields: &Fields<'_>, what: &str) {
        let message = format!("this {what} has no limit");
        let help = match limit_in_match(fields) {
            Some(name) => format!("{name:?} stands inside match: move it one level to the left"),
            None => "give it a rate, a quota or a concurrency, or say unlimited: true".to_owned(),
        };
        let span = first_line(fields.span);
        self.error_with(codes::NO_LIMIT, message, span, help);
    }

    fn rate(&mut self, node: &Node, algorithm: Algorithm) -> Option<Rate> {
        let Value::Text(text) = &node.value else {
            match node.value {
                Value::Integer(number) if number > 0 => {
                    let message = format!("expected {RATE}, found a whole number");
                    let help = format!("say in how long: {number}/s");
                    self.error_with(codes::WRONG_TYPE, message, node.span, help);
                }
                _ => self.unexpected(node, RATE),
            }
            return None;
        };
        let rate: Rate = match text.parse() {
            Ok(rate) => rate,
            Err(error) => {
                let error: tollgate::core::RateParseError = error;
                let place = error.place();
                let chars = |bytes: usize| text.get(..bytes).map_or(0, |part| part.chars().count());
                let (from, to) = (chars(place.start), chars(place.end));
                let span = self.sources.within(node.span, text, from, to - from);
                let (message, help) = one_line(&error.to_string());
                self.error_with(codes::BAD_RATE, message, span, help);
                return None;
            }
        };
        if rate.is_unlimited() {
            let help = "leave it out, or say unlimited: true";
            self.error_with(codes::BAD_RATE, "an unlimited rate", node.span, help);
            return None;
        }
        if let Err(error) = algorithm.takes(rate) {
            let text = error.to_string();
            let text = text
                .strip_prefix(&format!("rate \"{rate}\""))
                .unwrap_or(&text);
            let text = text.trim_start_matches([':', ' ']);
            let (message, help) = text.split_once("; ").unwrap_or((text, "use another rate"));
            self.error_with(codes::UNREPRESENTABLE, message, node.span, help);
            return None;
        }
        Some(rate)
    }

    fn concurrency(&mut self, node: &Node) -> Option<u32> {
        if let Value::Map(_) = node.value {
            let message = "expected how many at once, a whole number from 1, found a map";
            let help =
                "only a rule may have a limit that adapts: a tier's slots are for each tenant";
            self.error_with(codes::WRONG_TYPE, message, node.span, help);
            return None;
        }
        let number = self.number(node, "how many at once, a whole number from 1")?;
        match u32::try_from(number) {
            Ok(0) => {
                let message = "a concurrency of 0 lets nothing pass";
                let help = "list the requests under block if none of them may pass";
                self.error_with(codes::NOTHING_PASSES, message, node.span, help);
                None
            }
            Ok(number) => Some(number),
            Err(_) => {
                let message = format!("{number} at once is above {}", u32::MAX);
                self.error(codes::OUT_OF_RANGE, message, node.span);
                None
            }
        }
    }
}

/// Where the fields of a rule stand.
fn rule_places(
    fields: &Fields<'_>,
    rule: Span,
    replaces: Vec<Span>,
    limits: LimitPlaces,
) -> RulePlaces {
    let name = fields.get("name");
    RulePlaces {
        name: name.map_or(first_line(rule), |name| name.span),
        key: fields.place("key"),
        on_store_failure: fields.place("on_store_failure"),
        concurrency: fields.place("concurrency"),
        shed: fields.place("shed"),
        shared: fields.place("shared"),
        replaces,
        limits,
    }
}

const RATE: &str = "a rate such as 10/s burst 20";

/// A place for something that is missing from a whole map: its first character.
pub(super) fn first_line(span: Span) -> Span {
    if span.end.line == span.start.line {
        return span;
    }
    Span {
        end: span.start,
        ..span
    }
}

/// The limit that stands among the conditions of a rule, where it was indented too far.
fn limit_in_match(fields: &Fields<'_>) -> Option<&'static str> {
    let (_, _, conditions) = fields.iter().find(|(name, ..)| *name == "match")?;
    let Value::Map(conditions) = &conditions.value else {
        return None;
    };
    let limits = ["rate", "quota", "concurrency", "unlimited"];
    limits.into_iter().find(|limit| {
        let mut names = conditions.iter().map(|(name, _)| &name.value);
        names.any(|name| matches!(name, Value::Text(text) if text == limit))
    })
}

/// The first line of a rate's error without what the file's line and column say: what is wrong, and
/// what to write.
pub(super) fn one_line(text: &str) -> (String, String) {
    let line = text.lines().next().unwrap_or("");
    // The quoted text may hold the same marks, so it is skipped by its escaped quote.
    let why = line.rfind("\": ").map_or(line, |at| &line[at + 3..]);
    let (message, help) = why
        .split_once("; ")
        .unwrap_or((why, "write a rate such as 100/s burst 200"));
    let mut message = message.to_owned();
    for before in [" at column ", "column "] {
        if let Some(at) = message.find(before) {
            let digits = &message[at + before.len()..];
            let digits = digits.len()
                - digits
                    .trim_start_matches(|c: char| c.is_ascii_digit())
                    .len();
            let this = if before == "column " { "it" } else { "" };
            message.replace_range(at..at + before.len() + digits, this);
        }
    }
    (message, help.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rates_error_is_one_line_without_its_own_columns() {
        let line = |text: &str| one_line(&text.parse::<Rate>().unwrap_err().to_string());
        let (message, help) = line("100/fortnight");
        assert_eq!(message, "unknown unit \"fortnight\"");
        assert_eq!(help, "use ns, us, ms, s, m (minute), h, d or w");
        assert_eq!(line("0.5/s").0, "numbers are whole, but it has a fraction");
        assert_eq!(
            line("10").0,
            "expected \"/\" or \"per\" and a period, as in 100/s or 10 per 250ms"
        );
        assert_eq!(line("10/0s").0, "the period is zero");
        assert_eq!(
            line("10/s burst").0,
            "expected a whole number after \"burst\""
        );
        assert_eq!(line("").0, "it is empty");
    }
}

//! What a request costs a rule or a tier: a number, or the fact that says it.

use std::time::Duration;

use tollgate::Rate;

use super::LimitPlaces;
use super::codes;
use super::fields::COST;
use super::reader::{Fields, Reader, shorten};
use super::words::UNSETTLED;
use crate::document::{Node, Span, Value};
use crate::policy::{Cost, Limits, Over, Settle};
use crate::suggest;

/// The longest that anything may wait: as good as for ever, and well within what a clock can show.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Reader<'_> {
    /// What a request costs. Notes a cost that is too much for one of the limits.
    pub(super) fn own_cost(
        &mut self,
        fields: &Fields<'_>,
        limits: &Limits,
        places: &LimitPlaces,
    ) -> Cost {
        let Some(node) = fields.get("cost") else {
            return Cost::default();
        };
        let cost = self.cost(node);
        self.cost_fits(&cost, limits, places, node);
        cost
    }

    fn cost(&mut self, node: &Node) -> Cost {
        match &node.value {
            Value::Map(_) => {
                let Some(fields) = self.fields(node, "a cost", COST) else {
                    return Cost::default();
                };
                let is_settled = fields.get("settle_within").is_some();
                let says = fields.get("default").filter(|_| is_settled);
                if fields.get("fact").or(says).is_none() {
                    let message = "expected the fact that says the cost";
                    let help = "write {fact: tokens, default: 1}, or just a number";
                    self.error_with(codes::MISSING_FIELD, message, node.span, help);
                }
                let fact = fields.get("fact").and_then(|node| self.fact(node));
                let default = fields.get("default");
                let default = default.and_then(|node| self.number(node, "a whole number from 0"));
                Cost {
                    fact,
                    default: default.unwrap_or(1),
                    settle: self.settle(&fields),
                }
            }
            Value::Integer(0) => {
                let message = "a cost of 0 only looks at the limit: it would never be reached";
                let help = "leave the cost out for 1, or take the rule out";
                self.error_with(codes::COST_ZERO, message, node.span, help);
                Cost::default()
            }
            Value::Integer(_) => Cost {
                default: self.number(node, "a whole number from 1").unwrap_or(1),
                ..Cost::default()
            },
            Value::Text(text) => {
                let message = "expected a number or {fact: …, default: …}, found text";
                let help = format!("write {{fact: {}}} if a fact says it", shorten(text));
                self.error_with(codes::WRONG_TYPE, message, node.span, help);
                Cost::default()
            }
            _ => {
                self.unexpected(node, "a whole number or {fact: tokens, default: 1}");
                Cost::default()
            }
        }
    }

    /// Whether the cost is an estimate, and for how long.
    fn settle(&mut self, fields: &Fields<'_>) -> Option<Settle> {
        let unsettled = fields.get("unsettled");
        let unsettled = unsettled
            .map(|node| self.word(node, "way to charge what isn't settled", UNSETTLED))
            .map(Option::unwrap_or_default);
        let Some(node) = fields.get("settle_within") else {
            if unsettled.is_some() {
                let message = "unsettled does nothing where the cost is no estimate";
                let help = "say for how long it is one, as in settle_within: 60s, or leave it out";
                self.error_with(codes::CONFLICT, message, fields.place("unsettled"), help);
            }
            return None;
        };
        let within = self.duration(node, "how long a cost may take to be known, such as 60s")?;
        Some(Settle {
            within,
            unsettled: unsettled.unwrap_or_default(),
        })
    }

    /// What becomes of a request that is over the limit.
    pub(super) fn over(&mut self, fields: &Fields<'_>) -> Over {
        const EXPECTED: &str = "refuse, or wait and for how long: wait 200ms";
        let Some(node) = fields.get("over") else {
            return Over::Refuse;
        };
        let Value::Text(text) = &node.value else {
            self.unexpected(node, EXPECTED);
            return Over::Refuse;
        };
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or("");
        let rest = text.trim_start().get(word.len()..).unwrap_or("").trim();
        match (word, rest) {
            ("refuse", "") => Over::Refuse,
            ("wait", "") => {
                let message = "expected how long a request may wait";
                self.error_with(codes::WRONG_TYPE, message, node.span, "write wait 200ms");
                Over::Refuse
            }
            ("wait", length) => match self.length(length, node.span) {
                Some(length) => Over::Wait(length),
                None => Over::Refuse,
            },
            _ => {
                let message = format!("unknown answer {:?} to what is over", shorten(text));
                let help = suggest::closest(word, ["refuse", "wait"]).map_or_else(
                    || EXPECTED.to_owned(),
                    |near| match near {
                        "wait" => "write wait and for how long: wait 200ms".to_owned(),
                        _ => format!("did you mean {near:?}?"),
                    },
                );
                self.error_with(codes::UNKNOWN_VALUE, message, node.span, help);
                Over::Refuse
            }
        }
    }

    /// A length of time.
    pub(super) fn duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let text = match &node.value {
            Value::Text(text) => text,
            Value::Integer(number @ 1..) => {
                let message = format!("expected {what}, found a whole number");
                let help = format!("say its unit: {number}s");
                self.error_with(codes::WRONG_TYPE, message, node.span, help);
                return None;
            }
            _ => {
                self.unexpected(node, what);
                return None;
            }
        };
        self.length(text, node.span)
    }

    fn length(&mut self, text: &str, span: Span) -> Option<Duration> {
        let is_one_word = text
            .chars()
            .all(|sign| sign.is_alphanumeric() || sign == '_');
        let is_counted = text.starts_with(|sign: char| sign.is_ascii_digit());
        // The same units, read by the same code, as of a rate's period.
        let rate: Option<Rate> = format!("1 per {text}").parse().ok();
        let length = rate.filter(|_| is_one_word && is_counted);
        let help = "write a whole number and a unit: 200ms, 30s, 5m or 2h";
        let Some(length) = length.and_then(|rate| rate.period()) else {
            let digits = text.trim_end_matches(char::is_alphabetic);
            let is_zero = is_counted && is_one_word && digits.chars().all(|sign| sign == '0');
            let message = if is_zero {
                "a length of time must be above zero".to_owned()
            } else {
                format!("{:?} is no length of time", shorten(text))
            };
            self.error_with(codes::WRONG_TYPE, message, span, help);
            return None;
        };
        if length > LONGEST {
            let message = "nothing waits for longer than a year";
            self.error_with(codes::OUT_OF_RANGE, message, span, help);
            return None;
        }
        Some(length)
    }

    /// Notes a cost that no limit of the rule can ever admit.
    fn cost_fits(&mut self, cost: &Cost, limits: &Limits, places: &LimitPlaces, node: &Node) {
        let rates = limits.rates.iter().zip(&places.rates);
        let bursts = rates.map(|(rate, place)| ("burst", rate.burst_size(), *place));
        let quota = limits.quota.as_ref();
        let quota = quota.map(|quota| ("quota", quota.count(), places.quota));
        for (what, most, place) in bursts.chain(quota) {
            if cost.default > most && most > 0 {
                let message = format!(
                    "a cost of {} is above the {what} of {most} on line {}: nothing would pass",
                    cost.default, place.start.line
                );
                let help = format!("raise the {what} to the cost at least");
                self.error_with(codes::NOTHING_PASSES, message, node.span, help);
            }
        }
    }
}

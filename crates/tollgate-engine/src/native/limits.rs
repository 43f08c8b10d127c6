//! Reads the limits of a rule or a tier: rates, quota, concurrency, the cost of a request, and the action for a
//! request over the limit.

use std::time::Duration;

use tollgate::quota::{Quota, QuotaError};
use tollgate::{Algorithm, ConcurrencyLimiter, Rate};
use tollgate_adaptive::shed::{Criticality, CriticalityShares};

use super::RuleSpans;
use super::codes;
use super::field_names::{
    ADAPTIVE_FIELDS, COST_FIELDS, LIMIT_KINDS, SHED_FIELDS, TIER_FIELDS, UNSETTLED_WORDS,
    adaptive_algorithm_words, words_of,
};
use super::reader::{Fields, PolicyReader, first_char_if_multiline, truncate_text};
use crate::document::{Node, Span, Value};
use crate::policy::{Adaptive, Cost, Limits, OverLimitAction, Settlement, Shedding};
use crate::suggestions;

/// Most rates of one rule or tier.
const MAX_RATES: usize = 16;
/// The longest duration in a policy: as good as forever, and well within the range of a clock.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const RATE_EXAMPLE: &str = "a rate such as 10/s burst 20";
const QUOTA_EXAMPLE: &str = "a quota such as 10000/month or 500 in any 30d";
const ADAPTIVE_EXAMPLE: &str = "{adaptive: little, min: 10, max: 200}";

/// Whether the concurrency limit is adaptive. Only rules may have adaptive limits.
pub(super) fn is_adaptive(fields: &Fields<'_>) -> bool {
    let node = fields
        .get("concurrency")
        .filter(|_| !fields.is_of(TIER_FIELDS));
    node.is_some_and(|node| matches!(node.value, Value::Map(_)))
}

/// The minimum of an adaptive limit for which the policy sets none. An algorithm that mistakes slow calls for a queue
/// falls to the minimum and stays there, so the default is a number that most services can bear. A minimum of 1 would
/// leave one call of a hundred.
fn default_adaptive_min(max: u32) -> u32 {
    (max / 2).clamp(1, 10)
}

impl PolicyReader<'_> {
    /// The limits of a rule or a tier.
    pub(super) fn read_limits(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        places: &mut RuleSpans,
    ) -> Limits {
        let mut limits = Limits::default();
        if let Some(node) = fields.get("rate") {
            for item in self.list_or_single(node, RATE_EXAMPLE) {
                if limits.rates.len() == MAX_RATES {
                    let message = format!("more than {MAX_RATES} rates");
                    self.report(codes::OUT_OF_RANGE, message, item.span);
                    break;
                }
                if let Some(rate) = self.read_rate(item, algorithm) {
                    limits.rates.push(rate);
                    places.rates.push(item.span);
                }
            }
        }
        if let Some(node) = fields.get("quota") {
            limits.quota = self.read_quota(node);
            places.quota = node.span;
        }
        // `read_adaptive` reads an adaptive concurrency limit.
        let concurrency = fields.get("concurrency");
        let concurrency = concurrency.filter(|_| !is_adaptive(fields));
        limits.concurrency = concurrency.and_then(|node| self.read_concurrency(node));
        let unlimited = fields.get("unlimited");
        limits.unlimited = unlimited
            .and_then(|node| self.read_flag(node))
            .unwrap_or(false);
        let mut limiting = LIMIT_KINDS.iter();
        let limiting = limiting.find(|name| fields.get(name).is_some());
        match (limiting, unlimited) {
            (Some(name), Some(node)) if limits.unlimited => {
                let message = format!("unlimited, but with a {name}");
                self.report_with_help(codes::CONFLICT, message, node.span, "leave out one of them");
            }
            (None, Some(node)) if node.value != Value::Bool(false) => {}
            (None, _) => self.report_no_limit(fields),
            _ => {}
        }
        limits
    }

    fn report_no_limit(&mut self, fields: &Fields<'_>) {
        let what = if fields.is_of(TIER_FIELDS) {
            "tier"
        } else {
            "rule"
        };
        let message = format!("this {what} has no limit");
        let help = match misplaced_limit(fields) {
            Some(name) => format!("{name:?} stands inside match: move it one level to the left"),
            None => "give it a rate, a quota or a concurrency, or say unlimited: true".to_owned(),
        };
        let span = first_char_if_multiline(fields.span);
        self.report_with_help(codes::NO_LIMIT, message, span, help);
    }

    /// A text with a unit. For a bare number, the error shows how to add the unit.
    fn text_with_unit<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        help: impl Fn(i64) -> String,
    ) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Integer(number @ 1..) => {
                let message = format!("expected {what}, found a whole number");
                self.reject_with_help(codes::WRONG_TYPE, message, node.span, help(*number))
            }
            _ => self.reject_type(node, what),
        }
    }

    fn read_rate(&mut self, node: &Node, algorithm: Algorithm) -> Option<Rate> {
        let text = self.text_with_unit(node, RATE_EXAMPLE, |number| {
            format!("say in how long: {number}/s")
        })?;
        let rate: Rate = match text.parse() {
            Ok(rate) => rate,
            Err(error) => {
                let error: tollgate::core::RateParseError = error;
                let place = error.span();
                let chars = |bytes: usize| text.get(..bytes).map_or(0, |part| part.chars().count());
                let (from, to) = (chars(place.start), chars(place.end));
                let span = self.sources.span_within(node.span, text, from, to - from);
                let (message, help) = rate_error_parts(&error.to_string());
                return self.reject_with_help(codes::BAD_RATE, message, span, help);
            }
        };
        if rate.is_unlimited() {
            let help = "leave it out, or say unlimited: true";
            return self.reject_with_help(codes::BAD_RATE, "an unlimited rate", node.span, help);
        }
        if let Err(error) = algorithm.check_rate(rate) {
            let text = error.to_string();
            let text = text
                .strip_prefix(&format!("rate \"{rate}\""))
                .unwrap_or(&text);
            let text = text.trim_start_matches([':', ' ']);
            let (message, help) = text.split_once("; ").unwrap_or((text, "use another rate"));
            return self.reject_with_help(codes::UNREPRESENTABLE, message, node.span, help);
        }
        Some(rate)
    }

    fn read_quota(&mut self, node: &Node) -> Option<Quota> {
        let text = self.text_with_unit(node, QUOTA_EXAMPLE, |number| {
            format!("say in how long: {number}/day")
        })?;
        let quota: Quota = match text.parse() {
            Ok(quota) => quota,
            Err(error) => return self.report_quota_error(node, text, &error),
        };
        if quota.is_unlimited() {
            let help = "leave it out, or say unlimited: true";
            return self.reject_with_help(codes::BAD_QUOTA, "an unlimited quota", node.span, help);
        }
        if quota.count() == 0 {
            let help = "list the requests under block if none of them may pass";
            let message = "a quota of 0 lets nothing pass";
            return self.reject_with_help(codes::NOTHING_PASSES, message, node.span, help);
        }
        Some(quota)
    }

    fn report_quota_error(&mut self, node: &Node, text: &str, error: &QuotaError) -> Option<Quota> {
        let example =
            "write a quota such as 10000/month, 500/day in Europe/Zurich or 900 in any 30d";
        if let Some((short, message, help)) = shortened_count(text) {
            let span = self.sources.span_within(node.span, text, 0, short);
            return self.reject_with_help(codes::BAD_QUOTA, message, span, help);
        }
        let (from, message) = match error {
            QuotaError::Parse {
                column, expected, ..
            } => (
                column - 1,
                match expected.strip_prefix("nothing that ") {
                    // "Expected nothing that …" would read oddly, so the message is only the mistake.
                    Some(cant) => cant.to_owned(),
                    None => format!("expected {expected}"),
                },
            ),
            QuotaError::UnknownZone(zone) => {
                let at = text.rfind(zone.as_str()).unwrap_or(0);
                let from = text.get(..at).map_or(0, |part| part.chars().count());
                (from, format!("unknown time zone {:?}", truncate_text(zone)))
            }
            other => {
                let message = other.to_string();
                let (message, _) = message.split_once("; ").unwrap_or((&message, ""));
                return self.reject_with_help(codes::BAD_QUOTA, message, node.span, example);
            }
        };
        let rest = text.chars().skip(from);
        let length = rest.take_while(|c| !c.is_whitespace()).count();
        let span = self.sources.span_within(node.span, text, from, length);
        self.reject_with_help(codes::BAD_QUOTA, message, span, example)
    }

    fn read_concurrency(&mut self, node: &Node) -> Option<u32> {
        if let Value::Map(_) = node.value {
            let message =
                "expected how many concurrent requests, a whole number from 1, found a map";
            let help =
                "only a rule may have a limit that adapts: a tier's slots are for each tenant";
            return self.reject_with_help(codes::WRONG_TYPE, message, node.span, help);
        }
        let number =
            self.read_count(node, "how many concurrent requests, a whole number from 1")?;
        match u32::try_from(number) {
            Ok(0) => {
                let message = "a concurrency of 0 lets nothing pass";
                let help = "list the requests under block if none of them may pass";
                self.reject_with_help(codes::NOTHING_PASSES, message, node.span, help)
            }
            Ok(number) => Some(number),
            Err(_) => {
                let message = format!("{number} concurrent is above {}", u32::MAX);
                self.reject_bare(codes::OUT_OF_RANGE, message, node.span)
            }
        }
    }

    /// The algorithm and bounds of a rule's adaptive concurrency limit, if it has one.
    pub(super) fn read_adaptive(&mut self, fields: &Fields<'_>) -> Option<Adaptive> {
        let node = fields.get("concurrency").filter(|_| is_adaptive(fields))?;
        if fields.get("shared").is_some() {
            let message = "a limit that adapts is one rule's, and can't be shared";
            let help = "give it a rule of its own, without shared";
            self.report_with_help(
                codes::CONFLICT,
                message,
                fields.describe_place("concurrency"),
                help,
            );
        }
        let own = self.read_fields(node, "a concurrency", ADAPTIVE_FIELDS)?;
        let message = "expected adaptive: the law by which the limit is found";
        let known = suggestions::or_list(&words_of(&adaptive_algorithm_words()));
        let help = format!("write {ADAPTIVE_EXAMPLE}; the laws are {known}");
        let law = self.required_field(&own, "adaptive", message, help);
        let law = law.and_then(|node| self.read_word(node, "law", &adaptive_algorithm_words()));
        let message = "expected max: how many concurrent requests there may ever be";
        let help = format!("write it as in {ADAPTIVE_EXAMPLE}");
        let max = self.required_field(&own, "max", message, help);
        let max = max.and_then(|node| self.read_adaptive_bound(node, "max"));
        let min = match own.get("min") {
            Some(node) => Some(self.read_adaptive_bound(node, "min")?),
            None => None,
        };
        let (law, max) = law.zip(max)?;
        let min = min.unwrap_or_else(|| default_adaptive_min(max));
        if min > max {
            let message = format!("a min of {min} is above the max of {max}");
            let help = format!("lower min to {max} at most, or raise max");
            return self.reject_with_help(
                codes::OUT_OF_RANGE,
                message,
                own.describe_place("min"),
                help,
            );
        }
        Some(Adaptive {
            algorithm: law,
            min,
            max,
        })
    }

    /// The minimum or maximum of an adaptive limit.
    fn read_adaptive_bound(&mut self, node: &Node, name: &str) -> Option<u32> {
        let number = self.read_count(node, &format!("{name}, a whole number from 1"))?;
        let most = ConcurrencyLimiter::MAX_LIMIT;
        match u32::try_from(number) {
            Ok(0) => {
                let message = format!("a {name} of 0 may let nothing pass");
                let help = "say 1 at least: a law learns from requests that run";
                self.reject_with_help(codes::NOTHING_PASSES, message, node.span, help)
            }
            Ok(number) if number <= most => Some(number),
            _ => {
                let message = format!("a {name} of {number} is above {most}");
                self.reject_bare(codes::OUT_OF_RANGE, message, node.span)
            }
        }
    }

    /// The order in which requests are shed when the rule has no permit left.
    pub(super) fn read_shed(&mut self, fields: &Fields<'_>) -> Option<Shedding> {
        let node = fields.get("shed")?;
        let place = fields.describe_place("shed");
        if fields.get("concurrency").is_none() {
            let message =
                "shed says who is refused first when slots run out, but there is no concurrency";
            let help = "add a concurrency, or leave it out";
            self.report_with_help(codes::CONFLICT, message, place, help);
        }
        if fields.get("shared").is_some() {
            let message =
                "rules that share a counter can't shed: each would have other shares of it";
            let help = "leave out one of them";
            self.report_with_help(codes::CONFLICT, message, place, help);
        }
        let usual = CriticalityShares::default();
        let Value::Map(_) = &node.value else {
            let by = self.read_fact(node)?;
            return Some(Shedding { by, shares: usual });
        };
        let own = self.read_fields(node, "shed", SHED_FIELDS)?;
        let message = "expected by: the fact that says how critical a request is";
        let by = self.required_field(&own, "by", message, "write it as in shed: {by: priority}");
        let by = by.and_then(|node| self.read_fact(node));
        let [sheddable, default] = [Criticality::Sheddable, Criticality::Default].map(|class| {
            let node = own.get(class.name());
            let said = node.map(|node| self.read_percent(node));
            said.unwrap_or(Some(usual.percent(class)))
        });
        let (sheddable, default) = sheddable.zip(default)?;
        if sheddable > default {
            let message = format!(
                "sheddable requests may use {sheddable}% of the limit, more than the {default}% of default ones"
            );
            let help = "those that are shed first have the smallest part";
            return self.reject_with_help(codes::CONFLICT, message, place, help);
        }
        let shares = CriticalityShares::new(sheddable, default);
        Some(Shedding { by: by?, shares })
    }

    /// The cost of a request. Reports a cost that exceeds one of the limits.
    pub(super) fn read_rule_cost(
        &mut self,
        fields: &Fields<'_>,
        limits: &Limits,
        places: &RuleSpans,
    ) -> Cost {
        let Some(node) = fields.get("cost") else {
            return Cost::default();
        };
        let cost = self.read_cost(node).unwrap_or_default();
        self.check_cost_fits(&cost, limits, places, node);
        cost
    }

    fn read_cost(&mut self, node: &Node) -> Option<Cost> {
        match &node.value {
            Value::Map(_) => {
                let fields = self.read_fields(node, "a cost", COST_FIELDS)?;
                let is_settled = fields.get("settle_within").is_some();
                let says = fields.get("default").filter(|_| is_settled);
                if fields.get("fact").or(says).is_none() {
                    let message = "expected the fact that says the cost";
                    let help = "write {fact: tokens, default: 1}, or just a number";
                    self.report_with_help(codes::MISSING_FIELD, message, node.span, help);
                }
                let fact = fields.get("fact").and_then(|node| self.read_fact(node));
                let default = fields.get("default");
                let default =
                    default.and_then(|node| self.read_count(node, "a whole number from 0"));
                Some(Cost {
                    fact,
                    default: default.unwrap_or(1),
                    settle: self.read_settle(&fields),
                })
            }
            Value::Integer(0) => {
                let message = "a cost of 0 only looks at the limit: it would never be reached";
                let help = "leave the cost out for 1, or take the rule out";
                self.reject_with_help(codes::COST_ZERO, message, node.span, help)
            }
            Value::Integer(_) => Some(Cost {
                default: self.read_count(node, "a whole number from 1")?,
                ..Cost::default()
            }),
            Value::Text(text) => {
                let message = "expected a number or {fact: …, default: …}, found text";
                let help = format!("write {{fact: {}}} if a fact says it", truncate_text(text));
                self.reject_with_help(codes::WRONG_TYPE, message, node.span, help)
            }
            _ => self.reject_type(node, "a whole number or {fact: tokens, default: 1}"),
        }
    }

    /// How long an estimate waits for its settlement, if the cost is an estimate.
    fn read_settle(&mut self, fields: &Fields<'_>) -> Option<Settlement> {
        let unsettled = fields.get("unsettled");
        let unsettled = unsettled
            .map(|node| self.read_word(node, "way to charge what isn't settled", UNSETTLED_WORDS))
            .map(Option::unwrap_or_default);
        let Some(node) = fields.get("settle_within") else {
            if unsettled.is_some() {
                let message = "unsettled does nothing where the cost is no estimate";
                let help = "say for how long it is one, as in settle_within: 60s, or leave it out";
                self.report_with_help(
                    codes::CONFLICT,
                    message,
                    fields.describe_place("unsettled"),
                    help,
                );
            }
            return None;
        };
        let within =
            self.read_duration(node, "how long a cost may take to be known, such as 60s")?;
        Some(Settlement {
            within,
            unsettled: unsettled.unwrap_or_default(),
        })
    }

    /// Reports a cost that no limit of the rule can ever admit.
    fn check_cost_fits(&mut self, cost: &Cost, limits: &Limits, places: &RuleSpans, node: &Node) {
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
                self.report_with_help(codes::NOTHING_PASSES, message, node.span, help);
            }
        }
    }

    /// The action for a request over the limit.
    pub(super) fn read_over(&mut self, fields: &Fields<'_>) -> OverLimitAction {
        let node = fields.get("over");
        let over = node.and_then(|node| self.parse_over(node));
        over.unwrap_or_default()
    }

    fn parse_over(&mut self, node: &Node) -> Option<OverLimitAction> {
        const EXPECTED: &str = "deny, or wait and for how long: wait 200ms";
        let Value::Text(text) = &node.value else {
            return self.reject_type(node, EXPECTED);
        };
        let word = text.split_whitespace().next().unwrap_or("");
        let rest = text.trim_start().get(word.len()..).unwrap_or("").trim();
        match (word, rest) {
            ("deny", "") => Some(OverLimitAction::Deny),
            ("wait", "") => {
                let message = "expected how long a request may wait";
                self.reject_with_help(codes::WRONG_TYPE, message, node.span, "write wait 200ms")
            }
            ("wait", length) => self
                .parse_duration(length, node.span)
                .map(OverLimitAction::Wait),
            _ => {
                let message = format!("unknown answer {:?} to what is over", truncate_text(text));
                let help = match suggestions::closest(word, ["deny", "wait"]) {
                    _ if word == "refuse" => "it is called deny now".to_owned(),
                    None => EXPECTED.to_owned(),
                    Some("wait") => "write wait and for how long: wait 200ms".to_owned(),
                    Some(near) => format!("did you mean {near:?}?"),
                };
                self.reject_with_help(codes::UNKNOWN_VALUE, message, node.span, help)
            }
        }
    }

    /// A duration.
    pub(super) fn read_duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let text = self.text_with_unit(node, what, |number| format!("say its unit: {number}s"))?;
        self.parse_duration(text, node.span)
    }

    fn parse_duration(&mut self, text: &str, span: Span) -> Option<Duration> {
        let in_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        let is_one_word = text.chars().all(in_word);
        let is_counted = text.starts_with(|sign: char| sign.is_ascii_digit());
        // Durations have the same units as the period of a rate, so the rate's parser reads them.
        let rate: Option<Rate> = format!("1 per {text}").parse().ok();
        let length = rate.filter(|_| is_one_word && is_counted);
        let help = "write a whole number and a unit: 200ms, 30s, 5m or 2h";
        let Some(length) = length.and_then(|rate| rate.period()) else {
            let digits = text.trim_end_matches(char::is_alphabetic);
            let is_zero = is_counted && is_one_word && digits.chars().all(|sign| sign == '0');
            let message = if is_zero {
                "a length of time must be above zero".to_owned()
            } else {
                format!("{:?} is no length of time", truncate_text(text))
            };
            return self.reject_with_help(codes::WRONG_TYPE, message, span, help);
        };
        if length > MAX_DURATION {
            let message = "nothing waits for longer than a year";
            return self.reject_with_help(codes::OUT_OF_RANGE, message, span, help);
        }
        Some(length)
    }

    /// A percentage such as `80%` or `0.8`.
    pub(super) fn read_percent(&mut self, node: &Node) -> Option<u8> {
        let percent = match &node.value {
            Value::Text(text) => {
                let digits = text.strip_suffix('%').map(str::trim_end);
                digits.and_then(|digits| digits.parse::<u8>().ok())
            }
            // 0.8 has no exact binary form, so the nearest percentage is taken.
            Value::Float(part) => {
                (1..=100).find(|percent| (f64::from(*percent) / 100.0 - part).abs() < 1e-9)
            }
            _ => None,
        };
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        if percent.is_none() {
            let message = "expected a part from 1% to 100%, in whole percents";
            let help = match node.value {
                Value::Integer(number @ 1..=100) => format!("write {number}%"),
                _ => "write it as 80% or 0.8".to_owned(),
            };
            self.report_with_help(codes::OUT_OF_RANGE, message, node.span, help);
        }
        percent
    }
}

/// Whether a quota begins with an abbreviated number, as in `1k/day`. Returns the length of the number, the error and
/// the help.
fn shortened_count(text: &str) -> Option<(usize, String, String)> {
    let end = text.find(['/', ' '])?;
    let (count, rest) = text.split_at(end);
    // The rate parser rejects the same abbreviations, and suggests the full number.
    let error = format!("{count}/s").parse::<Rate>().err()?;
    let (message, help) = rate_error_parts(&error.to_string());
    if !message.contains("in full") {
        return None;
    }
    let number = help.strip_prefix("write ");
    let number = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let help = number.map_or(help.clone(), |number| format!("write {number}{rest}"));
    Some((count.chars().count(), message, help))
}

/// The limit that stands among the conditions of a rule because it is indented too far.
fn misplaced_limit(fields: &Fields<'_>) -> Option<&'static str> {
    let conditions = fields.get("match")?.as_fields();
    let limits = ["rate", "quota", "concurrency", "unlimited"];
    let stands = |limit: &&str| {
        conditions
            .iter()
            .any(|(name, _)| name.as_text() == Some(limit))
    };
    limits.into_iter().find(stands)
}

/// The first line of a rate's error, as message and help, without the line and column. They would refer to the rate's
/// text, not to the file.
fn rate_error_parts(text: &str) -> (String, String) {
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
        let line = |text: &str| rate_error_parts(&text.parse::<Rate>().unwrap_err().to_string());
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

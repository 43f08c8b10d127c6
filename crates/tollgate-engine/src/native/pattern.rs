//! Reads the conditions on facts.

use std::net::IpAddr;

use super::codes;
use super::field_names::CONDITION_KINDS;
use super::reader::{FactUse, PolicyReader, truncate_text};
use super::{ConditionForm, ConditionText};
use crate::document::{Node, Value};
use crate::facts::fact_name;
use crate::matcher::glob::{Glob, MAX_PARTS};
use crate::matcher::regex::RegexError;
use crate::policy::{MatchConditions, Pattern};

/// Most regular expressions in a policy. Compiling them takes the longest part of a load.
const MAX_REGEXES: usize = 1_000;
/// The help for a policy with too many regular expressions.
const FASTER_HELP: &str = "globs, prefixes and lists are found much faster";
/// Most stars in a glob, because a match may have to try each of them at many positions.
const MAX_STARS: usize = 16;
/// Longest pattern, in bytes.
pub(crate) const MAX_CONDITION_BYTES: usize = 4_096;

/// The fact whose text is read as an address or a network without `cidr`.
const ADDRESS_FACT: &str = "ip";
/// Facts whose values never begin with `^`.
const FACTS_WITHOUT_CARET: [&str; 4] = ["path", "route", "host", "method"];
/// Facts that are one address, never a network.
const SINGLE_ADDRESS_FACTS: [&str; 6] = [
    "remote_address",
    "client_ip",
    "remote_ip",
    "ip_address",
    "header.x-forwarded-for",
    "header.x-real-ip",
];

impl PolicyReader<'_> {
    /// Conditions by fact.
    pub(super) fn read_match(&mut self, node: &Node) -> MatchConditions {
        let expected = "conditions by fact, such as {path: \"/api/**\", method: [POST, PUT]}";
        let mut conditions = Vec::new();
        for (fact, name, value) in self.read_named_fields(node, expected, fact_name) {
            let fact = self.normalize_fact_name(fact, name.span);
            if let Some(fact) = &fact {
                self.record_fact_mention(fact, name.span, FactUse::Match);
            }
            // The condition is read even if the fact's name is wrong, so that its own errors are reported too.
            let pattern = self.read_pattern(value, fact.as_deref().unwrap_or(""));
            if let (Some(fact), Some(pattern)) = (fact, pattern) {
                conditions.push((fact, pattern));
            }
        }
        MatchConditions {
            conditions,
            span: node.span,
        }
    }

    /// A list of conditions. A condition that matches every request is an error.
    pub(super) fn read_match_list(&mut self, node: &Node) -> Vec<MatchConditions> {
        let expected = "a list of conditions, such as [{path: /healthz}, {ip: \"10.0.0.0/8\"}]";
        let items = self.read_list(node, expected);
        let mut found = Vec::with_capacity(items.len());
        for item in items {
            if matches!(&item.value, Value::Map(fields) if fields.is_empty()) {
                let message = "expected at least one condition: without any, every request matches";
                let help = "name a fact, as in {path: /healthz}";
                self.report_with_help(codes::MATCHES_ALL, message, item.span, help);
            }
            found.push(self.read_match(item));
        }
        found
    }

    fn read_pattern(&mut self, node: &Node, fact: &str) -> Option<Pattern> {
        match &node.value {
            Value::List(_) => {
                let items = self.read_list(node, "texts or conditions, one of which must hold");
                let patterns = items.iter().map(|item| self.read_pattern(item, fact));
                // All patterns are read before the first error counts, so that each error is reported.
                let patterns: Vec<_> = patterns.collect();
                one_of_patterns(patterns.into_iter().collect::<Option<_>>()?)
            }
            Value::Map(_) => self.read_condition_kind(node, fact),
            _ => {
                let text =
                    self.read_text(node, "text, a list or a condition such as {prefix: /api/}")?;
                self.read_plain_text(text, node, fact)
            }
        }
    }

    /// The meaning of a text that doesn't name its kind.
    fn read_plain_text(&mut self, text: String, node: &Node, fact: &str) -> Option<Pattern> {
        self.record_condition_text(fact, &text, ConditionForm::Plain, node);
        if text.starts_with('^') && FACTS_WITHOUT_CARET.contains(&fact) {
            let message = format!(
                "no {fact} begins with \"^\": this is compared as it stands, not as a regular expression"
            );
            let shown = truncate_text(&text);
            let help = format!("write {fact}: {{regex: '{shown}'}}, or a glob such as /v1/**");
            return self.reject_with_help(codes::REGEX_AS_TEXT, message, node.span, help);
        }
        if text.contains('*') {
            return self.read_glob(text, node);
        }
        if SINGLE_ADDRESS_FACTS.contains(&fact)
            && text.contains('/')
            && canonical_network(&text).is_ok()
        {
            let message = format!(
                "{fact:?} is one address and never {text:?}: only \"ip\" takes a network as plain text"
            );
            let help = format!("write {fact}: {{cidr: {text}}}, or ip: {text}");
            return self.reject_with_help(codes::NETWORK_AS_TEXT, message, node.span, help);
        }
        if fact == ADDRESS_FACT {
            return self.read_network(text, node);
        }
        self.read_exact(text, node)
    }

    /// Reads a condition that names its kind, such as `{prefix: /api/}`.
    fn read_condition_kind(&mut self, node: &Node, fact: &str) -> Option<Pattern> {
        let before = self.problems.len();
        let fields = self.read_fields(node, "a condition", CONDITION_KINDS)?;
        let mut found = fields.iter();
        let Some((kind, _, value)) = found.next() else {
            if self.problems.len() == before {
                let message = "expected a condition such as {prefix: /api/}, found an empty map";
                self.report(codes::EMPTY, message, node.span);
            }
            return None;
        };
        if let Some((second, place, _)) = found.next() {
            let message = format!("{kind:?} and {second:?} in one condition");
            let help =
                "write one each, as a list if one of them is enough: [{prefix: /a}, {glob: /b/*}]";
            return self.reject_with_help(codes::CONFLICT, message, place.span, help);
        }
        match kind {
            "present" => Some(if self.read_flag(value)? {
                Pattern::Present
            } else {
                Pattern::Absent
            }),
            "not" => {
                let inner = self.read_pattern(value, fact)?;
                Some(Pattern::Not(Box::new(inner)))
            }
            _ => {
                let (form, read): (_, fn(&mut Self, String, &Node) -> _) = match kind {
                    "exact" => (ConditionForm::Exact, Self::read_exact),
                    "glob" => (ConditionForm::Glob, Self::read_glob),
                    "prefix" => (ConditionForm::Prefix, Self::read_prefix),
                    "regex" => (ConditionForm::Regex, Self::read_regex),
                    _ => (ConditionForm::Network, Self::read_network),
                };
                let items = self.list_or_single(value, "text or a list of texts");
                let mut patterns = Vec::with_capacity(items.len());
                for item in items {
                    if let Some(text) = item.as_text() {
                        self.record_condition_text(fact, text, form, item);
                    }
                    let text = self.read_text(item, "text");
                    patterns.push(text.and_then(|text| read(self, text, item)));
                }
                one_of_patterns(patterns.into_iter().collect::<Option<_>>()?)
            }
        }
    }

    /// Records the text of a condition for the lints.
    fn record_condition_text(&mut self, fact: &str, text: &str, form: ConditionForm, node: &Node) {
        self.places.condition_texts.push(ConditionText {
            fact: fact.to_owned(),
            text: text.to_owned(),
            form,
            span: node.span,
        });
    }

    fn check_length(&mut self, text: String, node: &Node) -> Option<String> {
        if text.len() <= MAX_CONDITION_BYTES {
            return Some(text);
        }
        let message = format!(
            "a condition of {} bytes; at most {MAX_CONDITION_BYTES}",
            text.len()
        );
        self.reject_bare(codes::OUT_OF_RANGE, message, node.span)
    }

    fn read_exact(&mut self, text: String, node: &Node) -> Option<Pattern> {
        self.check_length(text, node).map(Pattern::Exact)
    }

    fn read_prefix(&mut self, text: String, node: &Node) -> Option<Pattern> {
        if text.is_empty() {
            let message = "an empty prefix: everything begins with it";
            let help = "write {present: true} if any value will do";
            return self.reject_with_help(codes::MATCHES_ALL, message, node.span, help);
        }
        self.check_length(text, node).map(Pattern::Prefix)
    }

    fn read_glob(&mut self, text: String, node: &Node) -> Option<Pattern> {
        let text = self.check_length(text, node)?;
        if let Some(at) = text.find("***") {
            let span = self
                .sources
                .span_within(node.span, &text, text[..at].chars().count(), 3);
            let message = "\"***\" in a glob: * is anything but /, ** anything";
            return self.reject_with_help(codes::BAD_GLOB, message, span, "write ** or *");
        }
        if text.matches('*').count() > MAX_STARS {
            let message = format!("a glob of more than {MAX_STARS} stars");
            let help = "write a shorter one, or a {prefix: …}";
            return self.reject_with_help(codes::BAD_GLOB, message, node.span, help);
        }
        if Glob::new(&text).is_none() {
            let message =
                format!("a glob of more than {MAX_PARTS} characters after its first * or ?");
            let help = "write a shorter one, or a {prefix: …}";
            return self.reject_with_help(codes::BAD_GLOB, message, node.span, help);
        }
        Some(Pattern::Glob(text))
    }

    fn read_network(&mut self, text: String, node: &Node) -> Option<Pattern> {
        match canonical_network(&text) {
            Ok(network) => Some(Pattern::Cidr(network)),
            Err(error) => {
                let span = self
                    .sources
                    .span_within(node.span, &text, error.from, error.length);
                self.reject_with_help(codes::BAD_NETWORK, error.message, span, error.help)
            }
        }
    }

    fn read_regex(&mut self, text: String, node: &Node) -> Option<Pattern> {
        let text = self.check_length(text, node)?;
        if self.regexes.count() >= MAX_REGEXES && !self.regexes.knows(&text) {
            let message = format!("more than {MAX_REGEXES} regular expressions");
            return self.reject_with_help(codes::BAD_REGEX, message, node.span, FASTER_HELP);
        }
        let problem = match self.regexes.add(&text) {
            Ok(_) => return Some(Pattern::Regex(text)),
            Err(RegexError::Unreadable(problem)) => problem,
            Err(error) => {
                let help = match error {
                    RegexError::TooMuch(_) => FASTER_HELP,
                    _ => "write a shorter one: repetitions such as {1000} are what makes it large",
                };
                return self.reject_with_help(codes::BAD_REGEX, error.to_string(), node.span, help);
            }
        };
        let (why, marks) = parse_regex_error(&problem);
        let span = match marks {
            Some((from, length)) => self.sources.span_within(node.span, &text, from, length),
            None => node.span,
        };
        let message = format!("no regular expression: {why}");
        let help = "to mean a sign as it stands, put \\ before it; in YAML, use single quotes";
        self.reject_with_help(codes::BAD_REGEX, message, span, help)
    }
}

/// The patterns as one. A single pattern gets no list around it.
fn one_of_patterns(mut patterns: Vec<Pattern>) -> Option<Pattern> {
    match patterns.len() {
        0 => None,
        1 => patterns.pop(),
        _ => Some(Pattern::OneOf(patterns)),
    }
}

/// The reason and the position, in characters, from the diagram that the regular-expression parser draws.
fn parse_regex_error(text: &str) -> (String, Option<(usize, usize)>) {
    let why = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("error: "));
    let why = why.unwrap_or("it can't be read").to_owned();
    let marks = text
        .lines()
        .find(|line| line.contains('^') && line.chars().all(|sign| matches!(sign, ' ' | '^')));
    let marks = marks.and_then(|line| {
        // The diagram is indented by four characters.
        let from = line.find('^')?.checked_sub(4)?;
        let length = line.chars().filter(|sign| *sign == '^').count();
        Some((from, length))
    });
    (why, marks)
}

/// Why a text isn't a network, and which characters are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkError {
    pub(crate) message: String,
    pub(crate) help: String,
    pub(crate) from: usize,
    pub(crate) length: usize,
}

/// A network such as `10.0.0.0/8` in its shortest form. A single address is a network of one address.
pub(crate) fn canonical_network(text: &str) -> Result<String, NetworkError> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let example =
        "write an address such as 192.0.2.7, or a network such as 10.0.0.0/8 or 2001:db8::/32";
    let Ok(network) = address.parse::<IpAddr>() else {
        return Err(NetworkError {
            message: format!("{:?} is no IP address", truncate_text(address)),
            help: example.to_owned(),
            from: 0,
            length: address.chars().count(),
        });
    };
    let most = if network.is_ipv4() { 32 } else { 128 };
    let number = bits.map_or(Some(most), |bits| bits.parse().ok());
    let Some(bits) = number.filter(|number| *number <= most) else {
        return Err(NetworkError {
            message: format!("expected 0 to {most} bits after \"/\""),
            help: example.to_owned(),
            from: address.chars().count() + 1,
            length: bits.map_or(0, |bits| bits.chars().count()),
        });
    };
    let masked = mask_address(network, bits);
    if masked != network {
        return Err(NetworkError {
            message: format!("{network} has bits beyond the first {bits}"),
            help: format!("did you mean {masked}/{bits}, or the one address {network}?"),
            from: 0,
            length: text.chars().count(),
        });
    }
    Ok(format!("{network}/{bits}"))
}

/// The address with all but its leading bits cleared.
fn mask_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let kept = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & kept).into())
        }
        IpAddr::V6(v6) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & kept).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_regexs_problem_is_found_in_its_picture() {
        // The texts are built at run time, because a compiler lint would report the mistakes in literals.
        for (text, why, marks) in [
            ("/v[0-9+/x", "unclosed character class", Some((2, 1))),
            ("a{2,1}", "invalid repetition count range", Some((1, 5))),
            ("(ab", "unclosed group", Some((0, 1))),
        ] {
            let error = regex::Regex::new(text).unwrap_err().to_string();
            let (found, place) = parse_regex_error(&error);
            assert!(found.starts_with(why), "{found}");
            assert_eq!(place, marks, "{error}");
        }
        assert_eq!(
            parse_regex_error("?"),
            ("it can't be read".to_owned(), None)
        );
    }

    #[test]
    fn networks_are_read() {
        let net = |text: &str| canonical_network(text).unwrap();
        assert_eq!(net("192.0.2.7"), "192.0.2.7/32");
        assert_eq!(net("2001:db8:0::/32"), "2001:db8::/32");
    }

    #[test]
    fn what_is_none_says_why() {
        let wrong = |text: &str| canonical_network(text).unwrap_err();
        assert_eq!(wrong("10.0.0/8").message, "\"10.0.0\" is no IP address");
        assert_eq!((wrong("10.0.0.0/33").from, wrong("::/129").from), (9, 3));
        assert_eq!(
            wrong("10.0.0.1/8").help,
            "did you mean 10.0.0.0/8, or the one address 10.0.0.1?"
        );
    }
}

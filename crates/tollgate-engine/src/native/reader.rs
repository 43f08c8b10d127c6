//! Reads values of an expected type, and reports values of other types.

use std::borrow::Cow;
use std::collections::HashMap;

use super::codes;
use super::field_names::{self, words_of};
use super::{FactMention, PolicySpans};
use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::document::{Node, Span, Value, duplicate_field_error};
use crate::escape::is_hidden;
use crate::facts::fact_name;
use crate::matcher::regex::RegexCache;
use crate::policy::{FailureModes, Policy};
use crate::sources::Sources;
use crate::suggestions;

/// Most errors that are kept. Further errors are counted.
const MAX_PROBLEMS: usize = 1_000;

/// The errors of a policy, at most as many as a person reads.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<Diagnostic>,
    dropped: usize,
    /// Whether a file is missing or has no valid syntax tree.
    is_partial: bool,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Diagnostic) {
        debug_assert_eq!(problem.severity, Severity::Error);
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(problem);
        } else {
            self.dropped += 1;
        }
    }

    /// Whether further errors are only counted. Callers then skip building their texts.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Records that a file is missing or has no valid syntax tree. References to names are then not checked, because
    /// the missing file may define the names.
    pub(crate) fn mark_partial(&mut self) {
        self.is_partial = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.is_partial
    }

    pub(crate) fn len(&self) -> usize {
        self.found.len() + self.dropped
    }

    /// All errors in the order of the files. The last entry has the number of errors that were not kept.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|problem| problem.span);
        self.found.dedup();
        if self.dropped > 0 {
            let at = Span::of_file(self.found.last().map_or(0, |last| last.span.file));
            let message = format!("{} more errors are not shown", self.dropped);
            self.found.push(
                Diagnostic::error(codes::TOO_MANY_ERRORS, message, at)
                    .with_help("correct these first, then check again"),
            );
        }
        self.found
    }
}

/// Longest name of a rule, tier, tenant or fact, in characters.
pub(crate) const MAX_NAME_LENGTH: usize = 200;

/// The expected value of `limits`.
pub(super) const RULES_EXPECTED: &str = "a list of rules";

/// Reads the parts of a policy.
#[derive(Debug)]
pub(super) struct PolicyReader<'a> {
    pub(super) sources: &'a Sources,
    pub(super) problems: &'a mut Problems,
    /// Regular expressions that were compiled so far.
    pub(super) regexes: RegexCache,
    /// The policy so far, and the positions of its parts.
    pub(super) policy: Policy,
    pub(super) places: PolicySpans,
    /// The failure modes of rules that set none themselves.
    pub(super) default_failure_modes: FailureModes,
    /// The positions of fields that only one of the files may have.
    pub(super) single_fields: HashMap<&'static str, Span>,
    /// The position of each rule's name.
    pub(super) rule_names: HashMap<String, Span>,
    /// Whether the policy lists its facts. A fact outside the list is then an error.
    pub(super) lists_facts: bool,
}

/// The part of a policy that uses a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FactUse {
    Match,
    Other,
}

/// The known fields of a map.
#[derive(Debug)]
pub(super) struct Fields<'n> {
    present: Vec<(&'static str, &'n Node, &'n Node)>,
    table: field_names::FieldNames,
    /// The position of the map.
    pub(super) span: Span,
}

impl<'n> Fields<'n> {
    /// The value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        let field = self.present.iter().find(|(known, ..)| *known == name);
        field.map(|(_, _, value)| *value)
    }

    /// Whether the map has the fields of this table.
    pub(super) fn is_of(&self, table: field_names::FieldNames) -> bool {
        self.table == table
    }

    /// The position of a field's name, or of the map if it has no such field.
    pub(super) fn describe_place(&self, name: &str) -> Span {
        let field = self.present.iter().find(|(known, ..)| *known == name);
        field.map_or(self.span, |(_, name, _)| name.span)
    }

    /// Each field: its name, the node of the name, and the node of the value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &'n Node, &'n Node)> {
        self.present.iter().copied()
    }
}

impl PolicyReader<'_> {
    pub(super) fn report(&mut self, code: Code, message: impl Into<String>, span: Span) {
        self.problems.push(Diagnostic::error(code, message, span));
    }

    pub(super) fn report_with_help(
        &mut self,
        code: Code,
        message: impl Into<String>,
        span: Span,
        help: impl Into<String>,
    ) {
        self.problems
            .push(Diagnostic::error(code, message, span).with_help(help));
    }

    /// Reports an error in a value, and returns `None` in place of the value.
    pub(super) fn reject_with_help<T>(
        &mut self,
        code: Code,
        message: impl Into<String>,
        span: Span,
        help: impl Into<String>,
    ) -> Option<T> {
        self.report_with_help(code, message, span, help);
        None
    }

    /// Like [`reject_with_help`](Self::reject_with_help), for an error whose message is enough.
    pub(super) fn reject_bare<T>(
        &mut self,
        code: Code,
        message: impl Into<String>,
        span: Span,
    ) -> Option<T> {
        self.report(code, message, span);
        None
    }

    /// Reports a value of the wrong type, and returns `None` in its place.
    pub(super) fn reject_type<T>(&mut self, node: &Node, expected: &str) -> Option<T> {
        self.report_type(node, expected);
        None
    }

    /// The value of a required field. Reports a missing field.
    pub(super) fn required_field<'n>(
        &mut self,
        fields: &Fields<'n>,
        name: &str,
        message: &str,
        help: impl Into<String>,
    ) -> Option<&'n Node> {
        let node = fields.get(name);
        if node.is_none() {
            self.report_with_help(codes::MISSING_FIELD, message, fields.span, help);
        }
        node
    }

    /// A position as text: the file and the line.
    pub(super) fn place(&self, span: Span) -> String {
        let file = self.sources.get(span.file);
        let file = file.map_or("<text>", |file| file.name());
        format!("{file} line {}", span.start.line)
    }

    /// Reports that a value is of another type than expected.
    pub(super) fn report_type(&mut self, node: &Node, expected: &str) {
        let message = format!("expected {expected}, found {}", node.value.kind());
        match self.hidden_sign(node) {
            Some(sign) => {
                let help = format!("put a text that begins with {sign} in quotes");
                self.report_with_help(codes::WRONG_TYPE, message, node.span, help);
            }
            None => self.report(codes::WRONG_TYPE, message, node.span),
        }
    }

    /// The character before a missing value, if YAML read the character as a tag or an anchor.
    fn hidden_sign(&self, node: &Node) -> Option<char> {
        if node.value != Value::Null {
            return None;
        }
        let source = self.sources.get(node.span.file)?;
        let line = source.line(node.span.start.line)?;
        let end = usize::try_from(node.span.start.column).ok()?;
        let before: Vec<char> = line.chars().take(end.saturating_sub(1)).collect();
        let word = before.rsplit(|sign| sign.is_whitespace()).next()?;
        word.first()
            .copied()
            .filter(|sign| matches!(sign, '!' | '&'))
    }

    /// The known fields of a map. Unknown fields are reported and left out.
    pub(super) fn read_fields<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        table: field_names::FieldNames,
    ) -> Option<Fields<'n>> {
        let Value::Map(pairs) = &node.value else {
            let message = format!("expected {what}, found {}", node.value.kind());
            let help = node
                .as_text()
                .and_then(|text| split_field_help(text, table));
            let help = help.unwrap_or_else(|| format!("its fields are {}", table.join(", ")));
            return self.reject_with_help(codes::WRONG_TYPE, message, node.span, help);
        };
        let mut known = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            let text = name.as_text().or_else(|| self.sources.text_at(name.span));
            let text = text.unwrap_or_default();
            match table.iter().find(|field| **field == text) {
                Some(field) => known.push((*field, name, value)),
                None => self.report_unknown_field(text, name.span, what, table),
            }
        }
        Some(Fields {
            present: known,
            table,
            span: node.span,
        })
    }

    fn report_unknown_field(
        &mut self,
        text: &str,
        span: Span,
        what: &str,
        table: field_names::FieldNames,
    ) {
        let shown = truncate_text(text);
        let problem = Diagnostic::error(
            codes::UNKNOWN_FIELD,
            format!("unknown field {shown:?} in {what}"),
            span,
        );
        if self.problems.is_full() {
            return self.problems.push(problem);
        }
        let misnamed = || match text {
            "domain" | "descriptors" => Some(
                "a file in envoyproxy/ratelimit's form is YAML, and stands by itself: convert it to ours \
                to have both in one policy",
            ),
            "charging" => Some(
                "rules are charged all or none; a domain of envoyproxy/ratelimit's form may say it",
            ),
            "burst" => Some("write it behind the rate: rate: 10/s burst 20"),
            "window" | "period" | "per" | "interval" => {
                Some("write it with the rate: rate: 10 per 30s")
            }
            "rules" => Some("did you mean \"limits\"?"),
            "slot" => Some("it is called hash_tag now"),
            "rates" | "limit" | "rate_limit" if table.contains(&"rate") => {
                Some("did you mean \"rate\"?")
            }
            _ => None,
        };
        let help = split_field_help(text, table).or_else(|| misnamed().map(str::to_owned));
        let help = help.or_else(|| suggestions::suggestion_or_list(text, table));
        let help = help.unwrap_or_else(|| format!("its fields are {}", table.join(", ")));
        self.problems.push(problem.with_help(help));
    }

    /// The fields of a map whose names the policy's author chooses. Two names of the same meaning are an error.
    pub(super) fn read_named_fields<'n>(
        &mut self,
        node: &'n Node,
        expected: &str,
        meaning: impl Fn(&str) -> Cow<'_, str>,
    ) -> Vec<(String, &'n Node, &'n Node)> {
        let Value::Map(pairs) = &node.value else {
            self.report_type(node, expected);
            return Vec::new();
        };
        let mut named = Vec::with_capacity(pairs.len());
        // Keyed by meaning. The parser has already reported names with the same spelling.
        let mut known = HashMap::with_capacity(pairs.len());
        for (name, value) in pairs {
            let Some(text) = self.read_name(name, "a name") else {
                continue;
            };
            let means = meaning(&text).into_owned();
            match known.get(&means).copied() {
                Some(first) => self
                    .problems
                    .push(duplicate_field_error(&means, first, name.span)),
                None => {
                    known.insert(means, name.span);
                    named.push((text, name, value));
                }
            }
        }
        named
    }

    /// The items of a list. An empty list is an error.
    pub(super) fn read_list<'n>(&mut self, node: &'n Node, expected: &str) -> &'n [Node] {
        match &node.value {
            Value::List(items) => {
                if items.is_empty() {
                    let message = format!("expected {expected}, but there is nothing in it");
                    let help = "write something into it, or leave the field out";
                    self.report_with_help(codes::EMPTY, message, node.span, help);
                }
                items
            }
            Value::Map(_) if expected == RULES_EXPECTED => {
                let message = format!("expected {expected}, found a map");
                let help = "begin each rule with a dash, as in - name: per-user, or with [[limits]] in TOML";
                self.report_with_help(codes::WRONG_TYPE, message, node.span, help);
                &[]
            }
            _ => {
                self.report_type(node, expected);
                &[]
            }
        }
    }

    /// The items of a list. A single value counts as a list of one.
    pub(super) fn list_or_single<'n>(&mut self, node: &'n Node, expected: &str) -> &'n [Node] {
        match &node.value {
            Value::List(_) => self.read_list(node, expected),
            _ => node.as_items(),
        }
    }

    /// The text of a value. A number, `true` or `false` counts as text if its spelling in the file is also its
    /// printed form.
    pub(super) fn read_text(&mut self, node: &Node, expected: &str) -> Option<String> {
        let printed = match &node.value {
            Value::Text(text) => return Some(text.clone()),
            Value::Integer(number) => number.to_string(),
            Value::Bool(is) => is.to_string(),
            Value::Float(number) => number.to_string(),
            _ => {
                return self.reject_type(node, expected);
            }
        };
        if self.sources.text_at(node.span).map(str::trim_end) == Some(printed.as_str()) {
            return Some(printed);
        }
        let message = format!("expected {expected}, found {}", node.value.kind());
        let help = "put it in quotes if this text is meant";
        self.reject_with_help(codes::WRONG_TYPE, message, node.span, help)
    }

    /// A text that can be a name: not empty, on one line, not too long.
    pub(super) fn read_name(&mut self, node: &Node, what: &str) -> Option<String> {
        let name = self.read_text(node, what)?;
        let trimmed = name.trim();
        let why = if trimmed.is_empty() {
            "is empty"
        } else if trimmed.len() != name.len() {
            "begins or ends with a space"
        } else if name.chars().any(is_hidden) {
            "has a character in it that can't be seen"
        } else if name.chars().count() > MAX_NAME_LENGTH {
            "has more than 200 characters"
        } else {
            return Some(name);
        };
        let message = format!("{what} {why}");
        self.reject_bare(codes::BAD_NAME, message, node.span)
    }

    /// The name of a fact. Records that the policy uses the fact.
    pub(super) fn read_fact(&mut self, node: &Node) -> Option<String> {
        let fact = self.read_declared_fact(node)?;
        self.record_fact_mention(&fact, node.span, FactUse::Other);
        Some(fact)
    }

    /// The name of a fact, without a record that the policy uses the fact.
    pub(super) fn read_declared_fact(&mut self, node: &Node) -> Option<String> {
        let name = self.read_name(node, "the name of a fact")?;
        self.normalize_fact_name(name, node.span)
    }

    /// Records the position at which the policy uses a fact.
    pub(super) fn record_fact_mention(&mut self, fact: &str, span: Span, part: FactUse) {
        self.places.fact_mentions.push(FactMention {
            fact: fact.to_owned(),
            span,
            is_condition: part == FactUse::Match,
        });
    }

    pub(super) fn normalize_fact_name(&mut self, name: String, span: Span) -> Option<String> {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if name.chars().all(fits) {
            return Some(fact_name(&name).into_owned());
        }
        let message = format!("{:?} is no name of a fact", truncate_text(&name));
        let help = if name.contains(char::is_whitespace) {
            "put a comma between two facts, as in [user, ip]"
        } else {
            "use letters, digits, _ - . and :, as in user or header.x-plan"
        };
        self.reject_with_help(codes::BAD_NAME, message, span, help)
    }

    /// A value that must be one of the words of a table.
    pub(super) fn read_word<T: Copy>(
        &mut self,
        node: &Node,
        what: &str,
        table: &[(&'static str, T)],
    ) -> Option<T> {
        let words = words_of(table);
        let expected = format!("{what}: {}", suggestions::or_list(&words));
        let Value::Text(text) = &node.value else {
            return self.reject_type(node, &expected);
        };
        let found = table.iter().find(|(word, _)| word == text);
        if found.is_none() {
            let message = format!("unknown {what} {:?}", truncate_text(text));
            let help = suggestions::suggestion_or_list(text, &words).unwrap_or(expected);
            self.report_with_help(codes::UNKNOWN_VALUE, message, node.span, help);
        }
        found.map(|(_, value)| *value)
    }

    /// A whole number that is at least 0.
    pub(super) fn read_count(&mut self, node: &Node, what: &str) -> Option<u64> {
        let Value::Integer(number) = node.value else {
            return self.reject_type(node, what);
        };
        let fits = u64::try_from(number).ok();
        if fits.is_none() {
            let message = format!("expected {what}, found {number}");
            self.report(codes::OUT_OF_RANGE, message, node.span);
        }
        fits
    }

    pub(super) fn read_flag(&mut self, node: &Node) -> Option<bool> {
        match node.value {
            Value::Bool(is) => Some(is),
            _ => {
                let message = format!("expected true or false, found {}", node.value.kind());
                let help = match &node.value {
                    // YAML 1.1 reads these words as booleans. YAML 1.2, which applies here, reads them as text.
                    Value::Text(text) => match text.to_ascii_lowercase().as_str() {
                        "yes" | "on" | "y" => "write true",
                        "no" | "off" | "n" => "write false",
                        _ => "write true or false, without quotes",
                    },
                    _ => "write true or false",
                };
                self.reject_with_help(codes::WRONG_TYPE, message, node.span, help)
            }
        }
    }
}

/// The help for a field and its value in one text: `rate:10/s` or `rate = 10/s`.
fn split_field_help(text: &str, table: &[&str]) -> Option<String> {
    let (name, value) = text.split_once([':', '='])?;
    let (name, value) = (name.trim(), value.trim());
    let field = table.iter().find(|field| **field == name)?;
    // YAML may have joined the lines below to the text.
    let value = match value.split_once(" = ") {
        Some((value, _)) => value.rsplit_once(' ').map_or(value, |(value, _)| value),
        None => value,
    };
    let value = truncate_text(value);
    Some(format!("write {field}: {value}, with a colon and a space"))
}

/// A name whose meaning is its spelling.
pub(super) fn unchanged(name: &str) -> Cow<'_, str> {
    Cow::Borrowed(name)
}

/// The start of a text that may be very long.
pub(super) fn truncate_text(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The position for an error about a whole map: its first character, if the map has several lines.
pub(super) fn first_char_if_multiline(span: Span) -> Span {
    let is_one = span.end.line == span.start.line;
    if is_one { span } else { span.first() }
}

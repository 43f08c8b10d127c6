//! Writes parts of a policy in the native form: conditions, keys and names.

use std::fmt::Write;

use tollgate::Algorithm;

use super::field_names::ALGORITHM_WORDS;
use crate::document::Value;
use crate::escape::is_hidden;
use crate::policy::{KeyPart, MatchConditions, Pattern, Rule};

/// The name of an algorithm in policy files. `None` for algorithms that only programs can choose.
pub(crate) fn algorithm_word(own: Algorithm) -> Option<&'static str> {
    let known = ALGORITHM_WORDS.iter().find(|(_, known)| *known == own);
    known.map(|(name, _)| *name)
}

/// All conditions of a match, with commas between them.
pub(crate) fn conditions_text(matches: &MatchConditions) -> String {
    let all = matches.conditions.iter();
    let all = all.map(|(fact, pattern)| {
        format!(
            "{}: {}",
            quoted_if_needed(fact),
            condition_text(fact, pattern)
        )
    });
    all.collect::<Vec<_>>().join(", ")
}

/// A condition in its shortest form: a text, a list of texts, or `{kind: …}`.
fn condition_text(fact: &str, pattern: &Pattern) -> String {
    match pattern {
        // A text with a star would be read as a glob, and a text for `ip` as a network.
        Pattern::Exact(text) if !text.contains('*') && fact != "ip" => quoted(text),
        Pattern::OneOf(all) => {
            let all: Vec<_> = all.iter().map(|one| condition_text(fact, one)).collect();
            format!("[{}]", all.join(", "))
        }
        Pattern::Exact(text) => format!("{{exact: {}}}", quoted(text)),
        Pattern::Glob(text) => format!("{{glob: {}}}", quoted(text)),
        Pattern::Prefix(text) => format!("{{prefix: {}}}", quoted(text)),
        Pattern::Regex(text) => format!("{{regex: {}}}", quoted(text)),
        Pattern::Cidr(text) => format!("{{cidr: {}}}", quoted(text)),
        Pattern::Present => "{present: true}".to_owned(),
        Pattern::Absent => "{present: false}".to_owned(),
        Pattern::Not(inner) => format!("{{not: {}}}", condition_text(fact, inner)),
    }
}

/// A fact, or the network of a fact that is an address.
pub(crate) fn key_part_text(part: &KeyPart) -> String {
    match part {
        KeyPart::Fact(fact) => quoted_if_needed(fact),
        KeyPart::Network { fact, bits } => quoted(&format!("{fact}/{bits}")),
    }
}

/// The keys of a rule in the notation of a policy file.
pub(crate) fn keys_text(rule: &Rule) -> Option<String> {
    let list = |key: &[KeyPart]| {
        let parts: Vec<_> = key.iter().map(key_part_text).collect();
        format!("[{}]", parts.join(", "))
    };
    let keys: Vec<_> = rule.keys().map(list).collect();
    match keys.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        keys => Some(format!("{{first: [{}]}}", keys.join(", "))),
    }
}

/// A name as it is if YAML reads it as text, otherwise in quotes.
pub(crate) fn quoted_if_needed(name: &str) -> String {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(in_word);
    let means_something = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&name.to_ascii_lowercase().as_str());
    if is_word && !means_something {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// A text in double quotes, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_hidden(c) => {
                // Writing to a string can't fail.
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value as one line of YAML. `text` writes its texts.
pub(crate) fn flow_yaml(value: &Value, text: fn(&str) -> String) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(is_true) => is_true.to_string(),
        Value::Integer(number) => number.to_string(),
        // `{:?}` keeps the decimal point, so that YAML reads the number as a float and not as an integer.
        Value::Float(number) if number.is_finite() => format!("{number:?}"),
        Value::Float(number) if *number == f64::NEG_INFINITY => "-.inf".to_owned(),
        Value::Float(number) => format!(".{number:?}"),
        Value::Text(own) => text(own),
        Value::List(items) => {
            let items: Vec<_> = items
                .iter()
                .map(|item| flow_yaml(&item.value, text))
                .collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let (name, value) = (flow_yaml(&name.value, text), flow_yaml(&value.value, text));
                format!("{name}: {value}")
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

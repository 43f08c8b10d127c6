//! Which fields may stand where, and what is said about those that may not.

use super::{
    Code, Diagnostic, MISPLACED_FIELD, NAME_NOT_TEXT, NOT_A_MAP, Node, Problems, UNKNOWN_FIELD,
    Value, WRONG_TYPE,
};
use crate::suggest::did_you_mean;

/// What a map is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Root,
    Descriptor,
    Limit,
    Replaces,
}

impl Level {
    const ALL: [Self; 4] = [Self::Root, Self::Descriptor, Self::Limit, Self::Replaces];

    /// Their fields.
    const fn theirs(self) -> &'static [&'static str] {
        match self {
            Self::Root => &["domain", "descriptors"],
            Self::Descriptor => &[
                "key",
                "value",
                "rate_limit",
                "descriptors",
                "shadow_mode",
                "quota_mode",
                "detailed_metric",
                "value_to_metric",
                "share_threshold",
                "metadata",
            ],
            Self::Limit => &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
            Self::Replaces => &["name"],
        }
    }

    /// Fields that we add.
    const fn ours(self) -> &'static [&'static str] {
        match self {
            Self::Root => &["charging", "on_store_failure"],
            Self::Limit => &[
                "rate",
                "algorithm",
                "quota",
                "concurrency",
                "counting",
                "on_store_failure",
            ],
            _ => &[],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Root => "the file",
            Self::Descriptor => "a descriptor",
            Self::Limit => "rate_limit",
            Self::Replaces => "replaces",
        }
    }

    fn knows(self, name: &str) -> bool {
        self.theirs().contains(&name) || self.ours().contains(&name)
    }
}

/// The fields of a map that mean something there, after those that are merged into it by `<<`.
/// The others are reported.
pub(super) fn fields<'n>(
    node: &'n Node,
    level: Level,
    problems: &mut Problems,
) -> Vec<(&'n str, &'n Node)> {
    let mut known = Vec::new();
    for (name, value) in merged(node) {
        let Value::Text(text) = &name.value else {
            problems.push(not_text(name));
            continue;
        };
        if level.knows(text) {
            known.push((text.as_str(), value));
        } else if Level::ALL
            .iter()
            .any(|other| other.theirs().contains(&text.as_str()))
        {
            problems.push(misplaced(text, name, level));
            ignored(text, value, problems);
        } else {
            problems.push(unknown(text, name, level));
        }
    }
    known
}

/// A map's own fields, and those of the maps that it merges in unless it has them: YAML 1.1's `<<`.
fn merged(node: &Node) -> Vec<(&Node, &Node)> {
    let Value::Map(fields) = &node.value else {
        return Vec::new();
    };
    let is_merge =
        |name: &Node, value: &Node| name.value == Value::Text("<<".to_owned()) && maps(value);
    let (merges, own): (Vec<_>, Vec<_>) = fields
        .iter()
        .map(|(name, value)| (name, value))
        .partition(|(name, value)| is_merge(name, value));
    let mut all = own;
    for (_, value) in merges {
        let sources = match &value.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        };
        for source in sources {
            for (name, value) in merged(source) {
                if !all.iter().any(|(known, _)| known.value == name.value) {
                    all.push((name, value));
                }
            }
        }
    }
    all
}

/// Whether it is a map or a list of nothing else.
fn maps(node: &Node) -> bool {
    match &node.value {
        Value::Map(_) => true,
        Value::List(items) => items.iter().all(|item| matches!(item.value, Value::Map(_))),
        _ => false,
    }
}

/// What is below a field that means nothing where it stands is still read, but for metadata.
fn ignored(name: &str, value: &Node, problems: &mut Problems) {
    if name == "metadata" {
        return;
    }
    match &value.value {
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(_) => ignored_map(item, problems),
                    _ => problems.push(not_a_map(item)),
                }
            }
        }
        Value::Map(_) => ignored_map(value, problems),
        Value::Float(_) => problems.push(wrong_type(name, "text or a whole number", value)),
        _ => {}
    }
}

fn ignored_map(node: &Node, problems: &mut Problems) {
    for (name, value) in merged(node) {
        match &name.value {
            Value::Text(text) if Level::ALL.iter().any(|level| level.knows(text)) => {
                ignored(text, value, problems);
            }
            Value::Text(text) => problems.push(unknown(text, name, Level::Descriptor)),
            _ => problems.push(not_text(name)),
        }
    }
}

fn not_text(name: &Node) -> Diagnostic {
    Diagnostic::error(
        NAME_NOT_TEXT,
        format!("a field's name is {}, not text", name.value.kind()),
        name.span,
    )
    .help("names of fields are text; quote it if it is meant")
}

/// An item of a list that should be a map.
pub(super) fn not_a_map(item: &Node) -> Diagnostic {
    Diagnostic::error(
        NOT_A_MAP,
        format!("a list holds {}, but expected maps", item.value.kind()),
        item.span,
    )
    .help("write each item as fields: `- key: …`, or `- name: …` in replaces")
}

/// A field with a value of another kind.
pub(super) fn wrong_type(name: &str, expected: &str, value: &Node) -> Diagnostic {
    let message = match value.value {
        Value::Integer(number) if number < 0 => {
            format!("{name} must not be negative, but is {number}")
        }
        Value::Integer(number) => format!("{name} is {number}, but expected {expected}"),
        _ => format!("{name} is {}, but expected {expected}", value.value.kind()),
    };
    let problem = Diagnostic::error(WRONG_TYPE, message, value.span);
    match value.value {
        Value::Float(_) if name == "requests_per_unit" => problem.help("take a longer unit"),
        Value::Float(_) => problem.help("quote it if text is meant"),
        _ => problem,
    }
}

fn unknown(text: &str, name: &Node, level: Level) -> Diagnostic {
    let elsewhere = Level::ALL.iter().find(|other| other.knows(text));
    let help = match elsewhere {
        Some(other) => format!("it belongs in {}", other.name()),
        None => {
            let known = level.theirs().iter().chain(level.ours()).copied();
            did_you_mean(text, known.clone()).unwrap_or_else(|| {
                let known: Vec<_> = known.collect();
                format!("{} has {}", level.name(), known.join(", "))
            })
        }
    };
    let message = format!("unknown field {text:?} in {}", level.name());
    Diagnostic::error(UNKNOWN_FIELD, message, name.span).help(help)
}

fn misplaced(text: &str, name: &Node, level: Level) -> Diagnostic {
    let home = Level::ALL
        .iter()
        .find(|other| other.theirs().contains(&text));
    let message = format!("field {text:?} does nothing in {}", level.name());
    Diagnostic::warning(MISPLACED_FIELD, message, name.span).help(format!(
        "it belongs in {}",
        home.map_or("another map", |home| home.name())
    ))
}

/// A problem with a value of a fixed set of words.
pub(super) fn not_a_word(
    code: Code,
    what: &str,
    text: &str,
    words: &[&str],
    at: &Node,
) -> Diagnostic {
    let help = did_you_mean(text, words.iter().copied())
        .unwrap_or_else(|| format!("use {}", words.join(", ")));
    Diagnostic::error(code, format!("{text:?} is no {what}"), at.span).help(help)
}

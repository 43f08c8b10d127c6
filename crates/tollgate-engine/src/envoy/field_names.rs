//! The fields of each map, and the errors for unknown and misplaced fields.

use super::{
    Diagnostic, MISPLACED_FIELD, NAME_NOT_TEXT, NOT_A_MAP, Node, Problems, UNKNOWN_FIELD, Value,
    WRONG_TYPE,
};
use crate::document::Format;
use crate::document::text::IndexedText;
use crate::suggestions::did_you_mean;

/// The kind of a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MapKind {
    Root,
    Descriptor,
    Limit,
    Replaces,
}

impl MapKind {
    const ALL: [Self; 4] = [Self::Root, Self::Descriptor, Self::Limit, Self::Replaces];

    /// The fields of envoyproxy/ratelimit.
    const fn upstream_fields(self) -> &'static [&'static str] {
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

    /// The fields that Tollgate adds.
    const fn extension_fields(self) -> &'static [&'static str] {
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

    fn has_field(self, name: &str) -> bool {
        self.upstream_fields().contains(&name) || self.extension_fields().contains(&name)
    }
}

/// Values of fields by name.
pub(super) struct Fields<'n>(Vec<(&'n str, &'n Node)>);

impl<'n> Fields<'n> {
    pub(super) fn get(&self, wanted: &str) -> Option<&'n Node> {
        let found = self.0.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| *value)
    }

    pub(super) fn first(&self) -> Option<(&'n str, &'n Node)> {
        self.0.first().copied()
    }
}

/// The known fields of a map, including those that `<<` merges into it. Other fields are reported.
pub(super) fn read_fields<'n>(
    node: &'n Node,
    level: MapKind,
    problems: &mut Problems,
) -> Fields<'n> {
    let mut known = Vec::new();
    for (name, value) in merged_fields(node) {
        let Value::Text(text) = &name.value else {
            problems.push(name_not_text(name));
            continue;
        };
        let mut levels = MapKind::ALL.into_iter();
        if level.has_field(text) {
            known.push((text.as_str(), value));
        } else if let Some(home) =
            levels.find(|other| other.upstream_fields().contains(&text.as_str()))
        {
            problems.push(misplaced_field(text, name, level, home));
            check_ignored_value(text, value, problems);
        } else {
            problems.push(unknown_field(text, name, level));
        }
    }
    Fields(known)
}

/// A map's own fields, followed by the fields of the maps that YAML 1.1's `<<` merges into it. Own fields have
/// precedence.
fn merged_fields(node: &Node) -> Vec<(&Node, &Node)> {
    let is_merge =
        |name: &Node, value: &Node| name.as_text() == Some("<<") && is_map_or_maps(value);
    let (merges, own): (Vec<_>, Vec<_>) = node
        .as_fields()
        .iter()
        .map(|(name, value)| (name, value))
        .partition(|(name, value)| is_merge(name, value));
    let mut all = own;
    for (_, value) in merges {
        for source in value.as_items() {
            for (name, value) in merged_fields(source) {
                if !all.iter().any(|(known, _)| known.value == name.value) {
                    all.push((name, value));
                }
            }
        }
    }
    all
}

/// Whether a value is a map or a list of maps.
fn is_map_or_maps(node: &Node) -> bool {
    match &node.value {
        Value::Map(_) => true,
        Value::List(items) => items.iter().all(|item| matches!(item.value, Value::Map(_))),
        _ => false,
    }
}

/// Checks the value of a misplaced field, except metadata, so that its errors are reported too.
fn check_ignored_value(name: &str, value: &Node, problems: &mut Problems) {
    if name == "metadata" {
        return;
    }
    match &value.value {
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(_) => check_ignored_map(item, problems),
                    _ => problems.push(not_a_map(item)),
                }
            }
        }
        Value::Map(_) => check_ignored_map(value, problems),
        Value::Float(_) => problems.push(wrong_type(name, "text or a whole number", value)),
        _ => {}
    }
}

fn check_ignored_map(node: &Node, problems: &mut Problems) {
    for (name, value) in merged_fields(node) {
        match &name.value {
            Value::Text(text) if MapKind::ALL.iter().any(|level| level.has_field(text)) => {
                check_ignored_value(text, value, problems);
            }
            Value::Text(text) => problems.push(unknown_field(text, name, MapKind::Descriptor)),
            _ => problems.push(name_not_text(name)),
        }
    }
}

fn name_not_text(name: &Node) -> Diagnostic {
    let message = format!("a field's name is {}, not text", name.value.kind());
    let help = "names of fields are text; quote it if it is meant";
    Diagnostic::error(NAME_NOT_TEXT, message, name.span).with_help(help)
}

/// The error for an item of a list that isn't a map.
pub(super) fn not_a_map(item: &Node) -> Diagnostic {
    let message = format!("a list holds {}, but expected maps", item.value.kind());
    let help = "write each item as fields: `- key: …`, or `- name: …` in replaces";
    Diagnostic::error(NOT_A_MAP, message, item.span).with_help(help)
}

/// The error for a value of the wrong type.
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
        Value::Float(_) if name == "requests_per_unit" => problem.with_help("take a longer unit"),
        Value::Float(_) => problem.with_help("quote it if text is meant"),
        _ => problem,
    }
}

fn unknown_field(text: &str, name: &Node, level: MapKind) -> Diagnostic {
    let elsewhere = MapKind::ALL.iter().find(|other| other.has_field(text));
    let help = match elsewhere {
        Some(other) => format!("it belongs in {}", other.name()),
        None => {
            let known = level
                .upstream_fields()
                .iter()
                .chain(level.extension_fields())
                .copied();
            did_you_mean(text, known.clone()).unwrap_or_else(|| {
                let known: Vec<_> = known.collect();
                format!("{} has {}", level.name(), known.join(", "))
            })
        }
    };
    let message = format!("unknown field {text:?} in {}", level.name());
    Diagnostic::error(UNKNOWN_FIELD, message, name.span).with_help(help)
}

fn misplaced_field(text: &str, name: &Node, level: MapKind, home: MapKind) -> Diagnostic {
    let message = format!("field {text:?} does nothing in {}", level.name());
    let help = format!("it belongs in {}", home.name());
    Diagnostic::warning(MISPLACED_FIELD, message, name.span).with_help(help)
}

/// The scalars of a document as its text has them. The parser reads YAML 1.2, but envoyproxy/ratelimit reads YAML
/// 1.1.
pub(super) struct ScalarText(IndexedText);

impl ScalarText {
    pub(super) fn new(text: &str) -> Self {
        Self(IndexedText::new(text.to_owned(), Format::Yaml))
    }

    /// The text of a plain scalar. `None` for a quoted scalar, an alias, or a scalar of several lines.
    fn written_text(&self, node: &Node) -> Option<&str> {
        let text = self.0.slice(node.span)?.trim();
        let is_it = match &node.value {
            Value::Text(value) => text == value,
            Value::Integer(value) => text.parse() == Ok(*value),
            Value::Bool(value) => text.eq_ignore_ascii_case(&value.to_string()),
            _ => false,
        };
        is_it.then_some(text)
    }

    /// The text of a scalar, if it can be text: `404` and `yes` are, in their original spelling.
    pub(super) fn text(&self, node: &Node) -> Option<String> {
        let printed = match &node.value {
            Value::Text(text) => return Some(text.clone()),
            Value::Null => return Some(String::new()),
            Value::Integer(number) => number.to_string(),
            Value::Bool(is) => is.to_string(),
            Value::Float(_) | Value::List(_) | Value::Map(_) => return None,
        };
        Some(self.written_text(node).map_or(printed, str::to_owned))
    }

    /// A boolean, in all words of YAML 1.1.
    pub(super) fn parse_bool(&self, node: &Node) -> Option<bool> {
        match &node.value {
            Value::Bool(is) => Some(*is),
            Value::Null => Some(false),
            Value::Text(_) => match self.written_text(node)? {
                "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
                "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// A whole number that is at least 0, in all forms of YAML 1.1: `1_000`, `0x1f`, `0b11`, and `010` is 8.
    pub(super) fn parse_count(&self, node: &Node) -> Option<u32> {
        match &node.value {
            Value::Null => Some(0),
            Value::Integer(number) => {
                let written = self.written_text(node).and_then(parse_yaml_1_1_integer);
                written.or_else(|| u32::try_from(*number).ok())
            }
            Value::Text(_) => parse_yaml_1_1_integer(self.written_text(node)?),
            _ => None,
        }
    }
}

fn parse_yaml_1_1_integer(text: &str) -> Option<u32> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.starts_with(['_', '+', '-']) {
        return None;
    }
    let digits = text.replace('_', "");
    let (digits, base) = match digits.get(..2) {
        Some("0x" | "0X") => (&digits[2..], 16),
        Some("0b" | "0B") => (&digits[2..], 2),
        Some("0o" | "0O") => (&digits[2..], 8),
        Some(two) if two.starts_with('0') => (&digits[1..], 8),
        _ => (digits.as_str(), 10),
    };
    u32::from_str_radix(digits, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::parse;

    /// The results of `read` for each item of a list.
    fn each<T>(list: &str, read: impl Fn(&ScalarText, &Node) -> T) -> Vec<T> {
        let Value::List(items) = parse(list, Format::Yaml, 0).expect("YAML").value else {
            panic!("a list")
        };
        let source = ScalarText::new(list);
        items.iter().map(|item| read(&source, item)).collect()
    }

    #[test]
    fn text_is_what_was_written() {
        let texts = each("[é, 007, True, '1', ~, 1.5, [], +5]", |source, item| {
            source.text(item)
        });
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            texts,
            [
                some("é"),
                some("007"),
                some("True"),
                some("1"),
                some(""),
                None,
                None,
                some("+5")
            ]
        );
    }

    #[test]
    fn truth_has_many_words_unless_in_quotes() {
        let truths = each(
            "[true, yes, On, n, off, ~, 'yes', 1, maybe]",
            |source, item| source.parse_bool(item),
        );
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(truths, [yes, yes, yes, no, no, no, None, None, None]);
    }

    #[test]
    fn counts_have_many_forms_unless_in_quotes() {
        let counts = each(
            "[10, 1_000, 0x1f, 0b11, 010, +7, ~, '10', -1, 4294967296, 1.0, ten, 0, 0o17]",
            |source, item| source.parse_count(item),
        );
        let expected = [
            Some(10),
            Some(1_000),
            Some(31),
            Some(3),
            Some(8),
            Some(7),
            Some(0),
            None,
            None,
            None,
            None,
            None,
            Some(0),
            Some(15),
        ];
        assert_eq!(counts, expected);
    }
}

//! A file as a tree of values with their positions. It is the same for YAML and TOML, so that all decoders report
//! every error with its position.

use crate::diagnostic::{Code, Diagnostic};
pub use crate::diagnostic::{Position, Span};

mod syntax_hints;
pub(crate) mod text;
mod toml;
mod yaml;

/// A value with its position.
///
/// ```
/// use tollgate_engine::document::{Format, Value, parse};
///
/// let file = parse("near = 5", Format::Toml, 0).expect("TOML_HELP");
/// let Value::Map(fields) = &file.value else { panic!("a map") };
/// let (name, value) = &fields[0];
/// assert_eq!((&name.value, value.span.start.column), (&Value::Text("near".to_owned()), 8));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The position.
    pub span: Span,
    /// The value.
    pub value: Value,
}

impl Node {
    /// The items of a list. Any other value is the only item.
    pub(crate) fn as_items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The text, if the value is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fields of a map. Empty for any other value.
    pub(crate) fn as_fields(&self) -> &[(Self, Self)] {
        match &self.value {
            Value::Map(fields) => fields,
            _ => &[],
        }
    }

    /// How many values it contains, including names of fields and itself.
    pub(crate) fn count_values(&self) -> usize {
        1 + match &self.value {
            Value::List(items) => items.iter().map(Self::count_values).sum(),
            Value::Map(fields) => fields
                .iter()
                .map(|(_, value)| value.count_values() + 1)
                .sum(),
            _ => 0,
        }
    }
}

/// A value in a file.
///
/// ```
/// use tollgate_engine::document::{Format, Value, parse};
///
/// let yaml = parse("[5, true, ~]", Format::Yaml, 0).expect("YAML").value;
/// let Value::List(items) = yaml else { panic!("a list") };
/// let values: Vec<_> = items.into_iter().map(|item| item.value).collect();
/// assert_eq!(values, [Value::Integer(5), Value::Bool(true), Value::Null]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: `null`, `~`, or no value at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Fields by name, in the order of the file. No two have the same name.
    Map(Vec<(Node, Node)>),
}

impl Value {
    /// A description for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// The format of a file.
///
/// ```
/// use tollgate_engine::document::{Format, parse};
///
/// let yaml = parse("mode: off", Format::Yaml, 0).expect("YAML");
/// let toml = parse("mode = 'off'", Format::Toml, 0).expect("TOML_HELP");
/// assert_eq!(yaml.value.kind(), toml.value.kind());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Format {
    /// YAML 1.2.
    #[display("YAML")]
    Yaml,
    /// TOML 1.0.
    #[display("TOML")]
    Toml,
}

/// The largest file, in bytes. Policies of ten thousand rules take about two million.
pub const MAX_BYTES: usize = 16 << 20;
/// The deepest nesting.
pub const MAX_DEPTH: usize = 64;
/// The most values, including those that aliases repeat.
pub const MAX_VALUES: usize = 500_000;

/// The most bytes that anchors and aliases may copy.
const MAX_COPIED_BYTES: usize = 64 << 20;

/// Removes the byte order mark that some editors put at the beginning of a text.
pub(crate) fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Parses a file into a tree. A byte order mark at its beginning is skipped.
///
/// # Errors
/// A syntax error, a duplicate name in a map, or a bound on size, depth or the number of values that is exceeded.
///
/// ```
/// use tollgate_engine::document::{Format, Value, parse};
///
/// let node = parse("limits: [1, two]", Format::Yaml, 0).expect("YAML");
/// let Value::Map(fields) = node.value else { panic!("a map") };
/// assert_eq!(fields[0].1.span.start.column, 9);
/// assert!(parse("limits: [1, two", Format::Yaml, 0).is_err());
/// ```
pub fn parse(text: &str, format: Format, file: u32) -> Result<Node, Vec<Diagnostic>> {
    let text = strip_byte_order_mark(text);
    if text.len() > MAX_BYTES {
        let message = format!(
            "the file has {} bytes, more than the {MAX_BYTES} that are read",
            text.len()
        );
        let problem = Diagnostic::error(TOO_LARGE, message, Span::of_file(file));
        return Err(vec![problem.with_help("split it with `include`")]);
    }
    let parsed = match format {
        Format::Yaml => return parse_yaml_document(text, file, 0),
        Format::Toml => toml::parse(text, file),
    };
    parsed.map_err(|problem| vec![syntax_hints::explain_syntax_error(problem, text, format, 0)])
}

/// Parses a part of a YAML file that has this many lines before it.
pub(crate) fn parse_yaml_document(
    text: &str,
    file: u32,
    lines_before: u32,
) -> Result<Node, Vec<Diagnostic>> {
    let parsed = yaml::parse(text, file, lines_before);
    parsed.map_err(|problems| {
        let problems = problems.into_iter();
        let likely =
            |problem| syntax_hints::explain_syntax_error(problem, text, Format::Yaml, lines_before);
        problems.map(likely).collect()
    })
}

/// The size, the depth or the number of values exceeds a bound.
pub const TOO_LARGE: Code = Code("too-large");
/// The text is not YAML or TOML.
pub const SYNTAX: Code = Code("syntax");
/// A map has two fields with the same name.
pub const DUPLICATE_FIELD: Code = Code("duplicate-field");

/// The error for the second of two fields with the same name.
pub(crate) fn duplicate_field_error(name: &str, first: Span, second: Span) -> Diagnostic {
    let message = format!("field {name:?} is given twice");
    let help = format!("the first is on line {}", first.start.line);
    Diagnostic::error(DUPLICATE_FIELD, message, second).with_help(help)
}

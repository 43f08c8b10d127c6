//! Parses YAML into a tree, from the events of a parser.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span as YamlSpan, Tag};

use super::{
    Diagnostic, MAX_COPIED_BYTES, MAX_DEPTH, MAX_VALUES, Node, Position, SYNTAX, Span, TOO_LARGE,
    Value, duplicate_field_error,
};

/// Parses a text that has `lines_before` lines of the file before it.
pub(super) fn parse(text: &str, file: u32, lines_before: u32) -> Result<Node, Vec<Diagnostic>> {
    let mut builder = TreeBuilder {
        file,
        lines_before,
        ..TreeBuilder::default()
    };
    // The parser takes a zero byte for the end of the text, and would ignore the rest.
    if let Some((before, _)) = text.split_once('\0') {
        let at = end_of_content(before, |_| true);
        let message = "a NUL character, after which YAML is not read on";
        let problem = Diagnostic::error(SYNTAX, message, builder.span(at, at));
        return Err(vec![
            problem.with_help("take it out, or write it as \"\\0\""),
        ]);
    }
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                // An error at the end of the text points after the last content, not after white space.
                let at = line_column(*error.marker())
                    .min(end_of_content(text, |sign| !sign.is_whitespace()));
                let problem = Diagnostic::error(SYNTAX, error.info(), builder.span(at, at));
                builder.problems.push(problem);
                break;
            }
        };
        if let Err(problem) = builder.handle_event(event, span) {
            builder.problems.push(problem);
            break;
        }
    }
    if builder.problems.is_empty() {
        let empty = Node {
            span: Span::of_file(file),
            value: Value::Null,
        };
        return Ok(builder.root.unwrap_or(empty));
    }
    Err(builder.problems)
}

#[derive(Default)]
struct TreeBuilder {
    file: u32,
    lines_before: u32,
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, (Node, Size)>,
    value_count: usize,
    /// The bytes of all values, including copied ones.
    bytes: usize,
    /// The bytes that anchors and aliases copied.
    copied_bytes: usize,
    problems: Vec<Diagnostic>,
    root: Option<Node>,
}

/// The size of a value with all values inside it.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    /// The size of a scalar.
    fn of(value: &Value) -> Self {
        let text = match value {
            Value::Text(text) => text.len(),
            _ => 0,
        };
        Self {
            nodes: 1,
            bytes: size_of::<Node>() + text,
        }
    }
}

/// A list or map that is being read.
struct OpenCollection {
    start: Span,
    anchor: usize,
    nodes_before: usize,
    bytes_before: usize,
    inner: Collection,
}

enum Collection {
    List(Vec<Node>),
    Map(Fields),
}

#[derive(Default)]
struct Fields {
    read: Vec<(Node, Node)>,
    names: HashMap<String, Span>,
    /// The name whose value comes next.
    name: Option<Node>,
}

impl TreeBuilder {
    /// Adds the next event. An error stops the reader.
    fn handle_event(&mut self, event: Event<'_>, span: YamlSpan) -> Result<(), Diagnostic> {
        let span = self.span(line_column(span.start), line_column(span.end));
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                let message = "a second document in one file; a policy is one document";
                let problem = Diagnostic::error(SYNTAX, message, span);
                Err(problem.with_help("give each policy a file, and include what belongs together"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = parse_scalar(&text, style, tag.as_deref());
                let size = Size::of(&value);
                let node = Node { span, value };
                self.store_anchor(anchor, &node, size)?;
                self.add_node(node, size)
            }
            Event::SequenceStart(anchor, _) => {
                self.open_collection(span, anchor, Collection::List(Vec::new()))
            }
            Event::MappingStart(anchor, _) => {
                self.open_collection(span, anchor, Collection::Map(Fields::default()))
            }
            Event::SequenceEnd | Event::MappingEnd => self.close_collection(span),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                // The size is checked before the copy, or a few nested aliases could exhaust the memory.
                Some((_, size)) if self.value_count + size.nodes > MAX_VALUES => {
                    Err(too_many_values(span))
                }
                Some((_, Size { bytes, .. })) => {
                    self.charge_copy(span, *bytes)?;
                    let (node, size) = &self.anchors[&anchor];
                    let (value, size) = (node.value.clone(), *size);
                    self.add_node(Node { span, value }, size)
                }
                None => {
                    let message = "an alias of something that isn't complete";
                    Err(Diagnostic::error(SYNTAX, message, span))
                }
            },
            _ => Ok(()),
        }
    }

    fn open_collection(
        &mut self,
        start: Span,
        anchor: usize,
        inner: Collection,
    ) -> Result<(), Diagnostic> {
        if self.open.len() == MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(Diagnostic::error(TOO_LARGE, message, start));
        }
        self.open.push(OpenCollection {
            start,
            anchor,
            nodes_before: self.value_count,
            bytes_before: self.bytes,
            inner,
        });
        Ok(())
    }

    fn close_collection(&mut self, end: Span) -> Result<(), Diagnostic> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.inner {
            Collection::List(items) => Value::List(items),
            Collection::Map(fields) => Value::Map(fields.read),
        };
        let node = Node {
            span: Span::new(open.start.file, open.start.start, end.end),
            value,
        };
        let own = Size::of(&node.value);
        let size = Size {
            nodes: self.value_count - open.nodes_before + own.nodes,
            bytes: self.bytes - open.bytes_before + own.bytes,
        };
        self.store_anchor(open.anchor, &node, size)?;
        self.add_node(node, own)
    }

    fn store_anchor(&mut self, anchor: usize, node: &Node, size: Size) -> Result<(), Diagnostic> {
        if anchor > 0 {
            self.charge_copy(node.span, size.bytes)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(())
    }

    /// Counts bytes before they are copied.
    fn charge_copy(&mut self, span: Span, bytes: usize) -> Result<(), Diagnostic> {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        if self.copied_bytes <= MAX_COPIED_BYTES {
            return Ok(());
        }
        let message = format!("anchors and aliases copy more than {MAX_COPIED_BYTES} bytes");
        let problem = Diagnostic::error(TOO_LARGE, message, span);
        Err(problem.with_help("repeat less, or split the file"))
    }

    /// Adds a value of this size to the collection that is open, or as the root.
    fn add_node(&mut self, node: Node, size: Size) -> Result<(), Diagnostic> {
        self.value_count = self.value_count.saturating_add(size.nodes);
        self.bytes = self.bytes.saturating_add(size.bytes);
        if self.value_count > MAX_VALUES {
            return Err(too_many_values(node.span));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.inner {
            Collection::List(items) => items.push(node),
            Collection::Map(fields) => match fields.name.take() {
                None => fields.name = Some(node),
                Some(name) => {
                    let text = match &name.value {
                        Value::Text(text) => text.clone(),
                        other => format!("{other:?}"),
                    };
                    if let Some(first) = fields.names.get(&text) {
                        self.problems
                            .push(duplicate_field_error(&text, *first, name.span));
                    } else {
                        fields.names.insert(text, name.span);
                        fields.read.push((name, node));
                    }
                }
            },
        }
        Ok(())
    }

    fn span(&self, start: Position, end: Position) -> Span {
        let before = self.lines_before;
        Span::new(self.file, start.below(before), end.below(before))
    }
}

fn too_many_values(span: Span) -> Diagnostic {
    let message = format!("more than {MAX_VALUES} values, with those that aliases repeat");
    Diagnostic::error(TOO_LARGE, message, span)
}

/// The position after the last character that counts as content.
fn end_of_content(text: &str, counts: impl Fn(char) -> bool) -> Position {
    let mut at = Position { line: 1, column: 1 };
    let mut end = at;
    let mut signs = text.chars().peekable();
    while let Some(sign) = signs.next() {
        let breaks = sign == '\n' || (sign == '\r' && signs.peek() != Some(&'\n'));
        if breaks {
            at.line = at.line.saturating_add(1);
            at.column = 1;
        } else {
            at.column = at.column.saturating_add(1);
        }
        if counts(sign) {
            end = at;
        }
    }
    end
}

fn line_column(marker: Marker) -> Position {
    // The parser counts columns from 0.
    Position::new(marker.line(), marker.col() + 1)
}

/// The value of a plain scalar by YAML 1.2's core schema. A quoted scalar, or one tagged `!!str`, is text.
fn parse_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(number) = text.parse()
    {
        return Value::Integer(number);
    }
    let is_part = |sign: char| sign.is_ascii_digit() || matches!(sign, '.' | 'e' | 'E' | '-' | '+');
    let numeric = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.contains('.')
        && digits.chars().all(is_part);
    match text.parse() {
        Ok(number) if numeric => Value::Float(number),
        _ => Value::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        parse(text, 0, 0).expect("YAML")
    }

    fn only(text: &str) -> Diagnostic {
        let [problem] = &parse(text, 0, 0).expect_err("not YAML")[..] else {
            panic!("one problem")
        };
        problem.clone()
    }

    #[test]
    fn scalars_mean_what_the_core_schema_says() {
        let Value::List(items) =
            tree("[1, -2, '1', 1.5, true, ~, 10/s, 1.2.3, 0x1, !!str 5]").value
        else {
            panic!("a list")
        };
        let text = |text: &str| Value::Text(text.to_owned());
        let values: Vec<_> = items.into_iter().map(|item| item.value).collect();
        assert_eq!(
            values,
            [
                Value::Integer(1),
                Value::Integer(-2),
                text("1"),
                Value::Float(1.5),
                Value::Bool(true),
                Value::Null,
                text("10/s"),
                text("1.2.3"),
                text("0x1"),
                text("5"),
            ]
        );
    }

    #[test]
    fn a_value_knows_its_line_and_column() {
        let Value::Map(fields) = tree("a: 1\nbc:\n  - x\n").value else {
            panic!("a map")
        };
        let start = |node: &Node| (node.span.start.line, node.span.start.column);
        assert_eq!((start(&fields[0].0), start(&fields[0].1)), ((1, 1), (1, 4)));
        let Value::List(items) = &fields[1].1.value else {
            panic!("a list")
        };
        assert_eq!(start(&items[0]), (3, 5));
    }

    #[test]
    fn a_name_given_twice_is_an_error_with_both_places() {
        let twice = only("a: 1\nb: 2\na: 3\n");
        assert_eq!(twice.message, "field \"a\" is given twice");
        assert_eq!(twice.span.start.line, 3);
        assert_eq!(twice.help.as_deref(), Some("the first is on line 1"));
    }

    #[test]
    fn aliases_repeat_but_never_explode() {
        let Value::Map(fields) = tree("a: &x [1, 2]\nb: *x\n").value else {
            panic!("a map")
        };
        assert_eq!(fields[1].1.value, fields[0].1.value);
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let below = level - 1;
            let ten = vec![format!("*a{below}"); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{ten}]\n"));
        }
        assert_eq!(only(&bomb).code, TOO_LARGE);
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(only(&deep).code, TOO_LARGE);
        assert_eq!(only("a: [1").code, SYNTAX);
        assert_eq!(only("a: 1\n---\nb: 2\n").code, SYNTAX);
    }
}

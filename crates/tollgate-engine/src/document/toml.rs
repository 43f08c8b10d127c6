//! Parses TOML into a tree.

use toml_span::value::{Table, ValueInner};

use super::text::IndexedText;
use super::{
    Diagnostic, Format, MAX_DEPTH, MAX_VALUES, Node, SYNTAX, Span, TOO_LARGE, Value,
    duplicate_field_error,
};

pub(super) fn parse(text: &str, file: u32) -> Result<Node, Diagnostic> {
    let text = IndexedText::new(text.to_owned(), Format::Toml);
    let lines = Lines { text, file };
    let mut value = match toml_span::parse(lines.text.text()) {
        Ok(value) => value,
        Err(error) => {
            let span = lines.span(error.span);
            let problem = match &error.kind {
                toml_span::ErrorKind::DuplicateKey { key, first } => {
                    duplicate_field_error(key, lines.span(*first), span)
                }
                _ => Diagnostic::error(SYNTAX, error.to_string(), span),
            };
            return Err(problem);
        }
    };
    let span = value.span;
    let lines = &lines;
    let mut reader = Reader {
        lines,
        value_count: 0,
    };
    reader.convert_value(value.take(), span, 0)
}

/// Converts the parser's values into a tree.
struct Reader<'a> {
    lines: &'a Lines,
    /// The number of values so far.
    value_count: usize,
}

impl Reader<'_> {
    fn convert_value(
        &mut self,
        value: ValueInner<'_>,
        span: toml_span::Span,
        depth: usize,
    ) -> Result<Node, Diagnostic> {
        let span = self.lines.span(span);
        self.value_count += 1;
        if depth > MAX_DEPTH || self.value_count > MAX_VALUES {
            let message =
                format!("more than {MAX_VALUES} values, or deeper than {MAX_DEPTH} levels");
            return Err(Diagnostic::error(TOO_LARGE, message, span));
        }
        let value = match value {
            ValueInner::String(text) => Value::Text(text.into_owned()),
            ValueInner::Integer(number) => Value::Integer(number),
            ValueInner::Float(number) => Value::Float(number),
            ValueInner::Boolean(is) => Value::Bool(is),
            ValueInner::Array(items) => {
                let items = items.into_iter();
                let items =
                    items.map(|mut item| self.convert_value(item.take(), item.span, depth + 1));
                Value::List(items.collect::<Result<_, _>>()?)
            }
            ValueInner::Table(table) => Value::Map(self.convert_table(table, depth)?),
        };
        Ok(Node { span, value })
    }

    fn convert_table(
        &mut self,
        table: Table<'_>,
        depth: usize,
    ) -> Result<Vec<(Node, Node)>, Diagnostic> {
        let mut fields = Vec::with_capacity(table.len());
        for (name, mut value) in table {
            let key = Node {
                span: self.lines.span(name.span),
                value: Value::Text(name.name.into_owned()),
            };
            fields.push((
                key,
                self.convert_value(value.take(), value.span, depth + 1)?,
            ));
        }
        // The parser sorts fields by name, but people expect the order of the file.
        fields.sort_by_key(|(name, _)| name.span.start);
        Ok(fields)
    }
}

/// Converts the parser's spans into lines and columns.
struct Lines {
    text: IndexedText,
    file: u32,
}

impl Lines {
    fn span(&self, span: toml_span::Span) -> Span {
        // A span of the parser may end before it starts.
        let end = self.text.line_column_at(span.end.max(span.start));
        Span::new(self.file, self.text.line_column_at(span.start), end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Position;
    use super::*;

    #[test]
    fn a_table_keeps_its_order_and_places() {
        let tree = parse("zeta = 1\n[alpha]\nrate = \"10/s\"\n", 0).expect("TOML");
        let Value::Map(fields) = tree.value else {
            panic!("a map")
        };
        let names: Vec<_> = fields.iter().map(|(name, _)| &name.value).collect();
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(names, [&text("zeta"), &text("alpha")]);
        let Value::Map(inner) = &fields[1].1.value else {
            panic!("a map")
        };
        assert_eq!(inner[0].1.value, text("10/s"));
        assert_eq!(inner[0].0.span.start, Position { line: 3, column: 1 });
    }

    #[test]
    fn mistakes_have_a_place() {
        let problem = |text: &str| parse(text, 0).expect_err("not TOML");
        assert_eq!(problem("a = \n").code, SYNTAX);
        let twice = problem("a = 1\nb = 2\na = 3\n");
        assert_eq!(
            (twice.message.as_str(), twice.span.start.line),
            ("field \"a\" is given twice", 3)
        );
    }
}

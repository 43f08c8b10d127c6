//! Scalars as their parser reads them: YAML 1.1's booleans and numbers, and the text of a number that
//! stands where text is wanted.

use crate::document::{Node, Span, Value};

/// The longest line with other than ASCII in which a scalar is looked up: finding a column takes time.
const LONGEST_LINE: usize = 4_096;

/// A document's text, to see how a scalar was written.
pub(super) struct Source<'a> {
    /// Each with whether it is all ASCII.
    lines: Vec<(&'a str, bool)>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let lines = text.lines().map(|line| (line, line.is_ascii()));
        Self {
            lines: lines.collect(),
        }
    }

    /// How a plain scalar was written; none for one in quotes, an alias, or one of several lines.
    fn plain(&self, node: &Node) -> Option<&'a str> {
        let text = self.slice(node.span)?.trim();
        // A place can be off where the parser breaks lines otherwise: then it reads otherwise too.
        let is_it = match &node.value {
            Value::Text(value) => text == value,
            Value::Integer(value) => text.parse() == Ok(*value),
            Value::Bool(value) => text.eq_ignore_ascii_case(&value.to_string()),
            _ => false,
        };
        is_it.then_some(text)
    }

    fn slice(&self, span: Span) -> Option<&'a str> {
        let index = |number: u32| usize::try_from(number.checked_sub(1)?).ok();
        if span.start.line != span.end.line {
            return None;
        }
        let (line, is_ascii) = *self.lines.get(index(span.start.line)?)?;
        let (start, end) = (index(span.start.column)?, index(span.end.column)?);
        if is_ascii {
            return line.get(start..end);
        }
        if line.len() > LONGEST_LINE {
            return None;
        }
        let place = |column: usize| {
            let mut places = line.char_indices().map(|(at, _)| at);
            places.nth(column).unwrap_or(line.len())
        };
        line.get(place(start)..place(end))
    }

    /// The text of a scalar, if it can stand for text: `404` and `yes` do, as they were written.
    pub(super) fn text(&self, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Null => Some(String::new()),
            Value::Integer(number) => {
                let plain = self.plain(node);
                Some(plain.map_or_else(|| number.to_string(), str::to_owned))
            }
            Value::Bool(is) => {
                let plain = self.plain(node);
                Some(plain.map_or_else(|| is.to_string(), str::to_owned))
            }
            Value::Float(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// A yes or no, in all the words of YAML 1.1.
    pub(super) fn truth(&self, node: &Node) -> Option<bool> {
        match &node.value {
            Value::Bool(is) => Some(*is),
            Value::Null => Some(false),
            Value::Text(_) => match self.plain(node)? {
                "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
                "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// A whole number from 0, in all the forms of YAML 1.1: `1_000`, `0x1f`, `0b11`, and `010` is 8.
    pub(super) fn count(&self, node: &Node) -> Option<u32> {
        match &node.value {
            Value::Null => Some(0),
            Value::Integer(number) => {
                let written = self.plain(node).and_then(in_any_base);
                match written {
                    Some(number) => Some(number),
                    None => u32::try_from(*number).ok(),
                }
            }
            Value::Text(_) => in_any_base(self.plain(node)?),
            _ => None,
        }
    }
}

fn in_any_base(text: &str) -> Option<u32> {
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
    use crate::document::{Format, parse};

    /// What `read` makes of each item of a list.
    fn each<T>(list: &str, read: impl Fn(&Source<'_>, &Node) -> T) -> Vec<T> {
        let Value::List(items) = parse(list, Format::Yaml, 0).expect("YAML").value else {
            panic!("a list")
        };
        let source = Source::new(list);
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
            |source, item| source.truth(item),
        );
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(truths, [yes, yes, yes, no, no, no, None, None, None]);
    }

    #[test]
    fn counts_have_many_forms_unless_in_quotes() {
        let counts = each(
            "[10, 1_000, 0x1f, 0b11, 010, +7, ~, '10', -1, 4294967296, 1.0, ten, 0, 0o17]",
            |source, item| source.count(item),
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

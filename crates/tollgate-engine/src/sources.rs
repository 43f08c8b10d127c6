//! The texts that a policy was read from, with the positions of lines.

use crate::document::text::IndexedText;
use crate::document::{Format, Position, Span};

/// The files of a policy, in the order in which they were read. The first includes the others.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let sources = Policy::from_text("limits: 5", Format::Yaml).unwrap_err().sources;
/// assert_eq!(sources.iter().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: Vec<Source>,
}

/// One file, with its text.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let sources = Policy::from_text("limits: 5", Format::Yaml).unwrap_err().sources;
/// let source = sources.get(0).expect("one text");
/// assert_eq!((source.name(), source.text(), source.line(1)), ("<text>", "limits: 5", Some("limits: 5")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: IndexedText,
}

impl Sources {
    /// The file that a [`Span`] refers to.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits:\n- {name: all, rate: 5/s}";
    /// let sources = Policy::from_text(text, Format::Yaml)?.sources;
    /// let file = sources.get(0).expect("one file");
    /// assert_eq!((file.name(), file.line(1)), ("<text>", Some("limits:")));
    /// assert!(sources.get(1).is_none());
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn get(&self, file: u32) -> Option<&Source> {
        self.files.get(usize::try_from(file).ok()?)
    }

    /// All files, in the order in which they were read.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.files.iter()
    }

    /// Adds a file, and returns its number.
    pub(crate) fn add(&mut self, name: String, text: String, format: Format) -> u32 {
        let text = IndexedText::new(text, format);
        self.files.push(Source { name, text });
        u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX)
    }

    /// The text on the line where a span begins, up to the end of the span or of the line.
    pub(crate) fn text_at(&self, span: Span) -> Option<&str> {
        self.get(span.file)?.text.slice(span)
    }

    /// The span of a part of a scalar, given in characters of its value. It is the whole span if the file writes the
    /// value differently, as with escapes or an alias.
    pub(crate) fn span_within(&self, span: Span, value: &str, from: usize, length: usize) -> Span {
        let raw = self.text_at(span).unwrap_or("");
        let Some(at) = raw.find(value).filter(|_| !value.is_empty()) else {
            return span;
        };
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let before = small(raw[..at].chars().count());
        let first = span.start.column.saturating_add(before);
        let place = |chars: usize| Position {
            line: span.start.line,
            column: first.saturating_add(small(chars)),
        };
        Span::new(span.file, place(from), place(from + length))
    }
}

impl Source {
    /// The file's name: its path as it was given or included.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        self.text.text()
    }

    /// One line, counted from 1, without its line ending.
    pub fn line(&self, line: u32) -> Option<&str> {
        self.text.line(line)
    }

    /// A part of a line, from a column counted in characters from 1, and whether the line continues after it.
    pub(crate) fn line_window(&self, number: u32, from: u32, most: usize) -> (&str, bool) {
        let line = self.line(number).unwrap_or("");
        let start = self.text.byte_of_column(number, from);
        let rest = start.and_then(|start| line.get(start..)).unwrap_or("");
        match rest.char_indices().nth(most) {
            Some((end, _)) => (&rest[..end], true),
            None => (rest, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, end: u32) -> Span {
        let place = |column| Position { line: 2, column };
        Span {
            file: 0,
            start: place(start),
            end: place(end),
        }
    }

    #[test]
    fn lines_are_found_whatever_ends_them() {
        let mut sources = Sources::default();
        let text = "one\r\ntwo\n\rfour";
        sources.add("a.yaml".into(), text.into(), Format::Yaml);
        let file = sources.get(0).unwrap();
        let lines: Vec<_> = (0..7).map(|line| file.line(line)).collect();
        let expect = [
            None,
            Some("one"),
            Some("two"),
            Some(""),
            Some("four"),
            None,
            None,
        ];
        assert_eq!(lines, expect);
    }

    #[test]
    fn a_part_of_a_value_has_its_own_place() {
        let mut sources = Sources::default();
        let text = "\nä: \"10/x\" # 10/x";
        sources.add("a.yaml".into(), text.into(), Format::Yaml);
        assert_eq!(sources.text_at(span(4, 10)), Some("\"10/x\""));
        // Inside the quotes: the x is the fifth character of the quoted text, at column 8.
        assert_eq!(sources.span_within(span(4, 10), "10/x", 3, 1), span(8, 9));
        // If the file writes a value differently, the whole span is returned.
        assert_eq!(sources.span_within(span(4, 10), "11/x", 3, 1), span(4, 10));
    }
}

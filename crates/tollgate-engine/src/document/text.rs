//! Finds lines and characters of a text without scanning all of it: a file may be one line of megabytes.

use super::{Format, Position, Span};

/// The size of a block in bytes. Only characters within a block are counted by scanning.
const BLOCK_BYTES: usize = 64;

/// A text with an index of its lines and characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexedText {
    text: String,
    /// The byte offsets of the line starts.
    line_starts: Vec<usize>,
    /// The number of characters before each block. Empty if all characters are one byte.
    chars_before_block: Vec<usize>,
}

impl IndexedText {
    pub(crate) fn new(text: String, format: Format) -> Self {
        let breaks = text.match_indices(['\n', '\r']).filter(|(at, sign)| {
            // In YAML, a carriage return alone also ends a line.
            let alone = format == Format::Yaml && text.as_bytes().get(at + 1) != Some(&b'\n');
            *sign == "\n" || alone
        });
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1));
        let (is_ascii, mut characters) = (text.is_ascii(), 0);
        let blocks = text.as_bytes().chunks(BLOCK_BYTES).map(|block| {
            let before = characters;
            characters += count_chars(block);
            before
        });
        Self {
            line_starts: starts.collect(),
            chars_before_block: blocks.filter(|_| !is_ascii).collect(),
            text,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// A line without its line ending, counted from 1.
    pub(crate) fn line(&self, line: u32) -> Option<&str> {
        let start = self.start(line)?;
        let next = self.start(line.checked_add(1)?);
        let line = self.text.get(start..next.unwrap_or(self.text.len()))?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    /// The byte offset of a line's start.
    fn start(&self, line: u32) -> Option<usize> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        self.line_starts.get(index).copied()
    }

    /// The line and column of a byte. A byte inside a character has the position of the next character.
    pub(crate) fn line_column_at(&self, byte: usize) -> Position {
        let end = self.text.len();
        let byte = (byte.min(end)..end).find(|byte| self.text.is_char_boundary(*byte));
        let byte = byte.unwrap_or(end);
        let line = self
            .line_starts
            .partition_point(|start| *start <= byte)
            .max(1);
        let column = self.chars_before(byte) - self.chars_before(self.line_starts[line - 1]);
        Position::new(line, column + 1)
    }

    /// The byte offset within a line at which a column begins. Columns count characters from 1.
    pub(crate) fn byte_of_column(&self, line: u32, column: u32) -> Option<usize> {
        let index = usize::try_from(column).ok()?.checked_sub(1)?;
        let start = self.start(line)?;
        let byte = self.byte_of_char(self.chars_before(start).checked_add(index)?)?;
        // The position after the last character is valid too.
        byte.checked_sub(start)
            .filter(|byte| self.line(line).is_some_and(|line| *byte <= line.len()))
    }

    /// The text from the start of a span to its end, or to the end of its first line.
    pub(crate) fn slice(&self, span: Span) -> Option<&str> {
        let line = self.line(span.start.line)?;
        let start = self.byte_of_column(span.start.line, span.start.column)?;
        let end = self.byte_of_column(span.start.line, span.end.column);
        let end = end.filter(|_| span.end.line <= span.start.line);
        line.get(start..end.unwrap_or(line.len()))
    }

    /// The number of characters that begin before a byte.
    fn chars_before(&self, byte: usize) -> usize {
        // If the last block is full, the end of the text has no block of its own.
        let block = (byte / BLOCK_BYTES).min(self.chars_before_block.len().saturating_sub(1));
        match self.chars_before_block.get(block) {
            Some(before) => before + count_chars(&self.text.as_bytes()[block * BLOCK_BYTES..byte]),
            None => byte,
        }
    }

    /// The byte at which a character begins. Characters count from 0, and the position after the last is valid too.
    fn byte_of_char(&self, character: usize) -> Option<usize> {
        if self.chars_before_block.is_empty() {
            return (character <= self.text.len()).then_some(character);
        }
        let block = self
            .chars_before_block
            .partition_point(|before| *before <= character);
        let block = block.saturating_sub(1);
        let missing = character - self.chars_before_block[block];
        let bytes = self
            .text
            .as_bytes()
            .iter()
            .enumerate()
            .skip(block * BLOCK_BYTES);
        let starts = bytes.filter_map(|(at, byte)| is_char_start(*byte).then_some(at));
        starts.chain([self.text.len()]).nth(missing)
    }
}

fn count_chars(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| is_char_start(**byte)).count()
}

/// Whether a byte of UTF-8 begins a character.
const fn is_char_start(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn places_are_those_that_counting_finds(text in "[aä€𝄞]{0,200}|[ab]{0,130}") {
            let own = IndexedText::new(text.clone(), Format::Toml);
            let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            for (character, byte) in places.enumerate() {
                prop_assert_eq!(own.chars_before(byte), character);
                prop_assert_eq!(own.byte_of_char(character), Some(byte));
                prop_assert_eq!(own.line_column_at(byte), Position::new(1, character + 1));
            }
            prop_assert_eq!(own.byte_of_char(text.chars().count() + 1), None);
        }
    }
}

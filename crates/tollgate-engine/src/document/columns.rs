//! Characters of a text by their bytes, and the other way round, without counting from its beginning.

/// So many bytes are counted by looking at them.
const BLOCK: usize = 64;

/// How many characters begin before each block of a text; nothing if each is a byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    before: Vec<usize>,
}

impl Columns {
    pub(crate) fn new(text: &str) -> Self {
        if text.is_ascii() {
            return Self::default();
        }
        let mut characters = 0;
        let before = text.as_bytes().chunks(BLOCK).map(|block| {
            let before = characters;
            characters += starts(block);
            before
        });
        Self {
            before: before.collect(),
        }
    }

    /// How many characters begin before a byte of the text that this was made of.
    pub(crate) fn characters(&self, text: &str, byte: usize) -> usize {
        let byte = byte.min(text.len());
        // The last block may be a full one, after which there is none.
        let block = (byte / BLOCK).min(self.before.len().saturating_sub(1));
        match self.before.get(block) {
            Some(before) => before + starts(&text.as_bytes()[block * BLOCK..byte]),
            None => byte,
        }
    }

    /// The byte at which a character begins, counted from 0 in the text that this was made of. One past the
    /// last is a place too.
    pub(crate) fn byte(&self, text: &str, character: usize) -> Option<usize> {
        if self.before.is_empty() {
            return (character <= text.len()).then_some(character);
        }
        let block = self.before.partition_point(|before| *before <= character);
        let block = block.saturating_sub(1);
        let mut missing = character - self.before[block];
        let from = block * BLOCK;
        for (at, byte) in text.as_bytes().iter().enumerate().skip(from) {
            if is_start(*byte) {
                if missing == 0 {
                    return Some(at);
                }
                missing -= 1;
            }
        }
        (missing == 0).then_some(text.len())
    }
}

fn starts(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| is_start(**byte)).count()
}

/// Whether a byte of UTF-8 is the first of a character.
const fn is_start(byte: u8) -> bool {
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
            let columns = Columns::new(&text);
            let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            for (character, byte) in places.enumerate() {
                prop_assert_eq!(columns.characters(&text, byte), character);
                prop_assert_eq!(columns.byte(&text, character), Some(byte));
            }
            prop_assert_eq!(columns.byte(&text, text.chars().count() + 1), None);
        }
    }
}

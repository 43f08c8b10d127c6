//! A text that is stored inline if it is short. It shares the cache line of its rule, so reading it needs no further
//! memory access.

use std::fmt;

/// The longest inline text, in bytes.
const INLINE_BYTES: usize = 22;

#[derive(Clone)]
pub(super) enum InlineText {
    Short {
        length: u8,
        bytes: [u8; INLINE_BYTES],
    },
    Long(Box<str>),
}

impl InlineText {
    pub(super) fn new(text: &str) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(own), Ok(length)) => {
                own.copy_from_slice(text.as_bytes());
                Self::Short { length, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(text) => text.as_bytes(),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            // The bytes were copied from a `str`, so they are valid UTF-8.
            Self::Short { .. } => str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Self::Long(text) => text,
        }
    }
}

impl fmt::Debug for InlineText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_texts_are_what_they_were_made_of() {
        for length in 0..60 {
            let text = "aö/".repeat(length);
            assert_eq!(InlineText::new(&text).as_str(), text);
            assert_eq!(InlineText::new(&text).as_bytes(), text.as_bytes());
        }
        assert!(size_of::<InlineText>() <= 24);
    }
}

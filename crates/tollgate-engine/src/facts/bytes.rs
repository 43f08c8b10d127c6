//! Values that are bytes, as text: one text for each value, whatever its bytes are.

use std::borrow::Cow;

/// A byte that is no part of UTF-8 text becomes the code point of this number and the byte.
const BASE: u32 = 0xf700;

/// A value of any bytes as the text of a fact.
///
/// UTF-8 text is itself. A byte that isn't part of such text becomes a code point of private use: 0x80 is U+F780, 0xff is U+F7FF. What
/// the value itself has of those 128 code points is written byte by byte in the same way, so that two values are never one text.
/// A condition may name a byte by its code point. Text that a value begins with is what its text begins with, too.
///
/// ```
/// use tollgate_engine::facts::text_of_bytes;
///
/// assert_eq!(text_of_bytes("grün".as_bytes()), "grün");
/// assert_eq!(text_of_bytes(b"a\xffb"), "a\u{f7ff}b");
/// assert_eq!(text_of_bytes("\u{f7ff}".as_bytes()), "\u{f7ef}\u{f79f}\u{f7bf}");
/// ```
pub fn text_of_bytes(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) if !has_reserved(text) => Cow::Borrowed(text),
        _ => Cow::Owned(escaped(value)),
    }
}

/// Whether a sign stands for a byte.
fn is_reserved(sign: char) -> bool {
    matches!(sign, '\u{f780}'..='\u{f7ff}')
}

fn has_reserved(text: &str) -> bool {
    // All of them begin with this byte, which most texts don't have.
    text.as_bytes().contains(&0xef) && text.contains(is_reserved)
}

#[cold]
fn escaped(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len() + 16);
    for chunk in value.utf8_chunks() {
        for sign in chunk.valid().chars() {
            if is_reserved(sign) {
                push_bytes(&mut out, sign.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(sign);
            }
        }
        push_bytes(&mut out, chunk.invalid());
    }
    out
}

/// Adds bytes from 0x80, each as its code point.
fn push_bytes(out: &mut String, bytes: &[u8]) {
    let signs = bytes.iter().map(|byte| BASE + u32::from(*byte));
    out.extend(signs.filter_map(char::from_u32));
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The bytes that a text stands for.
    fn bytes_of(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sign in text.chars() {
            match u32::from(sign).checked_sub(BASE).map(u8::try_from) {
                Some(Ok(byte)) if is_reserved(sign) => bytes.push(byte),
                _ => bytes.extend(sign.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    }

    /// Bytes, and pieces that are nearly text.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            vec(any::<u8>(), 0..4),
            any::<char>().prop_map(|sign| sign.to_string().into_bytes()),
            (0xf6f0_u32..0xf810).prop_map(|number| {
                let sign = char::from_u32(number).expect("a code point");
                sign.to_string().into_bytes()
            }),
            Just(vec![0xef]),
            Just(vec![0xef, 0x9f]),
        ];
        vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn every_value_is_told_by_its_text(value in value()) {
            prop_assert_eq!(bytes_of(&text_of_bytes(&value)), value);
        }

        #[test]
        fn what_a_value_begins_with_its_text_begins_with(head in "[a-zé\u{f700}-\u{f77f}]{0,5}", rest in value()) {
            let whole = [head.as_bytes(), &rest].concat();
            prop_assert!(text_of_bytes(&whole).starts_with(&head));
        }
    }

    #[test]
    fn text_is_borrowed() {
        for text in ["", "plain", "grün", "\u{f701}", "\u{feff}"] {
            assert!(matches!(text_of_bytes(text.as_bytes()), Cow::Borrowed(same) if same == text));
        }
    }
}

//! Escapes characters that are invisible or change how others are displayed.

use std::borrow::Cow;

/// Whether a character is invisible, or changes how others are displayed.
pub(crate) fn is_hidden(sign: char) -> bool {
    sign.is_control()
        || matches!(
            sign,
            '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// A text that can't change what a terminal displays beside it: characters that are invisible, or change how others
/// are displayed, are escaped.
///
/// ```
/// use tollgate_engine::render::escaped;
///
/// assert_eq!(escaped("user=\u{1b}[31mann\n"), "user=\\u{1b}[31mann\\n");
/// assert_eq!(escaped("/größe"), "/größe");
/// ```
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        if !is_hidden(sign) {
            escaped.push(sign);
        } else if sign.is_ascii_control() {
            escaped.extend(sign.escape_default());
        } else {
            escaped.extend(sign.escape_unicode());
        }
    }
    Cow::Owned(escaped)
}

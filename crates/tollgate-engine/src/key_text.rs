//! Keys as text: a key as lists and logs show it can be parsed again, and names the same key.
//!
//! A key is a list of `name=value` pairs, separated by one space. A value is written unchanged unless it could be
//! misread: an empty one, and one with spaces, quotes, backslashes, control characters or `*`, is in double quotes
//! with Rust's escapes. Text that was cut ends with `…`, outside of quotes.

use std::fmt;

/// Follows a key that is cut off.
pub(crate) const ELLIPSIS: char = '…';

/// One pair of a key, parsed from text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTextPair {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Whether the value was in quotes, and so is no pattern.
    pub(crate) is_quoted: bool,
}

/// Why a text isn't a key.
///
/// ```
/// use tollgate_engine::overrides::{KeyTextError, Target};
///
/// let error = Target::from_text(None, "user=ada gold").unwrap_err();
/// assert_eq!(error, KeyTextError::NoPair("gold".to_owned()));
/// assert_eq!(error.to_string(), "\"gold\" is no pair of a name and a value: write name=value, and quote a value with spaces");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum KeyTextError {
    /// The text is empty.
    #[display("the key is empty: write name=value")]
    Empty,
    /// A part isn't `name=value`.
    #[display(
        "{_0:?} is no pair of a name and a value: write name=value, and quote a value with spaces"
    )]
    NoPair(String),
    /// A quoted text has no end, or an unknown escape.
    #[display(
        "the quotes of {_0:?} don't close, or hold an escape that there isn't: use \\\", \\\\, \\n, \\r, \\t, \\0 and \\u{{…}}"
    )]
    Quotes(String),
    /// The text is only the beginning of a long key, as lists show it.
    #[display(
        "the key ends with …: the list has shown its beginning only, so it names no key; take the whole of it from the client"
    )]
    Cut,
}

impl std::error::Error for KeyTextError {}

/// Displays a name or a value, in quotes if needed.
pub(crate) struct QuotedText<'a>(pub(crate) &'a str);

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stands = |sign: char| {
            sign.is_alphanumeric()
                || sign.is_ascii_graphic() && !matches!(sign, '"' | '\'' | '\\' | '*')
        };
        if !self.0.is_empty() && self.0.chars().all(stands) {
            f.write_str(self.0)
        } else {
            write!(f, "{:?}", self.0)
        }
    }
}

/// Writes a pair. A name with `=` is quoted too.
pub(crate) fn write_pair(
    f: &mut impl fmt::Write,
    name: &str,
    value: impl fmt::Display,
) -> fmt::Result {
    if name.contains('=') {
        write!(f, "{name:?}={value}")
    } else {
        write!(f, "{}={value}", QuotedText(name))
    }
}

/// Parses the pairs of a text.
pub(crate) fn read_pairs(text: &str) -> Result<Vec<KeyTextPair>, KeyTextError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim();
    if rest.ends_with(ELLIPSIS) {
        return Err(KeyTextError::Cut);
    }
    while !rest.is_empty() {
        let whole = rest;
        let no_pair = || {
            let piece = whole.split(' ').next().unwrap_or_default();
            KeyTextError::NoPair(piece.to_owned())
        };
        let (name, _, after) = read_piece(rest, '=')?;
        let after = after.strip_prefix('=').ok_or_else(no_pair)?;
        let (value, is_quoted, after) = read_piece(after, ' ')?;
        if name.is_empty() || !(after.is_empty() || after.starts_with(' ')) {
            return Err(no_pair());
        }
        pairs.push(KeyTextPair {
            name,
            value,
            is_quoted,
        });
        rest = after.trim_start();
    }
    if pairs.is_empty() {
        return Err(KeyTextError::Empty);
    }
    Ok(pairs)
}

/// Parses a text up to `ends` or a space, or one in quotes. Returns whether it was in quotes, and the rest.
fn read_piece(text: &str, ends: char) -> Result<(String, bool, &str), KeyTextError> {
    if !text.starts_with('"') {
        let end = text.find([ends, ' ']).unwrap_or(text.len());
        return Ok((text[..end].to_owned(), false, &text[end..]));
    }
    let wrong = || KeyTextError::Quotes(text.to_owned());
    let mut own = String::new();
    let mut signs = text.char_indices().skip(1);
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Ok((own, true, &text[at + 1..])),
            '\\' => {
                let (_, escape) = signs.next().ok_or_else(wrong)?;
                own.push(match escape {
                    '"' | '\\' | '\'' => escape,
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    '0' => '\0',
                    'u' => {
                        signs
                            .next()
                            .filter(|(_, open)| *open == '{')
                            .ok_or_else(wrong)?;
                        let digits = signs.by_ref().map(|(_, digit)| digit);
                        let digits: String = digits.take_while(|digit| *digit != '}').collect();
                        let number = u32::from_str_radix(&digits, 16).ok();
                        number.and_then(char::from_u32).ok_or_else(wrong)?
                    }
                    _ => return Err(wrong()),
                });
            }
            sign => own.push(sign),
        }
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_shown_and_what_is_none_is_said() {
        let of = |text: &str| {
            let pairs = read_pairs(text)?;
            let pairs = pairs.into_iter().map(|pair| (pair.name, pair.value));
            Ok(pairs.collect::<Vec<_>>())
        };
        let pairs = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Ok(pairs.collect::<Vec<_>>())
        };
        for (text, expect) in [
            ("user=ada", pairs(&[("user", "ada")])),
            (
                "ip=2001:db8::/64 method=GET",
                pairs(&[("ip", "2001:db8::/64"), ("method", "GET")]),
            ),
            (
                "user=\"a b=c\" plan=\"\"",
                pairs(&[("user", "a b=c"), ("plan", "")]),
            ),
            ("q=a=b&c", pairs(&[("q", "a=b&c")])),
            ("\"a=b\"=\"\\u{7}\\\"\"", pairs(&[("a=b", "\u{7}\"")])),
            ("", Err(KeyTextError::Empty)),
            ("user", Err(KeyTextError::NoPair("user".to_owned()))),
            ("=ada", Err(KeyTextError::NoPair("=ada".to_owned()))),
            (
                "user=ada gold",
                Err(KeyTextError::NoPair("gold".to_owned())),
            ),
            ("user=\"ada", Err(KeyTextError::Quotes("\"ada".to_owned()))),
            (
                "user=\"\\x\"",
                Err(KeyTextError::Quotes("\"\\x\"".to_owned())),
            ),
            (
                "user=\"a\"b",
                Err(KeyTextError::NoPair("user=\"a\"b".to_owned())),
            ),
            ("user=ada…", Err(KeyTextError::Cut)),
        ] {
            assert_eq!(of(text), expect, "{text}");
        }
    }

    #[test]
    fn what_could_be_taken_for_something_else_is_quoted() {
        let shown = |value: &str| QuotedText(value).to_string();
        for plain in ["ada", "josé", "2001:db8::/64", "/api?x=1&y", "a,b;c"] {
            assert_eq!(shown(plain), plain);
        }
        assert_eq!(shown(""), "\"\"");
        assert_eq!(shown("a b"), "\"a b\"");
        assert_eq!(shown("a*"), "\"a*\"");
        assert_eq!(shown("a…"), "\"a…\"");
        assert_eq!(shown("a\"b"), "\"a\\\"b\"");
    }
}

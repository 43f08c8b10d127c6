//! Header fields that are lists, read from the right: what the nearest proxy wrote comes first, and what a client wrote
//! left of it can't change how that is read.

use std::borrow::Cow;

/// The elements of one line of a list, from the right. Those without anything in them are left out, as RFC 9110 says.
/// A comma between quotes divides nothing.
pub(super) struct FromTheRight<'a> {
    rest: Option<&'a [u8]>,
    quotes: Quotes,
}

/// Whether `"` means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotes {
    /// It does, as in `Forwarded`.
    Read,
    /// It is a sign like others, as in `X-Forwarded-For`.
    Plain,
}

impl<'a> FromTheRight<'a> {
    pub(super) const fn new(line: &'a [u8], quotes: Quotes) -> Self {
        Self {
            rest: Some(line),
            quotes,
        }
    }
}

impl<'a> Iterator for FromTheRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let rest = self.rest?;
            let comma = match self.quotes {
                Quotes::Plain => rest.iter().rposition(|byte| *byte == b','),
                Quotes::Read => last_outside_quotes(rest, b','),
            };
            let (left, element) = match comma {
                Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
                None => (None, rest),
            };
            self.rest = left;
            let element = element.trim_ascii();
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

/// Where this sign is last, but for those between quotes.
fn last_outside_quotes(text: &[u8], sign: u8) -> Option<usize> {
    let mut is_quoted = false;
    for (at, byte) in text.iter().enumerate().rev() {
        if *byte == b'"' {
            // A quote that is part of a quoted text has a backslash of its own.
            let slashes = text[..at].iter().rev();
            let slashes = slashes.take_while(|byte| **byte == b'\\').count();
            if slashes % 2 == 0 {
                is_quoted = !is_quoted;
            }
        } else if *byte == sign && !is_quoted {
            return Some(at);
        }
    }
    None
}

/// What an element of `Forwarded` says of a parameter; none if it doesn't, says it twice, or isn't well formed.
pub(super) fn parameter<'a>(element: &'a [u8], name: &str) -> Option<Cow<'a, str>> {
    let (mut found, mut rest) = (None, Some(element));
    while let Some(pairs) = rest {
        let (left, pair) = match last_outside_quotes(pairs, b';') {
            Some(at) => (Some(&pairs[..at]), &pairs[at + 1..]),
            None => (None, pairs),
        };
        rest = left;
        let pair = str::from_utf8(pair.trim_ascii()).ok()?;
        if pair.is_empty() {
            continue;
        }
        let (key, value) = pair.split_once('=')?;
        if !is_token(key) {
            return None;
        }
        let value = unquoted(value)?;
        if key.eq_ignore_ascii_case(name) && found.replace(value).is_some() {
            return None;
        }
    }
    found
}

/// A token as it is, or a quoted text without its quotes and backslashes.
fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let Some(rest) = value.strip_prefix('"') else {
        return is_token(value).then_some(Cow::Borrowed(value));
    };
    let inner = rest.strip_suffix('"')?;
    if !inner.contains(['\\', '"']) {
        return Some(Cow::Borrowed(inner));
    }
    let (mut text, mut signs) = (String::with_capacity(inner.len()), inner.chars());
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => text.push(signs.next()?),
            '"' => return None,
            sign => text.push(sign),
        }
    }
    Some(Cow::Owned(text))
}

fn is_token(text: &str) -> bool {
    let sign = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, quotes: Quotes) -> Vec<&str> {
        let elements = FromTheRight::new(line.as_bytes(), quotes);
        let text = |element| str::from_utf8(element).expect("text");
        elements.map(text).collect()
    }

    #[test]
    fn elements_come_from_the_right() {
        assert_eq!(read("a, b ,c", Quotes::Plain), ["c", "b", "a"]);
        assert_eq!(read(" ,, a,,", Quotes::Plain), ["a"]);
        assert_eq!(read("", Quotes::Plain), [""; 0]);
        assert_eq!(read("\"a,b\"", Quotes::Plain), ["b\"", "\"a"]);
        assert_eq!(read("\"a,b\",c", Quotes::Read), ["c", "\"a,b\""]);
        assert_eq!(read(r#""a\",b",c"#, Quotes::Read), ["c", r#""a\",b""#]);
    }

    #[test]
    fn a_quote_that_is_never_closed_hides_nothing_right_of_it() {
        assert_eq!(read("for=\"x, for=y", Quotes::Read)[0], "for=y");
        assert_eq!(read("for=\"x\\, for=\"y\"", Quotes::Read)[0], "for=\"y\"");
    }

    #[test]
    fn a_parameter_is_read_whatever_stands_beside() {
        let rows = [
            ("for=192.0.2.1", Some("192.0.2.1")),
            (
                "proto=https;FOR=\"[2001:db8::1]:80\" ; by=_x",
                Some("[2001:db8::1]:80"),
            ),
            (r#"for="a\"b";host="x;for=evil""#, Some("a\"b")),
            ("for=a;for=b", None),
            ("proto=http", None),
            ("for", None),
            ("for =a", None),
            ("for=a b", None),
            ("for=\"a", None),
            ("for=", None),
            ("=a", None),
            (";;for=a;", Some("a")),
        ];
        for (element, expected) in rows {
            let found = parameter(element.as_bytes(), "for");
            assert_eq!(found.as_deref(), expected, "{element}");
        }
    }
}

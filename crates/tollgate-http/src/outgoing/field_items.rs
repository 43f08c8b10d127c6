//! A parser for header fields that are lists of items with parameters. A hostile server may write them, so unreadable
//! parts are ignored and the work is bounded.

use std::time::Duration;

/// The most elements of a field that are read; no server has so many limits.
const MOST_ITEMS: usize = 64;
/// The most parameters of an element that are read.
const MOST_PARAMETERS: usize = 16;

/// An element of a list: `"name";r=50;t=30`, or `remaining=50` in a dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    /// The name as it was written, with its quotes.
    pub(super) name: &'a [u8],
    parameters: Option<&'a [u8]>,
}

impl<'a> Item<'a> {
    /// The value of a parameter. If it occurs twice, the last one counts (RFC 9651).
    pub(super) fn get(&self, name: &str) -> Option<&'a [u8]> {
        let pairs = ListParts::new(self.parameters?, b';').take(MOST_PARAMETERS);
        let found = pairs.filter_map(|pair| value_of(pair, name));
        found.last()
    }

    /// The value, if the element is a member of a dictionary with this name.
    pub(super) fn value(&self, name: &str) -> Option<&'a [u8]> {
        value_of(self.name, name)
    }
}

fn value_of<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    let (own, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
    own.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
}

/// The elements in all values of a field.
pub(super) fn items<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = Item<'a>> {
    let elements = lines.flat_map(|line| ListParts::new(line, b','));
    let item = |element: &'a [u8]| {
        let (name, parameters) = split_unquoted(element, b';');
        Item {
            name: name.trim_ascii(),
            parameters,
        }
    };
    elements.map(item).take(MOST_ITEMS)
}

/// A whole number; a number that is too large becomes the largest `u64`.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let digits = || text.iter().map(|digit| u64::from(digit - b'0'));
    is_number.then(|| {
        digits().fold(0_u64, |sum, digit| {
            sum.saturating_mul(10).saturating_add(digit)
        })
    })
}

/// Seconds. Some servers write decimals: those are rounded up to the next second.
pub(super) fn seconds(text: &[u8]) -> Option<Duration> {
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, part) = match dot {
        Some(at) => (&text[..at], Some(number(&text[at + 1..])?)),
        None => (text, None),
    };
    let up = u64::from(part.is_some_and(|part| part > 0));
    Some(Duration::from_secs(number(whole)?.saturating_add(up)))
}

/// The parts of a text between separators. Separators in quotes don't count, and empty parts are skipped.
struct ListParts<'a> {
    rest: Option<&'a [u8]>,
    sign: u8,
}

impl<'a> ListParts<'a> {
    const fn new(text: &'a [u8], sign: u8) -> Self {
        Self {
            rest: Some(text),
            sign,
        }
    }
}

impl<'a> Iterator for ListParts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (part, rest) = split_unquoted(self.rest?, self.sign);
            self.rest = rest;
            let part = part.trim_ascii();
            if !part.is_empty() {
                return Some(part);
            }
        }
    }
}

/// Splits a text at the first separator outside quotes.
fn split_unquoted(text: &[u8], sign: u8) -> (&[u8], Option<&[u8]>) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            byte if *byte == sign && !is_quoted => return (&text[..at], Some(&text[at + 1..])),
            _ => {}
        }
    }
    (text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_semicolons_in_quotes_divide_nothing() {
        let line = br#" "a,b;r=1\",";r=5;t=6;r=7 ,, x ; T = 9"#;
        let found: Vec<_> = items([line.as_slice()].into_iter()).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, br#""a,b;r=1\",""#);
        assert_eq!(found[0].get("r"), Some(b"7".as_slice()));
        assert_eq!(found[1].get("t"), Some(b"9".as_slice()));
        assert_eq!(found[1].get("r"), None);
    }

    #[test]
    fn numbers_have_no_sign_and_no_end() {
        for (text, expect) in [
            ("0", Some(0)),
            ("60", Some(60)),
            ("99999999999999999999999999", Some(u64::MAX)),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("", None),
        ] {
            assert_eq!(number(text.as_bytes()), expect, "{text}");
        }
        for (text, expect) in [
            ("1.5", Some(2)),
            ("1.0", Some(1)),
            (".5", None),
            ("1.", None),
        ] {
            let expect = expect.map(Duration::from_secs);
            assert_eq!(seconds(text.as_bytes()), expect, "{text}");
        }
    }

    #[test]
    fn of_thousands_of_items_a_few_are_read() {
        let line = "\"a\";r=1;t=1,".repeat(10_000);
        assert_eq!(items([line.as_bytes()].into_iter()).count(), MOST_ITEMS);
        let line = format!("\"a\"{}", ";r=1".repeat(10_000));
        let first = items([line.as_bytes()].into_iter()).next();
        assert_eq!(first.and_then(|item| item.get("r")), Some(b"1".as_slice()));
    }
}

//! Parses the hops of a request, as proxies wrote them. Lists are read from the right, so that a client can't change
//! how the nearest proxy's entry is read. An entry is an address, perhaps with a port.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The elements of a list, from the right. Empty elements are skipped (RFC 9110). A comma in quotes separates
/// nothing.
pub(super) struct ReverseList<'a> {
    rest: Option<&'a [u8]>,
    quotes: QuoteHandling,
}

/// Whether `"` begins a quoted text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuoteHandling {
    /// It does, as in `Forwarded`.
    Read,
    /// It is an ordinary character, as in `X-Forwarded-For`.
    Plain,
}

impl<'a> ReverseList<'a> {
    pub(super) const fn new(line: &'a [u8], quotes: QuoteHandling) -> Self {
        Self {
            rest: Some(line),
            quotes,
        }
    }
}

impl<'a> Iterator for ReverseList<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let rest = self.rest?;
            let comma = match self.quotes {
                QuoteHandling::Plain => rest.iter().rposition(|byte| *byte == b','),
                QuoteHandling::Read => last_outside_quotes(rest, b','),
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

/// The last position of this character outside quotes.
fn last_outside_quotes(text: &[u8], sign: u8) -> Option<usize> {
    let mut is_quoted = false;
    for (at, byte) in text.iter().enumerate().rev() {
        if *byte == b'"' {
            // A quote inside a quoted text is escaped by a backslash; two backslashes are a backslash, and escape
            // nothing.
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

/// The value of a parameter in an element of `Forwarded`; none if it is missing, occurs twice, or the element is
/// malformed.
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

/// A token as it is, or a quoted text without its quotes and escapes.
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

/// No address with brackets and a port is longer.
const LONGEST: usize = 64;

/// Parses `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`, as in
/// `X-Forwarded-For`. None for anything else: a name, `unknown`, a hidden node (`_gateway`), or an address that is
/// valid on one machine only (`fe80::1%eth0`).
pub(super) fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    if text.len() > LONGEST {
        return None;
    }
    let bare = text.parse::<Ipv6Addr>().map(IpAddr::V6);
    let address = bare.ok().or_else(|| parse_bracketed_address(text))?;
    Some(address.to_canonical())
}

/// Parses the value of `for=` in `Forwarded`, where IPv6 addresses have brackets.
pub(super) fn parse_bracketed_address(text: &str) -> Option<IpAddr> {
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (six, port) = rest.split_once(']')?;
            (IpAddr::V6(six.parse::<Ipv6Addr>().ok()?), port)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (four, port) = text.split_at(end);
            (IpAddr::V4(four.parse::<Ipv4Addr>().ok()?), port)
        }
    };
    (port.is_empty() || is_port(port.strip_prefix(':')?)).then(|| address.to_canonical())
}

/// Whether this is a port: a number, or a hidden port (`_name`).
fn is_port(text: &str) -> bool {
    let number = text.len() <= 5 && text.parse::<u16>().is_ok();
    let hidden = text.strip_prefix('_').is_some_and(|name| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    });
    (number && !text.starts_with('+')) || hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, quotes: QuoteHandling) -> Vec<&str> {
        let elements = ReverseList::new(line.as_bytes(), quotes);
        let text = |element| str::from_utf8(element).expect("text");
        elements.map(text).collect()
    }

    #[test]
    fn elements_come_from_the_right() {
        assert_eq!(read("a, b ,c", QuoteHandling::Plain), ["c", "b", "a"]);
        assert_eq!(read(" ,, a,,", QuoteHandling::Plain), ["a"]);
        assert_eq!(read("", QuoteHandling::Plain), [""; 0]);
        assert_eq!(read("\"a,b\"", QuoteHandling::Plain), ["b\"", "\"a"]);
        assert_eq!(read("\"a,b\",c", QuoteHandling::Read), ["c", "\"a,b\""]);
        assert_eq!(
            read(r#""a\",b",c"#, QuoteHandling::Read),
            ["c", r#""a\",b""#]
        );
    }

    #[test]
    fn a_quote_that_is_never_closed_hides_nothing_right_of_it() {
        assert_eq!(read("for=\"x, for=y", QuoteHandling::Read)[0], "for=y");
        assert_eq!(
            read("for=\"x\\, for=\"y\"", QuoteHandling::Read)[0],
            "for=\"y\""
        );
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

    #[test]
    fn addresses_are_read_with_and_without_ports() {
        let rows = [
            ("192.0.2.1", "192.0.2.1"),
            (" 192.0.2.1\t", "192.0.2.1"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("192.0.2.1:_hidden", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:65535", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:1", "192.0.2.1"),
        ];
        for (text, expected) in rows {
            let read = parse_address(text.as_bytes());
            assert_eq!(read, expected.parse().ok(), "{text}");
        }
    }

    #[test]
    fn all_else_is_no_address() {
        let long = "1".repeat(100_000);
        let rows = [
            "",
            " ",
            "unknown",
            "_hidden",
            "client.example",
            "localhost",
            "1",
            "127.1",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "256.0.0.1",
            "192.0.2.1:",
            "192.0.2.1:65536",
            "192.0.2.1:+1",
            "192.0.2.1:1:2",
            "192.0.2.1/32",
            "192.0.2.1 192.0.2.2",
            "\"192.0.2.1\"",
            "[192.0.2.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]443",
            "[fe80::1%eth0]",
            "fe80::1%1",
            "[]",
            ":80",
            "192.0.2.1:_",
            "192.0.2.1\0",
            "１92.0.2.1",
            &long,
        ];
        for text in rows {
            assert_eq!(parse_address(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_address(b"\xFF\xFE"), None);
    }
}

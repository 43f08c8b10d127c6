//! One hop of a request, as a proxy wrote it: an address, perhaps with a port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// No address with a port and brackets is longer.
const LONGEST: usize = 64;

/// The address of `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`, as
/// `X-Forwarded-For` has it. None for anything else: a name, `unknown`, a hidden one (`_gateway`), or an address that
/// counts on one machine alone (`fe80::1%eth0`).
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    if text.len() > LONGEST {
        return None;
    }
    let bare = text.parse::<Ipv6Addr>().map(IpAddr::V6);
    let address = bare.ok().or_else(|| bracketed(text))?;
    Some(address.to_canonical())
}

/// The address of a `for=` of `Forwarded`, where IPv6 has brackets.
pub(super) fn bracketed(text: &str) -> Option<IpAddr> {
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

/// A number, or one that is hidden.
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
            let read = address(text.as_bytes());
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
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
        assert_eq!(address(b"\xFF\xFE"), None);
    }
}

//! The name of a host, however a client writes it.

use std::borrow::Cow;

/// The host of `Host` or of an address, as rules write it: in lower case, without the port and the dot at its end. Otherwise whoever
/// writes `API.example.com:80` gets past a rule for `api.example.com`.
pub(super) fn name(written: &str) -> Cow<'_, str> {
    let host = written.trim();
    let port = host.rfind(':').filter(|at| {
        // The colons of an address of IPv6 are between brackets.
        !host[*at..].contains(']')
    });
    let host = port.map_or(host, |at| &host[..at]);
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_name() {
        for (written, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.com:8080", "api.example.com"),
            (" api.example.com. ", "api.example.com"),
            ("api.example.com.:80", "api.example.com"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("", ""),
            (":80", ""),
        ] {
            assert_eq!(name(written), expected, "{written}");
        }
    }
}

//! The host names and origins of the admin listener. Any web page can send requests to this machine, and anybody's host
//! name can point here (DNS rebinding), so a foreign `Origin` and an unknown `Host` are rejected.

use std::net::IpAddr;
use std::str::FromStr;

use crate::address::Address;

/// A host name of the admin listener, with one port or any.
///
/// ```
/// use tollgate_server::AdminHost;
///
/// assert!("limits.example".parse::<AdminHost>().is_ok());
/// assert!("limits.example:16070".parse::<AdminHost>().is_ok());
/// assert!("http://limits.example/".parse::<AdminHost>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminHost {
    name: String,
    port: Option<u16>,
}

/// The host names and origins of the admin listener.
#[derive(Clone, Debug)]
pub(crate) struct AdminHosts {
    /// The address that it listens on; `None` for a UNIX socket, which no page reaches.
    bound: Option<(IpAddr, u16)>,
    scheme: Scheme,
    names: Vec<AdminHost>,
}

/// The scheme of the listener's URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl AdminHosts {
    pub(crate) fn of(address: Option<&Address>, scheme: Scheme, names: Vec<AdminHost>) -> Self {
        let bound = match address {
            Some(Address::Tcp(address)) => Some((address.ip(), address.port())),
            _ => None,
        };
        Self {
            bound,
            scheme,
            names,
        }
    }

    /// Checks the host and origin of a request; the error has the status and the reason.
    pub(crate) fn check(
        &self,
        host: Option<&[u8]>,
        origin: Option<&[u8]>,
        fetch_site: Option<&[u8]>,
    ) -> Result<(), (u16, String)> {
        let Some(host) = host else {
            return Err((400, "send Host: it is missing".to_owned()));
        };
        if !self.is_own(host) {
            let shown = host.escape_ascii();
            let why = format!(
                "this isn't called {shown}: ask by its address, or add the name by --admin-host"
            );
            return Err((403, why));
        }
        let is_own = |origin: &[u8]| {
            origin.strip_prefix(self.scheme.origin_prefix_and_port().0) == Some(host)
        };
        // Browsers set `Sec-Fetch-Site` on every request.
        let is_foreign = |site: &[u8]| !matches!(site, b"same-origin" | b"none");
        if origin.is_some_and(|origin| !is_own(origin)) || fetch_site.is_some_and(is_foreign) {
            return Err((403, "requests of other origins aren't answered".to_owned()));
        }
        Ok(())
    }

    /// Whether only this machine reaches the listener.
    pub(crate) fn is_local(&self) -> bool {
        self.bound.is_none_or(|(address, _)| address.is_loopback())
    }

    fn is_own(&self, host: &[u8]) -> bool {
        let Some((bound, own_port)) = self.bound else {
            return true;
        };
        let Some((name, port)) = std::str::from_utf8(host).ok().and_then(split_host_port) else {
            return false;
        };
        let port = port.unwrap_or(self.scheme.origin_prefix_and_port().1);
        let is_named = |own: &AdminHost| {
            own.name.eq_ignore_ascii_case(name) && own.port.is_none_or(|own| own == port)
        };
        if self.names.iter().any(is_named) {
            return true;
        }
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let is_own_address = match bare.parse::<IpAddr>() {
            // No DNS name can stand behind an address, so a client that states one has connected to it.
            Ok(address) => address.is_loopback() || address == bound || bound.is_unspecified(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        };
        is_own_address && port == own_port
    }
}

/// Splits a name or an address from its port. An IPv6 address is in brackets.
fn split_host_port(host: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            (name, Some(port.parse().ok().filter(|_| is_number)?))
        }
        _ => (host, None),
    };
    let is_bracketed = name.starts_with('[') && name.ends_with(']');
    let is_whole = !name.is_empty() && (is_bracketed || !name.contains(['[', ']', ':']));
    is_whole.then_some((name, port))
}

impl Scheme {
    /// The prefix of an origin, and the scheme's default port.
    const fn origin_prefix_and_port(self) -> (&'static [u8], u16) {
        match self {
            Self::Http => (b"http://", 80),
            Self::Https => (b"https://", 443),
        }
    }
}

impl FromStr for AdminHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
        let (name, port) = split_host_port(text)
            .filter(|_| is_plain)
            .ok_or_else(|| format!("no name {text:?}: write limits.example, or with a port"))?;
        Ok(Self {
            name: name.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(address: &str, scheme: Scheme) -> AdminHosts {
        let address: Address = address.parse().unwrap();
        let names = ["limits.example", "odd.example:1"].map(|name| name.parse().unwrap());
        AdminHosts::of(Some(&address), scheme, names.to_vec())
    }

    #[test]
    fn only_own_names_and_addresses_are_answered() {
        let own = hosts("127.0.0.1:6070", Scheme::Http);
        for (host, is_own) in [
            ("127.0.0.1:6070", true),
            ("localhost:6070", true),
            ("LocalHost:6070", true),
            ("[::1]:6070", true),
            ("127.1.2.3:6070", true),
            ("limits.example", true),
            ("Limits.example:9", true),
            ("odd.example:1", true),
            ("odd.example:2", false),
            ("127.0.0.1", false),
            ("127.0.0.1:80", false),
            ("127.0.0.1:+6070", false),
            ("10.0.0.1:6070", false),
            ("evil.example:6070", false),
            ("localhost.evil.example:6070", false),
            ("localhost.:6070", false),
            ("::1:6070", false),
            ("", false),
            (":6070", false),
            ("[::1:6070", false),
            ("evil@127.0.0.1:6070", false),
        ] {
            assert_eq!(own.is_own(host.as_bytes()), is_own, "{host}");
        }
        assert!(!own.is_own(b"\xff:6070"));
        // A client that has connected to an address may state it, unlike a name.
        assert!(hosts("0.0.0.0:6070", Scheme::Http).is_own(b"10.0.0.1:6070"));
        assert!(!hosts("0.0.0.0:6070", Scheme::Http).is_own(b"evil.example:6070"));
        assert!(hosts("10.0.0.1:6070", Scheme::Http).is_own(b"10.0.0.1:6070"));
        assert!(!hosts("10.0.0.1:6070", Scheme::Http).is_own(b"10.0.0.2:6070"));
        assert!(hosts("127.0.0.1:443", Scheme::Https).is_own(b"localhost"));
        assert!(hosts("unix:/run/a", Scheme::Http).is_own(b"whatever"));
    }

    #[test]
    fn only_own_origins_are_answered() {
        let own = hosts("127.0.0.1:6070", Scheme::Http);
        let host: Option<&[u8]> = Some(b"127.0.0.1:6070");
        for (origin, fetch_site, status) in [
            (None, None, None),
            (Some("http://127.0.0.1:6070"), None, None),
            (Some("http://127.0.0.1:6070"), Some("same-origin"), None),
            (None, Some("none"), None),
            (Some("https://127.0.0.1:6070"), None, Some(403)),
            (Some("http://localhost:6070"), None, Some(403)),
            (Some("http://127.0.0.1:8080"), None, Some(403)),
            (Some("http://evil.example"), None, Some(403)),
            (Some("null"), None, Some(403)),
            (Some(""), None, Some(403)),
            (None, Some("cross-site"), Some(403)),
            (None, Some("same-site"), Some(403)),
        ] {
            let [from, site] = [origin, fetch_site].map(|text| text.map(str::as_bytes));
            let checked = own.check(host, from, site).map_err(|(status, _)| status);
            assert_eq!(checked.err(), status, "{origin:?} {fetch_site:?}");
        }
        let none = own.check(None, None, None);
        assert_eq!(none, Err((400, "send Host: it is missing".to_owned())));
    }
}

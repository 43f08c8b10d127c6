//! A cookie as a key: one value is one key, however a client spells it.

use std::hash::{Hash, Hasher};

use percent_encoding::percent_decode;

use super::{ClientAddress, KeyExtractor, KeySource, MissingKey, Request};
use crate::client::Network;

/// A cookie.
///
/// Most who read cookies take away quotes and percent signs, so that `sid=abc`, `sid="abc"` and `sid=%61bc` are one session: they are
/// one key as well.
///
/// A request may have several cookies of one name that differ: any page of a sibling domain can give a browser a second one, and its
/// user can't do anything about it. Nobody knows which of them the service reads, so such a request counts by its
/// [address](Self::ambiguous_by): neither is anybody locked out, nor is a second cookie a fresh limit.
///
/// ```
/// use tollgate_http::guard::keys::Cookie;
///
/// let key = Cookie::new("sid");
/// # let _ = key;
/// ```
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Box<str>,
    doubled_by: ClientAddress,
}

/// The key of a request by a cookie.
#[derive(Clone, Copy, Debug, Hash)]
pub enum CookieKey<'r> {
    /// The only value.
    Value(CookieValue<'r>),
    /// There are several: where the request comes from, if that is known. All others share one key.
    Doubled(Option<Network>),
}

/// What a cookie says, without quotes and percent signs.
#[derive(Clone, Copy, Debug)]
pub struct CookieValue<'r>(&'r [u8]);

impl Cookie {
    /// The cookie of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            doubled_by: ClientAddress::new(),
        }
    }

    /// How the address is found that requests with several such cookies count by: by the connection, unless this says which proxies
    /// are believed. Say it behind a proxy, where all of them share one limit otherwise.
    ///
    /// ```
    /// use tollgate_http::client::Trust;
    /// use tollgate_http::guard::keys::{ClientAddress, Cookie};
    ///
    /// let address = ClientAddress::new().trust(Trust::proxies(["10.0.0.0/8".parse()?]));
    /// let key = Cookie::new("sid").ambiguous_by(address);
    /// # let _ = key;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ambiguous_by(mut self, address: ClientAddress) -> Self {
        self.doubled_by = address;
        self
    }
}

impl<R: Request + ?Sized> KeyExtractor<R> for Cookie {
    type Key<'r> = CookieKey<'r>;

    fn key<'r>(&'r self, request: &'r R) -> Option<CookieKey<'r>> {
        let lines = request.header_lines("cookie");
        let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let is_own = pair[..at].trim_ascii() == self.name.as_bytes();
            let value = unquoted(pair[at + 1..].trim_ascii());
            (is_own && !value.is_empty()).then_some(CookieValue(value))
        });
        let first = values.next()?;
        Some(if values.all(|other| other.decoded().eq(first.decoded())) {
            CookieKey::Value(first)
        } else {
            CookieKey::Doubled(self.doubled_by.key(request))
        })
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(KeySource::Request, &format!("a cookie {}", self.name))
    }
}

impl<'r> CookieValue<'r> {
    /// The bytes that it stands for. A percent sign without two digits is itself.
    fn decoded(self) -> impl Iterator<Item = u8> + 'r {
        percent_decode(self.0)
    }
}

impl Hash for CookieValue<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut length = 0_usize;
        for byte in self.decoded() {
            state.write_u8(byte);
            length += 1;
        }
        // So that what comes next in a combined key can't be taken for a part of this.
        state.write_usize(length);
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    inner.unwrap_or(value)
}

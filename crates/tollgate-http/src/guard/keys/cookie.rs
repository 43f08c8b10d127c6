//! A cookie as a key: a value is the same key, however a client spells it.

use std::hash::{Hash, Hasher};

use percent_encoding::percent_decode;

use super::{ClientAddress, KeyExtractor, KeySource, MissingKey, Request};
use crate::client::Network;

/// A cookie.
///
/// Most readers of cookies remove quotes and decode percent signs, so `sid=abc`, `sid="abc"` and `sid=%61bc` are one
/// session. They are one key as well.
///
/// A request may have several cookies of one name with different values: a page of a sibling domain can set a second
/// one, and its user can't prevent that. The service might read either, so such a request counts by its
/// [address](Self::ambiguous_by). Nobody is locked out, and a second cookie is no fresh limit.
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
    /// The address of a request with several values; all requests without an address share one key.
    Doubled(Option<Network>),
}

/// The value of a cookie, without quotes and percent signs.
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

    /// Sets how the client address is found for requests with several such cookies: by default it is the address of the
    /// connection. Set it behind a proxy, where they would all share one limit otherwise.
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
    /// The decoded bytes. A percent sign without two digits stays as it is.
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
        // Ends the value, so that in a combined key the next part can't be taken for a part of this one.
        state.write_usize(length);
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    inner.unwrap_or(value)
}

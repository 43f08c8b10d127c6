//! A cookie as a key: one value is one key, however a client spells it.

use std::hash::{Hash, Hasher};

use super::{KeyOf, Request};

/// A cookie. If it is there several times the request has no key.
///
/// Most who read cookies take away quotes and percent signs, so that `sid=abc`, `sid="abc"` and `sid=%61bc` are one session: they are
/// one key as well.
///
/// ```
/// use tollgate_http::guard::keys::Cookie;
///
/// let key = Cookie::new("sid");
/// # let _ = key;
/// ```
#[derive(Clone, Debug)]
pub struct Cookie(Box<str>);

/// What a cookie says, without quotes and percent signs.
#[derive(Clone, Copy, Debug)]
pub struct CookieValue<'r>(&'r [u8]);

impl Cookie {
    /// The cookie of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }
}

impl<R: Request + ?Sized> KeyOf<R> for Cookie {
    type Key<'r>
        = CookieValue<'r>
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<CookieValue<'r>> {
        let lines = request.lines("cookie");
        let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let is_own = pair[..at].trim_ascii() == self.0.as_bytes();
            is_own.then(|| unquoted(pair[at + 1..].trim_ascii()))
        });
        let first = values.next()?;
        (values.next().is_none() && !first.is_empty()).then_some(CookieValue(first))
    }
}

impl Hash for CookieValue<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (mut rest, mut length) = (self.0, 0_usize);
        while let Some((byte, after)) = decoded(rest) {
            state.write_u8(byte);
            (rest, length) = (after, length + 1);
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

/// The next byte that is meant, and what stands behind it. A percent sign without two digits is itself.
fn decoded(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    if let [b'%', high, low, after @ ..] = text
        && let (Some(high), Some(low)) = (digit(*high), digit(*low))
    {
        return Some((high << 4 | low, after));
    }
    text.split_first().map(|(byte, after)| (*byte, after))
}

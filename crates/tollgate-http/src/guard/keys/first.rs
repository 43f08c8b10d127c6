//! The first of several keys that a request has.

use super::{Address, Connection};
use super::{Bearer, By, Cookie, Extension, Header, KeyOf, MissingKey, Route};
use crate::guard::request::Request;

/// The first of several keys that a request has; [`first`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct First<K>(K);

/// The first of these keys that a request has: `first((Header::new("x-api-key"), Address::new()))` limits a client by its API key,
/// and by its address if it sends none. It takes two to four keys.
///
/// Each alternative has a key space of its own, so nobody who sends `198.51.100.7` as an API key uses up the limit of that address.
/// If a request has none of them, the last one is the one that is [missing](tollgate::OnMissingKey). A request that has one of them
/// twice, as two lines of a header, is denied: it doesn't choose the next key so.
///
/// A client that may choose the first key freely gets a fresh limit with each value, as with every header that nobody has checked:
/// put the layer behind the one that authenticates, or take an [`Extension`](super::Extension) that it sets.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{PerKey, User, keys};
///
/// let key = keys::first((keys::Extension::<User>::new(), keys::Header::new("x-api-key"), keys::Address::new()));
/// let limits = PerKey::new(Rate::per_minute(100), key)?;
/// // The same for two:
/// let limits = PerKey::new(Rate::per_minute(100), keys::Header::new("x-api-key").or(keys::Address::new()))?;
/// # let _ = limits;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub const fn first<K>(keys: K) -> First<K> {
    First(keys)
}

macro_rules! alternatives {
    ($found:ident: $first:ident $(, $other:ident)*; last $last:ident) => {
        /// Which of the alternatives a request has, and its key. The hash says which, so no two alternatives share a key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $found<$first $(, $other)*, $last> {
            /// The key of this alternative.
            $first($first),
            $(
                /// The key of this alternative.
                $other($other),
            )*
            /// The key of this alternative.
            $last($last),
        }

        #[expect(non_snake_case, reason = "named as their types are")]
        impl<R, $first $(, $other)*, $last> KeyOf<R> for First<($first $(, $other)*, $last)>
        where
            R: Request + ?Sized,
            $first: KeyOf<R>,
            $($other: KeyOf<R>,)*
            $last: KeyOf<R>,
        {
            type Key<'r> = $found<$first::Key<'r> $(, $other::Key<'r>)*, $last::Key<'r>> where R: 'r;

            fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                let ($first $(, $other)*, $last) = &self.0;
                if let Some(key) = $first.key(request) {
                    return Some($found::$first(key));
                }
                if $first.doubled(request).is_some() {
                    return None;
                }
                $(
                    if let Some(key) = $other.key(request) {
                        return Some($found::$other(key));
                    }
                    if $other.doubled(request).is_some() {
                        return None;
                    }
                )*
                $last.key(request).map($found::$last)
            }

            /// Only the first alternative: if it isn't found at one look, it may still be found at a closer one.
            #[inline(always)]
            fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                self.0.0.glance(request).map($found::$first)
            }

            fn missing(&self, request: &R) -> MissingKey {
                let ($first $(, $other)*, $last) = &self.0;
                let last = $last.missing(request);
                let wanted = [
                    $first.missing(request).wanted
                    $(, $other.missing(request).wanted)*
                ].join(", ");
                MissingKey::new(last.source, &format!("{wanted} or {}", last.wanted))
            }

            fn doubled(&self, request: &R) -> Option<MissingKey> {
                let ($first $(, $other)*, $last) = &self.0;
                $first
                    .doubled(request)
                    $(.or_else(|| $other.doubled(request)))*
                    .or_else(|| $last.doubled(request))
            }

            /// If the first one is everybody's, no other is ever looked for.
            fn is_everyone(&self) -> bool {
                self.0.0.is_everyone()
            }
        }
    };
}

alternatives!(FirstOfTwo: A; last B);
alternatives!(FirstOfThree: A, B; last C);
alternatives!(FirstOfFour: A, B, C; last D);

macro_rules! or {
    ($($key:ident $(<$of:ident>)?),* $(,)?) => {$(
        impl $(<$of>)? $key $(<$of>)? {
            /// This key, or if a request lacks it the other: see [`first`](fn@first).
            #[must_use]
            pub const fn or<K>(self, other: K) -> First<(Self, K)> {
                First((self, other))
            }
        }
    )*};
}

or!(
    Address,
    Bearer,
    By<F>,
    Connection,
    Cookie,
    Extension<T>,
    First<F>,
    Header,
    Route
);

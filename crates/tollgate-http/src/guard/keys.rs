//! Key extractors: each takes the rate-limit key from one place of a request.
//!
//! A value that clients choose freely (a header, a cookie) is a safe key only after somebody has checked it: a client
//! that sends another value each time gets a fresh limit each time. So put the layer behind the one that
//! authenticates, or combine the key with the address.

mod address;
mod cookie;

use std::hash::Hash;
use std::marker::PhantomData;

use super::missing_key::{KeySource, MissingKey};
use super::request::Request;

pub use address::{ClientAddress, Connection};
pub use cookie::{Cookie, CookieKey, CookieValue};

/// Extracts the rate-limit key of a request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` isn't a key that requests of `{R}` have",
    label = "not a key for this layer",
    note = "a key is one of `keys::ClientAddress`, `Header`, `Bearer`, `Cookie`, `Extension<T>` (where `T: Hash`), `Route`, a tuple of \
            two to four keys, or `keys::first_of((…))`",
    note = "`keys::from_fn(|head: &RequestHead| …)` makes a key of a closure, with the `RequestHead` of the adapter; the closure \
            returns an `Option` of a type that implements `Hash`"
)]
pub trait KeyExtractor<R: Request + ?Sized>: Send + Sync + 'static {
    /// The type of the key.
    type Key<'r>: Hash;

    /// The key of the request; none if the request has none.
    fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>>;

    /// The key for the fast path; none if extracting it takes longer. Then [`key`](Self::key) is called as well, so a
    /// request may be read twice.
    #[inline(always)]
    fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
        self.key(request)
    }

    /// What a request without the key lacks, and who has to supply it. By default the client, so the request is bad
    /// (400). Called only for requests without a key.
    #[cold]
    fn missing(&self, request: &R) -> MissingKey {
        let _ = request;
        MissingKey::new(KeySource::Request, "the key of this limit")
    }

    /// The key that a request has twice, such as two values of a header. The service might read either, so the
    /// request is denied whatever [`OnMissingKey`](tollgate::OnMissingKey) states, and no other key replaces it.
    /// Called only for requests without a key.
    #[cold]
    fn ambiguous(&self, request: &R) -> Option<MissingKey> {
        let _ = request;
        None
    }

    /// Whether all requests have the same key.
    fn is_everyone(&self) -> bool {
        false
    }
}

/// The value of a header field. A request that has the field several times is denied, whatever
/// [`OnMissingKey`](tollgate::OnMissingKey) states.
#[derive(Clone, Debug)]
pub struct Header(Box<str>);

impl Header {
    /// The field of this name.
    ///
    /// ```
    /// use tollgate_http::guard::keys::Header;
    ///
    /// let key = Header::new("X-API-Key");
    /// # let _ = key;
    /// ```
    pub fn new(name: &str) -> Self {
        Self(name.to_ascii_lowercase().into())
    }
}

impl<R: Request + ?Sized> KeyExtractor<R> for Header {
    type Key<'r> = &'r [u8];

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r [u8]> {
        let value = request.single_line(&self.0)?.trim_ascii();
        (!value.is_empty()).then_some(value)
    }

    fn missing(&self, _: &R) -> MissingKey {
        let source = match &*self.0 {
            "authorization" | "proxy-authorization" => KeySource::Credentials,
            _ => KeySource::Request,
        };
        MissingKey::new(source, &format!("exactly one header {}", self.0))
    }

    fn ambiguous(&self, request: &R) -> Option<MissingKey> {
        let is_doubled = request.header_lines(&self.0).nth(1).is_some();
        is_doubled.then(|| <Self as KeyExtractor<R>>::missing(self, request))
    }
}

/// The token of `Authorization: Bearer …`. Limiters keep hashes of keys, so the token can't be read from memory.
#[derive(Clone, Copy, Debug)]
pub struct Bearer;

impl<R: Request + ?Sized> KeyExtractor<R> for Bearer {
    type Key<'r> = &'r [u8];

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r [u8]> {
        let (scheme, token) = request.single_line("authorization")?.split_at_checked(7)?;
        let token = token.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(
            KeySource::Credentials,
            "exactly one header authorization with a Bearer token",
        )
    }

    fn ambiguous(&self, request: &R) -> Option<MissingKey> {
        let is_doubled = request.header_lines("authorization").nth(1).is_some();
        is_doubled.then(|| <Self as KeyExtractor<R>>::missing(self, request))
    }
}

/// A value that an earlier layer put into the request's extensions, such as [`User`](super::User).
#[derive(Debug)]
#[derive_where::derive_where(Clone, Default)]
pub struct Extension<T>(PhantomData<fn() -> T>);

impl<T> Extension<T> {
    /// The extension of this type.
    ///
    /// ```
    /// use tollgate_http::guard::{User, keys::Extension};
    ///
    /// let key = Extension::<User>::new();
    /// # let _ = key;
    /// ```
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R: Request + ?Sized, T: Hash + Send + Sync + 'static> KeyExtractor<R> for Extension<T> {
    type Key<'r> = &'r T;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r T> {
        request.extension()
    }

    fn missing(&self, _: &R) -> MissingKey {
        let what = format!("the extension {}", std::any::type_name::<T>());
        MissingKey::new(KeySource::Extension, &what)
    }
}

/// The pattern of the route, such as `/users/{id}`, as axum (feature `axum`) and actix-web report it. A request that
/// no route serves (404) has none, and neither has a gRPC call, where the path is the method: see [`from_fn`].
#[derive(Clone, Copy, Debug)]
pub struct Route;

impl<R: Request + ?Sized> KeyExtractor<R> for Route {
    type Key<'r> = &'r str;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r str> {
        request.route()
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(KeySource::Request, "a path that a route serves")
    }
}

/// The HTTP method.
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl<R: Request + ?Sized> KeyExtractor<R> for Method {
    type Key<'r> = &'r str;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r str> {
        Some(request.method())
    }
}

/// The same key for all requests: one limit for the whole service.
#[derive(Clone, Copy, Debug)]
pub struct Global;

impl<R: Request + ?Sized> KeyExtractor<R> for Global {
    type Key<'r> = ();

    fn key<'r>(&'r self, _: &'r R) -> Option<()> {
        Some(())
    }

    fn is_everyone(&self) -> bool {
        true
    }
}

/// A key that a function extracts; [`from_fn`] makes it.
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    find: F,
    source: KeySource,
}

impl<F> FromFn<F> {
    /// Sets who has to supply the key. This decides the response to a request without one: see [`KeySource`].
    ///
    /// ```
    /// use tollgate_http::guard::{KeySource, Request, User, keys};
    ///
    /// fn by_team<R: Request + 'static>() -> impl keys::KeyExtractor<R> {
    ///     let team = |request: &R| Some(request.extension::<User>()?.0.split_once('/')?.0.to_owned());
    ///     keys::from_fn(team).supplied_by(KeySource::Extension)
    /// }
    /// ```
    #[must_use]
    pub const fn supplied_by(mut self, source: KeySource) -> Self {
        self.source = source;
        self
    }
}

/// A key that a function extracts. If it returns none, the request has no key, and by default its client is
/// responsible (400): see [`supplied_by`](FromFn::supplied_by).
///
/// A closure has to state the type of its argument: `head: &RequestHead`, with the `RequestHead` of the adapter.
///
/// ```
/// use tollgate_http::guard::{Request, keys};
///
/// fn by_path<R: Request + 'static>() -> impl keys::KeyExtractor<R> {
///     keys::from_fn(|request: &R| Some(request.path().to_owned()))
/// }
/// ```
pub fn from_fn<R: Request + ?Sized, K: Hash, F>(find: F) -> FromFn<F>
where
    F: Fn(&R) -> Option<K> + Send + Sync + 'static,
{
    FromFn {
        find,
        source: KeySource::Request,
    }
}

impl<R: Request + ?Sized, K: Hash + 'static, F> KeyExtractor<R> for FromFn<F>
where
    F: Fn(&R) -> Option<K> + Send + Sync + 'static,
{
    type Key<'r> = K;

    fn key<'r>(&'r self, request: &'r R) -> Option<K> {
        (self.find)(request)
    }

    /// Always none: the function may be slow or return another key the second time, so it is called only once for
    /// each request.
    fn glance<'r>(&'r self, _: &'r R) -> Option<K> {
        None
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(self.source, "the key that a function looks for")
    }
}

macro_rules! together {
    ($($name:ident),*) => {
        /// The combination of all keys. A request that lacks one of them has no key.
        #[expect(non_snake_case, reason = "named as their types are")]
        impl<R: Request + ?Sized, $($name: KeyExtractor<R>),*> KeyExtractor<R> for ($($name,)*) {
            type Key<'r> = ($($name::Key<'r>,)*);

            fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                let ($($name,)*) = self;
                Some(($($name.key(request)?,)*))
            }

            #[inline(always)]
            fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                let ($($name,)*) = self;
                Some(($($name.glance(request)?,)*))
            }

            /// What the first missing part lacks.
            fn missing(&self, request: &R) -> MissingKey {
                let ($($name,)*) = self;
                $(
                    if $name.key(request).is_none() {
                        return $name.missing(request);
                    }
                )*
                // A function returned none first, and a key the second time.
                MissingKey::new(KeySource::Request, "a part of its key")
            }

            fn ambiguous(&self, request: &R) -> Option<MissingKey> {
                let ($($name,)*) = self;
                $(
                    if $name.key(request).is_none() && let Some(doubled) = $name.ambiguous(request) {
                        return Some(doubled);
                    }
                )*
                None
            }

            fn is_everyone(&self) -> bool {
                let ($($name,)*) = self;
                $($name.is_everyone())&&*
            }
        }
    };
}

together!(A, B);
together!(A, B, C);
together!(A, B, C, D);

/// The first of several keys that a request has; [`first_of`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct FirstOf<K>(K);

/// The first of these keys that a request has, for two to four keys. `first_of((Header::new("x-api-key"),
/// ClientAddress::new()))` limits a client by its API key, or by its address if it sends none.
///
/// Each alternative has its own key space: a client that sends `198.51.100.7` as an API key doesn't use up the limit
/// of that address. If a request has none of the keys, the last one counts as [missing](tollgate::OnMissingKey). A
/// request that has one of them twice is denied, so a client can't choose the next key that way.
///
/// If clients choose the first key freely, each new value gets a fresh limit, as with every unchecked header. Put the
/// layer behind the one that authenticates, or use an [`Extension`] that it sets.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{RatePerKey, User, keys};
///
/// let user = keys::Extension::<User>::new();
/// let key = keys::first_of((user, keys::Header::new("x-api-key"), keys::ClientAddress::new()));
/// let limits = RatePerKey::new(Rate::per_minute(100), key)?;
/// // The same for two:
/// let limits = RatePerKey::new(Rate::per_minute(100), keys::Header::new("x-api-key").or(keys::ClientAddress::new()))?;
/// # let _ = limits;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub const fn first_of<K>(keys: K) -> FirstOf<K> {
    FirstOf(keys)
}

macro_rules! alternatives {
    ($found:ident: $($name:ident),*) => {
        /// The key of a request, by alternative. The alternative is part of the hash, so no two alternatives share a
        /// key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $found<$($name),*> {
            $(
                /// The key of this alternative.
                $name($name),
            )*
        }

        #[expect(non_snake_case, reason = "named as their types are")]
        impl<R: Request + ?Sized, $($name: KeyExtractor<R>),*> KeyExtractor<R> for FirstOf<($($name,)*)> {
            type Key<'r> = $found<$($name::Key<'r>),*>;

            fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                let ($($name,)*) = &self.0;
                $(
                    if let Some(key) = $name.key(request) {
                        return Some($found::$name(key));
                    }
                    if $name.ambiguous(request).is_some() {
                        return None;
                    }
                )*
                None
            }

            /// Only the first alternative: if it isn't on the fast path, `key` may still find it, before the others.
            #[inline(always)]
            fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                self.0.0.glance(request).map($found::A)
            }

            fn missing(&self, request: &R) -> MissingKey {
                let ($($name,)*) = &self.0;
                let each = [$($name.missing(request)),*];
                let last = &each[each.len() - 1];
                let others: Vec<_> = each[..each.len() - 1].iter().map(|one| &*one.wanted).collect();
                MissingKey::new(last.source, &format!("{} or {}", others.join(", "), last.wanted))
            }

            fn ambiguous(&self, request: &R) -> Option<MissingKey> {
                let ($($name,)*) = &self.0;
                None$(.or_else(|| $name.ambiguous(request)))*
            }

            /// If the first alternative is the same for all requests, the others are never used.
            fn is_everyone(&self) -> bool {
                self.0.0.is_everyone()
            }
        }
    };
}

alternatives!(FirstOfTwo: A, B);
alternatives!(FirstOfThree: A, B, C);
alternatives!(FirstOfFour: A, B, C, D);

macro_rules! or {
    ($($key:ident $(<$of:ident>)?),* $(,)?) => {$(
        impl $(<$of>)? $key $(<$of>)? {
            /// This key, or the other one if a request lacks it: see [`first_of`](fn@first_of).
            #[must_use]
            pub const fn or<K>(self, other: K) -> FirstOf<(Self, K)> {
                FirstOf((self, other))
            }
        }
    )*};
}

or!(
    ClientAddress,
    Bearer,
    FromFn<F>,
    Connection,
    Cookie,
    Extension<T>,
    FirstOf<F>,
    Header,
    Route
);

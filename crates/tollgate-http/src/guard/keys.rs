//! What tells one client from another: each key is a place to find it in a request.
//!
//! What a client may choose freely (a header, a cookie) tells clients apart only if somebody has checked it before: whoever
//! sends another value each time has a fresh limit each time. So put such a layer behind the one that authenticates, or
//! combine it with the address.

mod address;
mod cookie;

use std::hash::Hash;
use std::marker::PhantomData;

use super::missing_key::{KeySource, MissingKey};
use super::request::Request;

pub use address::{ClientAddress, Connection};
pub use cookie::{Cookie, CookieKey, CookieValue};

/// Where the key of a request is found.
#[diagnostic::on_unimplemented(
    message = "`{Self}` isn't a key that requests of `{R}` have",
    label = "not a key for this layer",
    note = "a key is one of `keys::Address`, `Header`, `Bearer`, `Cookie`, `Extension<T>` (where `T: Hash`), `Route`, a tuple of two to \
            four keys, or `keys::first((…))`",
    note = "a closure becomes a key by `keys::by(|head: &Head| …)`, where `Head` is the carrier's and the closure returns an `Option` \
            of something that implements `Hash`"
)]
pub trait KeyExtractor<R: Request + ?Sized>: Send + Sync + 'static {
    /// What is counted by.
    type Key<'r>: Hash;

    /// The key; none if the request has none.
    fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>>;

    /// The key, if it is found at one look; none if it takes a closer one, by [`key`](Self::key). So a request may be asked for
    /// its key twice.
    #[inline(always)]
    fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
        self.key(request)
    }

    /// What a request without the key lacks, and who has to supply that. Only asked of requests without one. By default the client
    /// does, so the request is a bad one (400).
    #[cold]
    fn missing(&self, request: &R) -> MissingKey {
        let _ = request;
        MissingKey::new(KeySource::Request, "the key of this limit")
    }

    /// What a request without the key has twice, as two lines of a header: nobody knows which of them the service reads, so it is
    /// denied, whatever is chosen for requests without a key, and has no other key instead. Only asked of requests without one.
    #[cold]
    fn ambiguous(&self, request: &R) -> Option<MissingKey> {
        let _ = request;
        None
    }

    /// Whether all requests have one key.
    fn is_everyone(&self) -> bool {
        false
    }
}

/// A header field. A request that has it several times is denied, whatever is chosen for those without one.
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

/// The token of `Authorization: Bearer …`. Limiters keep hashes of keys, so it is nowhere to be read.
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

/// What an earlier layer put into the request's extensions, as [`User`](super::User).
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

/// The pattern of the route that serves the request, as `/users/{id}`: as axum (feature `axum`) and actix-web know it. What is
/// answered 404 has none, and so has all of gRPC, where the path is the method: see [`by`].
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

/// The method.
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl<R: Request + ?Sized> KeyExtractor<R> for Method {
    type Key<'r> = &'r str;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r str> {
        Some(request.method())
    }
}

/// One key for all requests: one limit for the whole service.
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

/// A function of the request.
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    find: F,
    source: KeySource,
}

impl<F> FromFn<F> {
    /// Who has to supply what the function looks for: this decides how a request without a key is answered, see [`KeySource`].
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

/// The key that a function finds; a request of which it finds none has no key, and unless
/// [`supplied_by`](FromFn::supplied_by) says otherwise its client is to blame (400). The function has to say what it takes: it is
/// `head: &RequestHead`, with the `RequestHead` of the carrier.
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

    /// None: the function is called once for each request, as it may take long, or say another thing the second time.
    fn glance<'r>(&'r self, _: &'r R) -> Option<K> {
        None
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(self.source, "the key that a function looks for")
    }
}

macro_rules! together {
    ($($name:ident),*) => {
        /// All of them together; a request that lacks one has no key.
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

            /// What the first part says that is missing.
            fn missing(&self, request: &R) -> MissingKey {
                let ($($name,)*) = self;
                $(
                    if $name.key(request).is_none() {
                        return $name.missing(request);
                    }
                )*
                // A function found it the second time.
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

/// The first of several keys that a request has; [`first`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct FirstOf<K>(K);

/// The first of these keys that a request has: `first((Header::new("x-api-key"), ClientAddress::new()))` limits a client by its API key,
/// and by its address if it sends none. It takes two to four keys.
///
/// Each alternative has a key space of its own, so nobody who sends `198.51.100.7` as an API key uses up the limit of that address.
/// If a request has none of them, the last one is the one that is [missing](tollgate::OnMissingKey). A request that has one of them
/// twice, as two lines of a header, is denied: it doesn't choose the next key so.
///
/// A client that may choose the first key freely gets a fresh limit with each value, as with every header that nobody has checked:
/// put the layer behind the one that authenticates, or take an [`Extension`] that it sets.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{RatePerKey, User, keys};
///
/// let key = keys::first_of((keys::Extension::<User>::new(), keys::Header::new("x-api-key"), keys::ClientAddress::new()));
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
        /// Which of the alternatives a request has, and its key. The hash says which, so no two alternatives share a key.
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

            /// Only the first alternative: if it isn't found at one look, it may still be found at a closer one.
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

            /// If the first one is everybody's, no other is ever looked for.
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
            /// This key, or if a request lacks it the other: see [`first`](fn@first).
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

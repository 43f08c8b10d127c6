//! What tells one client from another: each key is a place to find it in a request.
//!
//! What a client may choose freely (a header, a cookie) tells clients apart only if somebody has checked it before: whoever
//! sends another value each time has a fresh limit each time. So put such a layer behind the one that authenticates, or
//! combine it with the address.

mod cookie;

use std::cell::Cell;
use std::hash::Hash;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::hooks;
use super::request::Request;
use crate::client::{Network, Told, Trust};

pub use cookie::{Cookie, CookieValue};

/// So many requests of a thread are searched for addresses that nobody believes, and then one of so many: a proxy that isn't
/// trusted sends one with each request. A prime, so that layers that take turns all get some.
const ALL_AT_FIRST: u32 = 256;
const ONE_OF: u32 = 61;

thread_local! {
    /// Requests of this thread until the next that is searched; at first those above [`ONE_OF`] are as well.
    static UNSEARCHED: Cell<u32> = const { Cell::new(ONE_OF + ALL_AT_FIRST) };
}

/// Where the key of a request is found.
pub trait KeyOf<R: Request + ?Sized>: Send + Sync + 'static {
    /// What is counted by.
    type Key<'r>: Hash
    where
        Self: 'r,
        R: 'r;

    /// The key; none if the request has none.
    fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>>;

    /// The key, if it is found at one look; none if it takes a closer one, by [`key`](Self::key). So a request may be asked for
    /// its key twice.
    #[inline(always)]
    fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
        self.key(request)
    }

    /// Whether all requests have one key.
    fn is_everyone(&self) -> bool {
        false
    }
}

/// The address of the client: that of the connection, or the one that [trusted](Trust) proxies tell.
///
/// IPv6 addresses are taken by their first 64 bits, as one household or machine has all of the rest.
///
/// ```
/// use tollgate_http::client::Trust;
/// use tollgate_http::guard::keys::Address;
///
/// let key = Address::new().behind(Trust::proxies(["10.0.0.0/8".parse()?])).ipv6_bits(56);
/// # let _ = key;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones, as for several layers, warn together of a proxy that isn't trusted: once.
#[derive(Debug)]
pub struct Address {
    trust: Trust,
    ipv4_bits: u8,
    ipv6_bits: u8,
    /// It was said that somebody isn't believed. Made when it is first cloned, or has something to say: most never are.
    warned: OnceLock<Arc<AtomicBool>>,
}

impl Address {
    /// That of the connection.
    pub const fn new() -> Self {
        Self {
            trust: Trust::nobody(),
            ipv4_bits: 32,
            ipv6_bits: 64,
            warned: OnceLock::new(),
        }
    }

    /// The one that these proxies tell.
    #[must_use]
    pub fn behind(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// IPv6 addresses that begin with as many equal bits are one client: 32 to 128, fewer or more are taken as these.
    #[must_use]
    pub fn ipv6_bits(mut self, bits: u8) -> Self {
        self.ipv6_bits = bits.clamp(32, 128);
        self
    }

    /// The same for IPv4: 16 to 32.
    #[must_use]
    pub fn ipv4_bits(mut self, bits: u8) -> Self {
        self.ipv4_bits = bits.clamp(16, 32);
        self
    }

    /// Whether a request comes from one of these networks: for lists of who is let in, and who isn't.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{Guard, PerKey, Request, keys::Address};
    ///
    /// fn guard<R: Request + 'static>() -> Result<Guard<R, PerKey<Address>>, Box<dyn std::error::Error>> {
    ///     let limits = PerKey::new(Rate::per_second(10), Address::new())?;
    ///     Ok(Guard::new(limits)
    ///         .allow(Address::new().within(["10.0.0.0/8".parse()?]))
    ///         .deny(Address::new().within(["203.0.113.0/24".parse()?, "2001:db8:bad::/48".parse()?])))
    /// }
    /// # let _ = guard::<Never>;
    /// # struct Never;
    /// # impl Request for Never {
    /// #     fn peer(&self) -> Option<std::net::SocketAddr> { None }
    /// #     fn method(&self) -> &str { "" }
    /// #     fn path(&self) -> &str { "" }
    /// #     fn host(&self) -> Option<&str> { None }
    /// #     fn route(&self) -> Option<&str> { None }
    /// #     fn lines<'r>(&'r self, _: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> { std::iter::empty() }
    /// #     fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> { None }
    /// # }
    /// ```
    pub fn within<R: Request + ?Sized>(
        self,
        networks: impl IntoIterator<Item = Network>,
    ) -> impl Fn(&R) -> bool + Send + Sync + 'static {
        let networks: Box<[Network]> = networks.into_iter().collect();
        move |request: &R| {
            let address = self.client(request);
            address.is_some_and(|address| networks.iter().any(|one| one.contains(address)))
        }
    }

    /// Whose request it is, as [`Trust::client`] has it.
    pub(super) fn client(&self, request: &(impl Request + ?Sized)) -> Option<IpAddr> {
        if self.reads_fields() {
            return self.told(request);
        }
        request.peer().map(|peer| peer.ip().to_canonical())
    }

    /// Whether more than the connection is looked at.
    #[inline(always)]
    fn reads_fields(&self) -> bool {
        self.trust.believes_some() || self.looks_for_strangers()
    }

    /// Who counts as one client with this address.
    fn around(&self, address: IpAddr) -> Network {
        let address = address.to_canonical();
        let bits = if address.is_ipv4() {
            self.ipv4_bits
        } else {
            self.ipv6_bits
        };
        Network::around(address, bits)
    }

    /// Whether the field is looked for that somebody may send who isn't believed: only to warn, so not in every request.
    #[inline(always)]
    fn looks_for_strangers(&self) -> bool {
        // Nothing else depends on it.
        if let Some(warned) = self.warned.get()
            && warned.load(Ordering::Relaxed)
        {
            return false;
        }
        let left = UNSEARCHED.get();
        let is_due = left == 0 || left > ONE_OF;
        if !is_due {
            UNSEARCHED.set(left - 1);
        }
        is_due
    }

    #[inline(never)]
    fn told(&self, request: &(impl Request + ?Sized)) -> Option<IpAddr> {
        let peer = request.peer().map(|peer| peer.ip());
        let lines = request.lines(self.trust.field().name());
        // This one was searched, so the next is due later.
        UNSEARCHED.set(match UNSEARCHED.get() {
            0 => ONE_OF - 1,
            left => left - 1,
        });
        let client = self.trust.client(peer, lines);
        if client.told == Told::ByStranger {
            self.warn();
        }
        client.address
    }

    /// Says once that a proxy may stand before the service which isn't trusted.
    #[cold]
    fn warn(&self) {
        // Nothing else depends on it; if two come at once, one of them says it.
        let warned = self.warned.get_or_init(Arc::default);
        if !warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: hooks::TARGET,
                field = self.trust.field().name(),
                "a client's address was told by somebody who isn't trusted, and wasn't believed: if that is a proxy of \
                 yours, all of its clients share one limit until you name it (Address::behind)"
            );
        }
    }
}

impl Clone for Address {
    fn clone(&self) -> Self {
        let warned = self.warned.get_or_init(Arc::default);
        Self {
            trust: self.trust.clone(),
            ipv4_bits: self.ipv4_bits,
            ipv6_bits: self.ipv6_bits,
            warned: OnceLock::from(Arc::clone(warned)),
        }
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Request + ?Sized> KeyOf<R> for Address {
    type Key<'r>
        = Network
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<Network> {
        self.client(request).map(|client| self.around(client))
    }

    #[inline(always)]
    fn glance<'r>(&'r self, request: &'r R) -> Option<Network> {
        if self.reads_fields() {
            return None;
        }
        // Each by itself: put together they would be an address that is copied byte by byte.
        Some(match request.peer()? {
            SocketAddr::V4(peer) => Network::around_v4(*peer.ip(), self.ipv4_bits),
            SocketAddr::V6(peer) => self.around(IpAddr::V6(*peer.ip())),
        })
    }
}

/// The connection that a request came by: its address and port. So each connection has a limit of its own, whoever opened
/// it: of requests, or with [`AtOnce`](super::AtOnce) of streams. Behind a proxy that is one of the proxy's.
#[derive(Clone, Copy, Debug)]
pub struct Connection;

impl<R: Request + ?Sized> KeyOf<R> for Connection {
    type Key<'r>
        = SocketAddr
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<SocketAddr> {
        request.peer()
    }
}

/// A header field. If it is there several times the request has no key.
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

impl<R: Request + ?Sized> KeyOf<R> for Header {
    type Key<'r>
        = &'r [u8]
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r [u8]> {
        let value = request.line(&self.0)?.trim_ascii();
        (!value.is_empty()).then_some(value)
    }
}

/// The token of `Authorization: Bearer …`. Limiters keep hashes of keys, so it is nowhere to be read.
#[derive(Clone, Copy, Debug)]
pub struct Bearer;

impl<R: Request + ?Sized> KeyOf<R> for Bearer {
    type Key<'r>
        = &'r [u8]
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r [u8]> {
        let (scheme, token) = request.line("authorization")?.split_at_checked(7)?;
        let token = token.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
    }
}

/// What an earlier layer put into the request's extensions, as [`User`](super::User).
#[derive(Debug)]
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

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<T> Default for Extension<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Request + ?Sized, T: Hash + Send + Sync + 'static> KeyOf<R> for Extension<T> {
    type Key<'r>
        = &'r T
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r T> {
        request.extension()
    }
}

/// The pattern of the route that serves the request, as `/users/{id}`: as axum (feature `axum`) and actix-web know it. What is
/// answered 404 has none, and so has all of gRPC, where the path is the method: see [`by`].
#[derive(Clone, Copy, Debug)]
pub struct Route;

impl<R: Request + ?Sized> KeyOf<R> for Route {
    type Key<'r>
        = &'r str
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r str> {
        request.route()
    }
}

/// The method.
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl<R: Request + ?Sized> KeyOf<R> for Method {
    type Key<'r>
        = &'r str
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<&'r str> {
        Some(request.method())
    }
}

/// One key for all requests: one limit for the whole service.
#[derive(Clone, Copy, Debug)]
pub struct Everyone;

impl<R: Request + ?Sized> KeyOf<R> for Everyone {
    type Key<'r>
        = ()
    where
        R: 'r;

    fn key<'r>(&'r self, _: &'r R) -> Option<()> {
        Some(())
    }

    fn is_everyone(&self) -> bool {
        true
    }
}

/// A function of the request.
#[derive(Clone, Debug)]
pub struct By<F>(F);

/// The key that a function finds; a request of which it finds none has no key. The function has to say what it takes: it is
/// `head: &Head`, with the `Head` of the carrier.
///
/// ```
/// use tollgate_http::guard::{Request, keys};
///
/// fn by_path<R: Request + 'static>() -> impl keys::KeyOf<R> {
///     keys::by(|request: &R| Some(request.path().to_owned()))
/// }
/// ```
pub fn by<R: Request + ?Sized, K: Hash, F>(find: F) -> By<F>
where
    F: Fn(&R) -> Option<K> + Send + Sync + 'static,
{
    By(find)
}

impl<R: Request + ?Sized, K: Hash + 'static, F> KeyOf<R> for By<F>
where
    F: Fn(&R) -> Option<K> + Send + Sync + 'static,
{
    type Key<'r>
        = K
    where
        R: 'r;

    fn key<'r>(&'r self, request: &'r R) -> Option<K> {
        (self.0)(request)
    }

    /// None: the function is called once for each request, as it may take long, or say another thing the second time.
    fn glance<'r>(&'r self, _: &'r R) -> Option<K> {
        None
    }
}

macro_rules! together {
    ($($name:ident),*) => {
        /// All of them together; a request that lacks one has no key.
        impl<R: Request + ?Sized, $($name: KeyOf<R>),*> KeyOf<R> for ($($name,)*) {
            type Key<'r> = ($($name::Key<'r>,)*) where R: 'r;

            fn key<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                #[expect(non_snake_case, reason = "named as their types are")]
                let ($($name,)*) = self;
                Some(($($name.key(request)?,)*))
            }

            #[inline(always)]
            fn glance<'r>(&'r self, request: &'r R) -> Option<Self::Key<'r>> {
                #[expect(non_snake_case, reason = "named as their types are")]
                let ($($name,)*) = self;
                Some(($($name.glance(request)?,)*))
            }

            fn is_everyone(&self) -> bool {
                #[expect(non_snake_case, reason = "named as their types are")]
                let ($($name,)*) = self;
                $($name.is_everyone())&&*
            }
        }
    };
}

together!(A, B);
together!(A, B, C);
together!(A, B, C, D);

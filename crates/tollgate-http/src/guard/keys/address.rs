//! The client address and the connection as keys, and the warning about untrusted proxies.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::{KeyExtractor, KeySource, MissingKey};
use crate::client::{ForwardedBy, Network, Trust};
use crate::guard::events;
use crate::guard::request::Request;

/// The first requests of a thread, and later one of every [`ONE_OF`], are checked for untrusted forwarding fields. A
/// proxy sends one with each request, so samples find it. A prime, so that layers that take turns are all sampled.
const ALL_AT_FIRST: u32 = 256;
const ONE_OF: u32 = 61;

thread_local! {
    /// Requests of this thread until the next check. Above [`ONE_OF`] every request is checked.
    static REQUESTS_UNTIL_SEARCH: Cell<u32> = const { Cell::new(ONE_OF + ALL_AT_FIRST) };
}

/// The client address: the address of the connection, or the one that [trusted](Trust) proxies report.
///
/// IPv6 addresses count by their first 64 bits, as one household or machine has all of the rest. Addresses that NAT64
/// made of IPv4 addresses (`64:ff9b::/96`) count as those.
///
/// ```
/// use tollgate_http::client::Trust;
/// use tollgate_http::guard::keys::ClientAddress;
///
/// let key = ClientAddress::new().trust(Trust::proxies(["10.0.0.0/8".parse()?])).ipv6_bits(56);
/// # let _ = key;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones, as in several layers, warn only once about an untrusted proxy.
#[derive(Debug)]
#[must_use]
pub struct ClientAddress {
    trust: Trust,
    ipv4_bits: u8,
    ipv6_bits: u8,
    /// Whether the warning was logged. Allocated when the key is first cloned, or when it warns: most never are.
    warned: OnceLock<Arc<AtomicBool>>,
}

impl ClientAddress {
    /// The address of the connection.
    pub const fn new() -> Self {
        Self {
            trust: Trust::none(),
            ipv4_bits: 32,
            ipv6_bits: 64,
            warned: OnceLock::new(),
        }
    }

    /// The address that these proxies report.
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// How many leading bits of an IPv6 address identify a client: 32 to 128. Other numbers are clamped.
    pub fn ipv6_bits(mut self, bits: u8) -> Self {
        self.ipv6_bits = bits.clamp(32, 128);
        self
    }

    /// How many leading bits of an IPv4 address identify a client: 16 to 32. Other numbers are clamped.
    pub fn ipv4_bits(mut self, bits: u8) -> Self {
        self.ipv4_bits = bits.clamp(16, 32);
        self
    }

    /// Whether a request comes from one of these networks, for allow and deny lists.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{RequestLimiter, RatePerKey, Request, keys::ClientAddress};
    ///
    /// # type BoxError = Box<dyn std::error::Error>;
    /// fn guard<R: Request + 'static>() -> Result<RequestLimiter<R, RatePerKey<ClientAddress>>, BoxError> {
    ///     let limits = RatePerKey::new(Rate::per_second(10), ClientAddress::new())?;
    ///     Ok(RequestLimiter::new(limits)
    ///         .allow(ClientAddress::new().within(["10.0.0.0/8".parse()?]))
    ///         .deny(ClientAddress::new().within(["203.0.113.0/24".parse()?, "2001:db8:bad::/48".parse()?])))
    /// }
    /// # let _ = guard::<Never>;
    /// # struct Never;
    /// # impl Request for Never {
    /// #     fn peer(&self) -> Option<std::net::SocketAddr> { None }
    /// #     fn method(&self) -> &str { "" }
    /// #     fn path(&self) -> &str { "" }
    /// #     fn host(&self) -> Option<&str> { None }
    /// #     fn route(&self) -> Option<&str> { None }
    /// #     fn header_lines<'r>(&'r self, _: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> { std::iter::empty() }
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

    /// How many leading bits of an IPv4 and an IPv6 address identify a client.
    pub(in crate::guard) const fn bits(&self) -> (u8, u8) {
        (self.ipv4_bits, self.ipv6_bits)
    }

    /// The client address, as [`Trust::client`] finds it.
    pub(in crate::guard) fn client(&self, request: &(impl Request + ?Sized)) -> Option<IpAddr> {
        if self.reads_fields() {
            return self.forwarded_client(request);
        }
        request.peer().map(|peer| peer.ip().to_canonical())
    }

    /// Whether header fields are read, and not only the connection.
    #[inline(always)]
    fn reads_fields(&self) -> bool {
        self.trust.believes_some() || self.looks_for_strangers()
    }

    /// The network that counts as one client with this address.
    fn client_network(&self, address: IpAddr) -> Network {
        let address = untranslated(address.to_canonical());
        let bits = if address.is_ipv4() {
            self.ipv4_bits
        } else {
            self.ipv6_bits
        };
        Network::around(address, bits)
    }

    /// Whether this request is checked for an untrusted forwarding field. Only for a warning, so not for every
    /// request.
    #[inline(always)]
    fn looks_for_strangers(&self) -> bool {
        // No other memory depends on the flag.
        if let Some(warned) = self.warned.get()
            && warned.load(Ordering::Relaxed)
        {
            return false;
        }
        let left = REQUESTS_UNTIL_SEARCH.get();
        let is_due = left == 0 || left > ONE_OF;
        if !is_due {
            REQUESTS_UNTIL_SEARCH.set(left - 1);
        }
        is_due
    }

    #[inline(never)]
    fn forwarded_client(&self, request: &(impl Request + ?Sized)) -> Option<IpAddr> {
        let peer = request.peer().map(|peer| peer.ip());
        let lines = request.header_lines(self.trust.field().name());
        // This request was checked, so restart the countdown.
        REQUESTS_UNTIL_SEARCH.set(match REQUESTS_UNTIL_SEARCH.get() {
            0 => ONE_OF - 1,
            left => left - 1,
        });
        let client = self.trust.client(peer, lines);
        if client.forwarded_by == ForwardedBy::Untrusted {
            self.warn();
        }
        client.address
    }

    /// Warns once that an untrusted proxy may stand before the service.
    #[cold]
    fn warn(&self) {
        // No other memory depends on the flag. `swap` lets only one of several threads warn.
        let warned = self.warned.get_or_init(Arc::default);
        if !warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: events::TARGET,
                field = self.trust.field().name(),
                "an untrusted peer reported a client address, which was ignored: if the peer is a proxy of yours, all of \
                 its clients share one limit until you trust it (ClientAddress::trust)"
            );
        }
    }
}

/// The IPv4 address that a translator made this address of (64:ff9b::/96, RFC 6052), or the address itself. Without
/// this, all clients behind a translator would be in one network of 64 bits.
const fn untranslated(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => match six.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from_bits((high as u32) << 16 | low as u32))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

impl Clone for ClientAddress {
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

impl Default for ClientAddress {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Request + ?Sized> KeyExtractor<R> for ClientAddress {
    type Key<'r> = Network;

    fn key<'r>(&'r self, request: &'r R) -> Option<Network> {
        self.client(request)
            .map(|client| self.client_network(client))
    }

    #[inline(always)]
    fn glance<'r>(&'r self, request: &'r R) -> Option<Network> {
        if self.reads_fields() {
            return None;
        }
        // Matched apart, because an `IpAddr` is copied byte by byte.
        Some(match request.peer()? {
            SocketAddr::V4(peer) => Network::around_v4(*peer.ip(), self.ipv4_bits),
            SocketAddr::V6(peer) => self.client_network(IpAddr::V6(*peer.ip())),
        })
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(KeySource::Connection, "the address of its connection")
    }
}

/// The connection of a request, by its address and port: each connection has a limit of its own.
///
/// With a [`ConcurrencyLimit`](crate::guard::ConcurrencyLimit) that limits the streams of a connection. Behind a proxy, the
/// connections are those of the proxy.
#[derive(Clone, Copy, Debug)]
pub struct Connection;

impl<R: Request + ?Sized> KeyExtractor<R> for Connection {
    type Key<'r> = SocketAddr;

    fn key<'r>(&'r self, request: &'r R) -> Option<SocketAddr> {
        request.peer()
    }

    fn missing(&self, _: &R) -> MissingKey {
        MissingKey::new(KeySource::Connection, "the address of its connection")
    }
}

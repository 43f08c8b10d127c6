//! Client addresses behind proxies.
//!
//! Nobody can forge the address of a connection, but anybody can forge a header field. So by default
//! ([`Trust::none`]) the client address is the address of the connection, and no field is read.
//!
//! Behind proxies of your own, state their [addresses](Trust::proxies) or their [number](Trust::proxy_count). The
//! field of the last proxy is then read from the right: each proxy vouches for the address that it appended, which is
//! the address that connected to it. The walk ends at the first address that isn't a proxy's. A client can write
//! anything to the left of it, so the rest is never read.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use derive_more::Display;

mod hops;
mod network;

use hops::{QuoteHandling, ReverseList, parameter};
pub use network::{Network, NetworkError};

/// The most hops that are read. A longer list isn't a path that a request really takes.
const MAX_HOPS: usize = 128;

/// Which proxies are trusted, and which field they write.
///
/// ```
/// use tollgate_http::client::{Trust, ForwardedBy};
///
/// let trust = Trust::proxies(["10.0.0.0/8".parse()?]);
/// let proxy = Some("10.0.0.7".parse()?);
/// let fields = ["203.0.113.9, 198.51.100.4"];
/// let client = trust.client(proxy, fields.iter().map(|line| line.as_bytes()));
/// assert_eq!(client.address, Some("198.51.100.4".parse()?));
///
/// let stranger = Some("192.0.2.66".parse()?);
/// let client = trust.client(stranger, fields.iter().map(|line| line.as_bytes()));
/// assert_eq!((client.address, client.forwarded_by), (stranger, ForwardedBy::Untrusted));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    whom: TrustedProxies,
    field: ForwardedField,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TrustedProxies {
    Nobody,
    Proxies(Box<[Network]>),
    /// A number of proxies; the peer is the first of them.
    Hops(NonZeroUsize),
}

/// The field in which proxies report the client address. Only one is read: if two disagreed, the client could choose.
#[derive(Clone, Debug, Default, Display, PartialEq, Eq)]
#[display("{}", self.name())]
#[non_exhaustive]
pub enum ForwardedField {
    /// `X-Forwarded-For: client, proxy`: what most proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` (RFC 7239).
    Forwarded,
    /// A field with one address, such as `CF-Connecting-IP` or `X-Real-IP`. The proxy has to replace the field that a
    /// client sends. If a request has two of them, the proxy didn't replace it, and neither is trusted.
    Single(Box<str>),
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// The client address; an IPv4 address in IPv6 form becomes IPv4. None if the connection has no address (a UNIX
    /// socket) and no trusted proxy reported one.
    pub address: Option<IpAddr>,
    /// How the forwarding field was used.
    pub forwarded_by: ForwardedBy,
}

/// How the forwarding field of a request was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedBy {
    /// There is no such field, or none is read.
    Nothing,
    /// The field was written by trusted proxies, and names the client.
    Trusted,
    /// The peer sent the field but isn't trusted. If the peer is a proxy of yours, all its clients share one key:
    /// trust it.
    Untrusted,
    /// The field can't be read as far as the client. The last proxy that could be read counts as the client.
    Unreadable,
}

impl Default for Trust {
    fn default() -> Self {
        Self::none()
    }
}

impl Trust {
    const fn of(whom: TrustedProxies) -> Self {
        let field = ForwardedField::XForwardedFor;
        Self { whom, field }
    }

    /// No field is trusted: the client address is the address of the connection.
    pub const fn none() -> Self {
        Self::of(TrustedProxies::Nobody)
    }

    /// Trusts proxies with these addresses. The client is the nearest address that isn't one of them.
    pub fn proxies(networks: impl IntoIterator<Item = Network>) -> Self {
        Self::of(TrustedProxies::Proxies(networks.into_iter().collect()))
    }

    /// Trusts a fixed number of proxies before this service, whatever their addresses. The proxy that connects is the
    /// first.
    ///
    /// A client that can connect without passing all of them can forge any address, so prevent that.
    ///
    /// ```
    /// use std::num::NonZero;
    /// use tollgate_http::client::Trust;
    ///
    /// let trust = Trust::proxy_count(NonZero::<usize>::MIN);
    /// let client = trust.client(Some("10.0.0.7".parse()?), [b"forged, 198.51.100.4".as_slice()].into_iter());
    /// assert_eq!(client.address, Some("198.51.100.4".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn proxy_count(count: NonZeroUsize) -> Self {
        Self::of(TrustedProxies::Hops(count))
    }

    /// The field in which the proxies report the client address.
    ///
    /// ```
    /// use tollgate_http::client::{ForwardedField, Trust};
    ///
    /// let field = ForwardedField::Single("CF-Connecting-IP".into());
    /// let trust = Trust::proxies(["127.0.0.1".parse()?]).with_field(field);
    /// assert_eq!(trust.field().name(), "cf-connecting-ip");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_field(mut self, field: ForwardedField) -> Self {
        self.field = match field {
            ForwardedField::Single(name) => {
                ForwardedField::Single(name.to_ascii_lowercase().into())
            }
            field => field,
        };
        self
    }

    /// The field whose values [`client`](Self::client) takes.
    pub const fn field(&self) -> &ForwardedField {
        &self.field
    }

    /// The client of a request: `peer` is the address of the connection, `lines` are the values of the
    /// [field](Self::field) in their order.
    pub fn client<'h>(
        &self,
        peer: Option<IpAddr>,
        lines: impl DoubleEndedIterator<Item = &'h [u8]>,
    ) -> Client {
        // From the last value to the first: the nearest proxy appends at the end.
        let mut lines = lines.rev().peekable();
        let peer = peer.map(|address| address.to_canonical());
        if lines.peek().is_none() {
            return Client::of(peer, ForwardedBy::Nothing);
        }
        if !self.believes(peer) {
            return Client::of(peer, ForwardedBy::Untrusted);
        }
        match &self.field {
            ForwardedField::XForwardedFor => {
                let each = lines.flat_map(|line| ReverseList::new(line, QuoteHandling::Plain));
                self.walk_hops(peer, each.map(hops::parse_address))
            }
            ForwardedField::Forwarded => {
                let each = lines.flat_map(|line| ReverseList::new(line, QuoteHandling::Read));
                let address = |element| hops::parse_bracketed_address(&parameter(element, "for")?);
                self.walk_hops(peer, each.map(address))
            }
            ForwardedField::Single(_) => {
                match (lines.next().and_then(hops::parse_address), lines.next()) {
                    (Some(address), None) => Client::of(Some(address), ForwardedBy::Trusted),
                    _ => Client::of(peer, ForwardedBy::Unreadable),
                }
            }
        }
    }

    /// Whether any peer is trusted.
    #[inline(always)]
    #[cfg(feature = "guard")]
    pub(crate) const fn believes_some(&self) -> bool {
        !matches!(self.whom, TrustedProxies::Nobody)
    }

    /// Whether the field of this peer is trusted.
    pub(crate) fn believes(&self, peer: Option<IpAddr>) -> bool {
        match &self.whom {
            TrustedProxies::Nobody => false,
            TrustedProxies::Proxies(networks) => peer.is_some_and(|peer| is_in(networks, peer)),
            TrustedProxies::Hops(_) => true,
        }
    }

    /// Walks from the nearest hop to the client. A hop is none if it can't be read.
    fn walk_hops(
        &self,
        peer: Option<IpAddr>,
        hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Client {
        let most = match &self.whom {
            TrustedProxies::Hops(count) => count.get(),
            _ => MAX_HOPS,
        };
        let (mut last, mut hop_count) = (peer, 0);
        for hop in hops.take(most) {
            let Some(address) = hop else {
                return Client::of(last, ForwardedBy::Unreadable);
            };
            (last, hop_count) = (Some(address), hop_count + 1);
            if let TrustedProxies::Proxies(networks) = &self.whom
                && !is_in(networks, address)
            {
                return Client::of(last, ForwardedBy::Trusted);
            }
        }
        match self.whom {
            // Fewer hops than proxies: the request came by another path, and could forge the field.
            TrustedProxies::Hops(_) if hop_count < most => {
                Client::of(peer, ForwardedBy::Unreadable)
            }
            _ if hop_count == 0 => Client::of(peer, ForwardedBy::Nothing),
            TrustedProxies::Proxies(_) if hop_count == most => {
                Client::of(last, ForwardedBy::Unreadable)
            }
            // Every hop is a proxy, so the farthest proxy is itself the client.
            _ => Client::of(last, ForwardedBy::Trusted),
        }
    }
}

fn is_in(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

impl ForwardedField {
    /// The name of the field, in lower case.
    pub const fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name,
        }
    }
}

impl Client {
    const fn of(address: Option<IpAddr>, forwarded_by: ForwardedBy) -> Self {
        Self {
            address,
            forwarded_by,
        }
    }
}

#[cfg(test)]
mod tests;

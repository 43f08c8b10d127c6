//! Whose request it is: the address of the client, whoever stands in between.
//!
//! The address that a connection comes from can't be forged; what header fields say can, by anybody. So by default
//! ([`Trust::none`]) the connection's address counts and no field is read. Behind proxies of your own say which those
//! are, by their [addresses](Trust::proxies) or by their [number](Trust::hops), and the field that the last of them
//! writes is walked from the right: each proxy vouches for what it wrote, which is the address it was asked from.
//! What stands left of the first address that isn't a proxy's was written by the client and is never looked at.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use derive_more::Display;

mod hops;
mod network;

use hops::{QuoteHandling, ReverseList, parameter};
pub use network::{Network, NetworkError};

/// More hops than this are no way that a request goes: whoever is so far off isn't looked for.
const MAX_HOPS: usize = 128;

/// Which proxies are believed, and which field.
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
    /// The peer is the first of them.
    Hops(NonZeroUsize),
}

/// The field that proxies tell the client by. Only one is read: two that disagree would let the client choose.
#[derive(Clone, Debug, Default, Display, PartialEq, Eq)]
#[display("{}", self.name())]
#[non_exhaustive]
pub enum ForwardedField {
    /// `X-Forwarded-For: client, proxy`: what most proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` (RFC 7239).
    Forwarded,
    /// A field with one address, as `CF-Connecting-IP` or `X-Real-IP`. The proxy has to replace what a client sends; if
    /// there are two of it, it didn't, and none is believed.
    Single(Box<str>),
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// The address, IPv4 if it is that inside of IPv6. None if the connection has none (a UNIX socket) and nobody who is
    /// believed told one.
    pub address: Option<IpAddr>,
    /// What came of the field.
    pub forwarded_by: ForwardedBy,
}

/// What came of the field that tells clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedBy {
    /// There is none, or none is read.
    Nothing,
    /// Proxies that are believed told the client.
    Trusted,
    /// Somebody told one who isn't believed. If that is a proxy of yours, all of its clients are one.
    Untrusted,
    /// It can't be read to the client: the last proxy that could be told apart counts.
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

    /// No field is believed: the address of the connection counts.
    pub const fn none() -> Self {
        Self::of(TrustedProxies::Nobody)
    }

    /// Proxies have these addresses. The client is the first, seen from here, that isn't one of them.
    pub fn proxies(networks: impl IntoIterator<Item = Network>) -> Self {
        Self::of(TrustedProxies::Proxies(networks.into_iter().collect()))
    }

    /// There are so many proxies before this service, whatever their addresses; the one that connects is the first.
    /// Whoever can connect past them can tell any address, so let nobody.
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

    /// Proxies tell the client by this field.
    ///
    /// ```
    /// use tollgate_http::client::{ForwardedField, Trust};
    ///
    /// let trust = Trust::proxies(["127.0.0.1".parse()?]).with_field(ForwardedField::Single("CF-Connecting-IP".into()));
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

    /// The field whose lines [`client`](Self::client) is given.
    pub const fn field(&self) -> &ForwardedField {
        &self.field
    }

    /// Whose request it is that came from here, with these lines of the [field](Self::field) in their order.
    pub fn client<'h>(
        &self,
        peer: Option<IpAddr>,
        lines: impl DoubleEndedIterator<Item = &'h [u8]>,
    ) -> Client {
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

    /// Whether what anybody tells is believed.
    #[inline(always)]
    #[cfg(feature = "guard")]
    pub(crate) const fn believes_some(&self) -> bool {
        !matches!(self.whom, TrustedProxies::Nobody)
    }

    /// Whether what this peer tells is believed.
    pub(crate) fn believes(&self, peer: Option<IpAddr>) -> bool {
        match &self.whom {
            TrustedProxies::Nobody => false,
            TrustedProxies::Proxies(networks) => peer.is_some_and(|peer| is_in(networks, peer)),
            TrustedProxies::Hops(_) => true,
        }
    }

    /// Goes from the nearest hop to the client; none is one that can't be read.
    fn walk_hops(
        &self,
        peer: Option<IpAddr>,
        hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Client {
        let most = match &self.whom {
            TrustedProxies::Hops(count) => count.get(),
            _ => MAX_HOPS,
        };
        let (mut last, mut seen) = (peer, 0);
        for hop in hops.take(most) {
            let Some(address) = hop else {
                return Client::of(last, ForwardedBy::Unreadable);
            };
            (last, seen) = (Some(address), seen + 1);
            if let TrustedProxies::Proxies(networks) = &self.whom
                && !is_in(networks, address)
            {
                return Client::of(last, ForwardedBy::Trusted);
            }
        }
        match self.whom {
            // Somebody came another way than all are said to.
            TrustedProxies::Hops(_) if seen < most => Client::of(peer, ForwardedBy::Unreadable),
            _ if seen == 0 => Client::of(peer, ForwardedBy::Nothing),
            TrustedProxies::Proxies(_) if seen == most => Client::of(last, ForwardedBy::Unreadable),
            // A proxy itself asks.
            _ => Client::of(last, ForwardedBy::Trusted),
        }
    }
}

fn is_in(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

impl ForwardedField {
    /// Its name, in lower case.
    pub const fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name,
        }
    }
}

impl Client {
    const fn of(address: Option<IpAddr>, told: ForwardedBy) -> Self {
        Self {
            address,
            forwarded_by: told,
        }
    }
}

#[cfg(test)]
mod tests;

//! A request as a guard sees it, what earlier layers found out about it, and what it costs.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use derive_more::From;

use crate::grpc;

/// A request, as far as limits care. Carriers implement it for what their framework has.
pub trait Request: 'static {
    /// Where the connection comes from; none if it has no address, or the framework wasn't told.
    fn peer(&self) -> Option<SocketAddr>;

    /// `GET`, `POST` …
    fn method(&self) -> &str;

    /// The path, without the query.
    fn path(&self) -> &str;

    /// The host that was asked for, as the client wrote it.
    fn host(&self) -> Option<&str>;

    /// The pattern of the route that serves it, as `/users/{id}`; none if there is none, or it isn't known yet.
    fn route(&self) -> Option<&str>;

    /// All lines of a header field, in their order. Its name is in lower case.
    fn header_lines<'r>(&'r self, field: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]>;

    /// Whether it came over HTTP/2 or later. Only such a request can be a call of gRPC, so carriers that serve gRPC say so.
    fn is_http2(&self) -> bool {
        false
    }

    /// What earlier layers found out.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T>;

    /// Whether its body is all that comes by the connection, whatever `content-length` says: of no request, unless a framework reads
    /// those that ask for an upgrade so.
    fn is_unbounded(&self) -> bool {
        false
    }

    /// How many bytes its body has, if it says so (`content-length`).
    fn body_size(&self) -> Option<u64> {
        // Chunks come before a length that stands beside them.
        if self.is_unbounded() || self.header_lines("transfer-encoding").next().is_some() {
            return None;
        }
        str::from_utf8(self.single_line("content-length")?)
            .ok()?
            .parse()
            .ok()
    }

    /// Whether it is a call of gRPC: POST over HTTP/2, with the content type of gRPC. Any other request with that content type
    /// reads a status of HTTP: its client, and caches on the way, would take gRPC's 200 for success.
    fn is_grpc(&self) -> bool {
        self.method() == "POST"
            && self.is_http2()
            && self.single_line("content-type").is_some_and(grpc::is_call)
    }

    /// The only line of a field; none if there are several, as those who read it later may read another.
    fn single_line<'r>(&'r self, field: &'r str) -> Option<&'r [u8]> {
        let mut lines = self.header_lines(field);
        let first = lines.next()?;
        lines.next().is_none().then_some(first)
    }
}

/// Who asks, as a layer before found out: the fact `user`, and the key of `Extension::<User>`.
///
/// ```
/// use tollgate_http::guard::{Tenant, Tier, User};
///
/// // What an authenticating layer puts into a request's extensions:
/// let (user, tenant, tier) = (User::from("ada"), Tenant::from("acme"), Tier::from("gold"));
/// assert_eq!((&*user.0, &*tenant.0, &*tier.0), ("ada", "acme", "gold"));
/// ```
#[derive(Clone, Debug, From, PartialEq, Eq, Hash)]
#[from(forward)]
pub struct User(pub Arc<str>);

/// For whom: the fact `tenant`.
#[derive(Clone, Debug, From, PartialEq, Eq, Hash)]
#[from(forward)]
pub struct Tenant(pub Arc<str>);

/// What was paid for: the fact `tier`.
#[derive(Clone, Debug, From, PartialEq, Eq, Hash)]
#[from(forward)]
pub struct Tier(pub Arc<str>);

/// Facts of one's own, that an earlier layer found out.
///
/// ```
/// use tollgate_http::guard::ExtraFacts;
///
/// let more = ExtraFacts::default().with("plan", "pro").with("region", "eu");
/// assert_eq!(more.get("plan"), Some("pro"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraFacts(Vec<(Box<str>, Box<str>)>);

impl ExtraFacts {
    /// The same with another fact, in place of one of that name.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.retain(|(own, _)| **own != *name);
        self.0.push((name.into(), value.into()));
        self
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What is known by this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| **own == *name)?;
        Some(&found.1)
    }
}

/// What a request costs.
///
/// ```
/// use std::num::NonZero;
/// use tollgate_http::guard::Cost;
///
/// let fixed = Cost::Fixed(5);
/// let by_route = Cost::routes([("/search", 10), ("/users/{id}", 1)], 2);
/// // One for each KiB of the body; a body of unknown size costs 64.
/// let by_size = Cost::BodySize { per: NonZero::new(1_024).expect("more than zero"), unknown: 64 };
/// # let _ = (fixed, by_route, by_size);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cost {
    /// Always so much.
    Fixed(u64),
    /// By the pattern of the route that serves it.
    Routes {
        /// Patterns, and what they cost.
        each: Box<[(Box<str>, u64)]>,
        /// What all others cost.
        other: u64,
    },
    /// One for each so many bytes of its body, rounded up, and one at least. What counts is what the request says before it
    /// is read (`content-length`), which HTTP then holds it to. Where a framework hands all that follows a request for a WebSocket to
    /// its handler, as actix-web does, that is a body of unknown size.
    BodySize {
        /// How many bytes cost one.
        per: NonZeroU64,
        /// What a body of unknown size costs.
        unknown: u64,
    },
}

impl Cost {
    /// What requests of each route cost, and all others.
    pub fn routes<'n>(each: impl IntoIterator<Item = (&'n str, u64)>, other: u64) -> Self {
        let each = each.into_iter().map(|(route, cost)| (route.into(), cost));
        Self::Routes {
            each: each.collect(),
            other,
        }
    }

    /// What this request costs.
    pub fn of(&self, request: &(impl Request + ?Sized)) -> u64 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Routes { each, other } => {
                let route = request.route().unwrap_or_default();
                let found = each.iter().find(|(own, _)| **own == *route);
                found.map_or(*other, |(_, cost)| *cost)
            }
            Self::BodySize { per, unknown } => match request.body_size() {
                Some(bytes) => bytes.div_ceil(per.get()).max(1),
                None if has_no_body(request) => 1,
                None => *unknown,
            },
        }
    }
}

/// A request without a body says nothing of its size.
fn has_no_body(request: &(impl Request + ?Sized)) -> bool {
    let is_safe = matches!(request.method(), "GET" | "HEAD" | "OPTIONS" | "DELETE");
    // Of any number of lines: a body may be announced by two.
    is_safe && !request.is_unbounded() && request.header_lines("transfer-encoding").next().is_none()
}

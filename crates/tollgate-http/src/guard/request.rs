//! A request as limits see it, the extensions of earlier layers, and the cost of a request.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use derive_more::From;

use crate::grpc;

/// The parts of a request that limits read. Adapters implement it for the type of their framework.
pub trait Request: 'static {
    /// The address of the connection; none if it has no address, or the framework doesn't know it.
    fn peer(&self) -> Option<SocketAddr>;

    /// `GET`, `POST` …
    fn method(&self) -> &str;

    /// The path, without the query.
    fn path(&self) -> &str;

    /// The requested host, as the client wrote it.
    fn host(&self) -> Option<&str>;

    /// The pattern of the route, such as `/users/{id}`; none if no route serves the request, or it isn't known yet.
    fn route(&self) -> Option<&str>;

    /// All values of a header field, in their order. The name is in lower case.
    fn header_lines<'r>(&'r self, field: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]>;

    /// Whether the request came over HTTP/2 or later. Only such a request can be a gRPC call, so adapters for gRPC
    /// implement this.
    fn is_http2(&self) -> bool {
        false
    }

    /// An extension that an earlier layer has set.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T>;

    /// Whether the body is everything that follows on the connection, whatever `content-length` states. By default
    /// never; some frameworks read upgrade requests so.
    fn is_unbounded(&self) -> bool {
        false
    }

    /// The size of the body in bytes, if the request states it (`content-length`).
    fn body_size(&self) -> Option<u64> {
        // A chunked body takes precedence over a length (RFC 9112).
        if self.is_unbounded() || self.header_lines("transfer-encoding").next().is_some() {
            return None;
        }
        str::from_utf8(self.single_line("content-length")?)
            .ok()?
            .parse()
            .ok()
    }

    /// Whether the request is a gRPC call: POST over HTTP/2, with the content type of gRPC. Any other request with
    /// that content type gets an HTTP status: its client, and caches on the way, would take gRPC's 200 for success.
    fn is_grpc(&self) -> bool {
        self.method() == "POST"
            && self.is_http2()
            && self.single_line("content-type").is_some_and(grpc::is_call)
    }

    /// The only value of a field; none if there are several, as the service might read another one.
    fn single_line<'r>(&'r self, field: &'r str) -> Option<&'r [u8]> {
        let mut lines = self.header_lines(field);
        let first = lines.next()?;
        lines.next().is_none().then_some(first)
    }
}

/// The authenticated user, set by an earlier layer: the fact `user`, and the key of `Extension::<User>`.
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

/// The tenant of the user: the fact `tenant`.
#[derive(Clone, Debug, From, PartialEq, Eq, Hash)]
#[from(forward)]
pub struct Tenant(pub Arc<str>);

/// The plan of the tenant: the fact `tier`.
#[derive(Clone, Debug, From, PartialEq, Eq, Hash)]
#[from(forward)]
pub struct Tier(pub Arc<str>);

/// Custom facts, set by an earlier layer.
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
    /// Sets a fact, and replaces one of the same name.
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

    /// The value of the fact with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| **own == *name)?;
        Some(&found.1)
    }
}

/// The cost of a request.
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
    /// A fixed cost.
    Fixed(u64),
    /// A cost by the pattern of the route.
    Routes {
        /// Patterns and their costs.
        each: Box<[(Box<str>, u64)]>,
        /// The cost of all other requests.
        other: u64,
    },
    /// A cost by the size of the body: 1 for each `per` bytes, rounded up, and at least 1.
    ///
    /// The size is the `content-length` of the request, which HTTP enforces. actix-web passes everything after a
    /// WebSocket request to the handler: such a body is of unknown size.
    BodySize {
        /// How many bytes cost 1.
        per: NonZeroU64,
        /// The cost of a body of unknown size.
        unknown: u64,
    },
}

impl Cost {
    /// A cost for each route, and one for all other requests.
    pub fn routes<'n>(each: impl IntoIterator<Item = (&'n str, u64)>, other: u64) -> Self {
        let each = each.into_iter().map(|(route, cost)| (route.into(), cost));
        Self::Routes {
            each: each.collect(),
            other,
        }
    }

    /// The cost of this request.
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

/// Whether a request without a stated size has no body.
fn has_no_body(request: &(impl Request + ?Sized)) -> bool {
    let is_safe = matches!(request.method(), "GET" | "HEAD" | "OPTIONS" | "DELETE");
    // All values are read: two fields announce a body as well as one.
    is_safe && !request.is_unbounded() && request.header_lines("transfer-encoding").next().is_none()
}

//! What requests cost, where that isn't one.

use std::num::NonZeroU64;

use super::request::Request;

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
    is_safe && !request.is_unbounded() && request.lines("transfer-encoding").next().is_none()
}

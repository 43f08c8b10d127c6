//! Rate limits in terms of HTTP, for any framework: text and bytes in, text and bytes out.
//!
//! The input is [the client of a request](client). There are three outputs:
//! * [header fields](fields), in a dialect that clients know ([`HeaderDialect`]),
//! * `Retry-After` ([`retry_after`]),
//! * the [body](denial_body::DenialBody) of a denial.
//!
//! Two features add more: `guard` is the part that all server middleware shares, and `outgoing` paces the calls of
//! clients by the header fields that servers send.
//!
//! ```
//! use std::time::Duration;
//! use tollgate_core::{Decision, Outcome};
//! use tollgate_http::{HeaderDialect, ShownLimit, fields};
//!
//! let decision = Decision::new(Outcome::Allowed, 100, 50, Duration::ZERO, Duration::from_secs(30));
//! let shown = ShownLimit::of("per-user", &decision).window(Duration::from_secs(60));
//! let mut lines = Vec::new();
//! fields::write(&[HeaderDialect::Draft8], &[shown], 0, |name, value| lines.push(format!("{name}: {value}")));
//! assert_eq!(lines, [
//!     "ratelimit-policy: \"per-user\";q=100;w=60",
//!     "ratelimit: \"per-user\";r=50;t=30",
//! ]);
//! ```

#![forbid(unsafe_code)]

pub mod client;
#[cfg(feature = "engine")]
pub mod decision_answer;
pub mod denial_body;
pub mod fields;
pub mod grpc;
#[cfg(feature = "guard")]
pub mod guard;
pub mod header_dialect;
pub mod json;
#[cfg(feature = "outgoing")]
pub mod outgoing;
pub mod protobuf;
#[cfg(any(feature = "guard", feature = "outgoing"))]
mod waiter_limit;

#[cfg(feature = "engine")]
pub use decision_answer::{DecisionAnswer, MAX_LISTED_LIMITS};
pub use denial_body::{DenialBody, http_status_of};
pub use fields::{ShownLimit, retry_after};
pub use header_dialect::{HeaderDialect, UnknownDialect};
pub use tollgate_core::DenyReason;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

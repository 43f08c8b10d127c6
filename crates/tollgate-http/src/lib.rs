//! What HTTP says of a limit, whatever the framework: text and bytes in, text and bytes out.
//!
//! One thing comes in, [whose request it is](client), and three leave here:
//! * [header fields](fields) in the dialect that clients know ([`HeaderDialect`]),
//! * `Retry-SettlementTiming` ([`retry_after`]),
//! * the [body](refusal::DenialBody) of a refusal.
//!
//! Two features have what stands around them: `guard`, what all middleware of servers shares, and `outgoing`, what paces the
//! calls of clients by such fields.
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

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

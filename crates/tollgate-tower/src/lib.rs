//! Rate limits for tower services, and so for axum, tonic and hyper.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::Rate;
//! use tollgate_tower::RateLimitLayer;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_client(Rate::per_second(10).burst(20)));
//! # let _ = app;
//! ```
//!
//! * [`RateLimitLayer`] is put around a service; all its clones count together.
//! * [`keys`] say by what clients are told apart, [`client`] which proxies are believed.
//! * [`Answers`] says what clients are told.
//! * [`PaceLayer`] is for the calls that a program makes: it paces them, and obeys what [servers tell](outgoing).
//! * [`ShedLayer`] admits as many at once as a limit that [adapts](tollgate_adaptive) has room for, the critical ones last to be refused:
//!   in front of a service, or for the calls that a program makes.
//! * [`BreakerLayer`] stops calling what fails, and [`RetryLayer`] tries again what may be, within a budget.

#![forbid(unsafe_code)]

mod body;
mod breaker;
mod client_layer;
mod field_names;
mod future;
mod head;
mod layer;
mod pace;
mod response_head;
mod retry;
mod shed;

pub use body::{AnyBody, Bodies, Body, HoldingBody, Holds, OpenBody, Polled, SameBody, ShedBody};
pub use breaker::BreakerLayer;
pub use client_layer::{BoxError, CallPolicy, Calling, Layered};
pub use future::ResponseFuture;
pub use head::{AnyRequest, Head};
pub use layer::{RateLimit, RateLimitLayer};
pub use pace::PaceLayer;
pub use retry::RetryLayer;
pub use shed::{Admits, By, ShedClientLayer, ShedFuture, ShedLayer};
pub use tollgate::OnMissingKey;
pub use tollgate_http::guard::{
    Admission, Answers, Asked, AtOnce, Block, ByPolicy, Cost, Counts, Denial, ExactPerKey, Fields,
    Form, Guard, Judged, KeyOf, KeySource, Limits, MissingKey, MoreFacts, PerKey, Refused, Reply,
    Request, Settle, Settles, Tarpit, Tenant, Terms, Tier, Usage, Used, User, keys,
};
pub use tollgate_http::{DenyReason, Dialect, client, outgoing};

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

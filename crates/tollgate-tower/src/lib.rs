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
//! * [`RateLimitLayer`] limits the requests to a service. All its clones share their counters.
//! * [`keys`] are the rate-limit keys of requests, and [`client`] states which proxies are trusted.
//! * [`ResponseFormat`] sets the header fields and the bodies of responses.
//! * [`ConcurrencyLimitLayer`] limits concurrent requests, with a fixed or an [adaptive](tollgate_adaptive) limit,
//!   and sheds the least critical ones first. It works in front of a service, and around a client.
//! * [`PaceLayer`] paces outgoing calls, and follows the [limits of servers](outgoing).
//! * [`BreakerLayer`] is a circuit breaker for outgoing calls, and [`RetryLayer`] retries them within a budget.

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

pub use body::{
    Body, BodyMode, ConcurrencyBody, FromBytesBody, HoldingBody, KeepBody, ObserveBody,
    PolledResponse, WrapBody,
};
pub use breaker::BreakerLayer;
pub use client_layer::{BoxError, CallPolicy, ClientLayer, LayeredService};
pub use future::ResponseFuture;
pub use head::{AnyRequest, RequestHead};
pub use layer::{RateLimit, RateLimitLayer};
pub use pace::PaceLayer;
pub use retry::RetryLayer;
pub use shed::{
    AcquirePermit, ClientConcurrencyLimitLayer, ConcurrencyLimitFuture, ConcurrencyLimitLayer,
    DividedLimit,
};
pub use tollgate::OnMissingKey;
pub use tollgate_http::guard::{
    ActualCost, Admission, AskOutcome, BlockAfter, ConcurrencyLimit, Cost, CountedResponses,
    Denial, DenialBodyFormat, DeniedResponse, ExtraFacts, HeaderFields, KeyExtractor, KeySource,
    LimitOutcome, MissingKey, PolicyLimits, RatePerKey, Request, RequestLimiter, RequestLimits,
    ResponseFormat, ResponseHead, Settle, SettleCosts, SettlingRatePerKey, Tarpit, Tenant, Terms,
    Tier, UsageReporter, User, keys,
};
pub use tollgate_http::{DenyReason, HeaderDialect, client, outgoing};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

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
//! * [`ConcurrencyLimitLayer`] admits as many at once as a limit that [adapts](tollgate_adaptive) has room for, the critical ones last to be refused:
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

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

//! Rate limits for actix-web.
//!
//! ```
//! use actix_web::{App, web};
//! use tollgate::Rate;
//! use tollgate_actix::RateLimit;
//!
//! // Made once, outside the closure that makes an `App` for each worker: all clones share their counters.
//! let limit = RateLimit::per_client(Rate::per_second(10).burst(20));
//! let app = App::new().wrap(limit.clone()).route("/", web::get().to(|| async { "hello" }));
//! # let _ = app;
//! ```
//!
//! * [`RateLimit`] limits the requests to an app, a scope or a resource. All its clones share their counters.
//! * [`keys`] are the rate-limit keys of requests, and [`client`] states which proxies are trusted.
//! * [`ResponseFormat`] sets the header fields and the bodies of responses. [`RequestLimiter`] has all other
//!   settings.

#![forbid(unsafe_code)]

mod body;
mod head;
mod limit;
mod service;

pub use body::Body;
pub use head::RequestHead;
pub use limit::RateLimit;
pub use service::RateLimitService;
pub use tollgate::OnMissingKey;
pub use tollgate_http::guard::{
    ActualCost, Admission, AskOutcome, BlockAfter, ConcurrencyLimit, Cost, CountedResponses,
    Denial, DenialBodyFormat, DeniedResponse, ExtraFacts, HeaderFields, KeyExtractor, KeySource,
    LimitOutcome, MissingKey, PolicyLimits, RatePerKey, Request, RequestLimiter, RequestLimits,
    ResponseFormat, ResponseHead, Settle, SettleCosts, SettlingRatePerKey, Tarpit, Tenant, Terms,
    Tier, UsageReporter, User, keys,
};
pub use tollgate_http::{DenyReason, HeaderDialect, client};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

//! Rate limits for actix-web.
//!
//! ```
//! use actix_web::{App, web};
//! use tollgate::Rate;
//! use tollgate_actix::RateLimit;
//!
//! // Made once, outside of the closure that makes an `App` for each worker: all clones count together.
//! let limit = RateLimit::per_client(Rate::per_second(10).burst(20));
//! let app = App::new().wrap(limit.clone()).route("/", web::get().to(|| async { "hello" }));
//! # let _ = app;
//! ```
//!
//! * [`RateLimit`] is put around an app, a scope or a resource; all its clones count together.
//! * [`keys`] say by what clients are told apart, [`client`] which proxies are believed.
//! * [`Answers`] says what clients are told, and [`RequestLimiter`] has all else that can be chosen.

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

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

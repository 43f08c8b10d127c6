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
//! * [`Answers`] says what clients are told, and [`Guard`] has all else that can be chosen.

#![forbid(unsafe_code)]

mod body;
mod head;
mod limit;
mod service;

pub use body::Body;
pub use head::Head;
pub use limit::RateLimit;
pub use service::Limited;
pub use tollgate::OnMissingKey;
pub use tollgate_http::guard::{
    Admission, Answers, Asked, AtOnce, Block, ByPolicy, Cost, Counts, Denial, ExactPerKey, Fields,
    Form, Guard, Judged, KeyOf, KeySource, Limits, MissingKey, MoreFacts, PerKey, Refused, Reply,
    Request, Settle, Settles, Tarpit, Tenant, Terms, Tier, Usage, Used, User, keys,
};
pub use tollgate_http::{DenyReason, Dialect, client};

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;

//! From the facts of a request to a decision, by rules that people can read.
//!
//! A [`Policy`] states which limits apply to which requests. An [`Engine`] takes the [`Facts`] of a request and
//! returns a [`RequestDecision`]: allowed or denied, by which rule, and when to retry.
//!
//! ```
//! use tollgate_engine::backend::Memory;
//! use tollgate_engine::document::Format;
//! use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
//!
//! let text = "
//! limits:
//! - name: per-user
//!   match: {path: /api/**}
//!   key: [user]
//!   rate: 2/minute
//! exempt: [{path: /healthz}]
//! ";
//! let policy = Policy::from_text(text, Format::Yaml)?.policy; // or Policy::from_path("policy.yaml")
//! let engine = Engine::new(policy, Memory::new())?;
//!
//! let facts = Facts::new().with("user", "ada").with("path", "/api/orders");
//! match engine.decide(&facts) {
//!     // Keep it while the request runs: it holds the request's permits.
//!     RequestDecision::Allowed(allowed) => println!("served: {}", allowed.decision()),
//!     RequestDecision::Denied(denied) => println!("429 by {}: {}", denied.cause(), denied.decision()),
//! }
//! assert!(engine.decide(&facts).allowed().is_some());
//! assert!(engine.decide(&facts).denied().is_some()); // the third within a minute
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that keeps its rules elsewhere builds a policy without a file:
//!
//! ```
//! use tollgate::Rate;
//! use tollgate_engine::backend::Memory;
//! use tollgate_engine::policy::{KeyPart, Limits, Rule};
//! use tollgate_engine::{Engine, Facts, Policy};
//!
//! let limits = Limits { rates: vec![Rate::per_minute(1)], ..Limits::default() };
//! let rule = Rule { key: vec![KeyPart::Fact("user".to_owned())], ..Rule::new("per-user", limits) };
//! let policy = Policy { rules: vec![rule], ..Policy::default() };
//!
//! let engine = Engine::new(policy, Memory::new())?;
//! let (ada, bob) = (Facts::new().with("user", "ada"), Facts::new().with("user", "bob"));
//! assert!(engine.decide(&ada).allowed().is_some());
//! assert!(engine.decide(&ada).denied().is_some());
//! assert!(engine.decide(&bob).allowed().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | you want | look at |
//! |---|---|
//! | to read a policy and show its mistakes | [`Policy`], [`LoadError`], [`render`] |
//! | to decide, wait, peek without charging, reload the policy | [`Engine`] |
//! | to count in this process | [`backend::Memory`] |
//! | to count for a fleet | the crate `tollgate-redis` |
//! | to reload a policy when its file changes | `Engine::watch` (feature `watch`) |
//! | to learn why a request was allowed or denied | [`explain`] |
//! | to learn what another policy would change | [`diff`] |
//! | to observe every decision | [`observer`] |
//! | to count decisions by limiter | [`counters`] |
//! | to list the keys with the most denials | [`top_keys`] |
//! | to block or bypass a key, or replace its limit, for a while | [`overrides`] |
//! | to read files of envoyproxy/ratelimit | [`envoy`] |
//!
//! The path of a request, which is also the reading order of the code:
//!
//! ```text
//! request ─► Facts ─► Policy ─► checks ─► backend ─► Verdict
//! ```

#![forbid(unsafe_code)]

mod address;
pub mod backend;
mod bounds;
mod cause;
pub mod counters;
pub mod diagnostic;
pub mod diff;
pub mod document;
pub mod engine;
pub mod envoy;
mod escape;
pub mod explain;
pub mod facts;
mod key_text;
mod limits;
pub mod lint;
mod load_result;
pub mod matcher;
pub mod native;
pub mod observer;
pub mod overrides;
pub mod policy;
pub mod render;
pub mod schema;
pub mod source;
mod sources;
mod suggestions;
pub mod top_keys;
pub mod warning;
#[cfg(feature = "watch")]
pub mod watch;

pub use bounds::Bounds;
pub use diagnostic::{Code, Diagnostic, Severity};
pub use engine::verdict::{self, RequestDecision};
pub use engine::{
    DecideOptions, Engine, PolicyError, RequiredFacts, RestoreError, RestoreOptions, RestoreReport,
};
pub use facts::Facts;
pub use load_result::{LoadError, LoadedPolicy};
pub use policy::Policy;
pub use sources::Sources;

/// Compiles the examples of the policy reference.
#[cfg(doctest)]
#[allow(
    rustdoc::invalid_codeblock_attributes,
    reason = "other tests read them"
)]
#[doc = include_str!("../docs/policy.md")]
struct Documented;

/// Compiles the example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

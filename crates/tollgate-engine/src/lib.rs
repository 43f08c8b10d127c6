//! From request facts to a verdict, by rules that people can read.
//!
//! A [`Policy`] says which requests meet which limits. An [`Engine`] takes what is known of a request, its [`Facts`],
//! and answers with a [`RequestDecision`]: passed or refused, by which rule, and when to come back.
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
//!     // PersistenceOptions it while the request runs: it holds what the request has taken.
//!     RequestDecision::Allowed(passed) => println!("served: {}", passed.decision()),
//!     RequestDecision::Denied(refused) => println!("429 by {}: {}", refused.cause(), refused.decision()),
//! }
//! assert!(engine.decide(&facts).allowed().is_some());
//! assert!(engine.decide(&facts).denied().is_some()); // the third within a minute
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that has its rules elsewhere builds them without a text:
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
//! | to read a policy, and to show its mistakes | [`Policy`], [`LoadError`], [`render`] |
//! | to decide, wait, look without charging, change the policy live | [`Engine`] |
//! | to count in this process | [`backend::Memory`] |
//! | to count for a fleet | the crate `tollgate-redis` |
//! | to put a policy in force when its file changes | `Engine::watch` (feature `watch`) |
//! | to know why a request passed or not | [`explain`] |
//! | to know what another policy would change | [`diff`] |
//! | to be told of every decision | [`observer`] |
//! | to count them by limiter | [`tally`] |
//! | to know which keys are refused most | [`top`] |
//! | to block a key, let it through, or give it another limit for a while | [`orders`] |
//! | files of envoyproxy/ratelimit | [`envoy`] |
//!
//! The way of a request, which is also the reading order of the code:
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

/// What the documents show is compiled.
#[cfg(doctest)]
#[allow(
    rustdoc::invalid_codeblock_attributes,
    reason = "other tests read them"
)]
#[doc = include_str!("../docs/policy.md")]
struct Documented;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

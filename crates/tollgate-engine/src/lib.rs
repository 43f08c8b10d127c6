//! From request facts to a verdict, by rules that people can read.
//!
//! ```text
//! request ─► Facts ─► Policy ─► checks ─► backend ─► verdict
//! ```

pub mod backend;
pub mod diagnostic;
pub mod document;
pub mod engine;
pub mod envoy;
pub mod explain;
pub mod facts;
mod limits;
pub mod lint;
pub mod matcher;
pub mod native;
pub mod observer;
pub mod policy;
pub mod render;
pub mod schema;
pub mod source;
mod suggest;
pub mod verdict;

pub use diagnostic::{Code, Diagnostic, Severity};
pub use engine::{Bounds, Engine, PolicyError};
pub use facts::Facts;
pub use policy::Policy;
pub use source::{Checked, Rejected, Sources};
pub use verdict::Verdict;

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

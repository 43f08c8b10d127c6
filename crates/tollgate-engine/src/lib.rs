//! From request facts to a verdict, by rules that people can read.
//!
//! ```text
//! request ─► Facts ─► Policy ─► checks ─► backend ─► verdict
//! ```

pub mod diagnostic;
pub mod document;
pub mod envoy;
pub mod facts;
pub mod policy;

pub use diagnostic::{Code, Diagnostic, Severity};
pub use facts::Facts;
pub use policy::Policy;

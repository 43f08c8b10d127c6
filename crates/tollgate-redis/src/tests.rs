//! Tests of the whole crate: the scripts against core, and what tests of admitted requests share.

mod conformance;
pub(crate) mod windows;

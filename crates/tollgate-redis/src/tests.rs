//! Tests of the whole: the scripts against core, and what all tests of admitted requests share.

mod conformance;
pub(crate) mod windows;

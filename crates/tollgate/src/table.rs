//! Parts that several tables of keys are built of: hashes, indexes, slabs, heaps and counters.

pub(crate) mod counters;
pub(crate) mod hasher;
pub(crate) mod heap;
pub(crate) mod index;
pub(crate) mod slab;
mod stats;

pub use stats::{NoSlot, Stats};

//! Parts that several tables of keys are built of: hashes, indexes, slabs and heaps.

pub(crate) mod hasher;
pub(crate) mod heap;
pub(crate) mod index;
mod settings;
pub(crate) mod slab;
mod stats;

pub use settings::TableSettings;
pub use stats::{ActiveKey, NoSlot, Stats};

//! Operations without allocations: counted by the allocator, thread by thread.

#[path = "../common/mod.rs"]
mod common;
mod decisions;
mod envoy;

use tollgate_testkit::allocation_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

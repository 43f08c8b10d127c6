//! Each kind of limit as part of a composite limiter. These modules know the limiters; no limiter knows
//! the composite.

mod awaited_hold;
mod concurrency;
mod exact_keyed;
mod keyed;
mod limiter;
#[cfg(feature = "quota")]
mod quota;
mod tree;

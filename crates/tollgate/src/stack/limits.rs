//! Each kind of limit as a level of a stack: the stack knows the limiters, and no limiter knows the stack.

mod awaited_hold;
mod concurrency;
mod exact_keyed;
mod keyed;
mod limiter;
#[cfg(feature = "quota")]
mod quota;
mod tree;

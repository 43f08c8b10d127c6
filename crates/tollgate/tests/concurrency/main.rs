//! Permits: of one limiter and by key, awaited, under threads, and against a model.

#[cfg(feature = "tokio")]
mod awaiting;
mod keyed;
#[cfg(feature = "tokio")]
mod model;
mod threads;
mod verbs;

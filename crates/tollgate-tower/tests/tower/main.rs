//! The layer around real services of axum, in process.

mod answers;
mod kit;
mod pace;
mod policy;
mod shared;

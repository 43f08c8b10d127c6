//! The layer around real services of axum, in process.

mod answers;
mod costs;
mod counting;
mod drops;
mod hooks;
mod kit;
mod offences;
mod pace;
mod policy;
mod shared;
mod slots;
mod waits;

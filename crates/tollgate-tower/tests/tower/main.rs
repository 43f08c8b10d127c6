//! The layer around real services of axum and tonic, in process and over sockets.

mod adaptive_policy;
mod answers;
mod costs;
mod counting;
mod drops;
mod golden;
mod hooks;
mod hostile;
mod kit;
mod mixes;
mod offences;
mod overload;
mod pace;
mod points;
mod policy;
mod protect;
mod scenarios;
mod shared;
mod shed;
mod side_by_side;
mod slots;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod sockets;
mod storms;
mod waits;

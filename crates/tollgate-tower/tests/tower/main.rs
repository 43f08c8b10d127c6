//! The layer around real services of axum and tonic, in process and over sockets.

#[cfg(not(all(feature = "axum", feature = "tonic")))]
compile_error!("these tests are for services of axum and tonic: run them with --all-features");

mod adaptive_policy;
mod answers;
mod bodies;
mod costs;
mod counting;
mod doubled;
mod drops;
mod glance;
mod golden;
mod hooks;
mod hostile;
mod kit;
mod log;
mod mixes;
mod offences;
mod one_look;
mod one_look_crowd;
mod overload;
mod pace;
mod points;
mod policy;
mod policy_facts;
mod protect;
mod ready;
mod scenarios;
mod shared;
mod shed;
mod side_by_side;
mod slots;
mod sockets;
mod storms;
mod waits;

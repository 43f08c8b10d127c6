//! Limits around real apps of actix-web, asked over loopback connections.

mod bodies;
mod kit;
mod limits;

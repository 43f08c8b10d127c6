//! Limits around real apps of actix-web, over loopback connections.

mod bodies;
mod hostile;
mod kit;
mod limits;

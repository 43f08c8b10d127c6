//! The breaker by timelines: when it opens, how long it stays open, which calls probe, and its events.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod hostile;
mod shares;
mod timeline;

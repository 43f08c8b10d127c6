//! Shared queues: fair among clients, and by lanes.

#[cfg(feature = "tokio")]
mod fair;
mod lanes;

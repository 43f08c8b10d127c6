//! Lines that somebody shares out: by fairness among clients, and by lanes.

#[cfg(feature = "tokio")]
mod fair;
mod lanes;

//! How much clients may bring and take: each bound has a default and a flag.

use std::time::Duration;

use crate::connection::TimeLimits;

/// How much clients may bring and take.
///
/// ```
/// use tollgate_server::RequestBounds;
///
/// let bounds = RequestBounds { max_connections: 100, ..RequestBounds::default() };
/// assert_eq!(bounds.key_bytes, 8_192);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// Connections of each protocol at the same time.
    pub max_connections: usize,
    /// Bytes of a request: a command, a body, a message.
    pub request_bytes: usize,
    /// Bytes of the first lines of a request of HTTP.
    pub head_bytes: usize,
    /// Bytes of a key of `CL.THROTTLE`. Facts and entries have any length that a request has room for.
    pub key_bytes: usize,
    /// Arguments of a command, facts of a request, or entries of all its descriptors.
    pub max_arguments: usize,
    /// Descriptors of a request of Envoy.
    pub max_descriptors: usize,
    /// Requests of one batch of HTTP.
    pub max_batch: usize,
    /// Commands or requests that are answered in one write.
    pub max_pipeline: usize,
    /// Requests of one connection of HTTP/2 at the same time.
    pub max_streams: u32,
    /// The time that a client may take to send a request, and to read its answer.
    pub request_timeout: Duration,
    /// The time between two requests of a connection.
    pub idle_timeout: Duration,
    /// What callers may hold at the same time: permits and reservations.
    pub max_reservations: usize,
    /// The time after which a slot that was taken over RLS or RESP is free again, if nobody gave it back.
    pub reservation_timeout: Duration,
}

impl RequestBounds {
    /// How long clients may take whose requests come one after the other.
    pub(crate) fn patience(&self) -> TimeLimits {
        TimeLimits {
            idle: self.idle_timeout,
            request: self.request_timeout,
            pipeline: self.max_pipeline as u64,
        }
    }

    /// Bytes of a message of gRPC: a proxy copies one header into several descriptors, and Envoy takes 60 KiB of
    /// headers, so it is larger than other requests. A message that is too long leaves the request undecided.
    pub(crate) const fn message_bytes(&self) -> usize {
        self.request_bytes.saturating_mul(4)
    }

    /// Bytes of the metadata of a call: what Envoy copies there from headers of its clients, such as `tracestate`,
    /// must not be what ends the call.
    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.head_bytes.saturating_mul(8)
    }
}

impl Default for RequestBounds {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            request_bytes: 65_536,
            head_bytes: 8_192,
            key_bytes: 8_192,
            max_arguments: 1_024,
            max_descriptors: 64,
            max_batch: 1_000,
            max_pipeline: 1_000,
            max_streams: 256,
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            max_reservations: 100_000,
            reservation_timeout: Duration::from_secs(60),
        }
    }
}

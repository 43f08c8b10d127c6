//! Bounds on requests and connections: each has a default and a flag.

use std::time::Duration;

use crate::connection::TimeLimits;

/// Bounds on requests and connections.
///
/// ```
/// use tollgate_server::RequestBounds;
///
/// let bounds = RequestBounds { max_connections: 100, ..RequestBounds::default() };
/// assert_eq!(bounds.key_bytes, 8_192);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// Concurrent connections of each protocol.
    pub max_connections: usize,
    /// Bytes of a request: a command, a body, a message.
    pub request_bytes: usize,
    /// Bytes of the head of an HTTP request.
    pub head_bytes: usize,
    /// Bytes of a key of `CL.THROTTLE`. Facts and descriptor entries are bounded by the size of the request alone.
    pub key_bytes: usize,
    /// Arguments of a command, facts of a request, or entries of all its descriptors.
    pub max_arguments: usize,
    /// Descriptors of a request of Envoy.
    pub max_descriptors: usize,
    /// Requests of one HTTP batch.
    pub max_batch: usize,
    /// Commands or requests that are answered in one write.
    pub max_pipeline: usize,
    /// Concurrent streams of one HTTP/2 connection.
    pub max_streams: u32,
    /// How long a client may take to send a request, and to read its response.
    pub request_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_timeout: Duration,
    /// How many permits and reservations callers may hold in total.
    pub max_reservations: usize,
    /// When a permit that was acquired over RLS or RESP expires, unless it is released before.
    pub reservation_timeout: Duration,
}

impl RequestBounds {
    /// The timeouts of a connection whose requests come one after the other.
    pub(crate) fn patience(&self) -> TimeLimits {
        TimeLimits {
            idle: self.idle_timeout,
            request: self.request_timeout,
            pipeline: self.max_pipeline as u64,
        }
    }

    /// Bytes of a gRPC message. It is larger than other requests, because a proxy copies one header into several
    /// descriptors, and Envoy accepts 60 KiB of headers. A longer message leaves the request undecided.
    pub(crate) const fn message_bytes(&self) -> usize {
        self.request_bytes.saturating_mul(4)
    }

    /// Bytes of the metadata of a call. Envoy copies headers of its clients there, such as `tracestate`, and these must
    /// not make the call fail.
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

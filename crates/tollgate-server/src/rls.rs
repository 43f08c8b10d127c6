//! Envoy's rate-limit service, version 3, over HTTP/2: the one RLS method, gRPC health and gRPC reflection. Protobuf
//! messages, frames and HPACK are read and written by hand.

mod call;
mod calls;
mod combined_decision;
mod connection;
mod descriptor_facts;
mod file_descriptors;
mod frames;
mod health;
mod hpack;
mod incomplete_calls;
mod protobuf_reader;
#[cfg(test)]
#[path = "../tests/common/rls_reading.rs"]
mod reading;
mod reflection;
mod request_message;
mod response_message;
mod rls_outcome;
mod rls_request;
mod transport;

pub(crate) use calls::GrpcSession;
pub(crate) use combined_decision::{decide_or_fail, decide_request};
pub(crate) use incomplete_calls::IncompleteCalls;
pub(crate) use request_message::unit_of;
pub(crate) use rls_outcome::{CurrentLimit, DescriptorAnswer, RlsOutcome};
pub(crate) use rls_request::{RlsRequest, Undecided};

#[cfg(test)]
mod tests {
    use super::reading::read;
    use crate::seeds::read_all;

    /// The seeds of the fuzz target that are valid messages; the other seeds are invalid.
    const MESSAGES: [&str; 10] = [
        "empty",
        "every-field",
        "longest-number",
        "many-descriptors",
        "not-utf8",
        "one",
        "peek",
        "twice",
        "unit-unknown",
        "unknown-fields",
    ];

    #[test]
    fn seeds_and_what_is_near_them_are_read_or_refused() {
        assert_eq!(read_all("rls", read), MESSAGES);
    }
}

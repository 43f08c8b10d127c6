//! `envoy.service.ratelimit.v3.RateLimitResponse`, Envoy's response.

use std::time::Duration;

use tollgate_engine::facts::Unit;
use tollgate_http::protobuf::{bytes, message, number, varint};

use super::request_message::UNITS;
use super::rls_outcome::{CurrentLimit, DescriptorAnswer, RlsOutcome};

/// The numbers of `RateLimitResponse.Code`.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// Writes a response.
pub(crate) fn write_response(out: &mut Vec<u8>, decided: &RlsOutcome) {
    number(out, 1, code(decided.answer.is_allowed));
    for one in &decided.statuses {
        message(out, 2, |out| status(out, one));
    }
    for (name, value) in &decided.headers {
        message(out, 3, |out| {
            bytes(out, 1, name.as_bytes());
            bytes(out, 2, value.as_bytes());
        });
    }
    if !decided.metadata().is_empty() {
        message(out, 6, |out| {
            for (name, text) in decided.metadata() {
                write_metadata(out, name, &text);
            }
        });
    }
}

/// Whether a response allows the request: the code is its first field.
pub(crate) fn is_allowed(message: &[u8]) -> bool {
    message.starts_with(&[1 << 3, 1])
}

const fn code(is_allowed: bool) -> u64 {
    if is_allowed { OK } else { OVER_LIMIT }
}

fn status(out: &mut Vec<u8>, status: &DescriptorAnswer) {
    number(out, 1, code(status.is_allowed));
    if let Some(limit) = &status.limit {
        message(out, 2, |out| current_limit(out, limit));
    }
    number(out, 3, u64::from(status.remaining));
    if let Some(limit) = &status.limit {
        message(out, 4, |out| duration(out, limit.reset_after));
    }
}

fn current_limit(out: &mut Vec<u8>, limit: &CurrentLimit) {
    number(out, 1, u64::from(limit.requests));
    number(out, 2, limit.unit.map_or(0, unit_number));
    bytes(out, 3, limit.name.as_deref().unwrap_or_default().as_bytes());
}

/// The numbers of `RateLimitResponse.RateLimit.Unit`: those of requests, and then the week.
fn unit_number(unit: Unit) -> u64 {
    let place = UNITS.iter().position(|own| *own == unit);
    place.unwrap_or(UNITS.len()) as u64 + 1
}

/// A `google.protobuf.Duration`, whose maximum is about ten thousand years.
fn duration(out: &mut Vec<u8>, time: Duration) {
    const LONGEST: u64 = 315_576_000_000;
    number(out, 1, time.as_secs().min(LONGEST));
    if time.as_secs() < LONGEST {
        number(out, 2, u64::from(time.subsec_nanos()));
    }
}

/// A text field of a `google.protobuf.Struct`.
fn write_metadata(out: &mut Vec<u8>, name: &str, text: &str) {
    message(out, 1, |out| {
        bytes(out, 1, name.as_bytes());
        message(out, 2, |out| {
            // Written even if it is empty: a `Value` without a kind is invalid.
            varint(out, 3 << 3 | 2);
            varint(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        });
    });
}

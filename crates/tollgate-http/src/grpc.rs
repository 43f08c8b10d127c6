//! Denials of gRPC calls: a status, and details that clients act on.
//!
//! Everything is in header fields, without a body ("trailers only"), so no codec is needed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::denial_body::{DenialBody, title_of};
use crate::protobuf::{bytes, message, number};
use tollgate_core::DenyReason;

/// The field that tells gRPC clients when to retry: in milliseconds, or never if it is negative.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Values of `grpc-status`.
const RESOURCE_EXHAUSTED: u64 = 8;
#[cfg(feature = "guard")]
pub(crate) const INVALID_ARGUMENT: &str = "3";
#[cfg(feature = "guard")]
pub(crate) const INTERNAL: &str = "13";
#[cfg(feature = "guard")]
pub(crate) const UNAUTHENTICATED: &str = "16";
const UNAVAILABLE: u64 = 14;

/// The longest `google.protobuf.Duration`: ten thousand years.
const LONGEST: Duration = Duration::from_secs(315_576_000_000);

/// Whether a request is a call of gRPC, by its `content-type`.
///
/// ```
/// use tollgate_http::grpc;
///
/// assert!(grpc::is_call(b"application/grpc+proto") && grpc::is_call(b"application/grpc"));
/// assert!(!grpc::is_call(b"application/grpc-web") && !grpc::is_call(b"application/json"));
/// ```
pub fn is_call(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    match content_type.split_at_checked(GRPC.len()) {
        Some((kind, rest)) => {
            kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
        }
        None => false,
    }
}

/// The HTTP status that a response means. A gRPC call has the HTTP status 200 even if it failed; if the head of the
/// response has a `grpc-status`, this is the HTTP status with the same meaning.
///
/// ```
/// use tollgate_http::grpc;
///
/// assert_eq!(grpc::http_status(200, Some(b"14")), 503);
/// assert_eq!(grpc::http_status(200, Some(b"0")), 200);
/// assert_eq!(grpc::http_status(404, None), 404);
/// ```
pub const fn http_status(status: u16, grpc_status: Option<&[u8]>) -> u16 {
    match grpc_status {
        None | Some(b"0") => status,
        // Deadline exceeded, resource exhausted, unavailable.
        Some(b"4") => 504,
        Some(b"8") => 429,
        Some(b"14") => 503,
        // Unknown, internal, data loss.
        Some(b"2" | b"13" | b"15") => 500,
        Some(_) => 400,
    }
}

/// Writes the fields of a denial: `grpc-status`, `grpc-message`, the time to wait, and `RetryInfo` and `QuotaFailure`
/// of `google.rpc` as details.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::{DenyReason, DenialBody, grpc};
///
/// let refusal = DenialBody { reason: DenyReason::Rate, limit: "per-user", retry_after: Some(2) };
/// let mut lines = Vec::new();
/// grpc::write(&refusal, Some(Duration::from_millis(1_500)), |name, value| lines.push(format!("{name}: {value}")));
/// assert_eq!(lines[0], "grpc-status: 8");
/// assert_eq!(lines[1], "grpc-message: Too many requests: try again later");
/// assert_eq!(lines[2], "grpc-retry-pushback-ms: 1500");
/// ```
pub fn write(
    refusal: &DenialBody<'_>,
    wait: Option<Duration>,
    mut field: impl FnMut(&'static str, &str),
) {
    let wait = wait.map(|wait| wait.min(LONGEST));
    let code = match refusal.reason {
        DenyReason::Shed | DenyReason::Store => UNAVAILABLE,
        DenyReason::MissingKey => 3,
        _ => RESOURCE_EXHAUSTED,
    };
    let mut digits = itoa::Buffer::new();
    field("grpc-status", digits.format(code));
    field("grpc-message", title_of(refusal.reason));
    field(
        PUSHBACK,
        wait.map_or("-1", |wait| digits.format(millis(wait))),
    );
    let details = STANDARD_NO_PAD.encode(status_details(code, refusal, wait));
    field("grpc-status-details-bin", &details);
}

/// Writes the fields of a call that failed by a mistake of the server or of its client. `message` is public: the
/// client reads it.
#[cfg(feature = "guard")]
pub(crate) fn write_failure(
    code: &'static str,
    message: &str,
    mut field: impl FnMut(&'static str, &str),
) {
    field("grpc-status", code);
    field("grpc-message", message);
}

/// Whole milliseconds, rounded up: a client that retries too early is denied again.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// `google.rpc.Status` as protocol buffers.
fn status_details(code: u64, refusal: &DenialBody<'_>, wait: Option<Duration>) -> Vec<u8> {
    let mut status = Vec::with_capacity(256);
    number(&mut status, 1, code);
    bytes(&mut status, 2, title_of(refusal.reason).as_bytes());
    if let Some(wait) = wait {
        write_detail(&mut status, "RetryInfo", |info| {
            message(info, 1, |delay| {
                number(delay, 1, wait.as_secs());
                number(delay, 2, u64::from(wait.subsec_nanos()));
            });
        });
    }
    if !refusal.limit.is_empty() {
        write_detail(&mut status, "QuotaFailure", |failure| {
            message(failure, 1, |violation| {
                bytes(violation, 1, refusal.limit.as_bytes());
                bytes(violation, 2, refusal.reason.name().as_bytes());
            });
        });
    }
    status
}

/// Appends one detail, a `google.protobuf.Any`.
fn write_detail(status: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
    let kind = format!("type.googleapis.com/google.rpc.{name}");
    message(status, 3, |any| {
        bytes(any, 1, kind.as_bytes());
        message(any, 2, write);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_details() {
        let refusal = DenialBody {
            reason: DenyReason::Quota,
            limit: "daily",
            retry_after: Some(3),
        };
        let wait = Duration::new(2, 500_000_000);
        let found = status_details(8, &refusal, Some(wait));
        let retry = b"\x0A\x28type.googleapis.com/google.rpc.RetryInfo\x12\x0A\x0A\x08\x08\x02\x10\x80\xCA\xB5\xEE\x01";
        let failure = b"\x0A\x2Btype.googleapis.com/google.rpc.QuotaFailure\x12\x10\x0A\x0E\x0A\x05daily\x12\x05quota";
        let title = title_of(refusal.reason).as_bytes();
        let mut expected = vec![0x08, 8, 0x12, u8::try_from(title.len()).expect("short")];
        expected.extend(title);
        for any in [retry.as_slice(), failure] {
            expected.extend([0x1A, u8::try_from(any.len()).expect("short")]);
            expected.extend(any);
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn what_never_passes_is_not_tried_again() {
        let refusal = DenialBody {
            reason: DenyReason::TooLarge,
            limit: "",
            retry_after: None,
        };
        let mut pushback = String::new();
        write(&refusal, None, |name, value| {
            if name == PUSHBACK {
                value.clone_into(&mut pushback);
            }
        });
        assert_eq!(pushback, "-1");
        assert_eq!(millis(Duration::from_nanos(1)), 1);
    }
}

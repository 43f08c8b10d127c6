//! `grpc.health.v1`: the service is healthy until its shutdown begins.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use tokio::time::timeout;
use tollgate_http::protobuf;

use super::call::{self, GrpcStatus, PREFIX};
use super::file_descriptors::FILES;
use super::protobuf_reader::FieldReader;
use crate::decision_service::CounterStore;
use crate::drain::Stage;
use crate::health::Health;
use crate::protocol_errors::{ErrorKind, ErrorSource};
use crate::service::Service;

/// The numbers of `HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;
const SERVICE_UNKNOWN: u64 = 3;

/// An event of a watched status.
enum WatchEvent {
    /// The client left, or the connection closed.
    Left,
    Changed(u64),
    /// The watch ends, as the service closes.
    Closing,
}

/// Answers with the status once.
pub(crate) fn check(health: &Health, body: &[u8]) -> Result<Bytes, GrpcStatus> {
    match status(health, body)? {
        SERVICE_UNKNOWN => Err(GrpcStatus::not_found("no such service")),
        status => Ok(framed(status)),
    }
}

/// Sends the status now and after each change, until the client leaves or the service closes.
pub(crate) async fn watch<B: CounterStore>(
    service: &Service<B>,
    errors: &ErrorSource,
    body: &[u8],
    respond: &mut SendResponse<Bytes>,
) {
    let health = &service.monitor.health;
    let mut told = match status(health, body) {
        Ok(status) => status,
        Err(failed) => {
            // If the response can't be sent, the client has left.
            let _ = call::send_response(respond, Err(failed));
            return;
        }
    };
    let Ok(mut stream) = call::begin_stream(respond) else {
        return;
    };
    let mut next = framed(told);
    loop {
        let time = service.decider.bounds.request_timeout;
        match timeout(time, call::send_message(&mut stream, next)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                errors.record(ErrorKind::Timeout, &"an answer wasn't read in time");
                return stream.send_reset(Reason::CANCEL);
            }
        }
        let event = poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(WatchEvent::Left);
            }
            match status(health, body) {
                Ok(now) if now != told => Poll::Ready(WatchEvent::Changed(now)),
                _ if service.closing.stage() > Stage::Draining => Poll::Ready(WatchEvent::Closing),
                // No waker is needed: the connection polls all calls when the shutdown begins.
                _ => Poll::Pending,
            }
        });
        next = match event.await {
            WatchEvent::Left => return,
            WatchEvent::Changed(now) => {
                told = now;
                framed(now)
            }
            WatchEvent::Closing => {
                let _ = call::end_stream(
                    &mut stream,
                    Err(GrpcStatus::unavailable("the service ends")),
                );
                return;
            }
        };
    }
}

fn status(health: &Health, body: &[u8]) -> Result<u64, GrpcStatus> {
    let mut name = "";
    for field in FieldReader::of(call::parse_message(body)?) {
        if let (1, value) = field.map_err(GrpcStatus::invalid)? {
            name = value.text(1).map_err(GrpcStatus::invalid)?;
        }
    }
    let is_known = name.is_empty() || FILES.services().iter().any(|own| own == name);
    Ok(match is_known {
        false => SERVICE_UNKNOWN,
        true if health.is_ready() => SERVING,
        true => NOT_SERVING,
    })
}

fn framed(status: u64) -> Bytes {
    let mut out = vec![0; PREFIX];
    protobuf::number(&mut out, 1, status);
    call::framed(out)
}

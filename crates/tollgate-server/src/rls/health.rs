//! `grpc.health.v1`: whether a service can be asked. As long as it answers, it can.

use std::future::poll_fn;

use bytes::Bytes;
use h2::server::SendResponse;

use super::call::{self, Failed, PREFIX};
use super::descriptors::FILES;
use super::wire::{self, Fields};

/// The numbers of `HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;
const SERVICE_UNKNOWN: u64 = 3;

/// Tells it once.
pub(crate) fn check(body: &[u8]) -> Result<Bytes, Failed> {
    match status(body)? {
        SERVICE_UNKNOWN => Err(Failed::not_found("no such service")),
        status => Ok(framed(status)),
    }
}

/// Tells it, and stays until the client leaves: there is nothing else to tell.
pub(crate) async fn watch(body: &[u8], respond: &mut SendResponse<Bytes>) {
    let status = match status(body) {
        Ok(status) => status,
        Err(failed) => {
            // If it can't be told, the client has left.
            let _ = call::answer(respond, Err(failed));
            return;
        }
    };
    let Ok(mut stream) = call::begin(respond) else {
        return;
    };
    if stream.send_data(framed(status), false).is_ok() {
        // The client has left, or the connection is over.
        let _ = poll_fn(|cx| stream.poll_reset(cx)).await;
    }
}

fn status(body: &[u8]) -> Result<u64, Failed> {
    let mut service = "";
    for field in Fields::of(call::message(body)?) {
        if let (1, value) = field.map_err(Failed::invalid)? {
            service = value.text(1).map_err(Failed::invalid)?;
        }
    }
    let is_known = service.is_empty() || FILES.services().iter().any(|own| own == service);
    Ok(if is_known { SERVING } else { SERVICE_UNKNOWN })
}

fn framed(status: u64) -> Bytes {
    let mut out = vec![0; PREFIX];
    wire::number(&mut out, 1, status);
    call::framed(out)
}

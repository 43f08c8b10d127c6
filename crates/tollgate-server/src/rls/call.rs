//! One unary gRPC call: a message in, and a message or an error status out.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tollgate_http::grpc;

use super::incomplete_calls::IncompleteCall;

/// The prefix of a message: a compression flag, and the length.
pub(crate) const PREFIX: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The encoding of `grpc-message`: printable ASCII, and percent-encoded UTF-8 for all else.
const TEXT: &AsciiSet = &CONTROLS.add(b'%');
/// gRPC's status code UNIMPLEMENTED.
const UNIMPLEMENTED: u8 = 12;

/// The status of a failed call, by gRPC's codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrpcStatus {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl GrpcStatus {
    pub(crate) fn invalid(why: impl std::fmt::Display) -> Self {
        Self::new(3, why)
    }

    pub(crate) fn too_slow(why: impl std::fmt::Display) -> Self {
        Self::new(4, why)
    }

    pub(crate) fn not_found(why: impl std::fmt::Display) -> Self {
        Self::new(5, why)
    }

    /// The message is longer than the limit.
    pub(crate) fn longer_than(most: usize) -> Self {
        Self::exhausted(format_args!(
            "a message of more than the {most} bytes that are taken"
        ))
    }

    /// A bound is reached.
    pub(crate) fn exhausted(why: impl std::fmt::Display) -> Self {
        Self::new(8, why)
    }

    /// Whether the message is the cause: it is malformed, too long, or compressed.
    pub(crate) const fn is_about_message(&self) -> bool {
        matches!(self.code, 3 | 8 | 12)
    }

    pub(crate) fn unknown(why: impl std::fmt::Display) -> Self {
        Self::new(UNIMPLEMENTED, why)
    }

    pub(crate) fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::new(14, why)
    }

    fn write_fields(&self, fields: &mut HeaderMap) {
        fields.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.code)));
        if let Ok(why) = HeaderValue::try_from(utf8_percent_encode(&self.message, TEXT).to_string())
        {
            fields.insert(GRPC_MESSAGE, why);
        }
        if self.code == UNIMPLEMENTED {
            // A client that compresses learns the encoding to use instead.
            fields.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
        }
    }

    fn new(code: u8, why: impl std::fmt::Display) -> Self {
        let why = why.to_string();
        Self { code, message: why }
    }
}

/// The methods that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    ShouldRateLimit,
    HealthCheck,
    HealthWatch,
    Reflection,
}

impl Method {
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, GrpcStatus> {
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                Ok(Self::ShouldRateLimit)
            }
            "/grpc.health.v1.Health/Check" => Ok(Self::HealthCheck),
            "/grpc.health.v1.Health/Watch" => Ok(Self::HealthWatch),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Ok(Self::Reflection)
            }
            path => Err(GrpcStatus::unknown(format_args!("no method {path:?}"))),
        }
    }
}

/// Whether a request is a gRPC call; other requests get an HTTP error.
pub(crate) fn is_grpc<T>(request: &Request<T>) -> bool {
    let media = request.headers().get(CONTENT_TYPE);
    let is_grpc = media.is_some_and(|media| grpc::is_call(media.as_bytes()));
    request.method() == http::Method::POST && is_grpc
}

/// Checks the size of a call's metadata, as HTTP/2 measures it.
pub(super) fn check_metadata(fields: &HeaderMap, most: usize) -> Result<(), GrpcStatus> {
    let length =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 32;
    let bytes: usize = fields.iter().map(length).sum();
    if bytes <= most {
        return Ok(());
    }
    Err(GrpcStatus::exhausted(format_args!(
        "metadata of more than the {most} bytes that are taken"
    )))
}

/// The timeout of a call; `None` if there is none, or it isn't in gRPC's form.
pub(super) fn timeout(fields: &HeaderMap) -> Option<Duration> {
    let text = fields.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The only message of a body.
pub(crate) fn parse_message(body: &[u8]) -> Result<&[u8], GrpcStatus> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(GrpcStatus::invalid("the body has no message"));
    };
    if parse_length(*prefix, usize::MAX)? != message.len() {
        return Err(GrpcStatus::invalid(
            "the body isn't one message of the length that it says",
        ));
    }
    Ok(message)
}

/// The length of a message, from its prefix.
pub(crate) fn parse_length(prefix: [u8; PREFIX], most: usize) -> Result<usize, GrpcStatus> {
    let [is_compressed, length @ ..] = prefix;
    if is_compressed != 0 {
        return Err(GrpcStatus::unknown(
            "compressed messages aren't understood: send identity",
        ));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > most {
        return Err(GrpcStatus::longer_than(most));
    }
    Ok(length)
}

/// Fills in the prefix of a message that was written behind `PREFIX` empty bytes.
pub(crate) fn framed(mut out: Vec<u8>) -> Bytes {
    let length = u32::try_from(out.len() - PREFIX).unwrap_or(u32::MAX);
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    out.into()
}

/// A response whose client has no window for it yet.
pub(super) struct PendingResponse {
    stream: SendStream<Bytes>,
    framed: Bytes,
}

impl PendingResponse {
    /// Sends the response once there is window, unless its client gives it up.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.stream.capacity() < self.framed.len() {
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(()),
            }
        }
        // Sending fails if the client has left.
        let sent = self
            .stream
            .send_data(std::mem::take(&mut self.framed), false);
        let _ = sent.and_then(|()| end_stream(&mut self.stream, Ok(())));
        Poll::Ready(())
    }

    pub(super) fn reset(mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }
}

/// Sends the outcome of a call. A message is returned if its client has no window for it.
pub(crate) fn send_response(
    respond: &mut SendResponse<Bytes>,
    outcome: Result<Bytes, GrpcStatus>,
) -> Result<Option<PendingResponse>, h2::Error> {
    match outcome {
        Ok(framed) => {
            let mut stream = begin_stream(respond)?;
            stream.reserve_capacity(framed.len());
            if stream.capacity() < framed.len() {
                return Ok(Some(PendingResponse { stream, framed }));
            }
            stream.send_data(framed, false)?;
            end_stream(&mut stream, Ok(())).map(|()| None)
        }
        Err(failed) => {
            let mut response = Response::new(());
            let fields = response.headers_mut();
            fields.insert(CONTENT_TYPE, GRPC);
            failed.write_fields(fields);
            respond.send_response(response, true).map(|_| None)
        }
    }
}

/// Sends a message as fast as the client's window permits, so that at most one message is buffered.
pub(super) async fn send_message(
    stream: &mut SendStream<Bytes>,
    mut framed: Bytes,
) -> Result<(), h2::Error> {
    while !framed.is_empty() {
        stream.reserve_capacity(framed.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.unwrap_or(Err(Reason::CANCEL.into()))?;
        let part = framed.split_to(room.min(framed.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// Ends a response that has messages.
pub(crate) fn end_stream(
    stream: &mut SendStream<Bytes>,
    outcome: Result<(), GrpcStatus>,
) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::with_capacity(1);
    match outcome {
        Ok(()) => drop(trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"))),
        Err(failed) => failed.write_fields(&mut trailers),
    }
    stream.send_trailers(trailers)
}

/// Begins a response that has messages.
pub(crate) fn begin_stream(
    respond: &mut SendResponse<Bytes>,
) -> Result<SendStream<Bytes>, h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    respond.send_response(response, false)
}

/// Rejects a request that isn't gRPC.
pub(crate) fn reject_media_type(respond: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    respond.send_response(response, true).map(drop)
}

/// A message that is being read.
pub(super) struct MessageBody {
    stream: RecvStream,
    bytes: Vec<u8>,
    most: usize,
    /// Bytes whose flow-control window is released only when the message is complete: so all incomplete messages of a
    /// connection together fit into its window.
    unreleased: usize,
}

/// Why a message can't be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The client gave the call up, or disconnected, before the message was complete.
    Reset,
    Failed(GrpcStatus),
}

impl MessageBody {
    pub(super) fn new(stream: RecvStream, most: usize) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
            most: most + PREFIX,
            unreleased: 0,
        }
    }

    /// Reads the available bytes. Ready once the message is complete, or too long.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(error))) => {
                    // A reset after the complete message is ignored: the request counts.
                    let is_left = error.is_io() || (error.is_reset() && error.is_remote());
                    match (is_left, parse_message(&self.bytes)) {
                        (true, Ok(_)) => break,
                        (true, Err(_)) => return Poll::Ready(Err(ReadError::Reset)),
                        (false, _) => {
                            return Poll::Ready(Err(ReadError::Failed(GrpcStatus::invalid(error))));
                        }
                    }
                }
                Poll::Ready(Some(Ok(bytes))) => {
                    let most = self.most - PREFIX;
                    if self.bytes.len() + bytes.len() > self.most {
                        return Poll::Ready(Err(ReadError::Failed(GrpcStatus::longer_than(most))));
                    }
                    self.bytes.extend_from_slice(&bytes);
                    self.unreleased += bytes.len();
                    // A prefix with too large a length fails immediately: the window has no room for all of the
                    // message.
                    if let Some(prefix) = self.bytes.first_chunk::<PREFIX>()
                        && let Err(failed) = parse_length(*prefix, most)
                    {
                        return Poll::Ready(Err(ReadError::Failed(failed)));
                    }
                }
            }
        }
        // Releasing fails if the connection has closed.
        let _ = self.stream.flow_control().release_capacity(self.unreleased);
        Poll::Ready(Ok(()))
    }

    /// Reads like [`poll_read`](Self::poll_read), but fails if all incomplete messages together take too much memory.
    pub(super) fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        waiting: &mut IncompleteCall,
    ) -> Poll<Result<(), ReadError>> {
        let polled = self.poll_read(cx);
        if polled.is_pending() && !waiting.may_keep(self.bytes.len()) {
            let failed = GrpcStatus::exhausted("too much is kept of messages that aren't complete");
            return Poll::Ready(Err(ReadError::Failed(failed)));
        }
        polled
    }

    /// The bytes that were read.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_message() {
        assert_eq!(parse_message(&[0, 0, 0, 0, 2, 7, 8]), Ok(&[7, 8][..]));
        assert_eq!(parse_message(&[0, 0, 0, 0, 0]), Ok(&[][..]));
        for (body, code) in [
            (&[][..], 3),
            (&[0, 0, 0, 0], 3),
            (&[0, 0, 0, 0, 2, 7], 3),
            (&[0, 0, 0, 0, 1, 7, 8], 3),
            (&[1, 0, 0, 0, 1, 7], 12),
        ] {
            assert_eq!(
                parse_message(body).map_err(|failed| failed.code),
                Err(code),
                "{body:?}"
            );
        }
    }

    #[test]
    fn what_is_sent_is_framed() {
        let mut out = vec![0; PREFIX];
        out.extend([7; 300]);
        let framed = framed(out);
        assert_eq!(parse_message(&framed), Ok(&[7; 300][..]));
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        let read = |text: &str| {
            let mut fields = HeaderMap::new();
            fields.insert(GRPC_TIMEOUT, text.parse().unwrap());
            timeout(&fields)
        };
        for (text, nanos) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("20m", 20_000_000),
            ("5u", 5_000),
            ("99999999n", 99_999_999),
            ("0m", 0),
        ] {
            assert_eq!(read(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for wrong in ["", "m", "20", "20 m", "-1S", "123456789m", "1D"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn reasons_are_printable() {
        assert_eq!(
            utf8_percent_encode("50% é\n", TEXT).to_string(),
            "50%25 %C3%A9%0A"
        );
    }
}

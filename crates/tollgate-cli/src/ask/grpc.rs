//! Sends one gRPC call, as Envoy does. The facts are the entries of one descriptor.

use std::io;

use bytes::Bytes;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Duration, Struct};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{AskOptions, ServiceAnswer, service_error};
use crate::policy::FactArg;
use crate::service_client::{ServiceAddress, TIMEOUT, invalid_response};

const METHOD_URL: &str =
    "http://tollgate/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The largest response in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

pub(super) fn query_grpc(
    options: &AskOptions,
    place: &ServiceAddress,
) -> io::Result<ServiceAnswer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let answer = timeout(TIMEOUT, connect_and_call(options, place)).await;
        answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    })
}

async fn connect_and_call(
    options: &AskOptions,
    place: &ServiceAddress,
) -> io::Result<ServiceAnswer> {
    match place {
        ServiceAddress::Tcp { host, port, .. } => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, *port)).await?;
            call_over(stream, options).await
        }
        ServiceAddress::Unix(path) => call_over(UnixStream::connect(path).await?, options).await,
    }
}

async fn call_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    options: &AskOptions,
) -> io::Result<ServiceAnswer> {
    let broken = |error: h2::Error| match error.into_io() {
        Some(error) => error,
        None => invalid_response("it doesn't speak HTTP/2"),
    };
    let (client, connection) = h2::client::handshake(stream).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.map_err(broken)?;
    let request = ::http::Request::post(METHOD_URL)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let (response, mut body) = client.send_request(request, false).map_err(broken)?;
    let sent = body.send_data(grpc_frame(&encode_request(options)), true);
    sent.map_err(broken)?;
    let response = response.await.map_err(broken)?;
    let mut status = grpc_status(response.headers());
    let mut body = response.into_body();
    let mut answer = Vec::new();
    while let Some(bytes) = body.data().await {
        answer.extend(bytes.map_err(broken)?);
        if answer.len() > MAX_RESPONSE_BYTES {
            return Err(invalid_response("its answer is too long"));
        }
    }
    if let Some(trailers) = body.trailers().await.map_err(broken)? {
        status = status.or(grpc_status(&trailers));
    }
    driver.abort();
    match status {
        Some((0, _)) => {}
        Some((code, why)) => return Err(service_error(&format!("{why} (gRPC status {code})"))),
        None => return Err(invalid_response("its answer has no status of gRPC")),
    }
    let message = answer.get(5..);
    let message = message.ok_or_else(|| invalid_response("its answer is empty"))?;
    decode_response(message).ok_or_else(|| invalid_response("its answer is no message of Envoy"))
}

fn grpc_status(fields: &::http::HeaderMap) -> Option<(u32, String)> {
    let text = |name| {
        let value = fields.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let code = text("grpc-status")?.parse().ok()?;
    Some((code, text("grpc-message").unwrap_or_default()))
}

fn grpc_frame(message: &[u8]) -> Bytes {
    let mut framed = vec![0];
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    framed.into()
}

fn encode_request(options: &AskOptions) -> Vec<u8> {
    let entry = |(key, value): (&str, &str)| DescriptorEntry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let entries = options.facts.iter().map(FactArg::pair).map(entry);
    let request = RateLimitRequest {
        domain: options.domain.clone(),
        descriptors: vec![RateLimitDescriptor {
            entries: entries.collect(),
        }],
        hits_addend: u32::try_from(options.cost).unwrap_or(u32::MAX),
    };
    request.encode_to_vec()
}

// Envoy's messages (envoy.service.ratelimit.v3), with only the fields that are used here.

#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    /// OK is 1, and OVER_LIMIT 2.
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, optional, tag = "6")]
    dynamic_metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(message, optional, tag = "2")]
    current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// The names of Envoy's units, by their numbers.
const UNITS: [&str; 8] = [
    "", "second", "minute", "hour", "day", "month", "year", "week",
];

/// The fields of the response, with the same names as over HTTP.
fn decode_response(message: &[u8]) -> Option<ServiceAnswer> {
    let response = RateLimitResponse::decode(message).ok()?;
    let mut told = ServiceAnswer::new();
    for status in response.statuses {
        if let Some(RateLimit {
            requests_per_unit: count,
            unit,
            name,
        }) = status.current_limit
        {
            if !name.is_empty() {
                told.insert("rule".to_owned(), json!(name));
            }
            let unit = usize::try_from(unit).ok().and_then(|unit| UNITS.get(unit));
            let limit = match unit {
                Some(unit) if !unit.is_empty() => json!(format!("{count}/{unit}")),
                _ => json!(count),
            };
            told.insert("limit".to_owned(), limit);
            // A protobuf message omits fields that are 0.
            told.entry("remaining").or_insert(json!(0));
        }
        if status.limit_remaining > 0 {
            told.insert("remaining".to_owned(), json!(status.limit_remaining));
        }
        if let Some(reset) = status.duration_until_reset {
            told.insert("reset_after".to_owned(), json!(reset.seconds));
        }
    }
    for (name, value) in response.dynamic_metadata.unwrap_or_default().fields {
        if let Some(Kind::StringValue(text)) = value.kind {
            told.insert(name, json!(text));
        }
    }
    let code = response.overall_code;
    told.insert("allowed".to_owned(), json!(code == 1));
    (code != 0).then_some(told)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Writes a length-delimited field: tag, length and bytes.
    fn field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
        out.extend([tag << 3 | 2, u8::try_from(bytes.len()).unwrap()]);
        out.extend(bytes);
    }

    #[test]
    fn an_answer_of_envoy_is_read_by_our_names() {
        let (mut limit, mut status, mut message) = (Vec::new(), Vec::new(), Vec::new());
        limit.extend([1 << 3, 10, 2 << 3, 3]);
        field(&mut limit, 3, b"per-user");
        status.extend([1 << 3, 2]);
        field(&mut status, 2, &limit);
        field(&mut status, 4, &[1 << 3, 0xac, 2]);
        message.extend([1 << 3, 2]);
        field(&mut message, 2, &status);
        let mut metadata = Vec::new();
        for (name, text) in [
            ("rule", "per-user"),
            ("reason", "rate"),
            ("limited_by", "10/h"),
        ] {
            let (mut value, mut pair) = (Vec::new(), Vec::new());
            field(&mut value, 3, text.as_bytes());
            field(&mut pair, 1, name.as_bytes());
            field(&mut pair, 2, &value);
            field(&mut metadata, 1, &pair);
        }
        field(&mut message, 6, &metadata);
        let told = Value::Object(decode_response(&message).unwrap()).to_string();
        assert_eq!(
            told,
            r#"{"allowed":false,"limit":"10/hour","limited_by":"10/h","reason":"rate","remaining":0,"reset_after":300,"rule":"per-user"}"#
        );
        assert!(decode_response(b"").is_none() && decode_response(b"\xff").is_none());
    }
}

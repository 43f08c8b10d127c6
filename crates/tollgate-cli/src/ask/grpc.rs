//! One call by gRPC, as Envoy asks: the facts are the entries of one descriptor.

use std::io;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{Ask, Told, told_by_service};
use crate::client::{PATIENCE, Place, garbled};
use crate::policy::Fact;

const CALL: &str = "http://tollgate/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The most bytes of an answer.
const MOST: usize = 1 << 20;

pub(super) fn ask(options: &Ask, place: &Place) -> io::Result<Told> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let answer = timeout(PATIENCE, call(options, place)).await;
        answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    })
}

async fn call(options: &Ask, place: &Place) -> io::Result<Told> {
    match place {
        Place::Tcp { host, port, .. } => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, *port)).await?;
            call_on(stream, options).await
        }
        Place::Unix(path) => call_on(UnixStream::connect(path).await?, options).await,
    }
}

async fn call_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    options: &Ask,
) -> io::Result<Told> {
    let broken = |error: h2::Error| match error.into_io() {
        Some(error) => error,
        None => garbled("it doesn't speak HTTP/2"),
    };
    let (client, connection) = h2::client::handshake(stream).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.map_err(broken)?;
    let request = ::http::Request::post(CALL)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let (response, mut body) = client.send_request(request, false).map_err(broken)?;
    let sent = body.send_data(framed(&message(options)), true);
    sent.map_err(broken)?;
    let response = response.await.map_err(broken)?;
    let mut status = status(response.headers());
    let mut body = response.into_body();
    let mut answer = Vec::new();
    while let Some(bytes) = body.data().await {
        answer.extend(bytes.map_err(broken)?);
        if answer.len() > MOST {
            return Err(garbled("its answer is too long"));
        }
    }
    if let Some(trailers) = body.trailers().await.map_err(broken)? {
        status = status.or(self::status(&trailers));
    }
    driver.abort();
    match status {
        Some((0, _)) => {}
        Some((code, why)) => return Err(told_by_service(&format!("{why} (gRPC status {code})"))),
        None => return Err(garbled("its answer has no status of gRPC")),
    }
    let message = answer
        .get(5..)
        .ok_or_else(|| garbled("its answer is empty"))?;
    told(message).ok_or_else(|| garbled("its answer is no message of Envoy"))
}

fn status(fields: &::http::HeaderMap) -> Option<(u32, String)> {
    let text = |name| {
        let value = fields.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let code = text("grpc-status")?.parse().ok()?;
    Some((code, text("grpc-message").unwrap_or_default()))
}

fn framed(message: &[u8]) -> Bytes {
    let mut framed = vec![0];
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    framed.into()
}

/// A `RateLimitRequest`: domain, one descriptor, and what it counts as.
fn message(options: &Ask) -> Vec<u8> {
    let mut entries = Vec::new();
    for (name, value) in options.facts.iter().map(Fact::pair) {
        let mut entry = Vec::new();
        field(&mut entry, 1, name.as_bytes());
        field(&mut entry, 2, value.as_bytes());
        field(&mut entries, 1, &entry);
    }
    let mut message = Vec::new();
    field(&mut message, 1, options.domain.as_bytes());
    field(&mut message, 2, &entries);
    message.push(3 << 3);
    number(&mut message, options.cost.min(u64::from(u32::MAX)));
    message
}

fn field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag << 3 | 2);
    number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

/// One field of a message: its tag, and a number or bytes.
enum Part<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// The fields of a message; none where it can't be read.
fn parts(mut rest: &[u8]) -> Option<Vec<(u64, Part<'_>)>> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let key = take_number(&mut rest)?;
        let part = match key & 7 {
            0 => Part::Number(take_number(&mut rest)?),
            2 => {
                let length = usize::try_from(take_number(&mut rest)?).ok()?;
                let (bytes, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Part::Bytes(bytes)
            }
            _ => return None,
        };
        parts.push((key >> 3, part));
    }
    Some(parts)
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

const UNITS: [&str; 8] = [
    "", "second", "minute", "hour", "day", "month", "year", "week",
];

/// A `RateLimitResponse`, by the names that the other protocols use.
fn told(message: &[u8]) -> Option<Told> {
    let mut told = Told::new();
    // OK is 1, and OVER_LIMIT 2.
    let mut code = 0;
    for (tag, part) in parts(message)? {
        match (tag, part) {
            (1, Part::Number(overall)) => code = overall,
            (2, Part::Bytes(status)) => status_of(status, &mut told)?,
            (6, Part::Bytes(metadata)) => metadata_of(metadata, &mut told)?,
            _ => {}
        }
    }
    told.insert("allowed".to_owned(), json!(code == 1));
    (code != 0).then_some(told)
}

/// What one descriptor is told.
fn status_of(status: &[u8], told: &mut Told) -> Option<()> {
    for (tag, part) in parts(status)? {
        match (tag, part) {
            (2, Part::Bytes(limit)) => {
                let (mut count, mut unit) = (0, 0);
                for (tag, part) in parts(limit)? {
                    match (tag, part) {
                        (1, Part::Number(own)) => count = own,
                        (2, Part::Number(own)) => unit = own,
                        (3, Part::Bytes(name)) => {
                            let name = String::from_utf8_lossy(name).into_owned();
                            told.insert("rule".to_owned(), Value::String(name));
                        }
                        _ => {}
                    }
                }
                let unit = usize::try_from(unit).ok().and_then(|unit| UNITS.get(unit));
                let limit = match unit {
                    Some(unit) if !unit.is_empty() => json!(format!("{count}/{unit}")),
                    _ => json!(count),
                };
                told.insert("limit".to_owned(), limit);
                // A message leaves out what is 0.
                told.entry("remaining").or_insert(json!(0));
            }
            (3, Part::Number(left)) => {
                told.insert("remaining".to_owned(), json!(left));
            }
            (4, Part::Bytes(reset)) => {
                let seconds = parts(reset)?
                    .into_iter()
                    .find_map(|(tag, part)| match part {
                        Part::Number(seconds) if tag == 1 => Some(seconds),
                        _ => None,
                    });
                told.insert("reset_after".to_owned(), json!(seconds.unwrap_or(0)));
            }
            _ => {}
        }
    }
    Some(())
}

/// The texts of a `google.protobuf.Struct`: the rule, and why it denied.
fn metadata_of(metadata: &[u8], told: &mut Told) -> Option<()> {
    for (_, field) in parts(metadata)? {
        let Part::Bytes(field) = field else { continue };
        let (mut name, mut text) = (None, None);
        for (tag, part) in parts(field)? {
            match (tag, part) {
                (1, Part::Bytes(own)) => name = Some(own),
                (2, Part::Bytes(value)) => {
                    text = parts(value)?.into_iter().find_map(|part| match part {
                        (3, Part::Bytes(text)) => Some(text),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        if let (Some(name), Some(text)) = (name, text) {
            let [name, text] = [name, text].map(|own| String::from_utf8_lossy(own).into_owned());
            told.insert(name, Value::String(text));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let told = Value::Object(told(&message).unwrap()).to_string();
        assert_eq!(
            told,
            r#"{"allowed":false,"limit":"10/hour","limited_by":"10/h","reason":"rate","remaining":0,"reset_after":300,"rule":"per-user"}"#
        );
        assert!(super::told(b"").is_none() && super::told(b"\xff").is_none());
    }
}

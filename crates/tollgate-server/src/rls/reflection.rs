//! `grpc.reflection`: a stream of queries about the services. Each is answered before the next is read.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use tokio::time::timeout;
use tollgate_http::protobuf;

use super::call::{self, GrpcStatus, PREFIX};
use super::file_descriptors::FILES;
use super::protobuf_reader::{FieldReader, ProtobufError};
use crate::request_bounds::RequestBounds;

/// gRPC's status code NOT_FOUND.
const NOT_FOUND: u64 = 5;

/// A client's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReflectionQuery<'m> {
    File(&'m str),
    Symbol(&'m str),
    /// Extensions; there are none.
    Extension,
    Services,
    /// A query that isn't known.
    Unknown,
}

/// The queries of a stream.
struct QueryStream<'b> {
    stream: RecvStream,
    bytes: Vec<u8>,
    bounds: &'b RequestBounds,
}

/// Answers queries until the client closes its side of the stream.
pub(crate) async fn serve(
    bounds: &RequestBounds,
    asks: RecvStream,
    respond: &mut SendResponse<Bytes>,
) {
    let Ok(mut answers) = call::begin_stream(respond) else {
        return;
    };
    let mut questions = QueryStream {
        stream: asks,
        bytes: Vec::new(),
        bounds,
    };
    let ended = answer_queries(&mut questions, &mut answers).await;
    if call::end_stream(&mut answers, ended).is_err() {
        answers.send_reset(Reason::CANCEL);
    }
}

async fn answer_queries(
    questions: &mut QueryStream<'_>,
    answers: &mut SendStream<Bytes>,
) -> Result<(), GrpcStatus> {
    while let Some(question) = questions.next().await? {
        let answer = answer(&question).map_err(GrpcStatus::invalid)?;
        let time = questions.bounds.request_timeout;
        let sent = timeout(time, call::send_message(answers, answer)).await;
        let sent = sent.map_err(|_| slow("the answer wasn't read", time))?;
        sent.map_err(GrpcStatus::invalid)?;
    }
    Ok(())
}

fn slow(what: &str, time: Duration) -> GrpcStatus {
    let seconds = time.as_secs();
    GrpcStatus::too_slow(format_args!("{what} within {seconds} s"))
}

impl QueryStream<'_> {
    /// The next message; `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, GrpcStatus> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            // Between queries a client may be idle for long; a query that has begun has the request timeout.
            let (time, what) = match self.bytes.len() {
                0 => (self.bounds.idle_timeout, "nothing was asked"),
                _ => (self.bounds.request_timeout, "the message wasn't sent"),
            };
            let data = timeout(time, poll_fn(|cx| self.stream.poll_data(cx))).await;
            match data.map_err(|_| slow(what, time))? {
                Some(Ok(bytes)) => {
                    self.bytes.extend_from_slice(&bytes);
                    // Releasing fails if the connection has closed, which the next read shows.
                    let _ = self.stream.flow_control().release_capacity(bytes.len());
                }
                Some(Err(error)) => return Err(GrpcStatus::invalid(error)),
                None if self.bytes.is_empty() => return Ok(None),
                None => return Err(GrpcStatus::invalid("the stream ends inside a message")),
            }
        }
    }

    /// Takes a message that has arrived completely.
    fn take(&mut self) -> Result<Option<Vec<u8>>, GrpcStatus> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = call::parse_length(*prefix, self.bounds.request_bytes)?;
        let end = PREFIX + length;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let rest = self.bytes.split_off(end);
        let mut message = std::mem::replace(&mut self.bytes, rest);
        message.drain(..PREFIX);
        Ok(Some(message))
    }
}

impl<'m> ReflectionQuery<'m> {
    fn read(message: &'m [u8]) -> Result<Self, ProtobufError> {
        let mut asked = Self::Unknown;
        for field in FieldReader::of(message) {
            asked = match field? {
                (3, value) => Self::File(value.text(3)?),
                (4, value) => Self::Symbol(value.text(4)?),
                (5 | 6, _) => Self::Extension,
                (7, _) => Self::Services,
                _ => asked,
            };
        }
        Ok(asked)
    }
}

/// A `ServerReflectionResponse`, which repeats the query.
fn answer(question: &[u8]) -> Result<Bytes, ProtobufError> {
    let asked = ReflectionQuery::read(question)?;
    let mut out = vec![0; PREFIX];
    protobuf::bytes(&mut out, 2, question);
    match asked {
        ReflectionQuery::File(name) => file(&mut out, FILES.named(name), "file", name),
        ReflectionQuery::Symbol(name) => {
            // Some clients begin full names with a dot.
            let full = name.strip_prefix('.').unwrap_or(name);
            file(&mut out, FILES.containing(full), "symbol", name);
        }
        ReflectionQuery::Services => protobuf::message(&mut out, 6, |out| {
            for name in FILES.services() {
                protobuf::message(out, 1, |out| protobuf::bytes(out, 1, name.as_bytes()));
            }
        }),
        ReflectionQuery::Extension => write_error(&mut out, NOT_FOUND, "there are no extensions"),
        ReflectionQuery::Unknown => write_error(&mut out, 12, "a question that isn't known here"),
    }
    Ok(call::framed(out))
}

fn file(out: &mut Vec<u8>, found: Option<&[u8]>, kind: &str, name: &str) {
    match found {
        Some(file) => protobuf::message(out, 4, |out| protobuf::bytes(out, 1, file)),
        None => write_error(out, NOT_FOUND, &format!("no {kind} {name:?}")),
    }
}

fn write_error(out: &mut Vec<u8>, code: u64, why: &str) {
    protobuf::message(out, 7, |out| {
        protobuf::number(out, 1, code);
        protobuf::bytes(out, 2, why.as_bytes());
    });
}

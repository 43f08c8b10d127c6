//! A client of each protocol with many concurrent requests, which checks the answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::runtime::Runtime;

use crate::kit::LONG;

/// A question: what the request is known by, as `key=k17`.
pub(super) type Fact<'f> = (&'f str, &'f str);

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) is_allowed: bool,
    /// The burst of the limit, as it was reported.
    pub(super) limit: u64,
}

/// The connection of a client.
pub(super) trait Client: Send {
    /// Sends all requests in one write; the responses come in the same order.
    fn ask(&mut self, questions: &[Fact<'_>]) -> Vec<Answer>;
}

/// Connects to the listener of a protocol: `http`, `grpc` or `resp`.
pub(super) fn connect(protocol: &str, address: &str) -> Box<dyn Client> {
    match protocol {
        "http" => Box::new(Http(stream(address))),
        "resp" => Box::new(Resp(stream(address))),
        _ => Box::new(Grpc::connect(address)),
    }
}

fn stream(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("a flag");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    BufReader::new(stream)
}

fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line");
    assert!(line.ends_with("\r\n"), "closed in the middle: {line:?}");
    line.truncate(line.len() - 2);
    line
}

struct Http(BufReader<TcpStream>);

impl Client for Http {
    fn ask(&mut self, questions: &[Fact<'_>]) -> Vec<Answer> {
        let mut all = String::new();
        for (name, value) in questions {
            let body = format!(r#"{{"facts":{{"{name}":"{value}"}}}}"#);
            let length = body.len();
            all += &format!(
                "POST /v1/check HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            );
        }
        self.0.get_mut().write_all(all.as_bytes()).expect("written");
        questions.iter().map(|_| self.answer()).collect()
    }
}

impl Http {
    fn answer(&mut self) -> Answer {
        let status = line(&mut self.0);
        let mut length = 0;
        loop {
            let field = line(&mut self.0);
            if field.is_empty() {
                break;
            }
            if let Some(text) = field.strip_prefix("content-length: ") {
                length = text.parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let is_allowed = body["allowed"].as_bool();
        let limit = body["limit"].as_u64();
        let answer = is_allowed.zip(limit);
        let (is_allowed, limit) = answer.unwrap_or_else(|| panic!("{status}: {body}"));
        let expect = if is_allowed { "200" } else { "429" };
        assert_eq!(status.split(' ').nth(1), Some(expect), "{body}");
        Answer { is_allowed, limit }
    }
}

struct Resp(BufReader<TcpStream>);

impl Client for Resp {
    fn ask(&mut self, questions: &[Fact<'_>]) -> Vec<Answer> {
        let mut all = String::new();
        for (name, value) in questions {
            all += &format!("TG.CHECK {name}={value}\r\n");
        }
        self.0.get_mut().write_all(all.as_bytes()).expect("written");
        questions.iter().map(|_| self.answer()).collect()
    }
}

impl Resp {
    fn answer(&mut self) -> Answer {
        let mut parts = Vec::new();
        self.read(&mut parts);
        let after = |name: &str| {
            let place = parts.iter().position(|part| part == name);
            let value = place.and_then(|place| parts.get(place + 1)?.parse::<u64>().ok());
            value.unwrap_or_else(|| panic!("no {name} in {parts:?}"))
        };
        Answer {
            is_allowed: after("allowed") == 1,
            limit: after("limit"),
        }
    }

    /// The scalars of one reply, in their order.
    fn read(&mut self, parts: &mut Vec<String>) {
        let head = line(&mut self.0);
        let (kind, rest) = head.split_at(1);
        match kind {
            "*" => (0..rest.parse().expect("a count")).for_each(|_: u32| self.read(parts)),
            "$" if rest == "-1" => parts.push(String::new()),
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut text).expect("text");
                text.truncate(text.len() - 2);
                parts.push(String::from_utf8(text).expect("text"));
            }
            ":" => parts.push(rest.to_owned()),
            _ => panic!("{head}"),
        }
    }
}

struct Grpc {
    runtime: Runtime,
    client: SendRequest<Bytes>,
}

impl Grpc {
    fn connect(address: &str) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await;
            let stream = stream.expect("a connection");
            stream.set_nodelay(true).expect("a flag");
            let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            client
        });
        Self { runtime, client }
    }
}

impl Client for Grpc {
    fn ask(&mut self, questions: &[Fact<'_>]) -> Vec<Answer> {
        let client = &self.client;
        self.runtime.block_on(async {
            let mut calls = Vec::with_capacity(questions.len());
            for question in questions {
                let mut client = client.clone().ready().await.expect("room");
                let request = http::Request::post(
                    "http://soak/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                )
                .header("content-type", "application/grpc");
                let request = request.body(()).expect("a request");
                let (answer, mut say) = client.send_request(request, false).expect("a call");
                say.send_data(asked(*question), true).expect("sent");
                calls.push(answer);
            }
            let mut answers = Vec::with_capacity(calls.len());
            for call in calls {
                let mut body = call.await.expect("an answer").into_body();
                let mut message = Vec::new();
                while let Some(part) = body.data().await {
                    let part = part.expect("a part");
                    let _ = body.flow_control().release_capacity(part.len());
                    message.extend_from_slice(&part);
                }
                let fields = body.trailers().await.expect("an end");
                let status = fields.as_ref().and_then(|fields| fields.get("grpc-status"));
                assert_eq!(
                    status.map(|status| status.as_bytes()),
                    Some(&b"0"[..]),
                    "{fields:?}"
                );
                answers.push(answered(&message));
            }
            answers
        })
    }
}

/// A field of a message: its number, and bytes that are shorter than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("short");
    assert!(length < 128, "longer than this writes");
    [&[number << 3 | 2, length], bytes].concat()
}

/// Envoy's question with one descriptor of one entry, in its frame.
fn asked((name, value): Fact<'_>) -> Bytes {
    let entry = [field(1, name.as_bytes()), field(2, value.as_bytes())].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, b"soak"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

/// The numbers of a message, and what is within it: all that is needed is shorter than 128 bytes, or a varint.
fn fields(mut message: &[u8]) -> Vec<(u8, u64, &[u8])> {
    let mut all = Vec::new();
    while let [tag, rest @ ..] = message {
        let (number, rest) = varint(rest);
        let (number, inner, rest) = match tag & 7 {
            0 => (number, &[][..], rest),
            2 => {
                let (inner, rest) = rest.split_at(usize::try_from(number).expect("a length"));
                (0, inner, rest)
            }
            other => panic!("a field of kind {other}"),
        };
        all.push((tag >> 3, number, inner));
        message = rest;
    }
    all
}

fn varint(bytes: &[u8]) -> (u64, &[u8]) {
    let end = bytes
        .iter()
        .position(|byte| byte & 0x80 == 0)
        .expect("an end");
    let (own, rest) = bytes.split_at(end + 1);
    let low = |number: u64, byte: &u8| number << 7 | u64::from(byte & 0x7f);
    (own.iter().rev().fold(0, low), rest)
}

/// Envoy's answer, in its frame: `overall_code`, and `requests_per_unit` of the status' `current_limit`.
fn answered(framed: &[u8]) -> Answer {
    let message = &framed[5..];
    let number = |fields: &[(u8, u64, &[u8])], number: u8| {
        let found = fields.iter().find(|field| field.0 == number);
        found.map_or(0, |field| field.1)
    };
    let within = |fields: &[(u8, u64, &'_ [u8])], number: u8| {
        let found = fields.iter().find(|field| field.0 == number);
        found.map_or(Vec::new(), |field| field.2.to_vec())
    };
    let answer = fields(message);
    let status = within(&answer, 2);
    let limit = within(&fields(&status), 2);
    Answer {
        is_allowed: number(&answer, 1) == 1,
        limit: number(&fields(&limit), 1),
    }
}

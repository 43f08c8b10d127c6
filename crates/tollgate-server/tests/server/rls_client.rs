//! A gRPC client over plain HTTP/2, whose messages are bytes, or JSON by descriptors.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;

use crate::kit::Running;

pub(crate) const SHOULD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A connection.
pub(crate) struct Grpc<'r> {
    running: &'r Running,
    client: SendRequest<Bytes>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) code: u8,
    pub(crate) why: String,
}

/// A call with many messages on both sides.
pub(crate) struct Talk<'r> {
    running: &'r Running,
    say: SendStream<Bytes>,
    hear: RecvStream,
    heard: BytesMut,
}

/// A message in its frame.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
    framed.extend(message);
    framed.into()
}

/// The message of a call's status; `None` without a status.
fn status(fields: &HeaderMap) -> Option<Result<(), Failed>> {
    let text = |name| {
        let value = fields.get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let code = text("grpc-status")?.parse().expect("a number");
    let why = text("grpc-message").unwrap_or_default();
    Some(if code == 0 {
        Ok(())
    } else {
        Err(Failed { code, why })
    })
}

impl<'r> Grpc<'r> {
    pub(crate) fn to(running: &'r Running) -> Self {
        Self::at(running, running.grpc())
    }

    /// The same where the service may be ending.
    pub(crate) fn at(running: &'r Running, address: SocketAddr) -> Self {
        let client = running.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await;
            let stream = stream.expect("a connection");
            stream.set_nodelay(true).expect("a flag");
            let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            client
        });
        Self { running, client }
    }

    /// Begins a call, whose message is still to come.
    pub(crate) fn begin(&mut self, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
        self.begin_with(path, &[])
    }

    /// The same with metadata.
    pub(crate) fn begin_with(
        &mut self,
        path: &str,
        metadata: &[(&str, &str)],
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let client = self.client.clone();
        let mut client = self.running.block_on(client.ready()).expect("room");
        let asked = http::Request::post(format!("http://service{path}"))
            .header("content-type", "application/grpc");
        let with_all = metadata
            .iter()
            .fold(asked, |asked, (name, value)| asked.header(*name, *value));
        let asked = with_all.body(()).expect("a request");
        client.send_request(asked, false).expect("sent")
    }

    /// Calls a method with one message and one answer.
    pub(crate) fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, Failed> {
        let (response, mut send) = self.begin(path);
        // A method that there isn't is answered before its message comes.
        let _ = send.send_data(framed(message), true);
        self.answer(response)
    }

    /// Waits for the answer of a call that was begun.
    pub(crate) fn answer(&self, response: ResponseFuture) -> Result<Vec<u8>, Failed> {
        self.running.block_on(async {
            // One that never comes fails the test.
            let long = std::time::Duration::from_secs(60);
            let response = tokio::time::timeout(long, response).await;
            let response = response.expect("an answer in time").expect("an answer");
            let early = status(response.headers());
            let mut body = response.into_body();
            let mut answer = Vec::new();
            while let Some(bytes) = body.data().await {
                answer.extend(bytes.expect("data"));
            }
            let trailers = body.trailers().await.expect("an end");
            let late = trailers.as_ref().and_then(status);
            early.or(late).expect("a status")?;
            assert_eq!(framed(&answer[5..]), answer, "one message in its frame");
            Ok(answer.split_off(5))
        })
    }

    /// The same with messages as JSON, by the descriptors of a method.
    pub(crate) fn call_json(
        &mut self,
        pool: &DescriptorPool,
        (service, method): (&str, &str),
        message: &str,
    ) -> Result<Value, Failed> {
        let service = pool.get_service_by_name(service).expect("a service");
        let path = format!("/{}/{method}", service.full_name());
        let method = service.methods().find(|own| own.name() == method);
        let method = method.expect("a method");
        let mut json = serde_json::Deserializer::from_str(message);
        let message = DynamicMessage::deserialize(method.input(), &mut json)
            .unwrap_or_else(|error| panic!("{message}: {error}"));
        let answer = self.call(&path, &message.encode_to_vec())?;
        let answer = DynamicMessage::decode(method.output(), answer.as_slice());
        Ok(serde_json::to_value(answer.expect("a message")).expect("JSON"))
    }

    /// Begins a call with many messages.
    pub(crate) fn talk(&mut self, path: &str) -> Talk<'r> {
        let (response, say) = self.begin(path);
        let response = self.running.block_on(response).expect("an answer");
        assert_eq!(status(response.headers()), None);
        Talk {
            running: self.running,
            say,
            hear: response.into_body(),
            heard: BytesMut::new(),
        }
    }
}

impl Talk<'_> {
    /// Says any bytes.
    pub(crate) fn say(&mut self, bytes: impl Into<Bytes>) {
        self.say.send_data(bytes.into(), false).expect("sent");
    }

    /// Says that this was all.
    pub(crate) fn end(&mut self) {
        self.say.send_data(Bytes::new(), true).expect("sent");
    }

    /// The next message, or how the call ended.
    pub(crate) fn hear(&mut self) -> Result<Vec<u8>, Result<(), Failed>> {
        loop {
            if let Some(prefix) = self.heard.first_chunk::<5>() {
                let [_, length @ ..] = *prefix;
                let length = 5 + usize::try_from(u32::from_be_bytes(length)).expect("a length");
                if self.heard.len() >= length {
                    return Ok(self.heard.split_to(length)[5..].to_vec());
                }
            }
            match self.running.block_on(self.hear.data()) {
                Some(bytes) => {
                    let bytes = bytes.expect("data");
                    self.heard.extend_from_slice(&bytes);
                    let released = self.hear.flow_control().release_capacity(bytes.len());
                    released.expect("an open stream");
                }
                None => {
                    let trailers = self.running.block_on(self.hear.trailers());
                    let trailers = trailers.expect("an end").expect("trailers");
                    return Err(status(&trailers).expect("a status"));
                }
            }
        }
    }
}

//! One connection of HTTP/2: calls that are whole when they are read are answered at once, without a task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::call::{self, Failed, Method, PREFIX};
use super::decide::{Question, Undecided, decide};
use super::quiet::{Quiet, Then};
use super::request::Request as Asked;
use super::{answer, health, reflect};
use crate::service::{Service, Store};

/// A call that isn't over.
type Calls = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// What is next on a connection.
enum Next {
    /// Some calls have come.
    Calls,
    /// Nothing has come for long.
    Quiet(Then),
    Ended,
    Failed(h2::Error),
}

/// A body that is being read.
struct Body {
    stream: RecvStream,
    bytes: Vec<u8>,
    most: usize,
}

/// Serves a connection until one of both sides ends it, or nothing has happened on it for long.
pub(crate) async fn serve<B: Store, S>(stream: S, service: Arc<Service<B>>) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let bounds = &service.bounds;
    let small = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(bounds.streams)
        .max_header_list_size(small(bounds.head_bytes))
        .initial_window_size(small(bounds.request_bytes + PREFIX).max(65_535))
        .initial_connection_window_size(1 << 20);
    let handshake = timeout(bounds.request_time, builder.handshake::<S, Bytes>(stream));
    let Ok(connection) = handshake.await else {
        return Ok(());
    };
    let mut connection = connection?;
    let mut calls = Calls::new();
    let mut quiet = Quiet::new(connection.ping_pong(), bounds);
    loop {
        let mut accepted = Vec::new();
        let next = poll_fn(|cx| {
            while let Poll::Ready(Some(())) = calls.poll_next_unpin(cx) {}
            // All that has come is taken before anything is answered: each look for more writes what was answered
            // before, and so all answers leave in one write.
            let ended = loop {
                match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok(one))) => accepted.push(one),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Next::Failed(error)),
                    Poll::Ready(None) => break true,
                    Poll::Pending => break false,
                }
            };
            match (accepted.is_empty(), ended) {
                (false, _) => Poll::Ready(Next::Calls),
                (true, true) => Poll::Ready(Next::Ended),
                (true, false) => quiet.poll(cx, calls.is_empty()).map(Next::Quiet),
            }
        });
        match next.await {
            Next::Calls => {
                for (request, respond) in accepted {
                    begin(&service, &mut calls, request, respond).await;
                }
                quiet.heard();
            }
            Next::Ended | Next::Quiet(Then::Close) => return Ok(()),
            Next::Quiet(Then::SayGoodbye) => connection.graceful_shutdown(),
            Next::Failed(error) => return Err(error),
        }
    }
}

/// Answers a call whose message is there, or lets it wait for the rest among the others.
async fn begin<B: Store>(
    service: &Arc<Service<B>>,
    calls: &mut Calls,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    // Where an answer can't be sent, the client has reset the stream. Others of its connection go on.
    if !call::is_grpc(&request) {
        let _ = call::refuse(&mut respond);
        return;
    }
    let method = match Method::of(&request) {
        Ok(method) => method,
        Err(failed) => return drop(call::answer(&mut respond, Err(failed))),
    };
    if method == Method::Reflection {
        let service = Arc::clone(service);
        calls.push(Box::pin(async move {
            reflect::serve(&service.bounds, request.into_body(), &mut respond).await;
        }));
        return;
    }
    let mut body = Body {
        stream: request.into_body(),
        bytes: Vec::new(),
        most: service.bounds.request_bytes + PREFIX,
    };
    let read = poll_fn(|cx| Poll::Ready(body.poll_read(cx))).await;
    if let (Poll::Ready(read), Method::ShouldRateLimit, true) = (&read, method, B::IS_HERE) {
        let outcome = match read {
            Ok(()) if service.engine.lets_wait() => None,
            Ok(()) => Some(should_rate_limit(service, &body.bytes).await),
            Err(failed) => Some(Err(failed.clone())),
        };
        if let Some(outcome) = outcome {
            return drop(call::answer(&mut respond, outcome));
        }
    }
    calls.push(Box::pin(finish(Arc::clone(service), method, body, respond)));
}

/// What a body asks, decided and framed.
async fn should_rate_limit<B: Store>(service: &Service<B>, body: &[u8]) -> Result<Bytes, Failed> {
    let asked = Asked::read(call::message(body)?).map_err(Failed::invalid)?;
    let question = Question {
        domain: asked.domain,
        descriptors: &asked.descriptors(),
        hits_addend: asked.hits_addend,
    };
    let decided = decide(service, &question).await.map_err(|why| match why {
        Undecided::Invalid(_) => Failed::invalid(why),
        Undecided::Unavailable(_) => Failed::unavailable(why),
        Undecided::Full(_) => Failed::exhausted(why),
    })?;
    let mut out = Vec::with_capacity(128);
    out.extend([0; PREFIX]);
    answer::write(&mut out, &decided);
    Ok(call::framed(out))
}

/// Reads what is missing of a call, and answers it, unless its client gives it up before.
async fn finish<B: Store>(
    service: Arc<Service<B>>,
    method: Method,
    body: Body,
    mut respond: SendResponse<Bytes>,
) {
    let mut outcome = pin!(outcome(&service, method, body));
    let outcome = poll_fn(|cx| match respond.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => outcome.as_mut().poll(cx).map(Some),
    });
    match outcome.await {
        None => {}
        Some(Outcome::Answer(outcome)) => {
            let sent = call::answer(&mut respond, outcome);
            if sent.is_err() {
                respond.send_reset(Reason::CANCEL);
            }
        }
        Some(Outcome::Watch(body)) => health::watch(&body, &mut respond).await,
    }
}

/// What comes of a call that has one message.
enum Outcome {
    Answer(Result<Bytes, Failed>),
    /// It goes on, by the message that began it.
    Watch(Vec<u8>),
}

async fn outcome<B: Store>(service: &Service<B>, method: Method, mut body: Body) -> Outcome {
    let time = service.bounds.request_time;
    let read = timeout(time, poll_fn(|cx| body.poll_read(cx))).await;
    Outcome::Answer(match read {
        Err(_) => {
            let seconds = time.as_secs();
            Err(Failed::too_slow(format_args!(
                "the message wasn't sent within {seconds} s"
            )))
        }
        Ok(Err(failed)) => Err(failed),
        Ok(Ok(())) => match method {
            Method::ShouldRateLimit => should_rate_limit(service, &body.bytes).await,
            Method::HealthCheck => health::check(&body.bytes),
            Method::HealthWatch => return Outcome::Watch(body.bytes),
            Method::Reflection => Err(Failed::unknown("this method has a stream of messages")),
        },
    })
}

impl Body {
    /// Reads what is there. Ready once that is all, or more than is taken.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Failed::invalid(error)));
                }
                Poll::Ready(Some(Ok(bytes))) => {
                    if self.bytes.len() + bytes.len() > self.most {
                        return Poll::Ready(Err(Failed::longer_than(self.most - PREFIX)));
                    }
                    self.bytes.extend_from_slice(&bytes);
                    // What was read makes room for more; it fails if the connection is over.
                    let _ = self.stream.flow_control().release_capacity(bytes.len());
                }
            }
        }
    }
}

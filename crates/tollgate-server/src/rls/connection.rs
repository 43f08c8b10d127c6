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
use tokio::time::{sleep, timeout};

use super::call::{self, Failed, Method, PREFIX};
use super::decide::{Question, Undecided, decide};
use super::request::Request as Asked;
use super::{answer, health, reflect};
use crate::service::{Service, Store};

/// A call that isn't over.
type Calls = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

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
    let mut idle = pin!(sleep(bounds.idle_time));
    loop {
        let next = poll_fn(|cx| {
            while let Poll::Ready(Some(())) = calls.poll_next_unpin(cx) {}
            if let Poll::Ready(next) = connection.poll_accept(cx) {
                return Poll::Ready(Some(next));
            }
            if calls.is_empty() && idle.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        });
        match next.await {
            Some(Some(accepted)) => {
                let (request, respond) = accepted?;
                begin(&service, &mut calls, request, respond).await?;
                idle.as_mut()
                    .reset(tokio::time::Instant::now() + bounds.idle_time);
            }
            Some(None) => return Ok(()),
            None => {
                connection.graceful_shutdown();
                idle.as_mut()
                    .reset(tokio::time::Instant::now() + bounds.idle_time);
            }
        }
    }
}

/// Answers a call whose message is there, or lets it wait for the rest among the others.
async fn begin<B: Store>(
    service: &Arc<Service<B>>,
    calls: &mut Calls,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    if !call::is_grpc(&request) {
        return call::refuse(&mut respond);
    }
    let method = match Method::of(&request) {
        Ok(method) => method,
        Err(failed) => return call::answer(&mut respond, Err(failed)),
    };
    if method == Method::Reflection {
        let service = Arc::clone(service);
        calls.push(Box::pin(async move {
            reflect::serve(&service.bounds, request.into_body(), &mut respond).await;
        }));
        return Ok(());
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
            return call::answer(&mut respond, outcome);
        }
    }
    calls.push(Box::pin(finish(Arc::clone(service), method, body, respond)));
    Ok(())
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
    })?;
    let mut out = Vec::with_capacity(128);
    out.extend([0; PREFIX]);
    answer::write(&mut out, &decided);
    Ok(call::framed(out))
}

/// Reads what is missing of a call, and answers it.
async fn finish<B: Store>(
    service: Arc<Service<B>>,
    method: Method,
    mut body: Body,
    mut respond: SendResponse<Bytes>,
) {
    let time = service.bounds.request_time;
    let read = timeout(time, poll_fn(|cx| body.poll_read(cx))).await;
    let outcome = match read {
        Err(_) => {
            let seconds = time.as_secs();
            Err(Failed::too_slow(format_args!(
                "the message wasn't sent within {seconds} s"
            )))
        }
        Ok(Err(failed)) => Err(failed),
        Ok(Ok(())) => match method {
            Method::ShouldRateLimit => should_rate_limit(&service, &body.bytes).await,
            Method::HealthCheck => health::check(&body.bytes),
            Method::HealthWatch => return health::watch(&body.bytes, &mut respond).await,
            // It has a stream of messages, and was begun as one.
            Method::Reflection => return,
        },
    };
    if call::answer(&mut respond, outcome).is_err() {
        respond.send_reset(Reason::CANCEL);
    }
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

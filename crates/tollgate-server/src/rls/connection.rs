//! One connection of HTTP/2: calls that are whole when they are read are answered at once, without a task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tollgate::Timestamp;

use super::call::{self, Failed, Method, PREFIX};
use super::decide::{Question, Undecided, decide};
use super::quiet::{Quiet, Then};
use super::request::Request as Asked;
use super::{answer, health, reflect};
use crate::bounds::Bounds;
use crate::drain::{self, Notice, Stage};
use crate::measured::Protocol;
use crate::service::{Service, Store};

/// A call that isn't over.
type Calls = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// What is next on a connection.
enum Next {
    /// Some calls have come.
    Calls,
    /// Nothing has come for long.
    Quiet(Then),
    /// The service is farther on its way to the end.
    Stage(Stage),
    Ended,
    Failed(h2::Error),
}

/// A body that is being read.
struct Body {
    stream: RecvStream,
    bytes: Vec<u8>,
    most: usize,
    /// When the call came.
    since: Timestamp,
}

/// Serves a connection until one of both sides ends it, or nothing has happened on it for long.
pub(crate) async fn serve<B: Store, S>(
    mut stream: S,
    service: Arc<Service<B>>,
    mut notice: Notice,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let served = serve_calls(&mut stream, service, &mut notice).await;
    if notice.stage() > Stage::Serving {
        drain::linger(&mut stream, &mut notice).await;
    }
    served
}

/// The same without the end of the connection below.
async fn serve_calls<B: Store, S>(
    stream: &mut S,
    service: Arc<Service<B>>,
    notice: &mut Notice,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let bounds = &service.bounds;
    let Some(connection) = begin_connection(stream, bounds, notice).await else {
        return Ok(());
    };
    let mut connection = connection?;
    let mut calls = Calls::new();
    let mut quiet = Quiet::new(connection.ping_pong(), bounds);
    let mut stage = Stage::Serving;
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
                (true, false) => match notice.poll_beyond(cx, stage) {
                    Poll::Ready(stage) => Poll::Ready(Next::Stage(stage)),
                    Poll::Pending => quiet.poll(cx, calls.is_empty()).map(Next::Quiet),
                },
            }
        });
        match next.await {
            Next::Calls => {
                for (request, respond) in accepted {
                    begin(&service, &mut calls, request, respond).await;
                }
                quiet.heard();
            }
            Next::Stage(now) => {
                if now > Stage::Leaving && stage <= Stage::Leaving {
                    connection.graceful_shutdown();
                }
                stage = now;
                // Calls look at the stage when they are polled, as those are that are new.
                calls = std::mem::take(&mut calls).into_iter().collect();
            }
            Next::Ended | Next::Quiet(Then::Close) => return Ok(()),
            Next::Quiet(Then::SayGoodbye) => connection.graceful_shutdown(),
            Next::Failed(error) => return Err(error),
        }
    }
}

/// The first words of HTTP/2. None if they don't come in time, or not soon once the service closes.
async fn begin_connection<'s, S>(
    stream: &'s mut S,
    bounds: &Bounds,
    notice: &mut Notice,
) -> Option<Result<Connection<&'s mut S, Bytes>, h2::Error>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let small = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(bounds.streams)
        .max_header_list_size(small(bounds.head_bytes))
        .initial_window_size(small(bounds.request_bytes + PREFIX).max(65_535))
        .initial_connection_window_size(1 << 20);
    let closing = async {
        notice.until(Stage::Closing).await;
        sleep(drain::GRACE).await;
    };
    tokio::select! {
        begun = timeout(bounds.request_time, builder.handshake(stream)) => begun.ok(),
        () = closing => None,
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
            let asks = request.into_body();
            let mut talk = pin!(reflect::serve(&service.bounds, asks, &mut respond));
            // Its client may think for long, so it isn't waited for.
            poll_fn(|cx| match talk.as_mut().poll(cx) {
                Poll::Pending if service.closing.stage() > Stage::Leaving => Poll::Ready(()),
                polled => polled,
            })
            .await;
        }));
        return;
    }
    let mut body = Body {
        stream: request.into_body(),
        bytes: Vec::new(),
        since: service.measured.now(),
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
            service.measured.took(Protocol::Grpc, body.since, 1);
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
    let since = body.since;
    let mut outcome = pin!(outcome(&service, method, body));
    let outcome = poll_fn(|cx| match respond.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => match outcome.as_mut().poll(cx).map(Some) {
            Poll::Pending if service.closing.stage() == Stage::Hurry => {
                let ends = Failed::unavailable(drain::ENDS);
                Poll::Ready(Some(Outcome::Answer(Err(ends))))
            }
            polled => polled,
        },
    });
    match outcome.await {
        None => {}
        Some(Outcome::Answer(outcome)) => {
            service.measured.took(Protocol::Grpc, since, 1);
            let sent = call::answer(&mut respond, outcome);
            if sent.is_err() {
                respond.send_reset(Reason::CANCEL);
            }
        }
        Some(Outcome::Watch(body)) => health::watch(&service, &body, &mut respond).await,
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
            Method::HealthCheck => health::check(service, &body.bytes),
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

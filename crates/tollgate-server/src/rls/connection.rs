//! One connection of HTTP/2: frames are taken by turns, and all calls of a turn are answered in one write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::call::PREFIX;
use super::calls::GrpcSession;
use super::frames::AcceptTurn;
use super::transport::Transport;
use crate::connection::ServeConnection;
use crate::decision_service::CounterStore;
use crate::drain::{self, ShutdownNotice, Stage};
use crate::protocol_errors::{ErrorKind, ErrorSource};
use crate::request_bounds::RequestBounds;

/// What clients may send of messages that aren't complete, all calls of a connection together.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// h2 ends a call with more metadata than this many times what is taken; one with less is told so in gRPC's words.
const METADATA: u32 = 2;

/// A call that has come: its request, and where its answer goes.
type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// What is next on a connection.
enum ConnectionEvent {
    /// Some calls have come, or their messages.
    Calls,
    /// The client sends control frames for their own sake.
    Flood,
    /// Nothing has come for long.
    Quiet(IdleAction),
    /// The service is farther on its way to the end.
    Stage(Stage),
    Ended,
    Failed(h2::Error),
}

impl<B: CounterStore> ServeConnection for GrpcSession<B> {
    /// It also ends if nothing has happened on it for long.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        mut self,
        mut stream: S,
        mut notice: ShutdownNotice,
    ) -> io::Result<()> {
        let served = serve_calls(&mut stream, &mut self, &mut notice).await;
        if notice.stage() > Stage::Serving {
            drain::discard_until_closed(&mut stream, &mut notice).await;
        }
        self.finish().await;
        served.map_err(io::Error::other)
    }
}

/// The same without the end of the connection below.
async fn serve_calls<B: CounterStore, S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    calls: &mut GrpcSession<B>,
    notice: &mut ShutdownNotice,
) -> Result<(), h2::Error> {
    let service = Arc::clone(&calls.service);
    let (turn, bounds) = (Arc::new(AcceptTurn::default()), &service.decider.bounds);
    let (errors, patience) = (calls.errors.clone(), bounds.request_timeout);
    let transport = Transport::new(stream, Arc::clone(&turn), errors, patience);
    let Some(mut connection) = open_connection(transport, &calls.errors, bounds, notice).await?
    else {
        return Ok(());
    };
    let mut quiet = IdleMonitor::new(connection.ping_pong(), bounds);
    let mut stage = Stage::Serving;
    loop {
        let (mut accepted, mut complete) = (Vec::new(), Vec::new());
        let next = poll_fn(|cx| {
            calls.poll(cx, &mut complete);
            let ended = accept_all(&mut connection, cx, &mut accepted);
            if !calls.are_too_many() && turn.next() {
                // There is more to read, and the socket won't say so again.
                cx.waker().wake_by_ref();
            }
            if !accepted.is_empty() || !complete.is_empty() {
                // h2 says again how it ended.
                return Poll::Ready(ConnectionEvent::Calls);
            }
            if let Some(ended) = ended {
                return Poll::Ready(ended);
            }
            if turn.is_flooded() {
                return Poll::Ready(ConnectionEvent::Flood);
            }
            match notice.poll_next_stage(cx, stage) {
                Poll::Ready(stage) => Poll::Ready(ConnectionEvent::Stage(stage)),
                Poll::Pending => quiet.poll(cx, calls.is_empty()).map(ConnectionEvent::Quiet),
            }
        });
        match next.await {
            ConnectionEvent::Calls => {
                for (request, respond) in accepted {
                    calls.accept_call(request, respond).await;
                }
                for call in complete {
                    calls.decide(call).await;
                }
                quiet.record_activity();
            }
            ConnectionEvent::Flood => return end_flood(&mut connection).await,
            ConnectionEvent::Stage(now) => {
                if now > Stage::Draining && stage <= Stage::Draining {
                    connection.graceful_shutdown();
                }
                stage = now;
                // Calls look at the stage when they are polled, as those are that are new.
                calls.wake();
            }
            ConnectionEvent::Ended | ConnectionEvent::Quiet(IdleAction::Close) => return Ok(()),
            ConnectionEvent::Quiet(IdleAction::GoAway) => connection.graceful_shutdown(),
            ConnectionEvent::Failed(error) => return Err(error),
        }
    }
}

/// Takes all calls that have come before anything is answered: each look for more writes what was answered before, and so
/// all answers leave in one write. Returns how the connection ended, if it did.
#[inline]
fn accept_all<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<T, Bytes>,
    cx: &mut Context<'_>,
    accepted: &mut Vec<Accepted>,
) -> Option<ConnectionEvent> {
    loop {
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok(call))) => accepted.push(call),
            Poll::Ready(Some(Err(error))) => return Some(ConnectionEvent::Failed(error)),
            Poll::Ready(None) => return Some(ConnectionEvent::Ended),
            Poll::Pending => return None,
        }
    }
}

/// Ends a connection whose client keeps the service busy with nothing. All calls before were answered.
#[cold]
async fn end_flood<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<T, Bytes>,
) -> Result<(), h2::Error> {
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    // The transport ends it in time if its client doesn't read, either.
    while let Some(accepted) = connection.accept().await {
        accepted?;
    }
    Ok(())
}

/// Opens a connection, and counts one that can't be opened as a protocol error. None if its preface doesn't come in time.
async fn open_connection<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    errors: &ErrorSource,
    bounds: &RequestBounds,
    notice: &mut ShutdownNotice,
) -> Result<Option<Connection<T, Bytes>>, h2::Error> {
    let small = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let window = small(bounds.message_bytes() + PREFIX).max(65_535);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(bounds.max_streams)
        .max_header_list_size(small(bounds.metadata_bytes()).saturating_mul(METADATA))
        .initial_window_size(window)
        .initial_connection_window_size(window.max(CONNECTION_WINDOW))
        // Both would end the connection, and all calls on it. The transport bounds what they are for.
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(None);
    let closing = async {
        notice.wait_for_stage(Stage::Closing).await;
        sleep(drain::GRACE).await;
    };
    let begun = tokio::select! {
        begun = timeout(bounds.request_timeout, builder.handshake(transport)) => begun.ok(),
        // Or not soon once the service closes.
        () = closing => None,
    };
    let Some(begun) = begun else {
        errors.record(ErrorKind::Timeout, &"no preface of HTTP/2 came in time");
        return Ok(None);
    };
    begun.map(Some).inspect_err(|error| {
        if !error.is_io() {
            errors.record(ErrorKind::Malformed, &"the first bytes aren't HTTP/2");
        }
    })
}

/// How long nothing has happened on a connection, and what was done about it: one without calls is ended, and of one with calls
/// the client is asked whether it is still there.
struct IdleMonitor {
    timer: Pin<Box<Sleep>>,
    asked: IdleState,
    /// None if the connection has given it to somebody else, which it hasn't.
    pings: Option<PingPong>,
    idle: Duration,
    /// The time that a client has to answer, or to leave.
    patience: Duration,
}

/// What the client was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleState {
    Nothing,
    /// Whether it is there.
    Presence,
    /// To finish what it has, and to leave.
    ToLeave,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleAction {
    /// Tell the client that no more calls are taken.
    GoAway,
    /// Close, whatever is open.
    Close,
}

impl IdleMonitor {
    fn new(pings: Option<PingPong>, bounds: &RequestBounds) -> Self {
        Self {
            timer: Box::pin(sleep(bounds.idle_timeout)),
            asked: IdleState::Nothing,
            pings,
            idle: bounds.idle_timeout,
            patience: bounds.request_timeout,
        }
    }

    /// A call came in. One that was told to leave has no more time for that.
    fn record_activity(&mut self) {
        if self.asked != IdleState::ToLeave {
            self.set_state(IdleState::Nothing, self.idle);
        }
    }

    fn set_state(&mut self, what: IdleState, time: Duration) {
        self.asked = what;
        self.timer.as_mut().reset(Instant::now() + time);
    }

    /// Ready if something is to be done about a connection on which nothing happens.
    fn poll(&mut self, cx: &mut Context<'_>, has_no_calls: bool) -> Poll<IdleAction> {
        if let (IdleState::Presence, Some(pings)) = (self.asked, &mut self.pings)
            && let Poll::Ready(Ok(_)) = pings.poll_pong(cx)
        {
            self.set_state(IdleState::Nothing, self.idle);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.asked != IdleState::Nothing {
                return Poll::Ready(IdleAction::Close);
            }
            if has_no_calls {
                self.set_state(IdleState::ToLeave, self.patience);
                return Poll::Ready(IdleAction::GoAway);
            }
            self.set_state(IdleState::Presence, self.patience);
            if let Some(pings) = &mut self.pings {
                // One that is still under way is as good as another.
                let _ = pings.send_ping(Ping::opaque());
                // Whoever is told that there is an answer has asked for it before.
                if let Poll::Ready(Ok(_)) = pings.poll_pong(cx) {
                    self.set_state(IdleState::Nothing, self.idle);
                }
            }
        }
        Poll::Pending
    }
}

//! One HTTP/2 connection: calls are accepted in batches, and the responses of a batch leave in one write.

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

/// The flow-control window of a connection: the most bytes of all its incomplete messages together.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// h2 rejects a call with more metadata than this many times the limit. A call below that gets a gRPC status.
const METADATA: u32 = 2;

/// An accepted call: its request, and the handle for its response.
type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// The next event of a connection.
enum ConnectionEvent {
    /// Calls, or their messages, have arrived.
    Calls,
    /// The client sends more control frames than its calls explain.
    Flood,
    /// Nothing has arrived for long.
    Quiet(IdleAction),
    /// The next stage of the shutdown.
    Stage(Stage),
    Ended,
    Failed(h2::Error),
}

impl<B: CounterStore> ServeConnection for GrpcSession<B> {
    /// The connection also ends if it was idle for long.
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

/// Serves the calls, without closing the stream below.
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
                // More input is held back, and the socket won't wake this task for it.
                cx.waker().wake_by_ref();
            }
            if !accepted.is_empty() || !complete.is_empty() {
                // If the connection has ended, h2 reports that again at the next poll.
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
                // Calls check the stage when they are polled, and so do new ones.
                calls.wake();
            }
            ConnectionEvent::Ended | ConnectionEvent::Quiet(IdleAction::Close) => return Ok(()),
            ConnectionEvent::Quiet(IdleAction::GoAway) => connection.graceful_shutdown(),
            ConnectionEvent::Failed(error) => return Err(error),
        }
    }
}

/// Accepts all calls that have arrived, before any is answered. Each poll for another call flushes finished responses,
/// so this order lets all responses leave in one write. Returns how the connection ended, if it did.
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

/// Ends a connection whose client floods the service with control frames. Calls before the flood are answered.
#[cold]
async fn end_flood<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<T, Bytes>,
) -> Result<(), h2::Error> {
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    // The transport has a timeout, in case the client doesn't read.
    while let Some(accepted) = connection.accept().await {
        accepted?;
    }
    Ok(())
}

/// Opens a connection. A failed handshake is counted as a protocol error. `None` if the client's preface doesn't come
/// in time.
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
        // Both of h2's bounds would end the connection, and all calls on it. The transport bounds resets instead.
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(None);
    let closing = async {
        notice.wait_for_stage(Stage::Closing).await;
        sleep(drain::GRACE).await;
    };
    let begun = tokio::select! {
        begun = timeout(bounds.request_timeout, builder.handshake(transport)) => begun.ok(),
        // While the service closes, the wait is short.
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

/// Monitors a connection for idleness: without calls it is closed, and with open calls the client is pinged.
struct IdleMonitor {
    timer: Pin<Box<Sleep>>,
    asked: IdleState,
    /// `None` only if the handle was taken before, which never happens.
    pings: Option<PingPong>,
    idle: Duration,
    /// How long a client may take to answer a ping, or to leave.
    patience: Duration,
}

/// The state of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleState {
    Nothing,
    /// The client was pinged.
    Presence,
    /// The client was asked to finish its calls and leave (GOAWAY).
    ToLeave,
}

/// The action of a connection that was idle too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleAction {
    /// Announce that no more calls are accepted.
    GoAway,
    /// Close the connection, whatever is open.
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

    /// Records a new call. A client that was asked to leave gets no more time.
    fn record_activity(&mut self) {
        if self.asked != IdleState::ToLeave {
            self.set_state(IdleState::Nothing, self.idle);
        }
    }

    fn set_state(&mut self, what: IdleState, time: Duration) {
        self.asked = what;
        self.timer.as_mut().reset(Instant::now() + time);
    }

    /// Ready once the connection was idle too long.
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
                // Sending fails while an earlier ping is open, which serves as well.
                let _ = pings.send_ping(Ping::opaque());
                // Polling registers the waker for the answer.
                if let Poll::Ready(Ok(_)) = pings.poll_pong(cx) {
                    self.set_state(IdleState::Nothing, self.idle);
                }
            }
        }
        Poll::Pending
    }
}

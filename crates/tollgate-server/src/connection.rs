//! One connection of any byte protocol: it reads requests, writes answers, and enforces timeouts.
//!
//! All complete requests in the input are answered before anything is written, so that the answers to a pipeline leave
//! in one write. But while a request waits, the answers before it are written. An idle connection keeps almost no
//! memory: bytes are read into a buffer on the stack, and copied from there.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::{self, MaybeUninit};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tollgate::Timestamp;

use crate::drain::{self, ShutdownNotice, Stage};

/// The most bytes of one read.
const READ_BYTES: usize = 16 * 1024;
/// The capacity that a buffer keeps while the connection is idle.
pub(crate) const IDLE_BUFFER_BYTES: usize = 1_024;
/// Answers are written once they have this many bytes, before more are added: short requests may have long answers.
const FLUSH_BYTES: usize = 65_536;
/// A client that sends more than this while the service closes isn't waited for any longer.
const MAX_LATE_BYTES: usize = 1 << 20;

/// Serves one connection over any stream.
pub(crate) trait ServeConnection: Send + 'static {
    /// The client's TLS certificate.
    fn client_certificate(&mut self, certificate: &[u8]) {
        let _ = certificate;
    }

    /// Serves the connection until the client or the service ends it. An I/O error ends it too, and is not reported.
    fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        self,
        stream: S,
        notice: ShutdownNotice,
    ) -> impl Future<Output = io::Result<()>> + Send;
}

impl<P: ByteProtocol> ServeConnection for P {
    fn client_certificate(&mut self, certificate: &[u8]) {
        ByteProtocol::client_certificate(self, certificate);
    }

    fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        self,
        stream: S,
        notice: ShutdownNotice,
    ) -> impl Future<Output = io::Result<()>> + Send {
        let patience = self.time_limits();
        serve(stream, self, patience, notice)
    }
}

/// A byte protocol that answers its requests one after the other.
pub(crate) trait ByteProtocol: Send + 'static {
    /// The timeouts of its clients.
    fn time_limits(&self) -> TimeLimits;

    /// Called before some input is answered. Returns the time.
    fn begin_batch(&mut self) -> Timestamp;

    /// Answers the request at the start of `input`, if it is complete.
    fn answer(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> impl Future<Output = InputProgress> + Send;

    /// Called after a batch of requests, before their answers are written; `since` is the batch's begin.
    fn record_batch(&mut self, since: Timestamp, requests: u64);

    /// The client's TLS certificate.
    fn client_certificate(&mut self, certificate: &[u8]) {
        let _ = certificate;
    }

    /// Whether an answer may take as long as a rule lets requests wait.
    fn may_wait(&self) -> bool;

    /// Writes the error for a client whose request took too long to arrive.
    fn write_timeout(&mut self, out: &mut Vec<u8>);

    /// Whether the protocol can announce that an answer is the last.
    const ANNOUNCES_CLOSE: bool;

    /// Announces the close in the answer that leaves no input behind, as no more input is expected.
    fn announce_close(&mut self);

    /// Writes the error for a request that still waits when the service stops.
    fn ends_first(&mut self, out: &mut Vec<u8>);
}

/// The outcome of reading some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputProgress {
    /// A request of this many bytes was answered; another may follow in the input.
    Answered(usize),
    /// The request isn't complete: more must be read.
    Incomplete,
    /// This many requests were answered (0 or 1), and the connection closes.
    Close(u64),
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    /// Between two requests.
    pub(crate) idle: Duration,
    /// For all bytes of a request, and for writing the answers.
    pub(crate) request: Duration,
    /// How many requests are answered at most before their answers are written.
    pub(crate) pipeline: u64,
}

/// A served connection.
struct Connection<S, P> {
    stream: S,
    protocol: P,
    patience: TimeLimits,
    notice: ShutdownNotice,
    input: Vec<u8>,
    /// How many bytes of the input are answered.
    consumed: usize,
    /// Input that arrived while a request waited.
    read_ahead: Vec<u8>,
    output: Vec<u8>,
    /// Answers that go before `output`: those to the requests before one that may wait.
    ready: Vec<u8>,
    /// The input is empty: no request has begun.
    was_idle: bool,
    /// The client has sent something.
    has_sent: bool,
    /// The last seen stage of the shutdown.
    stage: Stage,
    /// About how many bytes arrived since the service began to close.
    late_bytes: usize,
}

/// The outcome of waiting for input.
enum ReadEvent {
    Bytes,
    /// The client has closed its side.
    End,
    /// A request wasn't complete within its timeout.
    TimedOut,
    /// The service stops, and nothing is left to answer.
    ShutDown,
}

/// Serves a connection until the client or the service ends it.
async fn serve<S, P>(
    stream: S,
    protocol: P,
    patience: TimeLimits,
    notice: ShutdownNotice,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    P: ByteProtocol,
{
    let mut timer = pin!(IdleTimer::new(patience.idle));
    let mut own = Connection::new(stream, protocol, patience, notice);
    loop {
        let since = own.protocol.begin_batch();
        let (mut answered, mut progress) = (0, InputProgress::Answered(0));
        while let InputProgress::Answered(_) = progress
            && answered < patience.pipeline
            && own.output.len() + own.ready.len() < FLUSH_BYTES
        {
            progress = if own.protocol.may_wait() {
                own.answer_or_wait(timer.as_mut()).await?
            } else {
                let input = &own.input[own.consumed..];
                own.protocol.answer(input, &mut own.output).await
            };
            answered += match progress {
                InputProgress::Answered(bytes) => {
                    own.consumed += bytes;
                    1
                }
                InputProgress::Close(requests) => requests,
                InputProgress::Incomplete => 0,
            };
        }
        own.protocol.record_batch(since, answered);
        own.join_answers();
        if !own.output.is_empty() {
            timer.as_mut().set(patience.request);
            let written = write_and_flush(&mut own.stream, &own.output);
            with_deadline(timer.as_mut(), pin!(written)).await?;
            own.output.clear();
        }
        match progress {
            InputProgress::Incomplete => {}
            InputProgress::Answered(_) => continue,
            // Boxed as closing is rare: every connection would have room for this large future.
            InputProgress::Close(_) => return Box::pin(own.close(timer.as_mut())).await,
        }
        let got = match own.next_event(timer.as_mut(), answered > 0) {
            Some(got) => got,
            None => poll_fn(|cx| own.poll_wait(cx, timer.as_mut())).await?,
        };
        match got {
            ReadEvent::Bytes => {}
            ReadEvent::End => return Ok(()),
            ReadEvent::ShutDown => return Box::pin(own.close(timer.as_mut())).await,
            ReadEvent::TimedOut => {
                own.protocol.write_timeout(&mut own.output);
                // A slow client may not read either, so the write has a timeout.
                timer.as_mut().set(patience.request);
                let written = write_and_flush(&mut own.stream, &own.output);
                return with_deadline(timer.as_mut(), pin!(written)).await;
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: ByteProtocol> Connection<S, P> {
    fn new(stream: S, protocol: P, patience: TimeLimits, notice: ShutdownNotice) -> Self {
        Self {
            stream,
            protocol,
            patience,
            notice,
            input: Vec::new(),
            consumed: 0,
            read_ahead: Vec::new(),
            output: Vec::new(),
            ready: Vec::new(),
            was_idle: true,
            has_sent: false,
            stage: Stage::Serving,
            late_bytes: 0,
        }
    }

    /// Answers a request that may wait. Meanwhile the answers before it are written.
    async fn answer_or_wait(
        &mut self,
        mut timer: Pin<&mut IdleTimer>,
    ) -> io::Result<InputProgress> {
        if !self.output.is_empty() {
            // The answers before this one can be written while it waits, so they must not share its buffer.
            self.set_answers_aside();
        }
        if !self.ready.is_empty() {
            timer.as_mut().set(self.patience.request);
        }
        let waited = {
            let mut client = WaitingClient {
                stream: &mut self.stream,
                ahead: &mut self.read_ahead,
                notice: &mut self.notice,
                is_flushed: self.ready.is_empty(),
                ready: &mut self.ready,
            };
            let input = &self.input[self.consumed..];
            let mut answer = pin!(self.protocol.answer(input, &mut self.output));
            poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Ok(WaitOutcome::Answered(answer))),
                Poll::Pending => client.poll(cx, timer.as_mut()),
            })
            .await?
        };
        Ok(match waited {
            WaitOutcome::Answered(answer) => answer,
            WaitOutcome::ClientLeaves => {
                self.output.clear();
                InputProgress::Close(0)
            }
            WaitOutcome::ServiceEnds => {
                self.output.clear();
                self.write_shutdown()
            }
        })
    }

    /// Moves all answers so far before those that follow.
    fn set_answers_aside(&mut self) {
        if self.ready.is_empty() {
            mem::swap(&mut self.ready, &mut self.output);
        } else {
            self.ready.append(&mut self.output);
        }
    }

    /// Joins all answers in one buffer, for one write.
    fn join_answers(&mut self) {
        if !self.ready.is_empty() {
            self.set_answers_aside();
            mem::swap(&mut self.ready, &mut self.output);
        }
    }

    /// Writes the error for a request that still waits when the service stops.
    #[cold]
    fn write_shutdown(&mut self) -> InputProgress {
        self.protocol.ends_first(&mut self.output);
        InputProgress::Close(0)
    }

    /// Closes our side of the connection. During a shutdown, unread input is discarded first, as a reset could destroy
    /// the last answers.
    async fn close(&mut self, mut timer: Pin<&mut IdleTimer>) -> io::Result<()> {
        timer.as_mut().set(self.patience.request);
        with_deadline(timer, pin!(self.stream.shutdown())).await?;
        if self.notice.stage() > Stage::Serving {
            drain::discard_until_closed(&mut self.stream, &mut self.notice).await;
        }
        Ok(())
    }

    /// The next event after a batch of answers; `None` if more input must be read.
    fn next_event(
        &mut self,
        mut timer: Pin<&mut IdleTimer>,
        has_answered: bool,
    ) -> Option<ReadEvent> {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        self.was_idle = false;
        if !self.read_ahead.is_empty() {
            self.input.append(&mut self.read_ahead);
            timer.set(self.patience.request);
            return Some(ReadEvent::Bytes);
        }
        if self.input.is_empty() {
            self.was_idle = true;
            self.input.shrink_to(IDLE_BUFFER_BYTES);
            self.output.shrink_to(IDLE_BUFFER_BYTES);
            self.ready = Vec::new();
            timer.as_mut().set(self.patience.idle);
        } else if has_answered {
            timer.as_mut().set(self.patience.request);
        }
        self.stage = self.notice.stage();
        if self.stage > Stage::Draining {
            return self.event_while_closing(timer);
        }
        None
    }

    /// While the service closes: the next event, or `None` with the timeout of a last request.
    #[cold]
    fn event_while_closing(&self, timer: Pin<&mut IdleTimer>) -> Option<ReadEvent> {
        if self.stage == Stage::Aborting || self.late_bytes > MAX_LATE_BYTES {
            return Some(ReadEvent::ShutDown);
        }
        if self.was_idle {
            // A request may already be on the network.
            let may_ask = P::ANNOUNCES_CLOSE || !self.has_sent;
            let grace = if may_ask {
                drain::GRACE
            } else {
                Duration::ZERO
            };
            timer.set(grace);
        }
        None
    }

    /// Waits for input, a timeout or the next stage of the shutdown.
    fn poll_wait(
        &mut self,
        cx: &mut Context<'_>,
        mut timer: Pin<&mut IdleTimer>,
    ) -> Poll<io::Result<ReadEvent>> {
        loop {
            if let Poll::Ready(read) = poll_read(&mut self.stream, cx, &mut self.input) {
                if read? == 0 {
                    return Poll::Ready(Ok(ReadEvent::End));
                }
                self.has_sent = true;
                if self.was_idle {
                    timer.as_mut().set(self.patience.request);
                }
                if self.notice.stage() > Stage::Serving {
                    self.read_available(cx);
                }
                return Poll::Ready(Ok(ReadEvent::Bytes));
            }
            if timer.as_mut().poll_elapsed(cx).is_ready() {
                return Poll::Ready(match (self.was_idle, self.stage) {
                    (false, _) => Ok(ReadEvent::TimedOut),
                    (true, Stage::Serving | Stage::Draining) => Err(io::ErrorKind::TimedOut.into()),
                    (true, _) => Ok(ReadEvent::ShutDown),
                });
            }
            let Poll::Ready(stage) = self.notice.poll_next_stage(cx, self.stage) else {
                return Poll::Pending;
            };
            self.stage = stage;
            if stage > Stage::Draining
                && let Some(got) = self.event_while_closing(timer.as_mut())
            {
                return Poll::Ready(Ok(got));
            }
        }
    }

    /// Reads all available input, so that the last answer is known and can announce the close.
    #[cold]
    fn read_available(&mut self, cx: &mut Context<'_>) {
        let is_closing = self.notice.stage() > Stage::Draining;
        if !is_closing && !P::ANNOUNCES_CLOSE {
            return;
        }
        let before = self.input.len();
        // An I/O error shows at the next read.
        while self.input.len() < FLUSH_BYTES
            && let Poll::Ready(Ok(1..)) = poll_read(&mut self.stream, cx, &mut self.input)
        {}
        if is_closing {
            self.late_bytes += READ_BYTES + self.input.len() - before;
        }
        if self.input.len() < FLUSH_BYTES || self.late_bytes > MAX_LATE_BYTES {
            self.protocol.announce_close();
        }
    }
}

/// The outcome of waiting for an answer.
enum WaitOutcome {
    Answered(InputProgress),
    /// The client has closed its side, so its request leaves the queue.
    ClientLeaves,
    ServiceEnds,
}

/// A client whose request waits.
struct WaitingClient<'a, S> {
    stream: &'a mut S,
    ahead: &'a mut Vec<u8>,
    notice: &'a mut ShutdownNotice,
    /// Unwritten answers to the requests before it.
    ready: &'a mut Vec<u8>,
    /// Whether the written answers were flushed to the network.
    is_flushed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WaitingClient<'_, S> {
    /// Writes the answers that are ready, within the timeout, and waits until the client leaves or the service stops.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        timer: Pin<&mut IdleTimer>,
    ) -> Poll<io::Result<WaitOutcome>> {
        match self.poll_write(cx) {
            Poll::Ready(written) => written?,
            Poll::Pending if timer.poll_elapsed(cx).is_ready() => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        // A bounded read is enough to notice that the client has left.
        while self.ahead.len() < READ_BYTES {
            match poll_read(self.stream, cx, self.ahead) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(WaitOutcome::ClientLeaves)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        let ends = self.notice.poll_stage(cx, Stage::Aborting);
        ends.map(|()| Ok(WaitOutcome::ServiceEnds))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.ready.is_empty() {
            match ready!(Pin::new(&mut *self.stream).poll_write(cx, self.ready))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.ready.drain(..written)),
            }
        }
        if !self.is_flushed {
            ready!(Pin::new(&mut *self.stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads the available input, once there is some.
fn poll_read(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    input: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
    let mut bytes = ReadBuf::uninit(&mut bytes);
    let Poll::Ready(read) = Pin::new(stream).poll_read(cx, &mut bytes) else {
        return Poll::Pending;
    };
    input.extend_from_slice(bytes.filled());
    Poll::Ready(read.map(|()| bytes.filled().len()))
}

/// Writes and flushes all of `out`: a TLS stream may buffer written bytes.
async fn write_and_flush(stream: &mut (impl AsyncWrite + Unpin), out: &[u8]) -> io::Result<()> {
    stream.write_all(out).await?;
    stream.flush().await
}

/// Completes a future before the timer elapses, or fails.
async fn with_deadline<T>(
    mut timer: Pin<&mut IdleTimer>,
    mut doing: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    poll_fn(|cx| match doing.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => timer
            .as_mut()
            .poll_elapsed(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into())),
    })
    .await
}

pin_project_lite::pin_project! {
    /// A timeout that is set anew for each request. The clock is read only when the connection waits, and the tokio
    /// timer is moved only when it fires too early: most timeouts are replaced long before.
    struct IdleTimer {
        #[pin]
        sleep: Sleep,
        alarm: Alarm,
    }
}

/// When the timeout elapses.
#[derive(Clone, Copy)]
enum Alarm {
    /// This long after the connection begins to wait.
    In(Duration),
    At(Instant),
}

impl IdleTimer {
    fn new(time: Duration) -> Self {
        Self {
            sleep: sleep_until(Instant::now() + time),
            alarm: Alarm::In(time),
        }
    }

    /// Sets the timeout, counted from when the connection waits.
    fn set(self: Pin<&mut Self>, time: Duration) {
        *self.project().alarm = Alarm::In(time);
    }

    fn poll_elapsed(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let until = match *this.alarm {
            Alarm::At(until) => until,
            Alarm::In(time) => Instant::now() + time,
        };
        *this.alarm = Alarm::At(until);
        // The tokio timer would fire too late.
        if this.sleep.deadline() > until {
            this.sleep.as_mut().reset(until);
        }
        while this.sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            this.sleep.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;

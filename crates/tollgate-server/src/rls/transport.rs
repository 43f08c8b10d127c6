//! The byte stream under h2, which filters frames on their way. h2 reads all available input before it hands over a
//! call, so the transport admits streams in batches, and stops floods before they occupy a core.
//!
//! h2's own bound on streams that are reset before they are accepted would end the connection, and with it all calls of
//! a proxy whose clients hang up. A batch has so few streams that no such bound is needed: all streams of a batch are
//! accepted before the next begins.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::frames::{AcceptTurn, ControlBudget, ErrorScope, FrameReader, SentFrames, TurnGate};
use crate::connection::IDLE_BUFFER_BYTES;
use crate::protocol_errors::{ErrorKind, ErrorSource};

/// The most bytes of one read.
const READ: usize = 16 * 1024;
/// A client that reads this many bytes within the request timeout isn't stalled.
const READS: usize = 16 * 1024;

/// The byte stream that h2 uses.
pub(super) struct Transport<S> {
    stream: S,
    turn: Arc<AcceptTurn>,
    control: ControlBudget,
    reader: FrameReader,
    /// Bytes that were read, but not filtered yet.
    unparsed: Vec<u8>,
    /// Filtered bytes, which h2 has read up to `consumed`.
    ready: Vec<u8>,
    consumed: usize,
    is_at_end: bool,
    sent: SentFrames,
    errors: ErrorSource,
    /// The timeout since the client stopped reading, and the bytes it has read since.
    stalled: Option<Pin<Box<Sleep>>>,
    read_since: usize,
    /// The timeout for writes.
    patience: Duration,
}

impl<S> Transport<S> {
    pub(super) fn new(
        stream: S,
        turn: Arc<AcceptTurn>,
        errors: ErrorSource,
        patience: Duration,
    ) -> Self {
        Self {
            stream,
            turn,
            control: ControlBudget::default(),
            reader: FrameReader::default(),
            unparsed: Vec::new(),
            ready: Vec::new(),
            consumed: 0,
            is_at_end: false,
            sent: SentFrames::default(),
            errors,
            stalled: None,
            read_since: 0,
            patience,
        }
    }

    /// Filters new bytes, behind those not filtered yet.
    fn read_frames(&mut self, bytes: &[u8]) {
        let mut gate = TurnGate {
            turn: &self.turn,
            control: &mut self.control,
            errors: &self.errors,
        };
        if self.unparsed.is_empty() {
            let used = self.reader.read(bytes, &mut self.ready, &mut gate);
            self.unparsed.extend_from_slice(&bytes[used..]);
        } else {
            self.unparsed.extend_from_slice(bytes);
            let used = self.reader.read(&self.unparsed, &mut self.ready, &mut gate);
            self.unparsed.drain(..used);
        }
        if self.unparsed.is_empty() {
            self.unparsed.shrink_to(IDLE_BUFFER_BYTES);
        }
    }

    /// Copies filtered bytes to the reader. Returns whether there were any.
    fn copy_ready(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let ready = &self.ready[self.consumed..];
        let now = ready.len().min(buffer.remaining());
        buffer.put_slice(&ready[..now]);
        self.consumed += now;
        if self.consumed == self.ready.len() {
            self.consumed = 0;
            self.ready.clear();
            self.ready.shrink_to(IDLE_BUFFER_BYTES);
        }
        now > 0
    }

    /// Records that this many bytes were written.
    fn record_written(&mut self, slices: &[IoSlice<'_>], mut count: usize) {
        let (errors, turn) = (&self.errors, &self.turn);
        self.read_since += count;
        if self.read_since >= READS {
            self.stalled = None;
        }
        for slice in slices {
            let now = count.min(slice.len());
            self.sent.read(&slice[..now], |scope, code| {
                // The flood itself was recorded already.
                if !turn.is_flooded() {
                    report(errors, scope, code);
                }
            });
            count -= now;
        }
    }

    /// Called while nothing can be written: an error after the timeout.
    #[cold]
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| {
            self.read_since = 0;
            Box::pin(sleep(patience))
        });
        std::task::ready!(stalled.as_mut().poll(cx));
        let detail = "answers weren't read in time";
        self.errors.record(ErrorKind::Timeout, &detail);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Records a protocol error that h2 reports to a client. Streams that end normally aren't errors.
#[cold]
fn report(errors: &ErrorSource, scope: ErrorScope, code: u32) {
    let reason = Reason::from(code);
    let kind = match reason {
        Reason::NO_ERROR | Reason::CANCEL => return,
        Reason::REFUSED_STREAM => ErrorKind::Rejected,
        Reason::ENHANCE_YOUR_CALM => ErrorKind::Flood,
        _ => ErrorKind::Malformed,
    };
    let what = match scope {
        ErrorScope::Stream => "a stream was reset",
        ErrorScope::Connection => "the connection was ended",
    };
    errors.record(kind, &format_args!("{what}: {}", reason.description()));
}

impl<S: AsyncRead + Unpin> AsyncRead for Transport<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        loop {
            if own.copy_ready(buffer) {
                return Poll::Ready(Ok(()));
            }
            if own.turn.is_flooded() || own.turn.holds_back.load(Ordering::Relaxed) {
                // The connection wakes itself when it has accepted the open streams.
                return Poll::Pending;
            }
            if !own.unparsed.is_empty() {
                own.read_frames(&[]);
                if !own.ready.is_empty() || own.turn.holds_back.load(Ordering::Relaxed) {
                    continue;
                }
            }
            if own.is_at_end {
                if own.turn.opened.load(Ordering::Relaxed) == 0 {
                    return Poll::Ready(Ok(()));
                }
                // h2 drops unaccepted streams once it sees the end, so the end is held back until all are accepted.
                own.turn.holds_back.store(true, Ordering::Relaxed);
                continue;
            }
            let mut bytes = [MaybeUninit::uninit(); READ];
            let mut bytes = ReadBuf::uninit(&mut bytes);
            std::task::ready!(Pin::new(&mut own.stream).poll_read(cx, &mut bytes))?;
            own.is_at_end = bytes.filled().is_empty();
            own.read_frames(bytes.filled());
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        match Pin::new(&mut own.stream).poll_write_vectored(cx, slices) {
            Poll::Ready(Ok(count)) => {
                own.record_written(slices, count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => own.poll_stalled(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// h2 flushes once everything is written, so the client isn't stalled.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        own.stalled = None;
        Pin::new(&mut own.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

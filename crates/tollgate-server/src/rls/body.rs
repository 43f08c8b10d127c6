//! The one message of a call, as it comes: complete, too long, or given up.

use std::task::{Context, Poll};

use h2::RecvStream;

use super::call::{self, Failed, PREFIX};
use super::waiting::WaitingCall;

/// A message that is being read.
pub(super) struct Body {
    stream: RecvStream,
    bytes: Vec<u8>,
    most: usize,
    /// Bytes that the client may send again only once the message is complete: so all messages of a connection that
    /// aren't, together, are as long as the connection's window.
    unreleased: usize,
}

/// Why a message can't be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Its client gave it up, or left, before it was complete.
    Reset,
    Failed(Failed),
}

impl Body {
    pub(super) fn new(stream: RecvStream, most: usize) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
            most: most + PREFIX,
            unreleased: 0,
        }
    }

    /// Reads what is there. Ready once that is all, or more than is taken.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unread>> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(error))) => {
                    // What the client reset after all of it was there counts as if it hadn't.
                    let is_left = error.is_io() || (error.is_reset() && error.is_remote());
                    match (is_left, call::message(&self.bytes)) {
                        (true, Ok(_)) => break,
                        (true, Err(_)) => return Poll::Ready(Err(Unread::Reset)),
                        (false, _) => {
                            return Poll::Ready(Err(Unread::Failed(Failed::invalid(error))));
                        }
                    }
                }
                Poll::Ready(Some(Ok(bytes))) => {
                    let most = self.most - PREFIX;
                    if self.bytes.len() + bytes.len() > self.most {
                        return Poll::Ready(Err(Unread::Failed(Failed::longer_than(most))));
                    }
                    self.bytes.extend_from_slice(&bytes);
                    self.unreleased += bytes.len();
                    // What says that it is too long isn't waited for: the window has no room for all of it.
                    if let Some(prefix) = self.bytes.first_chunk::<PREFIX>()
                        && let Err(failed) = call::length(*prefix, most)
                    {
                        return Poll::Ready(Err(Unread::Failed(failed)));
                    }
                }
            }
        }
        // It fails if the connection is over.
        let _ = self.stream.flow_control().release_capacity(self.unreleased);
        Poll::Ready(Ok(()))
    }

    /// The same among others: not more is kept than there is room for.
    pub(super) fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        waiting: &mut WaitingCall,
    ) -> Poll<Result<(), Unread>> {
        let polled = self.poll_read(cx);
        if polled.is_pending() && !waiting.may_keep(self.bytes.len()) {
            let failed = Failed::exhausted("too much is kept of messages that aren't complete");
            return Poll::Ready(Err(Unread::Failed(failed)));
        }
        polled
    }

    /// What was read.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

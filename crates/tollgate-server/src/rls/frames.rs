//! Filters HTTP/2 frames on their way to h2 and back: frames that open streams, control frames, and frames that report
//! errors. Only a bounded number of streams opens at a time, and no more control frames pass than a client's calls
//! explain.
//!
//! # Memory ordering
//! An [`AcceptTurn`] is shared by the connection and its transport, which h2 owns. Both are parts of one task and never
//! run in parallel, so all accesses are relaxed. The fields are atomic because tasks move between threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::Instant;

use super::hpack;
use crate::protocol_errors::{ErrorKind, ErrorSource};

pub(super) const PREFACE: usize = 24;
const HEAD: usize = 9;
/// The longest frame: the service advertises no larger size.
const MAX_FRAME_BYTES: usize = 16_384;
/// A header block over several frames is gathered up to this size; h2 ends the connection long before.
const MAX_BLOCK_BYTES: usize = 65_536;

/// How many streams open before the earlier ones are accepted. h2 keeps the memory of the most streams it ever had
/// open, about 2 KB each, for the life of the connection.
const STREAMS_PER_TURN: u32 = 32;
/// The most control frames that a client may save up; new connections have as many.
const CONTROL_BURST: u32 = 1_000;
/// Additional control frames for each call: clients send fewer along with one.
const CONTROL_A_CALL: u32 = 8;
/// Additional control frames a second.
const CONTROL_A_SECOND: u64 = 100;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Reads a client's frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    /// Bytes of the preface, or of an unfiltered frame, that are still to come.
    passing: usize,
    /// A header block that continues in the next frame.
    block: Option<HeaderBlock>,
}

#[derive(Debug)]
struct HeaderBlock {
    flags: u8,
    stream: [u8; 4],
    /// The priority of the stream, before the fields; may be empty.
    priority: Vec<u8>,
    fields: Vec<u8>,
}

/// The head of a frame.
struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl FrameHead {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind,
            flags,
            stream,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes();
        out.extend_from_slice(&length[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream);
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            passing: PREFACE,
            block: None,
        }
    }
}

impl FrameReader {
    /// Copies the complete part of the input that may pass to `out`. Returns how many bytes of the input are consumed.
    pub(super) fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        to: &mut impl FrameGate,
    ) -> usize {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            if self.passing > 0 {
                let now = self.passing.min(rest.len());
                out.extend_from_slice(&rest[..now]);
                self.passing -= now;
                used += now;
                if self.passing > 0 {
                    return used;
                }
                continue;
            }
            let Some(head) = FrameHead::read(rest) else {
                return used;
            };
            let is_block =
                matches!(head.kind, HEADERS | CONTINUATION) && head.length <= MAX_FRAME_BYTES;
            if !is_block {
                let is_message = head.kind == DATA && (head.length > 0 || head.has(END_STREAM));
                if !is_message && !to.may_control() {
                    return used;
                }
                // The head passes together with its payload.
                self.passing = HEAD + head.length;
                continue;
            }
            let Some(frame) = rest.get(..HEAD + head.length) else {
                return used;
            };
            let may_pass = match head.kind {
                HEADERS => to.may_open(),
                _ => to.may_control(),
            };
            if !may_pass {
                return used;
            }
            self.block(&head, frame, out);
            used += frame.len();
        }
    }

    /// Reads a frame of a header block. The block passes once it is complete.
    fn block(&mut self, head: &FrameHead, frame: &[u8], out: &mut Vec<u8>) {
        let payload = &frame[HEAD..];
        match (head.kind, self.block.take()) {
            (HEADERS, None) => {
                let Some((priority, fields)) = parts(head, payload) else {
                    return out.extend_from_slice(frame);
                };
                let is_whole = head.has(END_HEADERS);
                let fields = if is_whole {
                    hpack::with_valid_authority(fields)
                } else {
                    Some(fields.to_vec())
                };
                let Some(fields) = fields else {
                    return out.extend_from_slice(frame);
                };
                let block = HeaderBlock {
                    flags: head.flags,
                    stream: head.stream,
                    priority: priority.to_vec(),
                    fields,
                };
                if is_whole {
                    block.write(out);
                } else {
                    self.block = Some(block);
                }
            }
            (CONTINUATION, Some(mut block)) if block.stream == head.stream => {
                block.fields.extend_from_slice(payload);
                if head.has(END_HEADERS) {
                    if let Some(fields) = hpack::with_valid_authority(&block.fields) {
                        block.fields = fields;
                    }
                    block.flags |= END_HEADERS;
                    block.write(out);
                } else if block.fields.len() > MAX_BLOCK_BYTES {
                    block.write(out);
                } else {
                    self.block = Some(block);
                }
            }
            // h2 rejects frames in a wrong order.
            (_, block) => {
                if let Some(block) = block {
                    block.write(out);
                }
                out.extend_from_slice(frame);
            }
        }
    }
}

/// The priority and the fields of a HEADERS frame; `None` if its padding or priority is longer than the frame.
fn parts<'f>(head: &FrameHead, payload: &'f [u8]) -> Option<(&'f [u8], &'f [u8])> {
    let mut fields = payload;
    if head.has(PADDED) {
        let (padding, rest) = fields.split_first()?;
        fields = rest.get(..rest.len().checked_sub(usize::from(*padding))?)?;
    }
    let priority = if head.has(PRIORITY) { 5 } else { 0 };
    fields.split_at_checked(priority)
}

impl HeaderBlock {
    /// Writes the block in as few frames as possible.
    fn write(self, out: &mut Vec<u8>) {
        let is_whole = self.flags & END_HEADERS;
        let room = MAX_FRAME_BYTES - self.priority.len();
        let (first, mut rest) = self.fields.split_at(self.fields.len().min(room));
        let end = |rest: &[u8]| if rest.is_empty() { is_whole } else { 0 };
        let flags = self.flags & !(PADDED | END_HEADERS) | end(rest);
        let head = |length, kind, flags| FrameHead {
            length,
            kind,
            flags,
            stream: self.stream,
        };
        head(self.priority.len() + first.len(), HEADERS, flags).write(out);
        out.extend_from_slice(&self.priority);
        out.extend_from_slice(first);
        while !rest.is_empty() {
            let (next, after) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
            rest = after;
            head(next.len(), CONTINUATION, end(rest)).write(out);
            out.extend_from_slice(next);
        }
    }
}

/// The streams that were opened since the connection last accepted, and whether the transport holds input back.
#[derive(Debug, Default)]
pub(super) struct AcceptTurn {
    pub(super) opened: AtomicU32,
    pub(super) holds_back: AtomicBool,
    is_flooded: AtomicBool,
}

impl AcceptTurn {
    /// Called when all opened streams are accepted. Returns whether held-back input can be read immediately.
    pub(super) fn next(&self) -> bool {
        self.opened.store(0, Ordering::Relaxed);
        self.holds_back.swap(false, Ordering::Relaxed)
    }

    /// Whether the client has sent more control frames than its calls explain.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }
}

/// A client's remaining control frames.
#[derive(Debug)]
pub(super) struct ControlBudget {
    left: u32,
    since: Instant,
}

impl Default for ControlBudget {
    fn default() -> Self {
        Self {
            left: CONTROL_BURST,
            since: Instant::now(),
        }
    }
}

impl ControlBudget {
    fn earn(&mut self) {
        self.left = CONTROL_BURST.max(self.left).min(self.left + CONTROL_A_CALL);
    }

    fn spend(&mut self) -> bool {
        if self.left == 0 {
            self.earn_by_time();
        }
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }

    /// The clock is read only when none remain.
    #[cold]
    fn earn_by_time(&mut self) {
        let now = Instant::now();
        let millis = now.saturating_duration_since(self.since).as_millis();
        let earned = u64::try_from(millis).unwrap_or(u64::MAX) / (1_000 / CONTROL_A_SECOND);
        self.left = u32::try_from(earned)
            .unwrap_or(CONTROL_BURST)
            .min(CONTROL_BURST);
        self.since = now;
    }
}

/// Decides which frames a reader lets pass.
pub(super) trait FrameGate {
    /// Whether a stream may be opened now.
    fn may_open(&mut self) -> bool;

    /// Whether a frame that isn't part of a message may pass.
    fn may_control(&mut self) -> bool;
}

/// The gate of a client's frames, by opened streams and remaining control frames.
pub(super) struct TurnGate<'t> {
    pub(super) turn: &'t AcceptTurn,
    pub(super) control: &'t mut ControlBudget,
    pub(super) errors: &'t ErrorSource,
}

impl FrameGate for TurnGate<'_> {
    fn may_open(&mut self) -> bool {
        let opened = self.turn.opened.load(Ordering::Relaxed);
        if opened >= STREAMS_PER_TURN {
            self.turn.holds_back.store(true, Ordering::Relaxed);
            return false;
        }
        self.turn.opened.store(opened + 1, Ordering::Relaxed);
        self.control.earn();
        true
    }

    fn may_control(&mut self) -> bool {
        let may_pass = !self.turn.is_flooded() && self.control.spend();
        if !may_pass && !self.turn.is_flooded.swap(true, Ordering::Relaxed) {
            let detail = "more control frames than its calls explain";
            self.errors.record(ErrorKind::Flood, &detail);
        }
        may_pass
    }
}

/// The scope of an error frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorScope {
    Stream,
    Connection,
}

/// Reads the frames sent to a client, to count the errors that h2 reports.
#[derive(Debug, Default)]
pub(super) struct SentFrames {
    /// The head of a frame and the first bytes of its payload.
    seen: [u8; HEAD + 8],
    length: usize,
    /// Remaining bytes of a frame that aren't examined.
    skipping: usize,
}

impl SentFrames {
    /// Reads sent bytes; `error` is called with the code of each error in them.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut error: impl FnMut(ErrorScope, u32)) {
        while !bytes.is_empty() {
            if self.skipping > 0 {
                let now = self.skipping.min(bytes.len());
                bytes = &bytes[now..];
                self.skipping -= now;
                continue;
            }
            let wanted = match (self.length >= HEAD, self.seen[3]) {
                (true, RST_STREAM) => HEAD + 4,
                (true, GOAWAY) => HEAD + 8,
                _ => HEAD,
            };
            let now = (wanted - self.length).min(bytes.len());
            self.seen[self.length..self.length + now].copy_from_slice(&bytes[..now]);
            self.length += now;
            bytes = &bytes[now..];
            let Some(head) = FrameHead::read(&self.seen[..self.length]) else {
                return;
            };
            let seen = self.length - HEAD;
            let code = |at: usize| {
                let code = self.seen.get(at..).and_then(|rest| rest.first_chunk());
                u32::from_be_bytes(*code.unwrap_or(&[0; 4]))
            };
            match (head.kind, seen) {
                (RST_STREAM, 4) => error(ErrorScope::Stream, code(HEAD)),
                (GOAWAY, 8) => error(ErrorScope::Connection, code(HEAD + 4)),
                (RST_STREAM | GOAWAY, _) if head.length > seen => continue,
                _ => {}
            }
            self.skipping = head.length.saturating_sub(seen);
            self.length = 0;
        }
    }
}

#[cfg(test)]
mod tests;

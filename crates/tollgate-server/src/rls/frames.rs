//! Frames of HTTP/2 on their way to h2 and back: which open streams, which are control frames, and which report errors. So many
//! streams pass a turn, and no more control frames than a client's calls explain.
//!
//! # Memory ordering
//! A [`AcceptTurn`] is shared by the connection and its transport, which h2 owns. Both are parts of one task, so one never runs
//! while the other does, and all its accesses are relaxed; it is atomic because tasks move between threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::Instant;

use super::hpack;
use crate::protocol_errors::{ErrorKind, ErrorSource};

pub(super) const PREFACE: usize = 24;
const HEAD: usize = 9;
/// Frames are no longer, as the service advertises no other size.
const MAX_FRAME_BYTES: usize = 16_384;
/// A header block over several frames is gathered up to here; h2 ends the connection long before.
const MAX_BLOCK_BYTES: usize = 65_536;

/// The most streams that are opened before those before them are accepted. h2 keeps room for as many as it ever had at
/// once, some 2 KB each, for as long as the connection lives.
const STREAMS_PER_TURN: u32 = 32;
/// Control frames that a client may send at first, and save up.
const CONTROL_BURST: u32 = 1_000;
/// As many more for each call: what clients send along with one is below that.
const CONTROL_A_CALL: u32 = 8;
/// And so many a second.
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

/// Reads what a client sends, frame by frame.
#[derive(Debug)]
pub(super) struct FrameReader {
    /// Bytes of the preface, or of a frame that passes as it is, that are still to come.
    passing: usize,
    /// A header block that goes on in the next frame: the first frame's head and fields.
    block: Option<HeaderBlock>,
}

#[derive(Debug)]
struct HeaderBlock {
    flags: u8,
    stream: [u8; 4],
    /// What comes before the fields: the priority of the stream, or nothing.
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
    /// Hands over as much of the input as is whole and may pass; how many bytes of it are done with.
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
                // Its head passes with it.
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

    /// A frame of a header block, which passes once the block is whole.
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
            // What comes in a wrong order is h2's to judge.
            (_, block) => {
                if let Some(block) = block {
                    block.write(out);
                }
                out.extend_from_slice(frame);
            }
        }
    }
}

/// The priority and the fields of a frame; none if it has neither as it says.
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
    /// Writes it in as few frames as it needs.
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

/// How many streams were opened since the connection last accepted, and whether the transport holds something back.
#[derive(Debug, Default)]
pub(super) struct AcceptTurn {
    pub(super) opened: AtomicU32,
    pub(super) holds_back: AtomicBool,
    is_flooded: AtomicBool,
}

impl AcceptTurn {
    /// All that was opened is accepted. Whether more is there to be read at once.
    pub(super) fn next(&self) -> bool {
        self.opened.store(0, Ordering::Relaxed);
        self.holds_back.swap(false, Ordering::Relaxed)
    }

    /// Whether the client has sent more control frames than its calls explain.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }
}

/// The control frames that a client may still send.
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

    /// The clock is read only when nothing is left.
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

/// What frames a reader lets pass, and what it found.
pub(super) trait FrameGate {
    /// Whether a stream may be opened now.
    fn may_open(&mut self) -> bool;

    /// Whether a frame that isn't part of a message may pass.
    fn may_control(&mut self) -> bool;
}

/// What a turn and the control frames that are left let pass.
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

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorScope {
    Stream,
    Connection,
}

/// Reads what is sent to a client, and finds the errors that h2 reports to it.
#[derive(Debug, Default)]
pub(super) struct SentFrames {
    /// The head of a frame, and what comes first in it.
    seen: [u8; HEAD + 8],
    length: usize,
    /// Bytes of a frame that nobody needs to see.
    skipping: usize,
}

impl SentFrames {
    /// These bytes were sent; each error in them is reported by its code.
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

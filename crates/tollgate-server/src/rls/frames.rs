//! Frames of HTTP/2 on their way to h2 and back: which open streams, which are control frames, and which report errors.

use super::hpack;

pub(super) const PREFACE: usize = 24;
const HEAD: usize = 9;
/// Frames are no longer, as the service advertises no other size.
const MOST: usize = 16_384;
/// A header block over several frames is gathered up to here; h2 ends the connection long before.
const BLOCK: usize = 65_536;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// What frames a reader lets pass, and what it found.
pub(super) trait Watcher {
    /// Whether a stream may be opened now.
    fn may_open(&mut self) -> bool;

    /// Whether a frame that isn't part of a message may pass.
    fn may_control(&mut self) -> bool;
}

/// Reads what a client sends, frame by frame.
#[derive(Debug)]
pub(super) struct Reader {
    /// Bytes of the preface, or of a frame that passes as it is, that are still to come.
    passing: usize,
    /// A header block that goes on in the next frame: the first frame's head and fields.
    block: Option<Block>,
}

#[derive(Debug)]
struct Block {
    flags: u8,
    stream: [u8; 4],
    /// What comes before the fields: the priority of the stream, or nothing.
    priority: Vec<u8>,
    fields: Vec<u8>,
}

/// The head of a frame.
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
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

impl Default for Reader {
    fn default() -> Self {
        Self {
            passing: PREFACE,
            block: None,
        }
    }
}

impl Reader {
    /// Hands over as much of the input as is whole and may pass; how many bytes of it are done with.
    pub(super) fn read(&mut self, input: &[u8], out: &mut Vec<u8>, to: &mut impl Watcher) -> usize {
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
            let Some(head) = Head::read(rest) else {
                return used;
            };
            let is_block = matches!(head.kind, HEADERS | CONTINUATION) && head.length <= MOST;
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
    fn block(&mut self, head: &Head, frame: &[u8], out: &mut Vec<u8>) {
        let payload = &frame[HEAD..];
        match (head.kind, self.block.take()) {
            (HEADERS, None) => {
                let Some((priority, fields)) = parts(head, payload) else {
                    return out.extend_from_slice(frame);
                };
                if head.has(END_HEADERS) {
                    match hpack::with_valid_authority(fields) {
                        None => out.extend_from_slice(frame),
                        Some(fields) => Block {
                            flags: head.flags,
                            stream: head.stream,
                            priority: priority.to_vec(),
                            fields,
                        }
                        .write(out),
                    }
                } else {
                    self.block = Some(Block {
                        flags: head.flags,
                        stream: head.stream,
                        priority: priority.to_vec(),
                        fields: fields.to_vec(),
                    });
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
                } else if block.fields.len() > BLOCK {
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
fn parts<'f>(head: &Head, payload: &'f [u8]) -> Option<(&'f [u8], &'f [u8])> {
    let mut fields = payload;
    if head.has(PADDED) {
        let (padding, rest) = fields.split_first()?;
        fields = rest.get(..rest.len().checked_sub(usize::from(*padding))?)?;
    }
    let priority = if head.has(PRIORITY) { 5 } else { 0 };
    fields.split_at_checked(priority)
}

impl Block {
    /// Writes it in as few frames as it needs.
    fn write(self, out: &mut Vec<u8>) {
        let is_whole = self.flags & END_HEADERS;
        let room = MOST - self.priority.len();
        let (first, mut rest) = self.fields.split_at(self.fields.len().min(room));
        let end = |rest: &[u8]| if rest.is_empty() { is_whole } else { 0 };
        let flags = self.flags & !(PADDED | END_HEADERS) | end(rest);
        let head = |length, kind, flags| Head {
            length,
            kind,
            flags,
            stream: self.stream,
        };
        head(self.priority.len() + first.len(), HEADERS, flags).write(out);
        out.extend_from_slice(&self.priority);
        out.extend_from_slice(first);
        while !rest.is_empty() {
            let (next, after) = rest.split_at(rest.len().min(MOST));
            rest = after;
            head(next.len(), CONTINUATION, end(rest)).write(out);
            out.extend_from_slice(next);
        }
    }
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Stream,
    Connection,
}

/// Reads what is sent to a client, and finds the errors that h2 reports to it.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// The head of a frame, and what comes first in it.
    seen: [u8; HEAD + 8],
    length: usize,
    /// Bytes of a frame that nobody needs to see.
    skipping: usize,
}

impl Sent {
    /// These bytes were sent; each error in them is reported by its code.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut error: impl FnMut(Scope, u32)) {
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
            let Some(head) = Head::read(&self.seen[..self.length]) else {
                return;
            };
            let seen = self.length - HEAD;
            let code = |at: usize| {
                let code = self.seen.get(at..).and_then(|rest| rest.first_chunk());
                u32::from_be_bytes(*code.unwrap_or(&[0; 4]))
            };
            match (head.kind, seen) {
                (RST_STREAM, 4) => error(Scope::Stream, code(HEAD)),
                (GOAWAY, 8) => error(Scope::Connection, code(HEAD + 4)),
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

//! The wire protocols of the generator: how requests are encoded, and replies recognized.

use std::collections::VecDeque;

use super::Failure;

pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// One connection's side of a protocol. A request is identified by the time at which it was due.
pub(super) trait WireProtocol {
    /// The most requests in flight.
    const MAX_PIPELINED: usize;

    /// Encodes the handshake.
    fn handshake(&mut self, _out: &mut Vec<u8>) {}

    /// Encodes a request for a key.
    fn encode_request(&mut self, key: u64, due: u64, out: &mut Vec<u8>);

    /// Decodes replies. Returns the number of bytes that are done with; the due time of each reply goes to
    /// `answered`.
    fn decode_replies(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        answered: &mut Vec<u64>,
    ) -> Result<usize, Failure>;
}

/// One command of RESP at a time, whose reply has this many lines.
#[derive(Clone)]
pub(super) struct Resp {
    /// The bytes before the digits of the key, and after them.
    before: Vec<u8>,
    after: Vec<u8>,
    pub(super) lines: usize,
    asked: VecDeque<u64>,
    heard: usize,
}

/// Digits of a key.
const DIGITS: usize = 12;

impl Resp {
    /// A command with a key, and words after it.
    pub(super) fn new(name: &str, more: &[&str], lines: usize) -> Self {
        let word = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let (count, key) = (more.len() + 2, "key:");
        let length = key.len() + DIGITS;
        let before = format!("*{count}\r\n{}${length}\r\n{key}", word(name));
        let more: String = more.iter().map(|text| word(text)).collect();
        Self {
            before: before.into_bytes(),
            after: format!("\r\n{more}").into_bytes(),
            lines,
            asked: VecDeque::new(),
            heard: 0,
        }
    }

    /// The command for a key.
    pub(super) fn command(&self, mut key: u64, out: &mut Vec<u8>) {
        let mut digits = [b'0'; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789"[usize::try_from(key % 10).unwrap_or_default()];
            key /= 10;
        }
        out.extend_from_slice(&self.before);
        out.extend_from_slice(&digits);
        out.extend_from_slice(&self.after);
    }
}

impl WireProtocol for Resp {
    const MAX_PIPELINED: usize = 1;

    fn encode_request(&mut self, key: u64, due: u64, out: &mut Vec<u8>) {
        self.asked.push_back(due);
        self.command(key, out);
    }

    fn decode_replies(
        &mut self,
        input: &[u8],
        _: &mut Vec<u8>,
        answered: &mut Vec<u64>,
    ) -> Result<usize, Failure> {
        let mut used = 0;
        while let Some(end) = input[used..].iter().position(|byte| *byte == b'\n') {
            if input[used] == b'-' {
                let line = String::from_utf8_lossy(&input[used..used + end]).into_owned();
                return Err(line.into());
            }
            used += end + 1;
            self.heard += 1;
            if self.heard == self.lines {
                self.heard = 0;
                answered.extend(self.asked.pop_front());
            }
        }
        Ok(used)
    }
}

/// One request of HTTP/1.1 at a time.
#[derive(Clone)]
pub(super) struct Http {
    path: &'static str,
    /// The body before and after the key.
    body: [&'static str; 2],
    asked: VecDeque<u64>,
}

impl Http {
    pub(super) const fn new(path: &'static str, body: [&'static str; 2]) -> Self {
        Self {
            path,
            body,
            asked: VecDeque::new(),
        }
    }
}

impl WireProtocol for Http {
    const MAX_PIPELINED: usize = 1;

    fn encode_request(&mut self, key: u64, due: u64, out: &mut Vec<u8>) {
        self.asked.push_back(due);
        let body = format!("{}u{key}{}", self.body[0], self.body[1]);
        let (path, length) = (self.path, body.len());
        out.extend(
            format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            )
            .into_bytes(),
        );
    }

    fn decode_replies(
        &mut self,
        input: &[u8],
        _: &mut Vec<u8>,
        answered: &mut Vec<u64>,
    ) -> Result<usize, Failure> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let Some(head) = rest.windows(4).position(|four| four == b"\r\n\r\n") else {
                return Ok(used);
            };
            let text = std::str::from_utf8(&rest[..head])?.to_ascii_lowercase();
            if !text.starts_with("http/1.1 200") {
                return Err(text.into());
            }
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.ok_or("an answer without a length")?.trim().parse()?;
            if rest.len() < head + 4 + length {
                return Ok(used);
            }
            used += head + 4 + length;
            answered.extend(self.asked.pop_front());
        }
    }
}

/// Ten concurrent calls of gRPC.
#[derive(Clone, Default)]
pub(super) struct Grpc {
    stream: u32,
    asked: Vec<(u32, u64)>,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
/// Of `DATA` and `HEADERS` the end of the stream; of other frames the acknowledgement.
const END: u8 = 1;
const WHOLE: u8 = 4;

impl WireProtocol for Grpc {
    const MAX_PIPELINED: usize = 10;

    fn handshake(&mut self, out: &mut Vec<u8>) {
        out.extend(PREFACE);
        frame(out, SETTINGS, 0, 0, &[]);
        // No run exceeds this connection's window.
        frame(out, WINDOW, 0, 0, &(1u32 << 30).to_be_bytes());
    }

    fn encode_request(&mut self, key: u64, due: u64, out: &mut Vec<u8>) {
        let is_first = self.stream == 0;
        self.stream = if is_first { 1 } else { self.stream + 2 };
        self.asked.push((self.stream, due));
        frame(out, HEADERS, WHOLE, self.stream, &headers(is_first));
        let body = framed(&rate_limit_request(format!("u{key}").as_bytes()));
        frame(out, DATA, END, self.stream, &body);
    }

    fn decode_replies(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        answered: &mut Vec<u64>,
    ) -> Result<usize, Failure> {
        let mut used = 0;
        while let Some((head, rest)) = input[used..].split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = rest.get(..length) else {
                break;
            };
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                SETTINGS if flags & END == 0 => frame(out, SETTINGS, END, 0, &[]),
                PING if flags & END == 0 => frame(out, PING, END, 0, payload),
                // The prefix of gRPC, then `overall_code: OK`.
                DATA if payload.get(5..7).is_some_and(|code| code != [8, 1]) => {
                    return Err("not every request passes".into());
                }
                DATA | HEADERS if flags & END != 0 => {
                    let place = self.asked.iter().position(|(asked, _)| *asked == stream);
                    answered.extend(place.map(|place| self.asked.swap_remove(place).1));
                }
                RESET | GO_AWAY => return Err(format!("frame {kind} of {payload:?}").into()),
                _ => {}
            }
            used += 9 + length;
        }
        Ok(used)
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend(&length.to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// The header fields of a call. The first call adds them to the connection's table, and later calls send their
/// indexes, as gRPC clients do.
fn headers(is_first: bool) -> Vec<u8> {
    // `:method: POST`, `:scheme: http`
    let mut fields = vec![0x83, 0x86];
    if !is_first {
        fields.extend([0xc1, 0xc0, 0xbf, 0xbe]);
        return fields;
    }
    let named: [(&[u8], &str); 4] = [
        (b"\x44", SHOULD_RATE_LIMIT),
        (b"\x41", "localhost"),
        (b"\x5f", "application/grpc"),
        (b"\x40\x02te", "trailers"),
    ];
    for (name, value) in named {
        fields.extend(name);
        fields.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        fields.extend(value.as_bytes());
    }
    fields
}

/// A message with gRPC's prefix: not compressed, and its length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// One descriptor `(user, value)` of the domain `edge`.
pub(super) fn rate_limit_request(value: &[u8]) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        [&[tag << 3 | 2, length], bytes].concat()
    };
    let entry = [field(1, b"user"), field(2, value)].concat();
    [field(1, b"edge"), field(2, &field(1, &entry))].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_however_they_are_cut() {
        let mut resp = Resp::new("INCRBY", &["1"], 2);
        let mut out = Vec::new();
        resp.encode_request(7, 70, &mut out);
        assert_eq!(
            out,
            b"*3\r\n$6\r\nINCRBY\r\n$16\r\nkey:000000000007\r\n$1\r\n1\r\n"
        );
        let mut answered = Vec::new();
        let heard = resp.decode_replies(b"*1\r\n:", &mut out, &mut answered);
        assert_eq!((heard.unwrap(), answered.len()), (4, 0));
        let heard = resp.decode_replies(b":5\r\n", &mut out, &mut answered);
        assert_eq!((heard.unwrap(), &*answered), (4, &[70][..]));
        assert!(
            resp.decode_replies(b"-ERR no\r\n", &mut out, &mut answered)
                .is_err()
        );

        let mut http = Http::new("/v1/check", ["{", "}"]);
        http.encode_request(1, 10, &mut out);
        answered.clear();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let cut = answer.len() - 1;
        let heard = http.decode_replies(&answer[..cut], &mut out, &mut answered);
        assert_eq!((heard.unwrap(), answered.len()), (0, 0));
        let heard = http.decode_replies(answer, &mut out, &mut answered);
        assert_eq!((heard.unwrap(), &*answered), (answer.len(), &[10][..]));
    }

    #[test]
    fn calls_are_answered_in_any_order() {
        let (mut grpc, mut out, mut answered) = (Grpc::default(), Vec::new(), Vec::new());
        grpc.encode_request(1, 10, &mut out);
        grpc.encode_request(2, 20, &mut out);
        let mut answer = Vec::new();
        frame(&mut answer, DATA, 0, 3, &framed(&[8, 1]));
        frame(&mut answer, HEADERS, END | WHOLE, 3, &[]);
        frame(&mut answer, HEADERS, END | WHOLE, 1, &[]);
        let heard = grpc.decode_replies(&answer, &mut out, &mut answered);
        assert_eq!((heard.unwrap(), &*answered), (answer.len(), &[20, 10][..]));
        let mut refused = Vec::new();
        frame(&mut refused, DATA, 0, 5, &framed(&[8, 2]));
        assert!(
            grpc.decode_replies(&refused, &mut out, &mut answered)
                .is_err()
        );
    }
}

//! An HTTP/2 client whose frames are written by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD, framed};

/// A million requests an hour for each user.
pub(crate) const TREE: &str = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]";

/// `{domain: edge, descriptors: [{entries: [{key: user, value: ada}]}]}`
pub(crate) const ADA: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A connection of HTTP/2 whose frames are written by hand.
pub(crate) struct Raw(pub(crate) TcpStream);

/// A frame: its kind, its stream, and what it carries.
pub(crate) type Frame = (u8, u32, Vec<u8>);

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a call, in HPACK's plainest form.
pub(crate) fn head(stream: u32, path: &str) -> Vec<u8> {
    head_with(stream, path, b"here")
}

/// The same with an authority.
pub(crate) fn head_with(stream: u32, path: &str, authority: &[u8]) -> Vec<u8> {
    // POST, http, then fields of the static table with values of their own.
    let mut block = vec![0x83, 0x86];
    let media = b"application/grpc";
    for (name, value) in [
        (&[0x04][..], path.as_bytes()),
        (&[0x01], authority),
        (&[0x0f, 0x10], media),
    ] {
        block.extend(name);
        block.push(u8::try_from(value.len()).expect("short"));
        block.extend(value);
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A whole call.
pub(crate) fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &framed(message));
    [head(stream, path), data].concat()
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

impl Raw {
    pub(crate) fn to(running: &Running) -> Self {
        let stream = TcpStream::connect(running.grpc()).expect("a connection");
        let long = Some(Duration::from_secs(60));
        stream.set_read_timeout(long).expect("a timeout");
        Self(stream)
    }

    /// Opens a connection with the preface and settings: pairs of a name and a number.
    pub(crate) fn greeted(running: &Running, settings: &[(u16, u32)]) -> Self {
        let mut raw = Self::to(running);
        let pairs = settings.iter().flat_map(|(name, value)| {
            [name.to_be_bytes().to_vec(), value.to_be_bytes().to_vec()].concat()
        });
        let settings = frame(SETTINGS, 0, 0, &pairs.collect::<Vec<_>>());
        raw.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.say(&settings);
        raw
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("written");
    }

    /// The next frame; none if the other side closed.
    pub(crate) fn hear(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("a length");
        let mut payload = vec![0; length];
        self.read(&mut payload)?;
        Some((kind, u32::from_be_bytes(stream), payload))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.0.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) => {
                let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(ends.contains(&error.kind()), "{error}");
                None
            }
        }
    }

    /// Hears until a frame is one that is waited for; none if the other side closed before.
    pub(crate) fn hear_until(&mut self, is_it: impl Fn(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.hear()?;
            if is_it(&frame) {
                return Some(frame);
            }
        }
    }
}

/// Others are served as if nothing were.
#[track_caller]
pub(crate) fn others_are_served(running: &Running) {
    let answer = Grpc::to(running).call(SHOULD, ADA).expect("an answer");
    assert_eq!(answer[..2], [8, 1], "OK");
}

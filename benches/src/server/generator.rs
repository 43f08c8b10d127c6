//! A load from one thread over many connections: as fast as replies come, or at a fixed rate whatever the
//! replies.
//!
//! At a fixed rate, latency counts from the time at which a request was due, even if all connections were busy
//! then. A generator that waits for replies before it sends the next request would hide that.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::Failure;
use super::wire_protocols::WireProtocol;
use crate::timing::Stopwatch;

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestPace {
    /// As soon as there is room on a connection.
    Full,
    /// One every this many nanoseconds.
    Every(f64),
    /// This many, each after the reply to the one before.
    OneByOne(u64),
}

/// The results of a run.
#[derive(Debug)]
pub(super) struct RunTotals {
    /// Nanoseconds from the due time to the reply, shortest first.
    pub(super) times: Vec<u64>,
    pub(super) per_second: f64,
}

struct Connection<S> {
    stream: TcpStream,
    speaks: S,
    input: Vec<u8>,
    out: Vec<u8>,
}

/// Connections to one server.
pub(super) struct Generator<S> {
    poll: Poll,
    connections: Vec<Connection<S>>,
    /// Connections with room, each once for every request that it has room for.
    free: VecDeque<usize>,
    /// The next key.
    key: u64,
    keys: u64,
}

impl<S: WireProtocol + Clone> Generator<S> {
    pub(super) fn new(
        address: SocketAddr,
        connections: usize,
        speaks: &S,
        keys: u64,
    ) -> Result<Self, Failure> {
        let poll = Poll::new()?;
        let mut all = Vec::new();
        for token in 0..connections {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(token), Interest::READABLE)?;
            let (mut speaks, mut out) = (speaks.clone(), Vec::new());
            speaks.handshake(&mut out);
            all.push(Connection {
                stream,
                speaks,
                input: Vec::new(),
                out,
            });
        }
        let free = (0..S::MAX_PIPELINED).flat_map(|_| 0..connections).collect();
        Ok(Self {
            poll,
            connections: all,
            free,
            key: 0,
            keys,
        })
    }

    /// Sends requests for this long, and reads the replies that are still due.
    pub(super) fn run(&mut self, pace: RequestPace, span: Duration) -> Result<RunTotals, Failure> {
        let (watch, mut events) = (Stopwatch::start(), Events::with_capacity(1_024));
        let (mut times, mut answered) = (Vec::new(), Vec::new());
        let now = || u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let end = u64::try_from(span.as_nanos())?;
        if let RequestPace::OneByOne(_) = pace {
            self.free.truncate(1);
        }
        let all = self.free.len();
        let mut sent = 0;
        loop {
            let time = now();
            let due = |sent: u64| match pace {
                RequestPace::Full => time,
                RequestPace::Every(nanos) => {
                    crate::runner::as_count(crate::runner::as_f64(sent) * nanos)
                }
                RequestPace::OneByOne(most) if sent < most => time,
                RequestPace::OneByOne(_) => u64::MAX,
            };
            while due(sent) <= time && due(sent) < end {
                let Some(free) = self.free.pop_front() else {
                    break;
                };
                let key = self.next_key();
                let connection = &mut self.connections[free];
                let out = &mut connection.out;
                connection.speaks.encode_request(key, due(sent), out);
                sent += 1;
                if let RequestPace::Every(_) = pace {
                    connection.write()?;
                }
            }
            for connection in &mut self.connections {
                connection.write()?;
            }
            if due(sent) >= end && self.free.len() == all {
                break;
            }
            // Don't block while the next request may be due at any moment.
            let wait = match pace {
                RequestPace::Full | RequestPace::OneByOne(_) => Duration::from_secs(5),
                RequestPace::Every(_) => Duration::ZERO,
            };
            self.poll.poll(&mut events, Some(wait))?;
            if events.is_empty() && (wait > Duration::ZERO || time > end + 5_000_000_000) {
                return Err("no answer for five seconds".into());
            }
            for event in &events {
                let Token(token) = event.token();
                self.connections[token].read_replies(&mut answered)?;
                let heard = now();
                for due in answered.drain(..) {
                    times.push(heard - due);
                    self.free.push_back(token);
                }
            }
        }
        let per_second = crate::runner::as_f64(times.len() as u64) / watch.elapsed().as_secs_f64();
        times.sort_unstable();
        Ok(RunTotals { times, per_second })
    }

    /// All keys, in an order without a pattern for caches.
    fn next_key(&mut self) -> u64 {
        self.key = (self.key + 7_368_787) % self.keys;
        self.key
    }
}

impl<S: WireProtocol> Connection<S> {
    /// Writes what can be written without blocking.
    fn write(&mut self) -> Result<(), Failure> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(written) => {
                    self.out.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what can be read without blocking.
    fn read_replies(&mut self, answered: &mut Vec<u64>) -> Result<(), Failure> {
        let mut bytes = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(read) => {
                    self.input.extend(&bytes[..read]);
                    let used = self
                        .speaks
                        .decode_replies(&self.input, &mut self.out, answered)?;
                    self.input.drain(..used);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

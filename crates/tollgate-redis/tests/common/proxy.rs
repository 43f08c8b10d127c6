//! A proxy between a client and a server, which handles each command as the test decides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The server answers it.
    Pass,
    /// The server carries it out, and the connection ends without the reply.
    LoseReply,
    /// The connection ends before the server has seen it.
    Cut,
    /// Nobody ever answers it.
    Swallow,
    /// It is answered by an error.
    Error(&'static str),
}

/// A test's decision about a command, word by word.
type Judge = dyn Fn(&[String]) -> Act + Send + Sync;

/// Listens in front of a server. A client that asks for the hash slots sees a cluster of one.
pub(crate) struct Proxy {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start(
        server: SocketAddr,
        judge: impl Fn(&[String]) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Self {
            address,
            connections: Arc::default(),
            is_over: Arc::default(),
        };
        let judge: Arc<Judge> = Arc::new(judge);
        let (connections, is_over) = (Arc::clone(&proxy.connections), Arc::clone(&proxy.is_over));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                connections.fetch_add(1, Ordering::Relaxed);
                let judge = Arc::clone(&judge);
                thread::spawn(move || relay(client, server, address, &*judge));
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn cluster_url(&self) -> String {
        format!("redis+cluster://{}", self.address)
    }

    /// How many were made so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // So that it is seen.
        let _ = TcpStream::connect(self.address);
    }
}

/// Until either side ends it.
fn relay(client: TcpStream, server: SocketAddr, own: SocketAddr, judge: &Judge) -> Option<()> {
    let _ = client.set_nodelay(true);
    let upstream = TcpStream::connect(server).ok()?;
    let _ = upstream.set_nodelay(true);
    let mut commands = BufReader::new(client.try_clone().ok()?);
    let mut replies = BufReader::new(upstream.try_clone().ok()?);
    let (mut client, mut upstream) = (client, upstream);
    loop {
        let raw = message(&mut commands)?;
        let words = words(&raw);
        let is = |number: usize, text: &str| {
            let word = words.get(number);
            word.is_some_and(|word| word.eq_ignore_ascii_case(text))
        };
        if is(0, "CLUSTER") && is(1, "SLOTS") {
            let (host, port) = (own.ip().to_string(), own.port());
            let node = format!("*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len());
            let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}");
            client.write_all(slots.as_bytes()).ok()?;
            continue;
        }
        match judge(&words) {
            Act::Swallow => continue,
            Act::Cut => return None,
            Act::Error(text) => client.write_all(format!("-{text}\r\n").as_bytes()).ok()?,
            act => {
                upstream.write_all(&raw).ok()?;
                let reply = message(&mut replies)?;
                if act == Act::LoseReply {
                    return None;
                }
                client.write_all(&reply).ok()?;
            }
        }
    }
}

/// One message of the protocol, byte for byte.
fn message(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut raw = Vec::new();
    let mut missing = 1u64;
    while missing > 0 {
        missing -= 1;
        let start = raw.len();
        if from.read_until(b'\n', &mut raw).ok()? == 0 {
            return None;
        }
        let line = String::from_utf8_lossy(&raw[start..]).into_owned();
        let count = line.get(1..)?.trim_end().parse::<i64>();
        match line.as_bytes()[0] {
            b'*' => missing += u64::try_from(count.ok()?).unwrap_or(0),
            b'$' => {
                if let Ok(size) = u64::try_from(count.ok()?) {
                    let size = size + 2;
                    let read = from.by_ref().take(size).read_to_end(&mut raw).ok()?;
                    (read as u64 == size).then_some(())?;
                }
            }
            _ => {}
        }
    }
    Some(raw)
}

/// The words of a command.
fn words(raw: &[u8]) -> Vec<String> {
    let mut rest = raw;
    let mut words = Vec::new();
    while let Some(line) = message_line(&mut rest) {
        if let Some(size) = line.strip_prefix('$').and_then(|size| size.parse().ok())
            && let Some((word, after)) = rest.split_at_checked(size)
        {
            words.push(String::from_utf8_lossy(word).into_owned());
            rest = after.get(2..).unwrap_or_default();
        }
    }
    words
}

fn message_line(rest: &mut &[u8]) -> Option<String> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let line = String::from_utf8_lossy(&rest[..end]).into_owned();
    *rest = &rest[end + 2..];
    Some(line)
}

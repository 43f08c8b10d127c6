//! A small blocking client that speaks RESP2: enough to set up and inspect a server.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a client waits for a connection and for each reply by default.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's reply.
///
/// It compares with text, however the server sent it, and its `Display` is for people:
///
/// ```
/// use tollgate_testkit::redis::Reply;
///
/// assert_eq!(Reply::Status("OK".into()), "OK");
/// assert_eq!(Reply::Bulk(b"7".to_vec()), "7");
/// assert_eq!(Reply::Integer(7), "7");
///
/// let several = Reply::Array(vec![Reply::Integer(7), Reply::Bulk(b"a\0".to_vec()), Reply::Nil]);
/// assert_eq!(several.to_string(), r#"[7, "a\x00", nil]"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A short text such as `OK`.
    Status(String),
    /// An error inside an array; a top-level error is the `Err` of [`Client::command`].
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

/// A connection to one server.
///
/// ```
/// use tollgate_testkit::redis::{Reply, Server};
///
/// let server = Server::start();
/// let mut client = server.client()?;
/// assert_eq!(client.command(&["INCRBY", "hits", "41"])?, Reply::Integer(41));
/// assert_eq!(
///     client.command(&["INCR", "hits", "by", "mistake"]).unwrap_err(),
///     "ERR wrong number of arguments for 'incr' command",
/// );
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Client(BufReader<Stream>);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Reply {
    /// The text of a status, of bytes or of a number.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Status(text) | Self::Error(text) => Some(text.clone()),
            Self::Integer(number) => Some(number.to_string()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Nil | Self::Array(_) => None,
        }
    }

    /// The number, even if it was sent as text.
    pub fn integer(&self) -> Option<i64> {
        self.text()?.parse().ok()
    }

    /// The bytes, if it is bytes.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The replies of an array; empty if it isn't one.
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    /// Whether it is [`Nil`](Self::Nil).
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => write!(f, "{text}"),
            Self::Error(text) => write!(f, "error: {text}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Nil => write!(f, "nil"),
            Self::Array(items) => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

impl PartialEq<&str> for Reply {
    fn eq(&self, other: &&str) -> bool {
        self.text().is_some_and(|text| text == *other)
    }
}

impl Client {
    /// Connects over TCP.
    ///
    /// # Errors
    /// The address and the cause, if it can't be reached.
    pub fn tcp(address: SocketAddr) -> Result<Self, String> {
        Self::with_timeout(RESPONSE_TIMEOUT, address)
    }

    /// Connects to a UNIX socket.
    ///
    /// # Errors
    /// The socket and the cause, if it can't be reached.
    pub fn unix(path: &Path) -> Result<Self, String> {
        UnixStream::connect(path)
            .and_then(|stream| Self::from_stream(Stream::Unix(stream), RESPONSE_TIMEOUT))
            .map_err(|error| format!("can't connect to {}: {error}", path.display()))
    }

    /// Sets how long to wait for each reply from here on, more than zero.
    ///
    /// # Errors
    /// If the socket doesn't take it.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), String> {
        let set = self.0.get_ref().set_timeout(timeout);
        set.map_err(|error| format!("can't set a timeout of {timeout:?}: {error}"))
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    /// The server's own error text, or a timeout. After a timeout the connection can't be used again: a late
    /// reply would be taken for the next command's.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, String> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        let answer = self.0.get_mut().write_all(&request);
        match answer.and_then(|()| self.read()) {
            Ok(Reply::Error(text)) => Err(text),
            Ok(reply) => Ok(reply),
            Err(error) => {
                let name = words.first().map_or(&[][..], AsRef::as_ref);
                let name = String::from_utf8_lossy(name);
                Err(format!("no answer to {name}: {error}"))
            }
        }
    }

    /// One field of `INFO` and its section, such as `("replication", "role")`.
    ///
    /// # Errors
    /// If the server doesn't answer, or has no such field.
    pub fn info(&mut self, section: &str, field: &str) -> Result<String, String> {
        let reply = self.command(&["INFO", section])?;
        let text = reply.text().unwrap_or_default();
        let line = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned());
        text.lines()
            .find_map(line)
            .ok_or_else(|| format!("INFO {section} has no {field}"))
    }

    /// Connects over TCP, with this timeout for connecting and for each reply.
    pub(super) fn with_timeout(timeout: Duration, address: SocketAddr) -> Result<Self, String> {
        TcpStream::connect_timeout(&address, timeout)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                Self::from_stream(Stream::Tcp(stream), timeout)
            })
            .map_err(|error| format!("can't connect to {address}: {error}"))
    }

    fn from_stream(stream: Stream, timeout: Duration) -> io::Result<Self> {
        stream.set_timeout(timeout)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let odd = || io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} isn't RESP2"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(odd)?;
        let number = || rest.parse::<i64>().map_err(|_| odd());
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => Reply::Bulk(self.read_bytes(length)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => {
                    Reply::Array((0..length).map(|_| self.read()).collect::<Result<_, _>>()?)
                }
                Err(_) => Reply::Nil,
            },
            _ => return Err(odd()),
        })
    }

    fn read_bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

impl Stream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

//! A client of services: addresses, connections, and single HTTP requests.
//!
//! A command sends one request and ends, so it needs neither a pool nor a runtime. The same code serves TCP, TLS and
//! Unix sockets.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The timeout to connect, to read and to write.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest response that is read.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// The most header fields of a response.
const MAX_RESPONSE_HEADERS: usize = 64;

/// The address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAddress {
    /// A TCP address.
    Tcp {
        /// A host name or an IP address.
        host: String,
        /// The port.
        port: u16,
        /// Whether the address is an https URL, so that the connection uses TLS.
        is_https: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for ServiceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "no address {text:?}: write 127.0.0.1:6070, unix:/path/to/socket, or https://limits.example:6070"
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.split('?').next().unwrap_or_default();
            return match path {
                "" => Err(wrong()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let is_https = text.starts_with("https://");
        let rest = text
            .strip_prefix("https://")
            .or(text.strip_prefix("http://"));
        let rest = rest.unwrap_or(text).trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').unwrap_or(("127.0.0.1", rest));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        let port = port.parse().ok().filter(|_| host.bytes().all(is_plain));
        match port {
            Some(port) if !host.is_empty() => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
                is_https,
            }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connection of any transport.
pub(crate) trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// Connects to a listener without TLS.
pub(crate) fn connect(place: &ServiceAddress) -> io::Result<Box<dyn Connection>> {
    match place {
        ServiceAddress::Tcp { host, port, .. } => Ok(Box::new(connect_tcp(host, *port)?)),
        ServiceAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
    }
}

/// Connects to the first address of a host that accepts.
pub(crate) fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name leads nowhere");
    for address in format!("{host}:{port}").to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// An HTTP request.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    /// A JSON body, or an empty one.
    pub(crate) body: String,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl HttpRequest {
    /// Sends the request over the stream, and reads the response.
    pub(crate) fn send(
        &self,
        place: &ServiceAddress,
        mut stream: impl Connection,
    ) -> io::Result<HttpResponse> {
        let host = match place {
            ServiceAddress::Tcp { .. } => place.to_string(),
            ServiceAddress::Unix(_) => "localhost".to_owned(),
        };
        let token = self.token.as_ref();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "{} {} HTTP/1.1\r\nhost: {host}\r\n{}connection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{}",
            self.method,
            self.path,
            token.unwrap_or_default(),
            self.body.len(),
            self.body
        );
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let mut read = Vec::new();
        let mut bytes = [0; 16 * 1024];
        loop {
            if let Some(reply) = HttpResponse::parse(&read)? {
                return Ok(reply);
            }
            match stream.read(&mut bytes) {
                Ok(0) => return Err(invalid_response("it ended before its answer did")),
                Ok(length) => read.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if read.len() > MAX_RESPONSE_BYTES {
                return Err(invalid_response(
                    "its answer is longer than anything that it says",
                ));
            }
        }
    }
}

impl HttpResponse {
    /// The response, once it was read in full.
    fn parse(read: &[u8]) -> io::Result<Option<Self>> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_RESPONSE_HEADERS];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(read);
        let parsed = parsed.map_err(|_| invalid_response("it doesn't speak HTTP"))?;
        let (httparse::Status::Complete(end), Some(status)) = (parsed, head.code) else {
            return Ok(None);
        };
        let mut fields = head.headers.iter();
        let length = fields.find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|field| str::from_utf8(field.value).ok()?.parse().ok());
        let length: usize = length.ok_or_else(|| invalid_response("its answer has no length"))?;
        let Some(body) = read[end..].get(..length) else {
            return Ok(None);
        };
        let body = str::from_utf8(body).map_err(|_| invalid_response("its answer is no text"))?;
        let body = body.to_owned();
        Ok(Some(Self { status, body }))
    }
}

/// The error for a response that a Tollgate service wouldn't send.
pub(crate) fn invalid_response(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The first line of a file that has a secret.
pub(crate) fn read_secret_line(file: &std::path::Path) -> io::Result<Option<String>> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    Ok(line.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_once_all_of_it_is_there() {
        let text = "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\n{}";
        for end in 0..text.len() {
            let found = HttpResponse::parse(&text.as_bytes()[..end]).unwrap();
            assert!(found.is_none(), "{end}");
        }
        let reply = HttpResponse::parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (200, "{}"));
        for other in ["SSH-2.0-x\r\n\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(HttpResponse::parse(other.as_bytes()).is_err(), "{other}");
        }
    }
}

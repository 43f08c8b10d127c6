//! The addresses that a service listens on, its protocols, and the peers of connections.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use derive_more::{Display, Error};

/// The default mode of a UNIX socket: only the service's own user may connect.
const OWNER_ONLY: u32 = 0o600;

/// The address of a listener.
///
/// ```
/// use tollgate_server::Address;
///
/// for text in ["127.0.0.1:8080", "unix:/run/tollgate.sock", "unix:/run/a?mode=0660", "off", "[::1]:0"] {
///     assert_eq!(text.parse::<Address>()?.to_string(), text);
/// }
/// // A port alone is one of this machine, for this machine.
/// assert_eq!("8080".parse::<Address>()?.to_string(), "127.0.0.1:8080");
/// assert!("example".parse::<Address>().is_err());
/// # Ok::<(), tollgate_server::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address. Port 0 is any free port.
    Tcp(SocketAddr),
    /// A UNIX socket in the file system, and the mode of its file, which decides who may connect.
    Unix(PathBuf, u32),
    /// No listener.
    Disabled,
}

/// The text is no valid address: see [`Address`].
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[display("no address {_0:?}: write {}", self.expected_form())]
pub struct AddressError(#[error(not(source))] String);

impl Address {
    /// The form that clients connect to: without the mode of a UNIX socket.
    pub(crate) fn client_form(&self) -> String {
        match self {
            Self::Unix(path, _) => format!("unix:{}", path.display()),
            other => other.to_string(),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text == "off" {
            return Ok(Self::Disabled);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let (path, mode) = match path.split_once('?') {
                None => (path, Some(OWNER_ONLY)),
                Some((path, option)) => (path, option.strip_prefix("mode=").and_then(parse_mode)),
            };
            return match mode {
                Some(mode) if !path.is_empty() => Ok(Self::Unix(path.into(), mode)),
                _ => Err(AddressError(text.to_owned())),
            };
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        let mut found = text
            .to_socket_addrs()
            .map_err(|_| AddressError(text.to_owned()))?;
        let first = found.next().ok_or_else(|| AddressError(text.to_owned()))?;
        Ok(Self::Tcp(first))
    }
}

/// Parses permissions as `chmod` takes them: `660` or `0660`.
fn parse_mode(text: &str) -> Option<u32> {
    let is_octal = matches!(text.len(), 3 | 4) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
    mode.filter(|mode| *mode <= 0o777)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, OWNER_ONLY) => write!(f, "unix:{}", path.display()),
            Self::Unix(path, mode) => write!(f, "unix:{}?mode={mode:04o}", path.display()),
            Self::Disabled => f.write_str("off"),
        }
    }
}

impl AddressError {
    fn expected_form(&self) -> &'static str {
        if self.0.starts_with("unix:") {
            "unix:/path/to/socket, or unix:/path/to/socket?mode=0660"
        } else {
            "127.0.0.1:8080, unix:/path/to/socket, or off"
        }
    }
}

/// The protocol of a listener. The first three are for clients.
///
/// ```
/// use tollgate_server::Protocol;
///
/// for one in Protocol::ALL {
///     assert_eq!(one.to_string().parse(), Ok(one));
/// }
/// assert_eq!("grcp".parse::<Protocol>().unwrap_err(), "no listener \"grcp\": write http, grpc, resp, admin or metrics");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP and JSON.
    Http,
    /// Envoy's protocol.
    Grpc,
    /// Redis' protocol.
    Resp,
    /// HTTP for operators and health checks.
    Admin,
    /// HTTP for Prometheus.
    Metrics,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 5] = [
        Self::Http,
        Self::Grpc,
        Self::Resp,
        Self::Admin,
        Self::Metrics,
    ];
    /// The protocols whose requests are timed.
    pub(crate) const TIMED: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|one| one.to_string() == text).ok_or_else(|| {
            format!("no listener {text:?}: write http, grpc, resp, admin or metrics")
        })
    }
}

/// The peer of a connection, as the system reports it; nothing in it is the client's own claim.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    /// The user and the process at the other end.
    #[display("uid {user}{}", process.map(|id| format!(" pid {id}")).unwrap_or_default())]
    Unix {
        user: u32,
        process: Option<i32>,
    },
    /// The client disconnected before its address was read.
    #[display("unknown")]
    Disconnected,
}

/// The origin of a client, for fair shares of connections: an IPv4 address; an IPv6 /64 network, as one site has as
/// many addresses as it likes; or the user of a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientNetwork {
    kind: u8,
    bits: u64,
}

impl Peer {
    pub(crate) fn network(self) -> ClientNetwork {
        let (kind, bits) = match self {
            Self::Tcp(address) => match address.ip().to_canonical() {
                IpAddr::V4(address) => (4, u64::from(address.to_bits())),
                IpAddr::V6(address) => {
                    let [a, b, c, d, e, f, g, h, ..] = address.octets();
                    (6, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
                }
            },
            Self::Unix { user, .. } => (0, u64::from(user)),
            Self::Disconnected => (1, 0),
        };
        ClientNetwork { kind, bits }
    }
}

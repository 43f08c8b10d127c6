//! An address as people write it: a port, a UNIX socket with its mode, or nowhere.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Who may connect to a UNIX socket if nobody says: whoever runs the service.
const OWN: u32 = 0o600;

/// Where to listen.
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
    /// A port; port 0 is any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system, and its mode: who may connect.
    Unix(PathBuf, u32),
    /// Nowhere.
    Off,
}

/// No address: see [`Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

impl Address {
    /// As those write it who connect: who else may is nothing to them.
    pub(crate) fn to_connect(&self) -> String {
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
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let (path, mode) = match path.split_once('?') {
                None => (path, Some(OWN)),
                Some((path, option)) => (path, option.strip_prefix("mode=").and_then(mode)),
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

/// Permissions as `chmod` takes them: `660` or `0660`.
fn mode(text: &str) -> Option<u32> {
    let is_octal = matches!(text.len(), 3 | 4) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
    mode.filter(|mode| *mode <= 0o777)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, OWN) => write!(f, "unix:{}", path.display()),
            Self::Unix(path, mode) => write!(f, "unix:{}?mode={mode:04o}", path.display()),
            Self::Off => f.write_str("off"),
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        let write = if text.starts_with("unix:") {
            "unix:/path/to/socket, or unix:/path/to/socket?mode=0660"
        } else {
            "127.0.0.1:8080, unix:/path/to/socket, or off"
        };
        write!(f, "no address {text:?}: write {write}")
    }
}

impl std::error::Error for AddressError {}

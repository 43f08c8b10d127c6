//! Checks before a start: whether addresses are free, certificates are valid, and state can be kept.
//!
//! The checks serve nothing and leave nothing behind: an address is bound but not listened on, so that no client
//! connects by mistake, and a test file in a folder is removed immediately.

use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use tokio::net::{TcpSocket, UnixStream};

use crate::address::Address;
use crate::connection_limit::DescriptorLimit;
use crate::credentials::check_admin_exposure;
use crate::settings::Settings;
use crate::start_error::StartError;
use crate::state;
use crate::tls::{Certificates, ExpiryWarning, Tls};

/// The outcome of a check that permits a start.
///
/// ```
/// use tollgate_server::preflight::CheckOutcome;
///
/// let found = CheckOutcome::Warning("it ends tomorrow".to_owned());
/// assert_eq!(found.message(), "it ends tomorrow");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The check passed; the text describes what was found.
    Passed(String),
    /// The service would start, but an operator should know this.
    Warning(String),
}

impl CheckOutcome {
    /// The description of the outcome.
    pub fn message(&self) -> &str {
        match self {
            Self::Passed(text) | Self::Warning(text) => text,
        }
    }
}

/// Checks that certificates can be read and match their keys, and when they expire.
///
/// # Errors
/// Why a service wouldn't start with them, or clients would reject them.
///
/// ```
/// use tollgate_server::{Protocol, Tls, preflight};
///
/// let (certificate, key) = ("no/such.pem".into(), "no/such.key".into());
/// let tls = Tls { certificate, key, client_ca: None, revocation_lists: None, listeners: Protocol::ALL.to_vec() };
/// assert!(preflight::certificates(tls).unwrap_err().contains("no/such.pem"));
/// ```
pub fn certificates(tls: Tls) -> Result<CheckOutcome, String> {
    let shown = tls.certificate.display().to_string();
    let read = Certificates::read(tls)?;
    match read.ending() {
        None => Ok(CheckOutcome::Passed(format!(
            "{shown} holds until {}",
            read.not_after_shown()
        ))),
        Some(ExpiryWarning::Soon(days, end)) => Ok(CheckOutcome::Warning(format!(
            "{shown} holds until {end}, in {days} days: renew it"
        ))),
        Some(ExpiryWarning::OldList(until)) => Ok(CheckOutcome::Warning(format!(
            "the list of revoked certificates should have been replaced by {until}"
        ))),
        Some(ExpiryWarning::Expired(end)) => Err(format!(
            "{shown} ended at {end}: clients reject it; renew it"
        )),
    }
}

/// Checks that only this machine reaches the admin listener, or that operators are authenticated.
///
/// # Errors
/// The admin listener is open to other machines.
///
/// ```
/// use tollgate_server::{AdminToken, Settings, preflight};
///
/// let open = Settings { admin: "0.0.0.0:6070".parse()?, admin_token: AdminToken::Generated(None), ..Settings::default() };
/// assert!(preflight::admin_exposure(&open).is_err());
/// assert!(preflight::admin_exposure(&Settings::default()).is_ok());
/// # Ok::<(), tollgate_server::AddressError>(())
/// ```
pub fn admin_exposure(settings: &Settings) -> Result<(), StartError> {
    check_admin_exposure(settings)
}

/// Checks that a service could listen on an address now. `taken` are the addresses of its other listeners.
///
/// # Errors
/// Why it couldn't, with the start's error.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate_server::{Address, preflight};
///
/// let other = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address: Address = other.local_addr()?.to_string().parse()?;
/// let why = preflight::address("HTTP", &address, &[]).await.unwrap_err();
/// assert!(why.to_string().contains("is in use by another process"));
/// drop(other);
/// assert!(preflight::address("HTTP", &address, &[]).await.is_ok());
/// # Ok(())
/// # }
/// ```
pub async fn address(
    protocol: &'static str,
    address: &Address,
    taken: &[&Address],
) -> Result<(), StartError> {
    let tried = match address {
        Address::Disabled => Ok(()),
        Address::Tcp(tcp) if taken.iter().any(|other| is_same_port(*tcp, other)) => Err(in_use()),
        Address::Tcp(tcp) => bind(*tcp),
        Address::Unix(path, _) => socket(path).await,
    };
    tried.map_err(|error| StartError::Listen {
        protocol,
        address: address.clone(),
        error,
    })
}

fn in_use() -> io::Error {
    io::ErrorKind::AddrInUse.into()
}

/// Binds without listening, so nobody can connect. Lingering connections of a previous service don't matter, as at the
/// start.
fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// Whether two listeners of one service have the same port: a port that isn't listened on can be bound twice.
fn is_same_port(one: SocketAddr, other: &Address) -> bool {
    let Address::Tcp(other) = other else {
        return false;
    };
    // The unspecified IPv6 address covers IPv4, too.
    let covers =
        |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

/// Checks that a socket can be created: its path is free, or has the socket of a process that is gone.
async fn socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                write_in(folder(path))
            }
            _ => Err(in_use()),
        },
        Ok(_) => Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_in(folder(path)),
        Err(error) => Err(error),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Checks that this process may create files in a folder.
fn write_in(folder: &Path) -> io::Result<()> {
    let own = folder.join(format!(".tollgate-check-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&own)?;
    fs::remove_file(&own)
}

/// Checks that a file could be written, such as the ready file.
///
/// # Errors
/// Why it can't be written.
///
/// ```
/// use tollgate_server::preflight;
///
/// assert!(preflight::file(std::path::Path::new("no/such/folder/ready.json")).is_err());
/// ```
pub fn file(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    write_in(folder(path))
}

/// Checks that state can be kept in a folder, and reports its owner. A missing folder would be created.
///
/// # Errors
/// Why the folder can't be used, and what to do.
///
/// ```
/// use tollgate_server::preflight::{self, CheckOutcome};
///
/// # let scratch = tollgate_testkit::temp_folder::TempFolder::new("preflight-state");
/// let folder = scratch.path("not/there/yet");
/// assert!(matches!(preflight::state(&folder), Ok(CheckOutcome::Passed(_))));
/// assert!(!folder.exists());
/// ```
pub fn state(path: &Path) -> Result<CheckOutcome, String> {
    let shown = path.display();
    let cant = |error: io::Error| {
        format!("can't keep state in {shown}: {error}; choose another folder by --state")
    };
    // The folder itself, or its nearest existing parent.
    let mut there = path;
    while let Err(error) = fs::metadata(there) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(cant(error));
        }
        there = folder(there);
    }
    let found = fs::metadata(there).map_err(cant)?;
    if !found.is_dir() {
        return Err(cant(io::ErrorKind::NotADirectory.into()));
    }
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    write_in(there).map_err(|error| {
        let place = there.display();
        format!(
            "can't keep state in {shown}: {place} belongs to user {owner} with mode {mode:04o}: {error}; \
             give it to the user of the service, or choose another folder by --state"
        )
    })?;
    if there != path {
        let place = there.display();
        return Ok(CheckOutcome::Passed(format!(
            "{shown} isn't there, and would be made in {place}"
        )));
    }
    check_lock(path)?;
    let found = format!("{shown} can be written; it belongs to user {owner}, with mode {mode:04o}");
    Ok(if mode & 0o077 == 0 {
        CheckOutcome::Passed(found)
    } else {
        CheckOutcome::Warning(format!("{found}: others may see what is counted"))
    })
}

/// Checks that no other process keeps its state there.
fn check_lock(folder: &Path) -> Result<(), String> {
    let path = folder.join("lock");
    let lock = match fs::File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("can't keep state in {}: {error}", path.display())),
    };
    // A shared lock, released on return: it doesn't keep a second check out.
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(state::in_use(folder)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Checks that there are file descriptors for this many connections.
///
/// ```
/// use tollgate_server::preflight::{self, CheckOutcome};
///
/// assert!(matches!(preflight::descriptors(1), CheckOutcome::Passed(_)));
/// assert!(matches!(preflight::descriptors(usize::MAX), CheckOutcome::Warning(_)));
/// ```
pub fn descriptors(connections: usize) -> CheckOutcome {
    let descriptors = DescriptorLimit::raise();
    let (limit, granted) = (descriptors.limit, descriptors.for_clients());
    if connections <= granted {
        return CheckOutcome::Passed(format!("{limit}, of which {granted} are for clients"));
    }
    CheckOutcome::Warning(format!(
        "{limit}, of which {granted} are for clients: fewer than the {connections} of --max-connections; raise the \
         limit (LimitNOFILE, ulimit -n), or lower --max-connections"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_all_addresses_is_also_that_of_one() {
        for (one, other, is_same) in [
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("0.0.0.0:80", "127.0.0.1:81", false),
            ("0.0.0.0:0", "0.0.0.0:0", false),
            ("127.0.0.1:80", "off", false),
        ] {
            let other: Address = other.parse().unwrap();
            assert_eq!(
                is_same_port(one.parse().unwrap(), &other),
                is_same,
                "{one} {other}"
            );
        }
    }
}

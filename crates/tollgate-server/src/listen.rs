//! Where clients come in: an address of TCP or a UNIX socket, bound before anything is served.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Where to listen.
///
/// ```
/// use tollgate_server::Address;
///
/// for text in ["127.0.0.1:8080", "unix:/run/tollgate.sock", "off", "[::1]:0"] {
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
    /// A socket in the file system.
    Unix(PathBuf),
    /// Nowhere.
    Off,
}

/// No address: see [`Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

/// What is listened on.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A client that came in.
#[derive(Debug)]
pub(crate) enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens there; none if nowhere.
    pub(crate) async fn bind(address: &Address) -> io::Result<Option<Self>> {
        Ok(Some(match address {
            Address::Off => return Ok(None),
            Address::Tcp(address) => Self::Tcp(TcpListener::bind(address).await?),
            Address::Unix(path) => {
                remove_if_dead(path).await?;
                Self::Unix(UnixListener::bind(path)?, path.clone())
            }
        }))
    }

    /// Where it listens in the end.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    async fn accept(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written whole; to wait for more would only delay them.
                stream.set_nodelay(true)?;
                Ok(Client::Tcp(stream))
            }
            Self::Unix(listener, _) => Ok(Client::Unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Whoever starts next removes what is left.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket that nobody listens on was left by a process that is gone.
async fn remove_if_dead(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()));
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

/// Takes clients, each in a task of its own, until it is dropped. One beyond the most is told so and sent away.
pub(crate) async fn take<F>(
    listener: Listener,
    open: Arc<Open>,
    full: &'static [u8],
    serve: impl Fn(Client, Place) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    // Those who are served end with this.
    let mut served = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while served.try_join_next().is_some() {}
        match accepted {
            Ok(client) => match open.enter() {
                Some(place) => drop(served.spawn(serve(client, place))),
                None => send_away(client, full).await,
            },
            // Out of file descriptors, or a client that left again: others may still come.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Tells a client that there are too many, if it listens at once.
async fn send_away(client: Client, full: &'static [u8]) {
    let wait = Duration::from_millis(10);
    match client {
        Client::Tcp(mut stream) => drop(tokio::time::timeout(wait, stream.write_all(full)).await),
        Client::Unix(mut stream) => drop(tokio::time::timeout(wait, stream.write_all(full)).await),
    }
}

/// How many connections are open, and may be.
#[derive(Debug)]
pub(crate) struct Open {
    now: AtomicUsize,
    most: usize,
}

/// One of the connections that may be open.
#[derive(Debug)]
pub(crate) struct Place(Arc<Open>);

impl Open {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let now = AtomicUsize::new(0);
        Arc::new(Self { now, most })
    }

    fn enter(self: &Arc<Self>) -> Option<Place> {
        let before = self.now.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(self));
        // The place that is too much leaves as it is dropped.
        (before < self.most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(AddressError(text.to_owned())),
                _ => Ok(Self::Unix(path.into())),
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Off => f.write_str("off"),
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "no address {text:?}: write 127.0.0.1:8080, unix:/path/to/socket, or off"
        )
    }
}

impl std::error::Error for AddressError {}

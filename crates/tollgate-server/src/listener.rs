//! The listeners' sockets: TCP addresses and UNIX sockets, bound before the first client is served.

use std::fs::{File, Permissions};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::address::{Address, Peer, Protocol};
use crate::connection_limit::{ConnectionPermit, ConnectionStart, ListenerConnections};
use crate::drain::{GRACE, ShutdownNotice, Stage};
use crate::protocol_errors::{ErrorKind, ProtocolErrors};
use crate::tls::Handshake;

/// How many connections wait to be accepted on a UNIX socket: as many as on TCP.
const BACKLOG: u32 = 1_024;

/// The socket of a listener.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Handshake>),
    Unix(UnixListener, UnixSocketFile),
}

/// The file of a UNIX socket.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    path: PathBuf,
    mode: u32,
    /// The device and inode of the file: at shutdown, another process' file may have its place.
    file: Option<(u64, u64)>,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Client {
    Tcp(TcpStream),
    /// A connection that has to begin with a TLS handshake.
    Tls(TcpStream, Handshake),
    Unix(UnixStream),
}

impl Client {
    pub(crate) fn peer(&self) -> Peer {
        let peer = match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => stream.peer_addr().map(Peer::Tcp),
            Self::Unix(stream) => stream.peer_cred().map(|found| Peer::Unix {
                user: found.uid(),
                process: found.pid(),
            }),
        };
        peer.unwrap_or(Peer::Disconnected)
    }
}

impl Listener {
    /// Binds an address, with or without TLS; `None` if the listener is disabled. UNIX sockets have no TLS.
    pub(crate) async fn bind(
        address: &Address,
        tls: Option<Handshake>,
    ) -> io::Result<Option<Self>> {
        Ok(Some(match address {
            Address::Disabled => return Ok(None),
            Address::Tcp(address) => Self::Tcp(TcpListener::bind(address).await?, tls),
            Address::Unix(path, mode) => {
                remove_if_dead(path).await?;
                let listener = bind_unix(path, *mode)?;
                let socket = UnixSocketFile {
                    path: path.clone(),
                    mode: *mode,
                    file: file_identity(path),
                };
                Self::Unix(listener, socket)
            }
        }))
    }

    /// The address that is bound, with the port that the system chose for port 0.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener, _) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, UnixSocketFile { path, mode, .. }) => {
                Ok(Address::Unix(path.clone(), *mode))
            }
        }
    }

    pub(crate) const fn connection_start(&self) -> ConnectionStart {
        match self {
            Self::Tcp(_, Some(_)) => ConnectionStart::WithHandshake,
            Self::Tcp(_, None) | Self::Unix(..) => ConnectionStart::Immediately,
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Client>> {
        match self {
            Self::Tcp(listener, tls) => {
                let accepted = listener.poll_accept(cx);
                accepted.map(|accepted| Client::by_tcp(accepted?.0, tls.as_ref()))
            }
            Self::Unix(listener, ..) => {
                let accepted = listener.poll_accept(cx);
                accepted.map_ok(|(stream, _)| Client::Unix(stream))
            }
        }
    }

    /// Accepts a pending connection without waiting; an error if there is none. It calls the system directly, because
    /// the runtime may not have been notified of the latest connections yet.
    fn accept_now(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener, tls) => {
                // A duplicate of the descriptor, as the runtime owns the original.
                let listener = listener.as_fd().try_clone_to_owned()?;
                let (stream, _) = std::net::TcpListener::from(listener).accept()?;
                stream.set_nonblocking(true)?;
                Client::by_tcp(TcpStream::from_std(stream)?, tls.as_ref())
            }
            Self::Unix(listener, ..) => {
                let listener = listener.as_fd().try_clone_to_owned()?;
                let (stream, _) = std::os::unix::net::UnixListener::from(listener).accept()?;
                stream.set_nonblocking(true)?;
                Ok(Client::Unix(UnixStream::from_std(stream)?))
            }
        }
    }
}

impl Client {
    fn by_tcp(stream: TcpStream, tls: Option<&Handshake>) -> io::Result<Self> {
        // Responses are written whole, so Nagle's algorithm would only delay them.
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Self::Tcp(stream),
            Some(tls) => Self::Tls(stream, tls.clone()),
        })
    }
}

/// Binds a socket that nobody can connect to before its mode is set: until it listens, the system rejects connections.
fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let allowed = std::fs::set_permissions(path, Permissions::from_mode(mode));
    let listening = allowed.and_then(|()| socket.listen(BACKLOG));
    if listening.is_err() {
        let _ = std::fs::remove_file(path);
    }
    listening
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, UnixSocketFile { path, file, .. }) = self
            && file.is_some()
            && *file == file_identity(path)
        {
            // The next start removes a file that stays.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The identity of a file: its device and inode.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Removes the socket of a process that is gone. A rejected connection shows that nobody listens on it.
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

/// The settings and counters by which a listener accepts clients.
pub(crate) struct AcceptSettings {
    pub(crate) open: Arc<ListenerConnections>,
    /// The answer to a client beyond the connection limit.
    pub(crate) full_answer: &'static [u8],
    pub(crate) notice: ShutdownNotice,
    pub(crate) protocol: Protocol,
    pub(crate) errors: Arc<ProtocolErrors>,
}

/// Accepts clients, each in a task of its own, until the service closes; then waits until all tasks have ended. A
/// client beyond the connection limit gets `full_answer`, and its connection is closed.
pub(crate) async fn accept_clients<F>(
    listener: Listener,
    taking: AcceptSettings,
    serve: impl Fn(Client, ConnectionPermit) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let AcceptSettings {
        open,
        full_answer: full,
        mut notice,
        protocol,
        errors,
    } = taking;
    let rejected = |peer, why: &str| {
        errors
            .source(protocol, peer)
            .record(ErrorKind::Rejected, &why)
    };
    let mut spare = SpareDescriptor::default();
    // The tasks of the accepted clients: dropping the set aborts them.
    let mut served = JoinSet::new();
    loop {
        let accepted = poll_fn(|cx| match notice.poll_stage(cx, Stage::Closing) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => listener.poll_accept(cx).map(Some),
        });
        let accepted = accepted.await;
        while served.try_join_next().is_some() {}
        match accepted {
            Some(Ok(client)) => match open.acquire(client.peer().network()) {
                Some(place) if !spare.is_used() => drop(served.spawn(serve(client, place))),
                Some(_) => {
                    rejected(client.peer(), "no file descriptor is left");
                    reject_client(client, full).await;
                    spare.reopen();
                }
                None => {
                    rejected(client.peer(), "the connection limit is reached");
                    reject_client(client, full).await;
                }
            },
            // The descriptor of the spare lets the next pass accept the pending client, which then gets `full_answer`.
            Some(Err(error)) if is_out_of_descriptors(&error) && spare.release() => {}
            // The client has left already, or no descriptor is free at all. A short pause, then other clients may come.
            Some(Err(_)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                spare.reopen();
            }
            None => break,
        }
    }
    // Clients in the backlog see an open connection. The system would reset them when the listener closes.
    while let Ok(client) = listener.accept_now()
        && let Some(place) = open.acquire(client.peer().network())
    {
        served.spawn(serve(client, place));
    }
    drop(listener);
    let mut wait_until_empty = pin!(async { while served.join_next().await.is_some() {} });
    // Handshakes get the grace period; then they are aborted, and only served connections are waited for.
    if timeout(GRACE, wait_until_empty.as_mut()).await.is_err() {
        open.abort_handshakes();
        wait_until_empty.await;
    }
}

/// A file descriptor in reserve for a client that connects when all others are in use: it gets an answer instead of
/// hanging.
struct SpareDescriptor(Option<File>);

impl Default for SpareDescriptor {
    fn default() -> Self {
        Self(File::open("/dev/null").ok())
    }
}

impl SpareDescriptor {
    const fn is_used(&self) -> bool {
        self.0.is_none()
    }

    /// Closes the spare descriptor; `false` if it was closed already.
    fn release(&mut self) -> bool {
        self.0.take().is_some()
    }

    fn reopen(&mut self) {
        if self.is_used() {
            *self = Self::default();
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    let own = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    own.iter().any(|one| code == Some(one.raw_os_error()))
}

/// Writes the rejection to a client, if its socket takes it within milliseconds.
async fn reject_client(client: Client, full: &'static [u8]) {
    let wait = Duration::from_millis(10);
    match client {
        Client::Tcp(mut stream) => drop(timeout(wait, stream.write_all(full)).await),
        // A client that starts with a TLS handshake can't read plain bytes.
        Client::Tls(..) => {}
        Client::Unix(mut stream) => drop(timeout(wait, stream.write_all(full)).await),
    }
}

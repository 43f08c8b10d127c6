//! Where clients come in: an address of TCP or a UNIX socket, bound before anything is served.

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

/// As many as wait to be taken, as for TCP.
const BACKLOG: u32 = 1_024;

/// What is listened on.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Handshake>),
    Unix(UnixListener, UnixSocketFile),
}

/// A UNIX socket in the file system.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    path: PathBuf,
    mode: u32,
    /// Which file it is, by device and number: another may be there when this one's time is over.
    file: Option<(u64, u64)>,
}

/// A client that came in.
#[derive(Debug)]
pub(crate) enum Client {
    Tcp(TcpStream),
    /// One that has to begin with TLS.
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
    /// Listens there, with TLS or without; none if nowhere. A UNIX socket has no TLS.
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

    /// Where it listens in the end.
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

    /// One that waits to be taken: an error if none does. It asks the system, which knows of clients that this process
    /// wasn't told of yet.
    fn accept_now(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener, tls) => {
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
        // Answers are written whole; to wait for more would only delay them.
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Self::Tcp(stream),
            Some(tls) => Self::Tls(stream, tls.clone()),
        })
    }
}

/// Binds a socket that nobody can connect to before it has its mode: until it listens, everybody is refused.
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
            // Whoever starts next removes what is left.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Which file is there.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
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

/// What a listener needs to take clients.
pub(crate) struct AcceptSettings {
    pub(crate) open: Arc<ListenerConnections>,
    /// What a client is told that is one too many.
    pub(crate) full_answer: &'static [u8],
    pub(crate) notice: ShutdownNotice,
    pub(crate) protocol: Protocol,
    pub(crate) errors: Arc<ProtocolErrors>,
}

/// Takes clients, each in a task of its own, until the service closes; then waits until all are gone. One beyond the most
/// is told so and sent away.
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
    let refused = |peer, why: &str| {
        errors
            .source(protocol, peer)
            .record(ErrorKind::Rejected, &why)
    };
    let mut spare = SpareDescriptor::default();
    // Those who are served end with this.
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
                    refused(client.peer(), "no file descriptor is left");
                    reject_client(client, full).await;
                    spare.reopen();
                }
                None => {
                    refused(client.peer(), "as many connections as may be are open");
                    reject_client(client, full).await;
                }
            },
            // What the spare leaves is for the one that waits, who is told so.
            Some(Err(error)) if is_out_of_descriptors(&error) && spare.release() => {}
            // A client that left again, or nothing is left at all: others may still come.
            Some(Err(_)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                spare.reopen();
            }
            None => break,
        }
    }
    // Who is connected already was promised an answer: the system would reset them.
    while let Ok(client) = listener.accept_now()
        && let Some(place) = open.acquire(client.peer().network())
    {
        served.spawn(serve(client, place));
    }
    drop(listener);
    let mut wait_until_empty = pin!(async { while served.join_next().await.is_some() {} });
    if timeout(GRACE, wait_until_empty.as_mut()).await.is_err() {
        open.abort_handshakes();
        wait_until_empty.await;
    }
}

/// A descriptor that is kept for a client who comes when all others are taken: to be told, not to hang.
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

    /// Frees it; no if it was free already.
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

/// Tells a client that there are too many, if it listens at once.
async fn reject_client(client: Client, full: &'static [u8]) {
    let wait = Duration::from_millis(10);
    match client {
        Client::Tcp(mut stream) => drop(timeout(wait, stream.write_all(full)).await),
        // Whoever speaks TLS would understand nothing.
        Client::Tls(..) => {}
        Client::Unix(mut stream) => drop(timeout(wait, stream.write_all(full)).await),
    }
}

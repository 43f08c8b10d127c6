//! TLS on the listeners: whose certificates are shown and taken, and how a connection begins with it.
//!
//! What is in force is replaced as a whole, so a handshake is by the files before or by those after, never by some of
//! both. Connections that are there stay.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use derive_more::Display;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollgate::clock::{Clock, Wall};

use crate::address::Protocol;
use crate::connection_limit::ConnectionPermit;
use crate::log::{Level, Log, format_unix_seconds};

mod expiry_dates;
mod tls_files;

use tls_files::{TlsConfigs, TlsFiles};

const DAY: i64 = 86_400;
/// A certificate that ends within so many days is worth a word each day.
const SOON: i64 = 14;

/// Certificates, and which listeners show them. Those on UNIX sockets don't.
///
/// ```
/// use tollgate_server::{Protocol, Settings, Tls};
///
/// let tls = Tls {
///     certificate: "server.pem".into(),
///     key: "server.key".into(),
///     client_ca: Some("clients.pem".into()),
///     revocation_lists: None,
///     listeners: vec![Protocol::Grpc],
/// };
/// let settings = Settings { tls: Some(tls), ..Settings::default() };
/// assert!(settings.tls.is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file: the service's certificate, then those between it and an authority.
    pub certificate: PathBuf,
    /// A PEM file: its key.
    pub key: PathBuf,
    /// A PEM file: who signs the clients' certificates. With it a client must show one.
    pub client_ca: Option<PathBuf>,
    /// A PEM file: lists of clients' certificates that no longer hold.
    pub revocation_lists: Option<PathBuf>,
    /// The listeners that speak TLS alone.
    pub listeners: Vec<Protocol>,
}

/// The certificates of a service that runs.
#[derive(Debug)]
pub(crate) struct Certificates {
    settings: Tls,
    in_force: RwLock<Arc<TlsConfigs>>,
    /// What was read last, whether it was put in force or not.
    read: Mutex<Option<TlsFiles>>,
}

/// How connections of one listener begin.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    certificates: Arc<Certificates>,
    on: Protocol,
    time: Duration,
    log: Log,
}

/// What should be known of certificates that are in force.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub(crate) enum ExpiryWarning {
    /// It is over: clients refuse it.
    #[display(
        "the certificate has expired on {_0}, and clients refuse it: replace --tls-cert and --tls-key"
    )]
    Expired(String),
    /// The list of revoked certificates should have been replaced.
    #[display("the list of revoked certificates was to be replaced by {_0}: replace --tls-crl")]
    OldList(String),
    /// So many days are left, and when they are over.
    #[display("the certificate expires {}, on {_1}", in_days(*_0))]
    Soon(i64, String),
}

fn in_days(days: i64) -> String {
    match days {
        0 => "within a day".to_owned(),
        days => format!("in {days} days"),
    }
}

impl Certificates {
    /// Reads all files.
    pub(crate) fn read(settings: Tls) -> Result<Self, String> {
        let files = TlsFiles::read(&settings)?;
        let in_force = files.in_force(&settings)?;
        Ok(Self {
            settings,
            in_force: RwLock::new(Arc::new(in_force)),
            read: Mutex::new(Some(files)),
        })
    }

    /// Reads them again, and puts them in force if they have changed and are right: whether it did, or why not.
    pub(crate) fn renew(&self) -> Result<bool, String> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let files = TlsFiles::read(&self.settings)?;
        if read.as_ref() == Some(&files) {
            return Ok(false);
        }
        // What is wrong is said each time that it is read.
        *read = None;
        let next = Arc::new(files.in_force(&self.settings)?);
        *read = Some(files);
        let mut in_force = self
            .in_force
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *in_force = next;
        Ok(true)
    }

    /// When the certificate ends, in seconds of the Unix epoch.
    pub(crate) fn not_after(&self) -> Option<i64> {
        self.in_force().not_after
    }

    /// The same as people write it.
    pub(crate) fn not_after_shown(&self) -> String {
        self.not_after()
            .map_or_else(|| "unknown".to_owned(), format_unix_seconds)
    }

    /// What should be known of those in force, if anything.
    pub(crate) fn ending(&self) -> Option<ExpiryWarning> {
        let now = i64::try_from(Wall.now().as_nanos() / 1_000_000_000).unwrap_or(i64::MAX);
        let in_force = self.in_force();
        let left = in_force
            .not_after
            .map(|end| (end - now, format_unix_seconds(end)));
        match (left, in_force.lists_until) {
            (Some((left, end)), _) if left <= 0 => Some(ExpiryWarning::Expired(end)),
            (_, Some(until)) if until <= now => {
                Some(ExpiryWarning::OldList(format_unix_seconds(until)))
            }
            (Some((left, end)), _) if left < SOON * DAY => {
                Some(ExpiryWarning::Soon(left / DAY, end))
            }
            _ => None,
        }
    }

    /// The file that only the service should be able to read.
    pub(crate) const fn key(&self) -> &PathBuf {
        &self.settings.key
    }

    /// How connections of a listener begin; none if it doesn't speak TLS.
    pub(crate) fn on(
        self: &Arc<Self>,
        on: Protocol,
        time: Duration,
        log: &Log,
    ) -> Option<Handshake> {
        self.settings.listeners.contains(&on).then(|| Handshake {
            certificates: Arc::clone(self),
            on,
            time,
            log: log.clone(),
        })
    }

    fn in_force(&self) -> Arc<TlsConfigs> {
        let in_force = self.in_force.read();
        Arc::clone(&in_force.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Handshake {
    /// Begins a connection, and serves it. It ends if its client doesn't begin in time, is refused, or another needs
    /// its place before. In a box, so that connections without TLS aren't larger for it.
    pub(crate) fn serve_after<'s, F>(
        self,
        stream: TcpStream,
        place: &'s mut ConnectionPermit,
        serve: impl FnOnce(TlsStream<TcpStream>) -> F + Send + 's,
    ) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + 's>>
    where
        F: Future<Output = io::Result<()>> + Send + 's,
    {
        Box::pin(async move {
            match self.accept(stream, place).await {
                Some(stream) => serve(stream).await,
                None => Ok(()),
            }
        })
    }

    async fn accept(
        &self,
        stream: TcpStream,
        place: &mut ConnectionPermit,
    ) -> Option<TlsStream<TcpStream>> {
        let in_force = self.certificates.in_force();
        let config = match self.on {
            Protocol::Grpc => &in_force.grpc,
            Protocol::Resp => &in_force.resp,
            Protocol::Http | Protocol::Admin | Protocol::Metrics => &in_force.http,
        };
        let from = stream.peer_addr().ok();
        let accepted = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        drop(in_force);
        let accepted = tokio::time::timeout(self.time, accepted);
        let accepted = tokio::select! {
            accepted = accepted => accepted.unwrap_or_else(|late| Err(late.into())),
            () = place.wait_for_eviction() => return None,
        };
        let stream = accepted
            .inspect_err(|why| self.log_refusal(from, why))
            .ok()?;
        place.finish_handshake().then_some(stream)
    }

    /// Says why a client was refused, to those who look for it: anybody can cause such lines.
    fn log_refusal(&self, from: Option<SocketAddr>, why: &io::Error) {
        let from = from.map_or_else(|| "a client that is gone".to_owned(), |one| one.to_string());
        let said: [(&str, &dyn fmt::Display); 3] =
            [("listener", &self.on), ("from", &from), ("why", why)];
        self.log.log(Level::Debug, "no TLS with a client", &said);
    }
}

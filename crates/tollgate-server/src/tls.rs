//! TLS on the listeners: the service's certificate, the verification of clients' certificates, and the handshake.
//!
//! A reload replaces the configuration as a whole, so a handshake uses either the old files or the new ones, never a
//! mixture. Open connections continue.

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
/// From this many days before its expiry, a certificate is a concern.
const SOON: i64 = 14;

/// The certificate files, and the listeners with TLS. UNIX sockets have no TLS.
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
    /// A PEM file: the service's certificate, then the intermediate certificates.
    pub certificate: PathBuf,
    /// A PEM file: the private key.
    pub key: PathBuf,
    /// A PEM file: the authorities of clients' certificates. If it is set, a client must present a certificate.
    pub client_ca: Option<PathBuf>,
    /// A PEM file: certificate revocation lists for clients' certificates.
    pub revocation_lists: Option<PathBuf>,
    /// The listeners that accept TLS only.
    pub listeners: Vec<Protocol>,
}

/// The certificates of a running service.
#[derive(Debug)]
pub(crate) struct Certificates {
    settings: Tls,
    in_force: RwLock<Arc<TlsConfigs>>,
    /// The files of the latest successful read, to notice changes.
    read: Mutex<Option<TlsFiles>>,
}

/// The TLS handshake of a listener's connections.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    certificates: Arc<Certificates>,
    on: Protocol,
    time: Duration,
    log: Log,
}

/// A warning about certificates in force.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub(crate) enum ExpiryWarning {
    /// The certificate has expired: clients reject it.
    #[display(
        "the certificate has expired on {_0}, and clients reject it: replace --tls-cert and --tls-key"
    )]
    Expired(String),
    /// A revocation list is past its next update.
    #[display("the list of revoked certificates was to be replaced by {_0}: replace --tls-crl")]
    OldList(String),
    /// The remaining days, and the date of expiry.
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

    /// Reads the files again. Changed and valid files are put in force. Returns whether they changed.
    pub(crate) fn renew(&self) -> Result<bool, String> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let files = TlsFiles::read(&self.settings)?;
        if read.as_ref() == Some(&files) {
            return Ok(false);
        }
        // Cleared, so that an error is reported at each read until the files are valid.
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

    /// When the certificate expires, in seconds of the Unix epoch.
    pub(crate) fn not_after(&self) -> Option<i64> {
        self.in_force().not_after
    }

    /// The same as text.
    pub(crate) fn not_after_shown(&self) -> String {
        self.not_after()
            .map_or_else(|| "unknown".to_owned(), format_unix_seconds)
    }

    /// The warning about the certificates in force, if there is one.
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

    /// The private key, which only the service should be able to read.
    pub(crate) const fn key(&self) -> &PathBuf {
        &self.settings.key
    }

    /// The handshake of a listener; `None` if it has no TLS.
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
    /// Completes the handshake and serves the connection. The connection ends if the handshake fails or times out, or
    /// if it is evicted for another connection. Boxed, so that connections without TLS aren't larger.
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
        // Dropped early, so that a slow handshake doesn't keep replaced files in memory.
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

    /// Logs a failed handshake, at debug level, as any client can cause it.
    fn log_refusal(&self, from: Option<SocketAddr>, why: &io::Error) {
        let from = from.map_or_else(|| "a client that is gone".to_owned(), |one| one.to_string());
        let said: [(&str, &dyn fmt::Display); 3] =
            [("listener", &self.on), ("from", &from), ("why", why)];
        self.log.log(Level::Debug, "no TLS with a client", &said);
    }
}

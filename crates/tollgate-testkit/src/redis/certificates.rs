//! Certificates for one test: an authority, the server's and a client's.

use std::path::{Path, PathBuf};

use crate::certificates::Authority;

/// Paths of the certificates of a server with [`tls`](super::Builder::tls), as PEM files.
///
/// ```
/// use tollgate_testkit::redis::Server;
///
/// let server = Server::builder().tls().start();
/// let authority = std::fs::read_to_string(&server.certificates().authority)?;
/// assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority that signed the others: a client must trust it.
    pub authority: PathBuf,
    /// The server's, for `127.0.0.1` and `localhost`.
    pub server: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's.
    pub client: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes them in a folder.
    pub(super) fn make(folder: &Path) -> Self {
        let authority = Authority::new(folder, "authority");
        let (server, client) = (authority.server("server"), authority.client("client"));
        Self {
            authority: authority.certificate,
            server: server.certificate,
            server_key: server.key,
            client: client.certificate,
            client_key: client.key,
        }
    }
}

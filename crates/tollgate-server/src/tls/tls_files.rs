//! The TLS files as rustls configurations. All files are read together, and are valid or invalid together.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::{Tls, expiry_dates};
use crate::secret::read_file;

/// The most bytes of a file: revocation lists may be long.
const MOST_BYTES: usize = 64 << 20;

/// The bytes of all files, to notice changes. `Debug` doesn't show the key.
#[derive(derive_more::Debug, PartialEq, Eq)]
#[debug("Files(…)")]
pub(super) struct TlsFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
    revoked: Option<Vec<u8>>,
}

/// The TLS configurations in force, one for each application protocol.
#[derive(Debug)]
pub(super) struct TlsConfigs {
    pub(super) http: Arc<ServerConfig>,
    pub(super) grpc: Arc<ServerConfig>,
    pub(super) resp: Arc<ServerConfig>,
    /// When the certificate expires, in seconds of the Unix epoch.
    pub(super) not_after: Option<i64>,
    /// The earliest next update of the revocation lists.
    pub(super) lists_until: Option<i64>,
}

impl TlsFiles {
    pub(super) fn read(tls: &Tls) -> Result<Self, String> {
        let optional = |flag: &str, path: &Option<PathBuf>| {
            let path = path.as_ref();
            path.map(|path| read(flag, path)).transpose()
        };
        Ok(Self {
            certificate: read("tls-cert", &tls.certificate)?,
            key: read("tls-key", &tls.key)?,
            authority: optional("tls-client-ca", &tls.client_ca)?,
            revoked: optional("tls-crl", &tls.revocation_lists)?,
        })
    }

    /// Builds the configurations. `tls` has the files' names, for errors.
    pub(super) fn in_force(&self, tls: &Tls) -> Result<TlsConfigs, String> {
        let chain = pem::<CertificateDer<'static>>(&self.certificate, "CERTIFICATE")
            .map_err(|why| wrong("tls-cert", &tls.certificate, &why))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| {
            let why = "it has no PRIVATE KEY in PEM that isn't encrypted";
            wrong("tls-key", &tls.key, &why)
        })?;
        let not_after = chain
            .first()
            .and_then(|own| expiry_dates::of_certificate(own));
        let lists = self.lists(tls)?;
        let lists_until = lists
            .iter()
            .filter_map(|list| expiry_dates::of_list(list))
            .min();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.verifier(tls, lists)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let (own, key) = (tls.certificate.display(), tls.key.display());
            let why = match error {
                rustls::Error::InconsistentKeys(_) => {
                    "it is the key of another certificate".to_owned()
                }
                error => error.to_string(),
            };
            format!("--tls-cert {own} with --tls-key {key}: {why}")
        })?;
        if tls.client_ca.is_some() {
            // A resumed session would present no certificate, and the original one may have been revoked since.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        };
        Ok(TlsConfigs {
            http: speaking(&[b"http/1.1"]),
            grpc: speaking(&[b"h2"]),
            resp: speaking(&[]),
            not_after,
            lists_until,
        })
    }

    /// The revocation lists.
    fn lists(&self, tls: &Tls) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
        match (&self.revoked, &tls.revocation_lists) {
            (Some(bytes), Some(path)) => {
                pem(bytes, "X509 CRL").map_err(|why| wrong("tls-crl", path, &why))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The verifier of clients' certificates. With revocation lists, each certificate of a chain needs the list of its
    /// issuer.
    fn verifier(
        &self,
        tls: &Tls,
        lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let (Some(bytes), Some(path)) = (&self.authority, &tls.client_ca) else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        let authorities = pem::<CertificateDer<'static>>(bytes, "CERTIFICATE");
        for one in authorities.map_err(|why| wrong("tls-client-ca", path, &why))? {
            let added = roots.add(one);
            added.map_err(|why| wrong("tls-client-ca", path, &why))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(lists)
            .build();
        let verifier = verifier.map_err(|why| {
            let path = tls.revocation_lists.as_deref().unwrap_or(path);
            wrong("tls-crl", path, &why)
        });
        verifier.map(Some)
    }
}

fn wrong(flag: &str, path: &Path, why: &dyn fmt::Display) -> String {
    format!("--{flag} {}: {why}", path.display())
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let read = read_file(path, MOST_BYTES);
    read.map_err(|error| wrong(flag, path, &error))
}

/// All PEM items of one kind; at least one.
fn pem<T: PemObject>(bytes: &[u8], what: &str) -> Result<Vec<T>, String> {
    match T::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>() {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!("it has no {what} in PEM")),
        Err(error) => Err(format!("it is no PEM: {error}")),
    }
}

//! Certificates from files, which are read again for each connection, because they are renewed while a process
//! runs.

#[cfg(feature = "tls")]
use std::path::Path;
use std::sync::Mutex;

use ::redis::RedisError;
#[cfg(feature = "tls")]
use ::redis::{ClientTlsConfig, ErrorKind};

use crate::address::Address;
use crate::lock::lock;

/// The contents of the files; `None` without TLS.
#[cfg(feature = "tls")]
pub(super) type LoadedCertificates = ::redis::TlsCertificates;
#[cfg(not(feature = "tls"))]
pub(super) type LoadedCertificates = ();

/// The files of an address, with their contents when they could last be read.
pub(super) struct CertificateFiles(Mutex<LoadedCertificates>);

impl CertificateFiles {
    /// Reads them.
    pub(super) fn read(address: &Address) -> Result<Self, RedisError> {
        load_certificates(address).map(Mutex::new).map(Self)
    }

    pub(super) fn last_loaded(&self) -> LoadedCertificates {
        lock(&self.0).clone()
    }

    /// Reads the files again. If that fails, as when they are being written, their former contents stay.
    pub(super) async fn reload(&self, address: &Address) -> LoadedCertificates {
        if address.tls.is_some() {
            let address = address.clone();
            // A disk may be slow.
            let read = tokio::task::spawn_blocking(move || load_certificates(&address)).await;
            if let Ok(Ok(fresh)) = read {
                *lock(&self.0) = fresh;
            }
        }
        self.last_loaded()
    }
}

#[cfg(feature = "tls")]
fn load_certificates(address: &Address) -> Result<LoadedCertificates, RedisError> {
    // The program may have installed a provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let files = address.tls.clone().unwrap_or_default();
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let what = format!("{}: {error}", path.display());
            RedisError::from((ErrorKind::InvalidClientConfig, "can't read", what))
        })
    };
    let client_tls = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        }),
        _ => None,
    };
    let root_cert = files.ca.as_deref().map(read).transpose()?;
    Ok(LoadedCertificates {
        client_tls,
        root_cert,
    })
}

#[cfg(not(feature = "tls"))]
fn load_certificates(_: &Address) -> Result<Known, RedisError> {
    Ok(())
}

//! Certificates from files, which are read anew for each connection: they are renewed while a process runs.

#[cfg(feature = "tls")]
use std::path::Path;
use std::sync::Mutex;

use ::redis::RedisError;
#[cfg(feature = "tls")]
use ::redis::{ClientTlsConfig, ErrorKind};

use crate::address::Address;
use crate::lock::lock;

/// What is in the files; nothing without TLS.
#[cfg(feature = "tls")]
pub(super) type Known = ::redis::TlsCertificates;
#[cfg(not(feature = "tls"))]
pub(super) type Known = ();

/// The files of an address, and what they held when they could last be read.
pub(super) struct CertificateFiles(Mutex<Known>);

impl CertificateFiles {
    /// Reads them.
    pub(super) fn read(address: &Address) -> Result<Self, RedisError> {
        certificates(address).map(Mutex::new).map(Self)
    }

    pub(super) fn known(&self) -> Known {
        lock(&self.0).clone()
    }

    /// Reads them again. Someone may be about to write them: then they are as they were.
    pub(super) async fn fresh(&self, address: &Address) -> Known {
        if address.tls.is_some() {
            let address = address.clone();
            // A disk may be slow.
            let read = tokio::task::spawn_blocking(move || certificates(&address)).await;
            if let Ok(Ok(fresh)) = read {
                *lock(&self.0) = fresh;
            }
        }
        self.known()
    }
}

#[cfg(feature = "tls")]
fn certificates(address: &Address) -> Result<Known, RedisError> {
    // Someone else may have chosen before.
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
    Ok(Known {
        client_tls,
        root_cert,
    })
}

#[cfg(not(feature = "tls"))]
fn certificates(_: &Address) -> Result<Known, RedisError> {
    Ok(())
}

//! The options of `tollgate serve` about certificates and secrets.

use std::path::PathBuf;

use clap::Args;
use tollgate_server::{Protocol, Tls};

/// Certificates and secrets. All of them are read again when they change.
#[derive(Args, Clone, Debug)]
pub struct SecurityOptions {
    /// A PEM file with the server's certificate and its intermediate certificates.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the key of --tls-cert.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// A PEM file with the authorities of clients' certificates. Each client must present one (mTLS).
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// A PEM file with revocation lists of clients' certificates.
    #[arg(long, value_name = "FILE")]
    pub tls_crl: Option<PathBuf>,
    /// Listeners on TCP that use TLS: http, grpc, resp, admin, metrics. The default is all of them if there is a
    /// certificate.
    #[arg(long, value_name = "LISTENER", value_delimiter = ',')]
    pub tls_on: Vec<Protocol>,
    /// A file of operators' passwords for AUTH, one a line.
    #[arg(long, value_name = "FILE")]
    pub resp_password_file: Option<PathBuf>,
    /// A file of passwords, one a line. Every Redis client must send one, or an operator's, with AUTH.
    #[arg(long, value_name = "FILE")]
    pub resp_client_password_file: Option<PathBuf>,
    /// A file of operators' tokens for Authorization: Bearer, one a line.
    #[arg(long, value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
    /// A file of tokens, one a line. Every HTTP request except probes must send one, or an operator's.
    #[arg(long, value_name = "FILE")]
    pub http_client_token_file: Option<PathBuf>,
}

impl SecurityOptions {
    /// Checks that the options fit together.
    pub(in crate::serve) fn validate(&self) -> Result<(), String> {
        let (has_certificate, has_key) = (self.tls_cert.is_some(), self.tls_key.is_some());
        let has_authority = self.tls_client_ca.is_some();
        let certificate = "tls-cert, the file of the certificate";
        let (flag, other) = if has_certificate && !has_key {
            ("tls-cert", "tls-key, the file of its key")
        } else if has_key && !has_certificate {
            ("tls-key", certificate)
        } else if has_authority && !has_certificate {
            ("tls-client-ca", certificate)
        } else if !self.tls_on.is_empty() && !has_certificate {
            ("tls-on", certificate)
        } else if self.tls_crl.is_some() && !has_authority {
            (
                "tls-crl",
                "tls-client-ca: it is about clients' certificates",
            )
        } else {
            return Ok(());
        };
        Err(format!("--{flag} needs --{other}"))
    }

    /// The TLS settings, if there are certificates.
    pub(in crate::serve) fn tls(&self) -> Option<Tls> {
        Some(Tls {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.tls_client_ca.clone(),
            revocation_lists: self.tls_crl.clone(),
            listeners: match self.tls_on.as_slice() {
                [] => Protocol::ALL.to_vec(),
                some => some.to_vec(),
            },
        })
    }
}

//! The connection to an admin listener: its address, the authorities to trust, and the token.

use std::fmt;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use tollgate_server::{Address, admin_token_files};

use super::render::escape_terminal;
use crate::outcome::CliError;
use crate::service_client::{
    Connection, HttpRequest, HttpResponse, ServiceAddress, TIMEOUT, connect, connect_tcp,
    read_secret_line,
};

/// How to reach the service.
#[derive(Args, Clone, Debug)]
pub struct ConnectOptions {
    /// The admin listener: an address, a port, unix:PATH, or https://HOST:PORT.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:6070"
    )]
    pub admin: ServiceAddress,
    /// A file whose first line is the operators' token. The default is the token that a service of this user has
    /// generated.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_TOKEN_FILE",
        value_name = "FILE"
    )]
    pub token_file: Option<PathBuf>,
    /// The folder of the service's --state, which also has its token.
    #[arg(long, global = true, env = "TOLLGATE_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A PEM file with the authorities of the service's certificate. Connects with TLS.
    #[arg(long, global = true, env = "TOLLGATE_ADMIN_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A PEM file with the operator's certificate.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_CERT",
        value_name = "FILE",
        requires = "key"
    )]
    pub cert: Option<PathBuf>,
    /// A PEM file with the key of --cert.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_KEY",
        value_name = "FILE",
        requires = "cert"
    )]
    pub key: Option<PathBuf>,
}

impl ConnectOptions {
    /// Sends a request, and returns the body of the response.
    pub(super) fn send(
        &self,
        mut request: HttpRequest,
        notes: &mut impl Write,
    ) -> Result<String, CliError> {
        request.token = Some(self.read_token()?);
        let unreachable = |error| self.connection_error(&error);
        let reply = match &self.admin {
            ServiceAddress::Tcp {
                host,
                port,
                is_https,
            } => {
                let stream = connect_tcp(host, *port).map_err(unreachable)?;
                let has_leased_tokens =
                    stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
                if *is_https || self.ca.is_some() {
                    request.send(&self.admin, self.connect_tls(host, stream)?)
                } else {
                    if !has_leased_tokens {
                        let why = "the token is sent in plain text: use https:// and --ca";
                        // Standard error may be closed, and then there is nowhere to report it.
                        let _ = writeln!(notes, "warning: {why}");
                    }
                    request.send(&self.admin, stream)
                }
            }
            ServiceAddress::Unix(_) => {
                connect(&self.admin).and_then(|stream| request.send(&self.admin, stream))
            }
        };
        response_body(reply.map_err(unreachable)?)
    }

    fn connection_error(&self, error: &io::Error) -> CliError {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("it doesn't answer within {} s", TIMEOUT.as_secs())
            }
            _ => error.to_string(),
        };
        let is_tcp = matches!(self.admin, ServiceAddress::Tcp { .. });
        let hint = if is_tcp && why.contains("CertificateRequired") {
            "; it wants an operator's certificate: give it by --cert and --key"
        } else if is_tcp && self.ca.is_none() && error.kind() == io::ErrorKind::InvalidData {
            "; if it speaks TLS, give --ca"
        } else {
            ""
        };
        CliError::failed(format_args!(
            "can't ask the service at {}: {why}{hint}; --admin says where it is",
            self.admin
        ))
    }

    fn connect_tls(&self, host: &str, stream: TcpStream) -> Result<impl Connection, CliError> {
        let Some(ca) = &self.ca else {
            let why = "https:// needs --ca, the file of who signs the service's certificate";
            return Err(CliError::usage(why));
        };
        let mut roots = RootCertStore::empty();
        for one in read_certificates("ca", ca)? {
            roots.add(one).map_err(file_error("ca", ca))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(CliError::usage)?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let own = PrivateKeyDer::from_pem_file(key).map_err(file_error("key", key))?;
                let chain = read_certificates("cert", cert)?;
                let config = config.with_client_auth_cert(chain, own);
                config.map_err(file_error("cert", cert))?
            }
            _ => config.with_no_client_auth(),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned());
        let name = name.map_err(file_error("admin", Path::new(host)))?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let connection = connection.map_err(CliError::usage)?;
        Ok(StreamOwned::new(connection, stream))
    }

    /// The operators' token.
    fn read_token(&self) -> Result<String, CliError> {
        let in_state = self.state.as_ref().map(|folder| folder.join("admin.token"));
        let made = self.generated_token_files();
        let places: Vec<_> = match &self.token_file {
            Some(file) => vec![file.clone()],
            None => in_state.into_iter().chain(made).collect(),
        };
        let mut wrong = Vec::new();
        for place in &places {
            match read_secret_line(place) {
                // A service accepts only tokens that fit an HTTP header field.
                Ok(Some(token)) if token.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                    return Ok(token);
                }
                Ok(_) => wrong.push(format!("{}: it has no token", place.display())),
                Err(error) => wrong.push(format!("{}: {error}", place.display())),
            }
        }
        Err(CliError::failed(format_args!(
            "no token for operators: {}; does the service run? Give its folder by --state, or the file that it named when it started by --token-file",
            wrong.join("; ")
        )))
    }

    /// The files in which a service of this user may have put its generated token.
    fn generated_token_files(&self) -> Vec<PathBuf> {
        let address = match &self.admin {
            ServiceAddress::Unix(path) => Address::Unix(path.clone(), 0),
            ServiceAddress::Tcp { port, .. } => Address::Tcp(([127, 0, 0, 1], *port).into()),
        };
        admin_token_files(&address)
    }
}

/// The error for a file that a flag names.
fn file_error<E: fmt::Display>(flag: &str, file: &Path) -> impl Fn(E) -> CliError {
    move |why| CliError::usage(format_args!("--{flag} {}: {why}", file.display()))
}

fn read_certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(file_error(flag, file))?;
    if read.is_empty() {
        return Err(file_error(flag, file)("it has no certificate"));
    }
    Ok(read)
}

/// The body of a successful response. Another response is an error.
fn response_body(reply: HttpResponse) -> Result<String, CliError> {
    if reply.status == 200 {
        return Ok(reply.body);
    }
    let problem: Option<Value> = serde_json::from_str(&reply.body).ok();
    let problem = problem.unwrap_or_default();
    let detail = problem["detail"].as_str();
    let why = escape_terminal(detail.unwrap_or("no reason was given"));
    Err(CliError::failed(match reply.status {
        401 => format!("the service takes another token: {why}"),
        404 if why.starts_with("nothing is at ") => {
            format!("this is no admin listener, or one of another version: {why}")
        }
        _ => why,
    }))
}

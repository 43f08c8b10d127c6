//! Where the admin listener is, by what it is trusted, and which token it takes.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_server::{Address, admin_token_files};

use super::AdminFailure;
use super::client::Question;

/// How long the service may take, to connect and for each part of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a service is reached.
#[derive(Args, Clone, Debug)]
pub struct Connect {
    /// Where its admin listener is: an address, a port, unix:PATH, or https://HOST:PORT.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:6070"
    )]
    pub admin: Place,
    /// A file whose first line is the operators' token; without, the one that a service of this user has made.
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_TOKEN_FILE",
        value_name = "FILE"
    )]
    pub token_file: Option<PathBuf>,
    /// The folder of the service's --state, where its token is, too.
    #[arg(long, global = true, env = "TOLLGATE_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A PEM file with the authorities of the service's certificate: it is asked by TLS.
    #[arg(long, global = true, env = "TOLLGATE_ADMIN_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A PEM file with the operator's own certificate.
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

/// Where an admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// Its port.
        port: u16,
        /// Whether it was said to speak TLS.
        is_https: bool,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "no address {text:?}: write 127.0.0.1:6070, unix:/path/to/socket, or https://limits.example:6070"
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.split('?').next().unwrap_or_default();
            return match path {
                "" => Err(wrong()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let is_https = text.starts_with("https://");
        let rest = text
            .strip_prefix("https://")
            .or(text.strip_prefix("http://"));
        let rest = rest.unwrap_or(text).trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').unwrap_or(("127.0.0.1", rest));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        let port = port.parse().ok().filter(|_| host.bytes().all(is_plain));
        match port {
            Some(port) if !host.is_empty() => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
                is_https,
            }),
            _ => Err(wrong()),
        }
    }
}

impl Connect {
    /// Asks, and returns the body of the answer.
    pub(super) fn ask(
        &self,
        question: &Question,
        notes: &mut impl Write,
    ) -> Result<String, AdminFailure> {
        let token = self.token()?;
        let reply = match &self.admin {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).and_then(|stream| {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    Ok(stream)
                });
                let mut stream = stream.map_err(|error| self.unreachable(&error))?;
                question.ask(&mut stream, ("localhost", &token))
            }
            Place::Tcp {
                host,
                port,
                is_https,
            } => {
                let named = format!("{host}:{port}");
                let stream = self.tcp(&named).map_err(|error| self.unreachable(&error))?;
                let is_here = stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
                if *is_https || self.ca.is_some() {
                    let mut stream = self.tls(host, stream)?;
                    question.ask(&mut stream, (&named, &token))
                } else {
                    if !is_here {
                        let text =
                            "warning: the token is sent in plain text: use https:// and --ca";
                        // Nobody is left to tell if that is closed.
                        let _ = writeln!(notes, "{text}");
                    }
                    let mut stream = stream;
                    question.ask(&mut stream, (&named, &token))
                }
            }
        };
        reply.map_err(|error| self.unreachable(&error))?.said()
    }

    fn unreachable(&self, error: &io::Error) -> AdminFailure {
        let place = match &self.admin {
            Place::Unix(path) => format!("unix:{}", path.display()),
            Place::Tcp { host, port, .. } => format!("{host}:{port}"),
        };
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("it doesn't answer within {} s", PATIENCE.as_secs())
            }
            _ => error.to_string(),
        };
        let hint = match &self.admin {
            Place::Tcp { .. } if why.contains("CertificateRequired") => {
                "; it wants an operator's certificate: give it by --cert and --key"
            }
            Place::Tcp { .. }
                if self.ca.is_none() && error.kind() == io::ErrorKind::InvalidData =>
            {
                "; if it speaks TLS, give --ca"
            }
            _ => "",
        };
        AdminFailure::Unreachable(format!(
            "can't ask the service at {place}: {why}{hint}; --admin says where it is"
        ))
    }

    fn tcp(&self, named: &str) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name leads nowhere");
        for address in named.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tls(&self, host: &str, stream: TcpStream) -> Result<impl Read + Write, AdminFailure> {
        let usage = |why: String| AdminFailure::Usage(why);
        let Some(ca) = &self.ca else {
            let why = "https:// needs --ca, the file of who signs the service's certificate";
            return Err(usage(why.to_owned()));
        };
        let mut roots = RootCertStore::empty();
        for one in certificates("ca", ca)? {
            let added = roots.add(one);
            added.map_err(|error| usage(format!("--ca {}: {error}", ca.display())))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| usage(error.to_string()))?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let own = PrivateKeyDer::from_pem_file(key);
                let own =
                    own.map_err(|error| usage(format!("--key {}: {error}", key.display())))?;
                let chain = certificates("cert", cert)?;
                let config = config.with_client_auth_cert(chain, own);
                config.map_err(|error| usage(format!("--cert {}: {error}", cert.display())))?
            }
            _ => config.with_no_client_auth(),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned());
        let name = name.map_err(|error| usage(format!("--admin {host}: {error}")))?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let connection = connection.map_err(|error| usage(error.to_string()))?;
        Ok(StreamOwned::new(connection, stream))
    }

    /// The operators' token.
    fn token(&self) -> Result<String, AdminFailure> {
        let in_state = self.state.as_ref().map(|folder| folder.join("admin.token"));
        let made = self.made();
        let places: Vec<_> = match &self.token_file {
            Some(file) => vec![file.clone()],
            None => in_state.into_iter().chain(made).collect(),
        };
        let mut wrong = Vec::new();
        for place in &places {
            match first_line(place) {
                Ok(token) => return Ok(token),
                Err(why) => wrong.push(format!("{}: {why}", place.display())),
            }
        }
        Err(AdminFailure::Refused(format!(
            "no token for operators: {}; does the service run? Give its folder by --state, or the file that it named when it started by --token-file",
            wrong.join("; ")
        )))
    }

    /// Where a service of this user puts the token that it makes.
    fn made(&self) -> Vec<PathBuf> {
        let address = match &self.admin {
            Place::Unix(path) => Address::Unix(path.clone(), 0),
            Place::Tcp { port, .. } => Address::Tcp(([127, 0, 0, 1], *port).into()),
        };
        admin_token_files(&address)
    }
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, AdminFailure> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let read: Result<Vec<_>, _> = read;
    let shown = file.display();
    match read {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(AdminFailure::Usage(format!(
            "--{flag} {shown}: it has no certificate"
        ))),
        Err(error) => Err(AdminFailure::Usage(format!("--{flag} {shown}: {error}"))),
    }
}

fn first_line(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    // What can't stand in a field of HTTP was never a token of a service.
    let line = line.filter(|line| {
        line.bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ')
    });
    line.map(ToOwned::to_owned)
        .ok_or_else(|| "it has no token".to_owned())
}

//! The settings of a server before it starts.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use super::Server;

/// The settings of a server, made by [`Server::builder`].
///
/// ```
/// use tollgate_testkit::redis::Server;
///
/// let server = Server::builder()
///     .acl("limits", "secret", "~limits:* +@all -@dangerous")
///     .arg("maxmemory", "100mb")
///     .unix_socket()
///     .start();
/// let mut client = server.client()?;
/// client.command(&["AUTH", "limits", "secret"])?;
/// assert!(client.command(&["FLUSHALL"]).unwrap_err().starts_with("NOPERM"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) valkey: bool,
    pub(super) tls: bool,
    pub(super) unix_socket: bool,
    pub(super) cluster: bool,
    pub(super) sentinel: bool,
    pub(super) password: Option<String>,
    pub(super) host: IpAddr,
    /// The server's network namespace.
    pub(super) namespace: Option<String>,
    lines: String,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            valkey: false,
            tls: false,
            unix_socket: false,
            cluster: false,
            sentinel: false,
            password: None,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            namespace: None,
            lines: String::new(),
        }
    }

    /// Valkey instead of Redis.
    pub fn valkey(mut self) -> Self {
        self.valkey = true;
        self
    }

    /// A second port with TLS: see [`Server::tls_url`] and [`Server::certificates`]. A client certificate is
    /// optional; `.arg("tls-auth-clients", "yes")` requires one.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A UNIX socket besides the port: see [`Server::unix_socket`].
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// A user besides the default one, with rules such as `~* +@all`.
    pub fn acl(self, user: &str, password: &str, rules: &str) -> Self {
        self.arg("user", &format!("{user} on >{password} {rules}"))
    }

    /// A password for the default user. [`Server::url`] and the kit's own client include it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        // A replica of this server is a client too, and needs the password.
        self.arg("requirepass", password)
            .arg("masterauth", password)
    }

    /// Allows `DEBUG`, as in `DEBUG SLEEP 0.5`.
    pub fn debug_command(self) -> Self {
        self.arg("enable-debug-command", "yes")
    }

    /// Any line of the server's configuration.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        writeln!(self.lines, "{name} {value}").expect("text takes any line");
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// With the server's log if it doesn't come up, and with how to install it if it is missing.
    pub fn start(self) -> Server {
        Server::launch(self)
    }

    pub(super) fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    pub(super) fn inside(mut self, namespace: &str, host: IpAddr) -> Self {
        self.namespace = Some(namespace.to_owned());
        self.host = host;
        self
    }

    /// The part of an address before the host.
    pub(super) fn login(&self) -> String {
        let password = self.password.as_ref();
        password.map_or(String::new(), |password| format!(":{password}@"))
    }

    /// The lines that the caller added. They come last, because the last of two equal lines wins.
    pub(super) fn lines(&self) -> &str {
        &self.lines
    }
}

//! One server: started, inspected, paused, killed and restarted.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::port::Port;
use super::process::Process;
use super::wait::wait_for;
use super::{Builder, Certificates, Client, Reply};
use crate::external_programs::find_program;
use crate::temp_folder::TempFolder;

/// How long a server may take to start: a few milliseconds, or more on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A Redis or Valkey server of a test, ended when it is dropped.
///
/// ```
/// use std::time::Duration;
/// use tollgate_testkit::redis::{Server, wait_until};
///
/// let server = Server::start();
/// assert_eq!(server.url(), format!("redis://127.0.0.1:{}/0", server.port()));
/// assert_eq!(server.command(&["PING"]), "PONG");
///
/// server.pause();
/// assert!(!server.answers());
/// server.resume();
/// wait_until(Duration::from_secs(10), "an answer", || server.answers());
///
/// server.kill();
/// assert!(server.client().is_err());
/// ```
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: the process first, then what it uses.
    process: Mutex<Process>,
    settings: Builder,
    port: Port,
    tls_port: Option<Port>,
    bus_port: Option<Port>,
    certificates: Option<Certificates>,
    scratch: TempFolder,
}

impl Server {
    /// Starts a Redis server with the defaults.
    ///
    /// # Panics
    /// As [`Builder::start`].
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for other settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Its address as the default user, such as `redis://127.0.0.1:6379/0`.
    pub fn url(&self) -> String {
        self.url_of("redis", &self.port)
    }

    /// Its address with TLS, such as `rediss://127.0.0.1:6379/0`.
    ///
    /// # Panics
    /// If it was built without [`tls`](Builder::tls).
    pub fn tls_url(&self) -> String {
        let port = self.tls_port.as_ref();
        self.url_of("rediss", port.expect("a server built with tls()"))
    }

    /// Its port, without TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its address, without TLS.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.settings.host, self.port())
    }

    /// The path of its UNIX socket.
    ///
    /// # Panics
    /// If it was built without [`unix_socket`](Builder::unix_socket).
    pub fn unix_socket(&self) -> PathBuf {
        assert!(
            self.settings.unix_socket,
            "a server built with unix_socket()"
        );
        self.scratch.path("server.sock")
    }

    /// The paths of its certificates.
    ///
    /// # Panics
    /// If it was built without [`tls`](Builder::tls).
    pub fn certificates(&self) -> &Certificates {
        let certificates = self.certificates.as_ref();
        certificates.expect("a server built with tls()")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.with(Process::id)
    }

    /// A new connection as the default user.
    ///
    /// # Errors
    /// If it can't be reached, as when it was killed.
    pub fn client(&self) -> Result<Client, String> {
        self.log_in(Client::tcp(self.address())?)
    }

    /// Runs one command on a connection of its own.
    ///
    /// # Panics
    /// If it fails; use a [`client`](Self::client) where that may happen.
    pub fn command(&self, words: &[&str]) -> Reply {
        let answer = self.client().and_then(|mut client| client.command(words));
        answer.unwrap_or_else(|error| panic!("{words:?} on port {}: {error}", self.port()))
    }

    /// One field of `INFO` and its section, such as `("replication", "role")`.
    ///
    /// # Panics
    /// If there is none.
    pub fn info(&self, section: &str, field: &str) -> String {
        let found = self.client().and_then(|mut one| one.info(section, field));
        found.unwrap_or_else(|error| panic!("on port {}: {error}", self.port()))
    }

    /// Whether it answers a `PING` within a fifth of a second.
    pub fn answers(&self) -> bool {
        let client = Client::with_timeout(Duration::from_millis(200), self.address());
        let answer = client
            .and_then(|client| self.log_in(client))
            .and_then(|mut client| client.command(&["PING"]));
        answer.is_ok_and(|reply| reply == "PONG")
    }

    /// How many commands it has run since it started, including those in scripts, except `INFO` and `AUTH`:
    /// this call changes nothing.
    ///
    /// # Panics
    /// If it doesn't answer.
    pub fn commands_processed(&self) -> u64 {
        let counts = self.calls();
        let counts = counts
            .iter()
            .filter(|(name, _)| !matches!(&**name, "info" | "auth"));
        counts.map(|(_, calls)| calls).sum()
    }

    /// How often it has run one command since it started, by its name in lower case, such as `evalsha` or
    /// `client|setinfo`. Commands that were rejected before they ran don't count.
    ///
    /// # Panics
    /// If it doesn't answer.
    pub fn command_calls(&self, command: &str) -> u64 {
        let counts = self.calls();
        let found = counts.iter().find(|(name, _)| name == command);
        found.map_or(0, |(_, calls)| *calls)
    }

    /// The processor time that it has used, to a hundredth of a second.
    ///
    /// # Panics
    /// If it was killed.
    pub fn cpu_time(&self) -> Duration {
        self.with(Process::cpu_time)
    }

    /// Whether its process exists, paused or not.
    pub fn running(&self) -> bool {
        self.with(Process::running)
    }

    /// Kills it with `SIGKILL`, and waits until it is gone.
    pub fn kill(&self) {
        self.with(Process::kill);
    }

    /// Pauses it with `SIGSTOP`: connections stay open and nothing answers.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn pause(&self) {
        self.with(Process::pause);
    }

    /// Resumes it after [`pause`](Self::pause), with `SIGCONT`.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn resume(&self) {
        self.with(Process::resume);
    }

    /// Kills it if it is running, and restarts it on the same port without its data.
    ///
    /// # Panics
    /// If it doesn't start.
    pub fn restart_empty(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill();
        *process = spawn(&self.settings, &self.scratch);
        drop(process);
        if let Err(why) = self.wait() {
            panic!("{why}");
        }
    }

    /// The port on which nodes of a cluster talk to each other.
    pub(super) fn bus_port(&self) -> Option<u16> {
        self.bus_port.as_ref().map(Port::number)
    }

    /// Its settings.
    pub(super) fn settings(&self) -> &Builder {
        &self.settings
    }

    /// Starts a server; on another port if the first was taken in the meantime.
    pub(super) fn launch(settings: Builder) -> Self {
        if settings.valkey {
            let install = "./test does, or apt-get install valkey-server valkey-tools \
                           (on Debian 12 from its backports)";
            find_program("valkey-server", install);
        } else {
            find_program("redis-server", "apt-get install redis-server redis-tools");
        }
        let mut why = String::new();
        for _ in 0..5 {
            let server = Self::open(settings.clone());
            match server.wait() {
                Ok(()) => return server,
                Err(log) if log.contains("Address already in use") => why = log,
                Err(log) => panic!("{log}"),
            }
        }
        panic!("{why}");
    }

    /// Logs a client in.
    fn log_in(&self, mut client: Client) -> Result<Client, String> {
        if let Some(password) = &self.settings.password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    fn open(settings: Builder) -> Self {
        let port = Port::reserve_free();
        let tls_port = settings.tls.then(Port::reserve_free);
        let bus_port = settings.cluster.then(Port::reserve_free);
        let scratch = TempFolder::new(&format!("redis-{}", port.number()));
        let certificates = settings.tls.then(|| Certificates::make(scratch.folder()));
        let text = configuration(
            &settings,
            &port,
            tls_port.as_ref().zip(certificates.as_ref()),
            bus_port.as_ref(),
            scratch.folder(),
        );
        fs::write(scratch.path(CONFIG_FILE), text).expect("a configuration in the test's folder");
        Self {
            process: Mutex::new(spawn(&settings, &scratch)),
            settings,
            port,
            tls_port,
            bus_port,
            certificates,
            scratch,
        }
    }

    /// Waits until it answers; if it doesn't, the error is the end of its log.
    fn wait(&self) -> Result<(), String> {
        let mut up = false;
        let settled = wait_for(START_TIMEOUT, || {
            up = self.answers();
            up || !self.running()
        });
        if up {
            return Ok(());
        }
        let what = if settled { "ended" } else { "doesn't answer" };
        let log = fs::read_to_string(self.scratch.path(LOG_FILE)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n");
        Err(format!("the server on port {} {what}:\n{end}", self.port()))
    }

    /// How often each command was called so far.
    fn calls(&self) -> Vec<(String, u64)> {
        let text = self.command(&["INFO", "commandstats"]).text();
        let count = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), calls))
        };
        text.unwrap_or_default().lines().filter_map(count).collect()
    }

    fn url_of(&self, scheme: &str, port: &Port) -> String {
        let (user, host) = (self.settings.login(), self.settings.host);
        format!("{scheme}://{user}{host}:{}/0", port.number())
    }

    fn with<R>(&self, act: impl FnOnce(&Process) -> R) -> R {
        act(&self.process.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const CONFIG_FILE: &str = "server.conf";
const LOG_FILE: &str = "server.log";

fn spawn(settings: &Builder, scratch: &TempFolder) -> Process {
    let program = if settings.valkey {
        "valkey-server"
    } else {
        "redis-server"
    };
    let mut command = match &settings.namespace {
        None => Command::new(program),
        Some(namespace) => {
            // `ip netns exec` becomes the server without a fork, so the process id is the server's.
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, program]);
            command
        }
    };
    command.arg(scratch.path(CONFIG_FILE));
    if settings.sentinel {
        command.arg("--sentinel");
    }
    Process::spawn(&mut command, &scratch.path(LOG_FILE))
}

fn configuration(
    settings: &Builder,
    port: &Port,
    tls: Option<(&Port, &Certificates)>,
    bus: Option<&Port>,
    folder: &Path,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "{name} {value}").expect("text takes any line");
    };
    line("port", &port.number());
    line("bind", &settings.host);
    line("dir", &folder.display());
    line("daemonize", &"no");
    // The server listens on this machine only.
    line("protected-mode", &"no");
    if !settings.sentinel {
        line("save", &"\"\"");
        line("appendonly", &"no");
        // A replica that waits for others to join would not be in sync when a test kills its master.
        line("repl-diskless-sync-delay", &"0");
    }
    if let Some(bus) = bus {
        line("cluster-enabled", &"yes");
        line("cluster-port", &bus.number());
    }
    if let Some((port, certificates)) = tls {
        line("tls-port", &port.number());
        line("tls-ca-cert-file", &certificates.authority.display());
        line("tls-cert-file", &certificates.server.display());
        line("tls-key-file", &certificates.server_key.display());
        line("tls-auth-clients", &"optional");
    }
    if settings.unix_socket {
        line("unixsocket", &folder.join("server.sock").display());
    }
    text + settings.lines()
}

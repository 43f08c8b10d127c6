//! The servers to compare: built or found, started on the first core, measured, and ended.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate_testkit::temp_folder::TempFolder;

use super::Failure;
use crate::timing;

/// The core of the servers, and the core of their clients.
const SERVERS: &str = "0";
const CLIENT_CORE: &str = "1";
const THROTTLECRAB: &str = "0.4.40";

/// A program and what installs it.
const NEEDED: [(&str, &str); 6] = [
    ("taskset", "apt-get install util-linux"),
    ("h2load", "apt-get install nghttp2-client"),
    ("wrk", "apt-get install wrk"),
    ("redis-server", "apt-get install redis-server"),
    ("redis-benchmark", "apt-get install redis-tools"),
    // throttlecrab is built with it.
    ("protoc", "apt-get install protobuf-compiler"),
];

/// The first missing program that can't be built here, with how to install it.
pub(super) fn missing_programs() -> Option<String> {
    let is_there = |program: &str| {
        env::var_os("PATH")
            .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).exists()))
    };
    let (program, install) = NEEDED.iter().find(|(program, _)| !is_there(program))?;
    Some(format!("not run: {program} is missing; {install}"))
}

/// A command on the clients' core.
pub(super) fn client_command(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", CLIENT_CORE, program]);
    command
}

/// Moves this thread, and those that it starts, to the clients' core.
pub(super) fn pin_to_client_core() -> Result<(), Failure> {
    let id = fs::read_link("/proc/thread-self")?;
    let id = id.file_name().ok_or("no id of this thread")?;
    let status = Command::new("taskset")
        .args(["-c", "-p", CLIENT_CORE])
        .arg(id)
        .stdout(Stdio::null())
        .status()?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("taskset: {status}").into())
}

/// Programs that are built from source: this project's service, and three peers.
pub(super) struct BuiltServer {
    tollgate: PathBuf,
    tonic_ok: PathBuf,
    hyper_ok: PathBuf,
    throttlecrab: PathBuf,
}

impl BuiltServer {
    /// Builds missing programs. The first time takes several minutes.
    pub(super) fn new() -> Result<Self, Failure> {
        let (root, target) = folders()?;
        let peers = target.join("bench-peers");
        let tollgate = command()?;
        let folder = peers.join("build");
        let manifest = root.join("benches/tonic-ok/Cargo.toml");
        let place: &[&Path] = &[
            Path::new("--manifest-path"),
            &manifest,
            Path::new("--target-dir"),
            &folder,
        ];
        cargo(root, &["build", "--release", "--locked"], place)?;
        let throttlecrab = peers.join("bin/throttlecrab-server");
        if !throttlecrab.exists() {
            let version = format!("={THROTTLECRAB}");
            let what = [
                "install",
                "throttlecrab-server",
                "--locked",
                "--version",
                &version,
            ];
            cargo(root, &what, &[Path::new("--root"), &peers])?;
        }
        Ok(Self {
            tollgate,
            tonic_ok: folder.join("release/tonic-ok"),
            hyper_ok: folder.join("release/hyper-ok"),
            throttlecrab,
        })
    }
}

/// Builds the command of this project.
pub(crate) fn command() -> Result<PathBuf, Failure> {
    let (root, target) = folders()?;
    let what = ["build", "--release", "--locked", "-p", "tollgate-cli"];
    cargo(root, &what, &[])?;
    Ok(target.join("release/tollgate"))
}

/// The project's folder, and the target folder.
fn folders() -> Result<(&'static Path, PathBuf), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("the folder of the project")?;
    let own = env::current_exe()?;
    let target = own.ancestors().nth(2);
    let target = target.ok_or("the folder of what is built")?;
    Ok((root, target.to_path_buf()))
}

fn cargo(root: &Path, what: &[&str], places: &[&Path]) -> Result<(), Failure> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(what)
        .arg("-q")
        .args(places)
        .status()?;
    let why = || format!("cargo {}: {status}", what.join(" "));
    status.success().then_some(()).ok_or_else(|| why().into())
}

/// A server that runs until this is dropped.
pub(super) struct Server {
    child: Child,
    /// The address of each protocol.
    pub(super) grpc: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
    pub(super) resp: Option<SocketAddr>,
    /// The path of its policy; empty if it has none.
    pub(super) policy: PathBuf,
    _folder: Option<TempFolder>,
}

impl Server {
    /// This project's service, by a policy.
    pub(super) fn tollgate(built: &BuiltServer, policy: &str) -> Result<Self, Failure> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = TempFolder::new(&format!("bench-server-{number}"));
        let (file, ready) = (folder.path("policy.yaml"), folder.path("ready"));
        fs::write(&file, policy)?;
        let any = "127.0.0.1:0";
        let child = started(&built.tollgate)
            .arg("serve")
            .arg(&file)
            .args([
                "--http", any, "--grpc", any, "--resp", any, "--admin", "off",
            ])
            .arg("--ready-file")
            .arg(&ready)
            .spawn()?;
        let mut server = Self::of(child);
        (server.policy, server._folder) = (file, Some(folder));
        let text = wait_for(|| fs::read_to_string(&ready).ok())
            .ok_or("tollgate serve didn't get ready")?;
        let addresses: serde_json::Value = serde_json::from_str(&text)?;
        let address = |name: &str| addresses[name].as_str()?.parse().ok();
        (server.grpc, server.http, server.resp) =
            (address("grpc"), address("http"), address("resp"));
        Ok(server)
    }

    pub(super) fn tonic_ok(built: &BuiltServer) -> Result<Self, Failure> {
        let (mut server, address) = Self::that_prints_its_address(&built.tonic_ok)?;
        server.grpc = Some(address);
        Ok(server)
    }

    pub(super) fn hyper_ok(built: &BuiltServer) -> Result<Self, Failure> {
        let (mut server, address) = Self::that_prints_its_address(&built.hyper_ok)?;
        server.http = Some(address);
        Ok(server)
    }

    fn that_prints_its_address(program: &Path) -> Result<(Self, SocketAddr), Failure> {
        let mut child = started(program).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("no standard output")?;
        let server = Self::of(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        Ok((server, line.trim().parse()?))
    }

    pub(super) fn throttlecrab(built: &BuiltServer) -> Result<Self, Failure> {
        let (http, resp) = (free()?, free()?);
        let child = started(&built.throttlecrab)
            .args(["--http", "--http-host", "127.0.0.1", "--http-port"])
            .arg(http.port().to_string())
            .args(["--redis", "--redis-host", "127.0.0.1", "--redis-port"])
            .arg(resp.port().to_string())
            .args(["--log-level", "error"])
            .spawn()?;
        let mut server = Self::of(child);
        (server.http, server.resp) = (Some(http), Some(resp));
        server.once_up()
    }

    pub(super) fn redis() -> Result<Self, Failure> {
        let resp = free()?;
        let child = started(Path::new("redis-server"))
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &resp.port().to_string(),
                "--save",
                "",
            ])
            .spawn()?;
        let mut server = Self::of(child);
        server.resp = Some(resp);
        server.once_up()
    }

    fn of(child: Child) -> Self {
        Self {
            child,
            grpc: None,
            http: None,
            resp: None,
            policy: PathBuf::new(),
            _folder: None,
        }
    }

    fn once_up(self) -> Result<Self, Failure> {
        for address in [self.http, self.resp].into_iter().flatten() {
            wait_for(|| TcpStream::connect(address).ok())
                .ok_or_else(|| format!("nobody listens on {address}"))?;
        }
        Ok(self)
    }

    /// Processor time of all its threads, in nanoseconds.
    pub(super) fn cpu(&self) -> u64 {
        let folder = format!("/proc/{}/task", self.child.id());
        let threads = fs::read_dir(folder).into_iter().flatten().flatten();
        let nanos = threads.filter_map(|thread| {
            let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            stat.split_whitespace().next()?.parse::<u64>().ok()
        });
        nanos.sum()
    }

    /// The id of its process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes that it has in memory.
    pub(super) fn resident(&self) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kilobytes.ok_or("no line `Rss: N kB`")? * 1_024)
    }

    /// Sends one command to its Redis port, and returns the first part of the reply.
    pub(super) fn send_command(&self, words: &[&str]) -> Result<String, Failure> {
        let mut stream = TcpStream::connect(self.resp.ok_or("it speaks no RESP")?)?;
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(command.as_bytes())?;
        let (mut answer, mut lines) = (String::new(), BufReader::new(stream));
        lines.read_line(&mut answer)?;
        if answer.starts_with('$') {
            answer.clear();
            lines.read_line(&mut answer)?;
        }
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program on the servers' core, without output.
fn started(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command
        .args(["-c", SERVERS])
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// An address that was free a moment ago.
fn free() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Waits several seconds until `what` returns a value.
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> Option<T> {
    (0..1_000).find_map(|_| {
        let found = what();
        if found.is_none() {
            timing::sleep(Duration::from_millis(10));
        }
        found
    })
}

//! A service as a process, and its output.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

/// All listeners on ports that are free.
pub(crate) const ANY: [&str; 8] = ["--http", "0", "--grpc", "0", "--resp", "0", "--admin", "0"];

/// Whatever is waited for comes within it, on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How many were started: each has a folder of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A service that runs, killed when it is dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) scratch: TempFolder,
    /// The content of the ready file.
    pub(crate) ready: Value,
}

/// The command, as it was built.
pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    // What the machine says of itself is nothing to a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command
}

impl Service {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::with(options, |_| {})
    }

    /// The same with a change to how it is started.
    pub(crate) fn with(options: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        Self::by(tollgate(), options, change)
    }

    /// The same with so many file descriptors.
    pub(crate) fn with_descriptors(options: &[&str], most: u32) -> Self {
        let limited = format!("ulimit -n {most} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limited]).arg(tollgate().get_program());
        Self::by(command, options, |_| {})
    }

    fn by(mut command: Command, options: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let scratch = TempFolder::new(&format!("serve-{number}"));
        let file = scratch.path("ready.json");
        command.arg("serve").args(options);
        command.arg("--ready-file").arg(&file);
        command.stdout(File::create(scratch.path("out")).expect("a file"));
        command.stderr(File::create(scratch.path("err")).expect("a file"));
        change(&mut command);
        let mut child = command.spawn().expect("tollgate starts");
        wait_until(LONG, "the service to be ready", || {
            if let Ok(Some(status)) = child.try_wait() {
                let said = fs::read_to_string(scratch.path("err")).unwrap_or_default();
                panic!("it ended with {status}: {said}");
            }
            file.exists()
        });
        let ready = fs::read_to_string(&file).expect("a ready file");
        Self {
            child,
            scratch,
            ready: serde_json::from_str(&ready).expect("JSON"),
        }
    }

    /// The standard output, once it has this text.
    pub(crate) fn said(&self, what: &str) -> String {
        let path = self.scratch.path("out");
        let read = || fs::read_to_string(&path).unwrap_or_default();
        wait_until(LONG, "the service to say it all", || read().contains(what));
        read()
    }

    /// What it has said on standard error, without times, and but for where the operators' token is: that is another each
    /// time.
    pub(crate) fn warned(&self) -> String {
        let said = without_times(&self.logged());
        let lines = said.split_inclusive('\n');
        lines
            .filter(|line| !line.contains("info: admin token made "))
            .collect()
    }

    /// All of the standard error.
    pub(crate) fn logged(&self) -> String {
        fs::read_to_string(self.scratch.path("err")).unwrap_or_default()
    }

    /// What one of its listeners has at a path: the status and the body.
    pub(crate) fn get(&self, listener: &str, path: &str) -> (u16, String) {
        let address = self.ready[listener].as_str().expect("an address");
        get(address, path)
    }

    /// Posts JSON; the status and the body.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, String) {
        let address = self.ready["http"].as_str().expect("an address");
        let mut stream = TcpStream::connect(address).expect("a connection");
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|text| text.parse().ok());
        let body = text.split_once("\r\n\r\n").expect("a body").1.to_owned();
        (status.expect("a status"), body)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.expect("sh runs").success());
    }

    /// Sends a signal, and waits for the end.
    pub(crate) fn end(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        let mut ended = None;
        wait_until(LONG, "the service to end", || {
            ended = self.child.try_wait().expect("a status");
            ended.is_some()
        });
        ended.expect("an end")
    }

    /// Waits until the standard error has this text.
    #[track_caller]
    pub(crate) fn warns(&self, what: &str) {
        let said = format!("{what:?} in the log");
        wait_until(LONG, &said, || self.warned().contains(what));
    }

    /// What it has said on standard error, once that has this. A thread of its own writes it, so it may come after the
    /// answer to what it is about.
    #[track_caller]
    pub(crate) fn told(&self, what: &str) -> String {
        self.warns(what);
        self.warned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a service that can't start: its exit code, and its standard error.
#[track_caller]
pub(crate) fn fails(options: &[&str], change: impl FnOnce(&mut Command)) -> (i32, String) {
    let mut command = tollgate();
    command.arg("serve").args(options);
    change(&mut command);
    let run = command.output().expect("tollgate runs");
    let said = String::from_utf8(run.stderr).expect("text");
    let said = without_times(&said);
    (run.status.code().expect("an exit code"), said)
}

/// A log without the time at the start of each line.
fn without_times(log: &str) -> String {
    let lines = log.split_inclusive('\n');
    let without = lines.map(|line| match line.split_once("Z ") {
        Some((time, rest)) if time.starts_with("20") && time.len() == 23 => rest,
        _ => line,
    });
    without.collect()
}

/// What an address has at a path: the status and the body.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    // The old version, so that the body comes as it is.
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).and_then(|text| text.parse().ok());
    let body = text.split_once("\r\n\r\n").expect("a body").1.to_owned();
    (status.expect("a status"), body)
}

/// A file with a text.
pub(crate) fn file(scratch: &TempFolder, name: &str, text: &str) -> PathBuf {
    let path = scratch.path(name);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(&path, text).expect("a file");
    path
}

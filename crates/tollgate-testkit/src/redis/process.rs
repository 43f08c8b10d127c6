//! One process that a test started, and what may be done to it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wait_until;

/// Linux tells every program its times in hundredths of a second.
const CPU_TICK: Duration = Duration::from_millis(10);

/// A process, killed and waited for when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Mutex<Child>);

impl Process {
    /// Starts it with what it says appended to a file.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log);
        let log = log.expect("a log file in the test's folder");
        let errors = log.try_clone().expect("a second handle of the log");
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} doesn't start: {error}"));
        Self(Mutex::new(child))
    }

    pub(super) fn id(&self) -> u32 {
        self.child().id()
    }

    pub(crate) fn running(&self) -> bool {
        self.child().try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Kills it at once, stopped or not, and waits until it is gone.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        // It can only fail if the process is gone, which is what was asked for.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Stops it where it is, until it is told to continue.
    pub(super) fn pause(&self) {
        self.signal("STOP");
        wait_until(Duration::from_secs(5), "a process to stop", || {
            self.stat().is_none_or(|stat| stat.starts_with('T'))
        });
    }

    /// Lets it go on.
    pub(super) fn resume(&self) {
        self.signal("CONT");
    }

    /// The processor time that it has used, to a hundredth of a second.
    pub(super) fn cpu_time(&self) -> Duration {
        let stat = self.stat().expect("a process that is running");
        // Fields 14 and 15 by the manual's count; the first two are cut off.
        let fields = stat.split_whitespace().skip(11).take(2);
        let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
        CPU_TICK * ticks
    }

    /// What the system says about it, from its state on. The name before may hold anything.
    fn stat(&self) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        Some(stat.rsplit_once(") ")?.1.to_owned())
    }

    /// Sends a signal by the shell, which needs no unsafe code here.
    fn signal(&self, name: &str) {
        let mut child = self.child();
        // One that has ended was waited for just now: its number may be another's by now.
        let running = child.try_wait().is_ok_and(|ended| ended.is_none());
        assert!(running, "SIG{name} for a process that isn't running");
        let kill = format!("kill -{name} {}", child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{kill} failed");
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

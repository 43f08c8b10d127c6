//! One process that a test started, with signals.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wait_until;

/// Linux reports process times in hundredths of a second.
const CPU_TICK: Duration = Duration::from_millis(10);

/// A process that is killed and waited for when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Mutex<Child>);

impl Process {
    /// Starts a command, with its output appended to a file.
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

    /// Kills it immediately, paused or not, and waits until it is gone.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        // This fails only if the process has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Pauses it until it is resumed.
    pub(super) fn pause(&self) {
        self.signal("STOP");
        wait_until(Duration::from_secs(5), "a process to stop", || {
            self.stat().is_none_or(|stat| stat.starts_with('T'))
        });
    }

    /// Resumes it.
    pub(super) fn resume(&self) {
        self.signal("CONT");
    }

    /// The processor time that it has used, to a hundredth of a second.
    pub(super) fn cpu_time(&self) -> Duration {
        let stat = self.stat().expect("a process that is running");
        // Fields 14 and 15 in the manual; the first two are cut off.
        let fields = stat.split_whitespace().skip(11).take(2);
        let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
        CPU_TICK * ticks
    }

    /// The process's statistics from its state on. The name before may contain anything.
    fn stat(&self) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        Some(stat.rsplit_once(") ")?.1.to_owned())
    }

    /// Sends a signal through the shell, which needs no unsafe code here.
    fn signal(&self, name: &str) {
        let mut child = self.child();
        // A process that has ended was just reaped, and its id may belong to another by now.
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

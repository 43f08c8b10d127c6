//! Reloads a policy when its files change, and reports the result.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{DEBOUNCE, FileWatcher};
use crate::backend::Backend;
use crate::diff::PolicyDiff;
use crate::source::fingerprint;
use crate::{Diagnostic, Engine, LoadError, LoadedPolicy, Policy};

/// The delay before files are read again after the process ran out of file descriptors. No event reports a free one.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An event of a policy that is [watched](Engine::watch). Its `Display` text is one line for a log.
///
/// ```
/// use tollgate_engine::watch::WatchEvent;
///
/// let event = WatchEvent::Rejected { why: "policy.yaml:1:1: unknown field \"limitz\"" };
/// assert!(event.is_error());
/// assert_eq!(
///     event.to_string(),
///     "policy not reloaded, the one before stays in force: policy.yaml:1:1: unknown field \"limitz\""
/// );
/// ```
#[derive(Clone, Copy, Debug, derive_more::Display)]
#[non_exhaustive]
pub enum WatchEvent<'a> {
    /// A changed policy is in force.
    #[display("policy reloaded: {}{}", changes.summary(), warning_count_text(warnings))]
    Reloaded {
        /// The changes.
        changes: &'a PolicyDiff,
        /// Warnings about settings that may be mistakes.
        warnings: &'a [Diagnostic],
    },
    /// The files have an error. The previous policy stays in force.
    #[display("policy not reloaded, the one before stays in force: {why}")]
    Rejected {
        /// The likeliest cause, in one line.
        why: &'a str,
    },
    /// The system can't report file changes, so the files are read every [two seconds](super::POLL_INTERVAL).
    #[display("the system doesn't report changes, the policy is polled: {why}")]
    Polling {
        /// The reason.
        why: &'a str,
    },
}

impl WatchEvent<'_> {
    /// Whether the files and the policy in force differ, so that somebody has to act.
    pub const fn is_error(&self) -> bool {
        matches!(self, Self::Rejected { .. })
    }
}

fn warning_count_text(warnings: &[Diagnostic]) -> String {
    match warnings.len() {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        more => format!(", {more} warnings"),
    }
}

impl<B: Backend + 'static> Engine<B> {
    /// Watches a policy file or a folder of policy files, and puts each change in force (feature `watch`). The watch
    /// ends when the returned value is dropped, or the last other owner of the engine.
    ///
    /// Changes within 150 ms are one change. The watch notices files that are replaced, removed and created again, or
    /// linked elsewhere (as Kubernetes does), and also the files that they include. A file with an error changes
    /// nothing: the previous policy stays in force. `report` is called for each event on the watch's own thread, so
    /// it is the place to write to your log.
    ///
    /// # Errors
    /// The system can't start a thread.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::{Engine, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Arc::new(Engine::new(Policy::from_path("policy.yaml")?.policy, Memory::new())?);
    /// let _watch = engine.watch("policy.yaml", |event| eprintln!("{event}"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(
        self: &Arc<Self>,
        path: impl Into<PathBuf>,
        mut report: impl FnMut(&WatchEvent<'_>) + Send + 'static,
    ) -> std::io::Result<FileWatcher> {
        let path = path.into();
        let mut follower = PolicyFollower {
            engine: Arc::downgrade(self),
            path: path.clone(),
            last: None,
            was_rejected: false,
        };
        FileWatcher::start(vec![path], move |polled| {
            if let Some(why) = polled {
                report(&WatchEvent::Polling { why });
            }
            loop {
                match follower.reload_if_changed(&mut report) {
                    Some(files) => return files,
                    None => std::thread::park_timeout(RETRY_AFTER),
                }
            }
        })
    }
}

/// The state of the files that an engine follows.
struct PolicyFollower<B: Backend> {
    engine: Weak<Engine<B>>,
    path: PathBuf,
    /// The fingerprint of the files when they were last read.
    last: Option<u64>,
    /// Whether they were rejected then.
    was_rejected: bool,
}

impl<B: Backend> PolicyFollower<B> {
    /// Puts the files in force if their content changed, and returns the files to watch. `None` if they have to be
    /// read again soon.
    fn reload_if_changed(
        &mut self,
        report: &mut impl FnMut(&WatchEvent<'_>),
    ) -> Option<Vec<PathBuf>> {
        let mut files = vec![self.path.clone()];
        let Some(engine) = self.engine.upgrade() else {
            return Some(files);
        };
        let read = read_when_stable(&self.path);
        let now = fingerprint(&read);
        if self.last.replace(now) == Some(now) {
            files.extend(file_paths(&read));
            return Some(files);
        }
        // Without a file descriptor nothing is known of the files: forget this read, and try again.
        if read.as_ref().is_err_and(LoadError::is_retryable) {
            self.last = None;
            return None;
        }
        files.extend(file_paths(&read));
        let put = match read {
            Ok(checked) => self.put_in_force(&engine, checked, report),
            Err(rejected) => Err(rejected.summary()),
        };
        if let Err(why) = &put {
            report(&WatchEvent::Rejected { why });
        }
        self.was_rejected = put.is_err();
        Some(files)
    }

    /// Puts a policy in force, unless it already is.
    fn put_in_force(
        &self,
        engine: &Engine<B>,
        checked: LoadedPolicy,
        report: &mut impl FnMut(&WatchEvent<'_>),
    ) -> Result<(), String> {
        let changes = &PolicyDiff::new(&engine.policy(), &checked.policy);
        // After an error, a reload is reported even without changes, so that operators know the files are valid
        // again.
        if changes.is_empty() && !self.was_rejected {
            return Ok(());
        }
        let put = engine.reload(checked.policy);
        put.map_err(|error| error.to_string())?;
        let warnings = &checked.warnings;
        report(&WatchEvent::Reloaded { changes, warnings });
        Ok(())
    }
}

/// Reads a policy whose files may be being written: a rejected policy is read again after 150 ms.
///
/// A program that writes a file in place empties it first. A read at that moment would report an error that nobody
/// made.
///
/// ```
/// use tollgate_engine::watch::read_when_stable;
///
/// let rejected = read_when_stable("no-such-folder/policy.yaml".as_ref()).expect_err("no such file");
/// assert!(rejected.summary().contains("no-such-folder"));
/// ```
///
/// # Errors
/// The policy was rejected twice.
pub fn read_when_stable(path: &Path) -> Result<LoadedPolicy, LoadError> {
    read_again_if_rejected(
        || Policy::from_path(path),
        || std::thread::park_timeout(DEBOUNCE),
    )
}

fn read_again_if_rejected<T, E>(
    mut read: impl FnMut() -> Result<T, E>,
    pause: impl FnOnce(),
) -> Result<T, E> {
    read().or_else(|_| {
        pause();
        read()
    })
}

/// The paths of the files that were read.
fn file_paths(read: &Result<LoadedPolicy, LoadError>) -> impl Iterator<Item = PathBuf> {
    let sources = crate::load_result::sources_of_result(read);
    sources.iter().map(|source| PathBuf::from(source.name()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::read_again_if_rejected;

    /// Reads these outcomes in turn. Returns the result, the number of reads and the number of pauses.
    fn read(outcomes: &[Result<u8, u8>]) -> (Result<u8, u8>, usize, usize) {
        let (reads, pauses) = (Cell::new(0), Cell::new(0));
        let next = || {
            let outcome = outcomes[reads.get()];
            reads.set(reads.get() + 1);
            outcome
        };
        let outcome = read_again_if_rejected(next, || pauses.set(pauses.get() + 1));
        (outcome, reads.get(), pauses.get())
    }

    #[test]
    fn a_file_that_is_being_written_is_read_again_before_it_is_rejected() {
        assert_eq!(read(&[Ok(1)]), (Ok(1), 1, 0));
        assert_eq!(read(&[Err(1), Ok(2)]), (Ok(2), 2, 1));
        assert_eq!(read(&[Err(1), Err(2)]), (Err(2), 2, 1));
    }
}

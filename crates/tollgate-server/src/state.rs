//! The state that a service in memory keeps across restarts, in a folder of its own: a snapshot of what keys have spent
//! of rates, and a journal of what they have used of quotas.
//!
//! | file | what |
//! |---|---|
//! | `lock` | locked for as long as a process keeps its state here; has the id of the process |
//! | `snapshot` | all rates (`snapshot.rs`), written anew every few seconds and at the end |
//! | `quotas` | the journal of quotas, as `tollgate::quota` keeps it, with `quotas.lock` |
//! | `snapshot.damaged-…`, `quotas.damaged-…` | what couldn't be read at a start, by the second of that |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::quota::{FileError, OnFileFailure};
use tollgate::snapshot::SnapshotError;
use tollgate_engine::backend::MemoryBuilder;
use tollgate_engine::{Policy, RestoreError};

use crate::log::Log;
use crate::start_error::StartError;

mod snapshot;
mod state_folder;
#[cfg(test)]
mod tests;
mod uptime;

pub(crate) use snapshot::save as save_snapshot;
pub(crate) use state_folder::{Folder, in_use};
pub use uptime::Uptime;

use snapshot::RestoreFailure;
pub(crate) use snapshot::RestoredState;

/// The longest interval between two flushes of quotas.
const MOST_BETWEEN_FLUSHES: Duration = Duration::from_secs(1);
/// The system's error for a disk that can't be read: `EIO`.
const LOST_BY_THE_DISK: i32 = 5;
/// The advice about a file that may be intact.
const UNREAD: &str =
    "; mend that and start again, or move the file away to start without what it holds";
/// How many limits missing from the policy are named in the log.
const NAMED: usize = 10;

/// The folder of the state, and how often it is saved.
///
/// ```
/// use std::time::Duration;
/// use tollgate_server::StateOptions;
///
/// let options = StateOptions { save_interval: Duration::from_secs(1), ..StateOptions::in_folder("/var/lib/tollgate") };
/// assert!(options.folder.is_absolute());
/// ```
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// A folder that no other service uses. It is created if it doesn't exist.
    pub folder: PathBuf,
    /// The save interval: the most that a killed process forgets. Quotas are saved every second, or at this interval if
    /// it is shorter.
    pub save_interval: Duration,
    /// How long the machine has been running. It tells the time between two processes even if the wall clock is set.
    pub uptime: fn() -> Option<Uptime>,
}

impl StateOptions {
    /// The state in this folder, saved every five seconds.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            save_interval: Duration::from_secs(5),
            uptime: Uptime::of_system,
        }
    }
}

/// The outcome of saving state: see [`Server::state_status`](crate::Server::state_status).
///
/// ```
/// use tollgate_server::StateStatus;
///
/// assert_eq!(StateStatus::default().failures, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateStatus {
    /// When the latest snapshot was written, in seconds of the Unix epoch.
    pub last_saved_unix: u64,
    /// Keys in it.
    pub keys: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// How long it took to write.
    pub save_duration: Duration,
    /// Snapshots written since the start.
    pub saves: u64,
    /// Saves that failed since the start, of snapshots or quotas.
    pub failures: u64,
    /// Files that couldn't be read at the start, and were set aside.
    pub damaged_files: u64,
}

/// The outcome of saving; empty until the first snapshot.
#[derive(Debug, Default)]
pub(crate) struct SaveProgress(Mutex<Option<StateStatus>>);

impl SaveProgress {
    pub(crate) fn status(&self) -> Option<StateStatus> {
        *self.locked()
    }

    /// Changes the status.
    pub(crate) fn update(&self, change: impl FnOnce(&mut StateStatus)) {
        change(self.locked().get_or_insert_default());
    }

    fn locked(&self) -> MutexGuard<'_, Option<StateStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A service's restored counters, and the folder that keeps them.
pub(crate) struct OpenedState<C: Clock + 'static, W: Clock + 'static> {
    /// Why state was lost: one reason for each file that was set aside.
    pub(crate) lost: Vec<String>,
    pub(crate) folder: Folder,
    pub(crate) found: RestoredState<C, W>,
}

/// The inputs for restoring state: the policy, the backend's settings, the folder and the log.
pub(crate) struct StateOpener<'a, C, W> {
    pub(crate) policy: Policy,
    pub(crate) builder: MemoryBuilder<C, W>,
    pub(crate) throttle_keys: usize,
    pub(crate) options: &'a StateOptions,
    pub(crate) log: &'a Log,
}

impl<C: Clock + Clone + 'static, W: Clock + Clone + 'static> StateOpener<'_, C, W> {
    /// Restores the state of the folder. Unreadable files are set aside, and the service starts without them.
    ///
    /// # Errors
    /// The folder can't be used, or the policy can't be put in force.
    pub(crate) fn open(mut self) -> Result<OpenedState<C, W>, StartError> {
        let every = self.options.save_interval.min(MOST_BETWEEN_FLUSHES);
        self.builder = self
            .builder
            .flush_quotas_every(every)
            .on_quota_file_error(OnFileFailure::Allow);
        let folder = Folder::lock(&self.options.folder).map_err(StartError::State)?;
        folder.sweep();
        let mut lost = Vec::new();
        // Each pass sets one file aside, which the next pass doesn't find, so the loop ends.
        loop {
            let refused = match snapshot::restore(&self, &folder) {
                Ok(found) => {
                    self.log_found(&folder, &found);
                    return Ok(OpenedState {
                        lost,
                        folder,
                        found,
                    });
                }
                Err(refused) => refused,
            };
            let (damaged, why) = match refused {
                RestoreFailure::Restore(RestoreError::Policy(error)) => {
                    return Err(StartError::Policy(error));
                }
                RestoreFailure::Restore(RestoreError::Quotas(error)) if !is_damaged(&error) => {
                    return Err(StartError::State(journal_error(&error)));
                }
                RestoreFailure::Restore(RestoreError::Quotas(error)) => {
                    (folder.quotas(), error.to_string())
                }
                RestoreFailure::Restore(RestoreError::Snapshot(SnapshotError::Io {
                    path,
                    source,
                })) if !is_lost(&path, &source) => {
                    let error = SnapshotError::Io { path, source };
                    return Err(StartError::State(format!("{error}{UNREAD}")));
                }
                RestoreFailure::Restore(error) => (folder.snapshot(), error.to_string()),
                RestoreFailure::Throttle(error) => return Err(StartError::Throttle(error)),
            };
            self.set_aside(&folder, &damaged, &why)?;
            lost.push(why);
        }
    }

    fn set_aside(&self, folder: &Folder, damaged: &Path, why: &str) -> Result<(), StartError> {
        let now = self.builder.times().wall.as_nanos() / 1_000_000_000;
        let aside = folder.set_aside(damaged, now).map_err(|error| {
            StartError::State(format!(
                "{why}; it can't be set aside either: {error}. Move {} away",
                damaged.display()
            ))
        })?;
        let event = "state can't be read, and is set aside: the service starts without it";
        let aside = aside.display();
        self.log.error(event, &[("why", &why), ("kept_as", &aside)]);
        Ok(())
    }

    /// Logs what was restored.
    fn log_found(&self, folder: &Folder, found: &RestoredState<C, W>) {
        let quotas = found.engine.backend().quota_stats();
        let place = folder.path().display();
        match &found.restored {
            None => {
                let said: [(&str, &dyn std::fmt::Display); 2] =
                    [("folder", &place), ("quotas", &quotas.keys)];
                self.log.info("no snapshot to go on from", &said);
            }
            Some(restored) => {
                self.log.info(
                    "state restored",
                    &[
                        ("folder", &place),
                        ("keys", &restored.keys),
                        ("quotas", &quotas.keys),
                        ("left_out", &restored.dropped_keys),
                        ("limits_retired", &restored.retired.len()),
                    ],
                );
                if !restored.retired.is_empty() {
                    let event = "limits that the policy has no more, or counts in another way: what was spent of them is kept until it is idle, in case they return";
                    let limits = join_names(&restored.retired);
                    self.log.warn(event, &[("limits", &limits)]);
                }
            }
        }
        if quotas.recovered_bytes > 0 {
            let event =
                "the end of the quotas' journal, which a crash left unfinished, is left out";
            let bytes = quotas.recovered_bytes;
            self.log.warn(event, &[("bytes", &bytes)]);
        }
    }
}

/// Whether a journal is useless whatever an operator does. Any other error is somebody's mistake, and is reported.
fn is_damaged(error: &FileError) -> bool {
    match error {
        FileError::Io { path, source } => is_lost(path, source),
        FileError::NotAQuotaFile { .. }
        | FileError::OtherVersion { .. }
        | FileError::Corrupt { .. } => true,
        _ => false,
    }
}

/// Whether a file is lost for good: a folder is in its place, or the disk has lost a part of it. A full disk, a wrong
/// owner or a lack of file descriptors passes, and setting the file aside would lose its state.
fn is_lost(path: &Path, error: &io::Error) -> bool {
    path.is_dir()
        || error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error() == Some(LOST_BY_THE_DISK)
}

/// Why an undamaged journal can't be used, and what to do.
fn journal_error(error: &FileError) -> String {
    let help = match error {
        FileError::Io { .. } => UNREAD,
        _ => "",
    };
    format!("{error}{help}")
}

/// Some names in one line.
fn join_names(names: &[String]) -> String {
    let (first, rest) = names.split_at(names.len().min(NAMED));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

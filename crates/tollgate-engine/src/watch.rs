//! Watches the files of a policy, which may be symbolic links, and may be replaced, removed and created again
//! (feature `watch`).
//!
//! [`Engine::watch`](crate::Engine::watch) puts a changed policy in force. [`FileWatcher`] detects the change. It
//! watches every folder on the way to a file, so that it detects a changed link as well as a replaced file:
//! Kubernetes swaps the link `..data`, and most editors write a new file. If the system can't report changes, the
//! files are polled.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};

mod policy_watch;

pub use policy_watch::{WatchEvent, read_when_stable};

/// How long no event may arrive before the files are read, because a change often comes in several steps.
const DEBOUNCE: Duration = Duration::from_millis(150);
/// After this many events, the files are read even if more follow.
const MAX_DEBOUNCED_EVENTS: usize = 100;
/// How often files are polled if the system doesn't report changes.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The most links in a chain, as many as the system follows.
const MAX_SYMLINKS: usize = 40;

/// The folders on the way to some files, and the names in each that matter.
type WatchedFolders = BTreeMap<PathBuf, WatchedNames>;
/// These names in a folder. `None` stands for all, because the folder itself is read.
type WatchedNames = Option<BTreeSet<OsString>>;

/// Watches files in a thread of its own, until it is dropped.
///
/// ```no_run
/// use std::path::PathBuf;
/// use tollgate_engine::watch::FileWatcher;
///
/// let file = PathBuf::from("policy.yaml");
/// let watch = FileWatcher::start(vec![file.clone()], move |polled| {
///     if let Some(why) = polled {
///         eprintln!("the system doesn't report changes, so the files are polled: {why}");
///     }
///     println!("{:?}", std::fs::read_to_string(&file));
///     vec![file.clone()]
/// })?;
/// # drop(watch);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the files are watched until it is dropped"]
pub struct FileWatcher(Sender<WatchSignal>);

/// A message to the watching thread.
#[derive(Debug)]
enum WatchSignal {
    /// Something happened to these paths, or, if there are none, to unknown ones.
    Changed(Vec<PathBuf>),
    Stop,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitResult {
    Read,
    End,
}

/// The watched files, and the folders on the way to them.
struct WatchState {
    detector: ChangeDetector,
    /// Why the system can't report changes, until the reader has got the reason.
    polled_because: Option<String>,
    paths: Vec<PathBuf>,
    folders: WatchedFolders,
    /// Whether one of the folders may have been replaced by one that isn't watched.
    is_stale: bool,
    signals: Receiver<WatchSignal>,
}

/// How changes are detected.
enum ChangeDetector {
    /// The system reports changes.
    Notified(RecommendedWatcher),
    /// This thread compares the files with what it knew of them.
    Polled(Vec<FileStamp>),
}

/// The metadata by which a changed file is detected.
type FileStamp = Option<(u64, u64, u64, i64, i64)>;

impl FileWatcher {
    /// Calls `read` once, and then after each change, when nothing more has happened for 150 ms. `read` returns the
    /// files to watch from then on. If the system can't report changes, the files are polled every 2 seconds, and the
    /// next call gets the reason.
    ///
    /// # Errors
    /// If the system can't create a thread.
    pub fn start(
        paths: Vec<PathBuf>,
        mut read: impl FnMut(Option<&str>) -> Vec<PathBuf> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (tell, signals) = mpsc::channel();
        let told = tell.clone();
        let look = move || {
            let mut watched = WatchState::new(paths, told, signals);
            loop {
                // Watching starts before the read: a later change is reported, and an earlier one is read now.
                let is_new = watched.update_watches();
                if !is_new && watched.wait_for_change() == WaitResult::End {
                    return;
                }
                let polled = watched.polled_because.take();
                watched.paths = read(polled.as_deref());
            }
        };
        let thread = std::thread::Builder::new().name("file-watch".to_owned());
        thread.spawn(look)?;
        Ok(Self(tell))
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.0.send(WatchSignal::Stop);
    }
}

impl WatchState {
    fn new(paths: Vec<PathBuf>, tell: Sender<WatchSignal>, signals: Receiver<WatchSignal>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let paths = match event {
                Ok(event) if is_change(&event.kind) => event.paths,
                Ok(_) => return,
                // An error means that events were lost.
                Err(_) => Vec::new(),
            };
            // The receiver is gone once the thread has ended.
            let _ = tell.send(WatchSignal::Changed(paths));
        });
        let (how, polled_because) = match watcher {
            Ok(watcher) => (ChangeDetector::Notified(watcher), None),
            Err(error) => (ChangeDetector::Polled(Vec::new()), Some(error.to_string())),
        };
        Self {
            detector: how,
            polled_because,
            paths,
            folders: WatchedFolders::new(),
            is_stale: false,
            signals,
        }
    }

    /// Watches the folders that lead to the files at present. Returns whether these changed, so that an event may
    /// have been missed.
    fn update_watches(&mut self) -> bool {
        let folders = watched_folders(&self.paths);
        let mut is_new = std::mem::take(&mut self.is_stale) || folders != self.folders;
        let before = std::mem::replace(&mut self.folders, folders);
        let failed = match &mut self.detector {
            // Watching a folder again loses its pending events, so it is only done if needed.
            ChangeDetector::Notified(_) if !is_new => None,
            ChangeDetector::Notified(watcher) => {
                // A folder may have been replaced by another of the same name, which isn't watched yet. Errors are
                // ignored, since it may be gone.
                for folder in before.keys().chain(self.folders.keys()) {
                    let _ = watcher.unwatch(folder);
                }
                let watch = |folder: &PathBuf| {
                    let watched = watcher.watch(folder, RecursiveMode::NonRecursive);
                    watch_failure(folder, &self.folders, &watched.err()?)
                };
                self.folders.keys().filter_map(watch).next_back()
            }
            ChangeDetector::Polled(last) => {
                let now = file_stamps(&self.paths);
                is_new |= now != *last;
                *last = now;
                None
            }
        };
        if let Some(why) = failed {
            self.polled_because = Some(why);
            self.detector = ChangeDetector::Polled(file_stamps(&self.paths));
            is_new = true;
        }
        is_new
    }

    /// Waits until something has happened to the files, and then for a pause.
    fn wait_for_change(&mut self) -> WaitResult {
        if let ChangeDetector::Polled(last) = &mut self.detector {
            loop {
                match self.signals.recv_timeout(POLL_INTERVAL) {
                    Ok(WatchSignal::Changed(_)) => {}
                    Ok(WatchSignal::Stop) | Err(RecvTimeoutError::Disconnected) => {
                        return WaitResult::End;
                    }
                    Err(RecvTimeoutError::Timeout) if file_stamps(&self.paths) == *last => {}
                    Err(RecvTimeoutError::Timeout) => return WaitResult::Read,
                }
            }
        }
        let folders = &self.folders;
        let matters = |paths: &[PathBuf]| {
            paths.is_empty() || paths.iter().any(|path| concerns_watched(folders, path))
        };
        // Nothing has happened yet.
        let clock = Monotonic::new();
        let (mut until, mut steps) = (None::<Timestamp>, 0);
        loop {
            let signal = match until {
                None => (self.signals.recv()).map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.signals.recv_timeout(until - clock.now()),
            };
            if let Ok(WatchSignal::Changed(paths)) = &signal {
                self.is_stale |= concerns_folders(folders, paths);
            }
            match signal {
                Ok(WatchSignal::Changed(paths))
                    if matters(&paths) && steps < MAX_DEBOUNCED_EVENTS =>
                {
                    until = Some(clock.now() + DEBOUNCE);
                    steps += 1;
                }
                Ok(WatchSignal::Changed(_)) => {}
                Err(RecvTimeoutError::Timeout) => return WaitResult::Read,
                Ok(WatchSignal::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    return WaitResult::End;
                }
            }
        }
    }
}

/// Whether an event is a change. Reading a file isn't one, though it is reported. Writing isn't one on Linux, which
/// also reports the end of it: a file that is being written may have half of a policy.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        EventKind::Modify(ModifyKind::Data(_)) => !cfg!(target_os = "linux"),
        _ => true,
    }
}

/// Why the system can't report changes, if it matters that this folder isn't watched. Folders further up may be
/// unreadable, and a missing folder can't be watched.
fn watch_failure(folder: &Path, folders: &WatchedFolders, error: &notify::Error) -> Option<String> {
    let mut others = folders.keys().filter(|other| *other != folder);
    let is_last = !others.any(|other| other.starts_with(folder));
    let report_unreachable = matches!(error.kind, notify::ErrorKind::PathNotFound)
        || matches!(&error.kind, notify::ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::NotFound);
    (is_last && !report_unreachable).then(|| format!("{}: {error}", folder.display()))
}

/// Whether something happened to the folders themselves, or to unknown paths.
fn concerns_folders(folders: &WatchedFolders, paths: &[PathBuf]) -> bool {
    paths.is_empty() || paths.iter().any(|path| folders.contains_key(path))
}

fn concerns_watched(folders: &WatchedFolders, path: &Path) -> bool {
    // The folder itself was moved or removed.
    if folders.contains_key(path) {
        return true;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return true;
    };
    match folders.get(folder) {
        Some(names) => names.as_ref().is_none_or(|names| names.contains(name)),
        None => false,
    }
}

/// The folders on the way to these files or folders, by their paths without links.
fn watched_folders(paths: &[PathBuf]) -> WatchedFolders {
    let mut folders = WatchedFolders::new();
    for path in paths {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        walk_links(&whole, &mut folders);
    }
    folders
}

/// Walks from the root along a path, through all links on the way.
fn walk_links(path: &Path, folders: &mut WatchedFolders) {
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> = path_names_reversed(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let names = folders.entry(at.clone());
        if let Some(names) = names.or_insert_with(|| Some(BTreeSet::new())) {
            names.insert(name.clone());
        }
        let next = at.join(&name);
        match std::fs::read_link(&next) {
            Ok(target) if links < MAX_SYMLINKS => {
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(path_names_reversed(&target));
            }
            Ok(_) => return,
            // A path that doesn't exist can't be followed, but may be created.
            Err(_) if !next.exists() => return,
            Err(_) => at = next,
        }
    }
    if at.is_dir() {
        folders.insert(at, None);
    }
}

/// The names in a path, the last first.
fn path_names_reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    parts.collect()
}

/// The metadata of files, and of policy files in folders.
fn file_stamps(paths: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |path: &Path| {
        let known = std::fs::metadata(path).ok()?;
        Some((
            known.dev(),
            known.ino(),
            known.len(),
            known.mtime(),
            known.mtime_nsec(),
        ))
    };
    let inside = |path: &PathBuf| crate::source::policy_files_in(path);
    let all = paths
        .iter()
        .flat_map(|path| [vec![path.clone()], inside(path)].concat());
    all.map(|path| stamp(&path)).collect()
}

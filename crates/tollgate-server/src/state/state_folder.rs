//! The folder of a service's state: it is locked, and unreadable files are set aside in it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// How many files of each kind are kept aside.
const KEPT_ASIDE: usize = 3;
const ASIDE: &str = "damaged-";

/// A state folder, locked against other processes for as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: Mutex<File>,
}

impl Folder {
    /// Creates the folder if it doesn't exist, for its owner alone, and locks it.
    ///
    /// # Errors
    /// Why the folder can't be used, and what to do.
    pub(crate) fn lock(path: &Path) -> Result<Self, String> {
        let cant = |error: io::Error| {
            let path = path.display();
            format!("can't keep state in {path}: {error}; choose another folder by --state")
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        builder.mode(0o700);
        builder.create(path).map_err(cant)?;
        // Absolute, so that a change of the working directory doesn't matter.
        let path = fs::canonicalize(path).map_err(cant)?;
        let lock = lock_of(&path)?;
        Ok(Self {
            path,
            lock: Mutex::new(lock),
        })
    }

    /// Checks that the folder still exists and is still locked. A folder that was removed and put back is locked again.
    /// A missing folder isn't created, as it may be the mount point of a disk that comes back.
    ///
    /// # Errors
    /// Why nothing can be saved there.
    pub(crate) fn is_own(&self) -> Result<(), String> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if is_same(&lock, &self.path.join("lock")) {
            return Ok(());
        }
        *lock = lock_of(&self.path)?;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot")
    }

    pub(crate) fn quotas(&self) -> PathBuf {
        self.path.join("quotas")
    }

    /// Removes the temporary files of a process that was killed while it wrote a snapshot.
    pub(crate) fn sweep(&self) {
        let is_left = |name: &str| name.starts_with("snapshot.") && name.ends_with(".tmp");
        for name in self.names().into_iter().filter(|name| is_left(name)) {
            // A file that stays does no harm.
            let _ = fs::remove_file(self.path.join(name));
        }
    }

    /// Renames a file, or a folder in its place, by the current second. Only the latest few are kept. Returns the new
    /// name.
    pub(crate) fn set_aside(&self, file: &Path, now: u64) -> io::Result<PathBuf> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let start = format!("{name}.{ASIDE}");
        let before = self.names().into_iter();
        let mut before: Vec<u64> = before
            .filter_map(|name| name.strip_prefix(&start)?.parse().ok())
            .collect();
        before.sort_unstable();
        // If the clock was set back, the new file must still sort as the latest.
        let latest = before.last().map_or(0, |latest| latest.saturating_add(1));
        let aside = self.path.join(format!("{start}{}", now.max(latest)));
        fs::rename(file, &aside)?;
        for old in before.iter().rev().skip(KEPT_ASIDE - 1) {
            let old = self.path.join(format!("{start}{old}"));
            // Files in a folder aren't ours to delete, so only an empty one is removed.
            let _ = fs::remove_file(&old).or_else(|_| fs::remove_dir(&old));
        }
        Ok(aside)
    }

    /// The names in the folder, as far as they are UTF-8.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string());
        names.filter_map(Result::ok).collect()
    }
}

/// Locks a folder by a file in it, which has the id of the process.
fn lock_of(folder: &Path) -> Result<File, String> {
    let path = folder.join("lock");
    let cant = |error: io::Error| format!("can't keep state in {}: {error}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600);
    let mut file = options.open(&path).map_err(cant)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(folder)),
        Err(TryLockError::Error(error)) => return Err(cant(error)),
    }
    file.set_len(0).map_err(cant)?;
    writeln!(file, "{}", std::process::id()).map_err(cant)?;
    Ok(file)
}

/// The error for a folder that another process uses.
pub(crate) fn in_use(folder: &Path) -> String {
    let owner = fs::read_to_string(folder.join("lock")).unwrap_or_default();
    let owner = match owner.trim() {
        "" => "another process".to_owned(),
        id => format!("process {id}"),
    };
    let shown = folder.display();
    format!("{shown} is in use by {owner}: give each service a folder of its own by --state")
}

/// Whether a path names this open file.
fn is_same(file: &File, path: &Path) -> bool {
    let of = |found: io::Result<fs::Metadata>| found.map(|it| (it.dev(), it.ino())).ok();
    let own = of(file.metadata());
    own.is_some() && own == of(fs::metadata(path))
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::temp_folder::TempFolder;

    use super::*;

    #[test]
    fn a_folder_is_its_owners_alone_and_locked() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = TempFolder::new("state-folder");
        let path = scratch.path("a/b");
        let folder = Folder::lock(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("lock"))), (0o700, 0o600));
        let refused = Folder::lock(&path).unwrap_err();
        let (shown, own) = (path.display(), std::process::id());
        assert_eq!(
            refused,
            format!(
                "{shown} is in use by process {own}: give each service a folder of its own by --state"
            )
        );
        drop(folder);
        assert!(Folder::lock(&path).is_ok());
    }

    #[test]
    fn a_folder_that_is_put_back_is_locked_again_and_not_made() {
        let scratch = TempFolder::new("state-put-back");
        let path = scratch.path("own");
        let folder = Folder::lock(&path).unwrap();
        assert_eq!(folder.is_own(), Ok(()));
        fs::remove_dir_all(&path).unwrap();
        let why = folder.is_own().unwrap_err();
        assert!(
            why.ends_with("own/lock: No such file or directory (os error 2)"),
            "{why}"
        );
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        assert_eq!(folder.is_own(), Ok(()));
        assert!(Folder::lock(&path).is_err(), "it is locked");
        // Another process was faster.
        fs::remove_file(path.join("lock")).unwrap();
        let other = Folder::lock(&path).unwrap();
        assert!(
            folder
                .is_own()
                .unwrap_err()
                .contains("is in use by process")
        );
        drop(other);
        assert_eq!(folder.is_own(), Ok(()));
    }

    #[test]
    fn only_the_latest_that_were_set_aside_are_kept() {
        let scratch = TempFolder::new("state-aside");
        let folder = Folder::lock(&scratch.path("own")).unwrap();
        let file = folder.snapshot();
        fs::write(folder.path().join("quotas.damaged-1"), "").unwrap();
        // Two files in one second, and one after the clock was set back.
        for (number, now) in [10, 11, 11, 5, 20].into_iter().enumerate() {
            fs::write(&file, number.to_string()).unwrap();
            folder.set_aside(&file, now).unwrap();
        }
        fs::write(folder.path().join("snapshot.7-0.tmp"), "").unwrap();
        folder.sweep();
        let mut names = folder.names();
        names.sort();
        let [a, b, c] = [
            "snapshot.damaged-12",
            "snapshot.damaged-13",
            "snapshot.damaged-20",
        ];
        assert_eq!(names, ["lock", "quotas.damaged-1", a, b, c]);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!([a, b, c].map(read), ["2", "3", "4"]);
    }

    #[test]
    fn a_path_that_no_folder_can_be_at_is_told() {
        let scratch = TempFolder::new("state-no-folder");
        let path = scratch.path("file");
        fs::write(&path, "").unwrap();
        let shown = path.display();
        assert_eq!(
            Folder::lock(&path).unwrap_err(),
            format!(
                "can't keep state in {shown}: File exists (os error 17); choose another folder by --state"
            )
        );
    }
}

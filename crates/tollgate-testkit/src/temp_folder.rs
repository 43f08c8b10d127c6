//! A folder for the files of one test.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// A test's own folder, removed when it is dropped.
///
/// ```
/// use tollgate_testkit::temp_folder::TempFolder;
///
/// let scratch = TempFolder::new("example");
/// let file = scratch.path("limits");
/// std::fs::write(&file, "10/s")?;
/// drop(scratch);
/// assert!(!file.exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// A folder with this name and the process's id.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the test");
        Self(folder)
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The text of an error, without the folder's path.
    pub fn text(&self, error: &dyn Error) -> String {
        let folder = self.0.join("");
        error.to_string().replace(&*folder.to_string_lossy(), "")
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

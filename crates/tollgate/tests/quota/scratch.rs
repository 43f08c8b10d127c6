//! A temporary folder for each test, removed at its end.

use std::fs;
use std::path::PathBuf;

pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("tollgate-quota-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for the test");
        Self(folder)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("quotas")
    }

    /// The text of an error with the folder left out.
    pub(crate) fn text(&self, error: &impl ToString) -> String {
        error
            .to_string()
            .replace(&*self.0.join("").to_string_lossy(), "")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

//! A folder as a policy: the files in it that are policies by their names, read together.

use std::io;
use std::path::{Path, PathBuf};

use super::{Checked, Rejected, Sources, check, load};
use crate::diagnostic::Diagnostic;
use crate::document::Format;
use crate::native::codes;
use crate::policy::Policy;

/// The files in a folder that are policies by their names, in the order of those; none of what is no folder, none of
/// folders inside of it, and none whose name begins with a dot: those are of editors, and of kubelet.
///
/// ```
/// use tollgate_engine::source::files_in;
///
/// # let folder = std::env::temp_dir().join(format!("tollgate-files-in-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// for name in ["b.yaml", "a.toml", "README", ".b.yaml"] {
///     std::fs::write(folder.join(name), "")?;
/// }
/// assert_eq!(files_in(&folder), [folder.join("a.toml"), folder.join("b.yaml")]);
/// assert!(files_in(folder.join("a.toml")).is_empty());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn files_in(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    list(folder.as_ref()).unwrap_or_default()
}

/// The same, or why nobody can look.
pub(super) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = folder.read_dir()?.flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| !is_hidden(file) && load::format_of(file).is_some() && file.is_file());
    files.sort();
    Ok(files)
}

fn is_hidden(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

/// Reads the files of a folder as one policy: as if one file of ours included them all, or as envoyproxy/ratelimit
/// reads them.
pub(super) fn from_files(files: &[PathBuf]) -> Result<Checked, Rejected> {
    let mut theirs = Vec::with_capacity(files.len());
    for file in files {
        if load::envoy_text(file)?.is_some() {
            theirs.push(file);
        }
    }
    if theirs.len() == files.len() {
        return Policy::from_envoy_paths(files);
    }
    if let Some(odd) = theirs.first() {
        let mut sources = Sources::default();
        let file = sources.add(odd.display().to_string(), String::new(), Format::Yaml);
        let message =
            "a folder with this file of envoyproxy/ratelimit's form has files of ours too";
        let problem = Diagnostic::error(codes::CONFLICT, message, load::whole(file));
        let errors = vec![problem.help("keep them in two folders, or convert theirs")];
        return Err(Rejected { errors, sources });
    }
    check(load::from_paths(files))
}

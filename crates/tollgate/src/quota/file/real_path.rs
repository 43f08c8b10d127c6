//! The real location of a quota file: one absolute path, whatever name it was opened by, and whichever
//! folder the process changes to later.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// As many links as the system follows.
const MAX_LINKS: u32 = 40;

/// Resolves the links of a path. The file may not exist yet, but its folder must.
pub(super) fn resolve_path(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..MAX_LINKS {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            let what = "not the name of a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        let found = fs::canonicalize(folder)?.join(name);
        // Follows also a link to a missing file, because creating the file creates the link's target.
        match fs::read_link(&found) {
            Ok(target) => path = found.with_file_name(target),
            Err(_) => return Ok(found),
        }
    }
    Err(io::Error::other("too many links"))
}

/// The number of names (hard links) of a file, which a path doesn't show.
#[cfg(unix)]
pub(super) fn hard_link_count(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(file).map_or(1, |found| found.nlink())
}

#[cfg(not(unix))]
pub(super) fn hard_link_count(_file: &Path) -> u64 {
    1
}

/// Whether an open file is the one that has this name now.
#[cfg(unix)]
pub(super) fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |found: io::Result<fs::Metadata>| found.map(|it| (it.dev(), it.ino())).ok();
    let own = of(file.metadata());
    own.is_some() && own == of(fs::metadata(path))
}

#[cfg(not(unix))]
pub(super) fn is_same_file(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_name_of_a_file_is_one_path() {
        let folder = std::env::temp_dir().join(format!("tollgate-place-{}", std::process::id()));
        fs::create_dir_all(folder.join("data")).unwrap();
        let folder = fs::canonicalize(&folder).unwrap();
        let file = folder.join("data").join("quotas");
        symlink("data/quotas", folder.join("link")).unwrap();
        symlink(folder.join("link"), folder.join("far")).unwrap();
        symlink(folder.join("data"), folder.join("other")).unwrap();
        // Before the file exists, and after.
        for _ in 0..2 {
            for name in ["data/quotas", "data/../link", "link", "far", "other/quotas"] {
                assert_eq!(resolve_path(&folder.join(name)).unwrap(), file, "{name}");
            }
            fs::write(&file, "").unwrap();
        }
        symlink("round", folder.join("round")).unwrap();
        let round = resolve_path(&folder.join("round")).unwrap_err();
        assert_eq!(round.to_string(), "too many links");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_relative_path_is_made_absolute_once() {
        let here = fs::canonicalize(".").unwrap();
        assert_eq!(
            resolve_path(Path::new("quotas")).unwrap(),
            here.join("quotas")
        );
    }
}

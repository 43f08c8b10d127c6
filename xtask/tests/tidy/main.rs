//! What no compiler checks: every source file says what lives in it, and fits in a head; links lead somewhere,
//! and crates can be published.

mod links;
mod manifests;

use std::fs;
use std::path::{Path, PathBuf};

/// Files above this length want to be two.
const MOST_LINES: usize = 600;

/// Where the repository begins.
fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("a folder above xtask")
}

/// Files with this ending, without those that only point at another one.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder that can be listed") {
        let path = entry.expect("an entry that can be read").path();
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, ending, found);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            found.push(path);
        }
    }
}

#[test]
fn every_source_file_is_tidy() {
    let root = root();
    let mut sources = Vec::new();
    files(root, "rs", &mut sources);
    assert!(sources.len() > 30, "only {} sources found", sources.len());
    let mut problems = Vec::new();
    for file in sources {
        let text = fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root).unwrap().display();
        if !text.starts_with("//!") {
            problems.push(format!(
                "{shown}: doesn't open with a //! line saying what lives there"
            ));
        }
        let lines = text.lines().count();
        if lines > MOST_LINES {
            problems.push(format!("{shown}: {lines} lines, more than {MOST_LINES}"));
        }
        // Spelled in two parts so that this file doesn't find itself.
        for unfinished in [
            concat!("todo", "!("),
            concat!("unimplemented", "!("),
            concat!("FIX", "ME"),
        ] {
            if text.contains(unfinished) {
                problems.push(format!("{shown}: contains {unfinished}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

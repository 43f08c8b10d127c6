//! The pages for readers: the book in `docs/`, and the front page.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The root folder of the repository.
///
/// # Panics
/// If this crate has no parent folder.
pub fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("a folder above xtask")
}

/// A Markdown file.
#[derive(Clone, Debug)]
pub struct Page {
    /// The path from the root of the repository, such as `docs/start/rust.md`.
    pub path: String,
    /// All of its text.
    pub text: String,
}

impl Page {
    /// Reads a file by its path from the root.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read(path: &str) -> io::Result<Self> {
        let text = fs::read_to_string(root().join(path))?;
        let path = path.to_owned();
        Ok(Self { path, text })
    }

    /// The prose lines, with their numbers: without blocks of code, code in backquotes, targets of links, and
    /// addresses.
    pub fn prose(&self) -> impl Iterator<Item = (usize, String)> {
        let mut in_code = false;
        let numbered = self.text.lines().enumerate();
        numbered.filter_map(move |(index, line)| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            (!in_code && !fence).then(|| (index + 1, plain(line)))
        })
    }
}

/// A line without code in backquotes, targets of links and addresses.
fn plain(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    for (number, piece) in line.split('`').enumerate() {
        // Every second piece is between backquotes, and so code.
        kept.push_str(if number % 2 == 0 { piece } else { " " });
    }
    let mut pieces = kept.split("](");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let behind = piece.split_once(')').map_or("", |(_, behind)| behind);
        text.push(' ');
        text.push_str(behind);
    }
    let words = text.split(' ').filter(|word| !word.contains("://"));
    words.collect::<Vec<_>>().join(" ")
}

/// All pages of the book and its summary, sorted.
///
/// # Errors
/// If a folder or a file can't be read.
pub fn book() -> io::Result<Vec<Page>> {
    let mut paths = Vec::new();
    markdown(&root().join("docs"), &mut paths)?;
    paths.sort();
    let read = |path: PathBuf| {
        let within = path.strip_prefix(root()).map_err(io::Error::other)?;
        Page::read(&within.to_string_lossy())
    };
    paths.into_iter().map(read).collect()
}

/// All pages of the book, and the front page of the repository.
///
/// # Errors
/// If a folder or a file can't be read.
pub fn all() -> io::Result<Vec<Page>> {
    let mut pages = book()?;
    pages.push(Page::read("README.md")?);
    Ok(pages)
}

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            markdown(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_has_no_code_and_no_targets() {
        let page = Page {
            path: "a.md".to_owned(),
            text: "A `b` [c](d.md#e) f.\n```sh\ng\n```\nSee <https://h.example> i.".to_owned(),
        };
        let prose: Vec<_> = page.prose().collect();
        assert_eq!(prose[0], (1, "A   [c  f.".to_owned()));
        assert_eq!(prose[1], (5, "See i.".to_owned()));
        assert_eq!(prose.len(), 2);
    }
}

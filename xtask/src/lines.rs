//! Counts lines by crate: code, comments and tests.

use std::fs;
use std::io::{self, Write};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

/// The lines of sources. Empty lines don't count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    /// Documentation and other comments, outside of tests.
    comments: usize,
    /// Everything in `tests/`, in files named `tests.rs`, and below `#[cfg(test)]`.
    tests: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
        self.tests += other.tests;
    }
}

/// The part of a file that a line belongs to, after `#[cfg(test)]`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    /// After the attribute, before its item begins.
    Attributed,
    /// An item for tests, until the closing line at this indentation.
    Item(usize),
}

impl Part {
    /// The part of the line after this one.
    fn after(self, line: &str, indentation: usize) -> Self {
        let is_attribute = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        let is_whole = line.ends_with([';', ',']) || (line.contains('{') && line.ends_with('}'));
        match self {
            Self::Code if is_attribute => Self::Attributed,
            Self::Attributed if line.starts_with("#[") || line.starts_with("//") => {
                Self::Attributed
            }
            Self::Attributed if !is_whole => Self::Item(indentation),
            Self::Item(opened)
                if opened != indentation || !(line.starts_with('}') || line.ends_with(';')) =>
            {
                self
            }
            Self::Code | Self::Attributed | Self::Item(_) => Self::Code,
        }
    }
}

impl Lines {
    /// The lines of one file. If the file is a test, all of them are.
    fn total_of(text: &str, is_test: bool) -> Self {
        let (mut lines, mut part) = (Self::default(), Part::Code);
        for raw in text.lines() {
            let line = raw.trim();
            if line.is_empty() {
                continue;
            }
            let next = part.after(line, raw.len() - raw.trim_start().len());
            match line {
                _ if is_test || part != Part::Code || next != Part::Code => lines.tests += 1,
                line if line.starts_with("//") => lines.comments += 1,
                _ => lines.code += 1,
            }
            part = next;
        }
        lines
    }
}

/// Prints a table of all crates, with a total that leaves out the test kit.
///
/// # Errors
/// If a folder or a file can't be read, or the output is closed.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut crates: Vec<PathBuf> = fs::read_dir(root)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    crates.sort();
    writeln!(
        out,
        "{:20} {:>8} {:>9} {:>8}",
        "crate", "code", "comments", "tests"
    )?;
    let mut total = Lines::default();
    for folder in &crates {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut lines = Lines::default();
        count(folder, false, &mut lines)?;
        format_row(out, &name, lines)?;
        if name != "tollgate-testkit" {
            total += lines;
        }
    }
    format_row(out, "without the test kit", total)
}

fn format_row(out: &mut impl Write, name: &str, lines: Lines) -> io::Result<()> {
    let Lines {
        code,
        comments,
        tests,
    } = lines;
    writeln!(out, "{name:20} {code:>8} {comments:>9} {tests:>8}")
}

fn count(folder: &Path, is_test: bool, lines: &mut Lines) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_test = is_test || name == "tests" || name == "tests.rs";
        if path.is_dir() {
            count(&path, is_test, lines)?;
        } else if name.ends_with(".rs") {
            *lines += Lines::total_of(&fs::read_to_string(&path)?, is_test);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_code_comments_or_tests() {
        let text = "//! Says.\n\nfn a() {\n    // Why.\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n    // c\n}\n";
        let lines = |code, comments, tests| Lines {
            code,
            comments,
            tests,
        };
        assert_eq!(Lines::total_of(text, false), lines(3, 2, 4));
        assert_eq!(Lines::total_of(text, true), lines(0, 0, 9));
        let named = "#[cfg(test)]\nmod tests;\n\nfn a() {}\n";
        assert_eq!(Lines::total_of(named, false), lines(1, 0, 2));
        let among = "struct A {\n    #[cfg(test)]\n    b: u8,\n}\n\n#[cfg(test)]\n#[inline]\nfn b(\n) {\n    c();\n}\n\nfn d() {}\n";
        assert_eq!(Lines::total_of(among, false), lines(3, 0, 8));
    }
}

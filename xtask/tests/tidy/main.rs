//! What no compiler checks: every source file says what lives in it and fits in a head, as its functions do; nobody
//! but core knows the unit that a word counts time in; imports go one way, links lead somewhere, crates can be published, and
//! the book is complete and spelled right.

mod book;
mod imports;
mod links;
mod manifests;

use std::fs;
use std::path::{Path, PathBuf};

/// Files above this length want to be two.
const MAX_FILE_LINES: usize = 800;
/// Functions of `src` whose body is longer want to be two; but for tests, which may be long tables.
const MAX_FUNCTION_LINES: usize = 60;
/// Functions that may be longer, as they are one flat table.
const LONG_FUNCTIONS: [(&str, &str); 1] = [("crates/tollgate-engine/src/schema.rs", "definitions")];
/// Spelled in two parts so that this file doesn't find itself.
const UNFINISHED: [&str; 3] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
];
/// How somebody writes who converts from or to 1/64 ns by hand instead of by `tollgate_core::units`.
const UNIT_BY_HAND: [&str; 7] = [
    "<< 6", ">> 6", "* 64", "/ 64", "64 *", "ceil(64)", "mul(64)",
];
/// Where 64 is something else: the bits of a word.
const NOT_THE_UNIT: [&str; 2] = ["crates/tollgate-engine/src/matcher/", "xtask/"];

struct Source {
    /// From the root of the project.
    path: String,
    text: String,
}

/// Where the repository begins.
fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("a folder above xtask")
}

/// All sources of the project.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    files(root(), "rs", &mut found);
    assert!(found.len() > 30, "only {} sources found", found.len());
    let read = |file: PathBuf| Source {
        path: file
            .strip_prefix(root())
            .expect("a file below the root")
            .display()
            .to_string(),
        text: fs::read_to_string(&file).expect("a text file"),
    };
    found.into_iter().map(read).collect()
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

/// Fails with what is wrong in any source.
fn check_all_sources(problems: impl Fn(&Source) -> Vec<String>) {
    let mut found = Vec::new();
    for source in sources() {
        let problems = problems(&source);
        found.extend(problems.iter().map(|it| format!("{}: {it}", source.path)));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_source_file_is_tidy() {
    check_all_sources(|Source { text, .. }| {
        let mut problems = Vec::new();
        if !text.starts_with("//!") {
            problems.push("doesn't open with a //! line saying what lives there".to_owned());
        }
        let lines = text.lines().count();
        if lines > MAX_FILE_LINES {
            problems.push(format!("{lines} lines, more than {MAX_FILE_LINES}"));
        }
        let unfinished = UNFINISHED.iter().filter(|it| text.contains(**it));
        problems.extend(unfinished.map(|it| format!("contains {it}")));
        problems
    });
}

#[test]
fn reflection_tells_what_the_proto_files_say() {
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["protos", "--check"])
        .output()
        .expect("the task starts");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
fn every_function_fits_in_a_head() {
    check_all_sources(|Source { path, text }| {
        if !path.contains("src/") {
            return Vec::new();
        }
        let is_table = |name: &str| LONG_FUNCTIONS.contains(&(path.as_str(), name));
        let long = functions(text).into_iter();
        let long = long.filter(|(name, lines)| *lines > MAX_FUNCTION_LINES && !is_table(name));
        let shown = long.map(|(name, lines)| {
            format!("{name} has {lines} lines, more than {MAX_FUNCTION_LINES}")
        });
        shown.collect()
    });
}

#[test]
fn only_core_knows_the_unit_of_a_word() {
    check_all_sources(|Source { path, text }| {
        let free = path.starts_with("crates/tollgate-core/")
            || NOT_THE_UNIT.iter().any(|it| path.starts_with(it));
        if free {
            return Vec::new();
        }
        let by_hand = text.lines().filter(|line| is_unit_by_hand(line));
        by_hand
            .map(|line| format!("use tollgate_core::units in: {}", line.trim()))
            .collect()
    });
}

fn is_unit_by_hand(line: &str) -> bool {
    if line.trim_start().starts_with("//") {
        return false;
    }
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_.".contains(character);
    UNIT_BY_HAND.iter().any(|by_hand| {
        line.match_indices(by_hand).any(|(start, _)| {
            let end = start + by_hand.len();
            // Not of a longer number, nor of a type's name.
            let longer = line[end..].starts_with(is_part) && by_hand.ends_with(is_part);
            let named = line[..start].ends_with(is_part) && by_hand.starts_with(is_part);
            let called = by_hand.ends_with(')');
            !longer && (called || !named)
        })
    })
}

/// The functions of a formatted source, each with the lines of its body.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line).filter(|_| !is_test(&lines[..number])) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let closes = |line: &str| line.strip_prefix(indent) == Some("}");
        let opens = |line: &&str| line.ends_with('{') || line.ends_with(';') || line.ends_with('}');
        let Some(open) = lines[number..].iter().position(opens) else {
            continue;
        };
        let open = number + open;
        if lines[open].ends_with('{')
            && let Some(body) = lines[open + 1..].iter().position(|line| closes(line))
        {
            found.push((name, body));
        }
    }
    found
}

/// Whether the function after these lines is a test.
fn is_test(before: &[&str]) -> bool {
    let attributes = before.iter().rev().map(|line| line.trim_start());
    let mut attributes = attributes.take_while(|line| line.starts_with("#["));
    attributes.any(|line| line.ends_with("test]"))
}

/// The name of the function that a line begins.
fn function_name(line: &str) -> Option<&str> {
    let words = line.trim_start();
    if words.starts_with("//") {
        return None;
    }
    let begin = match words.strip_prefix("fn ") {
        Some(rest) => rest,
        None => {
            words
                .split_once(" fn ")
                .filter(|(before, _)| is_head(before))?
                .1
        }
    };
    let end = begin.find(|it: char| !it.is_alphanumeric() && it != '_')?;
    Some(&begin[..end])
}

/// Whether these words may stand before `fn`.
fn is_head(words: &str) -> bool {
    let word = |word: &str| matches!(word, "const" | "async" | "unsafe" | "extern" | "\"C\"");
    words
        .split(' ')
        .all(|it| word(it) || it.starts_with("pub") || it.ends_with(')'))
}

#[test]
fn what_converts_by_hand_is_found() {
    for by_hand in [
        "let a = b << 6;",
        "(to - from).saturating_mul(64)",
        "x / 64",
        "y.div_ceil(64)",
        "64 * z",
        "nanos * 64)",
    ] {
        assert!(is_unit_by_hand(by_hand), "{by_hand}");
    }
    for other in [
        "64 << 20",
        "a << 60",
        "n as u64 * 2",
        "with_cases(64)",
        "x / 640",
        "// 1 << 6",
    ] {
        assert!(!is_unit_by_hand(other), "{other}");
    }
}

#[test]
fn the_lines_of_functions_are_counted() {
    let text = "impl A {\n    pub(crate) const fn one(\n        a: u8,\n    ) -> u8 {\n        1\n        2\n    }\n\
                \n    fn none(&self);\n}\n\nfn two<T>() {\n    if a {\n    }\n}\n\n#[test]\nfn three() {\n    a\n}\n";
    assert_eq!(functions(text), [("one", 2), ("two", 2)]);
}

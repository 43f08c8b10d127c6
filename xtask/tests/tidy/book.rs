//! The book: every page is in its contents, is short enough to read, and is written in words that we use.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use xtask::pages::{self, Page};
use xtask::words::{self, Dictionary};

use crate::links::targets;
use crate::{files, root, sources};

/// Pages above this many bytes want to be two.
const MOST_BYTES: usize = 12 * 1024;
/// Pages that are looked things up in, and may be longer.
const LONG: [&str; 3] = [
    "docs/reference/",
    "docs/internals/",
    // Tables of runs.
    "docs/explanation/benchmarks.md",
];

const CONTENTS: &str = "docs/SUMMARY.md";

fn book() -> Vec<Page> {
    let book = pages::book().expect("the pages");
    assert!(book.len() > 20, "only {} pages found", book.len());
    book
}

/// Fails with what is wrong in any page.
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_page_is_in_the_contents_once_and_nothing_else() {
    let book = book();
    let contents = book.iter().find(|page| page.path == CONTENTS);
    let contents = contents.expect("the contents");
    let linked: Vec<_> = contents.text.lines().flat_map(targets).collect();
    let linked: Vec<_> = linked.iter().map(|path| format!("docs/{path}")).collect();
    let known: BTreeSet<_> = linked.iter().map(String::as_str).collect();
    let mut problems = Vec::new();
    if known.len() != linked.len() {
        problems.push(format!("{CONTENTS}: a page is there twice"));
    }
    let there: BTreeSet<_> = book.iter().map(|page| page.path.as_str()).collect();
    for missing in known.difference(&there) {
        problems.push(format!("{CONTENTS}: there is no {missing}"));
    }
    for missing in there.difference(&known).filter(|path| **path != CONTENTS) {
        problems.push(format!("{missing} isn't in {CONTENTS}"));
    }
    none(&problems);
}

#[test]
fn pages_are_short_enough_to_read() {
    let long = book().into_iter().filter(|page| {
        let may_be = LONG.iter().any(|start| page.path.starts_with(start));
        page.text.len() > MOST_BYTES && !may_be
    });
    let problems: Vec<_> = long
        .map(|page| {
            let bytes = page.text.len();
            format!("{}: {bytes} bytes, more than {MOST_BYTES}", page.path)
        })
        .collect();
    none(&problems);
}

/// The pages that sources include, by their real paths.
fn included() -> BTreeSet<PathBuf> {
    let mut sources = Vec::new();
    files(root(), "rs", &mut sources);
    let mut pages = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(&source).expect("a source");
        let folder = source.parent().expect("a folder");
        for rest in text.split("include_str!(\"").skip(1) {
            let path = rest.split('"').next().unwrap_or_default();
            pages.extend(folder.join(path).canonicalize());
        }
    }
    pages
}

#[test]
fn every_page_with_a_program_is_a_doc_test() {
    let included = included();
    let mut problems = Vec::new();
    for page in pages::all().expect("the pages") {
        let fences = page.text.lines().map(str::trim_start);
        let mut programs = fences.filter_map(|line| line.strip_prefix("```rust"));
        let path = root().join(&page.path).canonicalize().expect("a page");
        if programs.any(|kind| kind != ",ignore") && !included.contains(&path) {
            problems.push(format!("{}: no source includes it", page.path));
        }
    }
    none(&problems);
}

#[test]
fn every_file_of_the_map_is_there() {
    let map = Page::read("docs/internals/architecture.md").expect("the map");
    let sources = sources();
    let named = map.text.split('`').skip(1).step_by(2);
    let named: Vec<_> = named.filter(|name| name.ends_with(".rs")).collect();
    assert!(named.len() > 100, "only {} files are named", named.len());
    // A name may leave out the folders before it.
    let is_there = |name: &str| {
        let end = format!("/{name}");
        sources.iter().any(|source| source.path.ends_with(&end))
    };
    let missing = named.into_iter().filter(|name| !is_there(name));
    let missing: Vec<_> = missing
        .map(|name| format!("{}: there is no {name}", map.path))
        .collect();
    none(&missing);
}

#[test]
fn words_that_we_gave_up_stay_away() {
    let banned = words::banned("pages").expect("the list");
    assert!(banned.len() > 10, "only {} words", banned.len());
    let mut problems = Vec::new();
    for page in pages::all().expect("the pages") {
        for (number, line) in page.prose() {
            let found = banned.iter().filter(|banned| banned.is_in(&line));
            problems.extend(found.map(|banned| {
                let (word, instead) = (&banned.word, &banned.instead);
                format!("{}:{number}: not \"{word}\" but {instead}", page.path)
            }));
        }
    }
    none(&problems);
}

#[test]
fn every_word_is_spelled_as_one_that_is_known() {
    let dictionary = Dictionary::load().expect("the words");
    let mut problems = Vec::new();
    for page in pages::all().expect("the pages") {
        for (line, word) in dictionary.unknown(&page) {
            problems.push(format!("{}:{line}: {word}", page.path));
        }
    }
    assert!(
        problems.is_empty(),
        "unknown words; if they are right, `cargo xtask words` adds them:\n{}",
        problems.join("\n")
    );
}

#[test]
fn the_known_words_are_sorted_and_there_once() {
    let text = fs::read_to_string(Dictionary::path()).expect("the words");
    let words: Vec<_> = text.lines().collect();
    let unsorted: Vec<_> = words
        .windows(2)
        .filter(|pair| pair[0] >= pair[1])
        .map(|pair| format!("{} before {}", pair[0], pair[1]))
        .collect();
    none(&unsorted);
}

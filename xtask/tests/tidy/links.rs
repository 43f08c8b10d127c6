//! Relative links of the documents: the file is there, and so is the heading. Pages that other files name are there, too.

use std::fs;
use std::path::Path;

use crate::{files, root};

/// A document's lines outside of code, where links are links.
fn without_code(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// What `[text](target)` leads to. Code in backquotes has no links.
pub(crate) fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for text in line.split('`').step_by(2) {
        let links = text.split("](").skip(1);
        found.extend(links.filter_map(|rest| Some(rest.split_once(')')?.0)));
    }
    // A link whose text is code begins before a backquote and ends behind it.
    found.dedup();
    found
}

/// The name under which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn has_heading(text: &str, name: &str) -> bool {
    let mut headings = without_code(text).filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == name)
}

/// Why a link leads nowhere, if so.
fn link_error(document: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let there = match path {
        "" => document.to_owned(),
        path => document.parent()?.join(path),
    };
    if !there.exists() {
        return Some(format!("{target}: there is no such file"));
    }
    if heading.is_empty() {
        return None;
    }
    let text = match path {
        "" => text.to_owned(),
        _ => fs::read_to_string(&there).ok()?,
    };
    let missing = !has_heading(&text, heading);
    missing.then(|| format!("{target}: there is no such heading"))
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut documents = Vec::new();
    files(root(), "md", &mut documents);
    let (mut seen, mut problems) = (0, Vec::new());
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        let shown = document.strip_prefix(root()).unwrap().display();
        for target in without_code(&text).flat_map(targets) {
            seen += 1;
            let fault = link_error(&document, &text, target);
            problems.extend(fault.map(|fault| format!("{shown}: {fault}")));
        }
    }
    assert!(seen > 10, "only {seen} links found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The pages of the book that a text names, as `docs/start/rust.md`.
fn named_pages(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '/' | '-' | '.');
    let words = text.split(move |sign: char| !is_part(sign));
    // What stands before it leads to the root, as `../../`.
    let pages = words.filter_map(|word| Some(&word[word.find("docs/")?..]));
    pages.filter(|page| page.ends_with(".md"))
}

#[test]
fn every_page_that_another_file_names_is_there() {
    let mut named = Vec::new();
    for ending in ["rs", "toml", "yaml", "sh", "service", "lua"] {
        files(root(), ending, &mut named);
    }
    let (mut seen, mut problems) = (0, Vec::new());
    for file in named {
        // Its own examples lead nowhere.
        if file.ends_with("tidy/links.rs") || file.ends_with("xtask/src/pages.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root()).unwrap().display();
        for page in named_pages(&text) {
            seen += 1;
            let beside = root().join("crates").join(crate_of(&file)).join(page);
            if !root().join(page).is_file() && !beside.is_file() {
                problems.push(format!("{shown}: there is no {page}"));
            }
        }
    }
    assert!(seen > 10, "only {seen} pages are named");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The folder of the crate that a file is in, if it is in one.
fn crate_of(file: &Path) -> String {
    let within = file.strip_prefix(root().join("crates"));
    let folder = within.ok().and_then(|path| path.iter().next());
    folder.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let document = root().join("README.md");
    let text = "# What it is\n```\n# Code\n```\n";
    let fault = |target| link_error(&document, text, target);
    assert_eq!(fault("LICENSE-MIT"), None);
    assert_eq!(fault("https://example.com/none"), None);
    assert_eq!(fault("#what-it-is"), None);
    assert!(fault("#code").is_some());
    assert!(fault("docs/none.md").is_some());
    assert!(fault("docs/reference/policy.md#no-such-heading").is_some());
    let line = "a [`b`](c.md), `[not](one)` and [d](e.md#f)";
    assert_eq!(targets(line), ["c.md", "e.md#f"]);
    assert_eq!(anchor(" Why 25 ms?"), "why-25-ms");
    let text = "include_str!(\"../../docs/a-b.md\"); // `docs/c/d.md` says so";
    let named: Vec<_> = named_pages(text).collect();
    assert_eq!(named, ["docs/a-b.md", "docs/c/d.md"]);
}

//! What a registry wants of each crate, and dependency lines of the documents that work elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{files, root};

/// Packages that nobody outside of this repository has a use for.
const PRIVATE: [&str; 6] = ["benches", "examples", "fuzz", "loom", "shuttle", "xtask"];

/// Where the documents suppose that this repository was cloned to.
const CLONE: &str = "../tollgate/";

fn manifest(folder: &Path) -> String {
    let path = folder.join("Cargo.toml");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn crates() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the crates");
    entries
        .map(|entry| entry.expect("a crate").path())
        .collect()
}

#[test]
fn every_crate_can_be_published_and_nothing_else() {
    let crates = crates();
    assert!(crates.len() > 5, "only {} crates found", crates.len());
    let mut problems = Vec::new();
    for folder in crates {
        let text = manifest(&folder);
        for wanted in [
            "description = ",
            "keywords = ",
            "categories = ",
            "license.workspace = true",
            "readme = \"README.md\"",
            "[package.metadata.docs.rs]",
        ] {
            if !text.lines().any(|line| line.starts_with(wanted)) {
                problems.push(format!("{}: no {wanted}", folder.display()));
            }
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !folder.join(file).is_file() {
                problems.push(format!("{}: no {file}", folder.display()));
            }
        }
        if text.contains("publish = false") {
            problems.push(format!("{}: can't be published", folder.display()));
        }
    }
    for name in PRIVATE {
        if !manifest(&root().join(name)).contains("\npublish = false\n") {
            problems.push(format!("{name}: could be published"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What stands in quotes behind `word`, up to the end that is given.
fn text_after<'line>(line: &'line str, word: &str, end: char) -> Option<&'line str> {
    let (_, rest) = line.split_once(word)?;
    Some(rest.split_once(end)?.0)
}

/// Why a dependency line of a document wouldn't work outside of the repository, if so.
fn dependency_error(line: &str) -> Option<String> {
    let name = line.split_once(" = ")?.0;
    let path = text_after(line, "path = \"", '"')?;
    let Some(inside) = path.strip_prefix(CLONE) else {
        return Some(format!("{path} is not where a clone beside a project is"));
    };
    let Ok(text) = fs::read_to_string(root().join(inside).join("Cargo.toml")) else {
        return Some(format!("there is no {inside}"));
    };
    if !text.contains(&format!("name = \"{name}\"")) {
        return Some(format!("{inside} isn't {name}"));
    }
    let features = text_after(line, "features = [", ']').unwrap_or_default();
    let mut features = features.split(", ").filter(|feature| !feature.is_empty());
    let missing = features.find(|feature| {
        let declared = format!("\n{} = [", feature.trim_matches('"'));
        !text.contains(&declared)
    })?;
    Some(format!("{name} has no feature {missing}"))
}

#[test]
fn dependency_lines_of_the_documents_work_outside_of_the_repository() {
    let mut documents = vec![root().join("README.md")];
    files(&root().join("docs"), "md", &mut documents);
    let (mut seen, mut problems) = (0, Vec::new());
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for line in text.lines().filter(|line| line.starts_with("tollgate")) {
            seen += usize::from(line.contains("path = "));
            let fault = dependency_error(line);
            problems.extend(fault.map(|fault| format!("{}: {fault}", document.display())));
        }
    }
    assert!(seen > 3, "only {seen} lines found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_dependency_line_that_would_not_work_is_found() {
    let works =
        r#"tollgate = { path = "../tollgate/crates/tollgate", features = ["tokio", "quota"] }"#;
    assert_eq!(dependency_error(works), None);
    for broken in [
        r#"tollgate = { path = "crates/tollgate" }"#,
        r#"tollgate = { path = "../tollgate/crates/none" }"#,
        r#"tollgate = { path = "../tollgate/crates/tollgate-core" }"#,
        r#"tollgate = { path = "../tollgate/crates/tollgate", features = ["none"] }"#,
    ] {
        assert!(dependency_error(broken).is_some(), "{broken}");
    }
}

//! `docs/reference/policy.md`, `errors.md` and `lints.md` beside it are true: every example works as described, and
//! nothing is left out. Policies on all other pages are valid. The code's own documentation has an example for
//! everything.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_engine::{Policy, render, schema};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The pages that have all fields, errors and warnings.
const REFERENCE: [&str; 3] = [
    "reference/policy.md",
    "reference/errors.md",
    "reference/lints.md",
];

fn text(page: &str) -> String {
    fs::read_to_string(docs().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// A fenced block: its line, the text behind the fence, and its content.
struct Block {
    line: usize,
    language: String,
    words: Vec<String>,
    text: String,
}

impl Block {
    /// What follows `name=` behind the fence.
    fn word(&self, name: &str) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

fn reference_blocks() -> Vec<Block> {
    REFERENCE
        .iter()
        .flat_map(|page| blocks(&text(page)))
        .collect()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(fence), None) => {
                let mut words = fence.split_whitespace().map(str::to_owned);
                open = Some(Block {
                    line: index + 1,
                    language: words.next().unwrap_or_default(),
                    words: words.collect(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The outcome of a block: the diagnostics' codes, and the text for people.
fn outcome(path: &Path, folder: &Path) -> (Vec<&'static str>, String) {
    let checked = Policy::from_path(path);
    let (found, sources) = match checked {
        Ok(checked) => (checked.warnings, checked.sources),
        Err(rejected) => (rejected.errors, rejected.sources),
    };
    let codes = found.iter().map(|diagnostic| diagnostic.code.0).collect();
    let shown = render::to_text(&found, &sources);
    (codes, shown.replace(&format!("{}/", folder.display()), ""))
}

#[test]
fn every_example_does_what_it_says() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("docs");
    let _ = fs::remove_dir_all(&folder);
    let blocks = reference_blocks();
    assert!(blocks.len() > 25, "only {} blocks", blocks.len());
    // Files that others include are written first.
    for block in &blocks {
        if let Some(name) = block.word("file") {
            let path = folder.join("files").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &block.text).unwrap();
        }
    }
    let mut shown = String::new();
    for block in &blocks {
        let line = block.line;
        let path = match (block.language.as_str(), block.word("file")) {
            // Doc tests compile it, and the tidy test reads the dependencies.
            ("rust,no_run", _) => continue,
            ("toml", _) if block.words == ["Cargo.toml"] => continue,
            ("text", _) if block.words == ["shown"] => {
                assert!(shown.contains(&block.text), "line {line}:\n{shown}");
                continue;
            }
            ("yaml" | "toml", Some(name)) => folder.join("files").join(name),
            ("yaml" | "toml", None) => {
                let path = folder.join(format!("policy.{}", block.language));
                fs::write(&path, &block.text).unwrap();
                path
            }
            (other, _) => panic!("line {line}: a block of {other:?}"),
        };
        let told = outcome(&path, &folder);
        let expect = block.word("fails").or(block.word("warns")).unwrap_or("");
        let mut expect: Vec<_> = expect.split(',').filter(|code| !code.is_empty()).collect();
        let mut codes = told.0;
        expect.sort_unstable();
        codes.sort_unstable();
        assert_eq!(codes, expect, "line {line}:\n{}", told.1);
        let failed = told.1.contains("error[");
        assert_eq!(failed, block.word("fails").is_some(), "line {line}");
        shown = told.1;
    }
}

/// Every page of the book but those that this file reads otherwise.
fn other_pages() -> Vec<PathBuf> {
    let (mut folders, mut pages) = (vec![docs()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_reference = REFERENCE.iter().any(|page| path.ends_with(page));
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") && !is_reference {
                pages.push(path);
            }
        }
    }
    pages
}

/// Whether a block is a policy, and not a file of something else.
fn is_policy(block: &Block) -> bool {
    const FIELDS: [&str; 6] = [
        "limits:",
        "tiers:",
        "domain:",
        "block:",
        "exempt:",
        "[[limits]]",
    ];
    let is_file = ["yaml", "toml"].contains(&block.language.as_str());
    let mut lines = block.text.lines();
    is_file && lines.any(|line| FIELDS.iter().any(|field| line.starts_with(field)))
}

#[test]
fn every_policy_on_another_page_is_valid() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
    fs::create_dir_all(&folder).unwrap();
    let mut checked = 0;
    for page in other_pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for block in blocks(&text).iter().filter(|block| is_policy(block)) {
            let path = folder.join(format!("policy.{}", block.language));
            fs::write(&path, &block.text).unwrap();
            let (codes, shown) = outcome(&path, &folder);
            let place = format!("{}:{}:\n{shown}", page.display(), block.line);
            let expected = block.word("fails").or(block.word("warns"));
            match expected {
                Some(expected) => assert_eq!(codes.join(","), expected, "{place}"),
                // A file that a service is started with may be a small one for a reason.
                None if block.word("file").is_some() => {
                    assert!(!shown.contains("error["), "{place}")
                }
                None => assert!(codes.is_empty(), "{place}"),
            }
            checked += 1;
        }
    }
    assert!(checked > 25, "only {checked} policies");
}

/// Each code of a diagnostic that a source file defines.
fn codes() -> Vec<String> {
    let mut codes = Vec::new();
    each_source(|_, source| {
        let defined = source.lines().filter_map(|line| {
            let (_, code) = line
                .strip_prefix("pub const ")?
                .split_once(": Code = Code(\"")?;
            code.strip_suffix("\");").map(str::to_owned)
        });
        codes.extend(defined);
    });
    codes
}

#[test]
fn every_code_and_field_is_told_of() {
    let text: String = REFERENCE.iter().map(|page| text(page)).collect();
    let codes = codes();
    assert!(codes.len() > 80, "{codes:?}");
    for code in codes {
        assert!(text.contains(&format!("`{code}`")), "{code} is not in it");
    }
    let schema = schema::json_schema();
    let examples: String = reference_blocks()
        .into_iter()
        .map(|block| block.text)
        .collect();
    for fields in [
        &schema,
        &schema["$defs"]["rule"],
        &schema["$defs"]["tier"],
        &schema["$defs"]["cost"]["anyOf"][1],
        &schema["$defs"]["pattern"]["anyOf"][2],
    ] {
        let fields = fields["properties"].as_object().expect("fields");
        for name in fields.keys() {
            let used = [format!("{name}:"), format!("{name} =")];
            assert!(
                used.iter().any(|used| examples.contains(used)),
                "{name} has no example"
            );
        }
    }
}

#[test]
fn every_field_is_in_a_table() {
    let text = text(REFERENCE[0]);
    let schema = schema::json_schema();
    for fields in [
        &schema,
        &schema["$defs"]["rule"],
        &schema["$defs"]["adaptive"],
    ] {
        for name in fields["properties"].as_object().expect("fields").keys() {
            let row = format!("| `{name}` | ");
            assert!(text.contains(&row), "{name} is in no table");
        }
    }
}

/// Reads every source file of the crate.
fn each_source(mut read: impl FnMut(&Path, &str)) {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                read(&path, &fs::read_to_string(&path).expect("a source file"));
            }
        }
    }
}

/// Types, traits and functions of a file that have no example, by name.
fn without_example(source: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut has_example = false;
    // Tests come last, and methods are indented: their type's example is theirs.
    for line in source.lines().take_while(|line| *line != "#[cfg(test)]") {
        let declared = line.strip_prefix("pub ").and_then(|rest| {
            let (kind, name) = rest.split_once(' ')?;
            ["struct", "enum", "trait", "fn", "type"]
                .contains(&kind)
                .then_some(name)
        });
        match declared {
            Some(name) if !has_example => missing.push(name.to_owned()),
            _ if line.starts_with("/// ```") => has_example = true,
            _ if line.is_empty() => has_example = false,
            _ => {}
        }
    }
    missing
}

#[test]
fn every_public_type_trait_and_function_has_an_example() {
    assert_eq!(without_example("/// It.\npub struct It;\n"), ["It;"]);
    let mut missing = Vec::new();
    each_source(|path, source| {
        let found = without_example(source).into_iter();
        missing.extend(found.map(|item| format!("{}: {item}", path.display())));
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

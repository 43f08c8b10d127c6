//! Whatever is done to a file, reading it ends, panics never, and stays within its bounds.

use std::fs;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;
use tollgate_engine::Policy;
use tollgate_engine::document::Format;

#[path = "common/reading.rs"]
mod reading;

use reading::read;

/// Valid and broken files, from the documentation, from the snapshots and of the fuzz target. What that
/// finds is kept with its seeds, so that it is read again here.
static SEEDS: LazyLock<Vec<(String, Format)>> = LazyLock::new(|| {
    let root = env!("CARGO_MANIFEST_DIR");
    let docs = fs::read_to_string(format!("{root}/../../docs/policy.md")).expect("the docs");
    let mut seeds = Vec::new();
    for block in docs.split("\n```").skip(1).step_by(2) {
        let (fence, text) = block.split_once('\n').expect("a block");
        match fence.split_whitespace().next() {
            Some("yaml") => seeds.push((text.to_owned(), Format::Yaml)),
            Some("toml") => seeds.push((text.to_owned(), Format::Toml)),
            _ => {}
        }
    }
    let folders = ["tests/broken", "../../fuzz/seeds/policy"];
    let entries =
        folders.map(|folder| fs::read_dir(format!("{root}/{folder}")).expect("the folder"));
    for entry in entries.into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => Format::Yaml,
            Some("toml") => Format::Toml,
            _ => continue,
        };
        seeds.push((fs::read_to_string(path).expect("a file"), format));
    }
    seeds
});

/// Pieces that mean something to a parser.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "\n- ",
    "  ",
    "\t",
    "\"",
    "'",
    "&a ",
    "*a",
    "!!str ",
    "|",
    ">",
    "#",
    "---\n",
    "~",
    "true",
    "0",
    "-1",
    "1e999",
    "99999999999999999999",
    "10/s",
    "burst",
    "/month",
    "**",
    "ä",
    "\u{202e}",
    "\u{feff}",
    "\u{1b}[31m",
    "\r\n",
    "ip/64",
    "10.0.0.0/8",
    "::/0",
    "{regex: '(a'}",
    "name: a",
    "limits",
];

#[derive(Clone, Debug)]
enum Change {
    Insert(Index, &'static str),
    Delete(Index, usize),
    Copy(Index, usize, Index),
    Replace(Index, char),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        4 => (at(), select(&PIECES[..])).prop_map(|(at, piece)| Change::Insert(at, piece)),
        2 => (at(), 1..20usize).prop_map(|(at, length)| Change::Delete(at, length)),
        2 => (at(), 1..80usize, at()).prop_map(|(from, length, to)| Change::Copy(from, length, to)),
        2 => (at(), any::<char>()).prop_map(|(at, sign)| Change::Replace(at, sign)),
        1 => at().prop_map(Change::Cut),
    ]
}

fn apply(signs: &mut Vec<char>, change: Change) {
    let place = |at: &Index, signs: &[char]| at.index(signs.len() + 1);
    match change {
        Change::Insert(at, piece) => {
            let at = place(&at, signs);
            signs.splice(at..at, piece.chars());
        }
        Change::Delete(at, length) => {
            let at = place(&at, signs);
            let end = (at + length).min(signs.len());
            signs.drain(at..end);
        }
        Change::Copy(from, length, to) => {
            let from = place(&from, signs);
            let piece = signs[from..(from + length).min(signs.len())].to_vec();
            let to = place(&to, signs);
            signs.splice(to..to, piece);
        }
        Change::Replace(at, sign) => {
            let at = place(&at, signs);
            if at < signs.len() {
                signs[at] = sign;
            }
        }
        Change::Cut(at) => signs.truncate(place(&at, signs)),
    }
}

const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/mutations.txt"
);

fn config() -> ProptestConfig {
    let soak = std::env::var_os("TOLLGATE_SOAK").is_some();
    ProptestConfig {
        cases: if soak { 100_000 } else { 2_000 },
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn changed_files_never_panic(
        seed in any::<Index>(),
        changes in prop::collection::vec(change(), 1..8),
    ) {
        let (text, format) = seed.get(&SEEDS);
        let mut signs: Vec<char> = text.chars().collect();
        for change in changes {
            apply(&mut signs, change);
        }
        let text: String = signs.into_iter().collect();
        read(&text, *format);
    }

    /// As the fuzz target does it: in both formats, whatever the text was written in, and two seeds joined.
    #[test]
    fn seeds_in_the_wrong_format_never_panic(
        seeds in prop::collection::vec(any::<Index>(), 1..3),
        changes in prop::collection::vec(change(), 0..4),
    ) {
        let joined: String = seeds.iter().map(|seed| seed.get(&SEEDS).0.as_str()).collect();
        let mut signs: Vec<char> = joined.chars().collect();
        for change in changes {
            apply(&mut signs, change);
        }
        let text: String = signs.into_iter().collect();
        for format in [Format::Yaml, Format::Toml] {
            read(&text, format);
        }
    }

    #[test]
    fn any_text_never_panics(text in "\\PC{0,200}", toml in any::<bool>()) {
        read(&text, if toml { Format::Toml } else { Format::Yaml });
    }
}

/// A rule for these paths.
fn matching(paths: &str) -> String {
    format!("limits: [{{name: a, rate: 1/s, match: {{path: [{paths}]}}}}]")
}

#[test]
fn every_seed_is_read_as_it_is() {
    assert!(SEEDS.len() > 40, "{} seeds", SEEDS.len());
    for (text, _) in SEEDS.iter() {
        for format in [Format::Yaml, Format::Toml] {
            read(text, format);
        }
    }
}

#[test]
fn hostile_files_are_refused_in_no_time() {
    // As large as it may be, on one line, with an error in every value.
    let line = format!("limits: [{}]", "{n: 7x, ä: 1}, ".repeat(50_000));
    read(&line, Format::Yaml);
    let toml = format!("limits = [{}]", "{n = 7, rate = 'x'}, ".repeat(50_000));
    read(&toml, Format::Toml);
    let deep = format!("limits: {}", "[".repeat(100_000));
    read(&deep, Format::Yaml);
    let deep = format!("limits = {}", "[".repeat(100_000));
    read(&deep, Format::Toml);
    let nots = format!(
        "limits: [{{name: a, rate: 1/s, match: {{x: {}y{}}}}}]",
        "{not: ".repeat(55),
        "}".repeat(55)
    );
    read(&nots, Format::Yaml);
    // Lists that would all have to be compared with one another.
    let list = vec!["/a/b/c"; 20_000].join(", ");
    let wide = format!(
        "exempt: [{{path: [{list}]}}]\nlimits: [{{name: a, rate: 1/s, match: {{path: [{list}x]}}}}]"
    );
    read(&wide, Format::Yaml);
    let globs = vec!["{glob: '/a*b*c*d*e*f*'}"; 5_000].join(", ");
    let text = format!("/{}", "abcdef".repeat(600));
    let globs = format!(
        "exempt: [{{path: [{globs}]}}]\nlimits: [{{name: a, rate: 1/s, match: {{path: {text}}}}}]"
    );
    read(&globs, Format::Yaml);
    let large = vec!["{regex: '(?:x{1000}){1000}'}"; 100].join(", ");
    read(&matching(&large), Format::Yaml);
    let many: Vec<_> = (0..1_100)
        .map(|number| format!("{{regex: a{number}}}"))
        .collect();
    let many = matching(&many.join(", "));
    read(&many, Format::Yaml);
    let rejected = Policy::from_text(&many, Format::Yaml).expect_err("too many");
    let message = "more than 1000 regular expressions";
    assert!(rejected.errors.iter().all(|error| error.message == message));
    assert_eq!(rejected.errors.len(), 100);
    let names: String = (0..1_200)
        .map(|number| {
            format!("- {{name: rule-number-{number}, rate: 1/s, replaces: rule-numbre-{number}}}\n")
        })
        .collect();
    read(&format!("limits:\n{names}"), Format::Yaml);
}

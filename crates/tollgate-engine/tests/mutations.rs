//! Reading a mutated file always ends, never panics, and stays within its bounds.

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
    let docs: String = ["policy", "errors", "lints"]
        .map(|page| format!("{root}/../../docs/reference/{page}.md"))
        .map(|path| fs::read_to_string(path).expect("the docs"))
        .join("\n");
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

/// The errors of a text.
fn errors(text: &str, format: Format) -> Vec<String> {
    let rejected = Policy::from_text(text, format).expect_err("errors");
    rejected.errors.iter().map(ToString::to_string).collect()
}

#[test]
fn what_stands_after_a_nul_is_not_taken_for_nothing() {
    let nul = "error[syntax]: a NUL character, after which YAML is not read on";
    for text in [
        "limits: [{name: a, rate: 1/s}]\n\0block: [{path: /admin}]\n",
        "limits: [{name: a, rate: 1/s}]\n# \0\nblock: [{path: /admin}]\n",
        "domain: edge\ndescriptors: [{key: a, rate_limit: {rate: 1/s}}]\n---\n\0domain: mesh\n",
    ] {
        assert_eq!(errors(text, Format::Yaml), [nul], "{text:?}");
        read(text, Format::Yaml);
    }
    let rejected = Policy::from_text("limits: 5\nä\0", Format::Yaml).expect_err("a NUL");
    let place = rejected.errors[0].span.start;
    assert_eq!((place.line, place.column), (2, 2));
    // Of TOML it is an error of syntax anyhow.
    assert_eq!(errors("a = 1\n\0b = 2\n", Format::Toml).len(), 1);
    // As an escape it is a character like others.
    let escaped = r#"limits: [{name: a, rate: 1/s, match: {x: "\0"}}]"#;
    Policy::from_text(escaped, Format::Yaml).expect("a policy");
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let valid = [
        ("limits: [{name: a, rate: 1/s}]", Format::Yaml),
        ("limits = [{name = 'a', rate = '1/s'}]", Format::Toml),
        (
            "domain: edge\ndescriptors: [{key: a, rate_limit: {rate: 1/s}}]\n---\ndomain: mesh\n",
            Format::Yaml,
        ),
    ];
    for (text, format) in valid {
        let marked = format!("\u{feff}{text}");
        let (marked, plain) = (marked.as_str(), text);
        let policy = |text| Policy::from_text(text, format).expect("a policy").policy;
        assert_eq!(policy(marked), policy(plain), "{plain}");
    }
    for (text, format) in [("limitz: 5", Format::Yaml), ("limitz = 5", Format::Toml)] {
        let shown = |text: &str| Policy::from_text(text, format).expect_err("no such field");
        let marked = shown(&format!("\u{feff}{text}")).to_string();
        assert_eq!(marked, shown(text).to_string());
    }
}

#[test]
fn what_aliases_copy_is_bounded_in_bytes() {
    // Four megabytes that would take eight thousand.
    let long = "x".repeat(2 << 20);
    let each = "*a, ".repeat(4_000);
    let bomb = format!("a: &a {long}\nlimits: [{each}]\n");
    let most = "error[too-large]: anchors and aliases copy more than 67108864 bytes";
    assert_eq!(errors(&bomb, Format::Yaml), [most]);
    // An anchor is a copy too, of all that is in it.
    let (open, close) = ("&a [".repeat(60), "]".repeat(60));
    let nested = format!("limits: {open}{long}{close}\n");
    assert_eq!(errors(&nested, Format::Yaml), [most]);
    // Few are fine.
    let few = "a: &a 1/s\nlimits: [{name: a, rate: *a}, {name: b, rate: *a}]\n";
    assert_eq!(errors(few, Format::Yaml).len(), 1, "a is no field");
}

#[test]
fn the_paths_of_descriptors_are_bounded_in_bytes() {
    let long = "x".repeat(1 << 20);
    let leaves: String = (0..1_000)
        .map(|number| format!("  - {{key: k{number}, rate_limit: {{rate: 1/s}}}}\n"))
        .collect();
    let text =
        format!("domain: edge\ndescriptors:\n- key: a\n  value: {long}\n  descriptors:\n{leaves}");
    let most = "error[too-large]: the paths of all limits take more than 67108864 bytes";
    assert_eq!(errors(&text, Format::Yaml), [most]);
}

#[test]
fn all_regular_expressions_share_one_bound() {
    // Each takes about half a megabyte: more than some hundred of them are too much.
    let large: Vec<_> = (0..1_000)
        .map(|number| format!("{{regex: 'a{number}[^/]{{300}}'}}"))
        .collect();
    let found = errors(&matching(&large.join(", ")), Format::Yaml);
    let most = "error[bad-regex]: the regular expressions take more than 67108864 bytes together";
    assert!(found.iter().all(|error| error == most), "{:?}", found[0]);
    assert!(!found.is_empty());
    // A thousand of the usual size are fine.
    let usual: Vec<_> = (0..1_000)
        .map(|number| format!("{{regex: '/v[0-9]+/users/[^/]+/{number}(/.*)?'}}"))
        .collect();
    Policy::from_text(&matching(&usual.join(", ")), Format::Yaml).expect("a policy");
}

#[test]
fn one_line_with_one_other_sign_is_read_in_no_time() {
    let rules: String = (0..80_000)
        .map(|number| format!("{{name = 'r{number}', rate = '5/s'}}, "))
        .collect();
    let text = format!("limits = [{{name = 'ä', rate = '1/s'}}, {rules}]");
    let checked = Policy::from_text(&text, Format::Toml).expect("a policy");
    assert_eq!(checked.policy.rules.len(), 80_001);
    // Errors all along it are shown with their places.
    let wrong = text.replace("5/s", "5/x");
    let rejected = Policy::from_text(&wrong, Format::Toml).expect_err("no such unit");
    let shown = rejected.to_string();
    assert_eq!(shown.matches("^\n").count(), 1_000, "{}", &shown[..2_000]);
    assert!(shown.contains("rate = '5/x'"));
}

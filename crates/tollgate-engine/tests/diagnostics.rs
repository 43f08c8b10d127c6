//! The messages about broken files: each file in `tests/broken` has a snapshot.

use std::fs;
use std::path::PathBuf;

use tollgate_engine::document::Format;
use tollgate_engine::{Policy, render};

/// All broken policies but those that others include, by their names here.
fn broken() -> Vec<PathBuf> {
    let entries = fs::read_dir("tests/broken").expect("the folder");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.push("tests/broken/include/root.yaml".into());
    files.sort();
    files
}

#[test]
fn every_error_is_told_at_once_with_its_place() {
    let files = broken();
    assert!(files.len() > 15, "only {} files", files.len());
    for path in files {
        let rejected = Policy::from_path(&path).expect_err("a broken file");
        let name = path.strip_prefix("tests/broken").expect("in the folder");
        let name = name.to_string_lossy().replace(['/', '.'], "_");
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(name, rejected.to_string());
        });
    }
}

#[test]
fn json_has_the_same_with_places_as_numbers() {
    let rejected = Policy::from_path("tests/broken/twice_names.yaml").expect_err("a broken file");
    let json = render::to_json(&rejected.errors, &rejected.sources);
    assert_eq!(
        json,
        "[{\"severity\":\"error\",\"code\":\"duplicate-name\",\
         \"message\":\"a second rule of the name \\\"per-user\\\"\",\
         \"file\":\"tests/broken/twice_names.yaml\",\"line\":4,\"column\":9,\"end_line\":4,\
         \"end_column\":17,\"help\":\"the first is in tests/broken/twice_names.yaml line 2\"}]"
    );
}

#[test]
fn what_would_play_tricks_with_a_terminal_is_not_shown() {
    // From right to left, no width, and an escape that colours.
    let text = "limits:\n- {name: \"a\u{202e}b\", rate: 10/s\u{200b}, mode: \"\\e[31m\"}\n";
    let rejected = Policy::from_text(text, Format::Yaml).expect_err("hidden characters");
    let codes: Vec<_> = rejected.errors.iter().map(|error| error.code.0).collect();
    assert_eq!(codes, ["bad-name", "bad-rate", "unknown-value"]);
    let shown = rejected.to_string();
    let hidden = ['\u{202e}', '\u{200b}', '\u{1b}'];
    assert!(!shown.contains(hidden), "{shown:?}");
    assert!(shown.contains("2 | - {name: \"a\u{fffd}b\", rate: 10/s\u{fffd}, mode: "));
}

/// A typical mistake: its name, its file, and its diagnostics.
struct Mistake<'a> {
    title: &'a str,
    text: &'a str,
    told: &'a str,
}

/// The table in `tests/mistakes.txt`.
fn mistakes(table: &str) -> Vec<Mistake<'_>> {
    let sections = table.split("=== ").skip(1);
    let mistakes = sections.map(|section| {
        let (title, rest) = section.split_once('\n').expect("a title");
        let (text, told) = rest.split_once("~~~\n").expect("what is said of it");
        Mistake { title, text, told }
    });
    mistakes.collect()
}

/// The diagnostics of a file: each error or warning on a line, and its help below.
fn told(mistake: &Mistake<'_>) -> String {
    let format = if mistake.title.ends_with("(toml)") {
        Format::Toml
    } else {
        Format::Yaml
    };
    let found = match Policy::from_text(mistake.text, format) {
        Ok(checked) => checked.warnings,
        Err(rejected) => rejected.errors,
    };
    let shown = found.iter().map(|one| {
        let place = one.span.start;
        let help = one.help.as_deref().unwrap_or("");
        format!("{}:{} {one}\n  {help}\n", place.line, place.column)
    });
    shown.collect()
}

#[test]
fn typical_mistakes_are_told_with_what_to_do() {
    const TABLE: &str = "tests/mistakes.txt";
    let table = fs::read_to_string(TABLE).expect("the table");
    let mistakes = mistakes(&table);
    let mut titles: Vec<_> = mistakes.iter().map(|mistake| mistake.title).collect();
    titles.sort_unstable();
    titles.dedup();
    assert!(titles.len() >= 60, "only {} mistakes", titles.len());
    assert_eq!(titles.len(), mistakes.len(), "two of one name");
    // With this set, the table is written anew, to be read before it is kept.
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        let written = mistakes.iter().map(|mistake| {
            let Mistake { title, text, .. } = mistake;
            format!("=== {title}\n{text}~~~\n{}\n", told(mistake))
        });
        fs::write(TABLE, written.collect::<String>()).expect("written");
        return;
    }
    for mistake in &mistakes {
        let told = told(mistake);
        assert_eq!(
            told.trim_end(),
            mistake.told.trim_end(),
            "{}",
            mistake.title
        );
        // None is without a word on what to do, be it in the message.
        let says_what = |one: (&str, &str)| {
            !one.1.trim().is_empty() || one.0.contains("expected ") || one.0.contains("must ")
        };
        let lines: Vec<_> = told.lines().collect();
        let mut each = lines.chunks(2).map(|pair| (pair[0], pair[1]));
        assert!(
            !told.is_empty() && each.all(says_what),
            "{}\n{told}",
            mistake.title
        );
    }
}

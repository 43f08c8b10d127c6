//! What people are told about broken files: each file in `tests/broken` has a snapshot.

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
    let json = render::json(&rejected.errors, &rejected.sources);
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

//! Policies of several files: their order, and their number.

use std::fs;
use std::path::PathBuf;

use tollgate_engine::document::Format;
use tollgate_engine::policy::{Mode, Policy};

/// A folder for one test, made anew.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("inner")).expect("a folder");
    folder
}

#[test]
fn included_files_come_first_and_are_found_beside_the_file() {
    let folder = folder("include-order");
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write(
        "root.yaml",
        "include: [inner/a.yaml, b.toml]\nlimits: [{name: root, rate: 10/s, replaces: b}]\n\
         tenants: {acme: free}\n",
    );
    write(
        "inner/a.yaml",
        "include: c.yml\nlimits: [{name: a, key: user, rate: 1/s}]\n",
    );
    write(
        "inner/c.yml",
        "limits: [{name: c, key: host, rate: 1/s}]\nmode: shadow\n",
    );
    write(
        "b.toml",
        "[[limits]]\nname = 'b'\nkey = 'ip'\nrate = '1/s'\n[tiers.free]\nrate = '1/s'\n",
    );
    let checked = Policy::from_path(folder.join("root.yaml")).unwrap();
    let names: Vec<_> = checked.policy.rules.iter().map(|rule| &rule.name).collect();
    assert_eq!(names, ["c", "a", "b", "root"]);
    assert_eq!(checked.policy.mode, Mode::Shadow);
    let files: Vec<_> = checked
        .sources
        .iter()
        .map(|file| file.name().to_owned())
        .collect();
    assert!(files[0].ends_with("root.yaml") && files[3].ends_with("b.toml"));
    // The spans of a rule point into its own file.
    let span = checked.policy.rules[2].span;
    assert_eq!(checked.sources.get(span.file).unwrap().name(), files[3]);
}

#[test]
fn includes_are_bounded_in_depth_number_and_size() {
    let folder = folder("include-bounds");
    for number in 0..20 {
        let next = number + 1;
        let text = format!("include: d{next}.yaml\nlimits: [{{name: d{number}, rate: 1/s}}]\n");
        fs::write(folder.join(format!("d{number}.yaml")), text).unwrap();
    }
    let only = |name: &str| {
        let rejected = Policy::from_path(folder.join(name)).unwrap_err();
        let error = rejected.errors[0].clone();
        assert_eq!(rejected.errors.len(), 1, "{rejected}");
        (error.code.0, error.message)
    };
    let deep = "included deeper than 8 levels".to_owned();
    assert_eq!(only("d0.yaml"), ("bad-include", deep));

    let names: Vec<_> = (0..150).map(|number| format!("n{number}.yaml")).collect();
    for name in &names {
        fs::write(folder.join(name), format!("tenants: {{{name}: x}}")).unwrap();
    }
    let text = format!("include: [{}]\nlimits: []", names.join(", "));
    fs::write(folder.join("many.yaml"), &text).unwrap();
    let rejected = Policy::from_path(folder.join("many.yaml")).unwrap_err();
    let messages: Vec<_> = rejected.errors.iter().map(|error| &error.message).collect();
    assert!(
        messages.contains(&&"more than 100 files".to_owned()),
        "{rejected}"
    );
    assert!(rejected.sources.iter().count() <= 100);

    let half = format!("# {}\n", "x".repeat(9 << 20));
    fs::write(
        folder.join("big.yaml"),
        format!("{half}include: big2.yaml\nmode: off\n"),
    )
    .unwrap();
    fs::write(folder.join("big2.yaml"), half).unwrap();
    let message = format!("the files of a policy have more than {} bytes", 16 << 20);
    assert_eq!(only("big.yaml"), ("too-large", message));

    let text = Policy::from_text("include: a.yaml", Format::Yaml).unwrap_err();
    assert_eq!(text.errors[0].code.0, "bad-include");
}

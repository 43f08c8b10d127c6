//! The same commands on files in the format of envoyproxy/ratelimit.

use std::fs;

use serde_json::{Value, json};

use super::{EPOCH, POLICY, THEIRS, folder, run, steps};

#[test]
fn their_form_is_known_however_it_is_written_and_never_mistaken() {
    let json = "{\"domain\": \"edge\", \"descriptors\": [{\"key\": \"user\", \"rate_limit\":
      {\"unit\": \"day\", \"requests_per_unit\": 0}}]}";
    let toml = "domain = \"edge\"\n";
    let included = "include: theirs.yaml\nlimits: [{name: a, rate: 5/s}]\n";
    let folder = folder(
        "theirs",
        &[
            ("theirs.yaml", THEIRS),
            ("json.yaml", json),
            ("undomained.yaml", "descriptors: [{key: a}]\n"),
            ("theirs.toml", toml),
            ("included.yaml", included),
            ("ours.yaml", POLICY),
        ],
    );
    let (code, out, _) = run(&folder, &["check", "json.yaml"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("json.yaml: valid, 1 domain"), "{out}");
    let (_, out, _) = run(&folder, &["check", "undomained.yaml"]);
    assert!(out.contains("error[empty-domain]"), "{out}");
    for file in ["theirs.toml", "included.yaml"] {
        let (code, out, _) = run(&folder, &["check", file]);
        assert_eq!(code, Some(1));
        assert!(
            out.contains("form is YAML, and stands by itself: convert it"),
            "{out}"
        );
    }
    let (code, _, err) = run(&folder, &["convert", "ours.yaml"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("in our own form already"), "{err}");

    // What never passes has no time after which it does.
    let request = |more: &[&'static str]| {
        let request = [
            "explain",
            "json.yaml",
            "--domain",
            "edge",
            "--descriptor",
            "user=1",
        ];
        run(&folder, &[&request[..], more].concat()).1
    };
    let step = &steps(&request(&["--json"]))[0];
    assert_eq!(
        (&step["outcome"], &step["retry_after_ms"]),
        (&json!("denied"), &Value::Null)
    );
    assert!(request(&[]).contains("never  edge/user"));
    let elsewhere = [
        "explain",
        "json.yaml",
        "--domain",
        "mesh",
        "--descriptor",
        "user=1",
    ];
    let (_, out, _) = run(&folder, &elsewhere);
    let expect = "  user=1: no limit: the file has no domain \"mesh\", but edge\n";
    assert!(out.contains(expect), "{out}");
}

#[test]
fn traffic_is_played_against_their_form_too() {
    let folder = folder("simulate-theirs", &[("theirs.yaml", THEIRS)]);
    let (code, _, err) = run(&folder, &["simulate", "theirs.yaml"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("say which with --domain"), "{err}");
    let (code, out, _) = run(
        &folder,
        &[
            "simulate",
            "theirs.yaml",
            "--domain",
            "edge",
            "--descriptor",
            "path=/login,remote_address=10.0.0.1",
            "--json",
        ],
    );
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    // All of it comes within one minute.
    assert_eq!(report["admitted"], json!(5));
    let refused = &report["denied"]["edge/path=/login/remote_address"];
    assert_eq!(
        *refused,
        json!(report["offered"].as_u64().expect("a number") - 5)
    );
}

#[test]
fn theirs_becomes_ours_and_is_valid() {
    let folder = folder("convert", &[("theirs.yaml", THEIRS)]);
    let (code, ours, err) = run(&folder, &["convert", "theirs.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(
        ours.contains("rate: 5/m") && ours.contains("algorithm: fixed-window"),
        "{ours}"
    );
    fs::write(folder.join("ours.yaml"), &ours).expect("a file of the test");
    assert_eq!(run(&folder, &["check", "ours.yaml"]).0, Some(0));
    let (_, out, _) = run(
        &folder,
        &[
            "explain",
            "ours.yaml",
            "--fact",
            "path=/login",
            "--fact",
            "remote_address=10.0.0.1",
            "--n",
            "7",
            "--json",
        ],
    );
    assert_eq!(out.matches("\"allowed\"").count(), 5);
}

#[test]
fn a_request_of_descriptors_is_explained_too() {
    let folder = folder(
        "descriptors",
        &[("theirs.yaml", THEIRS), ("ours.yaml", POLICY)],
    );
    let descriptor = "path=/login,remote_address=10.0.0.1";
    let request = [
        "explain",
        "theirs.yaml",
        "--domain",
        "edge",
        "--descriptor",
        descriptor,
        EPOCH[0],
        EPOCH[1],
    ];
    let with = |more: &[&'static str]| [&request[..], more].concat();
    let (code, out, err) = run(&folder, &with(&["--n", "7", "--every", "1s", "--json"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let steps = steps(&out);
    let rule = "edge/path=/login/remote_address";
    assert_eq!(
        steps[0],
        json!({"at_ms": 0.0, "outcome": "allowed", "rule": rule, "remaining": 4,
               "retry_after_ms": 0.0})
    );
    // Its window is the minute since the epoch.
    assert_eq!(
        steps[5],
        json!({"at_ms": 5000.0, "outcome": "denied", "rule": rule, "remaining": 0,
               "retry_after_ms": 55000.0})
    );
    let (_, out, _) = run(&folder, &with(&[]));
    assert!(out.contains(&format!("  {descriptor}: {rule}\n")), "{out}");
    let deeper = [
        "explain",
        "theirs.yaml",
        "--domain",
        "edge",
        "--descriptor",
        "path=/login",
    ];
    let (_, out, _) = run(&folder, &deeper);
    assert!(out.contains("no limit"), "{out}");
    // Each form is asked in its own way.
    assert_eq!(
        run(&folder, &["explain", "theirs.yaml", "--fact", "a=b"]).0,
        Some(2)
    );
    let ours = [
        "explain",
        "ours.yaml",
        "--domain",
        "edge",
        "--descriptor",
        "a=b",
    ];
    assert_eq!(run(&folder, &ours).0, Some(2));
}

#[test]
fn a_request_that_names_one_counter_twice_is_charged_twice() {
    let file = |limit: u32| {
        format!(
            "domain: x\ndescriptors:\n- {{key: user, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}\n"
        )
    };
    let folder = folder("twice", &[("one.yaml", &file(1)), ("two.yaml", &file(2))]);
    for (name, passes) in [("one.yaml", 0), ("two.yaml", 1)] {
        let ann = ["--descriptor", "user=ann", "--descriptor", "user=ann"];
        let request = [&["explain", name, "--domain", "x"][..], &ann].concat();
        let (_, out, _) = run(
            &folder,
            &[&request[..], &["--n", "1000", "--json"]].concat(),
        );
        assert_eq!(out.matches("\"allowed\"").count(), passes, "{name}");
    }
}

#[test]
fn the_descriptor_that_has_to_be_waited_for_is_named() {
    let file = "\
domain: x
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: q, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let folder = folder("waited-for", &[("theirs.yaml", file)]);
    let last = |keys: &[&str]| {
        let descriptors = keys.iter().flat_map(|key| ["--descriptor", key]);
        let request = ["explain", "theirs.yaml", "--domain", "x", "--n", "2"];
        let request = request.into_iter().chain(EPOCH).chain(descriptors);
        let request: Vec<_> = request.collect();
        let (_, out, _) = run(&folder, &request);
        let last = out.lines().last().expect("a line for each request");
        last.split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(last(&["a=1", "b=1"]), "denied 0 1m x/b");
    assert_eq!(last(&["a=1", "q=1"]), "denied 0 1d x/q");
}

#[test]
fn domains_are_told_apart_over_all_files_that_are_checked() {
    let folder = folder(
        "domains",
        &[
            ("a.yaml", "domain: edge\n---\ndomain: core\n"),
            ("b.yml", "domain: mesh\n---\ndomain: edge\n"),
            ("c.yaml", "domain: core\ndescriptors: [{key: a, kye: b}]\n"),
            ("ours.toml", "[[limits]]\nname = \"all\"\nrate = \"5/s\"\n"),
            ("notes.txt", "domain: edge\n"),
        ],
    );
    let (code, out, _) = run(
        &folder,
        &["check", "a.yaml", "b.yml", "c.yaml", "ours.toml"],
    );
    assert_eq!(code, Some(1));
    for part in [
        "a.yaml: valid, 2 domains",
        "error[duplicate-domain]: domain \"edge\" is given twice\n --> b.yml:3:9\n",
        "= help: the first is on line 1 of a.yaml; merge them\nb.yml: 1 error\n",
        "error[duplicate-domain]: domain \"core\" is given twice\n --> c.yaml:1:9\n",
        "= help: the first is on line 3 of a.yaml; merge them\n",
        // What else is wrong is told as well.
        "unknown field \"kye\"",
        "c.yaml: 2 errors\n",
        "ours.toml: valid, 1 limit",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    // A folder is the files in it.
    let (code, out, _) = run(&folder, &["check", "."]);
    let twice = out.matches("duplicate-domain").count();
    assert_eq!((code, twice), (Some(1), 2));
    assert!(out.contains("the first is on line 1 of ./a.yaml; merge them"));
    assert!(out.contains("./ours.toml: valid") && !out.contains("notes.txt"));
    let (_, json, _) = run(&folder, &["check", "--json", "."]);
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let files = report["files"].as_array().expect("files").iter();
    let valid: Vec<_> = files.map(|file| &file["valid"]).collect();
    assert_eq!(
        valid,
        [&json!(true), &json!(false), &json!(false), &json!(true)]
    );
}

#[test]
fn what_is_no_file_or_too_large_is_not_converted() {
    let folder = folder("endless", &[]);
    fs::create_dir_all(folder.join("empty")).expect("a folder");
    for path in ["/dev/zero", "empty"] {
        let (code, out, err) = run(&folder, &["convert", path]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{path}");
        assert_eq!(
            err,
            format!("error: can't read {path:?}: it is not a file\n")
        );
    }
    fs::write(folder.join("large.yaml"), vec![b'#'; 17 << 20]).expect("a file");
    let (code, _, err) = run(&folder, &["convert", "large.yaml"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("have more than 16777216 bytes"), "{err}");
}

#[test]
fn what_files_and_facts_say_plays_no_tricks_with_a_terminal() {
    let theirs = "domain: \"ed\\e[2Jge\"\ndescriptors:\n- {key: a, value: \"\\e]0;x\\a\\n  b: enforce\", rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let ours = "limits: [{name: a, key: [user, path], rate: 1/h}]\n";
    let files = [("theirs.yaml", theirs), ("ours.yaml", ours)];
    let folder = folder("tricks", &files);
    let trick = "a=\u{1b}]0;x\u{7}\n  b: enforce";
    let descriptor = [
        "explain",
        "theirs.yaml",
        "--domain",
        "ed\u{1b}[2Jge",
        "--descriptor",
        trick,
    ];
    let fact = [
        "explain",
        "ours.yaml",
        "--fact",
        "user=\u{1b}[2J\nyes",
        "--fact",
        "path=\u{202e}",
    ];
    for words in [
        &["check", "theirs.yaml"][..],
        &descriptor,
        &fact,
        &["convert", "theirs.yaml"],
    ] {
        let (code, out, err) = run(&folder, words);
        assert_eq!(code, Some(0), "{err}");
        let hidden = |sign: char| (sign.is_control() && sign != '\n') || sign == '\u{202e}';
        assert!(!out.contains(hidden), "{words:?} {out:?}");
        let forged =
            |line: &str| line.trim_start().starts_with("b: enforce") || line.starts_with("yes");
        assert!(!out.lines().any(forged), "{words:?} {out:?}");
    }
}

//! The output and input of the commands: standard input, the charge of each descriptor, and costs that are too high.

use serde_json::{Value, json};

use super::{EPOCH, POLICY, THEIRS, folder, run, run_with, steps};

#[test]
fn a_policy_is_read_from_standard_input() {
    let toml = "[[limits]]\nname = \"all\"\nrate = \"1/h\"\n";
    let ours = "limits: [{name: all, rate: 1/h}]\n";
    for text in [toml, ours] {
        let (code, out, err) = run_with(text, &["check", "-"]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        assert!(out.starts_with("-: valid, 1 limit, 0 warnings\n"), "{out}");
        let (code, out, _) = run_with(text, &["explain", "-", "--n", "2"]);
        assert_eq!(code, Some(0));
        assert!(
            out.contains("denied           0              1h  all: 1/h\n"),
            "{out}"
        );
        let (code, out, _) = run_with(text, &["simulate", "-"]);
        assert_eq!(code, Some(0));
        assert!(out.contains("refused   399 by all\n"), "{out}");
    }
    let (code, out, _) = run_with("limits: [{name: all, rat: 1/h}]\n", &["check", "-"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("did you mean \"rate\"?"), "{out}");
    let (code, ours, err) = run_with(THEIRS, &["convert", "-"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(ours.contains("rate: 5/m"), "{ours}");
    let (code, _, err) = run_with(POLICY, &["convert", "-"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("standard input is in our own form already"),
        "{err}"
    );
    let (code, _, err) = run_with(THEIRS, &["convert", "-", "more.yaml"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("- is standard input, and stands alone"),
        "{err}"
    );
    // Beside files.
    let folder = folder("stdin", &[("policy.yaml", ours.as_str())]);
    let path = folder.join("policy.yaml").display().to_string();
    let (code, out, _) = run_with(toml, &["check", &path, "-"]);
    assert_eq!(code, Some(0));
    assert_eq!(out.matches(": valid, ").count(), 2, "{out}");
}

#[test]
fn what_each_descriptor_is_charged_is_shown_where_it_is_not_all_or_none() {
    let file = |charging: &str| {
        format!(
            "domain: x\n{charging}descriptors:\n\
             - {{key: a, rate_limit: {{unit: day, requests_per_unit: 2}}}}\n\
             - {{key: b, rate_limit: {{unit: minute, requests_per_unit: 1}}}}\n\
             - {{key: c, rate_limit: {{unlimited: true}}}}\n"
        )
    };
    let files = [
        ("each.yaml", file("charging: each\n")),
        ("all.yaml", file("")),
    ];
    let files = [
        ("each.yaml", files[0].1.as_str()),
        ("all.yaml", files[1].1.as_str()),
    ];
    let folder = folder("charged", &files);
    let explain = |name: &'static str, more: &[&'static str]| {
        let request = [
            "explain", name, "--domain", "x", "--n", "3", EPOCH[0], EPOCH[1],
        ];
        let keys = ["a=1", "b=1", "c=1", "d=1"].map(|key| ["--descriptor", key]);
        let arguments = [&request[..], keys.as_flattened(), more].concat();
        run(&folder, &arguments).1
    };
    let out = explain("each.yaml", &[]);
    let (_, steps) = out
        .split_once("\nrequests, from 1970-01-01T00:00:00Z\n")
        .expect("requests");
    assert_eq!(
        steps,
        "            at  outcome  remaining     retry after  rule
            0s  allowed          0               -  x/b
                a=1: charged 1, 1 left
                b=1: charged 1, 0 left
                c=1: unlimited
                d=1: no limit
            0s  denied           0              1m  x/b
                a=1: charged 1, 0 left
                b=1: over its limit, not charged, 0 left
                c=1: unlimited
                d=1: no limit
            0s  denied           0              1d  x/a
                a=1: over its limit, not charged, 0 left
                b=1: over its limit, not charged, 0 left
                c=1: unlimited
                d=1: no limit
"
    );
    let out = explain("each.yaml", &["--json"]);
    let second = &super::steps(&out)[1];
    assert_eq!(
        second["descriptors"][0],
        json!({"descriptor": "a=1", "status": "ok", "limit": "x/a", "charged": 1, "remaining": 0})
    );
    assert_eq!(second["descriptors"][1]["charged"], json!(0));
    // All or none is told by the outcome.
    assert!(!explain("all.yaml", &[]).contains("charged"));
    assert!(!explain("all.yaml", &["--json"]).contains("charged"));
}

#[test]
fn a_value_of_any_length_is_counted_like_others() {
    let folder = folder(
        "long-value",
        &[
            ("ours.yaml", "limits: [{name: a, key: user, rate: 1/h}]\n"),
            ("theirs.yaml", THEIRS),
        ],
    );
    let long = format!("user={}", "x".repeat(9_000));
    let (_, out, _) = run(&folder, &["explain", "ours.yaml", "--fact", &long]);
    assert!(out.contains("a: 1/h\n"), "{out}");
    let entries = format!("path=/login,remote_address={}", "x".repeat(9_000));
    let facts = ["explain", "ours.yaml", "--json", "--fact", &long];
    let descriptors = [
        "explain",
        "theirs.yaml",
        "--json",
        "--domain",
        "edge",
        "--descriptor",
        &entries,
    ];
    for arguments in [&facts[..], &descriptors] {
        let (_, out, _) = run(&folder, arguments);
        let step = &steps(&out)[0];
        assert_eq!(step["bound_exceeded"], Value::Null, "{out}");
        assert_ne!(step["rule"], Value::Null, "{out}");
    }
}

#[test]
fn help_says_how_each_command_ends_and_what_it_reads() {
    let folder = folder("help", &[]);
    for command in ["check", "explain", "convert", "simulate", "load"] {
        let (code, out, _) = run(&folder, &[command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(out.contains("Exit code 0: "), "{command}\n{out}");
        let reads = out.contains("standard") && out.contains("input");
        assert!(reads || command == "load", "{command}\n{out}");
    }
}

#[test]
fn requests_that_run_for_a_while_hold_their_slots() {
    let slots = "limits: [{name: jobs, key: user, concurrency: 2}]";
    let folder = folder("hold", &[("slots.yaml", slots)]);
    let outcomes = |more: &[&str]| {
        let mut arguments = vec!["explain", "slots.yaml", "--fact", "user=1", "--n", "6"];
        arguments.extend(["--every", "1s", "--json"]);
        arguments.extend(more);
        let (code, out, err) = run(&folder, &arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let steps = steps(&out);
        let outcomes = steps.iter().map(|step| step["outcome"] == "allowed");
        outcomes.collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&[]), [true; 6]);
    let held = outcomes(&["--hold", "3s"]);
    assert_eq!(held, [true, true, false, true, true, false]);
    let (code, out, _) = run(
        &folder,
        &[
            "simulate",
            "slots.yaml",
            "--fact",
            "user=1",
            "--hold",
            "100d",
            "--json",
        ],
    );
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &report["admitted"]), (Some(0), &Value::from(2)));
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = folder("pages", &[]);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, out, err) = run(&folder, &["completions", shell]);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        for word in [
            "simulate", "check", "explain", "convert", "load", "--strict",
        ] {
            let word = word.trim_start_matches('-');
            assert!(out.contains(word), "{shell} doesn't know {word}");
        }
    }
    let (code, out, _) = run(&folder, &["man"]);
    assert_eq!(code, Some(0));
    assert!(out.contains(".TH") && out.contains("explain"), "{out}");
    let (code, out, _) = run(&folder, &["man", "check"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("tollgate\\-check") && out.contains("strict"),
        "{out}"
    );
    let (code, out, _) = run(&folder, &["man", "serve"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("tollgate\\-serve") && out.contains("backend"),
        "{out}"
    );
    assert_eq!(run(&folder, &["completions", "tcsh"]).0, Some(2));
}

#[test]
fn it_is_told_which_of_several_limits_refused_and_what_is_left_of_the_others() {
    let text = "limits: [{name: search, rate: [2/s, 100/min], quota: 1000/month}, {name: all, rate: 50/s}]";
    let folder = folder("several", &[("policy.yaml", text)]);
    let (code, out, _) = run(&folder, &["explain", "policy.yaml", "--n", "3"]);
    assert_eq!(code, Some(0));
    let last = "            0s  denied           0           500ms  search: 2/s\n               \
                \u{20}0 left of search: 2/s\n                98 left of search: 100/m\n               \
                \u{20}998 left of search: 1000/month\n                48 left of all: 50/s\n";
    assert!(out.ends_with(last), "{out}");
}

#[test]
fn a_folder_is_one_policy_to_those_that_play_it() {
    let limits = "include: tiers.yaml\nlimits: [{name: all, rate: 1/h}]\ndefault_tier: free\n";
    let tiers = "tiers: {free: {rate: 5/s}}\n";
    // In whatever order: one that another of the folder includes is read once.
    for (first, second) in [("a.yaml", "tiers.yaml"), ("z.yaml", "tiers.yaml")] {
        let folder = folder(
            &format!("together-{first}"),
            &[(first, limits), (second, tiers)],
        );
        let (code, out, err) = run(
            &folder,
            &["explain", ".", "--fact", "tenant=acme", "--n", "2"],
        );
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("yes  tier \"free\""), "{out}");
        assert!(out.contains("1h  all: 1/h\n"), "{out}");
        let (code, out, _) = run(&folder, &["simulate", "."]);
        assert_eq!(code, Some(0));
        assert!(out.contains("refused   399 by all\n"), "{out}");
    }
    let other = THEIRS.replace("edge", "mesh");
    let theirs = folder("together-theirs", &[("a.yaml", THEIRS), ("b.yml", &other)]);
    let words = [
        "explain",
        ".",
        "--domain",
        "mesh",
        "--descriptor",
        "path=/login,remote_address=x",
    ];
    let (code, out, _) = run(&theirs, &words);
    assert_eq!(code, Some(0));
    assert!(out.contains(": mesh/path=/login/remote_address\n"), "{out}");
    let (code, out, err) = run(&theirs, &["convert", "."]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out.matches("rate: 5/m").count(), 2, "{out}");
    let mixed = folder("together-mixed", &[("a.yaml", THEIRS), ("b.yaml", POLICY)]);
    let (code, _, err) = run(&mixed, &["explain", "."]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("= help: keep them in two folders, or convert theirs\n"),
        "{err}"
    );
}

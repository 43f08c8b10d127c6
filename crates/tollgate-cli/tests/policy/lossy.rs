//! `tollgate convert` of files that our format can't express fully: the loss is reported, and rejected if it changes
//! decisions.

use serde_json::{Value, json};

use super::{folder, run, run_with};

/// The exit code of what would be lost.
const LOSSY: Option<i32> = Some(3);

const PARTLY: &str = "\
domain: edge
descriptors:
- {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
";
const LOST: &str = "\
told less of: edge/user: detailed_metric
not converted: edge/plan: quota_mode: a limit that refuses only together with all others of its kind
1 not converted, 0 decided otherwise, 1 told less of
";

#[test]
fn a_limit_that_would_be_lost_is_an_error_unless_it_may_be() {
    let folder = folder("lossy", &[("theirs.yaml", PARTLY)]);
    let (code, out, err) = run(&folder, &["convert", "theirs.yaml"]);
    assert_eq!((code, out.as_str()), (LOSSY, ""));
    let refused = "error: our form can't say all that decides about requests; say --lossy to convert the rest\n";
    assert_eq!(err, format!("{refused}{LOST}"));
    let (code, out, err) = run(&folder, &["convert", "--lossy", "theirs.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), LOST));
    assert!(
        out.contains("\n# Not converted, \"edge/plan\": quota_mode: "),
        "{out}"
    );
    assert!(out.contains("\n- name: \"edge/user\"\n"), "{out}");
}

#[test]
fn requests_that_would_be_decided_otherwise_are_an_error_too() {
    let each = "\
domain: edge
charging: each
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]
";
    let (code, out, err) = run_with(each, &["convert", "-"]);
    assert_eq!((code, out.as_str()), (LOSSY, ""), "{err}");
    assert!(
        err.contains("\ndecided otherwise: edge: charging: each: "),
        "{err}"
    );
    assert!(
        err.contains("\n0 not converted, 1 decided otherwise, 0 told less of\n"),
        "{err}"
    );
    assert_eq!(run_with(each, &["convert", "-", "--lossy"]).0, Some(0));
}

#[test]
fn what_only_metrics_would_miss_is_told_and_no_error() {
    let detailed = "\
domain: edge
descriptors: [{key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}]
";
    let (code, out, err) = run_with(detailed, &["convert", "-"]);
    let told = "told less of: edge/user: detailed_metric\n0 not converted, 0 decided otherwise, 1 told less of\n";
    assert_eq!((code, err.as_str()), (Some(0), told));
    assert!(out.contains("# lost: detailed_metric"), "{out}");
}

#[test]
fn a_policy_without_limits_is_never_written() {
    let none = "\
domain: edge
descriptors: [{key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}]
";
    for words in [&["convert", "-"][..], &["convert", "-", "--lossy"]] {
        let (code, out, err) = run_with(none, words);
        assert_eq!((code, out.as_str()), (LOSSY, ""));
        let message = "error: our form can say none of the limits, so there would be no policy\n";
        assert!(err.starts_with(message), "{err}");
    }
    let (code, out, err) = run_with("domain: edge\n", &["convert", "-", "--lossy"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let message = "error: the files have no limit: there is nothing to convert\n";
    assert_eq!(err, message);
}

#[test]
fn a_program_reads_what_is_lost_as_json() {
    let read = |words: &[&str]| {
        let (code, out, err) = run_with(PARTLY, words);
        let report: Value = serde_json::from_str(&out).expect("one object");
        (code, report, err)
    };
    let (code, refused, err) = read(&["convert", "-", "--json"]);
    assert_eq!((code, &refused["policy"]), (LOSSY, &Value::Null));
    assert!(err.starts_with("error: our form can't say all"), "{err}");
    let (code, converted, err) = read(&["convert", "-", "--json", "--lossy"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(converted["lost"], refused["lost"]);
    let metric = json!({
        "kind": "told-less-of", "decides": false, "limit": "edge/user", "what": "detailed_metric",
    });
    assert_eq!(converted["lost"][0], metric);
    assert_eq!(converted["lost"][1]["kind"], json!("not-converted"));
    let policy = converted["policy"].as_str().expect("our YAML");
    let (code, out, _) = run_with(policy, &["check", "-"]);
    assert_eq!(code, Some(0), "{out}");
}

//! `tollgate check`, `explain`, `convert` and `simulate` of files, for their users.

mod different;
mod explained;
mod lossy;
mod theirs;
mod told;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A folder of this test's own, with these files.
fn folder(test: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("policy-{test}"));
    fs::create_dir_all(&folder).expect("a folder for the test");
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file of the test");
    }
    folder
}

fn tollgate(folder: &PathBuf, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the binary was built with the tests")
}

/// Exit code, standard output, standard error.
fn run(folder: &PathBuf, arguments: &[&str]) -> (Option<i32>, String, String) {
    ended(tollgate(folder, arguments))
}

/// The same of a run that reads this.
fn run_with(input: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with the tests");
    let mut stdin = child.stdin.take().expect("a pipe");
    match stdin.write_all(input.as_bytes()) {
        // It may have found its arguments wrong, and read nothing.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.expect("it reads"),
    }
    drop(stdin);
    ended(child.wait_with_output().expect("it ends"))
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("all output is UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The part of `explain --json` about each request, below the part about the policy.
fn steps(out: &str) -> Vec<Value> {
    let lines = out.lines().skip(1);
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A date at which windows of all lengths begin.
const EPOCH: [&str; 2] = ["--at", "1970-01-01"];

const POLICY: &str = "\
limits:
- name: per-user
  match: {path: \"/api/**\", method: [POST, PUT]}
  key: [user]
  rate: 10/s burst 20
- name: trial
  key: [user]
  rate: 1/s
  mode: shadow
exempt: [{path: \"/healthz\"}]
block: [{ip: \"203.0.113.0/24\"}]
";

const THEIRS: &str = "\
domain: edge
descriptors:
- key: path
  value: /login
  descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 5}
";

/// The note on a quota in memory, wherever the quota is.
const QUOTA_IN_MEMORY: &str = "the quotas of 1 limit are kept in memory, and a restart forgets what was used, unless the \
     program keeps its limits in Redis or Valkey (tollgate serve --backend), or gives its memory a file for quotas (tollgate serve --state, `quota_file`)";

/// The note on permits over Envoy's and Redis' protocols, wherever the limit is.
const LEASES: &str = "that are taken over Envoy's protocol or Redis' are leases: free again by negative hits or \
     TG.REFUND, else when their time is over";

#[test]
fn a_check_notes_that_slots_are_leases_for_callers_without_names() {
    let text = "limits: [{name: a, key: user, concurrency: 2}, {name: off, key: user, concurrency: 1, mode: off}]\n\
                tiers: {pro: {concurrency: 5}}\ntier_fact: plan\ndefault_tier: pro\n";
    let folder = folder("leases", &[("policy.yaml", text)]);
    let (code, out, _) = run(&folder, &["check", "--strict", "--json", "policy.yaml"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let message = format!("slots of \"a\" and 1 more {LEASES}");
    let notes = json!([{"code": "slots-are-leases", "message": message}]);
    assert_eq!(
        (code, &report["files"][0]["notes"]),
        (Some(0), &notes),
        "{out}"
    );
}

#[test]
fn a_check_notes_that_quotas_live_in_memory_and_fails_nothing_for_it() {
    let theirs = "\
domain: edge
descriptors:
- {key: tenant, rate_limit: {quota: 10000/month}}
- {key: user, rate_limit: {quota: 100/day}}
- {key: plan, rate_limit: {rate: 5/s}}
";
    let files = [("theirs.yaml", theirs), ("rates.yaml", POLICY)];
    let folder = folder("quotas", &files);
    let (code, out, err) = run(&folder, &["check", "theirs.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let two = QUOTA_IN_MEMORY.replace("1 limit", "2 limits");
    assert!(out.contains("1 domain, 0 warnings\n"), "{out}");
    assert!(out.ends_with(&format!("  note: {two}\n")), "{out}");
    // Nothing is said where there are none.
    let (_, out, _) = run(&folder, &["check", "rates.yaml"]);
    assert!(!out.contains("note: the quotas"), "{out}");
    let (_, out, _) = run(&folder, &["check", "--json", "rates.yaml"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["files"][0]["notes"], json!([]));
}

#[test]
fn a_valid_file_ends_with_0_and_says_what_happens_if_the_store_fails() {
    let folder = folder("valid", &[("policy.yaml", POLICY), ("theirs.yaml", THEIRS)]);
    let (code, out, err) = run(&folder, &["check", "policy.yaml", "theirs.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("policy.yaml: valid, 2 limits, "), "{out}");
    assert!(out.contains("  per-user: enforce, local if the store fails\n"));
    assert!(out.contains("  trial: shadow, local if the store fails\n"));
    assert!(out.contains("theirs.yaml: valid, 1 domain, 1 warning\n"));
    let limit = "  edge/path=/login/remote_address: enforce, local if the store fails\n";
    assert!(out.contains(limit), "{out}");
}

#[test]
fn a_check_tells_the_mode_in_force_and_what_tiers_do_without_the_store() {
    let policy = "\
mode: shadow
limits: [{name: all, rate: 5/s}, {name: other, match: {x: y}, rate: 5/s, mode: off}]
tiers: {free: {rate: 10/s, quota: 9/day}, pro: {rate: 10/s}}
tier_fact: plan
";
    let folder = folder("modes", &[("policy.yaml", policy)]);
    let (code, out, _) = run(&folder, &["check", "policy.yaml"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        format!(
            "policy.yaml: valid, 2 limits, 0 warnings
  all: shadow, local if the store fails
  other: off, local if the store fails
  tier free: shadow, rate local, quota closed if the store fails
  tier pro: shadow, local if the store fails
  store outage: tier free would deny, by its quota; all counts in each process; tier pro counts in each process
  note: {QUOTA_IN_MEMORY}
"
        )
    );
    let (_, out, _) = run(&folder, &["check", "--json", "policy.yaml"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        report["files"][0]["limits"][2],
        json!({"kind": "tier", "name": "free", "mode": "shadow", "enforced_percent": 0, "counting": "exact",
               "on_store_failure": "rate local, quota closed"})
    );
    assert_eq!(
        report["files"][0]["notes"],
        json!([{"code": "quotas-in-memory", "message": QUOTA_IN_MEMORY}])
    );
}

#[test]
fn a_check_tells_how_each_limit_is_counted() {
    let ours = "\
on_store_failure: closed
limits:
- {name: address, key: client, rate: 50/s, counting: local}
- {name: hot, key: tenant, rate: 50/s, counting: leased}
tiers: {free: {quota: 9/day, on_store_failure: local}, pro: {rate: 10/s, counting: local}}
tier_fact: plan
";
    let theirs = "\
domain: edge
descriptors:
- {key: a, rate_limit: {rate: 5/s, counting: leased, on_store_failure: open}}
- {key: b, rate_limit: {concurrency: 5, counting: local}}
- {key: c, rate_limit: {unlimited: true}}
";
    let files = [("ours.yaml", ours), ("theirs.yaml", theirs)];
    let folder = folder("counted", &files);
    let (code, out, _) = run(&folder, &["check", "ours.yaml", "theirs.yaml"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        format!(
            "ours.yaml: valid, 2 limits, 0 warnings
  address: enforce, counted in this process
  hot: enforce, leased, closed if the store fails
  tier free: enforce, local if the store fails
  tier pro: enforce, counted in this process
  store outage: hot denies; tier free counts in each process
  note: {QUOTA_IN_MEMORY}
theirs.yaml: valid, 1 domain, 0 warnings
  edge/a: enforce, leased, open if the store fails
  edge/b: enforce, counted in this process
  edge/c: enforce, unlimited
  store outage: edge/a lets all pass
  note: slots of \"edge/b\" {LEASES}
"
        )
    );
    let facts = [
        "--fact", "client=x", "--fact", "tenant=y", "--fact", "plan=pro",
    ];
    let (_, out, _) = run(&folder, &[&["explain", "ours.yaml"][..], &facts].concat());
    for part in [
        "  yes  address (counted in this process): it is for every request; its key is client=x\n",
        "  yes  hot (leased): it is for every request; its key is tenant=y\n",
        "  yes  tier \"pro\" (counted in this process): it is for every request",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let request = [
        "explain",
        "theirs.yaml",
        "--domain",
        "edge",
        "--descriptor",
        "b=",
    ];
    let (_, out, _) = run(&folder, &request);
    assert!(
        out.contains("  b=: edge/b (counted in this process)\n"),
        "{out}"
    );
}

#[test]
fn each_rule_is_explained_with_its_key_or_what_keeps_it_away() {
    let policy = "\
limits:
- {name: per-user, key: [user, ip/64], rate: 10/s}
- {name: per-plan, key: header.X-Plan, match: {header.X-Plan: [a, b]}, rate: 10/s}
- {name: per-tenant, key: tenant, rate: 10/s}
- {name: vip, match: {user: ann}, unlimited: true, replaces: per-user}
- {name: old, rate: 10/s, mode: off}
- {name: new, rate: 10/s, mode: shadow}
exempt: [{path: /healthz}]
tiers: {free: {rate: 10/s}}
default_tier: free
";
    let folder = folder("why", &[("policy.yaml", policy)]);
    let told = |facts: &[&str]| {
        let facts = facts.iter().flat_map(|fact| ["--fact", fact]);
        let arguments: Vec<_> = ["explain", "policy.yaml"]
            .into_iter()
            .chain(facts)
            .collect();
        let out = run(&folder, &arguments).1;
        let rules = out.split("\n\n").next().map(str::to_owned);
        rules.expect("what is said of the rules")
    };
    assert_eq!(
        told(&["user=bob", "ip=2001:db8::7", "header.x-plan=a"]),
        "rules
  no   exempt[0]: path is not known, and should be \"/healthz\"
  yes  per-user: it is for every request; its key is user=bob ip=2001:db8::/64
       10/s
  yes  per-plan: its condition holds; its key is header.x-plan=a
       10/s
  no   per-tenant: tenant is not known, and it counts by that
  no   vip: user is \"bob\", and should be \"ann\"
  no   old: it is off
  yes  new (in shadow): it is for every request
       10/s"
    );
    let ann = told(&["user=ann", "ip=::1", "tenant=acme", "header.X-PLAN=b"]);
    for part in [
        "  no   per-user: \"vip\" replaces it\n",
        "  yes  per-plan: its condition holds; its key is header.x-plan=b\n",
        "  yes  tier \"free\": it is for every request; its key is tenant=acme",
    ] {
        assert!(ann.contains(part), "{part} in {ann}");
    }
    let exempt = told(&["user=bob", "ip=::1", "path=/healthz"]);
    let part = "  no   per-user: exempt[0] lets the request pass\n";
    assert!(exempt.contains(part), "{exempt}");
}

#[test]
fn an_invalid_file_ends_with_1_and_shows_every_error() {
    let bad = "limits:\n- name: a\n  rat: 10/s\n- name: b\n  rate: 10/x\n";
    let folder = folder("invalid", &[("bad.yaml", bad)]);
    let (code, out, err) = run(&folder, &["check", "bad.yaml"]);
    assert_eq!((code, err.as_str()), (Some(1), ""));
    for part in [
        " --> bad.yaml:3:3",
        "did you mean \"rate\"?",
        " --> bad.yaml:5:12",
        "unknown unit \"x\"",
    ] {
        assert!(out.contains(part), "{part:?} in {out}");
    }
    let (code, out, _) = run(&folder, &["check", "--json", "bad.yaml"]);
    assert_eq!(code, Some(1));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let file = &report["files"][0];
    assert_eq!(file["valid"], json!(false));
    let diagnostics = file["diagnostics"].as_array().expect("a list");
    let unknown = diagnostics.iter().find(|it| it["code"] == "unknown-field");
    assert_eq!(unknown.expect("the wrong name")["line"], json!(3));
}

#[test]
fn warnings_fail_where_they_are_to() {
    let slip = "limits: [{name: a, match: {paht: /x}, rate: 10/s}]";
    let fine = slip.replace("paht", "path");
    let folder = folder("strict", &[("slip.yaml", slip), ("fine.yaml", &fine)]);
    assert_eq!(run(&folder, &["check", "slip.yaml"]).0, Some(0));
    let (code, out, _) = run(&folder, &["check", "--strict", "slip.yaml", "fine.yaml"]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("warning[misspelt-fact]") && out.contains("did you mean \"path\"?"),
        "{out}"
    );
    assert!(out.ends_with("refused by --strict: 1 warning\n"), "{out}");
    assert_eq!(run(&folder, &["check", "--strict", "fine.yaml"]).0, Some(0));
}

#[test]
fn no_file_at_all_ends_with_2() {
    let folder = folder("usage", &[]);
    assert_eq!(run(&folder, &["check"]).0, Some(2));
    let fact = run(&folder, &["explain", "policy.yaml", "--fact", "user"]);
    assert_eq!(fact.0, Some(2));
    assert!(fact.2.contains("write it as name=value"));
    let descriptor = ["--domain", "edge", "--descriptor", "a=b,user"];
    let arguments = [&["explain", "policy.yaml"][..], &descriptor].concat();
    let (code, _, err) = run(&folder, &arguments);
    assert_eq!(code, Some(2));
    let expect = "\"user\" has no value; write it as key=value, as key= for an empty one, or with \\, for a comma in a value";
    assert!(err.contains(expect), "{err}");
    let every = run(&folder, &["explain", "policy.yaml", "--every", "soon"]);
    assert_eq!(every.0, Some(2));
    assert_eq!(run(&folder, &["convert", "missing.yaml"]).0, Some(2));
}

#[test]
fn a_request_is_explained_step_by_step() {
    let folder = folder("explain", &[("policy.yaml", POLICY)]);
    let facts = [
        "--fact",
        "user=42",
        "--fact",
        "path=/api/x",
        "--fact",
        "method=POST",
    ];
    let arguments = |more: &[&'static str]| {
        let mut all = vec!["explain", "policy.yaml"];
        all.extend(facts);
        all.extend(more);
        all
    };
    let (code, out, _) = run(
        &folder,
        &arguments(&["--n", "22", "--every", "10ms", "--json"]),
    );
    assert_eq!(code, Some(0));
    let steps = steps(&out);
    assert_eq!(
        steps[0],
        json!({"at_ms": 0.0, "outcome": "allowed", "rule": "per-user", "remaining": 19,
        "retry_after_ms": 0.0, "limit": "10/s burst 20", "left": [
            {"rule": "per-user", "limit": "10/s burst 20", "remaining": 19},
            {"rule": "trial", "limit": "1/s", "remaining": 0},
        ]})
    );
    // The rule in shadow would refuse the second, and bites nobody.
    assert_eq!(steps[1]["shadow"], json!(["trial"]));
    let allowed = steps.iter().filter(|step| step["outcome"] == "allowed");
    assert_eq!(allowed.count(), 22);

    let (_, out, _) = run(&folder, &arguments(&["--n", "25"]));
    assert!(out.contains("  yes  per-user: "), "{out}");
    assert!(
        out.contains("  no   exempt[0]: path is \"/api/x\""),
        "{out}"
    );
    assert!(
        out.contains("denied           0           100ms  per-user"),
        "{out}"
    );
    let (_, out, _) = run(
        &folder,
        &[
            "explain",
            "policy.yaml",
            "--fact",
            "ip=203.0.113.9",
            "--json",
        ],
    );
    let step = &crate::steps(&out)[0];
    assert_eq!(
        (&step["outcome"], &step["rule"]),
        (&json!("denied"), &json!("block[0]"))
    );
    assert_eq!(step["retry_after_ms"], Value::Null);
}

#[test]
fn a_file_with_errors_can_not_be_explained() {
    let folder = folder("broken", &[("bad.yaml", "limits: 5\n")]);
    let (code, out, err) = run(&folder, &["explain", "bad.yaml"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("expected a list"), "{err}");
}

#[test]
fn a_policy_is_played_against_traffic() {
    let policy = "limits: [{name: all, rate: 50/s burst 50}]\n";
    let folder = folder("simulate", &[("policy.yaml", policy)]);
    let (code, out, _) = run(
        &folder,
        &["simulate", "policy.yaml", "--pattern", "steady", "--json"],
    );
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let number = |field: &str| report[field].as_u64().expect("a number");
    assert_eq!(
        number("offered"),
        number("admitted") + report["denied"]["all"].as_u64().unwrap_or(0)
    );
    assert!(number("peak_1s") <= 100 && number("admitted") > 0);
    let (_, out, _) = run(&folder, &["simulate", "policy.yaml", "--pattern", "burst"]);
    assert!(
        out.contains("refused   ") && out.contains(" by all\n"),
        "{out}"
    );
}

#[test]
fn traffic_that_meets_no_limit_is_told() {
    let policy = "limits: [{name: per-user, key: user, rate: 50/s}]\n";
    let folder = folder("unlimited", &[("policy.yaml", policy)]);
    let simulate = |fact| {
        let (_, out, _) = run(&folder, &["simulate", "policy.yaml", "--fact", fact]);
        out
    };
    let misspelt = simulate("usr=1");
    let told = "no limit  was met by 400; tollgate explain says why\n";
    assert!(misspelt.contains(told), "{misspelt}");
    assert!(!simulate("user=1").contains("no limit"));
}

#[test]
fn a_folder_without_policies_is_told() {
    let folder = folder("no-policies", &[("notes.txt", "")]);
    let (code, out, _) = run(&folder, &["check", "."]);
    assert_eq!(code, Some(1));
    let message = "error[unreadable]: the folder \".\" has no policy file in it\n";
    let help = "= help: give a folder with files named .yaml, .yml or .toml, or the path of one\n";
    assert!(out.contains(message) && out.contains(help), "{out}");
    let (code, _, err) = run(&folder, &["explain", "."]);
    assert_eq!(code, Some(1));
    assert!(err.contains(message), "{err}");
}

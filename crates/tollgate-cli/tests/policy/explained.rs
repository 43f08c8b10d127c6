//! `tollgate explain`: dates, an unreachable store, waits, hints, and all facts that a proxy may send about a request.

use std::process::Command;

use serde_json::{Value, json};

use super::{EPOCH, folder, run, run_with, steps};

/// What comes of a policy on standard input.
fn explain(policy: &str, more: &[&str]) -> String {
    let (code, out, err) = run_with(policy, &[&["explain", "-"][..], more].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    out
}

fn head(out: &str) -> Value {
    serde_json::from_str(out.lines().next().expect("a line")).expect("JSON")
}

#[test]
fn lengths_of_time_are_shown_as_people_write_them() {
    let policy =
        "limits: [{name: a, rate: 1 per 30d, over: wait 90s}, {name: b, rate: 1 per 2780ms}]\n";
    let out = explain(policy, &["--n", "2"]);
    assert!(
        out.contains("  yes  a (may wait 1m30s): it is for every request\n       1 per 30d\n"),
        "{out}"
    );
    assert!(
        out.contains("denied           0             30d  a: 1 per 30d"),
        "{out}"
    );
    let out = explain("limits: [{name: b, rate: 1 per 2780ms}]\n", &["--n", "2"]);
    assert!(
        out.contains("denied           0           2.78s  b: 1 per 2780ms\n"),
        "{out}"
    );
    // In JSON to the digit.
    let json = explain("limits: [{name: b, rate: 7/s}]\n", &["--n", "8", "--json"]);
    let wait = &steps(&json)[7]["retry_after_ms"];
    assert!(
        (142.857..142.8572).contains(&wait.as_f64().expect("a number")),
        "{wait}"
    );
    let json = explain(policy, &["--json"]);
    assert_eq!(head(&json)["rules"][0]["may_wait_ms"], json!(90000.0));
    assert_eq!(head(&json)["rules"][0]["limits"], json!(["1 per 30d"]));
}

#[test]
fn the_calendar_shows_today_or_the_date_that_is_said() {
    let policy = "limits: [{name: q, quota: 1/month in Europe/Zurich, on_store_failure: local}]\n";
    // A minute before March in Zurich, and a minute after.
    let at = [
        "--at",
        "2026-02-28T23:59:00+01:00",
        "--every",
        "2m",
        "--n",
        "2",
        "--json",
    ];
    let json = explain(policy, &at);
    assert_eq!(head(&json)["at"], json!("2026-02-28T22:59:00Z"));
    let outcomes: Vec<_> = steps(&json)
        .iter()
        .map(|step| step["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["allowed", "allowed"]);
    let json = explain(
        policy,
        &[
            "--at",
            "2026-02-01T12:00[Europe/Zurich]",
            "--n",
            "2",
            "--json",
        ],
    );
    let wait = &steps(&json)[1]["retry_after_ms"];
    assert_eq!(*wait, json!(27.5 * 86_400_000.0));
    // Without one it is no day in 1970.
    let out = explain(policy, &[]);
    assert!(!out.contains("requests, from 1970"), "{out}");
    let (code, _, err) = run_with(policy, &["explain", "-", "--at", "yesterday"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("\"yesterday\" is no date; write it as 2026-03-01"),
        "{err}"
    );
}

#[test]
fn a_store_that_is_down_is_answered_as_each_rule_says() {
    let policy = |choice: &str| {
        format!("limits: [{{name: a, key: user, rate: 2/h, on_store_failure: {choice}}}]\n")
    };
    for (choice, expected) in [
        ("open", ["allowed", "allowed", "allowed"]),
        ("closed", ["denied", "denied", "denied"]),
        ("local", ["allowed", "allowed", "denied"]),
        ("circuit-break", ["allowed", "allowed", "denied"]),
    ] {
        let request = ["--fact", "user=1", "--n", "3", "--store", "down"];
        let json = explain(&policy(choice), &[&request[..], &["--json"]].concat());
        let steps = steps(&json);
        let outcomes: Vec<_> = steps.iter().map(|step| &step["outcome"]).collect();
        assert_eq!(outcomes, expected, "{choice}");
        assert_eq!(steps[0]["without_store"], json!(choice));
        assert_eq!(head(&json)["rules"][0]["on_store_failure"], json!(choice));
        let out = explain(&policy(choice), &request);
        assert!(
            out.contains(&format!("  yes  a ({choice} without the store): ")),
            "{out}"
        );
        assert!(out.contains(&format!(" (no store: {choice})\n")), "{out}");
    }
    let theirs = "domain: x\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: closed}}]\n";
    let out = explain(
        theirs,
        &["--domain", "x", "--descriptor", "a=1", "--store", "down"],
    );
    assert!(
        out.contains("  a=1: x/a (closed without the store)\n"),
        "{out}"
    );
    assert!(out.contains("denied"), "{out}");
    // With a store nothing of it is said.
    assert!(!explain(&policy("open"), &["--fact", "user=1"]).contains("store"));
}

#[test]
fn only_those_that_match_are_shown() {
    let policy = "\
limits:
- {name: users, key: user, rate: 5/s}
- {name: tenants, key: tenant, rate: 5/s}
block: [{ip: 10.0.0.0/8}]
";
    let all = explain(policy, &["--fact", "user=1"]);
    assert!(
        all.contains("no   tenants") && all.contains("no   block[0]"),
        "{all}"
    );
    let some = explain(policy, &["--fact", "user=1", "--only", "matching"]);
    assert!(
        some.contains("yes  users") && !some.contains("  no "),
        "{some}"
    );
    let json = explain(
        policy,
        &["--fact", "user=1", "--only", "matching", "--json"],
    );
    let rules = &head(&json)["rules"];
    assert_eq!(rules.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&rules[0]["rule"], &rules[0]["applies"], &rules[0]["key"]),
        (&json!("users"), &json!(true), &json!("user=1"))
    );
}

#[test]
fn a_fact_that_may_be_misspelt_is_hinted_at() {
    let policy = "limits: [{name: plans, match: {region: eu}, key: [plan, user], rate: 5/s}]\n";
    let out = explain(
        policy,
        &[
            "--fact",
            "usr=1",
            "--fact",
            "reigon=eu",
            "--fact",
            "plan=pro",
        ],
    );
    assert!(
        out.contains("hint: nothing asks for the fact \"usr\"; did you mean \"user\"?\n"),
        "{out}"
    );
    assert!(
        out.contains("hint: nothing asks for the fact \"reigon\"; did you mean \"region\"?\n"),
        "{out}"
    );
    assert_eq!(out.matches("hint: ").count(), 2, "{out}");
    let json = explain(policy, &["--fact", "usr=1", "--json"]);
    assert_eq!(
        head(&json)["hints"],
        json!([{"fact": "usr", "near": "user"}])
    );
    // One that nothing asks for may be given: a request has many.
    assert!(!explain(policy, &["--fact", "colour=red"]).contains("hint"));
}

#[test]
fn it_is_told_which_requests_may_wait() {
    let policy = "\
limits: [{name: mails, key: user, rate: 1/s, over: wait 2500ms}]
tiers: {free: {rate: 1/h, over: wait 1s}}
default_tier: free
";
    let json = explain(policy, &["--fact", "user=1", "--n", "2", "--json"]);
    assert_eq!(
        steps(&json)[1]["waits"],
        json!({"longest_ms": 2500.0, "passes": true})
    );
    assert_eq!(steps(&json)[0].get("waits"), None);
    let out = explain(policy, &["--fact", "user=1", "--n", "2"]);
    assert!(out.contains("  yes  mails (may wait 2.5s): "), "{out}");
    assert!(
        out.contains("1s  mails: 1/s (may wait 2.5s: it passes then)\n"),
        "{out}"
    );
    let out = explain(policy, &["--fact", "tenant=acme", "--n", "2"]);
    assert!(
        out.contains("tier \"free\": 1/h (may wait 1s: that isn't enough)\n"),
        "{out}"
    );
}

const LIMITS: &str = "\
domain: x
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: agent, rate_limit: {unit: hour, requests_per_unit: 10}}
";

#[test]
fn hits_and_limits_of_a_proxy_are_flags() {
    let request = [
        "--domain",
        "x",
        "--descriptor",
        "user=1",
        "--descriptor",
        "agent=1",
    ];
    let told = |more: &[&str]| {
        let words = [&request[..], &EPOCH, &["--statuses", "--json"], more].concat();
        let out = explain(LIMITS, &words);
        let each = steps(&out)[0]["descriptors"].clone();
        let each = each.as_array().expect("of each").iter();
        each.map(|one| (one["charged"].clone(), one["remaining"].clone()))
            .collect::<Vec<_>>()
    };
    let pairs = |pairs: [(u64, u64); 2]| pairs.map(|(a, b)| (json!(a), json!(b)));
    assert_eq!(told(&[]), pairs([(1, 9), (1, 9)]));
    assert_eq!(told(&["--hits", "3"]), pairs([(3, 7), (3, 7)]));
    assert_eq!(
        told(&["--hits", "3", "--hits", "2=4"]),
        pairs([(3, 7), (4, 6)])
    );
    assert_eq!(told(&["--limit", "2=100/hour"]), pairs([(1, 9), (1, 99)]));
    assert_eq!(told(&["--limit", "5/minute"]), pairs([(1, 4), (1, 4)]));
    let out = explain(LIMITS, &[&request[..], &["--limit", "1=5/minute"]].concat());
    assert!(
        out.contains("  user=1: a limit that was asked for\n    5/minute\n"),
        "{out}"
    );
    let out = explain(
        LIMITS,
        &[&request[..], &EPOCH, &["--statuses", "--hits", "2=11"]].concat(),
    );
    assert!(
        out.contains(" agent=1: over its limit, not charged, 10 left\n"),
        "{out}"
    );
    let refused = |more: &[&str]| {
        let words = [&["explain", "-"][..], &request, more].concat();
        let (code, _, err) = run_with(LIMITS, &words);
        assert_eq!(code, Some(2));
        err
    };
    let err = refused(&["--limit", "5/fortnight"]);
    assert!(
        err.contains("write it as 5/minute, with one of second, minute"),
        "{err}"
    );
    let err = refused(&["--hits", "3=1"]);
    assert!(
        err.contains("there is no descriptor 3: the request has 2"),
        "{err}"
    );
}

#[test]
fn a_comma_in_a_value_is_written_with_a_backslash() {
    let file = "domain: x\ndescriptors: [{key: agent, value: \"a,b\", rate_limit: {unit: hour, requests_per_unit: 1}}]\n";
    let request = ["--domain", "x", "--descriptor", r"agent=a\,b"];
    let out = explain(file, &request);
    assert!(out.contains("  agent=a\\,b: x/agent=a,b\n"), "{out}");
    let (code, out, _) = run_with(file, &[&["simulate", "-"][..], &request].concat());
    assert_eq!(code, Some(0));
    assert!(out.contains("by x/agent=a,b\n"), "{out}");
}

#[test]
fn what_hides_a_limit_is_named() {
    let file = "\
domain: x
descriptors:
- key: path
  descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]
- key: path
  value: /login
  rate_limit: {unit: hour, requests_per_unit: 5}
- {key: host, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: host, value: \"a*\", descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]}
";
    let folder = folder("hidden", &[("theirs.yaml", file)]);
    let told = |descriptor: &str| {
        let words = [
            "explain",
            "theirs.yaml",
            "--domain",
            "x",
            "--descriptor",
            descriptor,
        ];
        let (_, out, _) = run(&folder, &words);
        out.lines().nth(1).expect("a line").trim().to_owned()
    };
    assert_eq!(
        told("path=/login,user=1"),
        "path=/login,user=1: no limit: \"path=/login\" is taken before \"path\", as it is more specific, and has none at this depth"
    );
    assert_eq!(
        told("host=abc"),
        "host=abc: no limit: \"host=a*\" is taken before \"host\", as it is more specific, and has none at this depth"
    );
    assert_eq!(
        told("other=1"),
        "other=1: no limit: none has these keys at this depth"
    );
    let words = [
        "explain",
        "theirs.yaml",
        "--domain",
        "x",
        "--descriptor",
        "host=abc",
        "--json",
    ];
    let (_, out, _) = run(&folder, &words);
    assert_eq!(head(&out)["descriptors"][0]["hidden_by"], json!("host=a*"));
}

#[test]
fn colours_come_where_they_are_wanted() {
    let folder = folder(
        "colours",
        &[
            ("bad.yaml", "limits: 5\n"),
            ("good.yaml", "limits: [{name: a, rate: 1/s}]\n"),
        ],
    );
    let (_, plain, _) = run(&folder, &["check", "bad.yaml"]);
    assert!(
        !plain.contains('\u{1b}'),
        "a pipe is no terminal: {plain:?}"
    );
    let (code, bright, _) = run(&folder, &["check", "bad.yaml", "--color", "always"]);
    assert_eq!(code, Some(1));
    assert!(
        bright.starts_with("\u{1b}[1m\u{1b}[31merror[wrong-type]\u{1b}[0m: expected"),
        "{bright:?}"
    );
    let (_, out, _) = run(&folder, &["--color", "always", "explain", "good.yaml"]);
    assert!(out.contains("\u{1b}[32mallowed\u{1b}[0m"), "{out:?}");
    // The variables by which users say it for all programs.
    let by = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let command = command.args(["check", "bad.yaml"]).current_dir(&folder);
        let output = command.envs(variables.iter().copied()).output();
        output.expect("it runs").stdout.contains(&0x1b)
    };
    assert!(by(&[("CLICOLOR_FORCE", "1")]));
    assert!(!by(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    // Errors that end a command go to standard error.
    let (_, _, err) = run(&folder, &["explain", "bad.yaml", "--color", "always"]);
    assert!(
        err.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m the policy has errors\n\u{1b}[1m"),
        "{err:?}"
    );
    let (_, _, err) = run(&folder, &["explain", "bad.yaml", "--color", "never"]);
    assert!(
        err.starts_with("error: the policy has errors\nerror[wrong-type]: "),
        "{err:?}"
    );
}

#[test]
fn a_rule_that_is_rolled_out_or_warms_up_says_so() {
    let policy =
        "limits: [{name: new, key: user, rate: 100/s, mode: {enforce: 30%}, warm_up: 9s}]\n";
    let (code, out, _) = run_with(policy, &["check", "-"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("  new: enforce for 30% of its keys, local"),
        "{out}"
    );
    let (_, out, _) = run_with(policy, &["check", "-", "--json"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let limit = &report["files"][0]["limits"][0];
    assert_eq!(
        (&limit["mode"], &limit["enforced_percent"]),
        (&json!("enforce"), &json!(30))
    );
    // 1 is among them, and 0 isn't, wherever it is asked.
    let enforced = explain(policy, &["--fact", "user=1", "--n", "11"]);
    let notes = "(enforced, as for 30% of its keys, warms up for 9s)";
    assert!(
        enforced.contains(&format!("  yes  new {notes}: ")),
        "{enforced}"
    );
    assert!(
        enforced.contains("denied           0           100ms  new: 100 per 10s burst 10\n"),
        "{enforced}"
    );
    assert!(
        enforced.contains("9 left of new: 100 per 10s burst 10 while it warms up\n"),
        "{enforced}"
    );
    let shadowed = explain(policy, &["--fact", "user=0", "--n", "11"]);
    assert!(
        shadowed.contains("(in shadow: enforced for 30% of its keys, "),
        "{shadowed}"
    );
    assert!(
        shadowed.contains(" (in shadow new would refuse)\n"),
        "{shadowed}"
    );
    let json = explain(policy, &["--fact", "user=0", "--json"]);
    let rule = &head(&json)["rules"][0];
    assert_eq!(
        (
            &rule["mode"],
            &rule["enforced_percent"],
            &rule["warm_up_ms"]
        ),
        (&json!("shadow"), &json!(30), &json!(9000.0))
    );
    // Once it is warm, all of it passes.
    let warm = explain(policy, &["--fact", "user=1", "--n", "2", "--every", "9s"]);
    assert!(
        warm.contains("9s  allowed         99               -  new: 100/s\n"),
        "{warm}"
    );
}

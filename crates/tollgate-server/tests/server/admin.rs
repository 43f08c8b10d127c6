//! What operators see and change on the admin listener: each change expires and is logged.

use std::time::Duration;

use serde_json::json;

use crate::admin_kit::Operated;

const ADA: &str = r#"{"user":"ada"}"#;
const TREE: &str = "\
domain: edge
descriptors: [{key: ip, rate_limit: {unit: hour, requests_per_unit: 10}}]
";
const BOB: &str = r#"{"user":"bob"}"#;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

#[test]
fn rules_tell_what_they_have_decided() {
    let operated = Operated::new("admin-rules", |_| {});
    for _ in 0..12 {
        operated.check(ADA);
    }
    let rules = operated.done(("GET", "/admin/rules", ""));
    let first = &rules["rules"][0];
    assert_eq!(
        (&first["name"], &first["limits"]),
        (&json!("per-user"), &json!(["10/h"]))
    );
    assert_eq!(
        (&first["allowed"], &first["denied"]),
        (&json!(10), &json!(2))
    );
    assert_eq!(first["reasons"], json!({"rate": 2}));
    let names: Vec<_> = rules["rules"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|rule| rule["name"].clone())
        .collect();
    assert_eq!(names[..3], [json!("per-user"), json!("jobs"), json!("all")]);
    let limiters = operated.done(("GET", "/debug/limiters", ""));
    let all = limiters["limiters"].as_array().expect("a list");
    let all = all
        .iter()
        .find(|limiter| limiter["name"] == "all")
        .expect("a limiter");
    assert_eq!(
        (&all["rate"], &all["burst"], &all["tokens"], &all["waiting"]),
        (&json!(5.0), &json!(5), &json!(5), &json!(0))
    );
}

#[test]
fn who_is_refused_most_is_told_first() {
    let operated = Operated::new("admin-top", |_| {});
    for (facts, times) in [(ADA, 12), (BOB, 15), (r#"{"user":"eve"}"#, 3)] {
        for _ in 0..times {
            operated.check(facts);
        }
    }
    let top = operated.done(("GET", "/admin/top", ""));
    let key = |key: &str, denied: u64| json!({"rule": "per-user", "key": key, "denied": denied, "error": 0, "shadow": false});
    assert_eq!(top["keys"], json!([key("user=bob", 5), key("user=ada", 2)]));
    assert_eq!(
        (&top["counted"], &top["since"]),
        (&json!(7), &json!("1970-01-01T00:00:00Z"))
    );
}

#[test]
fn one_user_is_looked_up_and_reset() {
    let operated = Operated::new("admin-reset", |_| {});
    while operated.check(ADA).0 {}
    let asked = ("GET", "/admin/key?user=ada&rule=per-user", "");
    let found = operated.done(asked);
    let key = &found["keys"][0];
    assert_eq!(
        (&key["rule"], &key["key"], &key["mode"]),
        (&json!("per-user"), &json!("user=ada"), &json!("enforce"))
    );
    let limit = &key["limits"][0];
    assert_eq!(
        (&limit["allowed"], &limit["remaining"], &limit["of"]),
        (&json!(false), &json!(0), &json!(10))
    );
    assert_eq!(limit["retry_after"], json!(360.0));
    let by_body = (
        "POST",
        "/admin/key",
        r#"{"rule":"per-user","facts":{"user":"ada"}}"#,
    );
    assert_eq!(operated.done(by_body), found);
    let reset = operated.done(("POST", "/admin/reset", r#"{"facts":{"user":"ada"}}"#));
    let of_rule = json!({"rule": "per-user", "reset": ["10/h"], "kept": []});
    assert_eq!(reset, json!({"rules": [of_rule]}));
    assert_eq!(
        operated.done(asked)["keys"][0]["limits"][0]["remaining"],
        10
    );
    assert!(operated.check(ADA).0);
    let said = operated.said.text();
    let line = "info: admin reset key=\"user=ada\" before=\"per-user 0/10\" now=\"per-user 10/10\" from=127.0.0.1:";
    assert!(said.contains(line), "{said}");
}

#[test]
fn a_block_ends_by_itself_or_before() {
    let operated = Operated::new("admin-block", |_| {});
    let block = (
        "POST",
        "/admin/block",
        r#"{"rule":"per-user","facts":{"user":"ada"},"for":"10m","why":"ticket 7"}"#,
    );
    let made = operated.done(block);
    assert_eq!(
        (&made["id"], &made["act"], &made["left"]),
        (&json!(1), &json!("block"), &json!(600))
    );
    assert_eq!(
        (&made["rule"], &made["key"], &made["effect"]),
        (&json!("per-user"), &json!("user=ada"), &json!("in force"))
    );
    assert!(
        made["by"]
            .as_str()
            .is_some_and(|by| by.starts_with("127.0.0.1:") && by.ends_with(": ticket 7"))
    );
    let (passes, answer) = operated.check(ADA);
    assert!(!passes && answer.contains("retry-after: 600"), "{answer}");
    assert!(operated.check(BOB).0);
    let key = operated.done(("GET", "/admin/key?user=ada", ""));
    assert_eq!(key["keys"][0]["overrides"][0]["id"], 1);
    operated
        .running
        .clock
        .advance(minutes(10) - Duration::from_secs(1));
    assert!(!operated.check(ADA).0);
    operated.running.clock.advance(Duration::from_secs(1));
    assert!(operated.check(ADA).0);
    assert_eq!(
        operated.done(("GET", "/admin/overrides", "")),
        json!({"overrides": []})
    );
    // Ended by hand, each in its way.
    operated.done(block);
    operated.done((
        "POST",
        "/admin/unblock",
        r#"{"rule":"per-user","facts":{"user":"ada"}}"#,
    ));
    assert!(operated.check(ADA).0);
    let id = operated.done(block)["id"].as_u64().expect("a number");
    operated.done(("DELETE", &format!("/admin/overrides/{id}"), ""));
    assert!(operated.check(ADA).0);
    let said = operated.said.text();
    for line in [
        "info: admin block before=none now=\"1: block user=ada of \\\"per-user\\\" until 1970-01-01T00:10:00Z by 127.0.0.1:",
        "info: admin unblock before=\"2: block user=ada",
        "info: admin order ended before=\"3: block user=ada",
        " now=none from=127.0.0.1:",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn another_limit_is_for_a_while() {
    let operated = Operated::new("admin-override", |_| {});
    while operated.check(ADA).0 {}
    let body = r#"{"rule":"per-user","facts":{"user":"ada"},"rate":"100/h","for":"5m"}"#;
    let made = operated.done(("POST", "/admin/override", body));
    assert_eq!(
        (&made["act"], &made["limits"]),
        (&json!("limit"), &json!("100/h"))
    );
    assert!(operated.check(ADA).0);
    let key = operated.done(("GET", "/admin/key?user=ada", ""));
    assert_eq!(key["keys"][0]["limits"][0]["limit"], "100/h");
    operated.running.clock.advance(minutes(5));
    let key = operated.done(("GET", "/admin/key?user=ada", ""));
    assert_eq!(key["keys"][0]["limits"][0]["limit"], "10/h");
    let slots = operated.done((
        "POST",
        "/admin/override",
        r#"{"rule":"jobs","concurrency":9}"#,
    ));
    assert_eq!(
        (&slots["limits"], &slots["left"]),
        (&json!("9 concurrent"), &json!(600))
    );
}

#[test]
fn one_rule_or_all_are_let_be_for_a_while() {
    for body in [
        r#"{"rule":"per-user","for":"1m"}"#,
        r#"{"all":true,"for":"1m"}"#,
    ] {
        let operated = Operated::new("admin-bypass", |_| {});
        while operated.check(ADA).0 {}
        operated.done(("POST", "/admin/bypass", body));
        assert!(operated.check(ADA).0, "{body}");
        operated.running.clock.advance(minutes(1));
        assert!(!operated.check(ADA).0, "{body}");
    }
}

#[test]
fn a_counter_of_a_tree_is_named_by_its_descriptor() {
    let operated = Operated::by(TREE, "admin-tree", |_| {});
    let whose = r#""domain":"edge","descriptor":[{"key":"ip","value":"203.0.113.7"}]"#;
    let check = || {
        let body =
            r#"{"domain":"edge","descriptors":[{"entries":[{"key":"ip","value":"203.0.113.7"}]}]}"#;
        let json = crate::admin_kit::JSON;
        operated
            .running
            .http()
            .request("POST", "/v1/check", json, body)
            .0
    };
    assert_eq!(check(), 200);
    let found = operated.done(("POST", "/admin/key", &format!("{{{whose}}}")));
    assert_eq!(found["keys"][0]["limits"][0]["remaining"], 9);
    operated.done((
        "POST",
        "/admin/block",
        &format!("{{{whose},\"for\":\"1h\"}}"),
    ));
    assert_eq!(check(), 429);
    operated.done(("POST", "/admin/unblock", &format!("{{{whose}}}")));
    assert_eq!(check(), 200);
}

#[test]
fn a_policy_is_looked_at_and_put_in_force() {
    let operated = Operated::new("admin-reload", |_| {});
    let file = operated.scratch.path("policy.yaml");
    let show = || operated.done(("GET", "/admin/reload", ""));
    assert_eq!(show()["summary"], "nothing changes");
    let text = crate::admin_kit::POLICY.replace("10/h", "20/h");
    std::fs::write(&file, text).expect("a file");
    let would = show();
    assert_eq!(would["summary"], "1 changed");
    assert!(
        would["text"]
            .as_str()
            .is_some_and(|text| text.contains("10/h -> 20/h"))
    );
    let limits = || operated.done(("GET", "/admin/rules", ""))["rules"][0]["limits"].clone();
    assert_eq!(limits(), json!(["10/h"]));
    let done = operated.done(("POST", "/admin/reload", "{}"));
    assert_eq!(
        (&done["summary"], &done["reloads"]["ok"]),
        (&json!("1 changed"), &json!(1))
    );
    assert_eq!(limits(), json!(["20/h"]));
    std::fs::write(&file, "limits: [{name: broken, rate: often}]").expect("a file");
    for method in ["GET", "POST"] {
        let (status, answer) = operated.operate((method, "/admin/reload", ""));
        assert_eq!(status, 422, "{answer}");
        assert!(
            answer["detail"]
                .as_str()
                .is_some_and(|why| why.contains("expected a count")),
            "{answer}"
        );
    }
    assert_eq!(limits(), json!(["20/h"]));
    let said = operated.said.text();
    assert!(
        said.contains("info: admin reload now=1 changed from=127.0.0.1:"),
        "{said}"
    );
    assert!(said.contains("info: admin reload now=refused: "), "{said}");
}

#[test]
fn a_change_is_written_down_whatever_the_level() {
    let operated = Operated::new("admin-log", |_| {});
    assert_eq!(
        operated.done(("GET", "/admin/log", "")),
        json!({"level": "info"})
    );
    operated.done(("PUT", "/admin/log", r#"{"level":"error"}"#));
    operated.done(("POST", "/admin/bypass", r#"{"rule":"all"}"#));
    let said = operated.said.text();
    assert!(
        said.contains("info: admin log before=info now=error from=127.0.0.1:"),
        "{said}"
    );
    assert!(
        said.contains("info: admin bypass before=none now=\"1: bypass everybody of \\\"all\\\""),
        "{said}"
    );
    let (status, answer) = operated.operate(("PUT", "/admin/log", r#"{"level":"loud"}"#));
    assert_eq!(status, 400);
    assert_eq!(
        answer["detail"],
        "level: no level \"loud\": write error, warning, info or debug"
    );
}

#[test]
fn what_cant_be_ordered_is_told() {
    let operated = Operated::new("admin-told", |_| {});
    let before = operated.state();
    for (path, body, status, why) in [
        (
            "block",
            "{}",
            400,
            "say whom it is for, by rule, facts or both",
        ),
        (
            "bypass",
            "{}",
            400,
            "say whom it is for by rule, facts or both; or all: true, for all limits",
        ),
        (
            "bypass",
            r#"{"rule":"all","all":true}"#,
            400,
            "say whom it is for by rule, facts or both; or all: true, for all limits",
        ),
        ("block", r#"{"all":true}"#, 400, "all: not here"),
        (
            "reset",
            r#"{"rule":"all","for":"1m"}"#,
            400,
            "for: not here",
        ),
        (
            "block",
            r#"{"rule":"all","rate":"1/s"}"#,
            400,
            "rate: not here",
        ),
        (
            "block",
            r#"{"rule":"per-usr"}"#,
            404,
            "no rule, tier or limit of a tree is called \"per-usr\": did you mean \"per-user\"?",
        ),
        (
            "block",
            r#"{"rule":"all","for":"31d"}"#,
            400,
            "for: \"31d\" is no length of time that an order may last: write a whole number and a unit, as 90s, 10m, 2h or 7d, up to 30d",
        ),
        (
            "block",
            r#"{"rule":"all","for":"0s"}"#,
            400,
            "for: \"0s\" is no length of time that an order may last: write a whole number and a unit, as 90s, 10m, 2h or 7d, up to 30d",
        ),
        (
            "block",
            r#"{"rule":"all","for":"for ever"}"#,
            400,
            "for: \"for ever\" is no length of time that an order may last: write a whole number and a unit, as 90s, 10m, 2h or 7d, up to 30d",
        ),
        ("override", r#"{"rule":"all"}"#, 400, ""),
        ("override", r#"{"rule":"all","rate":"often"}"#, 400, ""),
        (
            "block",
            r#"{"domain":"edge"}"#,
            400,
            "domain: it goes with descriptor",
        ),
        (
            "block",
            r#"{"rule":"all","domain":"edge","descriptor":[]}"#,
            400,
            "descriptor: it names a limit by itself, without rule and facts",
        ),
        (
            "unblock",
            r#"{"rule":"all"}"#,
            404,
            "no block of everybody of \"all\": tollgate admin overrides shows all (GET /admin/overrides)",
        ),
    ] {
        let (found, answer) = operated.operate(("POST", &format!("/admin/{path}"), body));
        assert_eq!(found, status, "{path} {body}: {answer}");
        if !why.is_empty() {
            assert_eq!(answer["detail"], why, "{path} {body}");
        }
    }
    let (status, answer) = operated.operate(("DELETE", "/admin/overrides/77", ""));
    assert_eq!(
        (status, &answer["detail"]),
        (
            404,
            &json!("no order 77: tollgate admin overrides shows all (GET /admin/overrides)")
        )
    );
    assert_eq!(operated.state(), before);
}

//! Operators' overrides: they match requests, are shown, and survive a reset of the key.

use serde_json::{Value, json};

use crate::admin_kit::Operated;

const POLICY: &str = "\
limits:
- {name: per-net, key: ip/64, rate: 2/h}
- {name: per-tenant, key: tenant, rate: [4/s, 6/h], quota: 9/month}
- {name: trial, key: user, rate: 2/h, mode: shadow}
";

fn post(operated: &Operated, path: &str, body: &Value) -> Value {
    operated.done(("POST", &format!("/admin/{path}"), &body.to_string()))
}

fn readyz(operated: &Operated) -> (u16, Value) {
    let (status, answer) = operated.running.admin().request("GET", "/readyz", "", "");
    let body = answer.split("\r\n\r\n").last().unwrap_or(&answer);
    (status, serde_json::from_str(body).expect("JSON"))
}

#[test]
fn a_fact_with_two_values_is_rejected_and_blocks_nobody() {
    let operated = Operated::by(POLICY, "admin-doubled", |_| {});
    let twice = r#"{"facts": {"user": "a", "user": "b"}}"#;
    for path in ["block", "key", "reset", "bypass"] {
        let (status, answer) = operated.operate(("POST", &format!("/admin/{path}"), twice));
        assert_eq!(status, 400, "{path}: {answer}");
        assert_eq!(answer["detail"], "facts: \"user\" has two values: send one");
    }
    let (status, answer) = operated.operate(("GET", "/admin/key?user=a&user=b", ""));
    assert_eq!(status, 400, "{answer}");
    let orders = operated.done(("GET", "/admin/overrides", ""));
    assert_eq!(orders["overrides"], json!([]), "{orders}");
}

#[test]
fn what_top_shows_is_found_blocked_and_reset() {
    let operated = Operated::by(POLICY, "admin-shown", |_| {});
    let ip = r#"{"ip":"2001:db8::7"}"#;
    for _ in 0..5 {
        operated.check(ip);
    }
    let top = operated.done(("GET", "/admin/top", ""));
    let key = top["keys"][0]["key"].clone();
    assert_eq!(key, "ip=2001:db8::/64");
    let found = post(&operated, "key", &json!({"key": key}));
    assert_eq!(
        (
            &found["keys"][0]["key"],
            &found["keys"][0]["limits"][0]["allowed"]
        ),
        (&key, &json!(false))
    );
    // As a fact it is the same.
    let by_fact = json!({"rule": "per-net", "facts": {"ip": "2001:db8::/64"}});
    assert_eq!(post(&operated, "key", &by_fact), found);
    let by_query = "/admin/key?rule=per-net&key=ip%3D2001:db8::/64";
    assert_eq!(operated.done(("GET", by_query, "")), found);
    post(&operated, "reset", &json!({"key": key}));
    assert!(operated.check(ip).0);
    post(&operated, "block", &json!({"rule": "per-net", "key": key}));
    assert!(!operated.check(ip).0);
    let cut = ("POST", "/admin/key", r#"{"key":"ip=2001…"}"#);
    let (status, answer) = operated.operate(cut);
    assert_eq!(
        (status, &answer["detail"]),
        (
            400,
            &json!(
                "key: the key ends with …: the list has shown its beginning only, so it names no key; take the whole of it from the client"
            )
        )
    );
}

#[test]
fn a_network_is_blocked_and_each_order_tells_what_it_did() {
    let operated = Operated::by(POLICY, "admin-acted", |_| {});
    let made = post(
        &operated,
        "block",
        &json!({"facts": {"ip": "198.51.100.0/24"}}),
    );
    assert_eq!(
        (&made["effect"], &made["applied"]),
        (&json!("in force"), &json!(0))
    );
    assert!(!operated.check(r#"{"ip":"198.51.100.9"}"#).0);
    assert!(operated.check(r#"{"ip":"198.51.101.9"}"#).0);
    let orders = operated.done(("GET", "/admin/overrides", ""));
    let (order, last) = (&orders["overrides"][0], json!("1970-01-01T00:00:00Z"));
    assert_eq!(
        (&order["applied"], &order["last_applied"]),
        (&json!(1), &last)
    );
    let typo = ("POST", "/admin/block", r#"{"facts":{"usr":"bot"}}"#);
    let (status, answer) = operated.operate(typo);
    assert_eq!(
        (status, &answer["detail"]),
        (
            400,
            &json!("no rule of the policy names the fact \"usr\": did you mean \"user\"?")
        )
    );
    let meant = post(
        &operated,
        "block",
        &json!({"facts": {"usr": "bot"}, "any_fact": true}),
    );
    assert_eq!(meant["effect"], "in force");
}

#[test]
fn a_second_order_says_whose_place_it_takes() {
    let operated = Operated::by(POLICY, "admin-in-place", |_| {});
    let body = |more: Value| {
        let mut body = json!({"rule": "per-tenant", "facts": {"tenant": "t1"}, "for": "10m"});
        body.as_object_mut()
            .expect("a map")
            .extend(more.as_object().expect("a map").clone());
        body
    };
    let first = post(
        &operated,
        "override",
        &body(json!({"rate": ["8/s", "20/h"]})),
    );
    assert_eq!(
        (&first["limits"], &first["in_place_of"]),
        (&json!("8/s, 20/h"), &Value::Null)
    );
    let second = post(&operated, "override", &body(json!({"quota": 5})));
    let before = json!({"id": 1, "limits": "8/s, 20/h", "until": first["until"]});
    assert_eq!(
        (&second["id"], &second["in_place_of"]),
        (&json!(2), &before)
    );
}

#[test]
fn a_reset_says_what_it_reset_and_leaves_quotas_alone() {
    let operated = Operated::by(POLICY, "admin-reset-quotas", |_| {});
    let t1 = r#"{"tenant":"t1"}"#;
    while operated.check(t1).0 {}
    let reset = post(&operated, "reset", &json!({"facts": {"tenant": "t1"}}));
    let rule = json!({"rule": "per-tenant", "reset": ["4/s", "6/h"], "kept": ["9/month"]});
    assert_eq!(reset, json!({"rules": [rule]}));
    let left = |operated: &Operated| {
        let found = post(
            operated,
            "key",
            &json!({"rule": "per-tenant", "facts": {"tenant": "t1"}}),
        );
        let limits = found["keys"][0]["limits"]
            .as_array()
            .expect("limits")
            .clone();
        limits
            .iter()
            .map(|limit| limit["remaining"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(left(&operated), [4, 6, 5]);
    post(
        &operated,
        "reset",
        &json!({"facts": {"tenant": "t1"}, "quotas": true}),
    );
    assert_eq!(left(&operated), [4, 6, 9]);
}

#[test]
fn a_bypass_is_a_concern_and_a_metric_until_it_ends() {
    let operated = Operated::by(POLICY, "admin-bypass-seen", |_| {});
    let bypass = || {
        let (status, answer) = readyz(&operated);
        (status, answer["reasons"]["bypass"].clone())
    };
    assert_eq!(bypass(), (200, Value::Null));
    let made = post(&operated, "bypass", &json!({"all": true, "for": "30d"}));
    let why = format!(
        "limits are bypassed: 1: everybody until {}",
        made["until"].as_str().expect("a date")
    );
    assert_eq!(bypass(), (200, json!(why)));
    assert_eq!(readyz(&operated).1["status"], "degraded");
    let (_, metrics) = operated.running.admin().request(
        "GET",
        "/metrics",
        &format!("authorization: Bearer {}\r\n", crate::admin_kit::TOKEN),
        "",
    );
    for line in [
        "tollgate_overrides{kind=\"bypass\"} 1\n",
        "tollgate_overrides{kind=\"block\"} 0\n",
        "tollgate_overrides{kind=\"limit\"} 0\n",
        "tollgate_concern{concern=\"bypass\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    operated.done(("DELETE", "/admin/overrides/1", ""));
    assert_eq!(bypass(), (200, Value::Null));
}

#[test]
fn who_would_be_refused_by_a_rule_in_shadow_is_listed_and_logged() {
    let operated = Operated::by(POLICY, "admin-shadow", |settings| {
        settings.denial_log.share = "100%".parse().expect("a share");
    });
    for _ in 0..3 {
        assert!(operated.check(r#"{"user":"ada"}"#).0);
    }
    let top = operated.done(("GET", "/admin/top", ""));
    let ada = json!({"rule": "trial", "key": "user=ada", "denied": 1, "error": 0, "shadow": true});
    assert_eq!(top["keys"], json!([ada]));
    let said = operated.said.text();
    let line = "info: would be denied (shadow) rule=trial reason=rate key_hash=";
    assert!(said.contains(line), "{said}");
    let rules = operated.done(("GET", "/admin/rules", ""));
    let none = rules["rules"].as_array().expect("rules").iter();
    let none: Vec<_> = none.filter(|rule| rule["name"] == "(none)").collect();
    assert!(none.iter().all(|rule| rule["allowed"] == 0), "{none:?}");
}

#[test]
fn json_logs_have_texts_and_no_quoted_texts() {
    let said = crate::admin_kit::Said::default();
    let log = tollgate_server::Log::to_writer(said.clone(), tollgate_server::LogFormat::Json);
    let operated = Operated::by(POLICY, "admin-json", |settings| settings.log = log);
    post(
        &operated,
        "block",
        &json!({"rule": "trial", "facts": {"user": "eve"}}),
    );
    let lines = said.text();
    let line = lines
        .lines()
        .find(|line| line.contains("admin block"))
        .expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    let now = line["now"].as_str().expect("text");
    assert!(
        now.starts_with("1: block user=eve of \"trial\" until "),
        "{now}"
    );
}

#[test]
fn answers_name_rules_in_shadow_if_an_operator_wants_it() {
    for (wanted, expect) in [
        (
            tollgate_server::ShadowVisibility::Shown,
            Some(",\"shadow\":[\"trial\"]}"),
        ),
        (tollgate_server::ShadowVisibility::Hidden, None),
    ] {
        let operated = Operated::by(POLICY, "shadow-answers", |settings| {
            settings.shadow_visibility = wanted;
        });
        let ask = || operated.check(r#"{"user":"ada"}"#).1;
        assert!(!ask().contains("shadow") && !ask().contains("shadow"));
        let third = ask();
        let shown = third.find(",\"shadow\"").map(|at| &third[at..]);
        assert_eq!(shown, expect, "{third}");
    }
}

//! Settling an actual cost at every time: before the estimate expires, after it, after the reservation expires, and
//! again.

use std::time::Duration;

use crate::kit::Running;

const JSON: &str = "content-type: application/json\r\n";

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a body").1
}

const POLICY: &str = "limits: [\
    {name: tokens, match: {path: /llm}, key: tenant, rate: 10000/day, algorithm: fixed-window, \
     cost: {fact: estimate, settle_within: 60s}}, \
    {name: drafts, match: {path: /draft}, key: tenant, rate: 10000/day, algorithm: fixed-window, \
     cost: {fact: estimate, settle_within: 60s, unsettled: refund}}]";

fn post(running: &Running, path: &str, text: &str) -> (u16, String) {
    let (status, answer) = running.http().request("POST", path, JSON, text);
    (status, body(&answer).to_owned())
}

/// Time passes for limits, and for what is held.
fn pass(running: &Running, time: Duration) {
    running.clock.advance(time);
    running.pass(time);
}

fn reserve(running: &Running, path: &str, id: &str, ttl: u64) {
    let text = format!(
        r#"{{"id": "{id}", "ttl": {ttl}, "facts": {{"path": "{path}", "tenant": "acme", "estimate": "200"}}}}"#
    );
    assert_eq!(post(running, "/v1/reserve", &text).0, 200);
}

fn settle(running: &Running, id: &str, spent: u64) -> (u16, String) {
    let text = format!(r#"{{"id": "{id}", "spent": {spent}}}"#);
    post(running, "/v1/settle", &text)
}

fn used(running: &Running, path: &str) -> u64 {
    let text = format!(r#"{{"facts": {{"path": "{path}", "tenant": "acme", "estimate": "1"}}}}"#);
    let (_, told) = post(running, "/v1/peek", &text);
    let left = told.split("\"remaining\":").nth(1);
    let left = left.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    10_000 - left.unwrap_or_else(|| panic!("{told}"))
}

const IN_TIME: &str = r#"{"settled":true}"#;
const LATE: &str = r#"{"settled":true,"late":true}"#;

#[test]
fn a_late_settle_charges_what_is_not_charged_yet_once_and_gives_nothing_back() {
    // What is used before the settle, and after one of 9,000 and of 50; by the path, how long after, and the hold's time.
    for (path, after, ttl, before, settled) in [
        ("/llm", 59, 3_600, 200, [(9_000, IN_TIME), (50, IN_TIME)]),
        ("/llm", 60, 3_600, 200, [(9_000, LATE), (200, LATE)]),
        ("/llm", 90, 30, 200, [(9_000, LATE), (200, LATE)]),
        ("/draft", 59, 3_600, 200, [(9_000, IN_TIME), (50, IN_TIME)]),
        ("/draft", 60, 3_600, 0, [(9_000, LATE), (50, LATE)]),
        ("/draft", 30, 30, 0, [(9_000, LATE), (50, LATE)]),
        ("/draft", 600, 30, 0, [(9_000, LATE), (50, LATE)]),
    ] {
        for (spent, (charged, told)) in [9_000, 50].into_iter().zip(settled) {
            let running = Running::in_still_time(POLICY, |_| {});
            reserve(&running, path, "a", ttl);
            assert_eq!(used(&running, path), 200);
            pass(&running, Duration::from_secs(after));
            let case = format!("{path} {after} {ttl} {spent}");
            assert_eq!(used(&running, path), before, "{case}");
            for _ in 0..3 {
                let answer = (200, told.to_owned());
                assert_eq!(settle(&running, "a", spent), answer, "{case}");
                assert_eq!(used(&running, path), charged, "{case}");
            }
        }
    }
}

#[test]
fn renewing_prolongs_the_hold_and_the_estimate() {
    for path in ["/llm", "/draft"] {
        let running = Running::in_still_time(POLICY, |_| {});
        reserve(&running, path, "a", 120);
        for _ in 0..5 {
            pass(&running, Duration::from_secs(59));
            let renew = r#"{"id": "a", "ttl": 120}"#;
            assert_eq!(post(&running, "/v1/permits/renew", renew).0, 200);
            assert_eq!(used(&running, path), 200, "{path}");
        }
        pass(&running, Duration::from_secs(59));
        assert_eq!(settle(&running, "a", 50), (200, IN_TIME.to_owned()));
        assert_eq!(used(&running, path), 50, "{path}");
    }
}

#[test]
fn what_is_unknown_or_forgotten_is_an_error() {
    let running = Running::in_still_time(POLICY, |_| {});
    assert_eq!(settle(&running, "never", 10).0, 404);
    reserve(&running, "/llm", "a", 30);
    // Ten minutes after it ended by itself.
    pass(&running, Duration::from_secs(30 + 600));
    assert_eq!(settle(&running, "a", 9_000).0, 404);
    assert_eq!(used(&running, "/llm"), 200);
    // A released one was ended by its caller.
    reserve(&running, "/llm", "b", 30);
    let release = post(&running, "/v1/permits/release", r#"{"id": "b"}"#);
    assert_eq!(release.1, r#"{"released":true}"#);
    assert_eq!(settle(&running, "b", 10).0, 404);
}

const JOBS: &str = "limits: [{name: jobs, match: {path: /job}, rate: 100/h, concurrency: 50}]";

#[test]
fn without_room_nothing_is_decided_and_what_holds_nothing_needs_none() {
    let running = Running::in_still_time(JOBS, |settings| settings.bounds.max_reservations = 1);
    let ask = |path: &str, id: &str| {
        let text = format!(r#"{{"id": "{id}", "facts": {{"path": "{path}"}}}}"#);
        post(&running, "/v1/permits", &text).0
    };
    for number in 0..20 {
        assert_eq!(ask("/free", &format!("free {number}")), 200);
    }
    assert_eq!(ask("/job", "a"), 200);
    for number in 0..20 {
        assert_eq!(ask("/job", &format!("more {number}")), 503);
    }
    let (_, told) = post(&running, "/v1/peek", r#"{"facts": {"path": "/job"}}"#);
    let states = running.http().request("GET", "/v1/usage?path=/job", "", "");
    assert!(
        body(&states.1).contains(r#""limit":"100/h","of":100,"used":1,"#),
        "{told} {}",
        states.1
    );
    assert_eq!(
        post(&running, "/v1/permits/release", r#"{"id": "a"}"#).0,
        200
    );
    assert_eq!(ask("/job", "more"), 200);
}

#[test]
fn an_id_of_one_client_means_nothing_to_another() {
    let scratch = tollgate_testkit::temp_folder::TempFolder::new("owned-ids");
    let tokens = ["clients", "operators"].map(|name| {
        let path = scratch.path(name);
        std::fs::write(&path, format!("{name}-{}\n", "x".repeat(32))).expect("a file");
        tollgate_server::Secret::from_file(&path).expect("a token")
    });
    let running = Running::in_still_time(JOBS, |settings| {
        let [clients, operators] = tokens;
        (settings.http_client_token, settings.http_operator_token) =
            (Some(clients), Some(operators));
    });
    let post = |who: &str, path: &str, text: &str| {
        let token = format!("{who}-{}", "x".repeat(32));
        let fields = format!("{JSON}authorization: Bearer {token}\r\n");
        let (status, answer) = running.http().request("POST", path, &fields, text);
        (status, body(&answer).to_owned())
    };
    let job = r#"{"id": "a", "facts": {"path": "/job"}}"#;
    assert_eq!(post("clients", "/v1/permits", job).0, 200);
    let (release, settle) = (r#"{"id": "a"}"#, r#"{"id": "a", "spent": 5}"#);
    for (path, text, status, told) in [
        ("/v1/permits/release", release, 200, r#"{"released":false}"#),
        ("/v1/permits/renew", release, 404, ""),
        ("/v1/settle", settle, 404, ""),
    ] {
        let answer = post("operators", path, text);
        assert!(
            answer.0 == status && answer.1.contains(told),
            "{path}: {answer:?}"
        );
    }
    let answer = post("clients", "/v1/permits/release", release);
    assert_eq!(answer, (200, r#"{"released":true}"#.to_owned()));
}

/// Checks have no name by which their cost could be settled late, so once their estimates are over they hold nothing.
#[test]
fn estimates_of_plain_checks_need_room_only_until_their_time_is_over() {
    let running = Running::in_still_time(POLICY, |settings| {
        settings.bounds.max_reservations = 3;
        settings.bounds.reservation_timeout = Duration::from_secs(3_600);
    });
    let check = |path: &str| {
        let facts = format!(r#"{{"path": "{path}", "tenant": "acme", "estimate": "200"}}"#);
        post(&running, "/v1/check", &format!(r#"{{"facts": {facts}}}"#)).0
    };
    for round in 1..4 {
        assert_eq!(
            ["/llm", "/draft", "/llm", "/llm"].map(check),
            [200, 200, 200, 503]
        );
        pass(&running, Duration::from_secs(60));
        // Charged, or given back, as the rule says.
        assert_eq!(
            (used(&running, "/llm"), used(&running, "/draft")),
            (400 * round, 0)
        );
    }
}

//! Replicas that count separately: each enforces its share of every limit, wherever the limit comes from.

use tollgate_engine::Policy;

use crate::kit::Running;

fn post(running: &Running, path: &str, text: &str) -> (u16, String) {
    let json = "content-type: application/json\r\n";
    let (status, answer) = running.http().request("POST", path, json, text);
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, body.to_owned())
}

#[test]
fn limits_of_the_policy_are_divided() {
    let policy = "limits: [{name: calls, key: user, rate: 10/h}]";
    let running = Running::new(policy, |settings| settings.replicas = 2);
    let (_, told) = post(&running, "/v1/check", r#"{"facts": {"user": "ada"}}"#);
    assert!(told.contains("\"limit\":5,\"remaining\":4"), "{told}");
}

#[test]
fn limits_that_a_proxy_brings_along_are_divided() {
    let tree =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]";
    let running = Running::new(tree, |settings| settings.replicas = 3);
    let asked = |limit: &str| {
        let text = format!(
            r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "user", "value": "ada"}}]{limit}}}]}}"#
        );
        post(&running, "/json", &text).1
    };
    let told = asked("");
    assert!(told.contains("\"requestsPerUnit\":3,"), "{told}");
    let told = asked(r#", "limit": {"requestsPerUnit": 30, "unit": "MINUTE"}"#);
    assert!(told.contains("\"requestsPerUnit\":10,"), "{told}");
    assert!(told.contains("\"limitRemaining\":9"), "{told}");
}

#[test]
fn limits_that_a_command_brings_along_are_divided() {
    let running = Running::by(Policy::default(), |settings| settings.replicas = 4);
    let mut client = running.resp();
    let answer = |numbers: [i64; 5]| {
        numbers.iter().fold("*5\r\n".to_owned(), |text, number| {
            format!("{text}:{number}\r\n")
        })
    };
    // 16 at once and 30 a minute are 4 at once and 7.5 a minute each.
    for (left, reset) in [(3, 8), (2, 16), (1, 24), (0, 32)] {
        client.expect(
            "CL.THROTTLE a 15 30 60\r\n",
            &answer([0, 4, left, -1, reset]),
        );
    }
    client.expect("CL.THROTTLE a 15 30 60\r\n", &answer([1, 4, 0, 8, 32]));
    // What can't be divided is one each.
    client.expect("CL.THROTTLE b 0 1 60\r\n", &answer([0, 1, 0, -1, 240]));
}

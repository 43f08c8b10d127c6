//! Attacks from a security review: each once gave a wrong answer, or harmed other clients.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost_reflect::DescriptorPool;
use serde_json::Value;
use tollgate_testkit::redis::Server;

use crate::kit::{Running, read, secret};
use crate::rls_client::{Failed, Grpc};

pub(crate) const JSON: &str = "content-type: application/json\r\n";

pub(crate) fn post(running: &Running, path: &str, text: &str) -> (u16, Value) {
    let (status, answer) = running.http().request("POST", path, JSON, text);
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, serde_json::from_str(body).expect("JSON"))
}

/// What is used of each limit.
pub(crate) fn used(running: &Running, query: &str) -> Vec<u64> {
    let path = format!("/v1/usage?{query}");
    let (status, answer) = running.http().request("GET", &path, "", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let told: Vec<Value> = serde_json::from_str(body).expect("JSON");
    let each = told.iter().map(|one| one["used"].as_u64());
    each.map(|used| used.expect("a number")).collect()
}

/// Asks as Envoy does: about descriptors of one entry.
pub(crate) fn ask(running: &Running, descriptors: &str) -> Result<Value, Failed> {
    let set = include_bytes!("../../src/rls/descriptors.bin");
    let pool = DescriptorPool::decode(&set[..]).expect("descriptors");
    let question = format!(r#"{{"domain": "edge", "descriptors": [{descriptors}]}}"#);
    let method = (
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
    );
    Grpc::to(running).call_json(&pool, method, &question)
}

pub(crate) fn one(key: &str, value: &str, more: &str) -> String {
    format!(r#"{{"entries": [{{"key": "{key}", "value": "{value}"}}]{more}}}"#)
}

const TOKENS: &str = "limits: [{name: tokens, key: tenant, rate: 1000/h, \
    cost: {fact: max_tokens, default: 100, settle_within: 60s}}]";

#[test]
fn an_estimate_comes_back_if_the_trees_refuse() {
    let mut both = read(TOKENS);
    both.domains = read("domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: hour, requests_per_unit: 1}}]").domains;
    let running = Running::by(both, |_| {});
    let ada = one("tenant", "ada", "");
    assert_eq!(ask(&running, &ada).expect("an answer")["overallCode"], "OK");
    assert_eq!(used(&running, "tenant=ada"), [100]);
    for _ in 0..3 {
        let told = ask(&running, &ada).expect("an answer");
        assert_eq!(told["overallCode"], "OVER_LIMIT");
    }
    assert_eq!(used(&running, "tenant=ada"), [100]);
}

#[test]
fn what_cant_be_held_comes_back_once() {
    let running = Running::new(TOKENS, |settings| settings.bounds.max_reservations = 1);
    let spent = r#"{"id": "one", "facts": {"tenant": "ada"}}"#;
    assert_eq!(post(&running, "/v1/reserve", spent).0, 200);
    let settled = post(&running, "/v1/settle", r#"{"id": "one", "spent": 300}"#);
    assert_eq!(settled.0, 200);
    assert_eq!(used(&running, "tenant=ada"), [300]);
    let held = r#"{"id": "two", "facts": {"tenant": "bob"}}"#;
    assert_eq!(post(&running, "/v1/reserve", held).0, 200);
    let ada = r#"{"facts": {"tenant": "ada"}}"#;
    assert_eq!(post(&running, "/v1/check", ada).0, 503);
    let named = r#"{"id": "one", "facts": {"tenant": "ada"}}"#;
    assert_eq!(post(&running, "/v1/reserve", named).0, 503);
    let told = ask(&running, &one("tenant", "ada", ""));
    assert_eq!(told.map_err(|failed| failed.code), Err(8));
    assert_eq!(used(&running, "tenant=ada"), [300]);
}

#[test]
fn a_refund_of_what_came_back_by_itself_is_no_gift() {
    let policy = TOKENS.replace(
        "settle_within: 60s",
        "settle_within: 60s, unsettled: refund",
    );
    let running = Running::new(&policy, |settings| {
        settings.resp_operator_password = Some(secret("s"))
    });
    let spent = r#"{"id": "one", "facts": {"tenant": "ada"}}"#;
    assert_eq!(post(&running, "/v1/reserve", spent).0, 200);
    let settled = post(&running, "/v1/settle", r#"{"id": "one", "spent": 300}"#);
    assert_eq!(settled.0, 200);
    let ada = r#"{"facts": {"tenant": "ada"}}"#;
    assert_eq!(post(&running, "/v1/check", ada).0, 200);
    assert_eq!(used(&running, "tenant=ada"), [400]);
    let mut client = running.resp();
    client.expect("AUTH s\r\nTG.REFUND tenant=ada\r\n", "+OK\r\n+OK\r\n");
    assert_eq!(used(&running, "tenant=ada"), [300]);
}

/// Of two requests with the same facts, a denied one refunds its own estimate, not the other's.
#[test]
fn what_another_holds_isnt_given_back() {
    let policy = TOKENS.replace(
        "settle_within: 60s",
        "settle_within: 60s, unsettled: refund",
    );
    let mut both = read(&policy);
    both.domains = read("domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: hour, requests_per_unit: 500}}]").domains;
    let running = Running::by(both, |_| {});
    let cost = |hits: u32| one("tenant", "ada", &format!(r#", "hitsAddend": "{hits}""#));
    let told = ask(&running, &cost(400)).expect("an answer");
    assert_eq!(told["overallCode"], "OK");
    let told = ask(&running, &cost(150)).expect("an answer");
    assert_eq!(told["overallCode"], "OVER_LIMIT");
    assert_eq!(used(&running, "tenant=ada"), [400]);
}

#[test]
fn an_operator_gives_back_an_estimate() {
    let running = Running::new(TOKENS, |settings| {
        settings.resp_operator_password = Some(secret("s"))
    });
    let mut client = running.resp();
    let passed = "*12\r\n$7\r\nallowed\r\n:1\r\n";
    assert_eq!(client.ask("TG.CHECK tenant=ada\r\n", passed.len()), passed);
    let mut client = running.resp();
    client.expect("AUTH s\r\nTG.REFUND tenant=ada\r\n", "+OK\r\n+OK\r\n");
    assert_eq!(used(&running, "tenant=ada"), [0]);
}

#[test]
fn an_id_is_of_one_request() {
    let policy = "limits: [{name: jobs, key: tenant, concurrency: 1}]";
    let running = Running::new(policy, |_| {});
    let job = |tenant: &str, more: &str| {
        format!(r#"{{"id": "job", "facts": {{"tenant": "{tenant}"}}{more}}}"#)
    };
    let (status, first) = post(&running, "/v1/permits", &job("a", ""));
    assert_eq!((status, &first["allowed"]), (200, &true.into()));
    assert_eq!(post(&running, "/v1/permits", &job("a", "")), (200, first));
    assert_eq!(used(&running, "tenant=a"), [1]);
    for other in [job("b", ""), job("a", r#", "cost": 2"#)] {
        let (status, told) = post(&running, "/v1/permits", &other);
        assert_eq!(status, 409, "{told}");
    }
    assert_eq!(used(&running, "tenant=b"), [0]);
}

#[test]
fn a_look_tells_that_the_store_is_gone() {
    let server = Server::start();
    let policy = "limits: [{name: daily, key: user, quota: 5/day}]";
    let running = Running::on_store(policy, &server.url(), |_| {});
    let ada = r#"{"facts": {"user": "ada"}}"#;
    assert_eq!(post(&running, "/v1/peek", ada).0, 200);
    server.kill();
    let (status, told) = post(&running, "/v1/peek", ada);
    assert_eq!(status, 503, "{told}");
    let (mut client, told) = (running.resp(), "-UNAVAILABLE the store");
    assert_eq!(client.ask("TG.PEEK user=ada\r\n", told.len()), told);
    let told = ask(&running, &one("user", "ada", r#", "hitsAddend": 0"#));
    assert_eq!(told.map_err(|failed| failed.code), Err(14));
    let (status, told) = running.http().request("GET", "/v1/usage?user=ada", "", "");
    assert_eq!(status, 503, "{told}");
}

#[test]
fn gifts_that_a_store_didnt_take_arent_told_as_given() {
    let server = Server::start();
    let policy = "limits: [{name: daily, key: user, quota: 5/day}]";
    let running = Running::on_store(policy, &server.url(), |settings| {
        settings.resp_operator_password = Some(secret("s"));
        settings.http_operator_token = Some(secret("t"));
    });
    let ada = r#"{"facts": {"user": "ada"}}"#;
    assert_eq!(post(&running, "/v1/check", ada).0, 200);
    server.kill();
    let mut client = running.resp();
    client.expect("AUTH s\r\n", "+OK\r\n");
    for gift in ["TG.RESET user=ada\r\n", "TG.REFUND user=ada\r\n"] {
        assert_eq!(client.ask(gift, 1), "-", "{gift:?}");
        let why = "UNAVAILABLE the store can't be asked, so it isn't done, or not everywhere: ask again once it can\r\n";
        client.expect("", why);
    }
    let fields = format!("{JSON}authorization: Bearer t\r\n");
    let (status, told) = running.http().request("POST", "/v1/refund", &fields, ada);
    assert_eq!(status, 503, "{told}");
}

#[test]
fn costs_of_64_bits_are_never_more_than_they_are() {
    let server = Server::start();
    let policy =
        "limits: [{name: hourly, key: user, rate: 10/h}, {name: daily, key: user, quota: 20/day}]";
    let change = |settings: &mut tollgate_server::Settings| {
        settings.resp_operator_password = Some(secret("s"))
    };
    for running in [
        Running::new(policy, change),
        Running::on_store(policy, &server.url(), change),
    ] {
        let mut client = running.resp();
        client.expect("AUTH s\r\n", "+OK\r\n");
        let user = format!("user={}", std::process::id());
        for most in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 53) + 1, 11] {
            let told = "*16\r\n$7\r\nallowed\r\n:0\r\n";
            let mut client = running.resp();
            assert_eq!(
                client.ask(&format!("TG.CHECK {user} COST {most}\r\n"), told.len()),
                told
            );
        }
        assert_eq!(used(&running, &user), [0, 0]);
        let told = "*12\r\n$7\r\nallowed\r\n:1\r\n";
        assert_eq!(
            running
                .resp()
                .ask(&format!("TG.CHECK {user} COST 9\r\n"), told.len()),
            told
        );
        client.expect(&format!("TG.REFUND {user} COST 2\r\n"), "+OK\r\n");
        assert_eq!(used(&running, &user), [7, 7]);
        client.expect(
            &format!("TG.REFUND {user} COST {}\r\n", u64::MAX),
            "+OK\r\n",
        );
        assert_eq!(used(&running, &user), [0, 0]);
        client.expect(
            &format!("TG.REFUND {user} COST {}\r\n", u64::MAX),
            "+OK\r\n",
        );
        assert_eq!(used(&running, &user), [0, 0]);
        assert_eq!(
            running
                .resp()
                .ask(&format!("TG.CHECK {user} COST 11\r\n"), told.len()),
            "*16\r\n$7\r\nallowed\r\n:0\r\n"
        );
        assert_eq!(
            running
                .resp()
                .ask(&format!("TG.CHECK {user} COST 10\r\n"), told.len()),
            told
        );
        assert_eq!(used(&running, &user), [10, 10]);
    }
}

#[test]
fn whoever_gives_back_isnt_refused_and_takes_no_slot() {
    let tree = "domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: hour, requests_per_unit: 100, concurrency: 1}}]";
    let running = Running::new(tree, |_| {});
    let told =
        |descriptors: &str| ask(&running, descriptors).expect("an answer")["overallCode"].clone();
    let ada = one("tenant", "ada", "");
    let beside = format!("{ada}, {}", one("path", "/x", ""));
    assert_eq!(told(&beside), "OK");
    assert_eq!(told(&ada), "OVER_LIMIT");
    // It holds nothing by this name, so it frees nothing of another's.
    let back = one("tenant", "ada", r#", "isNegativeHits": true"#);
    assert_eq!(told(&back), "OK");
    assert_eq!(told(&ada), "OVER_LIMIT");
    // A look is refused, if a request would be, and takes nothing.
    assert_eq!(told(&one("tenant", "bob", r#", "hitsAddend": 0"#)), "OK");
    assert_eq!(told(&one("tenant", "bob", "")), "OK");
}

/// Three protocols, one key: what passes in all is what passes.
#[test]
fn all_protocols_spend_of_one_limit() {
    let server = Server::start();
    let policy =
        "limits: [{name: hourly, key: user, rate: 60/h}, {name: daily, key: user, quota: 50/day}]";
    for running in [
        Running::new(policy, |_| {}),
        Running::on_store(policy, &server.url(), |_| {}),
    ] {
        let passed = std::thread::scope(|scope| {
            let http = (0..3).map(|_| {
                scope.spawn(|| {
                    let ada = r#"{"facts": {"user": "ada"}}"#;
                    (0..20)
                        .filter(|_| post(&running, "/v1/check", ada).0 == 200)
                        .count()
                })
            });
            let mut all: Vec<_> = http.collect();
            all.extend((0..3).map(|_| {
                scope.spawn(|| {
                    let one = "*12\r\n$7\r\nallowed\r\n:1\r\n";
                    (0..20)
                        .filter(|_| running.resp().ask("TG.CHECK user=ada\r\n", one.len()) == one)
                        .count()
                })
            }));
            all.extend((0..3).map(|_| {
                scope.spawn(|| {
                    let ada = one("user", "ada", "");
                    (0..20)
                        .filter(|_| ask(&running, &ada).expect("an answer")["overallCode"] == "OK")
                        .count()
                })
            }));
            let each = all.into_iter().map(|one| one.join().expect("no panic"));
            each.sum::<usize>()
        });
        assert_eq!(passed, 50);
        assert_eq!(used(&running, "user=ada"), [50, 50]);
    }
}

#[test]
fn edges_of_throttle_are_the_same_on_both() {
    let server = Server::start();
    let (here, there) = (
        Running::new("limits: [{name: all, rate: 1/h}]", |_| {}),
        Running::on_store("limits: [{name: all, rate: 1/h}]", &server.url(), |_| {}),
    );
    for (number, words) in [
        "9223372036854775807 1 1",
        "0 9223372036854775807 1",
        "0 1 9223372036854775807",
        "0 1 1 9223372036854775807",
        "5 1 60 6",
        "5 1 60 7",
        "5 1 60 0",
        "0 0 1",
        "0 1 0",
        "-1 1 1",
        "1 -1 1",
        "1 1 1 -1",
        "1 1 1 1 1",
        "99999 1 63072000",
        "99999 1 63072001",
        "+5 1 60",
        "5.0 1 60",
        "0 1000000000 1 1",
        "9223372035 1 1",
        "9223372036 1 1",
        "146235603 1 63072000",
    ]
    .into_iter()
    .enumerate()
    {
        let say = format!("CL.THROTTLE edge{number} {words}\r\nQUIT\r\n");
        let told = [&here, &there].map(|running| {
            let mut client = running.resp();
            client.0.write_all(say.as_bytes()).expect("written");
            client.rest()
        });
        assert_eq!(told[0], told[1], "{words}");
    }
}

#[test]
fn what_is_settled_is_what_was_spent() {
    let server = Server::start();
    for running in [
        Running::new(TOKENS, |_| {}),
        Running::on_store(TOKENS, &server.url(), |_| {}),
    ] {
        for (spent, told) in [
            (0, 0),
            (1, 1),
            (100, 100),
            (101, 101),
            (1_000, 1_000),
            (1 << 53, 1_000),
            (u64::MAX, 1_000),
        ] {
            let tenant = format!("t{spent}");
            let begin = format!(r#"{{"id": "{tenant}", "facts": {{"tenant": "{tenant}"}}}}"#);
            assert_eq!(post(&running, "/v1/reserve", &begin).0, 200);
            let end = format!(r#"{{"id": "{tenant}", "spent": {spent}}}"#);
            let (status, first) = post(&running, "/v1/settle", &end);
            assert_eq!(status, 200);
            // A repeated one gets the answer of the first, and gives nothing back once more.
            assert_eq!(post(&running, "/v1/settle", &end), (200, first));
            let query = format!("tenant={tenant}");
            assert!(
                (0..500).any(|_| used(&running, &query) == [told]),
                "{spent}: {:?}",
                used(&running, &query)
            );
        }
    }
}

/// Permits that are acquired by one protocol and released by another never exceed the limit.
#[test]
fn slots_are_one_count_for_all_protocols() {
    let server = Server::start();
    let policy = "limits: [{name: jobs, key: user, rate: 100000/h, concurrency: 3}]";
    let change = |settings: &mut tollgate_server::Settings| {
        settings.resp_operator_password = Some(secret("s"))
    };
    for running in [
        Running::new(policy, change),
        Running::on_store(policy, &server.url(), change),
    ] {
        let (running, now) = (&running, AtomicUsize::new(0));
        let (ada, back) = (
            one("user", "ada", ""),
            one("user", "ada", r#", "isNegativeHits": true"#),
        );
        let passes: [&(dyn Fn() -> bool + Sync); 3] = [
            &|| ask(running, &ada).expect("an answer")["overallCode"] == "OK",
            &|| post(running, "/v1/check", r#"{"facts": {"user": "ada"}}"#).0 == 200,
            &|| {
                let passed = "*12\r\n$7\r\nallowed\r\n:1\r\n";
                running.resp().ask("TG.CHECK user=ada\r\n", passed.len()) == passed
            },
        ];
        let ends: [&(dyn Fn() + Sync); 2] =
            [&|| drop(ask(running, &back).expect("an answer")), &|| {
                let told = "+OK\r\n+OK\r\n";
                running
                    .resp()
                    .expect("AUTH s\r\nTG.REFUND user=ada\r\n", told);
            }];
        std::thread::scope(|scope| {
            for number in 0..6 {
                let now = &now;
                scope.spawn(move || {
                    for round in 0..30 {
                        if passes[(number + round) % 3]() {
                            let held = now.fetch_add(1, Ordering::SeqCst);
                            assert!(held < 3, "{held} before it");
                            now.fetch_sub(1, Ordering::SeqCst);
                            ends[(number * round) % 2]();
                        }
                    }
                });
            }
        });
        assert!((0..500).any(|_| used(running, "user=ada") == [0, 0]));
    }
}

#[test]
fn auth_takes_a_user_and_a_password() {
    let policy = "limits: [{name: all, rate: 9/h}]";
    let running = Running::new(policy, |settings| {
        settings.resp_operator_password = Some(secret("s"))
    });
    let mut client = running.resp();
    client.expect("AUTH a b s\r\n", "-ERR syntax error\r\n");
    client.expect("TG.RESET a=b\r\n", "-NOAUTH Authentication required.\r\n");
    client.expect(
        "AUTH a s\r\n",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    client.expect("AUTH default s\r\n", "+OK\r\n");
    client.expect("TG.RESET a=b\r\n", "+OK\r\n");
    client.expect("RESET\r\n", "+RESET\r\n");
    client.expect("TG.RESET a=b\r\n", "-NOAUTH Authentication required.\r\n");
}

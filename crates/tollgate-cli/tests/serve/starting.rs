//! Starts and stops: the messages, commands that can be copied from them, and which policies are accepted.

use std::process::Command;

use serde_json::Value;
use tollgate_testkit::external_programs::buf;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, Service, file};

/// Runs a line as somebody who copied it would: the exit code must be 0.
fn run(line: &str) -> String {
    let buf = buf();
    let folder = buf.parent().expect("a folder").canonicalize();
    let path = std::env::var("PATH").expect("a path");
    let ran = Command::new("sh")
        .args(["-c", line])
        .env(
            "PATH",
            format!("{}:{path}", folder.expect("a folder").display()),
        )
        .output()
        .expect("sh runs");
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{line}: {errors}");
    String::from_utf8(ran.stdout).expect("text")
}

/// The three lines work as they are printed.
fn lines_work(service: &Service) {
    let said = service.said("/v1/check");
    let lines: Vec<_> = said
        .lines()
        .skip_while(|line| *line != "try:")
        .skip(1)
        .collect();
    let [redis_cli, grpc, curl] = lines[..] else {
        panic!("three lines: {said}");
    };
    let answer = run(redis_cli);
    assert!(answer.contains("allowed\n1\nrule\nper-user\n"), "{answer}");
    let answer: Value = serde_json::from_str(&run(grpc)).expect("JSON");
    assert_eq!(answer["overallCode"], "OK", "{answer}");
    assert_eq!(answer["statuses"][0]["currentLimit"]["name"], "per-user");
    let answers = run(curl);
    let answers: Vec<_> = answers.lines().collect();
    assert_eq!(answers.len(), 11, "{answers:?}");
    let last = answers[10]
        .strip_suffix(" 429")
        .expect("a denial in the end");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(
        (&last["allowed"], &last["rule"]),
        (&false.into(), &"per-user".into())
    );
}

#[test]
fn without_a_policy_it_says_what_to_try_and_that_works_as_it_is_printed() {
    let service = Service::start(&ANY);
    lines_work(&service);
    let said = service.said("try:");
    assert!(said.contains("serves an example policy"), "{said}");
    for name in ["HTTP  on ", "gRPC  on ", "RESP  on ", "admin on "] {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(
        said.contains("replicas count apart: --replicas N divides"),
        "{said}"
    );
    assert_eq!(service.warned(), "", "there is nothing to warn of");
}

#[test]
fn what_to_try_works_on_sockets_of_the_file_system() {
    let scratch = TempFolder::new("sockets");
    let [http, grpc, resp] = ["h", "g", "r"].map(|name| {
        let path = scratch.path(name);
        format!("unix:{}", path.display())
    });
    let options = [
        "--http", &http, "--grpc", &grpc, "--resp", &resp, "--admin", "off",
    ];
    let service = Service::start(&options);
    assert_eq!(service.ready["http"], http.as_str());
    lines_work(&service);
    assert!(service.end("TERM").success());
    assert!(!scratch.path("h").exists(), "sockets are removed");
}

#[test]
fn the_ready_file_has_the_real_addresses() {
    let service = Service::start(&ANY);
    for name in ["http", "grpc", "resp", "admin"] {
        let address = service.ready[name].as_str().expect("an address");
        let port = address
            .strip_prefix("127.0.0.1:")
            .expect("this machine only");
        assert_ne!(port, "0");
        std::net::TcpStream::connect(address).expect("a listener");
    }
    assert_eq!(service.ready["pid"], service.pid());
    let token = service.ready["admin_token_file"].as_str().expect("a file");
    assert!(std::path::Path::new(token).exists(), "{token}");
    assert_eq!(service.ready.as_object().expect("an object").len(), 6);
}

#[test]
fn a_ready_file_of_a_service_before_isnt_taken_for_this_ones() {
    let scratch = TempFolder::new("stale");
    let stale = file(&scratch, "ready.json", "{\"pid\":1}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let http = taken.local_addr().expect("an address").to_string();
    let path = stale.to_str().expect("text");
    let (code, _) = crate::kit::fails(&["--http", &http, "--ready-file", path], |_| {});
    assert_eq!(code, 1);
    assert!(!stale.exists());
}

#[test]
fn signals_end_it_well_while_clients_are_connected() {
    for signal in ["TERM", "INT"] {
        let service = Service::start(&ANY);
        let each = ["http", "grpc", "resp"].map(|name| {
            let address = service.ready[name].as_str().expect("an address");
            std::net::TcpStream::connect(address).expect("a connection")
        });
        let status = service.end(signal);
        assert_eq!(status.code(), Some(0), "{signal}");
        drop(each);
    }
}

const TREE: &str =
    "domain: DOMAIN\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]";

#[test]
fn a_folder_of_theirs_serves_several_domains() {
    let scratch = TempFolder::new("theirs");
    for domain in ["edge", "api"] {
        let name = format!("config/{domain}.yaml");
        file(&scratch, &name, &TREE.replace("DOMAIN", domain));
    }
    let folder = scratch.path("config");
    let mut options = vec![folder.to_str().expect("text")];
    options.extend(ANY);
    let service = Service::start(&options);
    for domain in ["edge", "api"] {
        let question = format!(
            r#"{{"domain": "{domain}", "descriptors": [{{"entries": [{{"key": "user", "value": "ada"}}]}}]}}"#
        );
        assert_eq!(service.post("/json", &question).0, 200, "{domain}");
        assert_eq!(service.post("/json", &question).0, 429, "{domain}");
    }
    let said = service.said("admin on");
    assert!(
        said.contains(&format!("serves {}", folder.display())),
        "{said}"
    );
    assert!(!said.contains("try:"), "{said}");
}

#[test]
fn a_folder_of_ours_and_one_file_are_served() {
    let scratch = TempFolder::new("ours");
    for (name, fact) in [("a", "user"), ("b", "tenant")] {
        let text = format!("limits: [{{name: by-{fact}, key: {fact}, rate: 1/h}}]");
        file(&scratch, &format!("policies/{name}.yaml"), &text);
    }
    for (path, refused) in [("policies", [429, 429]), ("policies/b.yaml", [200, 429])] {
        let path = scratch.path(path);
        let mut options = vec![path.to_str().expect("text")];
        options.extend(ANY);
        let service = Service::start(&options);
        for (fact, status) in ["user", "tenant"].into_iter().zip(refused) {
            let question = format!(r#"{{"facts": {{"{fact}": "ada"}}}}"#);
            assert_eq!(service.post("/v1/check", &question).0, 200, "{fact}");
            assert_eq!(service.post("/v1/check", &question).0, status, "{fact}");
        }
    }
}

#[test]
fn what_may_not_be_meant_by_a_policy_is_told_at_the_start() {
    let scratch = TempFolder::new("doubtful");
    let text = "limits: [{name: login, key: [ip], rate: 5/m}]";
    let policy = file(&scratch, "policy.yaml", text);
    let path = policy.to_str().expect("text");
    let mut options = vec![path];
    options.extend(ANY);
    let line =
        format!("warning: {path} has 1 warning about its limits: tollgate check {path} shows it\n");
    assert_eq!(Service::start(&options).told(&line), line);
}

#[test]
fn quotas_that_a_restart_forgets_are_told_at_the_start() {
    let scratch = TempFolder::new("quotas");
    let text = "limits: [{name: monthly, key: tenant, quota: 5/month}]\n\
                tiers: {free: {quota: 5/day}}\ndefault_tier: free";
    let policy = file(&scratch, "policy.yaml", text);
    let mut options = vec![policy.to_str().expect("text")];
    options.extend(ANY);
    let warned = Service::start(&options).told("in a store\n");
    assert_eq!(
        warned,
        "warning: quotas of \"monthly\" and 1 more are kept in memory: a restart forgets what was used; --state \
         DIR keeps it in a folder, --backend URL in a store\n"
    );
}

#[test]
fn replicas_say_by_what_they_divide() {
    let scratch = TempFolder::new("replicas");
    let text =
        "limits: [{name: calls, key: user, rate: 9/h}, {name: jobs, key: job, concurrency: 2}]";
    let policy = file(&scratch, "policy.yaml", text);
    let mut options = vec![policy.to_str().expect("text"), "--replicas", "3"];
    options.extend(ANY);
    let service = Service::start(&options);
    let said = service.said("admin on");
    assert!(
        said.contains("replicas count apart: each limit is divided by 3\n"),
        "{said}"
    );
    let ada = r#"{"facts": {"user": "ada"}}"#;
    let passed = (0..9).filter(|_| service.post("/v1/check", ada).0 == 200);
    assert_eq!(passed.count(), 3);
    service.warns(
        "warning: \"jobs\": 2 concurrent over 3 replicas is 1 each: 3 in all instead of 2; a multiple of 3 can be divided\n",
    );
    service.warns(
        "warning: slots of \"jobs\" that are taken over Envoy's protocol or Redis' are leases",
    );
    // A policy that is put in force later is divided by the same rule, and told of.
    let later = "limits: [{name: calls, key: user, rate: 7/h, algorithm: sliding-log}]";
    std::fs::write(&policy, later).expect("a file");
    service.signal("HUP");
    service.warns(
        "warning: \"calls\": 7/h over 3 replicas is 2 each: 6 in all instead of 7; a multiple of 3 can be divided\n",
    );
}

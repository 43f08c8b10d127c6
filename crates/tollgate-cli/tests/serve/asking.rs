//! `tollgate ask`: one request by each protocol, its printed answer and its exit code.

use serde_json::Value;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, Service, file, tollgate};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 2/day}]";

/// Both outputs, and the exit code.
fn ask(arguments: &[&str]) -> (i32, String) {
    let run = tollgate().arg("ask").args(arguments).output();
    let run = run.expect("tollgate starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        run.status.code().expect("a code"),
        text(run.stdout) + &text(run.stderr),
    )
}

#[test]
fn a_request_is_asked_by_each_protocol_and_told_by_the_exit_code() {
    let scratch = TempFolder::new("asking");
    let policy = file(&scratch, "policy.yaml", POLICY);
    let mut options = vec![policy.to_str().expect("text")];
    options.extend(ANY);
    let service = Service::start(&options);
    for via in ["http", "resp", "grpc"] {
        let to = service.ready[via].as_str().expect("an address");
        let user = format!("user={via}");
        let options = [&*user, "--via", via, "--to", to];
        let asked = || ask(&options);
        let (code, said) = asked();
        assert_eq!(code, 0, "{said}");
        assert!(said.starts_with("allowed by per-user\n"), "{said}");
        assert!(said.contains("\n  remaining 1\n"), "{said}");
        if via != "grpc" {
            let (code, said) = ask(&[&options[..], &["--peek"]].concat());
            assert!(code == 0 && said.contains("\n  remaining 1\n"), "{said}");
        }
        assert_eq!(asked().0, 0);
        let (code, said) = asked();
        assert_eq!(code, 3, "{said}");
        assert!(said.starts_with("denied by per-user\n"), "{said}");
        let (code, said) = ask(&[&options[..], &["--json"]].concat());
        let told: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((code, &told["allowed"]), (3, &false.into()), "{said}");
    }
    // What no limit is for passes, and that is said.
    let http = service.ready["http"].as_str().expect("an address");
    let (code, said) = ask(&["usr=ada", "--to", http]);
    assert_eq!(code, 0);
    assert!(
        said.starts_with("allowed: no limit is for these facts, or they are exempt or bypassed\n"),
        "{said}"
    );
}

#[test]
fn who_cant_be_asked_and_what_is_wrong_have_codes_of_their_own() {
    let service = Service::start(&ANY);
    let resp = service.ready["resp"].as_str().expect("an address");
    let (code, said) = ask(&["user=ada", "--via", "http", "--to", resp]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("it doesn't speak HTTP"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let free = taken.local_addr().expect("an address").to_string();
    drop(taken);
    for via in ["http", "resp", "grpc"] {
        let (code, said) = ask(&["user=ada", "--via", via, "--to", &free]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("is tollgate serve running there?"), "{said}");
    }
    assert_eq!(ask(&["ada"]).0, 2);
    assert_eq!(ask(&["user=ada", "--via", "grpc", "--peek"]).0, 2);
    assert_eq!(ask(&[]).0, 2);
}

//! `tollgate serve --check` and `--print-policy`: the outcome of a start, without one.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tollgate_testkit::certificates::Authority;
use tollgate_testkit::redis::Server;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, Service, file, tollgate};

/// Runs the check with these options on free ports: the exit code, standard output and standard error.
fn run(options: &[&str]) -> (i32, String, String) {
    let mut command = tollgate();
    command.arg("serve").args(options);
    let ran = command.output().expect("tollgate runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = ran.status.code().expect("an exit code");
    (code, text(ran.stdout), text(ran.stderr))
}

fn check(options: &[&str]) -> (i32, String) {
    let mut all = Vec::new();
    // An option that is given takes the place of one of these.
    for pair in ANY.chunks(2) {
        if !options.contains(&pair[0]) {
            all.extend(pair);
        }
    }
    all.extend(options);
    all.push("--check");
    let (code, out, _) = run(&all);
    (code, out)
}

/// The lines of an output, without those that differ by machine.
fn lines(out: &str) -> Vec<&str> {
    let lines = out.lines();
    lines
        .filter(|line| !line.contains("file descriptors: "))
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn all_is_well() {
    let scratch = TempFolder::new("check-well");
    let policy = file(
        &scratch,
        "policy.yaml",
        "limits: [{name: a, key: user, rate: 5/s}]\n",
    );
    let state = scratch.path("state");
    fs::create_dir(&state).expect("a folder");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("a mode");
    let (code, out) = check(&[text(&policy), "--state", text(&state)]);
    let (policy, state) = (policy.display(), state.display());
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(scratch.folder()).expect("it"));
    assert_eq!(
        lines(&out),
        [
            "ok      settings: make sense together",
            &format!("ok      policy: {policy} can be put in force"),
            "ok      secrets: can be read",
            "ok      HTTP: 127.0.0.1:0 is free",
            "ok      gRPC: 127.0.0.1:0 is free",
            "ok      RESP: 127.0.0.1:0 is free",
            "ok      admin: 127.0.0.1:0 is free",
            &format!(
                "ok      state: {state} can be written; it belongs to user {owner}, with mode 0700"
            ),
            "it could start",
        ]
    );
    assert_eq!(code, 0);
    // Nothing is left of it.
    let left = fs::read_dir(scratch.path("state")).expect("a folder");
    assert_eq!(left.count(), 0);
}

#[test]
fn the_policy_is_told_of_with_all_errors_and_warnings() {
    let scratch = TempFolder::new("check-policy");
    let wrong = file(
        &scratch,
        "wrong.yaml",
        "limits:\n- {name: a, raet: 5/s}\n- {name: b, rate: 5/x}\n",
    );
    let (code, out) = check(&[text(&wrong)]);
    assert_eq!(code, 2);
    let failed = out
        .lines()
        .filter(|line| line.starts_with("failed  policy: "));
    assert!(failed.count() >= 2, "{out}");
    let shown = wrong.display();
    assert!(
        out.contains(&format!(
            "failed  policy: {shown}:2:13: unknown field \"raet\""
        )),
        "{out}"
    );
    let warned = file(
        &scratch,
        "warned.yaml",
        "limits: [{name: a, key: user, rate: 10/s burst 80}]\n",
    );
    let (code, out) = check(&[text(&warned)]);
    assert_eq!(code, 0, "{out}");
    let shown = warned.display();
    assert!(
        out.contains(&format!("warning policy: {shown}:1:")),
        "{out}"
    );
    let missing = scratch.path("missing.yaml");
    assert_eq!(check(&[text(&missing)]).0, 2);
    assert_eq!(check(&["--require-store"]).0, 2);
    assert_eq!(check(&["--admin", "0.0.0.0:0"]).0, 2);
}

#[test]
fn certificates_and_secrets() {
    let scratch = TempFolder::new("check-secrets");
    let authority = Authority::new(scratch.folder(), "authority");
    let (one, other) = (authority.server("one"), authority.server("other"));
    let (certificate, key) = (text(&one.certificate), text(&one.key));
    let (code, out) = check(&["--tls-cert", certificate, "--tls-key", key]);
    assert!(out.contains(" certificate: "), "{out}");
    assert_eq!(code, 0, "{out}");
    let (code, out) = check(&["--tls-cert", certificate, "--tls-key", text(&other.key)]);
    assert!(out.contains("failed  certificate: "), "{out}");
    assert_eq!(code, 3, "{out}");
    let (code, out) = check(&["--http-token-file", "no/such/file"]);
    assert!(
        out.contains("failed  secrets: --http-token-file: "),
        "{out}"
    );
    assert_eq!(code, 3, "{out}");
}

#[test]
fn the_store() {
    let store = Server::start();
    let url = store.url();
    let (code, out) = check(&["--backend", &url]);
    assert!(
        out.contains(&format!("ok      store: {url} answers\n")),
        "{out}"
    );
    assert_eq!(code, 0, "{out}");
    drop(store);
    let (code, out) = check(&["--backend", &url]);
    assert!(out.contains(&format!("failed  store: {url}: ")), "{out}");
    assert_eq!(code, 4, "{out}");
    // A start without it would be allowed; what else is wrong is told, too, and the first area is the code.
    let (code, out) = check(&["--backend", &url, "--http-token-file", "no/such/file"]);
    assert!(
        out.contains("failed  store: ") && out.contains("failed  secrets: "),
        "{out}"
    );
    assert_eq!(code, 3, "{out}");
}

#[test]
fn ports_and_folders() {
    let scratch = TempFolder::new("check-ports");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, out) = check(&["--grpc", &address]);
    let line = format!(
        "failed  gRPC: {address} is in use by another process: choose another address for gRPC by --grpc, or --grpc off\n"
    );
    assert!(out.contains(&line), "{out}");
    assert_eq!(code, 5, "{out}");
    drop(taken);
    let port = address.rsplit(':').next().expect("a port");
    let all = format!("0.0.0.0:{port}");
    // Each is free by itself, but not both at once.
    assert_eq!(check(&["--grpc", &address]).0, 0);
    assert_eq!(check(&["--http", &all, "--grpc", &address]).0, 5);
    let file = file(&scratch, "no-folder", "");
    let (code, out) = check(&["--state", text(&file)]);
    assert!(out.contains("failed  state: can't keep state in "), "{out}");
    assert_eq!(code, 5, "{out}");
    let socket = format!("unix:{}", file.display());
    assert_eq!(check(&["--resp", &socket]).0, 5);
    let ready = scratch.path("no/such/ready.json");
    assert_eq!(check(&["--ready-file", text(&ready)]).0, 5);
}

#[test]
fn a_service_that_runs_has_its_folder_and_its_ports() {
    let scratch = TempFolder::new("check-running");
    let state = scratch.path("state");
    let mut options = ANY.to_vec();
    options.extend(["--state", text(&state)]);
    let service = Service::start(&options);
    let http = service.ready["http"].as_str().expect("an address");
    let (code, out) = check(&["--http", http, "--state", text(&state)]);
    assert!(out.contains(" is in use by process "), "{out}");
    assert!(
        out.contains(&format!("failed  HTTP: {http} is in use")),
        "{out}"
    );
    assert_eq!(code, 5, "{out}");
    // It serves on.
    assert_eq!(service.get("http", "/healthz").0, 200);
}

#[test]
fn the_policy_that_would_be_in_force_is_shown() {
    let scratch = TempFolder::new("print-policy");
    let (code, out, _) = run(&["--print-policy"]);
    assert_eq!(code, 0);
    let example = file(&scratch, "example.yaml", &out);
    let (code, again, _) = run(&[text(&example), "--print-policy"]);
    assert_eq!((code, again), (0, out));
    file(&scratch, "more.yaml", "limits: [{name: more, rate: 5/s}]\n");
    let first = "include: more.yaml\nlimits: [{name: first, concurrency: 2}]\n";
    let first = file(&scratch, "first.yaml", first);
    let (code, out, _) = run(&[text(&first), "--print-policy", "--replicas", "3"]);
    let folder = scratch.folder().display();
    assert_eq!(
        out,
        format!(
            "# of each limit one of 3 replicas enforces its part (--replicas)\n\
             # \"more\": a burst of 5 over 3 replicas is 1 each: 3 in all instead of 5; a multiple of 3 can be divided\n\
             # \"first\": 2 concurrent over 3 replicas is 1 each: 3 in all instead of 2; a multiple of 3 can be divided\n\
             limits:\n\
             # {folder}/more.yaml\n- {{\"name\": \"more\", \"rate\": \"5/s\"}}\n\
             # {folder}/first.yaml\n- {{\"name\": \"first\", \"concurrency\": 2}}\n"
        )
    );
    assert_eq!(code, 0);
    let (code, _, err) = run(&["--print-policy", "--check"]);
    assert!(err.contains("cannot be used with"), "{err}");
    assert_eq!(code, 2);
}

/// A policy that is off, or in shadow mode, is reported at each start.
#[test]
fn a_policy_that_denies_nothing_is_told_of() {
    let scratch = TempFolder::new("check-unenforced");
    let limits = "limits: [{name: a, key: user, rate: 5/s}]\n";
    for (text_of_it, expect) in [
        (
            format!("mode: off\n{limits}"),
            Some("the policy says mode: off, so nothing is limited"),
        ),
        (
            format!("mode: shadow\n{limits}"),
            Some("the policy says mode: shadow, so limits are counted and nothing is denied"),
        ),
        (
            "limits: [{name: a, key: user, rate: 5/s, mode: shadow}, {name: b, rate: 9/s, mode: off}]\n"
                .to_owned(),
            Some("all rules of the policy are off or in shadow, so nothing is denied"),
        ),
        (
            "limits: [{name: a, key: user, rate: 5/s, mode: {enforce: 10%}}]\n".to_owned(),
            None,
        ),
    ] {
        let policy = file(&scratch, "policy.yaml", &text_of_it);
        let (code, out) = check(&[text(&policy)]);
        let told: Vec<_> = out
            .lines()
            .filter_map(|line| line.strip_prefix("warning start: "))
            .collect();
        assert_eq!((code, told), (0, Vec::from_iter(expect)), "{text_of_it}");
    }
}

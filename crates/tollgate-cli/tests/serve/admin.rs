//! `tollgate admin` for operators: the real command against a real service.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_testkit::certificates::Authority;
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, fails, file, tollgate};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 3/h}]\n";

/// Runs a command: its exit code, standard output and standard error.
fn run(mut command: Command) -> (i32, String, String) {
    let ran = command.output().expect("tollgate runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = ran.status.code().expect("an exit code");
    (code, text(ran.stdout), text(ran.stderr))
}

/// A field of the service's ready file.
fn told<'s>(service: &'s Service, name: &str) -> &'s str {
    service.ready[name].as_str().expect("text")
}

fn asked(service: &Service, arguments: &[&str]) -> (i32, String, String) {
    let mut command = tollgate();
    command.args(["admin", "--admin", told(service, "admin")]);
    run({
        command.args(arguments);
        command
    })
}

/// The output of a command that succeeds.
#[track_caller]
fn done(service: &Service, arguments: &[&str]) -> String {
    let (code, out, error) = asked(service, arguments);
    assert_eq!((code, error.as_str()), (0, ""), "{arguments:?}: {out}");
    out
}

fn check(service: &Service, user: &str) -> u16 {
    let body = format!("{{\"facts\":{{\"user\":\"{user}\"}}}}");
    service.post("/v1/check", &body).0
}

/// A service by the policy above, and its file.
fn serving(scratch: &TempFolder, more: &[&str]) -> Service {
    let policy = file(scratch, "policy.yaml", POLICY);
    let mut options = vec![policy.to_str().expect("text")];
    options.extend(ANY);
    options.extend(more);
    Service::start(&options)
}

#[test]
fn one_user_is_refused_look_explain_reset() {
    let scratch = TempFolder::new("admin-story");
    let service = serving(&scratch, &[]);
    let policy = scratch.path("policy.yaml");
    while check(&service, "ada") == 200 {}
    assert_eq!(check(&service, "bob"), 200);
    // Who is it?
    let top = done(&service, &["top"]);
    assert_eq!(
        top,
        "rule      key       denied  or less by\nper-user  user=ada       1           0\n"
    );
    // Look.
    let key = done(&service, &["key", "user=ada"]);
    assert!(
        key.starts_with("per-user, user=ada\n  3/h: 0 of 3 left; refused, passes after "),
        "{key}"
    );
    let rules = done(&service, &["rules"]);
    let line = rules.lines().nth(1).expect("a rule");
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(
        words,
        ["per-user", "3/h", "4", "1", "1", "0", "0", "rate", "1"],
        "{rules}"
    );
    // Explain.
    let mut explain = tollgate();
    explain
        .arg("explain")
        .arg(&policy)
        .args(["--fact", "user=ada"]);
    let (code, out, _) = run(explain);
    assert!(code == 0 && out.contains("per-user"), "{out}");
    // Reset.
    assert_eq!(
        done(&service, &["reset", "--rule", "per-user", "user=ada"]),
        "reset: per-user: 3/h\n"
    );
    assert_eq!(check(&service, "ada"), 200);
    assert_eq!(check(&service, "bob"), 200);
    service.warns("info: admin reset key=\"user=ada of \\\"per-user\\\"\" before=\"per-user 0/3\" now=\"per-user 3/3\" from=127.0.0.1:");
}

#[test]
fn orders_are_made_shown_and_ended() {
    let scratch = TempFolder::new("admin-orders");
    let service = serving(&scratch, &[]);
    let block = [
        "block",
        "user=eve",
        "--rule",
        "per-user",
        "--for",
        "1h",
        "--why",
        "ticket 12",
    ];
    let said = done(&service, &block);
    assert!(
        said.starts_with("1: block user=eve of per-user until 20"),
        "{said}"
    );
    assert_eq!(check(&service, "eve"), 429);
    done(
        &service,
        &[
            "override",
            "--rule",
            "per-user",
            "user=ada",
            "--rate",
            "100/s burst 200",
        ],
    );
    done(
        &service,
        &["bypass", "--rule", "per-user", "user=bob", "--for", "30s"],
    );
    for _ in 0..9 {
        assert_eq!((check(&service, "ada"), check(&service, "bob")), (200, 200));
    }
    let orders = done(&service, &["overrides"]);
    let lines: Vec<_> = orders.lines().collect();
    assert_eq!(lines.len(), 4, "{orders}");
    for (line, parts) in lines[1..].iter().zip([
        ["1", "block", "per-user", "user=eve", "ticket 12"],
        ["2", "limit", "per-user", "user=ada", "100/s burst 200"],
        ["3", "bypass", "per-user", "user=bob", "in force"],
    ]) {
        assert!(
            parts.iter().all(|part| line.contains(part)),
            "{parts:?}: {line}"
        );
    }
    let key = done(&service, &["key", "user=ada"]);
    assert!(
        key.contains("  ordered: 2: limit user=ada of per-user with 100/s burst 200 until "),
        "{key}"
    );
    let key = done(&service, &["key", "user=eve"]);
    assert!(key.contains(" left; but blocked"), "{key}");
    let json: Value =
        serde_json::from_str(&done(&service, &["overrides", "--json"])).expect("JSON");
    assert_eq!(
        json["overrides"][0]["left"]
            .as_u64()
            .map(|left| left <= 3_600),
        Some(true)
    );
    assert_eq!(json["overrides"][0]["applied"], 1);
    let replaced = done(
        &service,
        &[
            "override", "--rule", "per-user", "user=ada", "--rate", "9/s",
        ],
    );
    let before = ", in place of 2 (until 20";
    assert!(
        replaced.contains(before) && replaced.contains("Z, with 100/s burst 200)"),
        "{replaced}"
    );
    // What a list shows is taken in one argument, and a shell's quotes aren't needed for one.
    let shown = done(&service, &["key", "--rule", "per-user", "user=\"eve\""]);
    assert!(shown.contains("per-user, user=eve\n"), "{shown}");
    let ended = done(&service, &["unblock", "user=eve", "--rule", "per-user"]);
    assert!(ended.starts_with("ended: 1: block user=eve"), "{ended}");
    assert_eq!(check(&service, "eve"), 200);
    done(&service, &["overrides", "--end", "4"]);
    done(&service, &["overrides", "--end", "3"]);
    assert_eq!(done(&service, &["overrides"]).lines().count(), 1);
    assert!(done(&service, &["limiters"]).contains("per-user  user  enforce  3/h"));
}

#[test]
fn a_policy_is_tried_and_put_in_force() {
    let scratch = TempFolder::new("admin-reload");
    let service = serving(&scratch, &["--watch", "off"]);
    file(&scratch, "policy.yaml", &POLICY.replace("3/h", "5/h"));
    let would = done(&service, &["reload", "--dry-run"]);
    assert!(
        would.starts_with("would change: 1 changed\n~ rule \"per-user\""),
        "{would}"
    );
    assert!(done(&service, &["rules"]).contains(" 3/h "));
    assert!(done(&service, &["reload"]).starts_with("changed: 1 changed\n"));
    assert!(done(&service, &["rules"]).contains(" 5/h "));
    file(
        &scratch,
        "policy.yaml",
        "limits: [{name: broken, rate: often}]",
    );
    let (code, out, error) = asked(&service, &["reload"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        error.contains("policy.yaml:1:") && error.contains("expected a count"),
        "{error}"
    );
    assert!(done(&service, &["rules"]).contains(" 5/h "));
    assert_eq!(done(&service, &["log"]), "info\n");
    assert_eq!(done(&service, &["log", "debug"]), "debug\n");
}

#[test]
fn the_token_is_the_users_alone_and_gone_at_the_end() {
    let scratch = TempFolder::new("admin-token");
    let runtime = scratch.path("runtime");
    fs::create_dir(&runtime).expect("a folder");
    let service = Service::with(&ANY, |command| {
        command.env("XDG_RUNTIME_DIR", &runtime);
    });
    let token = Path::new(told(&service, "admin_token_file")).to_owned();
    assert!(token.starts_with(runtime.join("tollgate")), "{token:?}");
    let mode = fs::metadata(&token).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Found by the same rule, or given.
    let admin = ["admin", "--admin", told(&service, "admin"), "rules"];
    let mut found = tollgate();
    found.args(admin).env("XDG_RUNTIME_DIR", &runtime);
    assert_eq!(run(found).0, 0);
    let mut given = tollgate();
    given.args(admin).arg("--token-file").arg(&token);
    assert_eq!(run(given).0, 0);
    let wrong = file(&scratch, "wrong", "0123\n");
    let mut guess = tollgate();
    guess.args(admin).arg("--token-file").arg(&wrong);
    let (code, _, error) = run(guess);
    assert_eq!(code, 1);
    assert!(
        error.starts_with("error: the service takes another token: "),
        "{error}"
    );
    assert!(service.end("TERM").success());
    assert!(!token.exists());
}

#[test]
fn sockets_and_certificates_lead_there_too() {
    let scratch = TempFolder::new("admin-ways");
    let socket = format!("unix:{}", scratch.path("socket").display());
    let token = file(&scratch, "token", "first\nsecond\n");
    let token = token.to_str().expect("text");
    let listen = ["--http", "0", "--grpc", "off", "--resp", "off"];
    let mut options = listen.to_vec();
    options.extend(["--admin", &socket]);
    let service = Service::start(&options);
    assert!(done(&service, &["rules"]).contains("per-user"));
    drop(service);
    let authority = Authority::new(scratch.folder(), "authority");
    let (server, client) = (authority.server("server"), authority.client("client"));
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let (ca, cert, key) = (
        path(&authority.certificate),
        path(&server.certificate),
        path(&server.key),
    );
    let mut options = listen.to_vec();
    options.extend(["--admin", "0.0.0.0:0", "--admin-token-file", token]);
    options.extend([
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ]);
    let service = Service::start(&options);
    let port = told(&service, "admin").rsplit(':').next().expect("a port");
    let ask = |more: &[&str]| {
        let mut command = tollgate();
        command.args(["admin", "--admin", &format!("https://localhost:{port}")]);
        command.args(["--token-file", token, "rules"]).args(more);
        run(command)
    };
    let (own, own_key) = (path(&client.certificate), path(&client.key));
    let (code, out, error) = ask(&["--ca", &ca, "--cert", &own, "--key", &own_key]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let (code, _, error) = ask(&["--ca", &ca]);
    assert!(
        code == 1 && error.contains("CertificateRequired"),
        "{error}"
    );
    let (code, _, error) = ask(&[]);
    assert!(
        code == 2 && error.contains("https:// needs --ca"),
        "{error}"
    );
}

#[test]
fn it_listens_for_others_only_if_somebody_said_who_they_are() {
    let scratch = TempFolder::new("admin-open");
    let token = file(&scratch, "token", "first\n");
    let mut options = ANY[..6].to_vec();
    options.extend(["--admin", "0.0.0.0:0"]);
    let (code, said) = fails(&options, |_| {});
    assert_eq!(code, 2);
    assert_eq!(
        said,
        "error: --admin 0.0.0.0:0 can be reached from other machines: give operators a token by --admin-token-file, \
         or ask for their certificates by --tls-client-ca, or stay on 127.0.0.1 or a UNIX socket\n"
    );
    options.extend(["--admin-token-file", token.to_str().expect("text")]);
    let service = Service::start(&options);
    // Whoever asks for more than probes needs it.
    let (code, _, error) = asked(&service, &["rules", "--token-file", "/no/such"]);
    assert!(
        code == 1 && error.contains("/no/such: No such file"),
        "{error}"
    );
    assert!(
        done(
            &service,
            &["rules", "--token-file", token.to_str().expect("text")]
        )
        .contains("per-user")
    );
}

#[test]
fn what_is_wrong_is_told_with_its_exit_code() {
    let scratch = TempFolder::new("admin-wrong");
    let service = serving(&scratch, &[]);
    let table: [(&[&str], i32, &str); 11] = [
        (
            &["key"],
            2,
            "error: say whose limits are meant: --rule NAME, facts as user=ada, or both\n",
        ),
        (
            &["bypass"],
            2,
            "error: say which rule doesn't count: --rule NAME, facts as user=ada, or --all\n",
        ),
        (
            &["block", "--rule", "per-usr"],
            1,
            "error: no rule, tier or limit of a tree is called \"per-usr\": did you mean \"per-user\"?\n",
        ),
        (
            &["block", "user=ada", "--for", "31d"],
            2,
            "error: invalid value '31d' for '--for <TIME>': it should be at least 1s, and at most 30d",
        ),
        (
            &["override", "--rule", "per-user", "--quota", "5/day"],
            2,
            "error: invalid value '5/day' for '--quota <N>': it should be a whole number, as 1000",
        ),
        (
            &["override", "--rule", "per-user", "--rate", "fast"],
            1,
            "error: rate: invalid rate \"fast\": expected a count at column 1; write a rate such as 100/s burst 200\n",
        ),
        (
            &["block", "user=ada", "--for", "soon"],
            2,
            "error: invalid value 'soon'",
        ),
        (&["unblock", "user=ada"], 1, "error: no block of user=ada: "),
        (&["overrides", "--end", "9"], 1, "error: no order 9: "),
        (&["log", "loud"], 2, "error: invalid value 'loud'"),
        (&["nothing"], 2, "error: unrecognized subcommand 'nothing'"),
    ];
    for (arguments, code, begin) in table {
        let (found, out, error) = asked(&service, arguments);
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {error}");
        assert!(error.starts_with(begin), "{arguments:?}: {error}");
    }
    let admin = told(&service, "admin").to_owned();
    let token = told(&service, "admin_token_file").to_owned();
    let kept = file(
        &scratch,
        "kept",
        &fs::read_to_string(&token).expect("a token"),
    );
    drop(service);
    wait_until(LONG, "the port to be free", || {
        std::net::TcpStream::connect(&admin).is_err()
    });
    let mut command = tollgate();
    command
        .args(["admin", "--admin", &admin, "rules", "--token-file"])
        .arg(&kept);
    let (code, _, error) = run(command);
    assert_eq!(code, 1);
    assert!(
        error.contains(&format!(
            "can't ask the service at {admin}: Connection refused"
        )),
        "{error}"
    );
}

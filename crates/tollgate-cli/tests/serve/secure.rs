//! Certificates, secrets and sockets with common tools: curl, redis-cli and openssl against the real command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tollgate_testkit::certificates::{Authority, CertificatePair};
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, fails, file, tollgate};

/// The text of a path.
fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Runs a program that must be installed: whether it succeeded, and all its output.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let ran = Command::new(program).args(arguments).output();
    let ran = ran.unwrap_or_else(|error| panic!("{program}: {error}; install it"));
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (ran.status.success(), said)
}

/// The port of a listener.
fn port<'s>(service: &'s Service, listener: &str) -> &'s str {
    let address = service.ready[listener].as_str().expect("an address");
    address.rsplit(':').next().expect("a port")
}

fn curl(service: &Service, path: &str, options: &[&str]) -> (bool, String) {
    let listener = if path == "/healthz" { "admin" } else { "http" };
    let url = format!("https://localhost:{}{path}", port(service, listener));
    let mut all = vec!["-sS", "--max-time", "60", "-w", " %{http_code}", &url];
    all.extend(options);
    run("curl", &all)
}

fn redis_cli(service: &Service, options: &[&str], command: &[&str]) -> (bool, String) {
    let mut all = vec!["-h", "localhost", "-p", port(service, "resp"), "--tls"];
    all.extend(options);
    all.extend(command);
    run("redis-cli", &all)
}

#[test]
fn curl_and_redis_cli_come_in_with_a_certificate_and_not_without() {
    let scratch = TempFolder::new("secure-clients");
    let authority = Authority::new(scratch.folder(), "authority");
    let (server, client) = (authority.server("server"), authority.client("client"));
    let ca = text(&authority.certificate);
    let mut options = ANY.to_vec();
    options.extend(["--tls-cert", text(&server.certificate)]);
    options.extend(["--tls-key", text(&server.key)]);
    options.extend(["--tls-client-ca", ca]);
    let service = Service::start(&options);
    let said = service.said("admin on");
    for name in ["HTTP ", "gRPC ", "RESP ", "admin"] {
        let mut lines = said.lines();
        let line = lines.find(|line| line.starts_with(name)).expect("a line");
        assert!(line.ends_with(" with TLS"), "{said}");
    }
    let CertificatePair {
        certificate, key, ..
    } = &client;
    let (certificate, key) = (text(certificate), text(key));
    let curled = |path| {
        let own = ["--cacert", ca, "--cert", certificate, "--key", key];
        curl(&service, path, &own)
    };
    assert_eq!(curled("/healthcheck"), (true, "OK\n 200".to_owned()));
    assert_eq!(curled("/healthz"), (true, "OK\n 200".to_owned()));
    let (is_well, said) = curl(&service, "/healthcheck", &["--cacert", ca]);
    assert!(!is_well && said.contains("certificate required"), "{said}");
    let (is_well, said) = curl(&service, "/healthcheck", &[]);
    assert!(!is_well && said.contains("certificate"), "{said}");

    let own = ["--cacert", ca, "--cert", certificate, "--key", key];
    let asked = redis_cli(&service, &own, &["TG.CHECK", "user=ada"]);
    assert!(
        asked.1.contains("allowed\n1\nrule\nper-user\n"),
        "{asked:?}"
    );
    let asked = redis_cli(&service, &["--cacert", ca], &["PING"]);
    assert!(!asked.1.contains("PONG"), "{asked:?}");

    let grpc = format!("localhost:{}", port(&service, "grpc"));
    let s_client = |options: &[&str]| {
        let mut all = vec!["s_client", "-connect", &grpc, "-CAfile", ca, "-brief"];
        all.extend(["-verify_return_error", "-cert", certificate, "-key", key]);
        all.extend(options);
        run("openssl", &all)
    };
    let (_, said) = s_client(&["-alpn", "h2", "-tls1_2"]);
    assert!(said.contains("TLSv1.2"), "{said}");
    // Whoever wants something else on Envoy's listener, or is too old, is refused.
    let old = ["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"];
    for options in [&["-alpn", "http/1.1"][..], &old] {
        let (is_well, said) = s_client(options);
        assert!(!is_well && said.contains("alert"), "{options:?}: {said}");
    }
}

#[test]
fn sighup_puts_new_certificates_and_secrets_in_force() {
    let scratch = TempFolder::new("secure-hangup");
    let authority = Authority::new(scratch.folder(), "authority");
    let (server, next) = (authority.server("server"), authority.server("next"));
    let token = file(&scratch, "token", "one\n");
    let ca = text(&authority.certificate);
    let mut options = ANY.to_vec();
    options.extend(["--tls-cert", text(&server.certificate)]);
    options.extend(["--tls-key", text(&server.key), "--tls-on", "http"]);
    options.extend(["--http-client-token-file", text(&token)]);
    let service = Service::start(&options);
    let status = |token: &str| {
        let field = format!("authorization: Bearer {token}");
        let (_, said) = curl(&service, "/openapi.json", &["--cacert", ca, "-H", &field]);
        said.rsplit(' ').next().expect("a status").to_owned()
    };
    assert_eq!(
        (status("one").as_str(), status("two").as_str()),
        ("200", "401")
    );
    let shown = || {
        let address = format!("localhost:{}", port(&service, "http"));
        let (_, said) = run("openssl", &["s_client", "-connect", &address, "-showcerts"]);
        said.replace(['\r', '\n'], "")
    };
    let pem = |path: &Path| {
        let pem = fs::read_to_string(path).expect("a file");
        pem.replace(['\r', '\n'], "")
    };
    assert!(shown().contains(&pem(&server.certificate)));
    for (from, to) in [
        (&next.certificate, &server.certificate),
        (&next.key, &server.key),
    ] {
        fs::copy(from, to).expect("a file");
    }
    fs::write(&token, "two\n").expect("a file");
    let sent = Command::new("kill")
        .args(["-HUP", &service.pid().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
    wait_until(LONG, "the next certificate", || {
        shown().contains(&pem(&next.certificate))
    });
    wait_until(LONG, "the next token", || status("two") == "200");
    assert_eq!(status("one"), "401");
    for line in [
        "info: certificates reloaded until=",
        "info: secret reloaded flag=http-client-token-file",
        "server.key can be read by everybody on this machine",
    ] {
        service.warns(line);
    }
    // RESP has no certificate here.
    let (_, said) = run("redis-cli", &["-p", port(&service, "resp"), "PING"]);
    assert_eq!(said, "PONG\n");
}

#[test]
fn an_expired_certificate_is_warned_of_with_its_date() {
    let scratch = TempFolder::new("secure-expired");
    let authority = Authority::new(scratch.folder(), "authority");
    let purpose = tollgate_testkit::certificates::Purpose::ExpiredServer;
    let pair = authority.issue_certificate("server", purpose);
    let mut options = ANY.to_vec();
    options.extend([
        "--tls-cert",
        text(&pair.certificate),
        "--tls-key",
        text(&pair.key),
    ]);
    let service = Service::start(&options);
    service.warns("error: the certificate has expired on 2000-12-31T00:00:00Z");
}

#[test]
fn a_certificate_that_no_listener_shows_is_warned_of() {
    let scratch = TempFolder::new("secure-nowhere");
    let pair = Authority::new(scratch.folder(), "authority").server("server");
    let socket = format!("unix:{}", text(&scratch.path("resp.sock")));
    for (resp, is_warned) in [("off", true), (&*socket, true), ("0", false)] {
        let [pem, key] = [&pair.certificate, &pair.key].map(|path| text(path));
        let service = Service::start(&[
            "--http",
            "0",
            "--grpc",
            "off",
            "--resp",
            resp,
            "--admin",
            "off",
            "--tls-cert",
            pem,
            "--tls-key",
            key,
            "--tls-on",
            "resp",
        ]);
        let warned = service.warned();
        let found = warned.contains("warning: no listener speaks TLS: those that --tls-on names");
        assert_eq!(found, is_warned, "{resp}: {warned}");
    }
}

#[test]
fn a_socket_has_the_mode_that_was_asked_for_whatever_the_umask() {
    let scratch = TempFolder::new("secure-modes");
    for (umask, option, mode) in [
        ("000", "", 0o600),
        ("077", "", 0o600),
        ("077", "?mode=0660", 0o660),
        ("000", "?mode=666", 0o666),
    ] {
        let path = scratch.path("socket");
        let address = format!("unix:{}{option}", path.display());
        let ready = scratch.path("ready");
        let _ = fs::remove_file(&ready);
        let mut command = Command::new("sh");
        let script = format!("umask {umask}; exec \"$@\"");
        command
            .args(["-c", &script, "sh"])
            .arg(tollgate().get_program());
        command.args(["serve", "--http", &address, "--grpc", "off"]);
        command.args(["--resp", "off", "--admin", "off", "--ready-file"]);
        let mut child = command.arg(&ready).spawn().expect("it starts");
        wait_until(LONG, "the service to be ready", || ready.exists());
        let found = fs::metadata(&path).expect("a socket").permissions().mode();
        let asked = [
            "-s",
            "--unix-socket",
            text(&path),
            "http://here/healthcheck",
        ];
        let answer = run("curl", &asked);
        child.kill().expect("it runs");
        child.wait().expect("an end");
        assert_eq!(found & 0o777, mode, "{umask} {option}");
        assert_eq!(answer, (true, "OK\n".to_owned()));
        let said = fs::read_to_string(&ready).expect("a ready file");
        assert!(
            said.contains("socket\""),
            "who connects needs no mode: {said}"
        );
    }
}

#[test]
fn what_doesnt_go_together_or_cant_be_read_is_told_in_one_line() {
    let scratch = TempFolder::new("secure-wrong");
    let authority = Authority::new(scratch.folder(), "authority");
    let (one, two) = (authority.server("one"), authority.server("two"));
    let (certificate, key) = (text(&one.certificate), text(&one.key));
    let other = text(&two.key);
    let many = file(&scratch, "many", "1\n2\n3\n4\n5\n");
    let many = text(&many);
    let cert = "--tls-cert, the file of the certificate";
    let table: [(&[&str], i32, String); 9] = [
        (&["--tls-cert", "a"], 2, "--tls-cert needs --tls-key, the file of its key".to_owned()),
        (&["--tls-key", "a"], 2, format!("--tls-key needs {cert}")),
        (&["--tls-client-ca", "a"], 2, format!("--tls-client-ca needs {cert}")),
        (&["--tls-on", "http"], 2, format!("--tls-on needs {cert}")),
        (
            &["--tls-cert", "a", "--tls-key", "b", "--tls-crl", "c"],
            2,
            "--tls-crl needs --tls-client-ca: it is about clients' certificates".to_owned(),
        ),
        (
            &["--tls-cert", "/no/such", "--tls-key", key],
            1,
            "--tls-cert /no/such: No such file or directory (os error 2)".to_owned(),
        ),
        (
            &["--tls-cert", certificate, "--tls-key", other],
            1,
            format!("--tls-cert {certificate} with --tls-key {other}: it is the key of another certificate"),
        ),
        (
            &["--http-token-file", many],
            2,
            format!("--http-token-file: {many}: it has 5 lines, and each is a secret: at most 4 may hold at the same time"),
        ),
        (
            &["--http", "unix:/a?mode=0999"],
            2,
            "invalid value 'unix:/a?mode=0999' for '--http <ADDR>': no address \"unix:/a?mode=0999\": write unix:/path/to/socket, or unix:/path/to/socket?mode=0660; see tollgate serve --help".to_owned(),
        ),
    ];
    for (options, code, line) in table {
        let mut all = options.to_vec();
        if options[0] != "--http" {
            all.extend(ANY);
        }
        assert_eq!(fails(&all, |_| {}), (code, format!("error: {line}\n")));
    }
}

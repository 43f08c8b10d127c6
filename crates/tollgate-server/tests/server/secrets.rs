//! Secrets of clients and operators, and their rotation.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate_server::{Log, LogFormat, Secret};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{Running, Said};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 10/h}]";
const FACTS: &str = r#"{"facts":{"user":"ada"}}"#;
const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";

/// A service whose clients and operators have a secret each, and their files.
fn serving(scratch: &TempFolder) -> (Running, PathBuf, PathBuf) {
    let [clients, operators] = ["clients", "operators"].map(|name| {
        let path = scratch.path(name);
        fs::write(&path, format!("{name}-1\n")).expect("a file");
        path
    });
    let secret = |path: &Path| Some(Secret::from_file(path).expect("a secret"));
    let running = Running::new(POLICY, |settings| {
        settings.http_client_token = secret(&clients);
        settings.resp_client_password = secret(&clients);
        settings.http_operator_token = secret(&operators);
        settings.resp_operator_password = secret(&operators);
    });
    (running, clients, operators)
}

/// What a request of HTTP is answered that brings this token.
fn status(running: &Running, (method, path): (&str, &str), token: Option<&str>) -> u16 {
    let json = "content-type: application/json\r\n";
    let fields = match token {
        Some(token) => format!("{json}authorization: bearer {token}\r\n"),
        None => json.to_owned(),
    };
    let body = if method == "POST" { FACTS } else { "" };
    let (status, answer) = running.http().request(method, path, &fields, body);
    assert_eq!(
        status == 401,
        answer.contains("\r\nwww-authenticate: Bearer\r\n"),
        "{answer}"
    );
    status
}

#[test]
fn http_answers_nobody_without_a_token_but_probes() {
    let scratch = TempFolder::new("secrets-http");
    let (running, ..) = serving(&scratch);
    for (request, of_clients, of_operators) in [
        (("POST", "/v1/check"), 200, 200),
        (("POST", "/v1/peek"), 200, 200),
        (("GET", "/openapi.json"), 200, 200),
        // Whether something is there is nobody else's business.
        (("GET", "/nothing"), 404, 404),
        (("GET", "/v1/check"), 405, 405),
        (("POST", "/v1/refund"), 401, 200),
    ] {
        let status = |token| status(&running, request, token);
        assert_eq!(status(Some("clients-1")), of_clients, "{request:?}");
        assert_eq!(status(Some("operators-1")), of_operators, "{request:?}");
        for wrong in [None, Some(""), Some("clients-"), Some("clients-11")] {
            assert_eq!(status(wrong), 401, "{request:?} with {wrong:?}");
        }
    }
    assert_eq!(status(&running, ("GET", "/healthcheck"), None), 200);
    let (status, _) = running.admin().request("GET", "/healthz", "", "");
    assert_eq!(status, 200);
}

#[test]
fn resp_answers_nobody_before_a_password() {
    let scratch = TempFolder::new("secrets-resp");
    let (running, ..) = serving(&scratch);
    let mut client = running.resp();
    for command in [
        "PING",
        "TG.CHECK user=ada",
        "CL.THROTTLE ada 1 1 1",
        "TG.RULES",
        "INFO",
        "COMMAND",
        "NOTHING",
        "TG.RESET user=ada",
    ] {
        client.expect(&format!("{command}\r\n"), NOAUTH);
    }
    client.expect("HELLO 3\r\n", "-NOAUTH HELLO must be called with");
    let mut client = running.resp();
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    client.expect("AUTH clients-2\r\n", wrong);
    client.expect("PING\r\n", NOAUTH);
    client.expect("AUTH clients-1\r\n", "+OK\r\n");
    client.expect("PING\r\n", "+PONG\r\n");
    // A client is no operator, and stays what it is if it guesses.
    let noperm = "-NOPERM this is for operators: AUTH with their password\r\n";
    client.expect("TG.RESET user=ada\r\n", noperm);
    client.expect("AUTH operators-2\r\n", wrong);
    client.expect("PING\r\n", "+PONG\r\n");
    client.expect("AUTH default operators-1\r\n", "+OK\r\n");
    client.expect("TG.RESET user=ada\r\n", "+OK\r\n");
    client.expect("RESET\r\n", "+RESET\r\n");
    client.expect("PING\r\n", NOAUTH);
    client.expect("HELLO 2 AUTH default clients-1\r\n", "*14\r\n");
    let mut leaving = running.resp();
    leaving.expect("QUIT\r\n", "+OK\r\n");
}

#[test]
fn a_secret_changes_without_a_gap_and_without_a_restart() {
    let scratch = TempFolder::new("secrets-change");
    let (running, clients, operators) = serving(&scratch);
    let server = running.server.as_ref().unwrap();
    let mut before = running.resp();
    before.expect("AUTH clients-1\r\n", "+OK\r\n");
    let holds = |secret: &str| {
        let path = if secret.starts_with("clients") {
            ("POST", "/v1/check")
        } else {
            ("POST", "/v1/refund")
        };
        let by_http = status(&running, path, Some(secret)) == 200;
        let answer = running.resp().ask(&format!("AUTH {secret}\r\n"), 4);
        assert_eq!(by_http, answer == "+OK\r", "{secret}: {answer}");
        by_http
    };
    for (file, name) in [(&clients, "clients"), (&operators, "operators")] {
        let [one, two] = [1, 2].map(|number| format!("{name}-{number}"));
        for (text, is_one, is_two) in [
            (format!("{one}\n{two}\n"), true, true),
            (format!("{two}\n"), false, true),
        ] {
            fs::write(file, text).expect("a file");
            server.reload_files().expect("a secret");
            assert_eq!((holds(&one), holds(&two)), (is_one, is_two));
        }
        fs::write(file, "\n").expect("a file");
        let why = server.reload_files().expect_err("no secret");
        assert!(why.contains(&format!("{name}: it is empty")), "{why}");
        assert!(holds(&two) && !holds(&one) && !holds(""));
        fs::write(file, two).expect("a file");
        server.reload_files().expect("a secret");
    }
    // Who was let in stays.
    before.expect("PING\r\n", "+PONG\r\n");
}

#[test]
fn that_a_secret_can_be_read_again_is_told_once_though_it_is_the_same() {
    let scratch = TempFolder::new("secrets-again");
    let path = scratch.path("clients");
    fs::write(&path, "clients-1\n").expect("a file");
    let said = Said::default();
    let running = Running::new(POLICY, |settings| {
        settings.http_client_token = Some(Secret::from_file(&path).expect("a secret"));
        settings.log = Log::to_writer(said.clone(), LogFormat::Text);
    });
    let server = running.server.as_ref().expect("a service");
    fs::write(&path, "").expect("a file");
    server.reload_files().expect_err("no secret");
    fs::write(&path, "clients-1\n").expect("a file");
    for _ in 0..2 {
        server.reload_files().expect("a secret");
    }
    server.log().drain(Duration::from_secs(60));
    let again = "info: secrets can be read again\n";
    assert_eq!(said.text().matches(again).count(), 1, "{}", said.text());
}

//! Protocol details beside decisions: transactions, keys, `INFO`, and HTTP's own header fields. Wrong secrets are
//! counted, logged and delayed.

use std::io::Write;
use std::time::Duration;

use tollgate_server::{AdminToken, DateHeader, Log, LogFormat};

use crate::kit::{Client, Running, Said, secret};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 3/h}]";

#[test]
fn commands_between_multi_and_exec_run_one_by_one_and_are_charged_once() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    for (say, answer) in [
        ("MULTI\r\n", "+OK\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        ("CL.THROTTLE k x 1 60\r\n", "+QUEUED\r\n"),
        ("WATCH k\r\n", "-ERR WATCH inside MULTI is not allowed\r\n"),
        ("MULTI\r\n", "-ERR MULTI calls can not be nested\r\n"),
        (
            "EXEC\r\n",
            "*4\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n\
             *5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n\
             -ERR max_burst is a whole number from 0 to 9223372036854775807\r\n",
        ),
        ("MULTI\r\n", "+OK\r\n"),
        ("EXEC\r\n", "*0\r\n"),
        ("WATCH k\r\n", "+OK\r\n"),
        ("UNWATCH\r\n", "+OK\r\n"),
        ("EXEC\r\n", "-ERR EXEC without MULTI\r\n"),
        ("DISCARD\r\n", "-ERR DISCARD without MULTI\r\n"),
    ] {
        client.expect(say, answer);
    }
}

#[test]
fn nothing_is_charged_of_a_transaction_that_is_broken_or_discarded() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    for (say, answer) in [
        ("MULTI\r\n", "+OK\r\n"),
        (
            "AUTH guess\r\n",
            "-ERR AUTH is not allowed inside a transaction\r\n",
        ),
        (
            "EXEC\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n",
        ),
        ("MULTI\r\n", "+OK\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        (
            "GET k\r\n",
            "-ERR unknown command 'GET': see COMMAND DOCS\r\n",
        ),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        (
            "EXEC\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n",
        ),
        ("MULTI\r\n", "+OK\r\n"),
        (
            "CL.THROTTLE k\r\n",
            "-ERR wrong number of arguments for 'cl.throttle' command\r\n",
        ),
        (
            "EXEC\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n",
        ),
        ("MULTI\r\n", "+OK\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        ("DISCARD\r\n", "+OK\r\n"),
        ("MULTI\r\n", "+OK\r\n"),
        ("CL.THROTTLE k 1 1 60\r\n", "+QUEUED\r\n"),
        ("RESET\r\n", "+RESET\r\n"),
        ("EXISTS k\r\n", ":0\r\n"),
        // Nothing is owed: the whole limit is there.
        (
            "CL.THROTTLE k 1 1 60 0\r\n",
            "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n",
        ),
    ] {
        client.expect(say, answer);
    }
    // What isn't read in time or sent in bounds is no transaction.
    client.expect("MULTI\r\n", "+OK\r\n");
    let long = format!("ECHO {}\r\n", "x".repeat(60_000));
    for _ in 0..4 {
        client.expect(&long, "+QUEUED\r\n");
    }
    client.expect(
        &long,
        "-ERR no more than 262144 bytes of commands are queued: send fewer between MULTI and EXEC\r\n",
    );
    client.expect(
        "EXEC\r\n",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
}

#[test]
fn keys_of_throttle_are_there_as_long_as_they_owe_anything() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    for (say, answer) in [
        ("TTL k\r\n", ":-2\r\n"),
        ("TYPE k\r\n", "+none\r\n"),
        ("DBSIZE\r\n", ":0\r\n"),
        (
            "CL.THROTTLE k 1 1 60\r\n",
            "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n",
        ),
        ("TTL k\r\n", ":60\r\n"),
        ("PTTL k\r\n", ":60000\r\n"),
        ("TYPE k\r\n", "+string\r\n"),
        ("EXISTS k k other\r\n", ":2\r\n"),
        ("DBSIZE\r\n", ":1\r\n"),
        (
            "SCAN 0\r\n",
            "-ERR keys can't be listed: what is kept of them are fingerprints\r\n",
        ),
        ("DEL k other\r\n", ":1\r\n"),
        ("UNLINK k\r\n", ":0\r\n"),
        (
            "CL.THROTTLE k 1 1 60\r\n",
            "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n",
        ),
        (
            "DEL\r\n",
            "-ERR wrong number of arguments for 'del' command\r\n",
        ),
    ] {
        client.expect(say, answer);
    }
    running.clock.advance(Duration::from_secs(60));
    client.expect("EXISTS k\r\n", ":0\r\n");
}

#[test]
fn commands_and_connections_tell_of_themselves() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    client.expect(
        "COMMAND INFO ttl get\r\n",
        "*2\r\n*10\r\n$3\r\nttl\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n*-1\r\n",
    );
    client.expect(
        "COMMAND DOCS ttl\r\n",
        "*2\r\n$3\r\nttl\r\n*6\r\n$7\r\nsummary\r\n$61\r\nTells for how many seconds a key of CL.THROTTLE owes anything\r\n\
         $5\r\nsince\r\n$5\r\n1.0.0\r\n$5\r\ngroup\r\n$7\r\ngeneric\r\n",
    );
    client.expect(
        "COMMAND GETKEYS DEL a b\r\n",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    );
    client.expect("CLIENT SETINFO LIB-NAME us\r\n", "+OK\r\n");
    client.expect("CLIENT NO-EVICT ON\r\n", "+OK\r\n");
    client.expect(
        "CLIENT KILL ID 1\r\n",
        "-ERR CLIENT knows SETINFO, SETNAME, GETNAME, ID, INFO, LIST, NO-EVICT and NO-TOUCH here\r\n",
    );
    client.expect(
        "INFO replication\r\n",
        "$48\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n",
    );
}

#[test]
fn a_connection_has_few_tries_at_a_password_and_an_address_is_slowed_down() {
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let said = Said::default();
    let log = Log::to_writer(said.clone(), LogFormat::Text);
    let running = Running::in_still_time(POLICY, |settings| {
        settings.resp_operator_password = Some(secret("sesame"));
        settings.max_wrong_secrets = 10;
        settings.log = log;
    });
    // All of a pipeline come at once, and no more than five are answered.
    let mut client = running.resp();
    client.expect(&"AUTH guess\r\n".repeat(100), &WRONG.repeat(5));
    assert_eq!(client.rest(), "");
    // A right password is taken between wrong ones, and another user has none.
    let mut client = running.resp();
    client.expect("AUTH other sesame\r\n", WRONG);
    client.expect("AUTH default sesame\r\n", "+OK\r\n");
    client.expect("HELLO 3 AUTH default guess SETNAME me\r\n", WRONG);
    client.expect("CLIENT GETNAME\r\n", "$-1\r\n");
    client.expect("AUTH guess\r\n", WRONG);
    client.expect("AUTH guess\r\n", WRONG);
    // Ten of this address are answered immediately, and the next after a second; others meanwhile.
    let mut client = running.resp();
    client.expect("AUTH guess\r\n", WRONG);
    let wrote = client.0.write_all(b"AUTH guess\r\nPING\r\n");
    wrote.expect("written");
    let counted = || {
        let metrics = running.admin().request("GET", "/metrics", "", "").1;
        metrics.contains("tollgate_wrong_secrets_total{protocol=\"resp\"} 11\n")
    };
    while !counted() {}
    running.resp().expect("AUTH sesame\r\n", "+OK\r\n");
    running.pass(Duration::from_secs(1));
    client.expect("", &format!("{WRONG}+PONG\r\n"));
    let text = said.text();
    assert!(
        text.contains("warning: wrong password or token protocol=resp from=127.0.0.1:"),
        "{text}"
    );
}

#[test]
fn wrong_tokens_of_http_are_counted_and_end_a_connection() {
    let running = Running::new(POLICY, |settings| {
        settings.http_client_token = Some(secret("sesame"));
        settings.admin_token = AdminToken::File(secret("open"));
    });
    let ask = |mut client: Client, path: &str, token: &str| {
        let fields = format!("content-type: application/json\r\nauthorization: Bearer {token}\r\n");
        client
            .request("POST", path, &fields, r#"{"facts": {"user": "ada"}}"#)
            .0
    };
    // Of a pipeline no more than five are answered.
    let mut client = running.http();
    let guess = "GET /openapi.json HTTP/1.1\r\nhost: here\r\nauthorization: Bearer guess\r\n\r\n";
    let wrote = client.0.write_all(guess.repeat(9).as_bytes());
    wrote.expect("written");
    let answers = client.rest();
    assert_eq!(answers.matches("HTTP/1.1 401 ").count(), 5, "{answers}");
    assert_eq!(answers.matches("connection: close").count(), 1, "{answers}");
    assert_eq!(ask(running.http(), "/v1/check", "sesame"), 200);
    assert_eq!(ask(running.admin(), "/admin/reset", "guess"), 401);
    let (_, metrics) = running.admin().request("GET", "/metrics", "", "");
    for counted in [
        "tollgate_wrong_secrets_total{protocol=\"http\"} 5",
        "tollgate_wrong_secrets_total{protocol=\"admin\"} 1",
    ] {
        assert!(metrics.contains(counted), "{metrics}");
    }
}

#[test]
fn http_answers_with_the_fields_that_its_rules_ask_for() {
    let running = Running::new(POLICY, |settings| {
        settings.http_date = DateHeader::On;
        settings.admin_token = AdminToken::File(secret("open"));
    });
    let (status, answer) = running.http().request("GET", "/v1/check", "", "");
    assert_eq!(status, 405, "{answer}");
    assert!(answer.contains("\r\nallow: POST\r\n"), "{answer}");
    let date = answer.split("\r\ndate: ").nth(1).expect("a date");
    let date = date.split("\r\n").next().expect("a line");
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    let (_, answer) = running.http().request("POST", "/healthz", "", "");
    assert!(answer.contains("\r\nallow: GET, HEAD\r\n"), "{answer}");
    let (_, answer) = running.admin().request("DELETE", "/admin/log", "", "");
    assert!(answer.contains("\r\nallow: GET, HEAD, PUT\r\n"), "{answer}");
    let zipped = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let (status, answer) = running.http().request("POST", "/v1/check", zipped, "{}");
    assert_eq!(status, 415, "{answer}");
    assert!(
        answer.contains("\r\naccept-encoding: identity\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("no Content-Encoding is understood"),
        "{answer}"
    );
    // The first line may have the whole URL, whose host is the same as that of the field.
    let ask = |line: &str, host: &str| {
        let request = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let mut client = running.http();
        let first = client.ask(&request, 12);
        first[9..].to_owned()
    };
    assert_eq!(
        ask("GET http://localhost:1/healthz?x=1", "localhost:1"),
        "200"
    );
    assert_eq!(ask("GET HTTP://a/healthz", "a"), "200");
    assert_eq!(ask("GET http://a/healthz", "b"), "400");
    assert_eq!(ask("GET http://a", "a"), "404");
    let many = "x: y\r\n".repeat(65);
    let (status, answer) = running.http().request("GET", "/healthz", &many, "");
    assert_eq!(status, 431);
    assert!(
        answer.contains("a request has at most 64 header fields"),
        "{answer}"
    );
}

//! RESP as Redis clients speak it.

use std::time::Duration;

use tollgate_testkit::redis::Client;

use crate::kit::{Running, secret};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 2/h}, {name: jobs, match: {path: /jobs}, concurrency: 1}]";

#[test]
fn a_request_is_decided_by_its_facts() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    let answer = |allowed: u8, left: u8, retry: &str, reset: &str| {
        format!(
            "*12\r\n$7\r\nallowed\r\n:{allowed}\r\n$4\r\nrule\r\n$8\r\nper-user\r\n$5\r\nlimit\r\n:2\r\n$9\r\nremaining\r\n:{left}\r\n\
             $11\r\nretry_after\r\n${}\r\n{retry}\r\n$11\r\nreset_after\r\n${}\r\n{reset}\r\n",
            retry.len(),
            reset.len()
        )
    };
    client.expect("TG.CHECK user=ada\r\n", &answer(1, 1, "0", "1800"));
    client.expect("TG.PEEK user=ada\r\n", &answer(1, 1, "0", "1800"));
    client.expect(
        "*3\r\n$8\r\ntg.check\r\n$8\r\nuser=ada\r\n$8\r\npath=/x \r\n",
        &answer(1, 0, "0", "3600"),
    );
    let denied = answer(0, 0, "1800", "3600").replacen("*12", "*16", 1)
        + "$6\r\nreason\r\n$4\r\nrate\r\n$10\r\nlimited_by\r\n$3\r\n2/h\r\n";
    client.expect("TG.CHECK user=ada\r\n", &denied);
    running.clock.advance(Duration::from_secs(1_800));
    client.expect("TG.CHECK user=ada\r\n", &answer(1, 0, "0", "3600"));
    client.expect("TG.CHECK user=bob COST 2\r\n", &answer(1, 0, "0", "3600"));
}

#[test]
fn a_pipeline_is_answered_as_one_by_one() {
    let running = Running::new(POLICY, |settings| settings.bounds.max_pipeline = 7);
    let mut client = running.resp();
    let pings = "*1\r\n$4\r\nPING\r\n".repeat(1_000);
    client.expect(&pings, &"+PONG\r\n".repeat(1_000));
}

#[test]
fn throttle_answers_as_redis_cell_does() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    let answer = |numbers: [i64; 5]| {
        numbers.iter().fold("*5\r\n".to_owned(), |text, number| {
            format!("{text}:{number}\r\n")
        })
    };
    client.expect(
        "CL.THROTTLE user123 15 30 60 1\r\n",
        &answer([0, 16, 15, -1, 2]),
    );
    client.expect(
        "CL.THROTTLE user123 15 30 60 16\r\n",
        &answer([1, 16, 15, 2, 2]),
    );
    client.expect(
        "CL.THROTTLE user123 15 30 60 17\r\n",
        &answer([1, 16, 15, -1, 2]),
    );
    client.expect(
        "CL.THROTTLE user123 15 30 60 15\r\n",
        &answer([0, 16, 0, -1, 32]),
    );
    client.expect(
        "CL.THROTTLE user123 15 30 60\r\n",
        &answer([1, 16, 0, 2, 32]),
    );
    client.expect("CL.THROTTLE other 0 1 1\r\n", &answer([0, 1, 0, -1, 1]));
    for (say, error) in [
        (
            "CL.THROTTLE k 1 1\r\n",
            "CL.THROTTLE takes a key, max_burst, count, period and, if not 1, a quantity",
        ),
        (
            "CL.THROTTLE k x 1 1\r\n",
            "max_burst is a whole number from 0 to 9223372036854775807",
        ),
        (
            "CL.THROTTLE k 1 -1 1\r\n",
            "count is a whole number from 0 to 9223372036854775807",
        ),
        ("CL.THROTTLE k 1 0 1\r\n", "count is at least 1"),
        ("CL.THROTTLE k 1 1 0\r\n", "period is at least 1"),
        (
            "CL.THROTTLE k 1 1 99999999999\r\n",
            "period is more than there is room for",
        ),
        (
            "CL.THROTTLE k 1 9000000000 1\r\n",
            "count is more than there is room for",
        ),
    ] {
        client.expect(say, &format!("-ERR {error}\r\n"));
    }
}

#[test]
fn slots_come_back_when_their_time_is_over_or_they_are_refunded() {
    let running = Running::in_still_time(POLICY, |settings| {
        settings.resp_operator_password = Some(secret("sesame"));
    });
    let mut client = Client::tcp(running.resp_address()).expect("a connection");
    let mut passes = || {
        let answer = client.command(&["TG.CHECK", "path=/jobs"]).expect("pairs");
        answer.items()[1] == "1"
    };
    assert!(passes());
    running.pass(Duration::from_millis(59_999));
    assert!(!passes());
    running.pass(Duration::from_millis(1));
    assert!(passes());
    assert!(!passes());
    let mut operator = running.resp();
    operator.expect(
        "TG.REFUND path=/jobs\r\n",
        "-NOAUTH Authentication required.\r\n",
    );
    operator.expect(
        "AUTH wrong\r\n",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    operator.expect("AUTH sesame\r\n", "+OK\r\n");
    operator.expect("TG.REFUND path=/jobs\r\n", "+OK\r\n");
    assert!(passes());
    operator.expect("TG.RESET user=ada\r\n", "+OK\r\n");
    operator.expect(
        "TG.RESET usr=ada\r\n",
        "-ERR no limit is for these facts: is one of them misspelt?\r\n",
    );
}

#[test]
fn what_clients_ask_of_any_server_is_answered() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    for (say, answer) in [
        ("PING\r\n", "+PONG\r\n"),
        ("PING hi\r\n", "$2\r\nhi\r\n"),
        ("ECHO hi\r\n", "$2\r\nhi\r\n"),
        ("SELECT 0\r\n", "+OK\r\n"),
        (
            "SELECT 1\r\n",
            "-ERR DB index is out of range: there is only 0\r\n",
        ),
        ("CLIENT SETINFO LIB-NAME x\r\n", "+OK\r\n"),
        ("CLIENT GETNAME\r\n", "$-1\r\n"),
        ("CLIENT SETNAME me\r\n", "+OK\r\n"),
        ("CLIENT GETNAME\r\n", "$2\r\nme\r\n"),
        ("CONFIG GET save\r\n", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("COMMAND COUNT\r\n", ":32\r\n"),
        (
            "GET x\r\n",
            "-ERR unknown command 'GET': see COMMAND DOCS\r\n",
        ),
        (
            "ECHO\r\n",
            "-ERR wrong number of arguments for 'echo' command\r\n",
        ),
        (
            "AUTH x\r\n",
            "-ERR AUTH called without any password: start the service with --resp-password-file\r\n",
        ),
        (
            "TG.RESET user=ada\r\n",
            "-NOPERM this is for operators: start the service with --resp-password-file, then AUTH\r\n",
        ),
        (
            "TG.CHECK ada\r\n",
            "-ERR \"ada\" is no fact: write name=value\r\n",
        ),
        (
            "HELLO 4\r\n",
            "-NOPROTO unsupported protocol version: there are 2 and 3\r\n",
        ),
        ("RESET\r\n", "+RESET\r\n"),
    ] {
        client.expect(say, answer);
    }
    let hello = client.ask("HELLO 3\r\n", 4);
    assert_eq!(hello, "%7\r\n");
}

#[test]
fn what_isnt_redis_is_told_and_closed() {
    let running = Running::new(POLICY, |_| {});
    for (say, answer) in [
        (
            "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
            "-ERR Protocol error: this isn't HTTP\r\n",
        ),
        (
            "*1\r\n:1\r\n",
            "-ERR Protocol error: expected '$', got ':'\r\n",
        ),
        ("QUIT\r\nPING\r\n", "+OK\r\n"),
    ] {
        let mut client = running.resp();
        client.expect(say, answer);
        assert_eq!(client.rest(), "");
    }
}

#[test]
fn beyond_the_most_connections_clients_are_told_so() {
    let running = Running::new(POLICY, |settings| settings.bounds.max_connections = 2);
    let mut first = running.resp();
    first.expect("PING\r\n", "+PONG\r\n");
    let mut second = running.resp();
    second.expect("PING\r\n", "+PONG\r\n");
    assert_eq!(
        running.resp().rest(),
        "-ERR max number of clients reached\r\n"
    );
    drop(first);
    // Its place is free as soon as the service has noticed.
    loop {
        let mut third = running.resp();
        if third.ask("PING\r\n", 1) == "+" {
            break;
        }
    }
}

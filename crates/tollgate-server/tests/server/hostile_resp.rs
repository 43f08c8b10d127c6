//! Malformed RESP: it gets an error, and only its own connection closes.

use std::io::Write;

use crate::hostile::{POLICY, others_are_served};
use crate::kit::Running;

#[test]
fn what_cant_be_a_command_is_told_and_closed() {
    let running = Running::new(POLICY, |_| {});
    let longest = "*1\r\n$9223372036854775807\r\n";
    let beyond = "*1\r\n$9223372036854775808\r\n";
    let nested = "*1\r\n".repeat(100_000);
    let words = format!("*1025\r\n{}", "$1\r\nx\r\n".repeat(1_025));
    let endless = "x".repeat(200_000);
    for (said, told) in [
        (longest, "invalid bulk length"),
        (beyond, "invalid bulk length"),
        (
            "*1\r\n$999999999\r\n",
            "a command of more than the 65536 bytes that are taken",
        ),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$-2\r\n", "invalid bulk length"),
        ("*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
        ("*1\r\n$4 \r\nPING\r\n", "invalid bulk length"),
        ("*1\r\n$\r\n", "invalid bulk length"),
        ("*9223372036854775808\r\n", "invalid multibulk length"),
        ("*-2\r\n", "invalid multibulk length"),
        (
            "*1000000\r\n",
            "1000000 arguments, more than the 1024 that are taken",
        ),
        (&words, "1025 arguments, more than the 1024 that are taken"),
        (&nested, "expected '$', got '*'"),
        ("*1\r\n%1\r\n+a\r\n+b\r\n", "expected '$', got '%'"),
        (
            "*1\r\n$4\r\nPINGPING\r\n",
            "a bulk string doesn't end with CR LF where its length says",
        ),
        (
            &endless,
            "a command of more than the 65536 bytes that are taken",
        ),
        ("PING \"x\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = running.resp();
        // It may be closed before all is said.
        let _ = client.0.write_all(said.as_bytes());
        let answer = format!("-ERR Protocol error: {told}\r\n");
        let shown = &said[..said.len().min(40)];
        assert_eq!(client.ask("", answer.len()), answer, "{shown:?}");
        others_are_served(&running);
    }
}

#[test]
fn what_is_no_command_is_told_and_the_connection_goes_on() {
    let running = Running::new(POLICY, |_| {});
    let mut client = running.resp();
    for said in ["*0\r\n", "*-1\r\n", "\r\n", "   \n"] {
        client.expect(&format!("{said}PING\r\n"), "+PONG\r\n");
    }
    client.expect(
        "*1\r\n$0\r\n\r\n",
        "-ERR unknown command '': see COMMAND DOCS\r\n",
    );
    client.expect(
        "*1\r\n$3\r\n\r\n\0\r\n",
        "-ERR unknown command '   ': see COMMAND DOCS\r\n",
    );
}

/// A command as clients send it.
fn command(words: &[&str]) -> String {
    let mut said = format!("*{}\r\n", words.len());
    for word in words {
        said += &format!("${}\r\n{word}\r\n", word.len());
    }
    said
}

#[test]
fn keys_are_as_long_as_the_bound_says() {
    let long = "k".repeat(65_536);
    let short = &long[..8_192];
    let running = Running::new(POLICY, |_| {});
    let throttle = |key: &str| command(&["CL.THROTTLE", key, "9", "1", "60"]);
    let check = |value: &str| command(&["TG.CHECK", &format!("user={value}")]);
    let mut client = running.resp();
    client.expect(&throttle(short), "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n");
    let error = "-ERR a key of more than the 8192 bytes that are taken\r\n";
    client.expect(&throttle(&long[..8_193]), error);
    client.expect(&throttle(&long[..65_000]), error);
    client.expect(&check(&long[..8_192]), "*12\r\n$7\r\nallowed\r\n:1\r\n");
    for length in [8_193, 65_000] {
        let mut client = running.resp();
        client.expect(&check(&long[..length]), "*12\r\n$7\r\nallowed\r\n:1\r\n");
    }
    let mut client = running.resp();
    client.expect(
        &throttle(&long),
        "-ERR Protocol error: a command of more than the 65536 bytes that are taken\r\n",
    );
    // Who wants such keys says so.
    let running = Running::new(POLICY, |settings| {
        settings.bounds.key_bytes = 65_536;
        settings.bounds.request_bytes = 70_000;
    });
    let mut client = running.resp();
    client.expect(&throttle(&long), "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n");
    client.expect(&throttle(&long), "*5\r\n:0\r\n:10\r\n:8\r\n:-1\r\n:120\r\n");
    client.expect(
        &throttle(&long[1..]),
        "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n",
    );
    client.expect(&check(&long), "*12\r\n$7\r\nallowed\r\n:1\r\n");
}

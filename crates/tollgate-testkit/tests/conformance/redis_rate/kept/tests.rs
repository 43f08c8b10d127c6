//! The model of a key against real servers.

use std::time::Duration;

use tollgate_testkit::redis::{Client, Reply, Server, wait_until};

use super::Kept;

/// Long enough for a few milliseconds to pass on any machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// Rounds of a few milliseconds; one or two do unless the machine is very busy.
const ROUNDS: u64 = 10_000;

fn servers() -> [Server; 2] {
    [Server::builder(), Server::builder().valkey()].map(|builder| builder.debug_command().start())
}

/// Sends the words of a command.
fn ask(client: &mut Client, command: &str) -> Reply {
    let words: Vec<_> = command.split(' ').collect();
    client.command(&words).unwrap()
}

/// The server's time in microseconds.
fn time(client: &mut Client) -> u64 {
    let reply = ask(client, "TIME");
    let [seconds, micros] = reply.items() else {
        panic!("{reply:?}");
    };
    let micros = seconds.integer().unwrap() * 1_000_000 + micros.integer().unwrap();
    micros.cast_unsigned()
}

#[test]
fn a_key_lives_up_to_and_with_the_millisecond_in_which_it_expires() {
    for server in servers() {
        let mut client = server.client().unwrap();
        let (mut last_seen, mut first_missed) = (0, 0);
        for round in 0.. {
            assert!(round < ROUNDS, "{last_seen} looks in the last millisecond");
            let expires = time(&mut client) / 1_000 + 2 + round % 3;
            ask(&mut client, &format!("SET key value PXAT {expires}"));
            if time(&mut client) / 1_000 >= expires {
                // A key that has no life left is not even set.
                continue;
            }
            let mut model = Kept::nothing();
            model.set_until(expires, "value");
            loop {
                let before = time(&mut client);
                let there = ask(&mut client, "GET key");
                let after = time(&mut client);
                // Only a look within one millisecond is sure of its time.
                let millisecond = before / 1_000;
                if millisecond == after / 1_000 {
                    let modelled = model.get(before);
                    assert_eq!(there.text().as_deref(), modelled, "{before} of {expires}");
                    last_seen += u64::from(millisecond == expires);
                    first_missed += u64::from(millisecond == expires + 1);
                }
                if millisecond > expires + 1 {
                    break;
                }
            }
            if last_seen >= 3 && first_missed >= 3 {
                break;
            }
        }
    }
}

#[test]
fn an_expired_key_is_deleted_by_whatever_looks_at_it_and_by_nothing_else() {
    for server in servers() {
        let mut client = server.client().unwrap();
        ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
        for (look, answer) in [
            ("GET key", None),
            ("PTTL key", Some("-2")),
            ("EXISTS key", Some("0")),
            ("DEL key", Some("0")),
            ("EVAL return(redis.call('GET',KEYS[1])) 1 key", None),
        ] {
            ask(&mut client, "SET key value PX 1");
            let expired = time(&mut client) / 1_000 + 2;
            wait_until(DEADLINE, "its end", || time(&mut client) / 1_000 >= expired);
            // Not looked at, it is kept: a clock that stepped back would find it again.
            assert_eq!(ask(&mut client, "DBSIZE"), "1", "before {look}");
            assert_eq!(ask(&mut client, look).text().as_deref(), answer, "{look}");
            assert_eq!(ask(&mut client, "DBSIZE"), "0", "after {look}");
        }
    }
}

//! The launchers of real servers: a server can be used, broken and repaired, and is gone afterwards.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tollgate_testkit::redis::{
    Client, Cluster, Isolated, Reply, Sentinels, Server, hash_slot, wait_until,
};

/// Long enough for anything that a server does, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Whether a process is there.
fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_starts_answers_and_is_gone() {
    let server = Server::start();
    let pid = server.pid();
    server.command(&["SET", "key", "value"]);
    assert_eq!(server.command(&["GET", "key"]), "value");
    assert_eq!(server.info("server", "process_id"), pid.to_string());
    assert_eq!(server.info("server", "tcp_port"), server.port().to_string());
    drop(server);
    assert!(!exists(pid));
}

#[test]
fn valkey_starts_too() {
    let server = Server::builder().valkey().start();
    assert_eq!(server.info("server", "server_name"), "valkey");
    server.command(&["SET", "key", "value"]);
    assert_eq!(server.command(&["GET", "key"]), "value");
}

#[test]
fn replies_of_every_kind_are_read() {
    let server = Server::start();
    let script = "return {1, 'two', {ok='three'}, {err='four'}, false, {}}";
    let reply = server.command(&["EVAL", script, "0"]);
    let [one, two, three, four, five, six] = reply.items() else {
        panic!("{reply:?}");
    };
    assert_eq!(*one, Reply::Integer(1));
    assert_eq!(*two, Reply::Bulk(b"two".to_vec()));
    assert_eq!(*three, Reply::Status("three".into()));
    assert!(matches!(four, Reply::Error(text) if text.contains("four")));
    assert!(five.is_nil());
    assert_eq!(*six, Reply::Array(Vec::new()));
    assert_eq!(server.command(&["SET", "bytes", "a\r\nb\0"]), "OK");
    assert_eq!(server.command(&["GET", "bytes"]), "a\r\nb\0");
}

#[test]
fn a_restarted_server_is_empty_on_the_same_port() {
    let server = Server::start();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "key", "value"]);
    server.kill();
    assert!(!exists(pid));
    assert!(!server.running());
    let refused = server.client().unwrap_err();
    assert!(
        refused.starts_with("can't connect to 127.0.0.1:"),
        "{refused}"
    );

    server.restart_empty();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert!(server.command(&["GET", "key"]).is_nil());
    // One that runs is killed first.
    server.command(&["SET", "key", "value"]);
    server.restart_empty();
    assert!(server.command(&["GET", "key"]).is_nil());
}

#[test]
fn a_stopped_server_says_nothing_until_it_goes_on() {
    let server = Server::start();
    let mut client = server.client().unwrap();
    client.set_timeout(Duration::from_millis(50)).unwrap();
    server.pause();
    let error = client.command(&["PING"]).unwrap_err();
    assert!(error.starts_with("no answer to PING: "), "{error}");
    assert!(server.running());
    server.resume();
    wait_until(DEADLINE, "an answer", || server.answers());
}

#[test]
fn a_stopped_server_is_gone_when_dropped() {
    let server = Server::start();
    let pid = server.pid();
    server.pause();
    drop(server);
    assert!(!exists(pid));
}

#[test]
fn users_and_passwords_are_asked_for() {
    let server = Server::builder()
        .password("open")
        .acl("limits", "secret", "~limits:* +get")
        .start();
    assert_eq!(
        server.url(),
        format!("redis://:open@127.0.0.1:{}/0", server.port())
    );
    assert_eq!(server.command(&["PING"]), "PONG");

    let mut client = Client::tcp(server.address()).unwrap();
    assert!(client.command(&["PING"]).unwrap_err().starts_with("NOAUTH"));
    assert_eq!(client.command(&["AUTH", "limits", "secret"]).unwrap(), "OK");
    assert!(client.command(&["GET", "limits:a"]).unwrap().is_nil());
    assert!(
        client
            .command(&["GET", "other"])
            .unwrap_err()
            .starts_with("NOPERM")
    );
}

#[test]
fn a_unix_socket_reaches_the_same_keys() {
    let server = Server::builder().unix_socket().start();
    let mut client = Client::unix(&server.unix_socket()).unwrap();
    client.command(&["SET", "key", "value"]).unwrap();
    assert_eq!(server.command(&["GET", "key"]), "value");
}

#[test]
fn tls_needs_the_authority_and_may_need_a_certificate() {
    for (demand, anonymous) in [("optional", true), ("yes", false)] {
        let server = Server::builder()
            .tls()
            .arg("tls-auth-clients", demand)
            .start();
        let port = server.tls_url();
        let port = port.strip_prefix("rediss://127.0.0.1:").unwrap();
        let port = port.strip_suffix("/0").unwrap();
        let paths = server.certificates();
        let ask = |more: &[&Path]| {
            let mut cli = Command::new("redis-cli");
            cli.args(["-p", port, "--tls", "--cacert"])
                .arg(&paths.authority);
            if let [certificate, key] = more {
                cli.arg("--cert").arg(certificate).arg("--key").arg(key);
            }
            cli.arg("PING").output().unwrap().stdout == b"PONG\n"
        };
        assert_eq!(ask(&[]), anonymous);
        assert!(ask(&[&paths.client, &paths.client_key]));
    }
}

#[test]
fn debug_sleeps_where_it_is_allowed() {
    let server = Server::builder().debug_command().start();
    assert_eq!(server.command(&["DEBUG", "SLEEP", "0"]), "OK");
    let plain = Server::start();
    let error = plain.client().unwrap().command(&["DEBUG", "SLEEP", "0"]);
    assert!(
        error
            .unwrap_err()
            .starts_with("ERR DEBUG command not allowed")
    );
}

#[test]
fn commands_are_counted_but_not_the_counting() {
    let server = Server::start();
    let before = server.commands_processed();
    assert_eq!(server.commands_processed(), before);
    for _ in 0..3 {
        server.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "key"]);
    }
    assert_eq!(server.command_calls("eval"), 3);
    assert_eq!(server.command_calls("get"), 3);
    assert_eq!(server.command_calls("evalsha"), 0);
    assert_eq!(server.commands_processed(), before + 6);
}

#[test]
fn processor_time_is_what_a_script_takes() {
    let server = Server::start();
    let before = server.cpu_time();
    // Some 50 ms at least, whatever the machine.
    server.command(&["EVAL", "for i = 1, 2e7 do end", "0"]);
    let used = server.cpu_time() - before;
    assert!(used >= Duration::from_millis(20), "{used:?}");
}

#[test]
fn a_server_that_does_not_come_up_shows_its_log() {
    let started = std::panic::catch_unwind(|| {
        Server::builder().arg("no-such-setting", "1").start();
    });
    let panic = started.unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("ended:"), "{text}");
    assert!(text.contains("no-such-setting"), "{text}");
}

#[test]
fn its_files_are_gone_with_it() {
    let server = Server::builder().unix_socket().start();
    let socket = server.unix_socket();
    assert!(fs::exists(&socket).unwrap());
    drop(server);
    assert!(!fs::exists(socket.parent().unwrap()).unwrap());
}

#[test]
fn sentinels_replace_a_master_that_died() {
    let sentinels = Sentinels::start();
    let ports: Vec<u16> = sentinels.sentinels().iter().map(Server::port).collect();
    let [one, two, three] = ports[..] else {
        panic!("{ports:?}");
    };
    assert_eq!(
        sentinels.url(),
        format!("redis+sentinel://127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}/mymaster/0")
    );
    let mut client = sentinels.master().client().unwrap();
    client.command(&["SET", "key", "value"]).unwrap();
    assert_eq!(
        client.command(&["WAIT", "2", "5000"]).unwrap(),
        Reply::Integer(2)
    );

    let old = sentinels.kill_master();
    let new = sentinels.wait_for_new_master(DEADLINE);
    assert_ne!(new.port(), old.port());
    assert_eq!(new.command(&["GET", "key"]), "value");
    assert_eq!(sentinels.master().port(), new.port());

    old.restart_empty();
    wait_until(DEADLINE, "the old master to follow the new one", || {
        old.info("replication", "role") == "slave"
            && old.info("replication", "master_port") == new.port().to_string()
            && old.info("replication", "master_link_status") == "up"
    });
    assert_eq!(old.command(&["GET", "key"]), "value");
}

#[test]
fn sentinels_replace_a_valkey_that_hangs() {
    let sentinels = Sentinels::start_with(Server::builder().valkey().password("open"));
    let url = sentinels.url();
    assert!(
        url.starts_with("redis+sentinel://:open@127.0.0.1:"),
        "{url}"
    );
    let old = sentinels.master();
    old.pause();
    let new = sentinels.wait_for_new_master(DEADLINE);
    assert_ne!(new.port(), old.port());
}

#[test]
fn a_replica_takes_over_in_a_cluster() {
    let cluster = Cluster::start();
    assert_eq!(cluster.masters().count(), 3);
    let slot = hash_slot("key");
    let mut client = cluster.master_of(slot).client().unwrap();
    client.command(&["SET", "key", "value"]).unwrap();
    assert_eq!(
        client.command(&["WAIT", "1", "5000"]).unwrap(),
        Reply::Integer(1)
    );

    let old = cluster.kill_master_of(slot);
    cluster.wait_until_ok(DEADLINE);
    let new = cluster.master_of(slot);
    assert_ne!(new.port(), old.port());
    assert_eq!(new.command(&["GET", "key"]), "value");

    old.restart_empty();
    cluster.wait_until_ok(DEADLINE);
    assert_eq!(cluster.master_of(slot).port(), new.port());
    assert_eq!(old.info("replication", "role"), "slave");
}

fn slots_move(cluster: &Cluster) {
    let slot = hash_slot("{tenant}");
    let from = cluster.master_of(slot);
    let to = cluster.masters().find(|one| one.port() != from.port());
    let to = to.expect("another master");
    for number in 0..250 {
        from.command(&["SET", &format!("{{tenant}}:{number}"), "value"]);
    }
    let error = |server: &Server, key| {
        let answer = server
            .client()
            .and_then(|mut one| one.command(&["GET", key]));
        answer.expect_err("a redirection")
    };
    assert_eq!(
        error(to, "{tenant}:1"),
        format!("MOVED {slot} {}", from.address())
    );

    let migration = cluster.begin_migration(slot, to);
    assert_eq!(migration.from().port(), from.port());
    assert_eq!(migration.to().port(), to.port());
    assert_eq!(migration.move_keys(200), 200);
    assert_eq!(
        error(from, "{tenant}:new"),
        format!("ASK {slot} {}", to.address())
    );
    assert_eq!(
        error(to, "{tenant}:new"),
        format!("MOVED {slot} {}", from.address())
    );
    assert_eq!(migration.move_keys(200), 50);
    assert_eq!(migration.move_keys(200), 0);
    migration.finish();
    assert_eq!(
        error(from, "{tenant}:1"),
        format!("MOVED {slot} {}", to.address())
    );
    assert_eq!(to.command(&["GET", "{tenant}:1"]), "value");
    assert_eq!(cluster.master_of(slot).port(), to.port());

    cluster.migrate_slot(slot, from);
    assert_eq!(from.command(&["GET", "{tenant}:249"]), "value");
    assert_eq!(from.command(&["DBSIZE"]), Reply::Integer(250));
    cluster.wait_until_ok(DEADLINE);
}

#[test]
fn slots_move_in_a_cluster() {
    slots_move(&Cluster::start());
}

#[test]
fn slots_move_in_a_cluster_of_valkey_with_a_password() {
    slots_move(&Cluster::start_with(
        Server::builder().valkey().password("open"),
    ));
}

#[test]
fn slots_are_those_of_the_server() {
    let cluster = Cluster::start();
    let node = &cluster.nodes()[0];
    for key in [
        "",
        "key",
        "123456789",
        "{a}b",
        "b{a}",
        "{}a",
        "{a",
        "}a{b}",
        "{{a}}",
        "\u{e9}",
    ] {
        let slot = node.command(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(slot, Reply::Integer(hash_slot(key).into()), "{key:?}");
    }
}

#[test]
fn a_network_is_cut_and_healed() {
    let isolated = Isolated::start();
    let server = isolated.server();
    let mut client = server.client().unwrap();
    client.command(&["SET", "key", "value"]).unwrap();
    isolated.partition();
    client.set_timeout(Duration::from_millis(50)).unwrap();
    assert!(client.command(&["GET", "key"]).is_err());
    assert!(server.running());
    isolated.heal();
    wait_until(DEADLINE, "an answer after the cut", || server.answers());
    assert_eq!(server.command(&["GET", "key"]), "value");

    let (pid, name) = (server.pid(), server.address().ip().to_string());
    drop(isolated);
    assert!(!exists(pid));
    let left = Command::new("ip").args(["route", "get", &name]).output();
    let left = String::from_utf8(left.unwrap().stdout).unwrap();
    assert!(!left.contains("tollgate"), "{left}");
}

#[test]
fn two_networks_do_not_meet() {
    let (one, two) = (Isolated::start(), Isolated::start());
    one.partition();
    assert_eq!(two.server().command(&["PING"]), "PONG");
    assert!(!one.server().answers());
}

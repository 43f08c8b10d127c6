//! Real Redis clients: redis-cli, and the `redis` crate.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use redis::{Client, Value, cmd, pipe};
use tollgate_server::{Address, Settings};
use tollgate_testkit::external_programs::find_program;
use tollgate_testkit::redis::Client as Plain;

use crate::kit::{Running, secret};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 2/h}]";

fn with_password(settings: &mut Settings) {
    settings.resp_operator_password = Some(secret("sesame"));
}

/// The two versions of the protocol, as an address chooses them.
const VERSIONS: [&str; 2] = ["resp2", "resp3"];

fn client(running: &Running, login: &str, version: &str) -> Client {
    let address = running.resp_address();
    let url = format!("redis://{login}{address}/?protocol={version}");
    Client::open(url).expect("an address")
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// The six pairs of an answer, as a version has them.
fn pairs(version: &str, allowed: bool, left: i64, times: [u32; 2]) -> Value {
    let (is_three, is_denied) = (version == "resp3", !allowed);
    let time = |seconds: u32| {
        if is_three {
            Value::Double(seconds.into())
        } else {
            text(&seconds.to_string())
        }
    };
    let allowed = if is_three {
        Value::Boolean(allowed)
    } else {
        Value::Int(allowed.into())
    };
    let pairs = [
        ("allowed", allowed),
        ("rule", text("per-user")),
        ("limit", Value::Int(2)),
        ("remaining", Value::Int(left)),
        ("retry_after", time(times[0])),
        ("reset_after", time(times[1])),
    ];
    let why = [("reason", text("rate")), ("limited_by", text("2/h"))];
    let why = why.into_iter().filter(|_| is_denied);
    let pairs = pairs.into_iter().chain(why);
    let pairs = pairs.map(|(name, value)| (text(name), value));
    if is_three {
        Value::Map(pairs.collect())
    } else {
        Value::Array(pairs.flat_map(|(name, value)| [name, value]).collect())
    }
}

#[test]
fn the_redis_crate_asks_in_both_versions() {
    for version in VERSIONS {
        let running = Running::new(POLICY, |_| {});
        let mut client = client(&running, "", version)
            .get_connection()
            .expect("a connection");
        let mut check = || {
            let asked = cmd("TG.CHECK").arg("user=ada").query(&mut client);
            asked.expect("an answer")
        };
        let answers: [Value; 3] = [check(), check(), check()];
        let expected = [
            pairs(version, true, 1, [0, 1_800]),
            pairs(version, true, 0, [0, 3_600]),
            pairs(version, false, 0, [1_800, 3_600]),
        ];
        assert_eq!(answers, expected, "{version}");
        let throttle = cmd("CL.THROTTLE")
            .arg(&["user123", "15", "30", "60"])
            .query::<[i64; 5]>(&mut client);
        assert_eq!(throttle.expect("five numbers"), [0, 16, 15, -1, 2]);
        // What clients and pools do with a connection before and between uses.
        let ping: String = cmd("PING").query(&mut client).expect("an answer");
        assert_eq!(ping, "PONG");
        let () = cmd("CLIENT")
            .arg(&["SETNAME", "me"])
            .query(&mut client)
            .expect("an answer");
        let name: Option<String> = cmd("CLIENT").arg("GETNAME").query(&mut client).unwrap();
        assert_eq!(name.as_deref(), Some("me"));
        let error = cmd("TG.CHECK")
            .arg("ada")
            .query::<Value>(&mut client)
            .expect_err("no fact");
        assert_eq!(error.detail(), Some("\"ada\" is no fact: write name=value"));
        let () = cmd("SELECT").arg(0).query(&mut client).expect("an answer");
    }
}

#[test]
fn the_redis_crate_pipelines() {
    for version in VERSIONS {
        let running = Running::new(POLICY, |_| {});
        let client = client(&running, "", version);
        let mut connection = client.get_connection().expect("a connection");
        let mut many = pipe();
        for number in 0..5_000 {
            many.cmd("CL.THROTTLE").arg(&["k", "9999", "1", "3600"]);
            many.cmd("ECHO").arg(number);
        }
        let answers: Vec<Value> = many.query(&mut connection).expect("answers");
        for (number, pair) in answers.chunks(2).enumerate() {
            let [Value::Array(throttle), echo] = pair else {
                panic!("{pair:?}");
            };
            let left = 9_999 - i64::try_from(number).expect("a few");
            assert_eq!(
                (&throttle[0], &throttle[2]),
                (&Value::Int(0), &Value::Int(left))
            );
            assert_eq!(*echo, text(&number.to_string()));
        }
        // Many tasks by one connection, whose commands come together as they happen to.
        let answers = running.block_on(async {
            let shared = client.get_multiplexed_async_connection().await;
            let shared = shared.expect("a connection");
            let asked = (0..500).map(|number: u32| {
                let mut shared = shared.clone();
                tokio::spawn(async move {
                    let echo = cmd("ECHO").arg(number).query_async(&mut shared).await;
                    assert_eq!(echo.ok(), Some(number));
                    let check = cmd("CL.THROTTLE").arg(&["own", "99", "1", "3600"]).clone();
                    let answer: [i64; 5] = check.query_async(&mut shared).await.expect("numbers");
                    answer[0]
                })
            });
            futures_util::future::join_all(asked).await
        });
        let passed = answers.iter().filter(|one| matches!(one, Ok(0))).count();
        assert_eq!(passed, 100, "{version}");
    }
}

#[test]
fn operators_log_in_as_they_connect() {
    let running = Running::new(POLICY, with_password);
    for version in VERSIONS {
        for login in [":sesame@", "default:sesame@"] {
            let client = client(&running, login, version);
            let mut operator = client.get_connection().expect("a connection");
            for command in ["TG.REFUND", "TG.RESET"] {
                let done: String = cmd(command).arg("user=ada").query(&mut operator).unwrap();
                assert_eq!(done, "OK", "{login} {version}");
            }
        }
        let Err(error) = client(&running, ":other@", version).get_connection() else {
            panic!("logged in by a wrong password");
        };
        // The crate has its own words for what it hears of AUTH, and none for what it hears of HELLO.
        let is_told = error.kind() == redis::ErrorKind::AuthenticationFailed
            || error.code() == Some("WRONGPASS");
        assert!(is_told, "{error:?}");
        let mut nobody = client(&running, "", version).get_connection().expect("one");
        let refused = cmd("TG.RESET").arg("user=ada").query::<Value>(&mut nobody);
        let error = refused.expect_err("no operator");
        assert_eq!(error.code(), Some("NOAUTH"), "{error}");
    }
}

/// A service where another was.
fn again(address: SocketAddr) -> Running {
    Running::new(POLICY, |settings| settings.resp = Address::Tcp(address))
}

#[test]
fn the_redis_crate_connects_again_after_a_restart() {
    for version in VERSIONS {
        let first = Running::new(POLICY, |_| {});
        let (address, client) = (first.resp_address(), client(&first, "", version));
        let mut connection = client.get_connection().expect("a connection");
        let () = cmd("PING").query(&mut connection).expect("an answer");
        drop(first);
        let lost = cmd("PING").query::<()>(&mut connection);
        assert!(lost.expect_err("an end").is_connection_dropped());
        assert!(client.get_connection().is_err(), "nobody is there");
        let _second = again(address);
        let mut connection = client.get_connection().expect("a connection");
        let answer: Value = cmd("TG.CHECK")
            .arg("user=ada")
            .query(&mut connection)
            .unwrap();
        assert_eq!(answer, pairs(version, true, 1, [0, 1_800]));
    }
}

fn redis_cli(address: SocketAddr) -> Command {
    let mut command = Command::new(find_program("redis-cli", "apt-get install redis-tools"));
    command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
    command
}

/// What redis-cli prints.
fn printed(running: &Running, words: &[&str]) -> String {
    let run = redis_cli(running.resp_address()).args(words).output();
    let run = run.expect("redis-cli starts");
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    String::from_utf8(run.stdout).expect("text") + &errors
}

#[test]
fn redis_cli_asks_in_both_versions() {
    let running = Running::new(POLICY, with_password);
    let listed = |words: &[&str]| printed(&running, words);
    assert_eq!(listed(&["PING"]), "PONG\n");
    assert_eq!(
        listed(&["TG.CHECK", "user=ada"]),
        "allowed\n1\nrule\nper-user\nlimit\n2\nremaining\n1\nretry_after\n0\nreset_after\n1800\n"
    );
    assert_eq!(
        listed(&["-3", "--no-raw", "TG.CHECK", "user=ada"]),
        "1# \"allowed\" => (true)\n2# \"rule\" => \"per-user\"\n3# \"limit\" => (integer) 2\n\
         4# \"remaining\" => (integer) 0\n5# \"retry_after\" => (double) 0\n6# \"reset_after\" => (double) 3600\n"
    );
    assert_eq!(
        listed(&["--json", "TG.CHECK", "user=ada"]),
        "{\"allowed\":false,\"rule\":\"per-user\",\"limit\":2,\"remaining\":0,\"retry_after\":1800,\"reset_after\":3600,\"reason\":\"rate\",\"limited_by\":\"2/h\"}\n"
    );
    assert_eq!(
        listed(&["-r", "2", "CL.THROTTLE", "user123", "15", "30", "60"]),
        "0\n16\n15\n-1\n2\n0\n16\n14\n-1\n4\n"
    );
    assert_eq!(
        listed(&["TG.REFUND", "user=ada"]),
        "NOAUTH Authentication required.\n\n"
    );
    for login in [
        &["-a", "sesame"][..],
        &["--user", "default", "--pass", "sesame"],
    ] {
        for version in ["-2", "-3"] {
            let words = [
                login,
                &["--no-auth-warning", version, "TG.REFUND", "user=ada"],
            ];
            assert_eq!(listed(&words.concat()), "OK\n", "{login:?} {version}");
        }
    }
    let wrong = listed(&["-a", "other", "--no-auth-warning", "PING"]);
    assert!(wrong.contains("WRONGPASS"), "{wrong}");
    // Another database than the one that there is.
    let wrong = listed(&["-n", "1", "PING"]);
    assert!(wrong.contains("DB index is out of range"), "{wrong}");
}

#[test]
fn redis_cli_pipes() {
    let running = Running::new(POLICY, |_| {});
    let mut run = redis_cli(running.resp_address())
        .arg("--pipe")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli starts");
    let command = "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$3\r\n999\r\n$1\r\n1\r\n$4\r\n3600\r\n";
    let mut stdin = run.stdin.take().expect("a pipe");
    let wrote = stdin.write_all(command.repeat(10_000).as_bytes());
    wrote.expect("written");
    drop(stdin);
    let run = run.wait_with_output().expect("an end");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(printed.contains("errors: 0, replies: 10000"), "{printed}");
    let mut client = running.resp();
    client.expect(
        "CL.THROTTLE k 999 1 3600\r\n",
        "*5\r\n:1\r\n:1000\r\n:0\r\n",
    );
}

#[test]
fn redis_cli_connects_again_after_a_restart() {
    let first = Running::new(POLICY, |_| {});
    let address = first.resp_address();
    let mut run = redis_cli(address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("redis-cli starts");
    let mut stdin = run.stdin.take().expect("a pipe");
    let throttle = "CL.THROTTLE k 9 1 3600";
    writeln!(stdin, "{throttle}").expect("written");
    // It prints when it ends, so the service is asked whether it was.
    let mut other = Plain::tcp(address).expect("a connection");
    let look: Vec<_> = throttle.split(' ').chain(["0"]).collect();
    while other.command(&look).expect("numbers").items()[2] != "9" {}
    drop(first);
    let _second = again(address);
    // The first command after it tells that the connection is gone, and the next makes another.
    writeln!(stdin, "PING\n{throttle} 3").expect("written");
    drop(stdin);
    let run = run.wait_with_output().expect("an end");
    let printed = String::from_utf8_lossy(&run.stdout);
    // What was counted went with the first: it is in memory.
    assert_eq!(printed, "0\n10\n9\n-1\n3600\n0\n10\n7\n-1\n10800\n");
}

#[test]
fn redis_benchmark_runs() {
    let running = Running::new(POLICY, |_| {});
    let run = Command::new(find_program(
        "redis-benchmark",
        "apt-get install redis-tools",
    ))
    .args(["-p", &running.resp_address().port().to_string()])
    .args(["-n", "2000", "-c", "10", "-P", "16", "-q"])
    .args(["CL.THROTTLE", "k", "99", "1", "3600"])
    .output()
    .expect("redis-benchmark starts");
    let printed = String::from_utf8_lossy(&run.stdout).into_owned();
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        run.status.success() && errors.is_empty(),
        "{printed}{errors}"
    );
    assert!(printed.contains("requests per second"), "{printed}");
    let mut client = running.resp();
    client.expect("CL.THROTTLE k 99 1 3600\r\n", "*5\r\n:1\r\n:100\r\n:0\r\n");
}

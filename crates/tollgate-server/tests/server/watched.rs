//! Changes of the policy's files under a running service: it keeps serving whatever happens to them, and in the end the
//! latest valid policy is in force.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use tollgate_server::{Secret, Server};
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use super::kit::{Running, read};

const LONG: Duration = Duration::from_secs(60);

fn limits(rates: &[u64]) -> String {
    let mut text = "limits:\n".to_owned();
    for (number, rate) in rates.iter().enumerate() {
        text += &format!("- {{name: r{number}, rate: {rate}/h}}\n");
    }
    text
}

/// A service by this file.
fn by(path: &Path) -> Running {
    let policy = tollgate_engine::Policy::from_path(path).expect("a policy");
    Running::by(policy.policy, |settings| {
        settings.policy_path = Some(path.to_owned());
    })
}

fn server(running: &Running) -> &Server {
    running.server.as_ref().expect("a service")
}

/// The rates in force.
fn rates(running: &Running) -> Vec<u64> {
    let policy = server(running).policy();
    let rules = policy.rules.iter();
    rules.map(|rule| rule.limits.rates[0].count()).collect()
}

/// Waits until these rates are in force.
#[track_caller]
fn wait_for(running: &Running, wanted: &[u64]) {
    wait_until(LONG, &format!("{wanted:?}"), || rates(running) == wanted);
}

fn reload(running: &Running) -> Result<String, String> {
    let reloaded = running.block_on(server(running).reload("a test"));
    reloaded.map(|diff| diff.summary())
}

#[test]
fn a_change_right_after_another_came_into_force_is_not_missed() {
    let scratch = TempFolder::new("watched-again");
    let path = scratch.path("limits.yaml");
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    let rounds = if std::env::var("TOLLGATE_SOAK").is_ok() {
        300
    } else {
        10
    };
    for round in 1..=rounds {
        fs::write(&path, limits(&[2 * round])).unwrap();
        wait_for(&running, &[2 * round]);
        // At about the time at which the watcher has read the first, and looks where to watch next.
        fs::write(&path, limits(&[2 * round + 1])).unwrap();
        wait_for(&running, &[2 * round + 1]);
    }
}

#[test]
fn a_file_that_is_still_written_is_not_put_in_force() {
    let scratch = TempFolder::new("watched-half");
    let path = scratch.path("limits.yaml");
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    // What it reads first is over then.
    fs::write(&path, limits(&[1, 2, 3])).unwrap();
    wait_for(&running, &[1, 2, 3]);
    let calm = scratch.path("calm.yaml");
    fs::write(&calm, limits(&[1])).unwrap();
    let beside = by(&calm);
    // Another service notices changes, each after it was calm.
    let others = |rates: std::ops::Range<u64>, check: &dyn Fn()| {
        for rate in rates {
            fs::write(&calm, limits(&[rate])).unwrap();
            wait_for(&beside, &[rate]);
            check();
        }
    };
    // What this one has been told of so far it may read once more, and has by now.
    others(2..6, &|| {});
    // Somebody overwrites it, and takes longer than is waited for calm.
    let whole = limits(&[4, 5, 6]);
    let half = limits(&[4, 5]).len();
    let mut file = File::create(&path).unwrap();
    file.write_all(&whole.as_bytes()[..half]).unwrap();
    others(6..10, &|| {
        assert_eq!(rates(&running), [1, 2, 3], "half of a file is in force");
    });
    file.write_all(&whole.as_bytes()[half..]).unwrap();
    drop(file);
    wait_for(&running, &[4, 5, 6]);
}

#[test]
fn a_file_that_is_included_and_comes_later_is_waited_for() {
    let scratch = TempFolder::new("watched-include");
    let path = scratch.path("limits.yaml");
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    // The file that includes it comes first, and its folder isn't there.
    fs::write(&path, "include: parts/more.yaml\n").unwrap();
    let why = reload(&running).expect_err("no such file");
    assert!(why.contains("there is no such file"), "{why}");
    for count in [7, 8] {
        fs::create_dir(scratch.path("parts")).unwrap();
        fs::write(scratch.path("parts/more.yaml"), limits(&[count])).unwrap();
        wait_for(&running, &[count]);
        // And goes again, with its folder.
        fs::remove_dir_all(scratch.path("parts")).unwrap();
    }
}

#[test]
fn folders_on_the_way_may_be_replaced() {
    let scratch = TempFolder::new("watched-folders");
    let make = |name: &str, count| {
        fs::create_dir_all(scratch.path(name)).unwrap();
        fs::write(scratch.path(name).join("limits.yaml"), limits(&[count])).unwrap();
    };
    make("a/b", 1);
    let running = by(&scratch.path("a/b/limits.yaml"));
    for round in 1..4 {
        // Another folder is moved to where it was.
        make("next/b", 10 * round);
        fs::rename(scratch.path("a"), scratch.path(format!("old{round}"))).unwrap();
        fs::rename(scratch.path("next"), scratch.path("a")).unwrap();
        wait_for(&running, &[10 * round]);
        // It is removed and made again.
        fs::remove_dir_all(scratch.path("a")).unwrap();
        make("a/b", 10 * round + 1);
        wait_for(&running, &[10 * round + 1]);
        // And is looked after then.
        make("a/b", 10 * round + 2);
        wait_for(&running, &[10 * round + 2]);
    }
}

/// A replacement for a file, how it is made, and the expected message.
type Instead = (&'static str, fn(&Path), &'static str);

#[test]
fn what_is_no_file_or_too_large_leaves_the_policy_in_force() {
    let scratch = TempFolder::new("watched-odd");
    let path = scratch.path("limits.yaml");
    let instead: [Instead; 4] = [
        ("a pipe", |path| pipe(path), "it is not a file"),
        (
            "a device",
            |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
            "it is not a file",
        ),
        (
            "2 GB",
            |path| File::create(path).unwrap().set_len(2 << 30).unwrap(),
            "more than",
        ),
        (
            "itself",
            |path| fs::write(path, "include: limits.yaml").unwrap(),
            "includes itself",
        ),
    ];
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    for (what, make, said) in instead {
        let _ = fs::remove_file(&path);
        make(&path);
        let why = reload(&running).expect_err(what);
        assert!(why.contains(said), "{what}: {why}");
        assert_eq!(rates(&running), [1], "{what}");
    }
    let _ = fs::remove_file(&path);
    assert!(
        reload(&running)
            .unwrap_err()
            .contains("there is no such file")
    );
    fs::write(&path, limits(&[9])).unwrap();
    wait_for(&running, &[9]);
}

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    let made = made.expect("mkfifo, of coreutils: apt-get install coreutils");
    assert!(made.success());
}

#[test]
fn reloads_at_the_same_time_end_with_what_the_file_says() {
    let scratch = TempFolder::new("watched-races");
    let path = scratch.path("limits.yaml");
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| drop(reload(&running))));
        }
        for count in 2..60 {
            // As others see it whole or not at all.
            fs::write(scratch.path("next"), limits(&[count])).unwrap();
            fs::rename(scratch.path("next"), &path).unwrap();
        }
    });
    wait_for(&running, &[59]);
}

#[test]
fn a_secret_that_becomes_a_pipe_or_endless_leaves_the_one_before() {
    let scratch = TempFolder::new("watched-secret");
    let path = scratch.path("token");
    // As some editors write it.
    fs::write(&path, "\u{feff}open sesame\r\n").unwrap();
    let secret = Secret::from_file(&path).unwrap();
    let running = Running::by(read("limits: [{name: a, rate: 9/s}]"), |settings| {
        settings.http_client_token = Some(secret);
    });
    let passes = |running: &Running| {
        let fields = "content-type: application/json\r\nauthorization: bearer open sesame\r\n";
        let body = r#"{"facts":{"user":"ada"}}"#;
        let (status, _) = running.http().request("POST", "/v1/check", fields, body);
        status == 200
    };
    assert!(passes(&running));
    for make in [pipe as fn(&Path), |path| {
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }] {
        fs::remove_file(&path).unwrap();
        make(&path);
        let why = server(&running).reload_files().unwrap_err();
        assert!(why.contains("it is not a file"), "{why}");
        assert!(passes(&running));
    }
}

#[test]
fn a_socket_that_another_made_there_is_left() {
    let scratch = TempFolder::new("watched-socket");
    let path = scratch.path("http.sock");
    let running = Running::by(read("limits: [{name: a, rate: 9/s}]"), |settings| {
        settings.http = format!("unix:{}", path.display()).parse().unwrap();
    });
    // Somebody has removed it, and started another service.
    fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(running);
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    drop(other);
}

#[test]
fn a_file_that_is_empty_in_place_of_gone_has_another_reason() {
    let scratch = TempFolder::new("watched-empty");
    let path = scratch.path("limits.yaml");
    fs::write(&path, limits(&[1])).unwrap();
    let running = by(&path);
    let reason = |wanted: &str| {
        wait_until(LONG, wanted, || {
            let (_, answer) = running.http().request("GET", "/readyz", "", "");
            answer.contains(wanted)
        });
    };
    fs::remove_file(&path).unwrap();
    reason("there is no such file");
    fs::write(&path, "").unwrap();
    reason("this policy limits nothing");
    fs::write(&path, limits(&[1])).unwrap();
    reason("\"reasons\":{}");
}

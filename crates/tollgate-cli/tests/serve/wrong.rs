//! Errors are reported in one line, with the place, the cause and what to do. Configuration errors exit with 2.

use std::net::TcpListener;
use std::process::Command;

use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{fails, file, tollgate};

/// The command exits with this code and this message, in one line.
#[track_caller]
fn check(options: &[&str], expect: (i32, &str)) {
    check_with(options, |_| {}, expect);
}

#[track_caller]
fn check_with(options: &[&str], change: impl FnOnce(&mut Command), (code, line): (i32, &str)) {
    let said = fails(options, change);
    assert_eq!(said, (code, format!("error: {line}\n")), "{options:?}");
}

const HELP: &str = "; see tollgate serve --help";

#[test]
fn flags() {
    let address = "write 127.0.0.1:8080, unix:/path/to/socket, or off";
    let number = "it should be a whole number of at least 1";
    for (options, line) in [
        (&["--htp", "x"][..], "unexpected argument '--htp' found; a similar argument exists: '--http'".to_owned()),
        (&["--port", "80"], "unexpected argument '--port' found".to_owned()),
        (&["--http"], "a value is required for '--http <ADDR>' but none was supplied".to_owned()),
        (&["--http", "x"], format!("invalid value 'x' for '--http <ADDR>': no address \"x\": {address}")),
        (&["--grpc=unix:"], "invalid value 'unix:' for '--grpc <ADDR>': no address \"unix:\": write unix:/path/to/socket, or unix:/path/to/socket?mode=0660".to_owned()),
        (&["--max-batch", "0"], format!("invalid value '0' for '--max-batch <N>': {number}")),
        (&["--max-streams", "-1"], format!("invalid value '-1' for '--max-streams <N>': {number}")),
        (&["--max-holds=-1"], "invalid value '-1' for '--max-holds <N>': it should be a whole number".to_owned()),
        (&["--replicas", "0"], format!("invalid value '0' for '--replicas <N>': {number}")),
        (
            &["--replicas", "99999999999"],
            "invalid value '99999999999' for '--replicas <N>': it should be smaller: there is no room for so many".to_owned(),
        ),
        (&["--throttle-keys", "many"], format!("invalid value 'many' for '--throttle-keys <N>': {number}")),
        (
            &["--throttle-keys", "99999999999999"],
            "invalid value '99999999999999' for '--throttle-keys <N>': it should be at most 1000000000: each key takes 25 bytes".to_owned(),
        ),
        (&["--idle-time", "0s"], "invalid value '0s' for '--idle-time <TIME>': it should be longer than nothing, as 10s".to_owned()),
        (
            &["--hold-time", "5"],
            "invalid value '5' for '--hold-time <TIME>': \"5\" is no length of time; write it as 10ms, 2.5s, 1h30m or 7d".to_owned(),
        ),
        (
            &["--headers", "draft-8,x"],
            "invalid value 'x' for '--headers <DIALECT>': no dialect \"x\": it is one of draft-8, draft-7, draft-6, draft-3, github".to_owned(),
        ),
        (&["--rls-closed", "x"], "invalid value 'x' for '--rls-closed <ANSWER>': no answer \"x\": it is error or deny".to_owned()),
        (&["a.yaml", "b.yaml"], "unexpected argument 'b.yaml' found".to_owned()),
    ] {
        check(options, (2, &format!("{line}{HELP}")));
    }
}

#[test]
fn flags_that_make_no_sense_together() {
    for (options, line) in [
        (
            &["--replicas", "3", "--backend", "redis://127.0.0.1"][..],
            "--replicas 3 is for --backend memory: on a store all replicas count together, and nothing is divided",
        ),
        (
            &["--state", "here", "--backend", "redis://127.0.0.1"],
            "--state here is for --backend memory: a store keeps what is counted there by itself",
        ),
        (
            &["--require-store"],
            "--require-store needs a store: give its URL by --backend",
        ),
        (
            &["--backend", "ftp://:secret@here"],
            "--backend \"ftp://…@here\": \"ftp\" is none of redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://; or write memory, to count in this process",
        ),
        (
            &["--http", "off", "--grpc", "off", "--resp", "off"],
            "--http, --grpc and --resp are all off: nobody could ask anything",
        ),
        (
            &["--resp", "8081"],
            "--grpc and --resp are both 127.0.0.1:8081: each needs an address of its own",
        ),
        (
            &["--headers", "draft-3,github"],
            "--headers: draft-3 and github have the same names for different things: choose one of both",
        ),
        (
            &["--http-token-file", "no-such-file"],
            "--http-token-file: no-such-file: No such file or directory (os error 2)",
        ),
        (
            &["--config", "no-such-file"],
            "--config no-such-file: No such file or directory (os error 2)",
        ),
    ] {
        check(options, (2, line));
    }
}

#[test]
fn the_environment() {
    for (name, value, line) in [
        (
            "TOLLGATE_HTTP",
            "x",
            "invalid value 'x' for TOLLGATE_HTTP in the environment: no address \"x\": write 127.0.0.1:8080, unix:/path/to/socket, or off",
        ),
        (
            "TOLLGATE_MAX_PIPELINE",
            "0",
            "invalid value '0' for TOLLGATE_MAX_PIPELINE in the environment: it should be a whole number of at least 1",
        ),
        (
            "TOLLGATE_REQUIRE_STORE",
            "maybe",
            "invalid value 'maybe' for TOLLGATE_REQUIRE_STORE in the environment: it should be true or false",
        ),
    ] {
        let set = |command: &mut Command| {
            command.env(name, value);
        };
        check_with(&[], set, (2, &format!("{line}{HELP}")));
    }
    // What the flag says is the flag's fault.
    let set = |command: &mut Command| {
        command.env("TOLLGATE_MAX_BATCH", "0");
    };
    let line = "invalid value '-' for '--max-batch <N>': it should be a whole number of at least 1";
    check_with(&["--max-batch=-"], set, (2, &format!("{line}{HELP}")));
}

#[test]
fn a_file_of_settings() {
    let scratch = TempFolder::new("wrong-settings");
    for (text, line) in [
        (
            "\nhtp: 1",
            ":2: there is no setting \"htp\": did you mean http?",
        ),
        (
            "max_holds: 1",
            ":1: there is no setting \"max_holds\": did you mean max-holds?",
        ),
        (
            "zzz: 1",
            ":1: there is no setting \"zzz\": tollgate serve --print-config shows all",
        ),
        (
            "resp: off\nhttp: x",
            ":2: invalid value 'x' for 'http <ADDR>': no address \"x\": write 127.0.0.1:8080, unix:/path/to/socket, or off",
        ),
        (
            "max-batch: 0",
            ":1: invalid value '0' for 'max-batch <N>': it should be a whole number of at least 1",
        ),
        (
            "http: false",
            ":1: invalid value 'false' for 'http <ADDR>': no address \"false\": write 127.0.0.1:8080, unix:/path/to/socket, or off",
        ),
        (
            "zzz: false",
            ":1: there is no setting \"zzz\": tollgate serve --print-config shows all",
        ),
        (
            "require-store: maybe",
            ":1: require-store should be true or false",
        ),
        (
            "http: {a: 1}",
            ":1: http is a map, and should be text, a whole number, or true",
        ),
        (
            "max-holds: 1.5",
            ":1: max-holds is a number, and should be text, a whole number, or true",
        ),
        (
            "config: other",
            ":1: config is for the command line, and no setting of a file",
        ),
        ("1: 2", ":1: a name should be text, as http"),
        (
            "- a",
            ": it holds names and values, as http: 127.0.0.1:8080",
        ),
        ("http: [1", ":1: this [ isn't closed"),
    ] {
        let path = file(&scratch, "settings.yaml", text);
        let path = path.to_str().expect("text");
        check(&["--config", path], (2, &format!("{path}{line}")));
    }
}

#[test]
fn policies() {
    let scratch = TempFolder::new("wrong-policies");
    let path = |name: &str, text: &str| {
        let path = file(&scratch, name, text);
        path.to_str().expect("text").to_owned()
    };
    let bad = path("bad.yaml", "limits:\n- name: a\n  rate: 5/s\n  kee: user\n");
    check(
        &[&bad],
        (
            1,
            &format!("{bad}:4:3: unknown field \"kee\" in a rule; did you mean \"key\"?"),
        ),
    );
    let two = path(
        "two.yaml",
        "limits:\n- {name: a, rate: 5/x}\n- {name: b, rate: 5/y}\n",
    );
    let (code, said) = fails(&[&two], |_| {});
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.starts_with(&format!("error: {two}:2:")), "{said}");
    assert!(
        said.ends_with(" (1 more: see them all by tollgate check)\n"),
        "{said}"
    );
    let none = scratch.path("none.yaml");
    let none = none.to_str().expect("text");
    check(
        &[none],
        (
            1,
            &format!("can't read {none:?}: there is no such file; give the path of a policy file"),
        ),
    );
    path("folder/README", "nothing here");
    let folder = scratch.path("folder");
    let folder = folder.to_str().expect("text");
    check(
        &[folder],
        (
            1,
            &format!(
                "the folder {folder:?} has no policy file in it; give a folder with files named .yaml, .yml or .toml, or the path of one"
            ),
        ),
    );
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for (flag, protocol) in [
        ("http", "HTTP"),
        ("grpc", "gRPC"),
        ("resp", "RESP"),
        ("admin", "admin"),
    ] {
        let mut options = Vec::new();
        for own in ["--http", "--grpc", "--resp", "--admin"] {
            let is_it = own == format!("--{flag}");
            options.extend([own, if is_it { &address } else { "0" }]);
        }
        check(
            &options,
            (
                1,
                &format!(
                    "{address} is in use by another process: choose another address for {protocol} by --{flag}, or --{flag} off"
                ),
            ),
        );
    }
}

#[test]
fn help_is_no_error() {
    let run = tollgate()
        .args(["serve", "--help"])
        .output()
        .expect("it runs");
    assert_eq!(run.status.code(), Some(0));
    let said = String::from_utf8(run.stdout).expect("text");
    assert!(
        said.starts_with("Answer Envoy, Redis clients and HTTP"),
        "{said}"
    );
}

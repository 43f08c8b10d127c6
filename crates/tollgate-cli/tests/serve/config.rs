//! Settings: the precedence of their sources, and what `--print-config` shows.

use std::process::Command;

use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{file, tollgate};

/// What `--print-config` shows.
fn shown(options: &[&str], change: impl FnOnce(&mut Command)) -> String {
    let mut command = tollgate();
    command.arg("serve").args(options).arg("--print-config");
    change(&mut command);
    let run = command.output().expect("tollgate runs");
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{options:?}: {errors}");
    String::from_utf8(run.stdout).expect("text")
}

#[test]
fn all_listeners_are_of_this_machine_unless_told_otherwise() {
    let shown = shown(&[], |_| {});
    for line in [
        "# policy is not set",
        "http: 127.0.0.1:8080  # default",
        "grpc: 127.0.0.1:8081  # default",
        "resp: 127.0.0.1:6380  # default",
        "admin: 127.0.0.1:6070  # default",
        "backend: memory  # default",
        "require-store: false  # default",
        "# ready-file is not set",
    ] {
        assert!(shown.lines().any(|own| own == line), "{line}: {shown}");
    }
}

#[test]
fn a_flag_counts_before_the_environment_and_that_before_the_file() {
    let scratch = TempFolder::new("settings");
    let yaml = "http: 127.0.0.1:1\ngrpc: 127.0.0.1:2\nresp: 127.0.0.1:3\nheaders: [draft-6, github]\nadmin: off\n\
                policy: limits.yaml\nmax-holds: 7\n";
    let toml = "http = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"\nresp = \"127.0.0.1:3\"\n\
                headers = [\"draft-6\", \"github\"]\nadmin = \"off\"\npolicy = \"limits.yaml\"\nmax-holds = 7\n";
    for (name, text) in [("settings.yaml", yaml), ("settings.toml", toml)] {
        let path = file(&scratch, name, text);
        let path = path.to_str().expect("text");
        let set = |command: &mut Command| {
            command.env("TOLLGATE_GRPC", "127.0.0.1:20");
            command.env("TOLLGATE_RESP", "127.0.0.1:30");
            command.env("TOLLGATE_CONFIG", path);
        };
        let shown = shown(&["--resp", "127.0.0.1:300"], set);
        for line in [
            format!("policy: limits.yaml  # file {path}:6"),
            format!("http: 127.0.0.1:1  # file {path}:1"),
            "grpc: 127.0.0.1:20  # environment TOLLGATE_GRPC".to_owned(),
            "resp: 127.0.0.1:300  # flag".to_owned(),
            format!("admin: off  # file {path}:5"),
            format!("headers: draft-6,github  # file {path}:4"),
            format!("max-holds: 7  # file {path}:7"),
            "hold-time: 60s  # default".to_owned(),
        ] {
            assert!(shown.lines().any(|own| own == line), "{line}: {shown}");
        }
    }
}

#[test]
fn what_is_shown_is_a_file_of_settings() {
    let scratch = TempFolder::new("round");
    let first = shown(
        &[
            "a b.yaml",
            "--http",
            "unix:it's here",
            "--headers",
            "draft-6,github",
        ],
        |_| {},
    );
    let path = file(&scratch, "settings.yaml", &first);
    let second = shown(&["--config", path.to_str().expect("text")], |_| {});
    let values = |text: &str| {
        let lines = text.lines().map(|line| line.split("  # ").next());
        lines
            .map(|line| line.expect("a line").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&first), values(&second));
    assert!(first.contains("policy: \"a b.yaml\"  # flag\n"), "{first}");
}

#[test]
fn passwords_arent_shown() {
    let url = "redis://ada:sesame@127.0.0.1:1/0";
    let set = |command: &mut Command| {
        command.env("TOLLGATE_BACKEND", url);
    };
    assert!(shown(&[], set).contains("backend: \"redis://…@127.0.0.1:1/0\"  # environment"));
    let mut help = tollgate();
    let help = help
        .args(["serve", "--help"])
        .env("TOLLGATE_BACKEND", url)
        .output();
    let help = String::from_utf8(help.expect("it runs").stdout).expect("text");
    assert!(
        help.contains("TOLLGATE_BACKEND") && !help.contains("sesame"),
        "{help}"
    );
}

#[test]
fn a_variable_that_sets_nothing_is_warned_of() {
    let mut command = tollgate();
    command.args(["serve", "--print-config"]);
    command.env("TOLLGATE_MAX_HOLD", "5");
    let run = command.output().expect("tollgate runs");
    assert!(run.status.success());
    let said = String::from_utf8_lossy(&run.stderr);
    let warning =
        "TOLLGATE_MAX_HOLD in the environment is no setting: did you mean TOLLGATE_MAX_HOLDS?\n";
    assert!(
        said.contains("warning") && said.ends_with(warning),
        "{said}"
    );
}

//! The files in `contrib/` work with this command: its flags exist, its files are valid, and its commands run.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use crate::kit::tollgate;

mod docker;
mod kubernetes;
mod prometheus;
mod systemd;

/// A file of `contrib/`.
fn contrib(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(contrib(name)).unwrap_or_else(|error| panic!("contrib/{name}: {error}"))
}

/// The lines of a file that aren't empty or comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Runs a program to its end: whether it succeeded, and all its output.
fn run(command: &mut Command) -> (bool, String) {
    let ran = command.output();
    let ran = ran.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [ran.stdout, ran.stderr].concat();
    (
        ran.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// The settings that a service has with these arguments (after `tollgate`) and this environment, which must be right.
#[track_caller]
fn settings(arguments: &[String], environment: &[(String, String)]) -> Vec<(String, String)> {
    assert_eq!(arguments[0], "serve", "{arguments:?}");
    let mut command = tollgate();
    command.args(arguments).arg("--print-config");
    command.envs(environment.iter().cloned());
    let (is_content, said) = run(&mut command);
    assert!(is_content, "{arguments:?}: {said}");
    let settings = said.lines().filter(|line| !line.starts_with("# "));
    let settings = settings.filter_map(|line| line.split("  # ").next()?.split_once(": "));
    settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What one of these settings is.
#[track_caller]
fn setting<'s>(settings: &'s [(String, String)], name: &str) -> &'s str {
    let found = settings.iter().find(|(own, _)| own == name);
    found.map_or_else(|| panic!("no {name} in {settings:?}"), |(_, value)| value)
}

/// A whole number of seconds, as `20s`.
#[track_caller]
fn seconds(text: &str) -> u64 {
    let number = text.strip_suffix('s').and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{text}: whole seconds are compared"))
}

/// How long the service takes to end, at most: a store is given five seconds to take back what was taken in advance.
fn drain_seconds(settings: &[(String, String)]) -> u64 {
    let of = |name| seconds(setting(settings, name));
    of("drain-delay") + of("drain-time") + 5
}

/// What a listener of HTTP answers, all of it.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

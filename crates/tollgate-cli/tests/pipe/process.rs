//! The command as a process: closed pipes, signals, and messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("pipe")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([name, &id])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn what_was_dropped_is_told_on_standard_error() {
    let mut child = start(&["--rate", "2/h"]);
    child.stdin.take().unwrap().write_all(b"1\n2\n3\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.stdout, b"1\n2\n");
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(told, "tollgate pipe: 2 of 3 lines passed, 1 dropped\n");
    assert_eq!(ended.status.code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = start(&["--rate", "1000000000/s"]);
    drop(child.stdout.take());
    let mut input = child.stdin.take().unwrap();
    // It ends, so the pipe is closed at some point.
    while input.write_all(&[b'\n'; 4096]).is_ok() {}
    drop(input);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert!(ended.stderr.is_empty());
}

#[test]
fn a_signal_ends_it_and_no_line_that_it_accepted_is_lost() {
    for (name, code, mode) in [("-INT", 130, "--drop"), ("-TERM", 143, "--wait")] {
        let mut child = start(&["--rate", "3/h", "--summary", "always", mode]);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"1\n2\n3\n4\n5").unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        for _ in 0..3 {
            out.read_line(&mut lines).unwrap();
        }
        // Its input is still open: the signal alone ends it.
        signal(&child, name);
        out.read_to_string(&mut lines).unwrap();
        assert_eq!(lines, "1\n2\n3\n");
        let mut told = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        let expect = "tollgate pipe: 3 of 5 lines passed, 2 dropped\n";
        assert!(told.starts_with(expect), "{told}");
        assert_eq!(child.wait().unwrap().code(), Some(code));
        drop(input);
    }
}

#[test]
fn a_second_signal_ends_it_though_nobody_reads() {
    let mut child = start(&["--rate", "1000000000/s"]);
    let mut input = child.stdin.take().unwrap();
    // Its output is open and never read, so it blocks in a write, and then this one does.
    let writer = std::thread::spawn(move || while input.write_all(&[b'\n'; 4096]).is_ok() {});
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        signal(&child, "-INT");
    };
    assert_eq!(ended.code(), Some(130));
    writer.join().unwrap();
}

//! Which lines pass, on a clock that stands still or that nobody waits for.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_cli::pipe::{InterruptSource, PipeOptions, PipeReport, pipe};
use tollgate_cli::{Cli, Command};

fn options(words: &str) -> PipeOptions {
    let words = ["tollgate", "pipe"].into_iter().chain(words.split(' '));
    match Cli::try_parse_from(words).unwrap().command {
        Command::Pipe(options) => options,
        other => panic!("{other:?}"),
    }
}

fn run(words: &str, input: impl Read + Send + 'static) -> (Vec<u8>, PipeReport) {
    let mut out = Vec::new();
    let clock = Manual::new();
    let report = pipe(
        &options(words),
        input,
        &mut out,
        clock,
        &InterruptSource::never(),
    );
    (out, report.unwrap())
}

#[test]
fn lines_beyond_the_burst_are_dropped_and_the_rest_is_as_it_came() {
    let input = &b"one\r\n\ntwo \xff\x00\nthree\nfour"[..];
    let (out, report) = run("--rate 1/s --burst 3", input);
    assert_eq!(out, b"one\r\n\ntwo \xff\x00\n");
    assert_eq!((report.passed, report.dropped), (3, 2));
    let (out, report) = run("--rate 1/s --burst 9 --drop", input);
    assert_eq!(out, input, "the last line stays without its newline");
    assert_eq!(report.to_string(), "5 of 5 lines passed, 0 dropped");
}

#[test]
fn keys_are_limited_apart_and_lines_without_one_together() {
    let input = &b"a=1 x\na=2 x\na=1 y\nno key\nother\na=2 y\na=3\n"[..];
    let (out, _) = run(r"--rate 1/h --key a=(\d)", input);
    assert_eq!(out, b"a=1 x\na=2 x\nno key\na=3\n");
    let (out, _) = run(r"--rate 1/h --key a=\d.", input);
    assert_eq!(out, b"a=1 x\na=2 x\nno key\n", "a=3 has no sign after it");
}

#[test]
fn a_line_that_is_too_long_to_be_held_passes_or_not_as_a_whole() {
    let mut input = vec![b'x'; 3 << 20];
    input.extend_from_slice(b"\nshort\n");
    let expect = input[..=3 << 20].to_vec();
    let (out, report) = run("--rate 1/h", io::Cursor::new(input));
    assert!(out == expect);
    assert_eq!((report.passed, report.dropped), (1, 1));
}

#[test]
fn wrong_arguments_are_named() {
    for (words, expect) in [
        (
            "--rate 1/s --key (",
            "--key can't be used: regex parse error:",
        ),
        ("--rate 1/d --burst 99999999999", "rate"),
    ] {
        let mut out = Vec::new();
        let options = options(words);
        let failure = pipe(
            &options,
            io::empty(),
            &mut out,
            Manual::new(),
            &InterruptSource::never(),
        );
        let failure = failure.unwrap_err();
        assert!(failure.to_string().contains(expect), "{failure}");
        assert_eq!(failure.exit_code(), 2);
    }
}

/// The output with its times, for a test that moves the time.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn waiting_lines_leave_at_the_rate() {
    let (clock, out) = (Manual::new(), Shared::default());
    let (moved, mut written) = (clock.clone(), out.clone());
    let options = options("--rate 1/s --wait");
    let piped = std::thread::spawn(move || {
        let input = &b"one\ntwo\nthree\n"[..];
        pipe(
            &options,
            input,
            &mut written,
            moved,
            &InterruptSource::never(),
        )
    });
    for expect in [&b"one\n"[..], b"one\ntwo\n"] {
        while clock.parked() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(*out.0.lock().unwrap(), expect);
        clock.advance(Duration::from_secs(1));
        while out.0.lock().unwrap().len() == expect.len() {
            std::thread::yield_now();
        }
    }
    let report = piped.join().unwrap().unwrap();
    assert_eq!((report.passed, report.dropped), (3, 0));
}

/// Hands out bytes in pieces of these lengths.
struct Pieces(Vec<u8>, Vec<usize>);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.1.pop().unwrap_or(usize::MAX).max(1);
        let many = next.min(self.0.len()).min(buffer.len());
        buffer[..many].copy_from_slice(&self.0[..many]);
        self.0.drain(..many);
        Ok(many)
    }
}

proptest! {
    #[test]
    fn whatever_the_pieces_the_first_lines_pass_whole(
        input in vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
        pieces in vec(1usize..20, 0..40),
        burst in 1usize..40,
    ) {
        let lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
        let expect: Vec<u8> = lines.iter().take(burst).copied().flatten().copied().collect();
        let words = format!("--rate 1/h --burst {burst}");
        let (out, report) = run(&words, Pieces(input.clone(), pieces));
        prop_assert_eq!(out, expect);
        prop_assert_eq!(report.passed + report.dropped, lines.len() as u64);
    }
}

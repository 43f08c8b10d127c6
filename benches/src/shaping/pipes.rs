//! The throughput of `tollgate pipe` without a limit, against `cat`.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::report::{Line, Report};
use crate::runner::{as_f64, median};
use crate::timing::Stopwatch;

const BYTES: usize = 512 << 20;
const LINE: &[u8] =
    b"2026-11-16T23:16:00Z WARN service::store: no connection, trying again in 250 ms attempt=17 tenant=acme\n";
const ROUNDS: usize = 7;

/// Bytes a second through a command.
fn carried(command: &mut Command, block: &[u8]) -> io::Result<f64> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(mut input), Some(mut output)) = (input, output) else {
        return Err(io::Error::other("no pipes"));
    };
    let watch = Stopwatch::start();
    let got = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut buffer, mut got) = (vec![0; 1 << 20], 0u64);
            while let Ok(many) = output.read(&mut buffer) {
                if many == 0 {
                    break;
                }
                got += many as u64;
            }
            got
        });
        for _ in 0..BYTES / block.len() {
            input.write_all(block)?;
        }
        drop(input);
        reader.join().map_err(|_| io::Error::other("no reader"))
    })?;
    let seconds = watch.elapsed().as_secs_f64();
    child.wait()?;
    let sent = (BYTES / block.len() * block.len()) as u64;
    if got != sent {
        return Err(io::Error::other(format!("{got} of {sent} bytes came out")));
    }
    Ok(as_f64(got) / seconds)
}

pub(super) fn run(report: &mut Report) {
    let block: Vec<u8> = LINE
        .iter()
        .copied()
        .cycle()
        .take(LINE.len() * 1_000)
        .collect();
    let program = match crate::server::command() {
        Ok(program) => program,
        Err(error) => {
            report.note(format!("pipe: not measured: {error}"));
            return;
        }
    };
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut pipe = Command::new(&program);
        pipe.args(["pipe", "--rate", "1000000000/s", "--burst", "1000000000"]);
        let both = carried(&mut pipe, &block)
            .and_then(|ours| Ok((ours, carried(&mut Command::new("cat"), &block)?)));
        match both {
            Ok((our, their)) => {
                ours.push(our / 1e6);
                theirs.push(their / 1e6);
                ratios.push(their / our);
            }
            Err(error) => {
                report.note(format!("pipe: not measured: {error}"));
                return;
            }
        }
    }
    // Lower is better in all tables, so this is the time of ours for the same bytes relative to the peer's.
    let numbers = (median(ours), median(theirs), "MB/s");
    report.add(Line::new("pipe", "cat", numbers, median(ratios)).target(Some(2.0)));
}

//! The memory of a million keys, as bytes of the whole process.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::processes::{BuiltServer, Server};
use super::wire_protocols::Resp;
use super::{Failure, POLICY, here};
use crate::report::{Line, Report};
use crate::runner::as_f64;

const KEYS: u64 = 1_000_000;
/// Commands that are sent before their replies are read.
const BATCH: u64 = 1_000;
/// Our target, in bytes.
const MOST: f64 = 64e6;

pub(super) fn run(report: &mut Report, built: &BuiltServer) -> Result<(), Failure> {
    let redis = filled(Server::redis()?, &Resp::new("INCRBY", &["1"], 1))?;
    // A refill takes a month, so every key has to be kept.
    let throttle = Resp::new("CL.THROTTLE", &["1000", "1000", "2592000"], 6);
    let ours = filled(Server::tollgate(built, POLICY)?, &throttle)?;
    let line = |peer, theirs: f64| Line::new("memory-1m", peer, (ours, theirs, "B"), ours / theirs);
    report.add(line("redis", redis).target(Some(0.5)));
    report.add(line("64 MB", MOST).target(Some(1.0)));
    Ok(())
}

/// Makes a request for each key. Returns the server's memory after that.
fn filled(server: Server, command: &Resp) -> Result<f64, Failure> {
    let mut stream = TcpStream::connect(here(server.resp)?)?;
    let mut bytes = vec![0; 65_536];
    for first in (0..KEYS).step_by(usize::try_from(BATCH)?) {
        let mut out = Vec::new();
        for key in first..first + BATCH {
            command.command(key, &mut out);
        }
        stream.write_all(&out)?;
        let mut lines = usize::try_from(BATCH)? * command.lines;
        while lines > 0 {
            let read = stream.read(&mut bytes)?;
            let ends = bytes[..read].iter().filter(|byte| **byte == b'\n').count();
            if read == 0 || bytes[0] == b'-' {
                return Err(String::from_utf8_lossy(&bytes[..read]).into());
            }
            lines = lines.saturating_sub(ends);
        }
    }
    Ok(as_f64(server.resident()?))
}

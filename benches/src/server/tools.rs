//! Loads by well-known tools: h2load, wrk, redis-benchmark.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_testkit::temp_folder::TempFolder;

use super::Failure;
use super::processes::client_command;
use super::wire_protocols;

/// Keys of requests.
pub(super) const KEYS: u64 = 100_000;

/// How many decisions a load made, and how many in a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) decisions: f64,
    pub(super) per_second: f64,
}

/// Input files of the tools.
pub(super) struct Files {
    folder: TempFolder,
}

impl Files {
    pub(super) fn new() -> Result<Self, Failure> {
        let files = Self {
            folder: TempFolder::new("bench-load"),
        };
        files.write(
            "rls",
            &wire_protocols::framed(&wire_protocols::rate_limit_request(b"u12345")),
        )?;
        let check = script("/v1/check", r#"{"facts":{"user":"u' .. number .. '"}}"#);
        let same = script("/v1/check", r#"{"facts":{"user":"u12345"}}"#);
        files.write("same.lua", same.as_bytes())?;
        files.write("check.lua", check.as_bytes())?;
        let throttle = r#"{"key":"u' .. number .. '","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}"#;
        files.write("throttle.lua", script("/throttle", throttle).as_bytes())?;
        Ok(files)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let mut file = std::fs::File::create(self.path(name))?;
        Ok(file.write_all(bytes)?)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}

/// The script of wrk: each request has the next key.
fn script(path: &str, body: &str) -> String {
    format!(
        "wrk.method = 'POST'\nwrk.headers['content-type'] = 'application/json'\nlocal number = 0\n\
         request = function()\n  number = (number + 1) % {KEYS}\n  \
         return wrk.format(nil, '{path}', nil, '{body}')\nend\n"
    )
}

/// This many connections, and as many streams on each.
pub(super) fn h2load(
    address: SocketAddr,
    body: &Path,
    calls: u64,
    connections: u64,
) -> Result<Load, Failure> {
    let width = connections.to_string();
    let out = output(
        client_command("h2load")
            .args(["-n", &calls.to_string(), "-c", &width, "-m", &width, "-d"])
            .arg(body)
            .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
            .arg(format!(
                "http://{address}{}",
                wire_protocols::SHOULD_RATE_LIMIT
            )),
    )?;
    let succeeded = number_before(&out, " succeeded");
    let per_second = number_before(&out, " req/s");
    let (Some(decisions), Some(per_second)) = (succeeded, per_second) else {
        return Err(format!("h2load said {out:?}").into());
    };
    Ok(Load {
        decisions,
        per_second,
    })
}

/// The expected answers of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedAnswers {
    Pass,
    Refuse,
}

/// Fifty connections with keep-alive.
pub(super) fn wrk(
    address: SocketAddr,
    script: &Path,
    seconds: u64,
    answers: ExpectedAnswers,
) -> Result<Load, Failure> {
    let out = output(
        client_command("wrk")
            .args(["-t1", "-c50", &format!("-d{seconds}s"), "-s"])
            .arg(script)
            .arg(format!("http://{address}")),
    )?;
    let decisions = number_before(&out, " requests in");
    let per_second = out
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok());
    let passes = !out.contains("Non-2xx");
    match (decisions, per_second) {
        (Some(decisions), Some(per_second)) if passes == (answers == ExpectedAnswers::Pass) => {
            Ok(Load {
                decisions,
                per_second,
            })
        }
        _ => Err(format!("wrk said {out:?}").into()),
    }
}

/// Fifty connections, and this many commands in flight on each.
pub(super) fn redis_benchmark(
    address: SocketAddr,
    pipeline: u64,
    calls: u64,
    command: &[&str],
) -> Result<Load, Failure> {
    let out = output(
        client_command("redis-benchmark")
            .args(["-q", "-c", "50", "-p", &address.port().to_string()])
            .args(["-P", &pipeline.to_string(), "-n", &calls.to_string()])
            .args(["-r", &KEYS.to_string()])
            .args(command),
    )?;
    // Its progress is on the same line.
    let per_second = number_before(&out, " requests per second");
    let per_second = per_second.ok_or_else(|| format!("redis-benchmark said {out:?}"))?;
    #[expect(clippy::cast_precision_loss, reason = "calls stay far below 2^53")]
    let decisions = calls as f64;
    Ok(Load {
        decisions,
        per_second,
    })
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {said}{error}", output.status).into())
}

/// The last number before a text.
fn number_before(text: &str, words: &str) -> Option<f64> {
    let (front, _) = text.rsplit_once(words)?;
    let start = front.rfind(|c: char| !c.is_ascii_digit() && c != '.');
    front[start.map_or(0, |start| start + 1)..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_before_words() {
        let said = "finished in 1.02s, 98273.50 req/s, 5MB/s\nrequests: 100 total, 99 succeeded";
        assert_eq!(number_before(said, " req/s"), Some(98_273.5));
        assert_eq!(number_before(said, " succeeded"), Some(99.0));
        assert_eq!(number_before(said, " failed"), None);
    }
}

//! The 99th percentile of latencies while the policy is reloaded ten times a second, against the same service
//! without reloads.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::generator::{Generator, RequestPace};
use super::processes::{BuiltServer, Server};
use super::wire_protocols::{Grpc, Http, Resp, WireProtocol};
use super::{Failure, POLICY, ROUNDS, here, tools};
use crate::report::{Line, Report};
use crate::runner::median;
use crate::tail::percentile_at;
use crate::timing;

/// The share of the highest rate.
const SHARE: f64 = 0.7;
const SPAN: Duration = Duration::from_secs(1);
const EACH: Duration = Duration::from_millis(100);
const TARGET: f64 = 2.0;

/// The other policy has one more rule, which matches no request.
const MORE: &str = "\n- {name: others, match: {tenant: nobody}, key: user, rate: 10/s}\n";

pub(super) fn run(report: &mut Report, built: &BuiltServer) -> Result<(), Failure> {
    let one = POLICY.replace("limits: [", "limits:\n- ").replace(']', "");
    let server = Server::tollgate(built, &one)?;
    let policies = [format!("{one}{MORE}"), one];
    let grpc = Generator::new(here(server.grpc)?, 10, &Grpc::default(), tools::KEYS)?;
    compare(report, "reload-rls", grpc, (&server, &policies))?;
    let check = Http::new("/v1/check", ["{\"facts\":{\"user\":\"", "\"}}"]);
    let http = Generator::new(here(server.http)?, 50, &check, tools::KEYS)?;
    compare(report, "reload-http", http, (&server, &policies))?;
    let throttle = Resp::new("CL.THROTTLE", &["1000000", "1000000", "1"], 6);
    let resp = Generator::new(here(server.resp)?, 50, &throttle, tools::KEYS)?;
    compare(report, "reload-resp", resp, (&server, &policies))
}

/// Alternating rounds with reloads and without.
fn compare<S: WireProtocol + Clone>(
    report: &mut Report,
    case: &str,
    mut load: Generator<S>,
    (server, policies): (&Server, &[String; 2]),
) -> Result<(), Failure> {
    let highest = (0..3).map(|_| Ok(load.run(RequestPace::Full, SPAN)?.per_second));
    let highest = median(highest.collect::<Result<Vec<_>, Failure>>()?);
    let pace = RequestPace::Every(1e9 / (highest * SHARE));
    let mut late = || Ok::<_, Failure>(percentile_at(&load.run(pace, SPAN)?.times, 0.99) / 1e3);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let without = late()?;
        let is_over = AtomicBool::new(false);
        let with = std::thread::scope(|scope| {
            let reloading = scope.spawn(|| reload(server, policies, &is_over));
            let with = late();
            is_over.store(true, Ordering::Relaxed);
            let reloads = reloading.join().map_err(|_| "a panic")?;
            let reloads = reloads.map_err(|error| format!("a reload: {error}"))?;
            // Other processes may have had the core, but some reloads there must have been.
            if reloads < 5 {
                return Err(format!("{reloads} reloads in {SPAN:?}").into());
            }
            with
        })?;
        rounds.push((with, without));
    }
    let column = |pick: fn(&(f64, f64)) -> f64| median(rounds.iter().map(pick).collect());
    let numbers = (column(|round| round.0), column(|round| round.1), "us-p99");
    let ratio = column(|(with, without)| with / without);
    report.add(Line::new(case, "without", numbers, ratio).target(Some(TARGET)));
    Ok(())
}

/// Reloads two policies alternately until the round ends. Returns how often.
fn reload(
    server: &Server,
    policies: &[String; 2],
    is_over: &AtomicBool,
) -> Result<usize, std::io::Error> {
    let mut shell = Shell::start()?;
    let mut reloads = 0;
    while !is_over.load(Ordering::Relaxed) {
        let beside = server.policy.with_extension("next");
        fs::write(&beside, &policies[reloads % 2])?;
        fs::rename(&beside, &server.policy)?;
        shell.say(&format!("kill -HUP {}\n", server.id()))?;
        reloads += 1;
        timing::sleep(EACH);
    }
    Ok(reloads)
}

/// A shell that sends signals: a process for each would take the core from the clients.
struct Shell(Child);

impl Shell {
    fn start() -> Result<Self, std::io::Error> {
        let mut command = Command::new("sh");
        Ok(Self(command.stdin(Stdio::piped()).spawn()?))
    }

    fn say(&mut self, line: &str) -> Result<(), std::io::Error> {
        match &mut self.0.stdin {
            Some(input) => input.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

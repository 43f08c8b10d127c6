//! The group `server`: the service's cost of a decision over each protocol, against other servers that run at
//! the same time on the same core, measured alternately.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use crate::redis::GCRA_IN_LUA;
use crate::report::{Line, Report};
use crate::runner::{as_f64, median};

mod generator;
mod processes;
mod tools;
mod wire_protocols;

mod memory;
mod reload;
mod tail;

use generator::{Generator, RequestPace};
use processes::{BuiltServer, Server};
use tools::{ExpectedAnswers, Files, Load};
use wire_protocols::Grpc;

pub(crate) use processes::command;

type Failure = Box<dyn Error>;

const ROUNDS: usize = 5;
/// Calls in a round of tools that count calls: about a second.
const CALLS: u64 = 80_000;
const PIPELINED_CALLS: u64 = 800_000;
const SECONDS: u64 = 1;
/// Connections of h2load, and streams on each.
const CONNECTIONS: u64 = 10;

/// Every request passes.
const POLICY: &str = "limits: [{name: per-user, key: user, rate: 1000000/s burst 1000000}]";
const THROTTLE: [&str; 4] = ["key:__rand_int__", "1000000", "1000000", "1"];

/// The policy with many rules, three of which match.
const RULES: usize = 10_000;
const POLICY_KEYS: u64 = 1_000_000;

pub(crate) fn run(report: &mut Report) {
    if let Some(missing) = processes::missing_programs() {
        return report.note(missing);
    }
    if let Err(error) = cases(report) {
        report.note(format!("stopped: {error}"));
    }
}

fn cases(report: &mut Report) -> Result<(), Failure> {
    let built = BuiltServer::new()?;
    let all = ServerSet {
        ours: Server::tollgate(&built, POLICY)?,
        tonic: Server::tonic_ok(&built)?,
        hyper: Server::hyper_ok(&built)?,
        crab: Server::throttlecrab(&built)?,
        redis: Server::redis()?,
        files: Files::new()?,
    };
    rls(report, &all)?;
    http(report, &all)?;
    resp(report, &all)?;
    denials(report, &all, &built)?;
    processes::pin_to_client_core()?;
    policy(report, &built)?;
    tail::run(report, &all)?;
    drop(all);
    reload::run(report, &built)?;
    memory::run(report, &built)?;
    report.note(format!(
        "{ROUNDS} rounds in turns, medians of their ratios; servers on one core, who asks on another. ns: processor \
         time of the server for a decision; 1/s: decisions a second, where the ratio is theirs to ours. rls: h2load, \
         10 connections of 10 streams; http-check: wrk, 50 connections; resp-n: redis-benchmark, 50 connections, n \
         commands on the way, {} keys; refusal-…: a server that refuses beside one that admits; policy-rls: {RULES} rules, 3 of which match, {POLICY_KEYS} keys, beside one \
         rule and the same keys, from a generator of this benchmark",
        tools::KEYS
    ));
    Ok(())
}

/// Sends this many requests of Envoy's protocol over one connection, one after the other.
pub(crate) fn send_rls_requests(address: SocketAddr, requests: u64) -> Result<(), Failure> {
    // One key, and as long as it takes under callgrind.
    let mut generator = Generator::new(address, 1, &Grpc::default(), 1)?;
    let ran = generator.run(RequestPace::OneByOne(requests), Duration::from_secs(3_600))?;
    let is_whole = ran.times.len() as u64 == requests;
    let all = is_whole.then_some(());
    all.ok_or_else(|| format!("{} of {requests} were answered", ran.times.len()).into())
}

/// The servers, and the tools' files.
struct ServerSet {
    ours: Server,
    tonic: Server,
    hyper: Server,
    crab: Server,
    redis: Server,
    files: Files,
}

/// One server under one load.
struct ServerSide<'a> {
    name: &'static str,
    target: Option<f64>,
    server: &'a Server,
    load: Box<dyn FnMut() -> Result<Load, Failure> + 'a>,
}

impl<'a> ServerSide<'a> {
    fn new(
        name: &'static str,
        target: Option<f64>,
        server: &'a Server,
        load: impl FnMut() -> Result<Load, Failure> + 'a,
    ) -> Self {
        Self {
            name,
            target,
            server,
            load: Box::new(load),
        }
    }

    /// Nanoseconds of the server's processor time for each decision, and decisions in a second.
    fn measure(&mut self) -> Result<(f64, f64), Failure> {
        let before = self.server.cpu();
        let load = (self.load)().map_err(|error| format!("{}: {error}", self.name))?;
        let spent = as_f64(self.server.cpu() - before);
        Ok((spent / load.decisions, load.per_second))
    }
}

/// Alternating rounds of all sides. The first is ours; each of the others makes two lines.
fn compare(report: &mut Report, case: &str, sides: &mut [ServerSide<'_>]) -> Result<(), Failure> {
    let mut rounds = vec![Vec::new(); sides.len()];
    for round in 0..=ROUNDS {
        for (side, seen) in sides.iter_mut().zip(&mut rounds) {
            let measured = side.measure()?;
            // The first round warms up.
            if round > 0 {
                seen.push(measured);
            }
        }
    }
    let (ours, others) = rounds.split_first().ok_or("no sides")?;
    for (side, theirs) in sides[1..].iter().zip(others) {
        let of = |seen: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
            median(seen.iter().map(pick).collect())
        };
        let ratio = |pick: fn(&(f64, f64)) -> f64| {
            median(
                ours.iter()
                    .zip(theirs)
                    .map(|(a, b)| pick(a) / pick(b))
                    .collect(),
            )
        };
        let numbers = (of(ours, |seen| seen.0), of(theirs, |seen| seen.0), "ns");
        report.add(Line::new(case, side.name, numbers, ratio(|seen| seen.0)).target(side.target));
        let numbers = (of(ours, |seen| seen.1), of(theirs, |seen| seen.1), "1/s");
        report.add(Line::new(
            case,
            side.name,
            numbers,
            ratio(|seen| seen.1).recip(),
        ));
    }
    Ok(())
}

fn rls(report: &mut Report, all: &ServerSet) -> Result<(), Failure> {
    let body = all.files.path("rls");
    let load = |server: &Server| {
        let (address, body) = (server.grpc, &body);
        move || tools::h2load(here(address)?, body, CALLS, CONNECTIONS)
    };
    let mut sides = [
        ServerSide::new("tollgate", None, &all.ours, load(&all.ours)),
        ServerSide::new("tonic-ok", Some(1.15), &all.tonic, load(&all.tonic)),
    ];
    compare(report, "rls", &mut sides)
}

fn http(report: &mut Report, all: &ServerSet) -> Result<(), Failure> {
    let load = |server: &Server, script: &str| {
        let (address, script) = (server.http, all.files.path(script));
        move || tools::wrk(here(address)?, &script, SECONDS, ExpectedAnswers::Pass)
    };
    let crab = load(&all.crab, "throttle.lua");
    let hyper = load(&all.hyper, "check.lua");
    let mut sides = [
        ServerSide::new("tollgate", None, &all.ours, load(&all.ours, "check.lua")),
        ServerSide::new("hyper-ok", None, &all.hyper, hyper),
        ServerSide::new("throttlecrab-http", Some(0.75), &all.crab, crab),
    ];
    compare(report, "http-check", &mut sides)
}

fn resp(report: &mut Report, all: &ServerSet) -> Result<(), Failure> {
    let sha = all.redis.send_command(&["SCRIPT", "LOAD", GCRA_IN_LUA])?;
    // By a limit that the command brings along, which has targets; and by the policy, which has none.
    let asks: [(&str, Vec<&str>, bool); 2] = [
        ("resp", [&["CL.THROTTLE"][..], &THROTTLE].concat(), true),
        ("resp-check", vec!["TG.CHECK", "user=__rand_int__"], false),
    ];
    let incrby = ["INCRBY", "key:__rand_int__", "1"];
    let lua = ["EVALSHA", &sha, "1", "lua:__rand_int__", "1", "1000000"];
    let crab = [&["THROTTLE"][..], &THROTTLE].concat();
    for (name, ask, has_targets) in &asks {
        let target = |ratio| Some(ratio).filter(|_| *has_targets);
        for pipeline in [1, 16, 64] {
            let calls = if pipeline == 1 {
                CALLS
            } else {
                PIPELINED_CALLS
            };
            let load = |server: &Server, command: &[&str], calls| {
                let (address, command) = (server.resp, command.iter().map(ToString::to_string));
                let command: Vec<String> = command.collect();
                move || {
                    let command: Vec<&str> = command.iter().map(String::as_str).collect();
                    tools::redis_benchmark(here(address)?, pipeline, calls, &command)
                }
            };
            let mut sides = vec![
                ServerSide::new("tollgate", None, &all.ours, load(&all.ours, ask, calls)),
                ServerSide::new(
                    "redis-incrby",
                    target(1.0),
                    &all.redis,
                    load(&all.redis, &incrby, calls),
                ),
            ];
            sides.push(if pipeline == 1 {
                ServerSide::new(
                    "throttlecrab-resp",
                    target(0.9),
                    &all.crab,
                    load(&all.crab, &crab, calls),
                )
            } else {
                ServerSide::new(
                    "redis-lua",
                    target(0.2),
                    &all.redis,
                    load(&all.redis, &lua, calls / 5),
                )
            });
            compare(report, &format!("{name}-{pipeline}"), &mut sides)?;
        }
    }
    Ok(())
}

/// Our service with denials only against the same with admissions only, with one key each.
fn denials(report: &mut Report, all: &ServerSet, built: &BuiltServer) -> Result<(), Failure> {
    let full = Server::tollgate(built, "limits: [{name: per-user, key: user, rate: 1/d}]")?;
    let body = all.files.path("rls");
    let load = |server: &Server| {
        let (address, body) = (server.grpc, &body);
        move || tools::h2load(here(address)?, body, CALLS, CONNECTIONS)
    };
    let target = Some(1.0);
    let mut sides = [
        ServerSide::new("refusal", None, &full, load(&full)),
        ServerSide::new("admission", target, &all.ours, load(&all.ours)),
    ];
    compare(report, "refusal-rls", &mut sides)?;
    let script = all.files.path("same.lua");
    let load = |server: &Server, answers| {
        let (address, script) = (server.http, &script);
        move || tools::wrk(here(address)?, script, SECONDS, answers)
    };
    let admit = load(&all.ours, ExpectedAnswers::Pass);
    let mut sides = [
        ServerSide::new("refusal", None, &full, load(&full, ExpectedAnswers::Refuse)),
        ServerSide::new("admission", target, &all.ours, admit),
    ];
    compare(report, "refusal-http", &mut sides)?;
    let load = |server: &Server, numbers: [&'static str; 3]| {
        let address = server.resp;
        move || {
            let command = [&["CL.THROTTLE", "same"][..], &numbers].concat();
            tools::redis_benchmark(here(address)?, 1, CALLS, &command)
        }
    };
    let mut sides = [
        ServerSide::new("refusal", None, &full, load(&full, ["0", "1", "86400"])),
        ServerSide::new(
            "admission",
            target,
            &all.ours,
            load(&all.ours, ["1000000", "1000000", "1"]),
        ),
    ];
    compare(report, "refusal-resp-1", &mut sides)
}

/// Our service with many rules against the same with one.
fn policy(report: &mut Report, built: &BuiltServer) -> Result<(), Failure> {
    let (many, one) = (
        Server::tollgate(built, &rules())?,
        Server::tollgate(built, POLICY)?,
    );
    let load = |server: &Server| -> Result<_, Failure> {
        let mut generator = Generator::new(here(server.grpc)?, 10, &Grpc::default(), POLICY_KEYS)?;
        Ok(move || {
            let ran = generator.run(RequestPace::Full, Duration::from_secs(SECONDS))?;
            Ok(Load {
                decisions: as_f64(ran.times.len() as u64),
                per_second: ran.per_second,
            })
        })
    };
    let (loads, load) = (load(&many)?, load(&one)?);
    let mut sides = [
        ServerSide::new("policy", None, &many, loads),
        ServerSide::new("rls", Some(1.3), &one, load),
    ];
    compare(report, "policy-rls", &mut sides)
}

/// Three rules for all clients, among many for certain tenants.
fn rules() -> String {
    let mut text = "limits:\n".to_owned();
    for number in 3..RULES {
        text += &format!(
            "  - {{name: tenant-{number}, match: {{tenant: t{number}}}, key: user, rate: 10/s}}\n"
        );
    }
    for name in ["second", "minute", "hour"] {
        text += &format!("  - {{name: per-{name}, key: user, rate: 1000000000/{name}}}\n");
    }
    text
}

fn here(address: Option<SocketAddr>) -> Result<SocketAddr, Failure> {
    address.ok_or_else(|| "it doesn't speak this protocol".into())
}

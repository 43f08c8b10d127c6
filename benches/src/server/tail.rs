//! The 99th percentile of latencies, at seven tenths of the peer's highest rate.

use std::time::Duration;

use super::generator::{Generator, RequestPace};
use super::wire_protocols::{Grpc, Http, Resp, WireProtocol};
use super::{Failure, ROUNDS, ServerSet, here, tools};
use crate::report::{Line, Report};
use crate::runner::median;
use crate::tail::percentile_at;

/// The share of the peer's highest rate.
const SHARE: f64 = 0.7;
const SPAN: Duration = Duration::from_secs(1);
const KEYS: u64 = tools::KEYS;

pub(super) fn run(report: &mut Report, all: &ServerSet) -> Result<(), Failure> {
    let (ours, theirs) = (here(all.ours.grpc)?, here(all.tonic.grpc)?);
    let sides = [
        Generator::new(ours, 10, &Grpc::default(), KEYS)?,
        Generator::new(theirs, 10, &Grpc::default(), KEYS)?,
    ];
    compare(report, ("p99-rls", "tonic-ok", 1.15), sides)?;
    let (ours, theirs) = (here(all.ours.http)?, here(all.crab.http)?);
    let check = Http::new("/v1/check", ["{\"facts\":{\"user\":\"", "\"}}"]);
    let throttle = Http::new(
        "/throttle",
        [
            "{\"key\":\"",
            "\",\"max_burst\":1000000,\"count_per_period\":1000000,\"period\":1,\"quantity\":1}",
        ],
    );
    let sides = [
        Generator::new(ours, 50, &check, KEYS)?,
        Generator::new(theirs, 50, &throttle, KEYS)?,
    ];
    compare(report, ("p99-http", "throttlecrab-http", 1.0), sides)?;
    let (ours, theirs) = (here(all.ours.resp)?, here(all.redis.resp)?);
    let throttle = Resp::new("CL.THROTTLE", &["1000000", "1000000", "1"], 6);
    let sides = [
        Generator::new(ours, 50, &throttle, KEYS)?,
        Generator::new(theirs, 50, &Resp::new("INCRBY", &["1"], 1), KEYS)?,
    ];
    compare(report, ("p99-resp", "redis-incrby", 1.0), sides)
}

/// The first side is ours.
fn compare<S: WireProtocol + Clone>(
    report: &mut Report,
    (case, peer, target): (&str, &'static str, f64),
    [mut ours, mut theirs]: [Generator<S>; 2],
) -> Result<(), Failure> {
    let highest = (0..3).map(|_| Ok(theirs.run(RequestPace::Full, SPAN)?.per_second));
    let highest = median(highest.collect::<Result<Vec<_>, Failure>>()?);
    let pace = RequestPace::Every(1e9 / (highest * SHARE));
    let late = |side: &mut Generator<S>, share| {
        Ok::<_, Failure>(percentile_at(&side.run(pace, SPAN)?.times, share) / 1e3)
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((late(&mut ours, 0.99)?, late(&mut theirs, 0.99)?));
    }
    let column = |pick: fn(&(f64, f64)) -> f64| median(rounds.iter().map(pick).collect());
    let numbers = (column(|round| round.0), column(|round| round.1), "us-p99");
    let ratio = column(|(ours, theirs)| ours / theirs);
    report.add(Line::new(case, peer, numbers, ratio).target(Some(target)));
    Ok(())
}

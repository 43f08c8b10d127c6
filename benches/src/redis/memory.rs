//! The memory of a key in the server, for each kind of limit.

use std::time::Duration;

use tollgate::{Algorithm, Rate, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;

use super::load::Bench;
use super::{Failure, KEYS};
use crate::report::Report;
use crate::runner::as_f64;

pub(super) fn run(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let rate = Rate::per_hour(100);
    let kind = |algorithm| LimitKind::Rate { rate, algorithm };
    let mut told = Vec::new();
    for (name, kind, is_leased) in [
        ("gcra", kind(Algorithm::Gcra), false),
        ("gcra leased", kind(Algorithm::Gcra), true),
        (
            "fixed-window",
            kind(Algorithm::FixedWindow(WindowAlignment::FirstHit)),
            false,
        ),
        ("sliding-counter", kind(Algorithm::SlidingCounter), false),
        ("sliding-log", kind(Algorithm::SlidingLog), false),
        ("quota", LimitKind::Quota("100/day".parse()?), false),
        (
            "rolling quota",
            LimitKind::Quota("100 in any 24h".parse()?),
            false,
        ),
        ("slots", LimitKind::Concurrency(100), false),
    ] {
        bench.server.command(&["FLUSHALL", "SYNC"]);
        let life = Duration::from_secs(600);
        let redis = bench.connect(|builder| builder.lease_duration(life).permit_ttl(life))?;
        let limiter = redis.limiter_with_kind(name, kind);
        let limiter = if is_leased { limiter.leased() } else { limiter };
        let limiter = limiter.build()?.into();
        bench.warm_keys(&limiter, 1);
        let before = used(bench)?;
        let held = bench.warm_keys(&limiter, KEYS);
        let bytes = used(bench)?.saturating_sub(before);
        drop(held);
        told.push(format!("{name} {:.0}", as_f64(bytes) / as_f64(KEYS as u64)));
    }
    report.note(format!(
        "bytes a key in the server's memory, its name and its share of the tables included, of {KEYS} keys \
         with one hit each: {}",
        told.join(", ")
    ));
    Ok(())
}

fn used(bench: &Bench) -> Result<u64, Failure> {
    Ok(bench.server.info("memory", "used_memory").parse()?)
}

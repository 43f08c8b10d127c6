//! The report of a load test: as text through `Display`, as one JSON object through serde.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use tollgate_engine::render;
use tollgate_redis::{FailureKind, FailureStats, RedisStats};

use super::drive::RunResult;
use super::{BackendAddress, FleetCounting, LoadOptions, StoreFailureChoice, value_name};
use crate::outcome::CliError;
use crate::output::format_thousands;
use crate::policy::parse_duration;
use crate::simulate::rate_with_burst;

/// The result of a load test. Its JSON has the fields in this order.
///
/// A field without a meaning is `None`, in JSON null: a limit in memory has no fields about a store.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The backend, without user and password.
    pub backend: String,
    /// How several nodes count.
    pub mode: String,
    /// The limit of each key, with its burst spelled out.
    pub rate: String,
    /// The algorithm.
    pub algorithm: String,
    /// The name of the limit.
    pub name: String,
    /// The number of keys.
    pub keys: u32,
    /// The number of concurrent tasks.
    pub tasks: u32,
    /// The cost of each decision.
    pub cost: u64,
    /// The failure mode while the store is unreachable.
    pub on_failure: Option<&'static str>,
    /// The start of the run by the wall clock, in RFC 3339.
    pub started_at: String,
    /// The end of the run.
    pub ended_at: String,
    /// Whether Ctrl-C ended the run early.
    pub interrupted: bool,
    /// The duration of the run, in seconds.
    pub elapsed_s: f64,
    /// The number of decisions.
    pub decisions: u64,
    /// Decisions per second.
    pub decisions_per_s: f64,
    /// Decisions that the limit allowed.
    pub admitted: u64,
    /// Decisions that the limit denied.
    pub denied: u64,
    /// Decisions that were made without the store.
    pub fallback_decisions: u64,
    /// Of these, the allowed ones.
    pub fallback_admitted: u64,
    /// Of these, the denied ones.
    pub fallback_denied: u64,
    /// Failed requests to the store.
    pub errors: u64,
    /// All failed requests, by kind of failure.
    pub failures: Vec<FailureReport>,
    /// The latencies of all decisions.
    pub latency_ns: Latency,
    /// The latencies of allowed decisions; `None` if there were none.
    pub admitted_latency_ns: Option<Latency>,
    /// Round trips to the store.
    pub round_trips: Option<u64>,
    /// Round trips for a thousand decisions.
    pub round_trips_per_1000: Option<f64>,
    /// Denials from the deny cache, without a request to the store.
    pub near_hits: Option<u64>,
    /// Connections that were opened, including the first.
    pub connects: Option<u64>,
    /// The duration of the run.
    #[serde(skip)]
    pub elapsed: Duration,
    /// The timeout of a decision's wait for the store.
    #[serde(skip)]
    timeout: Duration,
}

/// Latencies in nanoseconds, to two digits. Every decision was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The maximum.
    pub max: u64,
}

/// Requests to the store that failed in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailureReport {
    /// The kind of failure, such as `timed-out`.
    #[serde(serialize_with = "serialize_name")]
    pub kind: FailureKind,
    /// The number of failures.
    pub count: u64,
    /// The error message of the first.
    pub first: String,
    /// The time of the first, in seconds since the start of the run.
    pub began_s: f64,
    /// The time from the first to the latest, in seconds.
    pub lasted_s: f64,
    /// Whether the store had still not answered when the run ended.
    pub is_going_on: bool,
}

// Serde passes a reference.
fn serialize_name<S: Serializer>(kind: &FailureKind, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(kind.name())
}

impl FailureReport {
    fn of(stats: FailureStats, elapsed: Duration) -> Self {
        Self {
            began_s: elapsed.saturating_sub(stats.first_ago).as_secs_f64(),
            lasted_s: stats.duration().as_secs_f64(),
            is_going_on: stats.failing_for.is_some(),
            kind: stats.kind,
            count: stats.count,
            first: stats.first_error,
        }
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = format_thousands(self.count);
        write!(f, "  {:<20}{count:>6}", self.kind)?;
        if self.is_going_on {
            write!(f, "  from {:.3}s to the end: ", self.began_s)?
        } else {
            let last = self.began_s + self.lasted_s;
            write!(f, "  first at {:.3}s, last at {last:.3}s: ", self.began_s)?;
        }
        f.write_str(&self.first)
    }
}

impl LoadReport {
    pub(super) fn new(
        options: &LoadOptions,
        driven: &RunResult,
        store: Option<RedisStats>,
    ) -> Self {
        let RunResult { tally, elapsed, .. } = driven;
        let decisions = tally.decisions();
        let mut all = tally.other_latency.clone();
        // Both histograms have the same precision and resize themselves, so adding can't fail.
        let _ = all.add(&tally.admitted_latency);
        let store = store.as_ref();
        let failures = store.into_iter().flat_map(|store| &store.failures);
        let failures = failures.map(|stats| FailureReport::of(stats.clone(), *elapsed));
        let is_store = store.is_some();
        let round_trips = store.map(|store| store.round_trips);
        let on_failure = options.on_failure.unwrap_or(StoreFailureChoice::Local);
        Self {
            backend: BackendAddress::to_string(&options.backend),
            mode: store.map_or(value_name(FleetCounting::Exact), |_| {
                value_name(options.mode)
            }),
            rate: rate_with_burst(options.rate),
            algorithm: value_name(options.algorithm),
            name: options.name.clone(),
            keys: options.keys,
            tasks: options.tasks,
            cost: options.cost,
            on_failure: is_store.then_some(on_failure.store_failure_policy().name()),
            started_at: driven.started.to_string(),
            ended_at: driven.ended.to_string(),
            interrupted: driven.is_interrupted,
            elapsed_s: elapsed.as_secs_f64(),
            decisions,
            decisions_per_s: decisions as f64 / elapsed.as_secs_f64(),
            admitted: tally.admitted,
            denied: tally.denied,
            fallback_decisions: tally.fallback_admitted + tally.fallback_denied,
            fallback_admitted: tally.fallback_admitted,
            fallback_denied: tally.fallback_denied,
            errors: store.map_or(0, |store| store.fallback.errors),
            failures: failures.collect(),
            latency_ns: Latency::of(&all),
            admitted_latency_ns: (tally.admitted > 0).then(|| Latency::of(&tally.admitted_latency)),
            round_trips,
            round_trips_per_1000: round_trips
                .map(|calls| calls as f64 * 1e3 / decisions.max(1) as f64),
            near_hits: store.map(|store| store.repeated_denials),
            connects: store.map(|store| store.connects),
            elapsed: *elapsed,
            timeout: options.timeout,
        }
    }

    /// The error of a run in which the store made no decision at all: then the run measured something else than the
    /// user intended. A run with `--on-failure` intends it, unless the failure is one that waiting doesn't repair.
    pub fn no_decision_error(&self, options: &LoadOptions) -> Option<CliError> {
        let failed = self.failures.iter().max_by_key(|failed| failed.count)?;
        let is_meant = options.on_failure.is_some() && !failed.kind.is_lasting();
        let is_decided = self.admitted > 0 || self.denied > 0;
        (!is_decided && !is_meant).then(|| {
            let (place, count) = (&self.backend, format_thousands(failed.count));
            CliError::failed(format_args!(
                "{place}: the store decided nothing: {}, {count} times; first: {}",
                failed.kind, failed.first
            ))
        })
    }
}

impl Latency {
    fn of(nanos: &Histogram<u64>) -> Self {
        Self {
            p50: nanos.value_at_quantile(0.5),
            p99: nanos.value_at_quantile(0.99),
            p999: nanos.value_at_quantile(0.999),
            max: nanos.max(),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999, max] = [self.p50, self.p99, self.p999, self.max].map(format_latency);
        write!(f, "p50 {p50}  p99 {p99}  p99.9 {p999}  max {max}")
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = if self.keys == 1 { "key" } else { "keys" };
        let (count, algorithm) = (format_thousands(u64::from(self.keys)), &self.algorithm);
        writeln!(f, "limit      {}, {algorithm}, {count} {keys}", self.rate)?;
        write!(f, "backend    {}", self.backend)?;
        if let Some(choice) = self.on_failure {
            let timeout =
                format_latency(u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX));
            write!(f, ", {}, name {}", self.mode, render::escaped(&self.name))?;
            write!(f, ", timeout {timeout}, on failure {choice}")?;
        }
        let tasks = if self.tasks == 1 { "task" } else { "tasks" };
        let seconds = self.elapsed.as_secs_f64();
        let (count, cost) = (format_thousands(u64::from(self.tasks)), self.cost);
        let by = if self.interrupted {
            ", ended by Ctrl-C"
        } else {
            ""
        };
        writeln!(
            f,
            "\nload       {count} {tasks} for {seconds:.3}s, cost {cost}{by}\n"
        )?;

        let line = |f: &mut fmt::Formatter<'_>, label: &str, count: u64, rest: &str| {
            writeln!(f, "{label:<12}{:>16}{rest}", format_thousands(count))
        };
        let per_second = format!("  {:.0}/s", self.decisions_per_s);
        line(f, "decisions", self.decisions, &per_second)?;
        let share = self.admitted as f64 * self.cost as f64 / seconds;
        let share = format!("  {share:.0} units/s");
        line(f, "admitted", self.admitted, &share)?;
        line(f, "denied", self.denied, "")?;
        if let (Some(round_trips), Some(each)) = (self.round_trips, self.round_trips_per_1000) {
            let [passed, refused] =
                [self.fallback_admitted, self.fallback_denied].map(format_thousands);
            let of = match self.fallback_decisions {
                0 => String::new(),
                _ => format!("  {passed} let through, {refused} refused"),
            };
            line(f, "fallback", self.fallback_decisions, &of)?;
            line(f, "errors", self.errors, "")?;
            for failed in &self.failures {
                writeln!(f, "{failed}")?;
            }
            let each = format!("  {each:.3} per 1,000 decisions");
            line(f, "round trips", round_trips, &each)?;
        }
        writeln!(f, "\nlatency    {}", self.latency_ns)?;
        if let Some(admitted) = &self.admitted_latency_ns {
            writeln!(f, "admitted   {admitted}")?;
        }
        Ok(())
    }
}

/// Parses a duration above zero, such as `300ms`, `5s` or `1m`.
pub(super) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text)?;
    if length.is_zero() {
        return Err("it has to take some time, such as 300ms, 5s or 1m".to_owned());
    }
    Ok(length)
}

/// A latency in a fitting unit, to three digits: `210ns`, `4.35us`, `12.4ms`, `1.02s`.
pub(super) fn format_latency(nanos: u64) -> String {
    let (unit, length) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => ("us", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let number = nanos as f64 / length;
    let decimals = match number {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_no_moment() {
        assert_eq!(
            parse_positive_duration("300ms"),
            Ok(Duration::from_millis(300))
        );
        assert_eq!(parse_positive_duration("1m"), Ok(Duration::from_secs(60)));
        let error = "it has to take some time, such as 300ms, 5s or 1m";
        assert_eq!(parse_positive_duration("0s"), Err(error.to_owned()));
        assert!(parse_positive_duration("5").is_err());
    }

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(format_thousands(number), expected);
        }
        for (nanos, expected) in [
            (210, "210ns"),
            (4_350, "4.35us"),
            (12_400_000, "12.4ms"),
            (999_000, "999us"),
            (1_020_000_000, "1.02s"),
        ] {
            assert_eq!(format_latency(nanos), expected);
        }
    }
}

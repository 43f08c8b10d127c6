//! The report of a run: as text through `Display`, as one JSON object through serde.

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

/// What a limit and its store made of the load. The fields of its JSON come in this order.
///
/// What has no meaning is `None`, in JSON null: what only a store has, for one in memory.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// Where the limit was kept, without user and password.
    pub backend: String,
    /// How a fleet counts it.
    pub mode: String,
    /// The limit of each key, with its burst spelled out.
    pub rate: String,
    /// How it was counted.
    pub algorithm: String,
    /// What it was kept under.
    pub name: String,
    /// How many keys were asked about.
    pub keys: u32,
    /// How many asked at the same time.
    pub tasks: u32,
    /// What each decision cost.
    pub cost: u64,
    /// What decisions got while the store couldn't be asked.
    pub on_failure: Option<&'static str>,
    /// When the run began, by the calendar, as RFC 3339 has it.
    pub started_at: String,
    /// When it ended.
    pub ended_at: String,
    /// Whether Ctrl-C ended it before its time.
    pub interrupted: bool,
    /// How long the run took, in seconds.
    pub elapsed_s: f64,
    /// All decisions.
    pub decisions: u64,
    /// How many of them there were in a second.
    pub decisions_per_s: f64,
    /// How many the limit let through.
    pub admitted: u64,
    /// How many the limit refused.
    pub denied: u64,
    /// How many were decided without the store.
    pub fallback_decisions: u64,
    /// Of those, how many were let through.
    pub fallback_admitted: u64,
    /// Of those, how many were refused.
    pub fallback_denied: u64,
    /// Times that the store was asked in vain.
    pub errors: u64,
    /// Every one of those, by what sort of failure it was.
    pub failures: Vec<FailureReport>,
    /// How long all decisions took.
    pub latency_ns: Latency,
    /// How long those took that the limit let through; `None` if there were none.
    pub admitted_latency_ns: Option<Latency>,
    /// Calls to the store.
    pub round_trips: Option<u64>,
    /// Calls to the store for a thousand decisions.
    pub round_trips_per_1000: Option<f64>,
    /// Refusals that were repeated without asking.
    pub near_hits: Option<u64>,
    /// Connections that were made, the first one included.
    pub connects: Option<u64>,
    /// How long the run took.
    #[serde(skip)]
    pub elapsed: Duration,
    /// How long a decision waited for the store at most.
    #[serde(skip)]
    timeout: Duration,
}

/// How long decisions took, in nanoseconds, to two digits. Each was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Half of them took no longer.
    pub p50: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// 999 of 1,000 took no longer.
    pub p999: u64,
    /// None took longer.
    pub max: u64,
}

/// Questions that failed in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailureReport {
    /// What sort of failure, such as `timed-out`.
    #[serde(serialize_with = "serialize_name")]
    pub kind: FailureKind,
    /// How many.
    pub count: u64,
    /// What the first was told.
    pub first: String,
    /// When that was, in seconds since the run began.
    pub began_s: f64,
    /// From then until the latest, in seconds.
    pub lasted_s: f64,
    /// Whether the store hadn't answered since, when the run ended.
    pub is_going_on: bool,
}

// Serde hands over a reference.
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
        // Both have the same digits, and grow as they must.
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

    /// Whether the store was asked and decided nothing at all, which nobody wanted to see: what was measured is
    /// something else then. Somebody did who said what decisions are to get without it, unless waiting doesn't
    /// mend it.
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

/// Reads a time that something takes, such as `300ms`, `5s` or `1m`.
pub(super) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text)?;
    if length.is_zero() {
        return Err("it has to take some time, such as 300ms, 5s or 1m".to_owned());
    }
    Ok(length)
}

/// A latency in the unit that suits it, to three digits: `210ns`, `4.35us`, `12.4ms`, `1.02s`.
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

//! `tollgate simulate`: runs a traffic pattern through every algorithm on virtual time.
//!
//! The flow is [`pattern`] → [`runner`] → [`AlgorithmReport`]. Nothing here reads a clock.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use tollgate_adaptive::AdaptiveAlgorithm;
use tollgate_adaptive::simulation::Scenario;
use tollgate_core::{LimitError, Rate};

mod adaptive;
mod format;
pub mod pattern;
mod plot;
mod policy;
mod report;
pub mod runner;
pub mod tally;

pub use adaptive::{AdaptiveLine, AdaptiveReport, simulate_adaptive};
pub use pattern::{Pattern, PatternError};
pub use policy::{PolicyReport, simulate_policy};
pub use report::{AlgorithmReport, AlgorithmResult};

pub(crate) use report::rate_with_burst;

use crate::outcome::CliError;
use crate::output::{write_error, write_report};
use crate::policy::{DescriptorArg, FactArg, parse_duration};
use runner::{AlgorithmForm, RunResult};

/// Options of `tollgate simulate`.
///
/// ```
/// use tollgate_cli::simulate::{SimulateOptions, Pattern, simulate_algorithms};
///
/// let boundary = SimulateOptions { pattern: Pattern::Boundary, ..SimulateOptions::default() };
/// let report = simulate_algorithms(&boundary)?;
/// let fixed = report.algorithms.iter().find(|line| line.name == "fixed window").unwrap();
/// assert_eq!(fixed.peak_1s, Some(200));
/// # Ok::<(), tollgate_cli::simulate::PatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
The traffic follows the rate's count and period: at 100/m the pattern takes minutes. A period
below a second is repeated until it fills a second. \"zero\" and \"unlimited\" get the traffic of 100/s.

Exit code 0: the simulation ran; 1: the policy has errors; 2: the arguments are wrong.

Examples:
  tollgate simulate
  tollgate simulate --pattern boundary
  tollgate simulate policy.yaml --fact user=42 --fact path=/api/x
  tollgate simulate ratelimit.yaml --domain edge --descriptor remote_address=10.0.0.1
  tollgate simulate --rate '50/s burst 10' --pattern poisson --seed 7 --json
  tollgate simulate --adaptive
  tollgate simulate --adaptive --law little --law gradient2 --scenario recovers --svg limits.svg")]
pub struct SimulateOptions {
    /// A policy file, or a folder whose files are one policy, or - for standard input. Runs the traffic through the
    /// policy instead of each algorithm.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A fact of every request, as name=value, for a policy; repeat it for each fact.
    #[arg(long = "fact", value_name = "NAME=VALUE", requires = "file")]
    pub facts: Vec<FactArg>,
    /// The domain of every request, for a file in envoyproxy/ratelimit's form.
    #[arg(long, value_name = "NAME", requires = "file", requires = "descriptors")]
    pub domain: Option<String>,
    /// A descriptor of every request, as key=value,key2=value2; repeat it for each.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,…", requires = "domain")]
    pub descriptors: Vec<DescriptorArg>,
    /// The limit, such as "100/s burst 200", "10 per 250ms", "zero" or "unlimited". With a policy it only sets the
    /// amount of traffic.
    #[arg(long, value_name = "RATE", default_value = DEFAULT_RATE)]
    pub rate: Rate,
    /// The traffic pattern.
    #[arg(long, value_enum, value_name = "PATTERN", default_value_t)]
    pub pattern: Pattern,
    /// The seed of the poisson pattern. The same seed gives the same traffic.
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_SEED)]
    pub seed: u64,
    /// How long each request that passes runs, for a policy with concurrency limits; 0ms ends it immediately.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration, requires = "file")]
    pub hold: Duration,
    /// Simulate the algorithms of adaptive limits instead, with a model of a queueing server.
    #[arg(long, conflicts_with_all = ["file", "rate", "pattern"])]
    pub adaptive: bool,
    /// The adaptive algorithm: little, aimd, vegas, gradient, gradient2, windowed, bbr, latency or self-tuning;
    /// repeat it for each. The default is little.
    #[arg(long = "law", value_name = "LAW", requires = "adaptive")]
    pub laws: Vec<AdaptiveAlgorithm>,
    /// The scenario, instead of all.
    #[arg(long, value_name = "SCENARIO", requires = "adaptive", value_parser = scenario_names())]
    pub scenario: Option<String>,
    /// Write a chart of limit, calls in flight, latency and goodput over time to this SVG file.
    #[arg(long, value_name = "FILE", requires = "scenario")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object instead of the table and the plot.
    #[arg(long)]
    pub json: bool,
}

impl Default for SimulateOptions {
    /// The defaults of the command line.
    fn default() -> Self {
        let matches = Self::augment_args(clap::Command::new("simulate")).get_matches_from([""]);
        Self::from_arg_matches(&matches).expect("no option is required")
    }
}

/// The names of all scenarios.
fn scenario_names() -> clap::builder::PossibleValuesParser {
    let scenarios = Scenario::all().into_iter();
    let names = scenarios
        .map(|scenario| clap::builder::PossibleValue::new(scenario.name).help(scenario.about));
    names.collect::<Vec<_>>().into()
}

const DEFAULT_RATE: &str = "100/s burst 100";
const DEFAULT_SEED: u64 = 1;

/// The result for one algorithm: its run, unless it can't represent the rate, and a note.
#[derive(Debug)]
struct AlgorithmRun {
    form: AlgorithmForm,
    run: Option<RunResult>,
    note: Option<String>,
}

/// Runs the simulation, and writes the report.
pub(crate) fn run_simulation(
    options: &SimulateOptions,
    out: &mut impl Write,
) -> Result<(), CliError> {
    if options.file.is_some() {
        return write_report(&simulate_policy(options)?, options.json, out);
    }
    if !options.adaptive {
        let report = simulate_algorithms(options).map_err(CliError::usage)?;
        return write_report(&report, options.json, out);
    }
    let report = simulate_adaptive(options).map_err(write_error)?;
    if let Some(file) = &options.svg {
        let drawn = std::fs::write(file, report.svg());
        drawn.map_err(|error| write_error(format_args!("{}: {error}", file.display())))?;
    }
    write_report(&report, options.json, out)
}

/// Runs the traffic through every algorithm.
///
/// # Errors
/// The pattern can't be played at this rate. If an algorithm can't represent the rate, that is no error: its line in
/// the report has the reason.
pub fn simulate_algorithms(options: &SimulateOptions) -> Result<AlgorithmReport, PatternError> {
    let traffic = options.pattern.traffic(options.rate, options.seed)?;
    let trials = AlgorithmForm::ALL.map(|form| AlgorithmRun::new(form, options.rate, &traffic));
    Ok(AlgorithmReport::new(options, &traffic, &trials))
}

impl AlgorithmRun {
    fn new(form: AlgorithmForm, rate: Rate, traffic: &pattern::Traffic) -> Self {
        let (run, note) = match runner::run(form, rate, &traffic.arrivals) {
            Ok(run) => (Some(run), None),
            Err(refusal) => {
                // A window has no burst besides its count, so the algorithm is run without the burst.
                let plain = rate.burst(rate.count());
                let reason = rejection_reason(rate, &refusal);
                match runner::run(form, plain, &traffic.arrivals) {
                    Ok(run) if form.is_window() => {
                        (Some(run), Some(format!("run at {plain}: {reason}")))
                    }
                    _ => (None, Some(format!("left out: {reason}"))),
                }
            }
        };
        let note = match (form, &run) {
            (AlgorithmForm::FixedWindow, Some(run)) => {
                join_notes(note, boundary_burst_note(rate, run))
            }
            (AlgorithmForm::LeakyBucketQueue, Some(_)) => join_notes(note, Some(queue_note(rate))),
            _ => note,
        };
        Self { form, run, note }
    }
}

/// Why an algorithm can't represent the rate. The report begins with the rate, so the reason doesn't repeat it.
fn rejection_reason(rate: Rate, refusal: &LimitError) -> String {
    let text = refusal.to_string();
    match text.strip_prefix(&format!("rate \"{rate}\": ")) {
        Some(reason) => reason.to_owned(),
        None => text,
    }
}

/// A note if more than the count passed within one period, which happens only across a window boundary.
fn boundary_burst_note(rate: Rate, run: &RunResult) -> Option<String> {
    let period = rate.period()?;
    let peak = run.peak(period);
    let over = u64::try_from(peak).is_ok_and(|peak| peak > rate.count());
    over.then(|| {
        format!(
            "{peak} passed within {} across a window boundary, and its count is {}",
            format::format_nanos(period.as_nanos()),
            rate.count()
        )
    })
}

/// A note on how the queue reads the rate: it releases at the rate, and its capacity is the burst.
fn queue_note(rate: Rate) -> String {
    match rate.period() {
        Some(period) => format!(
            "releases one every {}, and at most {} wait",
            format::format_nanos(period.as_nanos() / u128::from(rate.count())),
            rate.burst_size()
        ),
        None if rate.is_zero() => "releases nothing".to_owned(),
        None => "releases at once".to_owned(),
    }
}

fn join_notes(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}; {second}")),
        (first, second) => first.or(second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rate: &str, name: &str) -> AlgorithmResult {
        let options = SimulateOptions {
            rate: rate.parse().unwrap(),
            ..SimulateOptions::default()
        };
        let report = simulate_algorithms(&options).unwrap();
        let mut lines = report.algorithms.into_iter();
        lines.find(|line| line.name == name).unwrap()
    }

    #[test]
    fn the_default_is_the_default_of_the_command_line() {
        assert_eq!(DEFAULT_RATE.parse(), Ok(SimulateOptions::default().rate));
    }

    #[test]
    fn a_window_runs_at_its_count_when_it_refuses_the_burst() {
        let fixed = line("100/s burst 200", "fixed window");
        assert_eq!(fixed.admitted, Some(300));
        assert_eq!(
            fixed.note.as_deref(),
            Some(
                "run at 100/s: a fixed window admits its count, 100, and no other burst; \
                 leave the burst out, or use a token bucket or GCRA"
            )
        );
        assert_eq!(line("100/s burst 150", "sliding counter").note, None);
    }

    #[test]
    fn an_algorithm_that_refuses_the_rate_is_left_out_and_says_why() {
        let gcra = line("1/d burst 1000", "GCRA");
        assert_eq!((gcra.admitted, gcra.peak_1s), (None, None));
        assert_eq!(
            gcra.note.as_deref(),
            Some(
                "left out: burst x interval is above two years, more than GCRA's one word \
                 holds; use a burst of at most 730, or the exact form \
                 (a token bucket or leaky bucket)"
            )
        );
        assert_eq!(line("1/d burst 1000", "token bucket").admitted, Some(4));
    }

    #[test]
    fn zero_admits_nothing_and_unlimited_everything() {
        for (rate, admitted, terms) in [
            ("zero", 0, "releases nothing"),
            ("unlimited", 400, "releases at once"),
        ] {
            for form in AlgorithmForm::ALL {
                assert_eq!(line(rate, form.name()).admitted, Some(admitted), "{form:?}");
            }
            assert_eq!(
                line(rate, AlgorithmForm::LeakyBucketQueue.name())
                    .note
                    .as_deref(),
                Some(terms)
            );
        }
    }
}

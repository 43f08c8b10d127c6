//! `tollgate load`: load tests one limit from several concurrent tasks, and measures the latency of its decisions.
//!
//! The flow is [`LoadOptions`] → target (a backend and a limit) → drive (the tasks) → [`LoadReport`].

mod drive;
mod report;
mod target;

use std::time::Duration;

use clap::{Args, ValueEnum};
use tollgate::{Algorithm, Rate, core::WindowAlignment};
use tollgate_engine::policy::OnStoreFailure;

pub use report::{FailureReport, Latency, LoadReport};
pub use target::BackendAddress;

use crate::outcome::CliError;
use report::parse_positive_duration;
use target::{LoadTarget, stats_since};

/// Options of `tollgate load`.
///
/// ```
/// use std::time::Duration;
/// use clap::Parser;
/// use tollgate_cli::{Cli, Command, load::load};
///
/// let words = "tollgate load --rate 100/h --tasks 2 --duration 10ms";
/// let Command::Load(options) = Cli::parse_from(words.split(' ')).command else { panic!() };
/// let report = load(&options)?;
/// assert_eq!(report.admitted, 100);
/// assert!(report.elapsed >= Duration::from_millis(10));
/// # Ok::<(), tollgate_cli::CliError>(())
/// ```
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each task requests the next decision as soon as it has the last, from one key to the next. Start several
commands, here or on other machines, with the same --name and --rate: they share the limit and stay within
it together. A denial that is cached here is repeated without a request to the store, as in a limiter. So
the latency of admitted decisions shows the cost of the store.

An unreachable store at the start is an error (exit code 1) unless --on-failure is given. A wrong
password, a TLS mismatch and missing rights are always errors. If the store becomes unreachable later,
--on-failure decides (local by default). These decisions count as fallback, neither as admitted nor as
denied.

Ctrl-C ends the run early, with a report of the run so far.

Exit code 0: there is a report; 1: the store is unreachable or, by the report, made no decision (such as
read-only, out-of-memory or foreign), and --on-failure isn't given or the failure is permanent; 2: the
arguments are wrong.

With --json, one object:
  backend mode rate algorithm name keys tasks cost on_failure     the options
  started_at ended_at interrupted                                 the times of the run, and whether
                                                                  Ctrl-C ended it
  elapsed_s decisions decisions_per_s                             the whole run
  admitted denied                                                 decisions of the limit
  fallback_decisions fallback_admitted fallback_denied            decisions without the store
  errors                                                          failed requests to the store
  failures                                                        these by kind: a list of
                                                                  {kind, count, first, began_s, lasted_s,
                                                                  is_going_on}
  latency_ns admitted_latency_ns                                  {p50, p99, p999, max}; for admitted
                                                                  null if there are none
  round_trips round_trips_per_1000 near_hits connects             null in memory

Examples:
  tollgate load --rate 1000000/s
  tollgate load --backend redis://127.0.0.1:6379 --rate 1000/s --tasks 32 --duration 5s
  tollgate load --backend redis://127.0.0.1:6379 --mode leased --rate 100000/s --json
  tollgate load --backend redis+cluster://10.0.0.1:7000 --keys 10000 --on-failure closed")]
pub struct LoadOptions {
    /// The backend: memory, or the URL of a Redis or Valkey.
    #[arg(long, value_name = "memory|URL", default_value = "memory")]
    pub backend: BackendAddress,
    /// How several nodes count: each decision in the store, or with leased tokens. In memory there is no difference.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub mode: FleetCounting,
    /// The limit of each key, such as "1000/s" or "100/s burst 200".
    #[arg(long, value_name = "RATE", default_value = "1000/s")]
    pub rate: Rate,
    /// The algorithm.
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub algorithm: AlgorithmName,
    /// The name of the limit. Limits with the same name and rate share their counters.
    #[arg(long, value_name = "NAME", default_value = "load")]
    pub name: String,
    /// The number of keys. Each task takes them in turn.
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: u32,
    /// The number of concurrent tasks.
    #[arg(long, value_name = "NUMBER", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub tasks: u32,
    /// The duration, such as 300ms, 5s or 1m.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_positive_duration)]
    pub duration: Duration,
    /// The cost of each decision.
    #[arg(long, value_name = "UNITS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub cost: u64,
    /// The failure mode while the store is unreachable.
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub on_failure: Option<StoreFailureChoice>,
    /// The number of nodes in the fleet. A local fallback limit is twice the limit divided by it.
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub nodes: u64,
    /// How long a decision waits for the store.
    #[arg(long, value_name = "TIME", default_value = "25ms", value_parser = parse_positive_duration)]
    pub timeout: Duration,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    pub json: bool,
}

/// How several nodes count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FleetCounting {
    /// Each decision is made in the store.
    #[default]
    Exact,
    /// Tokens are leased and spent in memory.
    Leased,
}

/// The algorithm, by its name in a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmName {
    /// GCRA.
    #[default]
    Gcra,
    /// A token bucket.
    TokenBucket,
    /// A leaky bucket as a meter.
    Leaky,
    /// Fixed windows, aligned to the epoch.
    FixedWindow,
    /// A sliding counter.
    SlidingWindow,
    /// A sliding log.
    SlidingLog,
}

/// The failure mode while the store is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreFailureChoice {
    /// Requests pass.
    Open,
    /// Requests are denied.
    Closed,
    /// A limit in this process alone decides.
    Local,
    /// As local; after some failures, the store gets no requests for a while.
    CircuitBreak,
}

impl AlgorithmName {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::Gcra => Algorithm::Gcra,
            Self::TokenBucket => Algorithm::TokenBucket,
            Self::Leaky => Algorithm::LeakyBucket,
            Self::FixedWindow => Algorithm::FixedWindow(WindowAlignment::default()),
            Self::SlidingWindow => Algorithm::SlidingCounter,
            Self::SlidingLog => Algorithm::SlidingLog,
        }
    }
}

impl StoreFailureChoice {
    const fn store_failure_policy(self) -> OnStoreFailure {
        match self {
            Self::Open => OnStoreFailure::Open,
            Self::Closed => OnStoreFailure::Closed,
            Self::Local => OnStoreFailure::Local,
            Self::CircuitBreak => OnStoreFailure::CircuitBreak,
        }
    }
}

/// Threads for the tasks. A node of a fleet rarely has more cores, and the store needs some too.
const WORKER_THREADS: usize = 2;
/// The number of task polls between two checks for responses of the store. Tasks that never wait would delay those
/// that do, so the number is small.
const EVENT_INTERVAL: u32 = 7;

/// Load tests the limit, with a progress bar if standard error is a terminal.
///
/// # Errors
/// The backend, the limit or the cost is invalid, or the store is unreachable at the start.
pub fn load(options: &LoadOptions) -> Result<LoadReport, CliError> {
    let threads = |workers| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .event_interval(EVENT_INTERVAL)
            .enable_all()
            .build()
            .map_err(runtime_error)
    };
    // The connection has a thread of its own, because tasks that never wait would block it on theirs.
    let (runtime, connection) = (threads(WORKER_THREADS)?, threads(1)?);
    let target = {
        let _here = connection.enter();
        LoadTarget::new(options)?
    };
    runtime.block_on(async {
        target.wait_until_ready(options).await?;
        let before = target.store_stats();
        let driven = drive::run_tasks(&target, options).await;
        let counts = target.store_stats().zip(before);
        let counts = counts.map(|(now, before)| stats_since(now, &before));
        target.close().await;
        driven
            .map(|driven| LoadReport::new(options, &driven, counts))
            .map_err(runtime_error)
    })
}

fn runtime_error(error: std::io::Error) -> CliError {
    CliError::failed(format_args!("can't run tasks: {error}"))
}

/// The name of a choice on the command line.
fn value_name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

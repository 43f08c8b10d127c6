//! `tollgate load`: as many decisions of one limit as a few tasks can ask for, and how long they took.
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

/// The limit, where it is kept and how hard it is driven, in the words of `tollgate load`.
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
Each task asks again as soon as it has its answer, from one key to the next. Start several at once,
here or on other machines, with the same --name and --rate: they share the limit and stay within it
together. A refusal that is known here is repeated without asking, as a limiter does; so look at the
latency of those admitted to see what the store costs.

If the store can't be asked at the start, that is an error (exit code 1), unless --on-failure says
what decisions are to get then; a wrong password, TLS where none is spoken and missing rights always
are. If it goes away later, decisions get what --on-failure says, local if it says nothing; they are
counted as fallback, neither as admitted nor as denied.

Ctrl-C ends the run before its time, with a report of what there was until then.

Exit code 0: there is a report; 1: the store can't be asked or, by the report, it decided nothing (such
as read-only, out-of-memory or foreign) and --on-failure isn't given, or waiting doesn't mend it; 2: the
arguments are wrong.

With --json, one object:
  backend mode rate algorithm name keys tasks cost on_failure     what was asked for
  started_at ended_at interrupted                                 the dates of the run, and whether
                                                                  Ctrl-C ended it
  elapsed_s decisions decisions_per_s                             of the whole run
  admitted denied                                                 what the limit said
  fallback_decisions fallback_admitted fallback_denied            what was decided without the store
  errors                                                          questions that got no answer
  failures                                                        each of those, by its kind: a list of
                                                                  {kind, count, first, began_s, lasted_s,
                                                                  is_going_on}
  latency_ns admitted_latency_ns                                  {p50, p99, p999, max}; of those
                                                                  admitted null if there are none
  round_trips round_trips_per_1000 near_hits connects             null in memory

Examples:
  tollgate load --rate 1000000/s
  tollgate load --backend redis://127.0.0.1:6379 --rate 1000/s --tasks 32 --duration 5s
  tollgate load --backend redis://127.0.0.1:6379 --mode leased --rate 100000/s --json
  tollgate load --backend redis+cluster://10.0.0.1:7000 --keys 10000 --on-failure closed")]
pub struct LoadOptions {
    /// Where the limit is kept: memory, or the URL of a Redis or Valkey.
    #[arg(long, value_name = "memory|URL", default_value = "memory")]
    pub backend: BackendAddress,
    /// How a fleet counts: each decision in the store, or tokens that are taken ahead. In memory
    /// it is the same.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub mode: FleetCounting,
    /// The limit of each key, such as "1000/s" or "100/s burst 200".
    #[arg(long, value_name = "RATE", default_value = "1000/s")]
    pub rate: Rate,
    /// How it is counted.
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub algorithm: AlgorithmName,
    /// What the limit is kept under: those with the same name and rate share it.
    #[arg(long, value_name = "NAME", default_value = "load")]
    pub name: String,
    /// How many keys the tasks ask about in turn.
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: u32,
    /// How many ask at the same time.
    #[arg(long, value_name = "NUMBER", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub tasks: u32,
    /// For how long, such as 300ms, 5s or 1m.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_positive_duration)]
    pub duration: Duration,
    /// What each decision costs.
    #[arg(long, value_name = "UNITS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub cost: u64,
    /// What decisions get while the store can't be asked.
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub on_failure: Option<StoreFailureChoice>,
    /// How many nodes the fleet has: a local limit is the limit divided by it, times two.
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

/// How a fleet counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FleetCounting {
    /// Each decision is made in the store.
    #[default]
    Exact,
    /// Tokens are taken ahead and spent here.
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
    /// A leaky bucket, as a meter.
    Leaky,
    /// Windows from the epoch on.
    FixedWindow,
    /// A sliding counter.
    SlidingWindow,
    /// A sliding log.
    SlidingLog,
}

/// What decisions get while the store can't be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreFailureChoice {
    /// They pass.
    Open,
    /// They are refused.
    Closed,
    /// They are judged by a limit of this process alone.
    Local,
    /// Likewise, and after a while the store isn't asked for some time.
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

/// Threads that the tasks run on: a node of a fleet is rarely larger, and the store needs some too.
const WORKER_THREADS: usize = 2;
/// Tasks that never wait take so many turns before the store's answers are looked for: few, so that those
/// who do wait aren't late because of them.
const EVENT_INTERVAL: u32 = 7;

/// Drives the limit, with a progress bar on standard error if that is a terminal.
///
/// # Errors
/// If the place, the limit or the cost can't be used, or the store can't be asked at the start.
pub fn load(options: &LoadOptions) -> Result<LoadReport, CliError> {
    let threads = |workers| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .event_interval(EVENT_INTERVAL)
            .enable_all()
            .build()
            .map_err(runtime_error)
    };
    // Tasks that never wait would keep a connection on their own threads waiting.
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

/// The word of the command line for a choice.
fn value_name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

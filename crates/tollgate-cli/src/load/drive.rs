//! The tasks of a load test: each requests a decision, counts the outcome, and repeats.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate::{Outcome, Timestamp};
use tollgate_redis::LimitDecision;

use super::LoadOptions;
use super::target::{LoadTarget, key_name};
use crate::output::format_thousands;
use crate::policy::Moment;

/// How many decisions without a wait a task makes in a row before it yields to other tasks.
const DECISIONS_BETWEEN_YIELDS: u32 = 16;
/// Significant digits of latencies.
const LATENCY_DIGITS: u8 = 2;
/// The longest latency in nanoseconds. Longer ones count as this.
const MAX_LATENCY_NANOS: u64 = 100_000_000_000;
/// The interval between updates of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The result of all tasks together.
#[derive(Debug)]
pub(super) struct RunResult {
    pub(super) tally: DecisionCounts,
    pub(super) elapsed: Duration,
    /// The start by the wall clock.
    pub(super) started: Moment,
    pub(super) ended: Moment,
    /// Whether Ctrl-C ended the run early.
    pub(super) is_interrupted: bool,
}

/// The outcomes of one task's decisions.
#[derive(Clone, Debug)]
pub(super) struct DecisionCounts {
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) fallback_admitted: u64,
    pub(super) fallback_denied: u64,
    /// Latencies in nanoseconds of admitted decisions, and of all others.
    pub(super) admitted_latency: Histogram<u64>,
    pub(super) other_latency: Histogram<u64>,
}

/// The state that all tasks share.
struct SharedRun {
    target: LoadTarget,
    keys: Box<[String]>,
    cost: u64,
    until: Timestamp,
    /// Whether to end before the time is up.
    is_over: AtomicBool,
    /// The number of decisions so far, for the progress bar.
    decided: AtomicU64,
}

/// Runs all tasks to their end.
pub(super) async fn run_tasks(target: &LoadTarget, options: &LoadOptions) -> io::Result<RunResult> {
    let clock = Monotonic::new();
    let keys = (0..options.keys).map(key_name).collect();
    let (began, started) = (clock.now(), Moment::of(Wall.now()));
    let mut is_interrupted = false;
    let common = Arc::new(SharedRun {
        target: target.clone(),
        keys,
        cost: options.cost,
        until: began + options.duration,
        is_over: AtomicBool::new(false),
        decided: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for number in 0..options.tasks {
        let first = u64::from(number) * u64::from(options.keys) / u64::from(options.tasks);
        let first = usize::try_from(first).unwrap_or(0);
        tasks.spawn(run_task(Arc::clone(&common), clock, first));
    }
    // The bar draws nothing without a terminal.
    let bar = ProgressBar::new(as_millis(options.duration));
    let style = ProgressStyle::with_template("{wide_bar} {msg}");
    bar.set_style(style.map_err(io::Error::other)?);
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    let mut tally = DecisionCounts::new()?;
    let mut interrupt = pin!(wait_for_ctrl_c());
    loop {
        tokio::select! {
            () = &mut interrupt, if !is_interrupted => {
                common.is_over.store(true, Ordering::Relaxed);
                is_interrupted = true;
            }
            ended = tasks.join_next() => match ended {
                Some(one) => tally.add(&one.map_err(io::Error::other)??)?,
                None => break,
            },
            _ = ticks.tick() => {
                let (passed, decided) = (clock.now() - began, common.decided.load(Ordering::Relaxed));
                let (seconds, decided) = (passed.as_secs_f64(), format_thousands(decided));
                bar.set_message(format!("{seconds:.1}s  {decided} decisions"));
                bar.set_position(as_millis(passed));
            }
        }
    }
    let elapsed = clock.now() - began;
    bar.finish_and_clear();
    Ok(RunResult {
        tally,
        elapsed,
        started,
        ended: Moment::of(Wall.now()),
        is_interrupted,
    })
}

async fn run_task(
    common: Arc<SharedRun>,
    clock: Monotonic,
    first: usize,
) -> io::Result<DecisionCounts> {
    let mut tally = DecisionCounts::new()?;
    let mut keys = common.keys.iter().cycle().skip(first);
    loop {
        // A decision begins when the previous one ends, so one clock reading per decision is enough.
        let mut at = clock.now();
        for _ in 0..DECISIONS_BETWEEN_YIELDS {
            let Some(key) = keys.next() else {
                return Ok(tally);
            };
            let answer = common.target.check(key, common.cost).await;
            let now = clock.now();
            tally.record(&answer, now - at);
            at = now;
            if now >= common.until || common.is_over.load(Ordering::Relaxed) {
                return Ok(tally);
            }
        }
        let so_many = u64::from(DECISIONS_BETWEEN_YIELDS);
        common.decided.fetch_add(so_many, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

impl DecisionCounts {
    fn new() -> io::Result<Self> {
        let latency = || {
            Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, LATENCY_DIGITS)
                .map_err(io::Error::other)
        };
        Ok(Self {
            admitted: 0,
            denied: 0,
            fallback_admitted: 0,
            fallback_denied: 0,
            admitted_latency: latency()?,
            other_latency: latency()?,
        })
    }

    #[inline]
    fn record(&mut self, answer: &LimitDecision, took: Duration) {
        let is_allowed = answer.decision.outcome == Outcome::Allowed;
        let count = match (answer.fallback.is_some(), is_allowed) {
            (false, true) => &mut self.admitted,
            (false, false) => &mut self.denied,
            (true, true) => &mut self.fallback_admitted,
            (true, false) => &mut self.fallback_denied,
        };
        *count += 1;
        let latency = if answer.fallback.is_none() && is_allowed {
            &mut self.admitted_latency
        } else {
            &mut self.other_latency
        };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        latency.saturating_record(nanos);
    }

    fn add(&mut self, other: &Self) -> io::Result<()> {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.fallback_admitted += other.fallback_admitted;
        self.fallback_denied += other.fallback_denied;
        let add = |to: &mut Histogram<u64>, more| to.add(more).map_err(io::Error::other);
        add(&mut self.admitted_latency, &other.admitted_latency)?;
        add(&mut self.other_latency, &other.other_latency)
    }

    pub(super) fn decisions(&self) -> u64 {
        self.admitted + self.denied + self.fallback_admitted + self.fallback_denied
    }
}

/// Completes on Ctrl-C. If the handler can't be installed, this never completes, and Ctrl-C ends the process as
/// usual.
async fn wait_for_ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn as_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

//! Tasks that make requests, and their cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tollgate_redis::{LimitDecision, Redis, RedisBuilder};
use tollgate_testkit::redis::Server;

use super::{Failure, KEYS, Limiter, TASKS};
use crate::policy::Random;
use crate::runner::as_f64;
use crate::timing::{self, Stopwatch};

/// The server, the client's threads and the keys.
pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) workers: usize,
    runtime: Runtime,
    keys: Arc<[String]>,
}

/// The result of a run: nanoseconds for each decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTotals {
    pub(super) decisions: u64,
    pub(super) admitted: u64,
    pub(super) wall: f64,
    /// Processor time of the server.
    pub(super) server: f64,
    /// Processor time of this process.
    pub(super) client: f64,
}

impl Bench {
    pub(super) fn new() -> Result<Self, Failure> {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers = (workers - 1).max(1);
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()?;
        Ok(Self {
            server: Server::start(),
            workers,
            runtime,
            keys: (0..KEYS).map(|key| format!("{key:012}")).collect(),
        })
    }

    /// A client with a timeout so long that the fallback never decides.
    pub(super) fn connect(
        &self,
        change: impl FnOnce(RedisBuilder) -> RedisBuilder,
    ) -> Result<Redis, Failure> {
        let _inside = self.runtime.enter();
        let builder = Redis::builder(&self.server.url())?.timeout(Duration::from_secs(10));
        Ok(change(builder).build()?)
    }

    /// Makes requests for random keys for this long, with this many in flight.
    pub(super) fn run_decisions(
        &self,
        limiter: &Limiter,
        keys: usize,
        tasks: usize,
        span: Duration,
    ) -> RunTotals {
        let stop = Arc::new(AtomicBool::new(false));
        let (server, client) = (self.server.cpu_time(), timing::cpu_time());
        let watch = Stopwatch::start();
        let tasks: Vec<_> = (0..tasks as u64)
            .map(|seed| {
                let (limiter, stop) = (Arc::clone(limiter), Arc::clone(&stop));
                let (all, mut random) = (Arc::clone(&self.keys), Random(seed + 1));
                self.runtime.spawn(async move {
                    let (mut decisions, mut admitted) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let key = &all[random.index(keys)];
                        admitted += u64::from(limiter.check(key).await.allowed().is_some());
                        decisions += 1;
                        // Decisions without the store never wait, so they yield explicitly.
                        tokio::task::coop::consume_budget().await;
                    }
                    (decisions, admitted)
                })
            })
            .collect();
        timing::sleep(span);
        stop.store(true, Ordering::Relaxed);
        let (mut decisions, mut admitted) = (0, 0);
        for task in tasks {
            let (more, passed) = self.runtime.block_on(task).unwrap_or_default();
            decisions += more;
            admitted += passed;
        }
        let nanos = |time: f64| time / as_f64(decisions);
        let wall = watch.nanos();
        let spent = |now: Duration, before: Duration| (now - before).as_secs_f64() * 1e9;
        RunTotals {
            decisions,
            admitted,
            wall: nanos(wall),
            server: nanos(spent(self.server.cpu_time(), server)),
            client: nanos(spent(timing::cpu_time(), client)),
        }
    }

    /// Makes one request for each of the first keys. Their permits are held as long as the answers.
    pub(super) fn warm_keys(&self, limiter: &Limiter, keys: usize) -> Vec<LimitDecision> {
        let tasks: Vec<_> = (0..TASKS)
            .map(|first| {
                let (limiter, all) = (Arc::clone(limiter), Arc::clone(&self.keys));
                self.runtime.spawn(async move {
                    let mut answers = Vec::new();
                    for key in all[..keys].iter().skip(first).step_by(TASKS) {
                        answers.push(limiter.check(key).await);
                    }
                    answers
                })
            })
            .collect();
        let answers =
            |task: JoinHandle<Vec<LimitDecision>>| self.runtime.block_on(task).unwrap_or_default();
        tasks.into_iter().flat_map(answers).collect()
    }

    /// Nanoseconds of each decision about the first key, shortest first.
    pub(super) fn decision_times(&self, limiter: &Limiter, tasks: usize, each: usize) -> Vec<u64> {
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let (limiter, all) = (Arc::clone(limiter), Arc::clone(&self.keys));
                self.runtime.spawn(async move {
                    let clock = quanta::Clock::new();
                    let mut times = Vec::with_capacity(each);
                    for _ in 0..each {
                        let start = clock.raw();
                        let _ = limiter.check(&all[0]).await;
                        times.push(clock.delta_as_nanos(start, clock.raw()));
                        tokio::task::coop::consume_budget().await;
                    }
                    times
                })
            })
            .collect();
        let times = |task: JoinHandle<Vec<u64>>| self.runtime.block_on(task).unwrap_or_default();
        let mut times: Vec<u64> = tasks.into_iter().flat_map(times).collect();
        times.sort_unstable();
        times
    }
}

//! The group `waiting`: a crowd that waits on one limiter or on as many keys, tasks that give up, and one task
//! that paces itself.

use std::num::NonZeroU32;
use std::time::Duration;

use tollgate::{KeyedLimiter, Limiter, Rate};

use crate::peers::Governor;
use crate::report::{Line, Report};
use crate::runner::median;
use crate::waiters::{self, CancelStorm, Outcome, Queue};

/// Each round takes seconds, as long as every limiter needs.
const ROUNDS: usize = 15;
const WAITERS: u32 = 100_000;
const CROWD_RATE: u32 = 50_000;
/// Rounds of cases in which the peers differ less.
const FEW_ROUNDS: usize = 5;
const STORM_RATE: u32 = 50;
const STORM_BURST: u32 = 5;
const STORM: CancelStorm = CancelStorm {
    tasks: 30,
    patience: Duration::from_millis(100),
    lasts: Duration::from_secs(5),
};
const PACE: u32 = 20_000;
const PACE_BURST: u32 = 100;
const PACE_SECONDS: f64 = 0.7;

impl Queue for Limiter {
    async fn wait_to_pass(&self, _who: u32) {
        let passed = self.acquire().await;
        passed.expect("one token is within any burst, and the queue is unbounded");
    }
}

/// A limiter that grants permits once all waiters are in its queue.
struct OpenedLimiter {
    limiter: Limiter,
    rate: Rate,
}

impl Queue for OpenedLimiter {
    async fn wait_to_pass(&self, who: u32) {
        self.limiter.wait_to_pass(who).await;
    }

    fn start_wait(&self) {
        let set = self.limiter.set_rate(self.rate);
        set.expect("a rate that GCRA can represent");
    }
}

impl Queue for Governor {
    async fn wait_to_pass(&self, _who: u32) {
        self.until_ready().await;
    }
}

impl Queue for leaky_bucket::RateLimiter {
    async fn wait_to_pass(&self, _who: u32) {
        self.acquire_one().await;
    }
}

/// Each task waits for a key of its own, for one token more than the task before it.
impl Queue for KeyedLimiter {
    async fn wait_to_pass(&self, who: u32) {
        let passed = self.key(&who).acquire_n(u64::from(who) + 1).await;
        passed.expect("it is within the burst, and so many may wait");
    }
}

pub(crate) fn run(report: &mut Report) {
    crowd(report);
    crowd_on_keys(report);
    cancel_storm(report);
    pace(report);
    report.note(format!(
        "medians of {ROUNDS} rounds that took turns ({FEW_ROUNDS} of storms and keys), on tokio's runtime of one thread"
    ));
}

fn ours(rate: u32, burst: u32) -> Limiter {
    Limiter::builder(Rate::per_second(u64::from(rate)).burst(u64::from(burst)))
        .start_empty()
        .unbounded_waiters()
        .build()
        .expect("a rate that GCRA can represent")
}

fn opened(rate: u32, burst: u32) -> OpenedLimiter {
    let rate = Rate::per_second(u64::from(rate)).burst(u64::from(burst));
    let limiter = Limiter::builder(Rate::per_day(1))
        .start_empty()
        .unbounded_waiters()
        .build()
        .expect("a rate that GCRA can represent");
    OpenedLimiter { limiter, rate }
}

fn governor(rate: u32, burst: u32) -> Governor {
    let some = |count| NonZeroU32::new(count).expect("at least 1");
    let limiter =
        Governor::direct(governor::Quota::per_second(some(rate)).allow_burst(some(burst)));
    while limiter.check().is_ok() {}
    limiter
}

/// It refills once a millisecond, which is as often as it can.
fn leaky_bucket(rate: u32, burst: u32) -> leaky_bucket::RateLimiter {
    let refill = usize::try_from(rate / 1000).expect("32 bits fit");
    leaky_bucket::RateLimiter::builder()
        .interval(Duration::from_millis(1))
        .refill(refill)
        .max(usize::try_from(burst).expect("32 bits fit").max(refill))
        .initial(0)
        .build()
}

fn crowd(report: &mut Report) {
    let rounds = compare_alternating(ROUNDS, |who| match who {
        0 => waiters::run(WAITERS, || opened(CROWD_RATE, 1)),
        1 => waiters::run(WAITERS, || governor(CROWD_RATE, 1)),
        _ => waiters::run(WAITERS, || leaky_bucket(CROWD_RATE, 1)),
    });
    let column = |pick: &dyn Fn(&[Outcome; 3]) -> f64| median(rounds.iter().map(pick).collect());
    let ideal = f64::from(WAITERS) / f64::from(CROWD_RATE);

    let seconds = |who: usize| column(&|round| round[who].seconds);
    let numbers = (seconds(0), ideal, "s");
    let line = Line::new("waiters-100k", "ideal", numbers, seconds(0) / ideal);
    report.add(line.target(Some(1.05)));
    for (who, peer) in [(1, "governor"), (2, "leaky-bucket")] {
        let ratio = column(&|round| round[0].seconds / round[who].seconds);
        let numbers = (seconds(0), seconds(who), "s");
        report.add(Line::new("waiters-100k", peer, numbers, ratio));
    }

    let cpu = |outcome: &Outcome| outcome.cpu_micros;
    let bytes = |outcome: &Outcome| outcome.bytes;
    let overtaken = |outcome: &Outcome| outcome.overtaken;
    against_target(report, &rounds, ("waiters-100k-cpu", "us", 5.0), cpu);
    against_target(report, &rounds, ("waiters-100k-bytes", "B", 640.0), bytes);
    against_target(
        report,
        &rounds,
        ("waiters-100k-fifo", "overtaken", 0.0),
        overtaken,
    );
}

/// As many keys as waiters, all of them empty, which become free one after the other at the crowd's rate.
fn crowd_on_keys(report: &mut Report) {
    let empty_keys = || {
        let rate = Rate::per_second(u64::from(CROWD_RATE)).burst(u64::from(WAITERS));
        let capacity = usize::try_from(WAITERS).expect("32 bits fit");
        let limiter = KeyedLimiter::builder(rate, capacity).max_waiters(capacity);
        let limiter = limiter.build().expect("a rate that GCRA can represent");
        for key in 0..WAITERS {
            assert!(limiter.key(&key).allow_n(u64::from(WAITERS)));
        }
        limiter
    };
    let rounds: Vec<[Outcome; 1]> =
        compare_alternating(FEW_ROUNDS, |_| waiters::run(WAITERS, empty_keys));
    let column = |pick: fn(&Outcome) -> f64| median(rounds.iter().map(|[o]| pick(o)).collect());
    let (seconds, bytes) = (column(|o| o.seconds), column(|o| o.bytes));
    let ideal = f64::from(WAITERS) / f64::from(CROWD_RATE);
    let line = Line::new(
        "waiters-100k-keys",
        "ideal",
        (seconds, ideal, "s"),
        seconds / ideal,
    );
    report.add(line.target(Some(1.05)));
    let numbers = (bytes, 1024.0, "B");
    let line = Line::new("waiters-100k-keys-bytes", "target", numbers, bytes / 1024.0);
    report.add(line.target(Some(1.0)));
}

/// Tasks that give up sooner than the queue moves: what may pass / what passed, for peers passed by them /
/// passed by ours.
fn cancel_storm(report: &mut Report) {
    let full = || {
        let rate = Rate::per_second(u64::from(STORM_RATE)).burst(u64::from(STORM_BURST));
        Limiter::new(rate)
    };
    let some = |count| NonZeroU32::new(count).expect("at least 1");
    let quota = governor::Quota::per_second(some(STORM_RATE)).allow_burst(some(STORM_BURST));
    let rounds: Vec<[f64; 2]> = compare_alternating(FEW_ROUNDS, |who| match who {
        0 => waiters::storm(full, STORM),
        _ => waiters::storm(|| Governor::direct(quota), STORM),
    });
    let passed = |who: usize| median(rounds.iter().map(|round| round[who]).collect());
    let seconds = STORM.lasts.as_secs_f64();
    let ideal = f64::from(STORM_BURST) + f64::from(STORM_RATE) * seconds;
    let numbers = (passed(0), ideal, "passes");
    let line = Line::new("cancel-storm", "ideal", numbers, ideal / passed(0));
    report.add(line.target(Some(1.02)));
    let ratio = median(rounds.iter().map(|round| round[1] / round[0]).collect());
    let numbers = (passed(0), passed(1), "passes");
    report.add(Line::new("cancel-storm", "governor", numbers, ratio));
}

/// Runs every participant once in each round, starting with another one each time.
fn compare_alternating<T, const N: usize>(
    rounds: usize,
    mut run: impl FnMut(usize) -> T,
) -> Vec<[T; N]> {
    (0..rounds)
        .map(|round| {
            let mut results: [Option<T>; N] = [const { None }; N];
            for turn in 0..N {
                let who = (round + turn) % N;
                results[who] = Some(run(who));
            }
            results.map(|result| result.expect("everyone had a turn"))
        })
        .collect()
}

/// A line against the target, and one against each peer.
fn against_target(
    report: &mut Report,
    rounds: &[[Outcome; 3]],
    (case, unit, target): (&str, &'static str, f64),
    pick: fn(&Outcome) -> f64,
) {
    let value = |who: usize| median(rounds.iter().map(|round| pick(&round[who])).collect());
    let numbers = (value(0), target, unit);
    report.add(Line::new(case, "target", numbers, ratio(value(0), target)).target(Some(1.0)));
    for (who, peer) in [(1, "governor"), (2, "leaky-bucket")] {
        let numbers = (value(0), value(who), unit);
        report.add(Line::new(case, peer, numbers, ratio(value(0), value(who))));
    }
}

/// Zero against zero is even.
fn ratio(ours: f64, theirs: f64) -> f64 {
    if ours == theirs { 1.0 } else { ours / theirs }
}

/// One task that waits before each step. The ratio is requested / delivered, for peers delivered by them /
/// delivered by ours.
fn pace(report: &mut Report) {
    let rounds: Vec<[f64; 4]> = compare_alternating(ROUNDS, |who| match who {
        0 => waiters::pace(|| ours(PACE, PACE_BURST), PACE_SECONDS),
        1 => waiters::pace(|| governor(PACE, PACE_BURST), PACE_SECONDS),
        2 => waiters::pace(|| leaky_bucket(PACE, PACE_BURST), PACE_SECONDS),
        _ => waiters::pace(|| ours(PACE, 1), PACE_SECONDS),
    });
    let delivered = |who: usize| median(rounds.iter().map(|round| round[who]).collect());
    let asked = f64::from(PACE);
    let numbers = (delivered(0), asked, "1/s");
    let line = Line::new("pace-20k", "ideal", numbers, asked / delivered(0));
    report.add(line.target(Some(1.0 / 0.99)));
    for (who, peer) in [(1, "governor"), (2, "leaky-bucket")] {
        let ratio = median(rounds.iter().map(|round| round[who] / round[0]).collect());
        let numbers = (delivered(0), delivered(who), "1/s");
        report.add(Line::new("pace-20k", peer, numbers, ratio));
    }

    // The rate of a one-millisecond timer if nothing compensates for late wake-ups.
    let single = delivered(3);
    let numbers = (single, asked, "1/s");
    report.add(Line::new(
        "pace-20k-burst-1",
        "ideal",
        numbers,
        asked / single,
    ));
}

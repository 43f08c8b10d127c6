//! The group `shaping`: the cost of a trigger, an item and a log line, the accuracy of a pacer's rate, and the
//! throughput of a pipe. Targets are in the peer `target`.

use std::future::IntoFuture;
use std::hint::black_box;
use std::time::Duration;

use tollgate::Rate;
use tollgate_shape::{Coalesce, Debounce, FlushOutcome, WorkPacer};

use crate::alloc;
use crate::report::{Line, Report};
use crate::runner::{MIN_CLEAN_ROUNDS, Measure, OneThread, RERUNS, ROUNDS, as_f64, median};
use crate::timing::Stopwatch;

mod logs;
mod pipes;

/// So long that nothing fires during the measurement.
const LONG_DELAY: Duration = Duration::from_secs(3600);
const KEYS: u64 = 1_000_000;
/// The number of paced items, and their rate.
const PACED: u64 = 200_000;
const PER_SECOND: u64 = 100_000;

pub(crate) fn run(report: &mut Report) {
    debounce(report);
    keyed(report);
    pacer(report);
    coalescer(report);
    logs::run(report);
    pipes::run(report);
    report.note(format!(
        "medians of {MIN_CLEAN_ROUNDS} to {ROUNDS} rounds without a context switch if there are enough; ns for one call on one thread"
    ));
    report.note(
        "keyed-debounce-1m: a million keys of 8 bytes with values of 8 are pending, and are triggered at random; bytes are those \
         beyond key and value",
    );
    report.note("pacer-100k: 200,000 tasks await their turns at 100,000/s on the 1 ms timer of tokio; by how much the time from the first to the last is off");
}

/// The median of a measurement's rounds, without those with a context switch if there are enough others.
fn settled_measurement(measure: &mut dyn Measure) -> (f64, usize) {
    let (mut clean, mut disturbed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut sample = measure.sample();
        for _ in 0..RERUNS {
            if !sample.switched {
                break;
            }
            sample = measure.sample();
        }
        let kept = if sample.switched {
            &mut disturbed
        } else {
            &mut clean
        };
        kept.push(sample.nanos);
    }
    disturbed.truncate(MIN_CLEAN_ROUNDS.saturating_sub(clean.len()));
    let many = disturbed.len();
    clean.append(&mut disturbed);
    (median(clean), many)
}

/// A number with an upper bound.
fn against_target(report: &mut Report, case: &str, (ours, most, unit): (f64, f64, &'static str)) {
    report.add(Line::new(case, "target", (ours, most, unit), ours / most).target(Some(1.0)));
}

fn timed(report: &mut Report, case: &str, most: f64, measure: &mut dyn Measure) {
    let (nanos, disturbed) = settled_measurement(measure);
    let mut line = Line::new(case, "target", (nanos, most, "ns"), nanos / most).target(Some(1.0));
    line.disturbed = disturbed;
    report.add(line);
}

fn debounce(report: &mut Report) {
    let debouncer = Debounce::new(LONG_DELAY).build(|value: u64| {
        black_box(value);
    });
    debouncer.call(0);
    let mut trigger = OneThread::new(|calls| {
        for value in 0..calls {
            black_box(&debouncer).call(value);
        }
    });
    timed(report, "debounce-trigger", 50.0, &mut trigger);
    alloc::take_peak();
    let live = alloc::live();
    trigger.sample();
    let bytes = as_f64((alloc::take_peak() - live) as u64);
    // The stopwatch allocates when it reads a system file, so the difference to a round without calls counts.
    alloc::take_peak();
    let live = alloc::live();
    OneThread::fixed(1, |_| {}).sample();
    let around = as_f64((alloc::take_peak() - live) as u64);
    let numbers = ((bytes - around).max(0.0), 0.0, "B");
    let ratio = if numbers.0 > 0.0 { 2.0 } else { 0.0 };
    report.add(Line::new("debounce-trigger-allocated", "target", numbers, ratio).target(Some(1.0)));
}

fn keyed(report: &mut Report) {
    let before = alloc::live();
    let debouncer = Debounce::new(LONG_DELAY)
        .keyed(usize::try_from(KEYS).unwrap_or(usize::MAX))
        .build(|key: u64, value: u64| {
            black_box((key, value));
        });
    for key in 0..KEYS {
        let _ = debouncer.call(key, 0);
    }
    let each = as_f64((alloc::live() - before) as u64) / as_f64(KEYS);
    against_target(report, "keyed-debounce-1m-bytes", (each - 16.0, 100.0, "B"));
    let mut random = 1u64;
    let mut trigger = OneThread::new(|calls| {
        for value in 0..calls {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let _ = black_box(&debouncer).call(random % KEYS, value);
        }
    });
    timed(report, "keyed-debounce-1m", 300.0, &mut trigger);
}

fn pacer(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else {
        report.note("no runtime for pacer-100k");
        return;
    };
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..3 {
        let capacity = usize::try_from(PACED).unwrap_or(usize::MAX);
        let Ok(pacer) = WorkPacer::new(Rate::per_second(PER_SECOND), capacity) else {
            report.note("no pacer at this rate");
            return;
        };
        // From the first item to the last, because tasks are made before that.
        let took = runtime.block_on(async {
            let watch = Stopwatch::start();
            let leaves = |_| {
                let turn = pacer.pace().into_future();
                tokio::spawn(async move { turn.await.map(|_| watch.nanos()) })
            };
            let waits: Vec<_> = (0..PACED).map(leaves).collect();
            let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
            for wait in waits {
                if let Ok(Ok(left)) = wait.await {
                    (first, last) = (first.min(left), last.max(left));
                }
            }
            last - first
        });
        times.push(took);
    }
    let should = as_f64(PACED - 1) / as_f64(PER_SECOND) * 1e9;
    let took = median(times);
    let off = (took / should - 1.0).abs() * 100.0;
    against_target(report, "pacer-100k", (off, 0.5, "%"));
}

fn coalescer(report: &mut Report) {
    let coalescer = Coalesce::window(LONG_DELAY)
        .max_items(1_000)
        .max_pending(1_000_000)
        .build(|batch| {
            black_box(batch.len());
            FlushOutcome::Done
        });
    let mut key = 0u64;
    let mut add = OneThread::new(|calls| {
        for _ in 0..calls {
            key += 1;
            while black_box(&coalescer).try_add(key, key).is_err() {
                // The flushes run on a thread of their own.
                std::thread::yield_now();
            }
        }
    });
    timed(report, "coalescer-add", 100.0, &mut add);
}

//! The group `adaptive`: the cost of a permit of an adaptive limit, of a call through a closed breaker, and of
//! a step of each algorithm.

use std::hint::black_box;
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};
use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
use tollgate_adaptive::{
    AdaptiveAlgorithm, AdaptiveController, Bounds, LimitAlgorithm, Little, Sample,
};

use crate::alloc;
use crate::report::{Line, Report};
use crate::runner::{Measure, OneThread, Peer, compare, median};

/// The most that a call through a closed breaker may take in addition to the two reads of its clock, in
/// nanoseconds.
const BREAKER_NANOS: f64 = 5.0;
/// The most that a step of an algorithm may take, in nanoseconds.
const STEP_NANOS: f64 = 200.0;
const ROUNDS: usize = 31;

pub(crate) fn run(report: &mut Report) {
    permit(report);
    breaker_closed(report);
    law_steps(report);
    memory(report);
}

fn limit_bounds() -> Bounds {
    Bounds::new(10.0, 200.0).expect("bounds in order")
}

/// A permit taken and released as a success, against a semaphore's with two reads of the same clock.
fn permit(report: &mut Report) {
    let limiter = AdaptiveController::new(Little::new(limit_bounds()))
        .concurrency()
        .build();
    let mut ours = OneThread::new(|calls| {
        for _ in 0..calls {
            let permit = limiter.try_acquire().expect("nobody else takes any");
            black_box(&permit);
            permit.success();
        }
    });
    let semaphore = tokio::sync::Semaphore::new(200);
    let clock = Monotonic::new();
    let theirs = OneThread::new(|calls| {
        for _ in 0..calls {
            let permit = semaphore.try_acquire().expect("nobody else takes any");
            let started = clock.now();
            black_box(&permit);
            drop(permit);
            black_box(clock.now() - started);
        }
    });
    let mut peers = [Peer::new("tokio-semaphore", theirs).target(1.5)];
    compare(report, "permit", &mut ours, &mut peers);
}

/// The time of a call through a closed breaker without two reads of the clock, relative to the target.
fn breaker_closed(report: &mut Report) {
    let breaker = CircuitBreaker::new(Thresholds::default());
    let mut ours = OneThread::new(|calls| {
        for _ in 0..calls {
            let call = breaker.try_call().expect("it is closed");
            black_box(&call);
            call.success();
        }
    });
    let clock = Monotonic::new();
    let mut reads = OneThread::new(|calls| {
        for _ in 0..calls {
            let started = clock.now();
            black_box(started);
            black_box(clock.now() - started);
        }
    });
    let over = (0..ROUNDS).map(|_| ours.sample().nanos - reads.sample().nanos);
    let over = median(over.collect()).max(0.0);
    let numbers = (over, BREAKER_NANOS, "ns");
    let line = Line::new("breaker-closed", "promised", numbers, over / BREAKER_NANOS);
    report.add(line.target(Some(1.0)));
}

/// The time of a step of each algorithm, relative to the target.
fn law_steps(report: &mut Report) {
    for named in AdaptiveAlgorithm::ALL {
        let mut law = named.make(limit_bounds(), 1).expect("bounds in order");
        let mut at = 0;
        let mut steps = OneThread::new(|calls| {
            for number in 0..calls {
                at += 100_000;
                let rtt = Duration::from_micros(900 + number * 37 % 300);
                let sample = Sample::new(rtt, 40).at(Timestamp::from_nanos(at));
                black_box(law.observe(black_box(&sample)));
            }
        });
        let nanos = median((0..ROUNDS).map(|_| steps.sample().nanos).collect());
        let numbers = (nanos, STEP_NANOS, "ns");
        let case = format!("law-step {}", named.name());
        let line = Line::new(&case, "promised", numbers, nanos / STEP_NANOS);
        report.add(line.target(Some(1.0)));
    }
}

/// Checks that nothing allocates.
fn memory(report: &mut Report) {
    let limiter = AdaptiveController::new(Little::new(limit_bounds()))
        .concurrency()
        .build();
    let breaker = CircuitBreaker::new(Thresholds::default());
    let work = || {
        for _ in 0..10_000 {
            let permit = limiter.try_acquire().expect("nobody else takes any");
            let call = breaker.try_call().expect("it is closed");
            call.success();
            permit.success();
        }
    };
    work();
    let before = alloc::live();
    alloc::take_peak();
    work();
    let peak = alloc::take_peak().saturating_sub(before);
    report.note(format!("10,000 permits and calls allocated {peak} bytes"));
}

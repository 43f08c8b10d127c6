//! The group `limiter`: the cost of a check, on one thread and on two.

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::{Cached, Monotonic};
use tollgate::{Clock, Limiter};

use crate::handmade::{MutexBucket, SharedTokens, TickerBucket};
use crate::peers::{self, AtomicFloor, FullDecision, Gate, Load, drained};
use crate::report::{Line, Report};
use crate::runner::{MIN_CLEAN_ROUNDS, Measure, OneThread, Peer, ROUNDS, as_count, compare};
use crate::two_threads::ThreadPair;
use crate::{tail, timing};

pub(crate) fn run(report: &mut Report) {
    admit_one_thread(report);
    deny_one_thread(report);
    admit_two_threads(report);
    cached_clock(report);
    decision_with_all_fields(report);
    adjacent_limiters(report);
    half_denied(report);
    mostly_denied(report);
    mutex_bucket(report);
    ticker_channel(report);
    tail::run(report);
    clock_reads(report);
    report.note(format!(
        "medians of {MIN_CLEAN_ROUNDS} to {ROUNDS} rounds that ran ours next to the peer, without a context \
         switch but for those marked *; ns for one call on one thread"
    ));
    report.note("tail: a call with a read of the counter, which may step by 10 ns");
}

/// A loop over one limiter on this thread.
fn alone(gate: Arc<dyn Gate>) -> OneThread<'static> {
    OneThread::new(move |calls| {
        black_box(gate.run_calls(calls));
    })
}

fn tollgate_peer(load: Load) -> Arc<dyn Gate> {
    Arc::new(peers::tollgate_gate(load))
}

/// Adds the target of a peer, out of a list.
fn with_target<'a>(peer: Peer<'a>, targets: &[(&str, f64)]) -> Peer<'a> {
    match targets.iter().find(|(name, _)| *name == peer.name) {
        Some((_, target)) => peer.target(*target),
        None => peer,
    }
}

fn admit_one_thread(report: &mut Report) {
    let mut peers = peers::all(Load::ADMIT)
        .map(|(name, gate)| with_target(Peer::new(name, alone(gate)), &[("floor", 1.05)]));
    compare(
        report,
        "admit-1t",
        &mut alone(tollgate_peer(Load::ADMIT)),
        &mut peers,
    );
}

fn deny_one_thread(report: &mut Report) {
    let mut peers = peers::all(Load::DENY).map(|(name, gate)| {
        while gate.allow() {}
        with_target(Peer::new(name, alone(gate)), &[("floor", 1.05)])
    });
    let ours = drained(peers::tollgate_gate(Load::DENY));
    compare(report, "deny-1t", &mut alone(Arc::new(ours)), &mut peers);
}

fn admit_two_threads(report: &mut Report) {
    let crew = ThreadPair::new();
    let mut peers = peers::all(Load::ADMIT)
        .map(|(name, gate)| with_target(Peer::new(name, crew.share(gate)), &[("governor", 1.1)]));
    let mut one_word = crew.share(tollgate_peer(Load::ADMIT));
    compare(report, "admit-2t", &mut one_word, &mut peers);

    let striped = Limiter::builder(Load::ADMIT.rate()).striped().build();
    let mut striped = crew.share(Arc::new(striped.expect("a rate that GCRA can represent")));
    let governor = Arc::new(peers::governor(Load::ADMIT));
    let mut peers = [Peer::new("governor", crew.share(governor)).target(0.3)];
    compare(report, "striped-admit-2t", &mut striped, &mut peers);
}

fn cached_clock(report: &mut Report) {
    let cached = Limiter::with_clock(Load::ADMIT.rate(), Cached::new());
    let governor = Arc::new(peers::governor(Load::ADMIT));
    let upkeep = Arc::new(peers::governor_upkeep(Load::ADMIT));
    let mut peers = [
        Peer::new("governor", alone(governor)).target(0.4),
        Peer::new("governor-upkeep", alone(upkeep)),
    ];
    let mut ours = alone(Arc::new(cached));
    compare(report, "cached-clock-admit-1t", &mut ours, &mut peers);
}

fn decision_with_all_fields(report: &mut Report) {
    let full = Arc::new(FullDecision(peers::tollgate_gate(Load::ADMIT)));
    let mut peers = [Peer::new("bool", alone(tollgate_peer(Load::ADMIT))).target(1.3)];
    compare(report, "decision-full-1t", &mut alone(full), &mut peers);
}

/// Two limiters side by side in memory, each with a thread: neither may slow the other down.
fn adjacent_limiters(report: &mut Report) {
    let crew = ThreadPair::new();
    let pair = Arc::new(vec![
        peers::tollgate_gate(Load::ADMIT),
        peers::tollgate_gate(Load::ADMIT),
    ]);
    let mut ours = crew.both(Arc::new(move |index, calls| pair[index].run_calls(calls)));
    let single = peers::tollgate_gate(Load::ADMIT);
    let single = crew.one(Arc::new(move |_, calls| single.run_calls(calls)));
    let mut peers = [Peer::new("admit-1t", single).target(1.1)];
    compare(report, "neighbours-2t", &mut ours, &mut peers);
}

/// A limit at half the speed of the loop, so that branches can't be predicted.
fn half_denied(report: &mut Report) {
    let nanos = alone(tollgate_peer(Load::ADMIT)).sample().nanos;
    let rate = u32::try_from(as_count(0.5e9 / nanos)).unwrap_or(u32::MAX);
    let load = Load::per_second(rate, 100);
    let mut peers = [
        Peer::new("floor", alone(Arc::new(AtomicFloor::new(load)))),
        Peer::new("governor", alone(Arc::new(peers::governor(load)))),
    ];
    compare(
        report,
        "half-denied-1t",
        &mut alone(tollgate_peer(load)),
        &mut peers,
    );
}

/// Two threads whose requests far exceed a million in a second.
fn mostly_denied(report: &mut Report) {
    let crew = ThreadPair::new();
    const RATE: u32 = 1_000_000;
    let load = Load::per_second(RATE, 100);
    let mut peers = [
        Peer::new("floor", crew.share(Arc::new(AtomicFloor::new(load)))),
        Peer::new("governor", crew.share(Arc::new(peers::governor(load)))),
    ];
    compare(
        report,
        "mostly-denied-2t",
        &mut crew.share(tollgate_peer(load)),
        &mut peers,
    );

    // A burst of 10 ms, so that nothing is lost while both threads are off their cores.
    let time = Duration::from_millis(300);
    let load = Load::per_second(RATE, RATE / 100);
    let admitted = crew.admitted_per_second(tollgate_peer(load), time);
    let theirs = crew.admitted_per_second(Arc::new(peers::governor(load)), time);
    for (peer, theirs) in [("rate", f64::from(RATE)), ("governor", theirs)] {
        let numbers = (admitted, theirs, "1/s");
        report.add(Line::new(
            "mostly-denied-2t-admitted",
            peer,
            numbers,
            admitted / theirs,
        ));
    }
}

fn mutex_bucket(report: &mut Report) {
    let bucket = || Arc::new(MutexBucket::new(1e9, 1e9));
    let mut peers = [Peer::new("mutex-bucket", alone(bucket()))];
    let mut one = alone(tollgate_peer(Load::ADMIT));
    compare(report, "mutex-bucket-1t", &mut one, &mut peers);
    let crew = ThreadPair::new();
    let mut peers = [Peer::new("mutex-bucket", crew.share(bucket()))];
    let mut two = crew.share(tollgate_peer(Load::ADMIT));
    compare(report, "mutex-bucket-2t", &mut two, &mut peers);
}

/// The channel is full at the start of every measurement, and the ticker refills it during the measurement.
fn ticker_channel(report: &mut Report) {
    let (ticker, tokens) = TickerBucket::start();
    let receive = OneThread::fixed(TickerBucket::SAMPLE, |calls| {
        for _ in 0..calls {
            assert!(tokens.try_recv().is_ok(), "the channel was full");
        }
    });
    let mut peers = [Peer::new("ticker-channel", ticker.filled(receive))];
    let mut one = alone(tollgate_peer(Load::ADMIT));
    compare(report, "ticker-channel-1t", &mut one, &mut peers);

    let (ticker, tokens) = TickerBucket::start();
    let tokens = Arc::new(SharedTokens(Mutex::new(tokens)));
    let crew = ThreadPair::new();
    let receive = crew.share_fixed(TickerBucket::SAMPLE / 2, tokens);
    let mut peers = [Peer::new("ticker-channel", ticker.filled(receive))];
    let mut two = crew.share(tollgate_peer(Load::ADMIT));
    compare(report, "ticker-channel-2t", &mut two, &mut peers);
}

fn clock_reads(report: &mut Report) {
    fn reads<C: Clock + 'static>(clock: C) -> OneThread<'static> {
        OneThread::new(move |calls| {
            for _ in 0..calls {
                black_box(black_box(&clock).now());
            }
        })
    }
    let std_instant = || {
        let read = OneThread::new(|calls| {
            for _ in 0..calls {
                black_box(timing::std_now());
            }
        });
        [Peer::new("std-instant", read)]
    };
    let mut monotonic = reads(Monotonic::new());
    compare(
        report,
        "clock-monotonic",
        &mut monotonic,
        &mut std_instant(),
    );
    let mut cached = reads(Cached::new());
    compare(report, "clock-cached", &mut cached, &mut std_instant());
}

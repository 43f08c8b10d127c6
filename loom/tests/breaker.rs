//! The breaker's word over all interleavings: which call opens it, which one probes, and the state after that.

#![cfg(loom)]
#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use tollgate::Timestamp;
use tollgate_adaptive::breaker::{
    Admission, AdmittedCall, BreakerEvent, Circuit, CircuitState, Thresholds,
};

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(100 + seconds)
}

fn circuit(probes: u8) -> Arc<Circuit> {
    let terms = Thresholds {
        min_calls: 1,
        probes,
        ..Thresholds::default()
    };
    Arc::new(Circuit::new(terms))
}

/// Runs both concurrently, and returns their results.
fn run_both<T: 'static + Send>(
    circuit: &Arc<Circuit>,
    run: impl Fn(&Circuit) -> T + Copy + Send + 'static,
) -> [T; 2] {
    let other = Arc::clone(circuit);
    let thread = thread::spawn(move || run(&other));
    let mine = run(circuit);
    [mine, thread.join().unwrap()]
}

#[test]
fn of_two_that_fail_at_once_one_opens_it() {
    loom::model(|| {
        let circuit = circuit(1);
        let events = run_both(&circuit, |circuit| {
            circuit.record_failure(AdmittedCall::untracked(), at(0))
        });
        assert_eq!(events.iter().flatten().count(), 1);
        assert_eq!(
            (circuit.trips(), circuit.state(at(0))),
            (1, CircuitState::Open)
        );
    });
}

#[test]
fn of_two_that_ask_when_its_time_is_over_one_is_the_probe() {
    loom::model(|| {
        let circuit = circuit(1);
        circuit.record_failure(AdmittedCall::untracked(), at(0));
        let asked = run_both(&circuit, |circuit| circuit.admit(at(1)));
        let probes = asked
            .iter()
            .filter(|asked| matches!(asked, Admission::Probe(_)));
        assert_eq!(probes.count(), 1, "{asked:?}");
    });
}

#[test]
fn probes_never_are_more_than_are_allowed_and_the_last_success_closes_it() {
    loom::model(|| {
        let circuit = circuit(2);
        circuit.record_failure(AdmittedCall::untracked(), at(0));
        let events = run_both(&circuit, |circuit| {
            let Admission::Probe(probe) = circuit.admit(at(1)) else {
                panic!("both are probes");
            };
            circuit.record_answer(probe, at(1), Duration::ZERO)
        });
        assert_eq!(
            events.iter().flatten().collect::<Vec<_>>(),
            [&BreakerEvent::Closed]
        );
        assert!(circuit.is_closed());
    });
}

#[test]
fn a_probe_that_fails_beside_one_that_succeeds_leaves_one_of_both_and_nothing_in_between() {
    loom::model(|| {
        let circuit = circuit(2);
        circuit.record_failure(AdmittedCall::untracked(), at(0));
        let (Admission::Probe(good), Admission::Probe(bad)) =
            (circuit.admit(at(1)), circuit.admit(at(1)))
        else {
            panic!("both are probes");
        };
        let other = Arc::clone(&circuit);
        let thread = thread::spawn(move || other.record_failure(bad, at(1)));
        let closed = circuit.record_answer(good, at(1), Duration::ZERO);
        let opened = thread.join().unwrap();
        assert_eq!(closed, None, "one success of two");
        assert!(matches!(opened, Some(BreakerEvent::Opened { .. })));
        assert_eq!(circuit.state(at(1)), CircuitState::Open);
        // Its duration has doubled, and no probe's slot is lost.
        assert!(matches!(circuit.admit(at(3)), Admission::Probe(_)));
        assert!(matches!(circuit.admit(at(3)), Admission::Probe(_)));
        assert!(matches!(circuit.admit(at(3)), Admission::Denied { .. }));
    });
}

#[test]
fn a_probe_that_is_given_up_while_another_asks_leaves_its_place() {
    loom::model(|| {
        let circuit = circuit(1);
        circuit.record_failure(AdmittedCall::untracked(), at(0));
        let Admission::Probe(probe) = circuit.admit(at(1)) else {
            panic!("a probe");
        };
        let other = Arc::clone(&circuit);
        let thread = thread::spawn(move || other.admit(at(1)));
        circuit.abandon(probe);
        let asked = thread.join().unwrap();
        let last = circuit.admit(at(1));
        let probes = [asked, last]
            .iter()
            .filter(|asked| matches!(asked, Admission::Probe(_)))
            .count();
        assert_eq!(probes, 1, "{asked:?}, {last:?}");
    });
}

#[test]
fn a_probe_that_comes_back_late_frees_no_place_of_the_next() {
    loom::model(|| {
        let circuit = circuit(1);
        circuit.record_failure(AdmittedCall::untracked(), at(0));
        let Admission::Probe(late) = circuit.admit(at(1)) else {
            panic!("its time is over");
        };
        let asks = |circuit: &Circuit| matches!(circuit.admit(at(3)), Admission::Probe(_));
        let other = Arc::clone(&circuit);
        let thread = thread::spawn(move || {
            other.abandon(late);
            asks(&other)
        });
        let mine = asks(&circuit);
        let theirs = thread.join().unwrap();
        assert!(mine ^ theirs, "one is out at a time: {mine}, {theirs}");
    });
}

//! Probes that come back too late, listeners that panic, and clocks that are set back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_adaptive::breaker::{
    Admission, AdmittedCall, BreakerEvent, Circuit, CircuitBreaker, CircuitState, FailureWindow,
    ForcedState, Thresholds,
};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + seconds)
}

/// A circuit that opened for a second at 0 s.
fn opened(probes: u8) -> Circuit {
    let circuit = Circuit::new(Thresholds {
        min_calls: 1,
        probes,
        ..Thresholds::default()
    });
    assert!(
        circuit
            .record_failure(AdmittedCall::untracked(), at(0))
            .is_some()
    );
    circuit
}

fn probe(circuit: &Circuit, seconds: u64) -> AdmittedCall {
    match circuit.admit(at(seconds)) {
        Admission::Probe(entry) => entry,
        other => panic!("at {seconds} s: {other:?}"),
    }
}

fn is_refused(circuit: &Circuit, seconds: u64) -> bool {
    matches!(circuit.admit(at(seconds)), Admission::Denied { .. })
}

#[test]
fn a_probe_that_was_given_up_frees_no_place_of_another() {
    let circuit = opened(1);
    let late = probe(&circuit, 1);
    let second = probe(&circuit, 3);
    circuit.abandon(late);
    assert!(is_refused(&circuit, 3), "the second one is out still");
    circuit.abandon(second);
    probe(&circuit, 3);
}

#[test]
fn a_probe_that_was_given_up_neither_closes_nor_opens() {
    let circuit = opened(2);
    let late = probe(&circuit, 1);
    let other = probe(&circuit, 1);
    let third = probe(&circuit, 3);
    let fourth = probe(&circuit, 3);
    assert_eq!(circuit.record_answer(late, at(3), SECOND), None);
    assert_eq!(circuit.record_failure(other, at(3)), None);
    assert_eq!(circuit.state(at(3)), CircuitState::HalfOpen);
    assert!(is_refused(&circuit, 3));
    assert_eq!(circuit.record_answer(third, at(3), SECOND), None);
    let closed = circuit.record_answer(fourth, at(3), SECOND);
    assert_eq!(closed, Some(BreakerEvent::Closed));
}

#[test]
fn a_probe_from_before_it_was_held_says_nothing_after() {
    let circuit = opened(1);
    let late = probe(&circuit, 1);
    circuit.force(ForcedState::Open);
    assert_eq!(circuit.record_answer(late, at(1), SECOND), None);
    assert_eq!(circuit.state(at(1)), CircuitState::Open);
    circuit.force(ForcedState::Released);
    assert!(
        circuit
            .record_failure(AdmittedCall::untracked(), at(5))
            .is_some()
    );
    probe(&circuit, 6);
    circuit.abandon(late);
    assert!(is_refused(&circuit, 6));
    assert_eq!(circuit.record_failure(late, at(6)), None);
    assert_eq!(circuit.state(at(6)), CircuitState::HalfOpen);
}

#[test]
fn a_listener_that_panics_keeps_no_probe() {
    let clock = Manual::new();
    let terms = Thresholds {
        min_calls: 1,
        ..Thresholds::default()
    };
    let breaker = CircuitBreaker::with_clock(terms, clock.clone())
        .on_event(|event| assert_ne!(*event, BreakerEvent::Probing));
    breaker.try_call().unwrap().failure();
    clock.advance(SECOND);
    for _ in 0..3 {
        let told = catch_unwind(AssertUnwindSafe(|| breaker.try_call().map(drop)));
        assert!(told.is_err(), "each is let through, and told of");
    }
}

#[test]
fn a_call_that_panics_while_it_probes_keeps_the_circuit_open_as_long_again() {
    let clock = Manual::new();
    let terms = Thresholds {
        min_calls: 1,
        ..Thresholds::default()
    };
    let breaker = CircuitBreaker::with_clock(terms, clock.clone());
    breaker.try_call().unwrap().failure();
    clock.advance(SECOND);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _call = breaker.try_call().unwrap();
        panic!("the call's own");
    }));
    assert!(panicked.is_err());
    assert_eq!(breaker.try_call().unwrap_err().wait, Some(SECOND));
    clock.advance(SECOND);
    breaker.try_call().unwrap().success();
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[test]
fn a_clock_that_is_set_back_holds_nothing_open_for_longer() {
    let circuit = Circuit::new(Thresholds {
        min_calls: 1,
        longest_open: SECOND,
        ..Thresholds::default()
    });
    assert!(
        circuit
            .record_failure(AdmittedCall::untracked(), at(500))
            .is_some()
    );
    // An hour before would be 1,500 s open instead of one.
    assert_eq!(circuit.state(at(0)), CircuitState::HalfOpen);
    let first = probe(&circuit, 0);
    assert!(is_refused(&circuit, 0));
    assert_eq!(
        circuit.record_answer(first, at(0), SECOND),
        Some(BreakerEvent::Closed)
    );
}

#[test]
fn the_wait_that_is_told_is_never_too_short() {
    let circuit = opened(1);
    let now = Timestamp::from_nanos(at(1).as_nanos() - 1_500);
    let Admission::Denied { wait: Some(wait) } = circuit.admit(now) else {
        panic!("it is open");
    };
    assert!(!wait.is_zero());
    assert!(matches!(circuit.admit(now + wait), Admission::Probe(_)));
}

#[test]
fn times_at_the_end_of_the_clock_overflow_nothing() {
    for span in [
        FailureWindow::Time(Duration::ZERO),
        FailureWindow::Time(Duration::MAX),
        FailureWindow::Calls(0),
        FailureWindow::Calls(u32::MAX),
    ] {
        let circuit = Circuit::new(Thresholds {
            span,
            min_calls: 0,
            opens_for: Duration::MAX,
            longest_open: Duration::ZERO,
            probes: u8::MAX,
            ..Thresholds::default()
        });
        let end = Timestamp::from_nanos(u64::MAX);
        assert!(
            circuit
                .record_failure(AdmittedCall::untracked(), end)
                .is_some(),
            "{span:?}"
        );
        assert!(
            circuit
                .record_answer(AdmittedCall::untracked(), Timestamp::ZERO, SECOND)
                .is_none()
        );
        circuit.close();
        assert_eq!(circuit.state(end), CircuitState::Closed);
    }
}

#[test]
fn what_never_answers_is_silent_when_callers_give_up() {
    let clock = Manual::new();
    let terms = Thresholds {
        silent_for: Duration::from_secs(1),
        ..Thresholds::default()
    };
    let breaker = CircuitBreaker::with_clock(terms, clock.clone());
    let mut calls = 0;
    for _ in 0..300 {
        // Each waits for 10 ms, and then its caller drops it.
        if let Ok(call) = breaker.try_call() {
            calls += 1;
            clock.advance(Duration::from_millis(10));
            drop(call);
        } else {
            clock.advance(Duration::from_millis(10));
        }
    }
    // A second of calls, and then a probe after each time that it was open: 1 s, and 1 s again.
    assert_eq!((breaker.state(), calls), (CircuitState::Open, 102));
    // One answer between them is enough.
    breaker.force(ForcedState::Released);
    for turn in 0..300 {
        let call = breaker.try_call().unwrap();
        clock.advance(Duration::from_millis(10));
        match turn % 50 {
            0 => call.success(),
            _ => drop(call),
        }
    }
}

#[test]
fn calls_from_before_an_outage_say_nothing_after_it() {
    let clock = Manual::new();
    let breaker = CircuitBreaker::with_clock(Thresholds::default(), clock.clone());
    let before: Vec<_> = (0..100).map(|_| breaker.try_call().unwrap()).collect();
    let mut before = before.into_iter();
    for call in before.by_ref().take(20) {
        call.failure();
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    clock.advance(Duration::from_secs(1));
    breaker.try_call().unwrap().success();
    assert_eq!(breaker.state(), CircuitState::Closed);
    for call in before {
        call.failure();
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
    for _ in 0..20 {
        breaker.try_call().unwrap().failure();
    }
    assert_eq!(breaker.state(), CircuitState::Open, "these are new");
}

#[test]
fn probes_that_are_dropped_reach_a_dead_backend_seldom() {
    let clock = Manual::new();
    let breaker = CircuitBreaker::with_clock(Thresholds::default(), clock.clone());
    for _ in 0..20 {
        breaker.try_call().unwrap().failure();
    }
    clock.advance(Duration::from_secs(1));
    let mut reached = 0;
    for _ in 0..1_000 {
        reached += u32::from(breaker.try_call().map(drop).is_ok());
        clock.advance(Duration::from_millis(10));
    }
    assert_eq!(reached, 10, "one a second");
    // What wasn't called costs nothing.
    clock.advance(Duration::from_secs(1));
    for _ in 0..10 {
        breaker.try_call().unwrap().ignored();
    }
}

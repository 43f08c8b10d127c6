//! The breaker in use: calls that end, are dropped, or are held off, as tables of time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_adaptive::breaker::{CircuitBreaker, CircuitState, ForcedState, Thresholds};

/// What is done at a time.
#[derive(Clone, Copy)]
enum Do {
    Succeed,
    Fail,
    Drop,
    Refused,
    Force(ForcedState),
}

use CircuitState::{Closed, HalfOpen, Open};
use Do::{Drop, Fail, Refused, Succeed};

/// Applies each event at its time in milliseconds, and compares the state after it, and the reports.
fn check(terms: Thresholds, table: &[(u64, Do, CircuitState)], told: &[&str]) {
    let clock = Manual::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let breaker = {
        let heard = Arc::clone(&heard);
        CircuitBreaker::with_clock(terms, clock.clone())
            .on_event(move |event| heard.lock().unwrap().push(event.to_string()))
    };
    for (row, (millis, what, state)) in table.iter().enumerate() {
        clock.set(tollgate::Timestamp::from_millis(*millis));
        match what {
            Succeed => breaker.try_call().unwrap().success(),
            Fail => breaker.try_call().unwrap().failure(),
            Drop => breaker.try_call().unwrap().ignored(),
            Refused => {
                breaker.try_call().unwrap_err();
            }
            Do::Force(force) => breaker.force(*force),
        }
        assert_eq!(breaker.state(), *state, "row {row}");
    }
    assert_eq!(*heard.lock().unwrap(), told);
}

#[test]
fn closed_open_half_open_closed() {
    let terms = Thresholds {
        min_calls: 3,
        ..Thresholds::default()
    };
    check(
        terms,
        &[
            (0, Succeed, Closed),
            (10, Fail, Closed),
            (20, Fail, Open),
            (1_000, Refused, Open),
            (1_021, Fail, Open),
            (3_000, Refused, Open),
            (3_030, Drop, HalfOpen),
            (3_030, Succeed, Closed),
            (3_040, Succeed, Closed),
        ],
        &[
            "the circuit is open for 1s: too many calls failed",
            "a call is let through as a probe",
            "the circuit is open for 2s: a probe failed",
            "a call is let through as a probe",
            "a call is let through as a probe",
            "the circuit is closed",
        ],
    );
}

#[test]
fn several_probes_all_have_to_succeed() {
    let terms = Thresholds {
        min_calls: 1,
        probes: 3,
        ..Thresholds::default()
    };
    check(
        terms,
        &[
            (0, Fail, Open),
            (1_000, Succeed, HalfOpen),
            (1_001, Succeed, HalfOpen),
            (1_002, Fail, Open),
            (3_002, Succeed, HalfOpen),
            (3_003, Succeed, HalfOpen),
            (3_004, Succeed, Closed),
            // Open again, for as long as the first time.
            (3_005, Fail, Open),
            (4_005, Succeed, HalfOpen),
        ],
        &[
            "the circuit is open for 1s: too many calls failed",
            "a call is let through as a probe",
            "a call is let through as a probe",
            "a call is let through as a probe",
            "the circuit is open for 2s: a probe failed",
            "a call is let through as a probe",
            "a call is let through as a probe",
            "a call is let through as a probe",
            "the circuit is closed",
            "the circuit is open for 1s: too many calls failed",
            "a call is let through as a probe",
        ],
    );
}

#[test]
fn probes_at_once_are_bounded() {
    let clock = Manual::new();
    let terms = Thresholds {
        min_calls: 1,
        probes: 2,
        ..Thresholds::default()
    };
    let breaker = CircuitBreaker::with_clock(terms, clock.clone());
    breaker.try_call().unwrap().failure();
    clock.advance(Duration::from_secs(1));
    let (first, second) = (breaker.try_call().unwrap(), breaker.try_call().unwrap());
    assert!(breaker.try_call().is_err());
    first.success();
    assert!(
        breaker.try_call().is_err(),
        "one has succeeded and one is out"
    );
    second.ignored();
    breaker.try_call().unwrap().success();
    assert_eq!(breaker.state(), Closed);
}

#[test]
fn who_holds_it_decides() {
    let terms = Thresholds {
        min_calls: 1,
        ..Thresholds::default()
    };
    check(
        terms,
        &[
            (0, Do::Force(ForcedState::Open), Open),
            (600_000, Refused, Open),
            (600_000, Do::Force(ForcedState::Closed), Closed),
            (600_001, Fail, Closed),
            (600_002, Do::Force(ForcedState::Released), Closed),
            (600_003, Fail, Open),
        ],
        &[
            "the circuit is held open",
            "the circuit is held closed",
            "the circuit is let go, and closed",
            "the circuit is open for 1s: too many calls failed",
        ],
    );
}

#[test]
fn errors_that_say_nothing_are_ignored() {
    let terms = Thresholds {
        min_calls: 2,
        ..Thresholds::default()
    };
    let rows: Vec<_> = (0..100).map(|millis| (millis, Drop, Closed)).collect();
    check(terms, &rows, &[]);
}

#[test]
fn a_clock_that_goes_back_opens_nothing_and_keeps_nothing_open_for_longer() {
    let clock = Manual::starting_at(tollgate::Timestamp::from_secs(1_000));
    let terms = Thresholds {
        min_calls: 1,
        ..Thresholds::default()
    };
    let breaker = CircuitBreaker::with_clock(terms, clock.clone());
    let call = breaker.try_call().unwrap();
    clock.set(tollgate::Timestamp::from_secs(10));
    call.success();
    assert_eq!(breaker.state(), Closed);
    breaker.try_call().unwrap().failure();
    assert_eq!(breaker.state(), Open);
    clock.advance(Duration::from_secs(1));
    breaker.try_call().unwrap().success();
    assert_eq!(breaker.state(), Closed);
}

//! When a circuit opens: by silence, by the share of failures or slow calls, over time or over calls.

use std::time::Duration;

use tollgate::Timestamp;
use tollgate_adaptive::breaker::{
    Admission, AdmittedCall, BreakerEvent, Circuit, CircuitState, FailureWindow, Thresholds,
    TripReason,
};

const SILENT: Thresholds = Thresholds {
    silent_for: Duration::from_secs(2),
    failing_percent: 50,
    slow_percent: 101,
    slow_after: Duration::MAX,
    span: FailureWindow::Time(Duration::from_secs(5)),
    min_calls: 20,
    opens_for: Duration::from_secs(1),
    longest_open: Duration::from_secs(60),
    probes: 1,
};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + millis)
}

fn answered(circuit: &Circuit, millis: u64) {
    assert_eq!(
        circuit.record_answer(AdmittedCall::untracked(), at(millis), Duration::ZERO),
        None
    );
}

/// Asks every so many milliseconds from a time on; returns when the circuit opened, for how long, and why.
fn opens(
    circuit: &Circuit,
    from: u64,
    every: u64,
    until: u64,
    answers: impl Fn(u64) -> bool,
) -> Option<(u64, Duration, TripReason)> {
    (from..until)
        .step_by(usize::try_from(every).unwrap())
        .zip(0..)
        .find_map(|(millis, number)| {
            if answers(number) {
                answered(circuit, millis);
                return None;
            }
            match circuit.record_failure(AdmittedCall::untracked(), at(millis))? {
                BreakerEvent::Opened { stays, why } => Some((millis, stays, why)),
                other => panic!("{other}"),
            }
        })
}

#[test]
fn silence_for_two_seconds_opens_it_whatever_the_traffic() {
    let second = Duration::from_secs(1);
    // Too few calls for a share.
    let slow = opens(&Circuit::new(SILENT), 0, 500, 9_000, |_| false);
    assert_eq!(slow, Some((2_000, second, TripReason::Silent)));
    // A pause says nothing: once asked, an hour later once more.
    let rare = opens(&Circuit::new(SILENT), 0, 3_600_000, 20 * 3_600_000, |_| {
        false
    });
    assert_eq!(rare, None);
    // An answer now and then keeps it closed while most are answered.
    let flaky = opens(&Circuit::new(SILENT), 0, 10, 60_000, |number| {
        number % 5 < 3
    });
    assert_eq!(flaky, None);
}

#[test]
fn half_of_the_calls_open_it_and_a_burst_of_failures_does_not() {
    let busy = Circuit::new(SILENT);
    (0..4_000).for_each(|millis| answered(&busy, millis));
    // 200 ms of failures at 1,000 a second: a hiccup.
    assert_eq!(opens(&busy, 4_000, 1, 4_200, |_| false), None);
    (4_200..8_000).for_each(|millis| answered(&busy, millis));
    // Most of them for seconds: it opens once they are half of what was asked in five.
    let (when, _, why) = opens(&busy, 8_000, 1, 20_000, |number| number % 10 < 4).unwrap();
    assert!((11_000..13_500).contains(&when), "{when}");
    assert_eq!(why, TripReason::Failing);
    // At 20 calls and no sooner.
    let young = opens(&Circuit::new(SILENT), 0, 10, 1_000, |number| {
        number % 2 == 0
    });
    assert_eq!(young.unwrap().0, 190);
}

#[test]
fn it_stays_open_twice_as_long_each_time_and_a_minute_at_most() {
    let circuit = Circuit::new(SILENT);
    let (mut now, mut stays, _) = opens(&circuit, 0, 100, 9_000, |_| false).unwrap();
    let mut seen = vec![stays.as_secs()];
    for _ in 0..7 {
        let end = now + u64::try_from(stays.as_millis()).unwrap();
        assert_eq!(circuit.state(at(end - 1)), CircuitState::Open);
        let wait = Some(Duration::from_millis(1));
        assert_eq!(circuit.admit(at(end - 1)), Admission::Denied { wait });
        assert_eq!(circuit.state(at(end)), CircuitState::HalfOpen);
        let Admission::Probe(probe) = circuit.admit(at(end)) else {
            panic!("no probe at {end}");
        };
        assert!(matches!(circuit.admit(at(end)), Admission::Denied { .. }));
        // What others find out doesn't prolong it.
        assert_eq!(
            circuit.record_failure(AdmittedCall::untracked(), at(end)),
            None
        );
        let Some(BreakerEvent::Opened { stays: next, why }) =
            circuit.record_failure(probe, at(end))
        else {
            panic!("a probe failed");
        };
        assert_eq!(why, TripReason::Probe);
        (stays, now) = (next, end);
        seen.push(stays.as_secs());
    }
    assert_eq!(seen, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(circuit.trips(), 1);
    assert!(circuit.close() && circuit.is_closed());
    assert_eq!(circuit.state(at(now)), CircuitState::Closed);
    // What was before is forgotten: it takes two seconds again, and opens for one.
    let again = opens(&circuit, 1_000_000, 200, 1_009_000, |_| false);
    assert_eq!(
        again,
        Some((1_002_000, Duration::from_secs(1), TripReason::Silent))
    );
}

#[test]
fn a_probe_that_is_given_up_leaves_its_turn_to_the_next() {
    let circuit = Circuit::new(SILENT);
    opens(&circuit, 0, 100, 9_000, |_| false).unwrap();
    let Admission::Probe(probe) = circuit.admit(at(5_000)) else {
        panic!("no probe");
    };
    circuit.abandon(probe);
    assert!(matches!(circuit.admit(at(5_000)), Admission::Probe(_)));
}

#[test]
fn a_probe_that_never_comes_back_is_given_up_after_as_long_as_it_was_open() {
    let circuit = Circuit::new(SILENT);
    let (now, _, _) = opens(&circuit, 0, 100, 9_000, |_| false).unwrap();
    assert!(matches!(
        circuit.admit(at(now + 1_000)),
        Admission::Probe(_)
    ));
    assert!(matches!(
        circuit.admit(at(now + 1_999)),
        Admission::Denied { .. }
    ));
    assert!(matches!(
        circuit.admit(at(now + 2_000)),
        Admission::Probe(_)
    ));
}

#[test]
fn slow_calls_open_it_by_their_own_share() {
    let terms = Thresholds {
        slow_percent: 40,
        slow_after: Duration::from_millis(100),
        min_calls: 10,
        ..Thresholds::default()
    };
    let circuit = Circuit::new(terms);
    let took = |number: u64| Duration::from_millis(if number % 5 < 2 { 101 } else { 100 });
    let happened: Vec<_> = (0..10)
        .map(|number| circuit.record_answer(AdmittedCall::untracked(), at(number), took(number)))
        .collect();
    // Of the first ten four are slow, of which the last is the seventh: then there were too few calls.
    assert!(happened.iter().all(Option::is_none));
    let opened = circuit.record_answer(AdmittedCall::untracked(), at(10), took(0));
    let stays = Duration::from_secs(1);
    assert_eq!(
        opened,
        Some(BreakerEvent::Opened {
            stays,
            why: TripReason::Slow
        })
    );
    // A probe that is slow found nothing better.
    let Admission::Probe(probe) = circuit.admit(at(1_010)) else {
        panic!("no probe");
    };
    let stays = Duration::from_secs(2);
    let again = circuit.record_answer(probe, at(1_200), Duration::from_millis(190));
    assert_eq!(
        again,
        Some(BreakerEvent::Opened {
            stays,
            why: TripReason::Probe
        })
    );
}

#[test]
fn a_span_of_calls_forgets_those_before_the_last_so_many() {
    let terms = Thresholds {
        span: FailureWindow::Calls(10),
        min_calls: 100, // more than there can be: as many as there can be are enough
        ..Thresholds::default()
    };
    let circuit = Circuit::new(terms);
    // Days apart: only their number counts.
    let day = |number: u64| Timestamp::from_secs(86_400 * number);
    let mut opened = None;
    for number in 1..100 {
        let entry = AdmittedCall::untracked();
        let happened = if number % 10 < 4 || number > 60 {
            circuit.record_failure(entry, day(number))
        } else {
            circuit.record_answer(entry, day(number), Duration::ZERO)
        };
        if happened.is_some() {
            opened = Some(number);
            break;
        }
    }
    // Four of ten fail as ever, up to 63; with 64 it is five of the last ten.
    assert_eq!(opened, Some(64));
}

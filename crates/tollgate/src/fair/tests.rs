//! Fairness in numbers, on virtual time: shares, waits, bounds, shedding and deadlines.

mod model;
mod sim;

use std::time::Duration;

use tollgate_core::Rate;
use tollgate_testkit::fairness::jain;
use tollgate_testkit::traffic::Random;

use super::codel::Codel;
use crate::RateDenied;
use crate::wait_queue::Waiters as _;
use crate::wait_queue::shared_queue::JoinOutcome;
use sim::{Arrival, Fate, Sim, at_millis};

/// How the requests of one client are spread over time.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Steady,
    /// Fifty at a time.
    Bursts,
    Random,
    /// All requests of a second in its first instant.
    Seconds,
}

const PATTERNS: [Pattern; 4] = [
    Pattern::Steady,
    Pattern::Bursts,
    Pattern::Random,
    Pattern::Seconds,
];

/// The requests of one client at this rate.
fn requests(client: u32, per_second: u64, seconds: u64, pattern: Pattern) -> Vec<Arrival> {
    let mut random = Random::new(u64::from(client) + 1);
    let count = per_second * seconds;
    let nanos = |number: u64| number * 1_000_000_000 / per_second;
    let time = |number: u64, random: &mut Random| match pattern {
        Pattern::Steady => nanos(number),
        Pattern::Bursts => nanos(number - number % 50),
        Pattern::Random => random.below(seconds * 1_000_000_000),
        Pattern::Seconds => number / per_second * 1_000_000_000,
    };
    let at = (0..count).map(|number| time(number, &mut random));
    at.map(|nanos| Arrival::new(nanos, client)).collect()
}

/// How many requests of each client passed.
fn got(fates: &[Fate], clients: u32) -> Vec<u64> {
    let mut got = vec![0; clients as usize];
    for fate in fates.iter().filter(|fate| fate.result.is_ok()) {
        got[fate.arrival.client as usize] += fate.arrival.cost;
    }
    got
}

#[test]
fn equal_weights_get_equal_shares_whatever_they_send() {
    for clients in [2, 10, 100] {
        for overload in [2, 10, 50] {
            for pattern in PATTERNS {
                let (rate, seconds) = (500, 5);
                // Every client wants more than its share; the first wants ten times as much again.
                let mut arrivals = Vec::new();
                for client in 0..clients {
                    let louder = if client == 0 { 10 } else { 1 };
                    let wants = (rate / u64::from(clients) * overload * louder).min(10_000);
                    arrivals.extend(requests(client, wants, seconds, pattern));
                }
                let mut sim = Sim::with(Rate::per_second(rate).burst(5), 200_000, 1_000, None);
                let fates = sim.run(arrivals, at_millis(seconds * 1_000));
                let got = got(&fates, clients);
                let index = jain(&got);
                assert!(
                    index >= 0.99,
                    "{clients} clients, {overload} x, {pattern:?}: {index} of {got:?}"
                );
                let total: u64 = got.iter().sum();
                assert!(total >= rate * seconds * 99 / 100, "{total} passed");
                assert!(total <= rate * seconds + 5, "{total} passed");
            }
        }
    }
}

#[test]
fn what_counts_is_cost_not_requests() {
    let mut arrivals = Vec::new();
    for client in 0..5 {
        let cost = u64::from(client) * 3 + 1;
        let of_client = requests(client, 200, 20, Pattern::Random);
        arrivals.extend(of_client.into_iter().map(|a| Arrival { cost, ..a }));
    }
    let fates = Sim::new(Rate::per_second(500).burst(20)).run(arrivals, at_millis(20_000));
    // The first client can't use more than the 200 that it requests in a second, and gets it.
    let got = got(&fates, 5);
    assert!(jain(&got[1..]) >= 0.999, "{got:?}");
    assert!(got[0] >= got[1] * 99 / 100, "{got:?}");
}

#[test]
fn weights_are_shares() {
    let weights = [1, 2, 3, 10, 84];
    let mut arrivals = Vec::new();
    for (client, weight) in (0..).zip(weights) {
        let of_client = requests(client, 1_000, 30, Pattern::Random);
        arrivals.extend(of_client.into_iter().map(|a| Arrival { weight, ..a }));
    }
    let fates = Sim::new(Rate::per_second(1_000).burst(10)).run(arrivals, at_millis(30_000));
    let got = got(&fates, 5);
    for (got, weight) in got.iter().zip(weights) {
        let fair = 30_000 * u64::from(weight) / 100;
        let off = got.abs_diff(fair);
        assert!(off * 100 <= fair, "weight {weight}: {got} of {fair}");
    }
}

#[test]
fn a_quiet_client_gets_all_it_asks_for_without_waiting_for_the_loud() {
    for others in [1, 9, 99] {
        let mut arrivals = requests(0, 2, 20, Pattern::Steady);
        for client in 1..=others {
            arrivals.extend(requests(client, 200, 20, Pattern::Bursts));
        }
        // 40 requests that compete with two hundred times as many.
        let fates = Sim::new(Rate::per_second(200).burst(1)).run(arrivals, at_millis(30_000));
        let quiet = fates.iter().filter(|fate| fate.arrival.client == 0);
        let quiet: Vec<_> = quiet.collect();
        assert_eq!(quiet.len(), 40);
        // One request of each other client and its own, at 5 ms each.
        let bound = Duration::from_millis(5 * (u64::from(others) + 1));
        for fate in quiet {
            assert_eq!(fate.result, Ok(()));
            let waited = fate.at - at_nanos(fate.arrival.nanos);
            assert!(waited <= bound, "{others} others: waited {waited:?}");
        }
    }
}

fn at_nanos(nanos: u64) -> tollgate_core::Timestamp {
    tollgate_core::Timestamp::from_nanos(nanos)
}

#[test]
fn new_clients_without_end_do_not_starve_one_that_waits() {
    // A new client for every token, and one client with two waiters.
    let mut arrivals: Vec<_> = (0..10_000)
        .map(|number| Arrival::new(u64::from(number) * 10_000_000, 1 + number))
        .collect();
    arrivals.push(Arrival::new(1, 0));
    arrivals.push(Arrival::new(2, 0));
    let fates = Sim::new(Rate::per_second(100).burst(1)).run(arrivals, at_millis(1_000));
    let served = fates.iter().filter(|fate| fate.arrival.client == 0);
    let last = served.map(|fate| (fate.result, fate.at)).next_back();
    assert!(
        last.is_some_and(|(result, at)| result.is_ok() && at <= at_millis(60)),
        "{last:?}"
    );
}

#[test]
fn an_absent_client_collects_no_credit() {
    let mut arrivals = requests(0, 1_000, 10, Pattern::Steady);
    let late = requests(1, 1_000, 5, Pattern::Steady);
    arrivals.extend(late.into_iter().map(|a| Arrival {
        nanos: a.nanos + 5_000_000_000,
        ..a
    }));
    let fates = Sim::new(Rate::per_second(100).burst(1)).run(arrivals, at_millis(10_000));
    let since: Vec<_> = fates
        .into_iter()
        .filter(|fate| fate.at > at_millis(5_000))
        .collect();
    let got = got(&since, 2);
    assert!(got[0].abs_diff(got[1]) <= 2, "{got:?}");
}

#[test]
fn lines_are_bounded_for_each_client_and_in_total() {
    let mut sim = Sim::with(Rate::per_second(1), 10, 4, None);
    assert_eq!(sim.enter(Arrival::new(0, 0)), Ok(JoinOutcome::Passed));
    let mut refusals = 0;
    for number in 0..12 {
        for client in 0..3 {
            match sim.enter(Arrival::new(number, client)) {
                Ok(_) => {}
                Err(RateDenied::QueueFull(decision)) => {
                    assert!(decision.wait_or_max() > Duration::ZERO);
                    refusals += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert_eq!(sim.queue.waiting(), 10);
    assert_eq!(refusals, 36 - 10);
    let lines = (0..3).map(|client| sim.queue.waiting_of(Some(client)));
    assert!(lines.max() <= Some(4));
}

#[test]
fn a_line_that_stands_is_shed_from_and_a_burst_is_not() {
    let codel = Codel {
        target: Duration::from_millis(50),
        interval: Duration::from_millis(500),
    };
    let shed = |arrivals: Vec<Arrival>| {
        let mut sim = Sim::with(Rate::per_second(100).burst(1), 65_536, 1_024, Some(codel));
        let fates = sim.run(arrivals, at_millis(60_000));
        let shed = |fate: &&Fate| matches!(fate.result, Err(RateDenied::Dropped(_)));
        let shed: Vec<_> = fates.iter().filter(shed).cloned().collect();
        shed
    };
    // A burst of forty clears in 400 ms, though its last waits longer than the target.
    let bursts = (0..20_u64).flat_map(|burst| (0..40).map(move |_| burst * 1_000_000_000));
    assert_eq!(shed(bursts.map(|at| Arrival::new(at, 0)).collect()), vec![]);

    // 10 % too much for ever: the queue stands, and is shed; the quiet client's isn't.
    let mut arrivals = requests(0, 120, 60, Pattern::Steady);
    arrivals.extend(requests(1, 5, 60, Pattern::Steady));
    let gone = shed(arrivals);
    assert!(gone.len() >= 300, "{}", gone.len());
    assert!(gone.iter().all(|fate| fate.arrival.client == 0));
    // Not before it had been standing for an interval.
    assert!(gone[0].at >= at_millis(550), "{}", gone[0].at);
}

#[test]
fn codel_keeps_the_wait_of_a_standing_line_short() {
    let codel = Codel {
        target: Duration::from_millis(50),
        interval: Duration::from_millis(500),
    };
    let longest = |codel| {
        let mut sim = Sim::with(Rate::per_second(100).burst(1), 65_536, 1_024, codel);
        let fates = sim.run(requests(0, 120, 60, Pattern::Steady), at_millis(60_000));
        let late = fates
            .iter()
            .filter(|fate| fate.result.is_ok() && fate.at > at_millis(30_000));
        late.map(|fate| fate.at - at_nanos(fate.arrival.nanos))
            .max()
            .unwrap()
    };
    let (with, without) = (longest(Some(codel)), longest(None));
    assert!(with < Duration::from_secs(1), "{with:?}");
    assert!(without > Duration::from_secs(5), "{without:?}");
}

#[test]
fn one_who_is_told_that_it_passes_in_time_does() {
    let mut random = Random::new(11);
    let (mut refused, mut passed) = (0, 0);
    for _ in 0..300 {
        let mut sim = Sim::new(Rate::per_second(100).burst(5));
        let mut waiting = Vec::new();
        for _ in 0..random.below(60) {
            let arrival = Arrival {
                cost: 1 + random.below(5),
                weight: 1 + u32::try_from(random.below(4)).unwrap(),
                ..Arrival::new(0, u32::try_from(random.below(8)).unwrap())
            };
            waiting.push(arrival);
            sim.enter(arrival).unwrap();
        }
        let patience = random.below(1_500) * 1_000_000;
        let asks = Arrival {
            cost: 1 + random.below(5),
            deadline: Some(patience),
            ..Arrival::new(0, 100 + u32::try_from(random.below(3)).unwrap())
        };
        // The same without a deadline, to see when it really passes.
        let mut truth = Sim::new(Rate::per_second(100).burst(5));
        let mut all = waiting.clone();
        all.push(Arrival {
            deadline: None,
            ..asks
        });
        let fates = truth.run(all, at_millis(100_000));
        let of_it = |fates: &[Fate]| {
            let of_it = fates.iter().find(|fate| fate.arrival.client >= 100);
            of_it.cloned().unwrap()
        };
        let really = of_it(&fates).at;
        match sim.enter(asks) {
            Ok(_) => {
                passed += 1;
                let fates = sim.run(Vec::new(), at_millis(100_000));
                if really > at_millis(0) {
                    let fate = of_it(&fates);
                    assert_eq!(fate.result, Ok(()));
                    assert!(fate.at <= at_nanos(patience));
                }
            }
            Err(RateDenied::DeadlineExceeded(decision)) => {
                refused += 1;
                let expected = at_millis(0) + decision.wait_or_max();
                assert!(expected >= really, "said {expected}, was {really}");
                // Within the remainder of the others' requests: less than one each.
                let slack = Duration::from_millis(10 * 8 * 5);
                assert!(expected <= really + slack, "said {expected}, was {really}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        refused > 30 && passed > 30,
        "{refused} refused, {passed} passed"
    );
}

#[test]
fn a_deadline_that_passes_in_line_costs_no_token() {
    let mut sim = Sim::new(Rate::per_second(10).burst(1));
    assert_eq!(sim.enter(Arrival::new(0, 0)), Ok(JoinOutcome::Passed));
    let patient = Arrival::new(0, 1);
    let hasty = Arrival {
        deadline: Some(250_000_000),
        ..Arrival::new(0, 0)
    };
    sim.enter(patient).unwrap();
    sim.enter(hasty).unwrap();
    // A client with a high weight comes later and is served next.
    let heavy = |nanos| Arrival {
        weight: 100,
        ..Arrival::new(nanos, 2)
    };
    let fates = sim.run((1..=5).map(heavy).collect(), at_millis(10_000));
    let hasty = fates.iter().find(|fate| fate.arrival.client == 0).unwrap();
    assert!(
        matches!(hasty.result, Err(RateDenied::DeadlineExceeded(_))),
        "{hasty:?}"
    );
    assert_eq!(hasty.at, at_nanos(250_000_001));
    // Six requests at 100 ms each: none was lost to the one that left.
    let last = fates
        .iter()
        .filter(|fate| fate.result.is_ok())
        .map(|fate| fate.at)
        .max();
    assert_eq!(last, Some(at_millis(600)));
    assert!(sim.queue.is_clean());
}

#[test]
fn one_who_goes_without_noticing_wastes_no_token() {
    // Seven clients keep the queue full for 20 s; a third of the waiters leave once they are due.
    let mut random = Random::new(9);
    let mut sim = Sim::with(Rate::per_second(100).burst(5), 65_536, 64, None);
    let (mut noticed, mut gone) = (0, 0);
    let end = at_millis(20_000);
    let mut now = at_millis(0);
    while now <= end {
        for client in 0..7 {
            let cost = 1 + random.below(3);
            let arrival = Arrival {
                cost,
                ..Arrival::new(now.as_nanos(), client)
            };
            if sim.queue.waiting_of(Some(client)) < 3
                && sim.enter(arrival) == Ok(JoinOutcome::Passed)
            {
                noticed += cost;
            }
        }
        now = sim.queue.next_at().unwrap();
        sim.queue.advance(now);
        loop {
            let done = sim.queue.take_finished();
            if done.is_empty() {
                break;
            }
            for id in done {
                let cost = sim.waiting.remove(&id).unwrap().cost;
                if random.below(3) == 0 {
                    gone += 1;
                    sim.queue.leave(now, id);
                } else {
                    noticed += cost;
                    assert_eq!(sim.queue.outcome_of(id), Some(Ok(())));
                }
            }
            sim.queue.advance(now);
        }
    }
    assert!(gone > 300, "{gone}");
    assert!((1_990..=2_010).contains(&noticed), "{noticed} of 2,005");
}

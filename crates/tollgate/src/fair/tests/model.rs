//! The queue against an obvious slow model, with random arrivals, cancellations and pauses.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};

use super::sim::{Arrival, Sim};
use crate::wait_queue::Waiters as _;
use crate::wait_queue::shared_queue::JoinOutcome;
use crate::wait_queue::waiter_places::WaiterId;

/// All waiters in one list, in the order in which they came; a scan of all of them finds the next.
struct Slow {
    limit: Gcra,
    tat: TatState,
    present: u128,
    waiting: Vec<Waiter>,
    starts: BTreeMap<u32, Start>,
    turns: u64,
}

#[derive(Clone, Copy)]
struct Waiter {
    name: u64,
    arrival: Arrival,
}

#[derive(Clone, Copy)]
struct Start {
    virtual_time: u128,
    turn: u64,
}

impl Slow {
    fn finish(&self, arrival: &Arrival, start: u128) -> u128 {
        start + (u128::from(arrival.cost) << 32).div_ceil(u128::from(arrival.weight))
    }

    /// The head of each client's queue, by finish and by when it became the head.
    fn next(&self) -> Option<Waiter> {
        let first = |waiter: &&Waiter| {
            let of_client = |other: &&Waiter| other.arrival.client == waiter.arrival.client;
            self.waiting.iter().find(of_client).map(|first| first.name) == Some(waiter.name)
        };
        let key = |waiter: &&Waiter| {
            let start = self.starts[&waiter.arrival.client];
            (self.finish(&waiter.arrival, start.virtual_time), start.turn)
        };
        self.waiting.iter().filter(first).min_by_key(key).copied()
    }

    fn start(&mut self, client: u32) {
        self.turns += 1;
        let start = Start {
            virtual_time: self.present,
            turn: self.turns,
        };
        self.starts.insert(client, start);
    }

    fn remove(&mut self, name: u64) {
        self.waiting.retain(|waiter| waiter.name != name);
        if self.waiting.is_empty() {
            self.present = 0;
        }
    }

    /// Which waiters pass by `now`, and when; checks every moment at which something can change.
    fn advance(&mut self, from: Timestamp, now: Timestamp) -> Vec<(u64, Timestamp)> {
        let mut passed = Vec::new();
        let mut from = from;
        while let Some(waiter) = self.next() {
            let cost = waiter.arrival.cost;
            let due = self.limit.earliest(&self.tat, from, cost).unwrap();
            if due > now {
                break;
            }
            self.limit.charge(&mut self.tat, due, due, cost);
            let start = self.starts[&waiter.arrival.client].virtual_time;
            self.present = self.finish(&waiter.arrival, start);
            self.start(waiter.arrival.client);
            self.remove(waiter.name);
            passed.push((waiter.name, due));
            from = due;
        }
        passed
    }

    /// Whether it passes immediately; otherwise it waits.
    fn enter(&mut self, now: Timestamp, name: u64, arrival: Arrival) -> bool {
        let waits = |waiter: &Waiter| waiter.arrival.client == arrival.client;
        let own = self.waiting.iter().any(waits);
        let finish = self.finish(&arrival, self.present);
        let best = self.next().is_none_or(|next| {
            let start = self.starts[&next.arrival.client].virtual_time;
            finish < self.finish(&next.arrival, start)
        });
        let there = self.limit.earliest(&self.tat, now, arrival.cost) == Some(now);
        if there && best && !own {
            self.limit.charge(&mut self.tat, now, now, arrival.cost);
            if !self.waiting.is_empty() {
                self.present = finish;
            }
            return true;
        }
        if !own {
            self.start(arrival.client);
        }
        self.waiting.push(Waiter { name, arrival });
        false
    }
}

#[derive(Clone, Debug)]
enum QueueEvent {
    Come {
        client: u32,
        cost: u64,
    },
    /// The n-th waiter leaves.
    Go(usize),
    Pause(u64),
}

fn step() -> impl Strategy<Value = QueueEvent> {
    prop_oneof![
        5 => (0..6u32, 1..=4u64).prop_map(|(client, cost)| QueueEvent::Come { client, cost }),
        1 => any::<usize>().prop_map(QueueEvent::Go),
        2 => (0..60_000_000u64).prop_map(QueueEvent::Pause),
    ]
}

/// Law 2: in any window at most the burst and what the rate gives meanwhile.
fn keeps_within(rate: Rate, passed: &[(Timestamp, u64)]) {
    for (first, (start, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (end, cost) in &passed[first..] {
            sum += u128::from(*cost);
            let refilled = u128::from(end.nanos_since(*start)) * u128::from(rate.count());
            let most = u128::from(rate.burst_size()) + refilled.div_ceil(1_000_000_000);
            assert!(sum <= most, "{sum} from {start} to {end}, {most} at most");
        }
    }
}

proptest! {
    #[test]
    fn the_line_equals_the_slow_one(
        steps in prop::collection::vec(step(), 1..300),
        count in 20..400u64,
        burst in 4..12u64,
    ) {
        let rate = Rate::per_second(count).burst(burst);
        let mut sim = Sim::new(rate);
        let mut slow = Slow {
            limit: Gcra::new(rate).unwrap(),
            tat: TatState::default(),
            present: 0,
            waiting: Vec::new(),
            starts: BTreeMap::new(),
            turns: 0,
        };
        let mut names: BTreeMap<WaiterId, u64> = BTreeMap::new();
        let mut passed = Vec::new();
        let (mut now, mut next_name) = (Timestamp::ZERO, 0);
        for step in steps {
            match step {
                QueueEvent::Come { client, cost } => {
                    let weight = client % 3 + 1;
                    let arrival = Arrival { cost, weight, ..Arrival::new(now.as_nanos(), client) };
                    let entered = sim.enter(arrival).unwrap();
                    let at_once = slow.enter(now, next_name, arrival);
                    prop_assert_eq!(entered == JoinOutcome::Passed, at_once);
                    match entered {
                        JoinOutcome::Waiting(id) => { names.insert(id, next_name); }
                        JoinOutcome::Passed => passed.push((now, cost)),
                    }
                    next_name += 1;
                }
                QueueEvent::Go(which) if !names.is_empty() => {
                    let which = which % names.len();
                    let (id, name) = names.iter().nth(which).map(|(i, n)| (*i, *n)).unwrap();
                    sim.queue.leave(now, id);
                    names.remove(&id);
                    slow.remove(name);
                    // Its leaving may let another waiter pass.
                    let late = slow.advance(now, now);
                    take(&mut sim, now, &mut names, &mut passed, &late);
                }
                QueueEvent::Go(_) => {}
                QueueEvent::Pause(nanos) => {
                    let then = now.plus_nanos(nanos);
                    let expected = slow.advance(now, then);
                    now = then;
                    take(&mut sim, now, &mut names, &mut passed, &expected);
                }
            }
            prop_assert_eq!(sim.queue.waiting(), slow.waiting.len());
        }
        keeps_within(rate, &passed);
        // Whatever was cancelled: nothing remains once all waiters have left.
        for id in names.keys() {
            sim.queue.leave(now, *id);
        }
        prop_assert!(sim.queue.is_clean());
    }
}

/// Advances the queue and compares which waiters passed, in which order.
fn take(
    sim: &mut Sim,
    now: Timestamp,
    names: &mut BTreeMap<WaiterId, u64>,
    passed: &mut Vec<(Timestamp, u64)>,
    expected: &[(u64, Timestamp)],
) {
    sim.queue.advance(now);
    let mut got = Vec::new();
    for (number, id) in sim.queue.take_finished().into_iter().enumerate() {
        let arrival = sim.waiting.remove(&id).unwrap();
        assert_eq!(sim.queue.outcome_of(id), Some(Ok(())));
        got.push(names.remove(&id).unwrap());
        passed.push((expected[number].1, arrival.cost));
    }
    let expected: Vec<_> = expected.iter().map(|(name, _)| *name).collect();
    assert_eq!(got, expected);
}

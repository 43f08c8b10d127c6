//! Every answer equals that of one plain state a key, while keys come, go idle and are taken over.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::core::{Arithmetic, Gcra, TatState, units};
use tollgate::{Clock, Decision, KeyedLimiter, Rate, Timestamp};
use tollgate_testkit::traffic::Random;

use crate::{BASE, index, limiter, nanos, soak};

/// One word a key in a map: what the table must be equal to.
struct Model {
    limit: Gcra,
    keys: HashMap<u64, TatState>,
}

impl Model {
    fn new(rate: Rate) -> Self {
        Self {
            limit: Gcra::new(rate).expect("a rate that fits"),
            keys: HashMap::new(),
        }
    }

    fn decide(&mut self, now: Timestamp, key: u64, cost: u64) -> Decision {
        self.limit
            .decide(self.keys.entry(key).or_default(), now, cost)
    }

    /// A refund, never past a full bucket.
    fn refund(&mut self, now: Timestamp, key: u64, tokens: u64) {
        let Some(tat) = self.keys.get_mut(&key).filter(|_| tokens > 0) else {
            return;
        };
        let word = tat.to_word();
        let now = units::from_time(now);
        // And a unit more, by which receipts from before are told.
        let gift = self.limit.interval_units() * tokens + 1;
        *tat = TatState::from_word(word.saturating_sub(gift).max(now.min(word)));
    }

    /// A fine, never past an empty bucket.
    fn penalize(&mut self, now: Timestamp, key: u64, tokens: u64) {
        let empty = self.limit.params().empty(now).to_word();
        let tat = self.keys.entry(key).or_default();
        let start = tat.to_word().max(units::from_time(now));
        let fined = start + self.limit.interval_units() * tokens;
        *tat = TatState::from_word(fined.min(empty.max(start)));
    }
}

/// A run over this many keys, all of them other keys after each time that all went idle.
struct Run {
    rate: Rate,
    capacity: usize,
    operations: u64,
    seed: u64,
}

struct Pair {
    random: Random,
    model: Model,
    table: KeyedLimiter<Manual>,
    clock: Manual,
    keys: u64,
    /// The first key of those that are in use now.
    first: u64,
}

impl Run {
    fn go(self) {
        let (table, clock) = limiter(self.rate, self.capacity);
        let mut pair = Pair {
            random: Random::new(self.seed),
            model: Model::new(self.rate),
            table,
            clock,
            keys: self.capacity as u64,
            first: 0,
        };
        for _ in 0..self.operations {
            pair.let_time_pass();
            pair.step();
        }
        let stats = pair.table.stats();
        assert_eq!(stats.overflowed, 0, "{stats:?}");
        assert!(pair.first > 0, "no time at which all keys were idle");
        let now = pair.clock.now();
        let active = |tat: &&TatState| tat.to_word() > units::from_time(local(now));
        let expected = pair.model.keys.values().filter(active).count();
        assert_eq!(pair.table.len(), expected);
    }
}

/// A time as the model counts it.
fn local(now: Timestamp) -> Timestamp {
    Timestamp::from_nanos(nanos(now - BASE))
}

impl Pair {
    fn let_time_pass(&mut self) {
        let rate = self.table.rate();
        let interval =
            rate.period().expect("a finite rate") / u32::try_from(rate.count()).expect("small");
        let drain = interval * u32::try_from(rate.burst_size()).expect("small");
        let gap = match self.random.below(8 * self.keys + 400) {
            // All are idle after this, and other keys come: every slot is taken over.
            0 => {
                self.first += 1 + self.random.below(2 * self.keys);
                drain + Duration::from_nanos(1 + self.random.below(10_000_000))
            }
            1..=20 => Duration::from_nanos(self.random.below(nanos(drain))),
            21..=60 => interval,
            61..=100 => Duration::from_nanos(1),
            _ => return,
        };
        self.clock.advance(gap);
    }

    fn step(&mut self) {
        let Self { random, model, .. } = self;
        // Half of the time one of a few hot keys.
        let among = [self.keys, 1 + self.keys / 50][index(random.below(2))];
        let key = self.first + random.below(among);
        let now = self.clock.now();
        let burst = self.table.rate().burst_size();
        let cost = [0, 1, 1, 1, 2, burst / 2, burst, burst + 1][index(random.below(8))];
        match random.below(100) {
            0 => {
                model.keys.remove(&key);
                self.table.key(&key).reset();
            }
            1 => {
                model.refund(local(now), key, cost);
                self.table.key(&key).refund(cost);
            }
            2 => {
                model.penalize(local(now), key, cost);
                self.table.key(&key).penalize(cost).expect("a slot");
            }
            3..=6 => {
                let expected = model.decide(local(now), key, cost).is_allowed();
                assert_eq!(self.table.key(&key).allow_n(cost), expected);
            }
            _ => {
                let expected = model.decide(local(now), key, cost);
                assert_eq!(self.table.check_n(&key, cost), expected, "{key} {now}");
            }
        }
    }
}

#[test]
fn a_table_for_one_key_or_a_few_answers_as_one_state_a_key() {
    for (seed, capacity) in [1, 2, 3, 7, 20, 64, 65, 100].into_iter().enumerate() {
        Run {
            rate: Rate::per_second(10).burst(1 + seed as u64),
            capacity,
            operations: 40_000,
            seed: seed as u64,
        }
        .go();
    }
}

#[test]
fn a_table_that_grows_from_one_line_answers_as_one_state_a_key() {
    for seed in 0..4 {
        Run {
            rate: Rate::new(7, Duration::from_millis(3)).burst(20),
            capacity: 2_000,
            operations: 100_000,
            seed,
        }
        .go();
    }
}

#[test]
fn a_table_of_many_shards_answers_as_one_state_a_key() {
    let (capacity, operations) = if soak() {
        (1_000_000, 40_000_000)
    } else {
        (40_000, 800_000)
    };
    Run {
        rate: Rate::per_minute(30).burst(3),
        capacity,
        operations,
        seed: 11,
    }
    .go();
}

#[test]
fn keys_that_go_idle_a_few_at_a_time_are_taken_over_unseen() {
    // Each key lives for 30 ms; never more than 3,000 are active, but 300,000 come by.
    let rate = Rate::every(Duration::from_millis(10)).burst(3);
    let (table, clock) = limiter(rate, 3_000);
    let mut model = Model::new(rate);
    let mut random = Random::new(5);
    for turn in 0..300_000u64 {
        clock.advance(Duration::from_micros(10));
        let key = turn.saturating_sub(random.below(100) * random.below(30));
        let expected = model.decide(local(clock.now()), key, 1 + key % 3);
        assert_eq!(table.check_n(&key, 1 + key % 3), expected, "{turn}");
    }
    let stats = table.stats();
    assert_eq!(stats.overflowed, 0, "{stats:?}");
    // A small table fills an eighth of its slots, for the few that are active at once.
    assert!(stats.slots <= 3_000 * 100 / 12 + 4, "{stats:?}");
}

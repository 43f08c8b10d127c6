//! The real scripts with random requests, replayed on both stores.

use tollgate_redis::simulation::scripts;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;
use tollgate_testkit::world::{Call, replay};

use super::{at_length, pick};

/// What no script of ours writes.
const VANDALS: [&str; 3] = [
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "redis.call('DEL', KEYS[1]) return redis.call('ZADD', KEYS[1], 5, ARGV[1])",
    "return redis.call('DEL', KEYS[1])",
];

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;
const SLOTS: u8 = 7;
/// What is used is at least this.
const RAISE: u8 = 8;
const GIVE_BACK: u8 = 3;
const RESET: u8 = 5;
/// The answer must have the counter's generation.
const TELL: f64 = 1.0;

/// Price, drain and capacity: 10/s, 1000/m with a burst of 50, 3/h, one burst that never comes back.
const LEVELS: [[f64; 3]; 4] = [
    [100_000.0, 1.0, 1_000_000.0],
    [60_000.0, 1.0, 3_000_000.0],
    [1_200_000_000.0, 1.0, 3_600_000_000.0],
    [1.0, 0.0, 20.0],
];

/// A history of calls and its time.
struct Asking {
    random: Random,
    now: u64,
}

impl Asking {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        Self { random, now: START }
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.random.below(end.into())).expect("it is below a small number")
    }

    fn level(&mut self) -> [f64; 3] {
        *pick(
            &mut self.random,
            &[&LEVELS[0], &LEVELS[0], &LEVELS[1], &LEVELS[2], &LEVELS[3]],
        )
    }

    fn cost(&mut self) -> f64 {
        f64::from(*pick(
            &mut self.random,
            &[&0, &1, &1, &1, &2, &5, &10, &11, &9000],
        ))
    }

    /// Some time on; now and then a step back.
    fn step(&mut self) {
        let by = *pick(
            &mut self.random,
            &[
                &0,
                &0,
                &1,
                &100,
                &99_999,
                &100_000,
                &SECOND,
                &(60 * SECOND),
                &(4_000 * SECOND),
            ],
        );
        self.now = match self.below(12) {
            0 => self.now - by,
            _ => self.now + by,
        };
    }

    fn key(&mut self) -> Vec<u8> {
        pick(&mut self.random, &["a", "b", "c"]).as_bytes().to_vec()
    }

    fn call(&self, script: &str, keys: Vec<Vec<u8>>, record: Vec<u8>, more: Vec<Vec<u8>>) -> Call {
        let mut args = vec![record, self.now.to_string().into_bytes()];
        args.extend(more);
        Call {
            script: script.into(),
            keys,
            args,
        }
    }

    fn plain(&mut self) -> Call {
        let (mut record, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..=self.below(3) {
            let questions = 1 + self.below(2) * self.below(4);
            for number in 1..=questions {
                record.push(u8::from(number == questions));
                put(&mut record, &[self.cost()]);
                put(&mut record, &self.level());
                keys.push(self.key());
            }
        }
        self.call(scripts::plain(), keys, record, Vec::new())
    }

    fn lease(&mut self) -> Call {
        let mut record = Vec::new();
        put(&mut record, &self.level());
        // Who, how often, holds, returns, wants, at most, for how long, at least, owed at least, and forgiven.
        let numbers = [4, 30, 12, 3, 12, 20].map(|end| f64::from(self.below(end)));
        let [who, often, holds, returns, wants, most] = numbers;
        let life = *pick(&mut self.random, &[&100_000.0, &5_000_000.0]);
        let least = f64::from(self.below(2) * self.below(3));
        let owed = f64::from(self.below(4) / 3 * self.below(2_000_000));
        let forgiven = f64::from(self.below(5) / 4 * self.below(12));
        put(
            &mut record,
            &[
                who + 1.0,
                often,
                holds,
                returns,
                wants,
                most,
                life,
                least,
                owed,
                forgiven,
            ],
        );
        let key = self.key();
        self.call(scripts::lease(), vec![key], record, Vec::new())
    }

    /// A kind of limit and its five numbers.
    fn limit(&mut self) -> (u8, [f64; 5]) {
        let kind = 1 + u8::try_from(self.below(7)).expect("seven kinds");
        let limit = f64::from(1 + self.below(10));
        let length = *pick(&mut self.random, &[&1_000_000.0, &60_000_000.0]);
        #[expect(clippy::cast_precision_loss, reason = "times are below 2^53")]
        let month = |number: i64| (START as f64) + 3_000_000_000.0 * (number as f64);
        let five = match kind {
            1 => {
                let [price, drain, capacity] = self.level();
                [price, drain, capacity, 0.0, 0.0]
            }
            2 => [
                limit,
                length,
                *pick(&mut self.random, &[&-1.0, &0.0, &7.0]),
                0.0,
                0.0,
            ],
            3 => [limit, limit + f64::from(self.below(3)), length, 0.0, 0.0],
            5 => [limit, month(-1), month(0), month(1), month(2)],
            _ => [limit, length, 0.0, 0.0, 0.0],
        };
        (kind, five)
    }

    fn mixed(&mut self) -> Call {
        let (mut record, mut keys, mut holders) = (Vec::new(), Vec::new(), Vec::new());
        // Keys that tell when a counter was reset, behind all others.
        let mut resets = Vec::new();
        for _ in 0..=self.below(2) {
            let questions = 1 + self.below(2) * self.below(4);
            for number in 1..=questions {
                let (kind, five) = self.limit();
                let own = self.below(9);
                let op = match (questions, kind) {
                    _ if own == 8 => RAISE,
                    (2.., _) => 0,
                    (_, SLOTS) => *pick(&mut self.random, &[&0, &0, &6, &7]),
                    _ => u8::try_from(own.saturating_sub(2)).expect("six questions"),
                };
                // A wait, units of a level, or a time not long ago.
                #[expect(clippy::cast_precision_loss, reason = "times are below 2^53")]
                let extra = match op {
                    2 => f64::from(self.below(200_000)),
                    RAISE => f64::from(self.below(4_000_000)),
                    _ => (self.now - u64::from(self.below(3)) * SECOND) as f64,
                };
                record.extend_from_slice(&[op, kind, u8::from(number == questions)]);
                let cost = if kind == SLOTS {
                    f64::from(self.below(3))
                } else {
                    self.cost()
                };
                let generation = self.generation(op, kind);
                put(&mut record, &[cost, extra, generation]);
                put(&mut record, &five);
                // What a key holds is of one kind, but for mistakes.
                let mut key = self.key();
                if self.below(30) > 0 {
                    key.push(b'0' + kind);
                }
                if kind != SLOTS && (matches!(op, GIVE_BACK | RESET) || is_told(generation)) {
                    resets.push([&key[..], b"#reset"].concat());
                }
                keys.push(key);
                if kind == SLOTS {
                    holders.push(
                        pick(&mut self.random, &["ann", "bob", "cy"])
                            .as_bytes()
                            .to_vec(),
                    );
                }
            }
        }
        keys.extend(resets);
        self.call(scripts::mixed(), keys, record, holders)
    }

    /// The generation of a counter in a request, or expected in its answer.
    fn generation(&mut self, op: u8, kind: u8) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "times are below 2^53")]
        match op {
            0 if kind != SLOTS && self.below(3) == 0 => TELL,
            GIVE_BACK => match self.below(3) {
                0 => -1.0,
                1 => 0.0,
                _ => self.now as f64,
            },
            _ => 0.0,
        }
    }

    fn vandal(&mut self) -> Call {
        let script = pick(&mut self.random, &VANDALS);
        let length = usize::try_from(8 * self.below(10)).expect("a few");
        let bytes = (0..length).map(|_| self.random.next().to_le_bytes()[0]);
        let mut call = Call {
            script: script.into(),
            keys: Vec::new(),
            args: vec![bytes.collect()],
        };
        let mut key = self.key();
        if self.below(2) == 0 {
            key.push(b'1' + u8::try_from(self.below(7)).expect("seven kinds"));
        }
        call.keys.push(key);
        call
    }
}

/// Whether an answer must have a generation.
fn is_told(generation: f64) -> bool {
    generation.to_bits() == TELL.to_bits()
}

fn put(to: &mut Vec<u8>, numbers: &[f64]) {
    for number in numbers {
        to.extend_from_slice(&number.to_le_bytes());
    }
}

/// Histories of such calls, each alike on both stores; most calls aren't errors.
fn alike(histories: u64, ask: fn(&mut Asking) -> Call) {
    let server = Server::start();
    let (mut calls, mut errors) = (0, Vec::new());
    for seed in 0..at_length(histories) {
        let mut asking = Asking::new(seed);
        let history: Vec<Call> = (0..60)
            .map(|_| {
                asking.step();
                match asking.below(40) {
                    0 => asking.vandal(),
                    _ => ask(&mut asking),
                }
            })
            .collect();
        let answers = replay(&server, &history);
        let answers = answers.unwrap_or_else(|difference| panic!("seed {seed}, {difference}"));
        calls += answers.len();
        errors.extend(answers.into_iter().filter_map(Result::err));
    }
    let some = errors.first();
    assert!(
        errors.len() * 50 < calls,
        "{} of {calls} calls failed: {some:?}",
        errors.len()
    );
}

#[test]
fn decisions_about_levels_are_alike() {
    alike(30, Asking::plain);
}

#[test]
fn leases_are_alike() {
    alike(30, Asking::lease);
}

#[test]
fn questions_of_every_kind_are_alike() {
    alike(40, Asking::mixed);
}

#[test]
fn a_difference_is_told() {
    let server = Server::start();
    let call = |script: &str| Call {
        script: script.into(),
        keys: Vec::new(),
        args: Vec::new(),
    };
    let told = |script| replay(&server, &[call("return 1"), call(script)]).unwrap_err();
    // Only the real one has a library for JSON.
    let text = told("return cjson.encode({})").to_string();
    let expected = "call 1: its reply is error: ERR user_script:1: Script attempted";
    assert!(text.starts_with(expected), "{text}");
    // Only the real one has this function: a value, a key or a time to live that isn't the same.
    for script in [
        "redis.call('SET', 'k', type(redis.sha1hex)) return 1",
        "if redis.sha1hex then redis.call('SET', 'k', 'v') end return 1",
        "if not redis.sha1hex then redis.call('SET', 'k', 'v') end return 1",
        "redis.call('SET', 'k', 'v')
         if redis.sha1hex then redis.call('PEXPIRE', 'k', 99999) end return 1",
    ] {
        let text = told(script).to_string();
        assert!(text.starts_with("in the end: key \"k\" is "), "{text}");
    }
}

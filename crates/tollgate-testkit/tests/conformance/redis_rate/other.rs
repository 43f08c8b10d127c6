//! Other sequences of the kinds that were recorded: random calls at times that step back and lie
//! around a key's end, answered by the model of the peer. The model was held against the peer's
//! own scripts, on a Redis whose clock was virtual, on a million such calls.

use tollgate_testkit::traffic::Random;

use super::model::{Answer, Key};
use super::{Call, Op, Recorded, Sequence};

/// A rate and a period in seconds, and the microseconds of one token, cut.
const PACES: [(u64, f64, u64); 10] = [
    (1, 1.0, 1_000_000),
    (1, 2.0, 2_000_000),
    (2, 1.0, 500_000),
    (3, 1.0, 333_333),
    (7, 10.0, 1_428_571),
    (10, 0.1, 10_000),
    (30, 1.5, 50_000),
    (30, 60.0, 2_000_000),
    (100, 86_400.0, 864_000_000),
    (1000, 1.0, 1_000),
];
const BURSTS: [u64; 8] = [0, 1, 2, 3, 5, 10, 20, 100];
const OPERATIONS: usize = 60;

/// Whether times go back now and then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Forward,
    Tangled,
}

struct Peer {
    random: Random,
    interval: u64,
    burst: u64,
    order: Order,
    t_us: u64,
    key: Key,
    exact_allowed_agrees: bool,
}

/// The sequence of a seed.
pub(super) fn sequence(seed: u64) -> Sequence {
    let mut random = Random::new(seed);
    let (rate, period_s, interval) = random.pick(&PACES);
    let burst = random.pick(&BURSTS);
    let order = random.pick(&[Order::Forward, Order::Forward, Order::Tangled]);
    let mut peer = Peer {
        t_us: 10_000_000 + random.below(10_000_000),
        random,
        interval,
        burst,
        order,
        key: Key::new(rate, burst, period_s),
        exact_allowed_agrees: true,
    };
    let ops = (0..OPERATIONS).map(|_| peer.op()).collect();
    Sequence {
        id: seed,
        rate,
        burst,
        period_s,
        exact_allowed_agrees: peer.exact_allowed_agrees,
        ops,
    }
}

impl Peer {
    fn op(&mut self) -> Op {
        self.step();
        let call = match self.random.below(50) {
            0 => {
                self.key.reset();
                Call::Reset
            }
            1..10 => self.allow_at_most(),
            _ => self.allow(),
        };
        let t_us = self.t_us;
        Op { t_us, call }
    }

    /// Lets time pass: none, less than two milliseconds, about one token or a burst of them, or
    /// whole seconds, at whose end a key may expire.
    fn step(&mut self) {
        let (random, interval) = (&mut self.random, self.interval);
        let drains = interval * self.burst;
        self.t_us += match random.below(12) {
            0..3 => 0,
            3..5 => random.below(2_000),
            5..7 => interval + random.below(3) - 1,
            7 => drains + random.below(3),
            8 => random.below(3 * interval),
            9 => random.below(interval),
            10 => random.below(2 * drains),
            _ => (1 + random.below(3)) * 1_000_000 + random.below(2_000) - 1_000,
        };
        if self.order == Order::Tangled && random.below(6) == 0 {
            let back = [2_000, interval, 5_000_000, 2 * drains];
            let back = random.pick(&back);
            self.t_us = self.t_us.saturating_sub(random.below(back));
        }
    }

    fn allow(&mut self) -> Call {
        let n = self.amount();
        let (free, token) = self.key.exactly_free(self.t_us);
        let left = free - token * i128::from(n);
        let exact = if left < 0 {
            None
        } else {
            Some((n, left / token))
        };
        let answer = self.key.allow(self.t_us, n);
        Call::AllowN(self.recorded(n, &answer, exact))
    }

    fn allow_at_most(&mut self) -> Call {
        let n = self.amount();
        let (free, token) = self.key.exactly_free(self.t_us);
        let whole = u64::try_from(free / token).unwrap_or(0);
        let left = i128::from(whole.saturating_sub(n));
        let exact = (free >= token).then_some((whole.min(n), left));
        let answer = self.key.allow_at_most(self.t_us, n);
        Call::AllowAtMost(self.recorded(n, &answer, exact))
    }

    /// The answer as it would be recorded, beside what exact arithmetic allows and leaves.
    fn recorded(&mut self, n: u64, answer: &Answer, exact: Option<(u64, i128)>) -> Recorded {
        let passed = answer.retry_after == -1;
        let (allowed, remaining) = exact.unwrap_or((0, 0));
        self.exact_allowed_agrees &= exact.is_some() == passed && allowed == answer.allowed;
        Recorded {
            n,
            allowed: answer.allowed,
            remaining: answer.remaining,
            exact_remaining: u64::try_from(remaining).ok(),
            retry_after_ns: answer.retry_after,
            reset_after_ns: answer.reset_after,
            pttl_ms: answer.pttl,
        }
    }

    fn amount(&mut self) -> u64 {
        let burst = self.burst;
        match self.random.below(10) {
            0 => 0,
            1 => burst,
            2 => burst + 1,
            3 => 1 + self.random.below(burst),
            _ => 1,
        }
    }
}

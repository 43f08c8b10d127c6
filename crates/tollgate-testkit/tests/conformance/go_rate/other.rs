//! Other sequences of the kinds that were recorded: random calls, answered by the model of the
//! peer. The model was held against the peer itself on a million such calls.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the peer's limits are doubles, and times are drawn around them"
)]

use tollgate_testkit::traffic::Random;

use super::model::{ENDLESS, Limiter, Reservation, UNLIMITED};
use super::recorded::{Call, Limit, Op, Sequence};

/// The limits of one kind of sequence, between which it is switched.
const KINDS: [&[f64]; 7] = [
    &[1.0, 2.0, 5.0, 10.0, 100.0, 1000.0],
    &[0.5, 12.75, 7.3, 0.01, 1.0 / 3.0, std::f64::consts::PI],
    &[500_000.0, 12_345.678, 1e9, 3e10],
    &[UNLIMITED, UNLIMITED, 3.04, 15.85],
    &[0.0, 0.0, 1.0, 4.0, 10.0],
    &[1e-6, 1e-9, 1e-12, 1e-15],
    &[1e-9, 1e-12, 0.0, UNLIMITED, 1.0],
];
const BURSTS: [i64; 8] = [0, 1, 1, 2, 3, 7, 12, 100];
const OPERATIONS: usize = 50;

/// Whether times go back now and then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Forward,
    Tangled,
}

struct Peer {
    random: Random,
    limits: &'static [f64],
    order: Order,
    t: i64,
    limiter: Limiter,
    made: Vec<Reservation>,
}

/// The sequence of a seed. Endless waits are excused, so the kinds that wait without end are rare.
pub(super) fn sequence(seed: u64) -> Sequence {
    let mut random = Random::new(seed);
    let kind = match random.below(16) {
        15 => 6,
        14 => 5,
        13 => 4,
        kind => kind as usize % 4,
    };
    let order = match random.below(8) {
        0 => Order::Tangled,
        _ => Order::Forward,
    };
    let limit = random.pick(KINDS[kind]);
    let burst = random.pick(&BURSTS);
    let mut peer = Peer {
        random,
        limits: KINDS[kind],
        order,
        t: 0,
        limiter: Limiter::new(limit, burst),
        made: Vec::new(),
    };
    Sequence {
        id: seed,
        limit: Limit::from(limit),
        burst,
        ops: (0..OPERATIONS).map(|_| peer.op()).collect(),
    }
}

impl Peer {
    fn op(&mut self) -> Op {
        self.step();
        let call = self.call();
        let tokens_after = self.limiter.tokens_at(i128::from(self.t));
        Op {
            t: self.t,
            tokens_after,
            call,
        }
    }

    /// Lets time pass: none, a few nanoseconds, about one interval or several.
    fn step(&mut self) {
        let interval = (1e9 / self.limiter.limit).clamp(1.0, 1e15) as u64;
        let random = &mut self.random;
        let passes = match random.below(10) {
            0..4 => 0,
            4 => random.below(10),
            5 => interval,
            6 => interval + random.below(3) - 1,
            7 => (1 + random.below(5)) * 100_000_000,
            8 => random.below(3 * interval),
            _ => random.below(10) * interval + random.below(3),
        };
        self.t += passes.cast_signed();
        if self.order == Order::Tangled && random.below(5) == 0 {
            self.t -= random.below(3_000_000_000).cast_signed();
        }
    }

    fn call(&mut self) -> Call {
        let t = i128::from(self.t);
        match self.random.below(20) {
            0 => {
                let limit = self.random.pick(self.limits);
                self.limiter.set_limit(t, limit);
                let limit = Limit::from(limit);
                Call::SetLimit { limit }
            }
            1 => {
                let burst = self.random.pick(&BURSTS);
                self.limiter.set_burst(t, burst);
                Call::SetBurst { burst }
            }
            2 => Call::Tokens {
                tokens: self.limiter.tokens_at(t),
            },
            3 if !self.made.is_empty() => {
                let rid = self.earlier();
                let delay = self.made[rid].delay_from(t);
                Call::Delay { rid, delay }
            }
            4..8 if !self.made.is_empty() => {
                let rid = self.earlier();
                self.limiter.cancel(t, &self.made[rid]);
                Call::Cancel { rid }
            }
            4..14 => {
                let n = self.amount();
                let made = self.limiter.reserve(t, n, ENDLESS);
                self.made.push(made);
                let (ok, delay) = (made.ok, made.delay_from(t));
                Call::Reserve { n, ok, delay }
            }
            _ => {
                let n = self.amount();
                let ok = self.limiter.reserve(t, n, 0).ok;
                Call::Allow { n, ok }
            }
        }
    }

    /// A reservation made before, mostly one of the latest.
    fn earlier(&mut self) -> usize {
        let made = self.made.len() as u64;
        let back = self.random.below(made).min(self.random.below(4));
        (made - 1 - back) as usize
    }

    fn amount(&mut self) -> i64 {
        let burst = self.limiter.burst;
        match self.random.below(10) {
            0 => 0,
            1 => burst,
            2 => burst + 1,
            3 => 1 + self.random.below(burst.cast_unsigned()).cast_signed(),
            _ => 1,
        }
    }
}

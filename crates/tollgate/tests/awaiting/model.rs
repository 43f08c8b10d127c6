//! Random waits, drops, checks, reservations and live changes against a slow oracle, for every algorithm and holder.
//!
//! The oracle keeps the queue as a list, with a limiter of its own that nobody waits for. Tasks are polled only after a
//! wake-up, so a missing wake-up shows as a missing permit.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Decision, KeyedLimiter, Limiter, Outcome, Rate, RateDenied, Reservation,
    StoredKeyLimiter, Timestamp, wait::LimitHandle,
};
use tollgate_testkit::traffic::Random;

mod oracle;

use oracle::{Expected, Fate, Oracle, Waiter};

use super::Polled;
use super::holder::{ALGORITHMS, Holder};

struct Waiting<'a, H: Holder + 'a> {
    number: u64,
    polled: Polled<tollgate::wait::AcquireFuture<H::Home<'a>>>,
    seen: usize,
}

/// What may happen in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Woken tasks are polled immediately, and there are no reservations.
    Prompt,
    /// Those who are woken look sometimes, so that they go or others come before they noticed.
    Late,
    /// Others reserve behind those who wait.
    Reserving,
}

/// So many a second in bursts of so many, as far as the algorithm has bursts.
type RateOf = fn(u64, u64) -> Rate;

/// A history that is played on a limiter and on the oracle.
struct Play<'a, H: Holder> {
    subject: &'a H,
    oracle: Oracle<'a, H>,
    clock: &'a Manual,
    random: Random,
    waiting: Vec<Waiting<'a, H>>,
    reserved: Vec<(Reservation<H::Home<'a>>, Expected<'a, H>)>,
    numbers: u64,
    now: Timestamp,
    rate: RateOf,
    why: String,
}

impl<'a, H: Holder> Play<'a, H> {
    fn new(
        [subject, alone]: [&'a H; 2],
        clock: &'a Manual,
        rate: RateOf,
        (algorithm, seed, kind): (Algorithm, u64, Kind),
    ) -> Self {
        let now = Timestamp::from_secs(1_000);
        clock.set(now);
        let oracle = Oracle {
            alone,
            line: Vec::new(),
            booked: Vec::new(),
            past: Vec::new(),
            seen: Timestamp::ZERO,
            fates: BTreeMap::new(),
            charged: Vec::new(),
            returned: 0,
            numbers: 0,
        };
        Self {
            subject,
            oracle,
            clock,
            random: Random::new(seed),
            waiting: Vec::new(),
            reserved: Vec::new(),
            numbers: 0,
            now,
            rate,
            why: format!("{algorithm:?} seed {seed}, {kind:?}"),
        }
    }

    fn come(&mut self) {
        let (now, cost) = (self.now, 1 + self.random.below(3));
        let millis = 10 * self.random.below(100);
        let timeout = (self.random.below(3) == 0).then(|| Duration::from_millis(millis));
        let mut acquire = self.subject.acquire(cost);
        if let Some(timeout) = timeout {
            acquire = acquire.timeout(timeout);
        }
        let mut polled = Polled::new(acquire);
        let (outcome, number) = (polled.poll(), self.numbers);
        self.numbers += 1;
        let (passes, why) = (self.oracle.passes(now, cost), &self.why);
        match outcome {
            Some(Ok(_)) => assert!(passes, "{why}: it passed others"),
            Some(Err(RateDenied::DeadlineExceeded(_))) => {
                assert!(!passes && timeout.is_some(), "{why}")
            }
            Some(Err(refused)) => {
                let never = matches!(refused, RateDenied::ExceedsBurst(_));
                assert!(never && !passes, "{why}: {refused:?}");
            }
            None => {
                assert!(!passes, "{why}: it waits for nothing");
                self.oracle.line.push(Waiter {
                    number,
                    cost,
                    arrived: now,
                    deadline: timeout.map(|timeout| now + timeout),
                });
                self.waiting.push(Waiting {
                    number,
                    polled,
                    seen: 0,
                });
            }
        }
    }

    fn any_of(&mut self, count: usize) -> usize {
        let which = self.random.below(count as u64);
        usize::try_from(which).expect("less than a length")
    }

    /// One goes, the oldest as often as any: so do timeouts.
    fn leave(&mut self) {
        let place = match self.random.below(2) {
            0 => 0,
            _ => self.any_of(self.waiting.len()),
        };
        let gone = self.waiting.remove(place);
        self.oracle.leave(self.now, gone.number);
    }

    fn check(&mut self) {
        let (now, cost) = (self.now, self.random.below(4));
        let told = self.subject.check_at(now, cost);
        let passes = self.oracle.passes(now, cost);
        assert_eq!(told.is_allowed(), passes, "{} at {now}: {told:?}", self.why);
    }

    fn reserve(&mut self) {
        let (now, cost) = (self.now, 1 + self.random.below(3));
        let slot = self.subject.reserve_at(now, cost);
        let expected = self.oracle.reserve(now, cost);
        match (slot, expected) {
            (Ok(slot), Some(expected)) => {
                assert_eq!(slot.ready_at(), expected.act_at(), "{}", self.why);
                self.reserved.push((slot, expected));
            }
            (Err(_), None) => {}
            (slot, expected) => {
                let expected = expected.map(|it| it.act_at());
                panic!("{}: {slot:?}, not {expected:?}", self.why)
            }
        }
    }

    fn cancel(&mut self) {
        let which = self.any_of(self.reserved.len());
        let (slot, expected) = self.reserved.remove(which);
        self.oracle.advance(self.now);
        slot.cancel_at(self.now);
        self.oracle.cancel(self.now, expected);
    }

    fn set_rate(&mut self) {
        let (count, burst) = (2 + self.random.below(20), 2 + self.random.below(6));
        let rate = (self.rate)(count, burst);
        self.subject.set_rate(rate);
        self.oracle.set_rate(self.now, rate);
    }

    fn go_on(&mut self) {
        self.now += Duration::from_millis(self.random.below(400));
        self.clock.set(self.now);
    }

    /// Polls the woken tasks, and those that they wake: their outcomes equal the oracle's.
    fn look(&mut self) {
        let mut told = BTreeMap::new();
        let mut expected = BTreeMap::new();
        loop {
            let is_woken = |waiting: &Waiting<'_, H>| waiting.polled.woken() > waiting.seen;
            let Some(place) = self.waiting.iter().position(is_woken) else {
                break;
            };
            let woken = &mut self.waiting[place];
            woken.seen = woken.polled.woken();
            let fate = match woken.polled.poll() {
                None => continue,
                Some(Ok(_)) => Fate::Passed,
                Some(Err(RateDenied::DeadlineExceeded(_))) => Fate::Late,
                Some(Err(_)) => Fate::Never,
            };
            told.insert(self.waiting.remove(place).number, fate);
        }
        self.oracle.advance(self.now);
        while let Some((&number, _)) = self.oracle.fates.iter().next() {
            expected.extend(self.oracle.notice(number).map(|fate| (number, fate)));
        }
        assert_eq!(told, expected, "{} at {}", self.why, self.now);
    }

    /// All waiters leave, in any order.
    fn end(mut self) -> u64 {
        while !self.waiting.is_empty() {
            self.leave();
        }
        for (slot, expected) in self.reserved {
            self.oracle.advance(self.now);
            slot.cancel_at(self.now);
            self.oracle.cancel(self.now, expected);
        }
        let left = self.subject.check_at(self.now, 0);
        let expected = self.oracle.alone.check_at(self.now, 0);
        assert_eq!(left, expected, "{}", self.why);
        assert_eq!(self.clock.parked(), 0, "{}", self.why);
        self.oracle.returned
    }
}

/// Plays histories of each kind.
fn play<H: Holder>(algorithm: Algorithm, limiter: impl Fn(&Manual, Rate) -> H) {
    let rate: RateOf = match algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            |count, burst| Rate::per_second(count).burst(burst)
        }
        _ => |_, burst| Rate::per_second(burst),
    };
    let mut returned = 0;
    for kind in [Kind::Prompt, Kind::Late, Kind::Reserving] {
        let changes = kind != Kind::Reserving || H::BOOKS_THROUGH_CHANGES;
        for seed in 0..HISTORIES {
            let clock = Manual::starting_at(Timestamp::from_secs(1));
            let first = rate(3 + seed % 9, 3 + seed % 4);
            let (subject, alone) = (limiter(&clock, first), limiter(&clock, first));
            let mut play = Play::new([&subject, &alone], &clock, rate, (algorithm, seed, kind));
            for _ in 0..120 {
                match play.random.below(10) {
                    0..=3 => play.come(),
                    4 | 5 if !play.waiting.is_empty() => play.leave(),
                    6 => play.check(),
                    7 if changes && play.random.below(4) == 0 => play.set_rate(),
                    7 if kind == Kind::Reserving => match play.random.below(3) {
                        0 if !play.reserved.is_empty() => play.cancel(),
                        _ => play.reserve(),
                    },
                    _ => play.go_on(),
                }
                if kind == Kind::Prompt || play.random.below(3) == 0 {
                    play.look();
                }
            }
            play.look();
            let history = play.end();
            // Then nothing was ever given back: the oracle's limiter is one that never saw those who left.
            assert!(kind != Kind::Prompt || history == 0, "seed {seed}");
            returned += history;
        }
    }
    assert!(returned > 0, "nobody left without having noticed");
}

const HISTORIES: u64 = 400;

#[test]
fn a_limiter_lets_pass_whom_the_oracle_does() {
    for algorithm in ALGORITHMS {
        play(algorithm, |clock, rate| {
            let builder = Limiter::builder(rate).algorithm(algorithm);
            builder.clock(clock.clone()).build().unwrap()
        });
    }
}

#[test]
fn a_key_lets_pass_whom_the_oracle_does() {
    play(Algorithm::Gcra, |clock, rate| {
        let builder = KeyedLimiter::builder(rate, 100);
        builder.clock(clock.clone()).build().unwrap()
    });
}

#[test]
fn an_exact_key_lets_pass_whom_the_oracle_does() {
    for algorithm in ALGORITHMS {
        play(algorithm, |clock, rate| {
            let builder = StoredKeyLimiter::<String>::builder(rate, 100);
            let builder = builder.algorithm(algorithm).clock(clock.clone());
            builder.build().unwrap()
        });
    }
}

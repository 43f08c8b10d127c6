//! Random waits, drops, checks and live changes against a slow oracle, for every algorithm and holder.
//!
//! The oracle knows the line as a list, and asks a limiter of its own that nobody waits for. Tasks are polled
//! only when they were woken, so a wake-up that is missing is a pass that is missing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Acquire, Algorithm, Align, Decision, ExactKeyedLimiter, Home, KeyedLimiter, Limiter, Outcome,
    Rate, Refused, Timestamp,
};
use tollgate_testkit::traffic::Random;

use super::Polled;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(Align::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// A limit that can be waited for, whoever holds it.
trait Holder {
    type Home<'a>: Home
    where
        Self: 'a;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>>;
    fn check_at(&self, now: Timestamp, cost: u64) -> Decision;
    fn set_rate(&self, rate: Rate);
}

impl Holder for Limiter<Manual> {
    type Home<'a> = &'a Self;

    fn acquire(&self, cost: u64) -> Acquire<&Self> {
        self.acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.check_at(now, cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).unwrap();
    }
}

impl Holder for KeyedLimiter<Manual> {
    type Home<'a> = tollgate::Key<'a, Manual>;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>> {
        self.key("ada").acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.check_at(now, "ada", cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).unwrap();
    }
}

impl Holder for ExactKeyedLimiter<String, Manual> {
    type Home<'a> = tollgate::ExactKey<'a, String, str, Manual>;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>> {
        self.key("ada").acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.check_at(now, "ada", cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).unwrap();
    }
}

/// One who waits, as the oracle knows it.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    number: u64,
    cost: u64,
    arrived: Timestamp,
    deadline: Option<Timestamp>,
}

/// What became of one who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Late,
    Never,
}

/// The line as a list, with a limiter that nobody waits for.
struct Oracle<'a, H> {
    alone: &'a H,
    line: Vec<Waiter>,
    seen: Timestamp,
}

impl<H: Holder> Oracle<'_, H> {
    /// When the first passes.
    fn due(&self) -> Option<(Timestamp, Outcome)> {
        let first = self.line.first()?;
        let from = self.seen.max(first.arrived);
        // A look charges nothing, and a denial writes nothing.
        let mut at = from;
        loop {
            let decision = look(self.alone, at, first.cost);
            match decision.outcome {
                Outcome::Allowed => return Some((at, Outcome::Allowed)),
                Outcome::Never => return Some((at, Outcome::Never)),
                Outcome::Denied => at = at + decision.retry_after,
            }
        }
    }

    /// Everything that happens to those in line until `now`.
    fn advance(&mut self, now: Timestamp) -> Vec<(u64, Fate)> {
        let mut fates = Vec::new();
        while let Some((due, outcome)) = self.due() {
            let over = |waiter: &Waiter| waiter.deadline.filter(|deadline| *deadline < now);
            let late = self.line.iter().enumerate();
            let late =
                late.filter_map(|(place, waiter)| Some((over(waiter)?, waiter.number, place)));
            if let Some((deadline, number, place)) = late.min()
                && deadline < due
            {
                self.line.remove(place);
                fates.push((number, Fate::Late));
                continue;
            }
            if due > now {
                break;
            }
            let first = self.line.remove(0);
            if outcome == Outcome::Never {
                fates.push((first.number, Fate::Never));
                continue;
            }
            self.seen = self.seen.max(due);
            assert!(self.alone.check_at(due, first.cost).is_allowed());
            fates.push((first.number, Fate::Passed));
        }
        self.seen = self.seen.max(now);
        fates
    }
}

/// A denial charges nothing; what is allowed is looked at by what is left.
fn look<H: Holder>(alone: &H, at: Timestamp, cost: u64) -> Decision {
    let peek = alone.check_at(at, 0);
    match cost <= peek.remaining || cost == 0 {
        true => peek,
        false => alone.check_at(at, cost),
    }
}

struct Waiting<'a, H: Holder + 'a> {
    number: u64,
    polled: Polled<tollgate::Acquiring<H::Home<'a>>>,
    seen: usize,
}

/// Plays a history; what is told here is what the oracle tells.
fn play<H: Holder>(subject: &H, alone: &H, clock: &Manual, seed: u64) {
    let mut random = Random::new(seed);
    let mut oracle = Oracle {
        alone,
        line: Vec::new(),
        seen: Timestamp::ZERO,
    };
    let mut waiting: Vec<Waiting<'_, H>> = Vec::new();
    let (mut numbers, mut now) = (0, Timestamp::from_secs(1_000));
    clock.set(now);
    for _ in 0..120 {
        let mut fates = oracle.advance(now);
        match random.below(10) {
            0..=3 => {
                let cost = 1 + random.below(3);
                let timeout =
                    (random.below(3) == 0).then(|| Duration::from_millis(10 * random.below(100)));
                let mut acquire = subject.acquire(cost);
                if let Some(timeout) = timeout {
                    acquire = acquire.timeout(timeout);
                }
                let mut polled = Polled::new(acquire);
                let (outcome, number) = (polled.poll(), numbers);
                numbers += 1;
                let passes = oracle.line.is_empty() && alone.check_at(now, cost).is_allowed();
                match outcome {
                    Some(Ok(_)) => assert!(passes, "seed {seed}: it passed others"),
                    Some(Err(Refused::TooLate(_))) => {
                        assert!(!passes && timeout.is_some(), "seed {seed}");
                    }
                    Some(Err(refused)) => {
                        let never = matches!(refused, Refused::Never(_));
                        assert!(never && !passes, "seed {seed}: {refused:?}");
                    }
                    None => {
                        assert!(!passes, "seed {seed}: it waits for nothing");
                        oracle.line.push(Waiter {
                            number,
                            cost,
                            arrived: now,
                            deadline: timeout.map(|timeout| now + timeout),
                        });
                        waiting.push(Waiting {
                            number,
                            polled,
                            seen: 0,
                        });
                    }
                }
            }
            4 | 5 if !waiting.is_empty() => {
                // The oldest first as often as any: so do timeouts.
                let place = match random.below(2) {
                    0 => 0,
                    _ => usize::try_from(random.below(waiting.len() as u64)).unwrap(),
                };
                let gone = waiting.remove(place);
                // What it was given without noticing comes back only as far as nothing was built on it: not
                // what this oracle knows.
                if fates.iter().any(|(number, _)| *number == gone.number) {
                    waiting.insert(place, gone);
                } else {
                    oracle.line.retain(|waiter| waiter.number != gone.number);
                    drop(gone);
                }
            }
            6 => {
                let cost = random.below(4);
                let told = subject.check_at(now, cost);
                let passes = oracle.line.is_empty() && alone.check_at(now, cost).is_allowed();
                assert_eq!(told.is_allowed(), passes, "seed {seed} at {now}: {told:?}");
            }
            7 if random.below(4) == 0 => {
                let rate = Rate::per_second(2 + random.below(20)).burst(2 + random.below(6));
                subject.set_rate(rate);
                alone.set_rate(rate);
                oracle.line.retain(|waiter| {
                    let stays = waiter.cost <= rate.burst_size();
                    if !stays {
                        fates.push((waiter.number, Fate::Never));
                    }
                    stays
                });
            }
            _ => {
                now = now + Duration::from_millis(random.below(400));
                clock.set(now);
                fates.extend(oracle.advance(now));
            }
        }
        fates.extend(oracle.advance(now));
        // Those who were woken look, and whoever that wakes.
        let mut told = Vec::new();
        loop {
            let woken = waiting
                .iter()
                .position(|waiting| waiting.polled.woken.0.load(Ordering::Relaxed) > waiting.seen);
            let Some(place) = woken else { break };
            waiting[place].seen = waiting[place].polled.woken();
            let fate = match waiting[place].polled.poll() {
                None => continue,
                Some(Ok(_)) => Fate::Passed,
                Some(Err(Refused::TooLate(_))) => Fate::Late,
                Some(Err(_)) => Fate::Never,
            };
            told.push((waiting.remove(place).number, fate));
        }
        told.sort_by_key(|(number, _)| *number);
        fates.sort_by_key(|(number, _)| *number);
        assert_eq!(told, fates, "seed {seed} at {now}");
    }
    // Everybody goes, in any order: then it is as if they had never been.
    fates_of_the_rest(&mut oracle, now);
    drop(waiting);
    let (left, expected) = (subject.check_at(now, 0), alone.check_at(now, 0));
    assert_eq!(left, expected, "seed {seed}");
    assert_eq!(clock.parked(), 0, "seed {seed}");
}

fn fates_of_the_rest<H: Holder>(oracle: &mut Oracle<'_, H>, now: Timestamp) {
    assert!(oracle.advance(now).is_empty());
    oracle.line.clear();
}

const HISTORIES: u64 = 400;

fn rate_of(seed: u64) -> Rate {
    Rate::per_second(3 + seed % 9).burst(3 + seed % 4)
}

#[test]
fn a_limiter_lets_pass_whom_the_oracle_does() {
    for algorithm in ALGORITHMS {
        for seed in 0..HISTORIES {
            let clock = Manual::starting_at(Timestamp::from_secs(1));
            let limiter = |clock: &Manual| {
                let builder = Limiter::builder(rate_of(seed)).algorithm(algorithm);
                builder.clock(clock.clone()).build().unwrap()
            };
            let (subject, alone) = (limiter(&clock), limiter(&clock));
            play(&subject, &alone, &clock, seed);
        }
    }
}

#[test]
fn a_key_lets_pass_whom_the_oracle_does() {
    for seed in 0..HISTORIES {
        let clock = Manual::starting_at(Timestamp::from_secs(1));
        let limiter = |clock: &Manual| {
            let builder = KeyedLimiter::builder(rate_of(seed), 100);
            builder.clock(clock.clone()).build().unwrap()
        };
        play(&limiter(&clock), &limiter(&clock), &clock, seed);
    }
}

#[test]
fn an_exact_key_lets_pass_whom_the_oracle_does() {
    for algorithm in ALGORITHMS {
        for seed in 0..HISTORIES {
            let clock = Manual::starting_at(Timestamp::from_secs(1));
            let limiter = |clock: &Manual| {
                let builder = ExactKeyedLimiter::<String>::builder(rate_of(seed), 100);
                let builder = builder.algorithm(algorithm).clock(clock.clone());
                builder.build().unwrap()
            };
            play(&limiter(&clock), &limiter(&clock), &clock, seed);
        }
    }
}

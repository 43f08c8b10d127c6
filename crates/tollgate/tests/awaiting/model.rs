//! Random waits, drops, checks, reservations and live changes against a slow oracle, for every algorithm and holder.
//!
//! The oracle knows the line as a list, and asks a limiter of its own that nobody waits for. Tasks are polled
//! only when they were woken, so a wake-up that is missing is a pass that is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Decision, ExactKeyedLimiter, KeyedLimiter, Limiter, Outcome, Rate, Refused,
    Reservation, Timestamp, wait::Home,
};
use tollgate_testkit::traffic::Random;

use super::Polled;
use super::holder::{ALGORITHMS, Holder};

/// One who waits, as the oracle knows it.
struct Waiter<'a, H: Holder + 'a> {
    number: u64,
    cost: u64,
    arrived: Timestamp,
    deadline: Option<Timestamp>,
    /// Charged ahead, because somebody reserved behind it.
    booked: Option<Reservation<H::Home<'a>>>,
}

/// What became of one who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Late,
    Never,
}

/// The line as a list, with a limiter that nobody waits for.
struct Oracle<'a, H: Holder> {
    alone: &'a H,
    line: Vec<Waiter<'a, H>>,
    seen: Timestamp,
    /// What became of those who haven't noticed.
    fates: BTreeMap<u64, Fate>,
    /// What those of them were charged who passed.
    charged: Vec<(u64, Reservation<H::Home<'a>>)>,
    /// How many were charged, and left without having noticed.
    returned: u64,
}

impl<'a, H: Holder> Oracle<'a, H> {
    /// When the first passes.
    fn due(&self) -> Option<(Timestamp, Outcome)> {
        let first = self.line.first()?;
        if let Some(booked) = &first.booked {
            return Some((booked.act_at(), Outcome::Allowed));
        }
        // A look charges nothing, and a denial writes nothing.
        let mut at = self.seen.max(first.arrived);
        loop {
            let decision = look(self.alone, at, first.cost);
            match decision.outcome {
                Outcome::Allowed => return Some((at, Outcome::Allowed)),
                Outcome::Never => return Some((at, Outcome::Never)),
                Outcome::Denied => at += decision.retry_after,
            }
        }
    }

    /// Everything that happens to those in line until `now`.
    fn advance(&mut self, now: Timestamp) {
        while let Some((due, outcome)) = self.due() {
            let over = |waiter: &Waiter<'a, H>| waiter.deadline.filter(|deadline| *deadline < now);
            let late = self.line.iter().enumerate();
            let late =
                late.filter_map(|(place, waiter)| Some((over(waiter)?, waiter.number, place)));
            if let Some((deadline, number, place)) = late.min()
                && deadline < due
            {
                give_back(self.line.remove(place).booked, now);
                self.fates.insert(number, Fate::Late);
                // Those behind it move up then, not before.
                self.seen = self.seen.max(deadline.plus_nanos(1));
                continue;
            }
            if due > now {
                break;
            }
            let first = self.line.remove(0);
            if outcome == Outcome::Never {
                self.fates.insert(first.number, Fate::Never);
                continue;
            }
            self.seen = self.seen.max(due);
            let slot = first.booked;
            let slot = slot.unwrap_or_else(|| {
                let slot = self.alone.reserve_at(due, first.cost);
                slot.expect("its turn has come")
            });
            assert_eq!(slot.act_at(), due);
            self.charged.push((first.number, slot));
            self.fates.insert(first.number, Fate::Passed);
        }
        self.seen = self.seen.max(now);
    }

    /// One goes. Those who were due before pass; it was charged nothing, unless it had passed without noticing
    /// or was charged ahead: that comes back as far as nothing was built on it, as a reservation does.
    fn leave(&mut self, now: Timestamp, number: u64) {
        self.advance(Timestamp::from_nanos(now.as_nanos() - 1));
        self.seen = self.seen.max(now);
        let charged = self.charged.iter().position(|(whose, _)| *whose == number);
        if let Some(place) = charged {
            give_back(Some(self.charged.remove(place).1), now);
            self.returned += 1;
        }
        if let Some(place) = self.line.iter().position(|waiter| waiter.number == number) {
            give_back(self.line.remove(place).booked, now);
        }
        self.fates.remove(&number);
    }

    /// One is told what became of it.
    fn notice(&mut self, number: u64) -> Option<Fate> {
        // Its time has come, so that it counts as used.
        self.charged.retain(|(whose, _)| *whose != number);
        self.fates.remove(&number)
    }

    /// Whether one that comes now passes.
    fn passes(&mut self, now: Timestamp, cost: u64) -> bool {
        self.advance(now);
        self.line.is_empty() && self.alone.check_at(now, cost).is_allowed()
    }

    /// Books behind all of them, who are charged ahead for that.
    fn reserve(&mut self, now: Timestamp, cost: u64) -> Option<Reservation<H::Home<'a>>> {
        self.advance(now);
        if look(self.alone, now, cost).outcome == Outcome::Never {
            return None;
        }
        for waiter in self
            .line
            .iter_mut()
            .filter(|waiter| waiter.booked.is_none())
        {
            waiter.booked = Some(self.alone.reserve_at(now, waiter.cost).ok()?);
        }
        self.alone.reserve_at(now, cost).ok()
    }

    fn set_rate(&mut self, now: Timestamp, rate: Rate) {
        self.advance(now);
        self.alone.set_rate(rate);
        let fates = &mut self.fates;
        self.line.retain(|waiter| {
            // Who is charged already passes.
            let stays = waiter.booked.is_some() || waiter.cost <= rate.burst_size();
            if !stays {
                fates.insert(waiter.number, Fate::Never);
            }
            stays
        });
    }
}

fn give_back<H: Home>(slot: Option<Reservation<H>>, now: Timestamp) {
    if let Some(slot) = slot {
        slot.cancel_at(now);
    }
}

/// A denial charges nothing; what is allowed is looked at by what is left.
fn look<H: Holder>(alone: &H, at: Timestamp, cost: u64) -> Decision {
    let peek = alone.check_at(at, 0);
    if cost <= peek.remaining || cost == 0 {
        peek
    } else {
        alone.check_at(at, cost)
    }
}

struct Waiting<'a, H: Holder + 'a> {
    number: u64,
    polled: Polled<tollgate::wait::Acquiring<H::Home<'a>>>,
    seen: usize,
}

/// What may happen in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whoever is woken looks at once, and nobody reserves.
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
    reserved: Vec<[Reservation<H::Home<'a>>; 2]>,
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
            seen: Timestamp::ZERO,
            fates: BTreeMap::new(),
            charged: Vec::new(),
            returned: 0,
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
            Some(Err(Refused::TooLate(_))) => assert!(!passes && timeout.is_some(), "{why}"),
            Some(Err(refused)) => {
                let never = matches!(refused, Refused::Never(_));
                assert!(never && !passes, "{why}: {refused:?}");
            }
            None => {
                assert!(!passes, "{why}: it waits for nothing");
                self.oracle.line.push(Waiter {
                    number,
                    cost,
                    arrived: now,
                    deadline: timeout.map(|timeout| now + timeout),
                    booked: None,
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
                assert_eq!(slot.act_at(), expected.act_at(), "{}", self.why);
                self.reserved.push([slot, expected]);
            }
            (Err(_), None) => {}
            (slot, expected) => panic!("{}: {slot:?}, not {expected:?}", self.why),
        }
    }

    fn cancel(&mut self) {
        let which = self.any_of(self.reserved.len());
        let pair = self.reserved.remove(which);
        self.oracle.advance(self.now);
        for slot in pair {
            slot.cancel_at(self.now);
        }
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

    /// Those who were woken look, and whoever that wakes: they are told what the oracle tells.
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
                Some(Err(Refused::TooLate(_))) => Fate::Late,
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

    /// Everybody goes, in any order.
    fn end(mut self) -> u64 {
        while !self.waiting.is_empty() {
            self.leave();
        }
        for slot in self.reserved.into_iter().flatten() {
            slot.cancel_at(self.now);
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
            let builder = ExactKeyedLimiter::<String>::builder(rate, 100);
            let builder = builder.algorithm(algorithm).clock(clock.clone());
            builder.build().unwrap()
        });
    }
}

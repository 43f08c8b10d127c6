//! Holds on one word, against a slow oracle of the rule: held tokens don't drain.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::core::units;
use tollgate::{
    Algorithm, Rate,
    stack::{CostReservation, ReservationTerms, SettlementTiming},
};

use super::subject::{Keeper, Subject};
use super::world::START;

/// One nanosecond in the units of the word.
const UNIT: u128 = units::PER_NANO as u128;
const MILLI: u128 = 1_000_000 * UNIT;
const LONGEST_BACK: u64 = 3_000;

/// Those that count by the units of a word.
const PLACES: [Keeper; 3] = [
    Keeper::Limiter(Algorithm::Gcra),
    Keeper::Striped,
    Keeper::Exact(Algorithm::Gcra),
];

#[derive(Clone, Copy, Debug)]
enum Act {
    Check(u64),
    Peek,
    /// How much, for how many milliseconds, and whether dropping it gives it back.
    Hold(u64, u64, bool),
    Settle(usize, u64),
    Cancel(usize),
    Drop(usize),
    SetRate(u64, u64),
    /// What was left so many milliseconds before, for one who comes late.
    Back(u64),
    /// What is left so many milliseconds ahead.
    PeekAhead(u64),
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let wait = prop_oneof![3 => Just(0), 4 => 1..200u64, 1 => 200..5_000u64];
    let act = prop_oneof![
        5 => (1..12u64).prop_map(Act::Check),
        2 => Just(Act::Peek),
        6 => (1..9u64, 0..4_000u64, any::<bool>())
            .prop_map(|(cost, millis, refund)| Act::Hold(cost, millis, refund)),
        5 => (0..6usize, 0..12u64).prop_map(|(index, spent)| Act::Settle(index, spent)),
        2 => (0..6usize).prop_map(Act::Cancel),
        2 => (0..6usize).prop_map(Act::Drop),
        1 => (1..9u64, 1..15u64).prop_map(|(count, burst)| Act::SetRate(count, burst)),
        1 => (1..LONGEST_BACK).prop_map(Act::Back),
        1 => (1..9_000u64).prop_map(Act::PeekAhead),
    ];
    prop::collection::vec((wait, act), 1..60)
}

/// The rule, word for word.
#[derive(Clone)]
struct Oracle {
    tat: u128,
    interval: u128,
    burst: u128,
    /// Until when each is out, by its number, and how much.
    open: Vec<(u128, usize, u128)>,
}

impl Oracle {
    fn new(count: u64, burst: u64) -> Self {
        Self {
            tat: 0,
            interval: interval(count),
            burst: u128::from(burst),
            open: Vec::new(),
        }
    }

    fn capacity(&self) -> u128 {
        self.interval * self.burst
    }

    fn out(&self) -> u128 {
        self.open.iter().map(|(_, _, cost)| cost).sum()
    }

    fn pass_time(&mut self, now: u128) {
        self.open.sort_unstable();
        while let Some(&(until, ..)) = self.open.first()
            && until <= now
        {
            self.tat = self.tat.max(until + self.out() * self.interval);
            self.open.remove(0);
        }
        if self.out() > 0 {
            self.tat = self.tat.max(now + self.out() * self.interval);
        }
    }

    /// Whether it passes, and else how many nanoseconds it has to wait; none if it never does.
    fn take(&mut self, now: u128, cost: u64) -> Option<u128> {
        self.pass_time(now);
        let price = u128::from(cost) * self.interval;
        let after = self.tat.max(now) + price;
        let wait = after.saturating_sub(now + self.capacity());
        if wait == 0 {
            self.tat = after;
        } else if price > self.capacity() {
            return None;
        }
        Some(wait.div_ceil(UNIT))
    }

    fn left(&self, now: u128) -> u128 {
        let mut then = self.clone();
        then.pass_time(now);
        let ahead = then.tat.saturating_sub(now);
        then.capacity().saturating_sub(ahead) / then.interval
    }

    fn settle(&mut self, now: u128, number: usize, spent: u64) {
        self.pass_time(now);
        let Some(index) = self.open.iter().position(|open| open.1 == number) else {
            return;
        };
        let (_, _, cost) = self.open.remove(index);
        let spent = u128::from(spent);
        if spent < cost {
            let back = (cost - spent) * self.interval;
            assert!(self.tat >= now + back, "nothing of it has drained");
            self.tat -= back;
        } else {
            let beyond = ((spent - cost) * self.interval).min(self.capacity());
            self.tat = self.tat.max(now) + beyond;
        }
    }

    fn set_rate(&mut self, now: u128, count: u64, burst: u64) {
        self.pass_time(now);
        let old = std::mem::replace(&mut self.interval, interval(count));
        let ahead = self.tat.saturating_sub(now);
        // What isn't ahead stays where it is, so that a step of the clock back finds nothing spent.
        if ahead > 0 {
            self.tat = now + (ahead * self.interval).div_ceil(old);
        }
        self.burst = u128::from(burst);
    }
}

fn interval(count: u64) -> u128 {
    (1_000_000_000 * UNIT).div_ceil(u128::from(count))
}

fn rate(count: u64, burst: u64) -> Rate {
    Rate::per_second(count).burst(burst)
}

/// What both have, and the time.
struct Both {
    place: Keeper,
    subject: Subject,
    oracle: Oracle,
    now: u128,
    open: Vec<(usize, u64, bool, CostReservation<'static>)>,
    taken: usize,
}

impl Both {
    fn new(place: Keeper, count: u64, burst: u64) -> Self {
        let subject = Subject::new(place, rate(count, burst));
        // A word counts from when it was made, so a time before that is judged as then.
        subject.advance(LONGEST_BACK);
        Self {
            place,
            subject,
            oracle: Oracle::new(count, burst),
            now: u128::from(START.as_nanos()) * UNIT + u128::from(LONGEST_BACK) * MILLI,
            open: Vec::new(),
            taken: 0,
        }
    }

    fn act(&mut self, wait: u64, act: Act) -> Result<(), TestCaseError> {
        self.subject.advance(wait);
        self.now += u128::from(wait) * MILLI;
        // Whoever looks lets time pass, so for one who comes late it has.
        prop_assert_eq!(u128::from(self.subject.left()), self.oracle.left(self.now));
        self.oracle.pass_time(self.now);
        match act {
            Act::Check(cost) => {
                let (told, wait) = (self.subject.check(cost), self.oracle.take(self.now, cost));
                prop_assert_eq!(told.is_allowed(), wait == Some(0));
                if let Some(wait) = wait {
                    prop_assert_eq!(told.wait_or_max().as_nanos(), wait);
                }
            }
            Act::Peek => {}
            Act::Hold(cost, millis, refund) => {
                let terms = ReservationTerms::for_at_most(Duration::from_millis(millis));
                let terms = if refund {
                    terms.refund_on_drop()
                } else {
                    terms
                };
                let held = self.subject.hold_on(cost, terms);
                let fits = self.oracle.take(self.now, cost) == Some(0);
                prop_assert_eq!(held.is_some(), fits);
                if let Some(hold) = held {
                    let until = self.now + u128::from(millis) * MILLI;
                    self.oracle.open.push((until, self.taken, u128::from(cost)));
                    self.open.push((self.taken, cost, refund, hold));
                    self.taken += 1;
                }
            }
            Act::Settle(index, _) | Act::Cancel(index) | Act::Drop(index)
                if index < self.open.len() =>
            {
                let (number, cost, refund, hold) = self.open.remove(index);
                let spent = match act {
                    Act::Settle(_, spent) => {
                        // What is charged beyond an estimate that is over is no part of this rule.
                        self.oracle.pass_time(self.now);
                        let is_out = self.oracle.open.iter().any(|open| open.1 == number);
                        let spent = if is_out { spent } else { spent.min(cost) };
                        let said = hold.settle(spent);
                        prop_assert_eq!(said == SettlementTiming::InTime, is_out);
                        spent
                    }
                    Act::Cancel(_) => {
                        hold.cancel();
                        0
                    }
                    _ => {
                        drop(hold);
                        if refund { 0 } else { cost }
                    }
                };
                self.oracle.settle(self.now, number, spent);
            }
            Act::Settle(..) | Act::Cancel(_) | Act::Drop(_) => {}
            Act::SetRate(count, burst) => {
                self.subject.set_rate(rate(count, burst));
                self.oracle.set_rate(self.now, count, burst);
            }
            // A key that was never charged knows nothing of a change either.
            Act::Back(_) if matches!(self.place, Keeper::Exact(_)) => {}
            Act::Back(millis) => {
                // A look from before grants nothing, and changes nothing.
                let before = self.now - u128::from(millis) * MILLI;
                let told = self.subject.look_at(before / UNIT);
                prop_assert_eq!(u128::from(told), self.oracle.left(before));
            }
            Act::PeekAhead(millis) => {
                let ahead = self.now + u128::from(millis) * MILLI;
                let told = self.subject.look_at(ahead / UNIT);
                prop_assert_eq!(u128::from(told), self.oracle.left(ahead));
            }
        }
        prop_assert_eq!(
            u128::from(self.subject.left()),
            self.oracle.left(self.now),
            "{:?}",
            act
        );
        Ok(())
    }
}

fn follow(
    place: Keeper,
    (count, burst): (u64, u64),
    acts: &[(u64, Act)],
) -> Result<(), TestCaseError> {
    let mut both = Both::new(place, count, burst);
    for &(wait, act) in acts {
        both.act(wait, act)?;
    }
    // All that is out comes back, and in the end both owe what was spent.
    while !both.open.is_empty() {
        both.act(1, Act::Settle(0, 1))?;
    }
    both.act(10, Act::Peek)
}

proptest! {
    #![proptest_config(crate::cases(1_500))]

    #[test]
    fn one_word_equals_the_rule(
        place in prop::sample::select(&PLACES[..]),
        count in 1..9u64,
        burst in 1..15u64,
        acts in acts(),
    ) {
        follow(place, (count, burst), &acts)?;
    }
}

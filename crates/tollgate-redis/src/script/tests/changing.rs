//! One key under several limits, in any order: the stored state is never cut, and rounding loses nothing.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of tests are small"
)]

use futures_util::future::join_all;
use tollgate::{Algorithm, Rate};
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use super::{NOW, question, rate};
use crate::query::{LimitParams, StoreOp, StoreQuery};
use crate::store::Store;
use crate::tests::windows;

/// The rule that the scripts follow, in whole numbers of any size: a token is as many units as its period has
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    debt: u128,
    as_of: u64,
}

/// Outcome, remaining, and how long until it passes.
type Said = (i64, i64, i64);

impl Level {
    /// The debt that a limit decides by, and the whole debt.
    fn at(&self, rate: Rate, now: u64) -> (u128, u128) {
        let drained = drain(rate) * u128::from(now - self.as_of);
        let judged = self.debt.min(capacity(rate));
        (
            judged.saturating_sub(drained),
            self.debt.saturating_sub(drained),
        )
    }

    fn decide(&mut self, rate: Rate, now: u64, cost: u64) -> Said {
        let (judged, all) = self.at(rate, now);
        let units = u128::from(cost) * token(rate);
        if units > capacity(rate) {
            return (2, left(rate, judged), -1);
        }
        let over = (judged + units).saturating_sub(capacity(rate));
        if over > 0 {
            let wait = over.div_ceil(drain(rate));
            return (0, left(rate, judged), wait as i64);
        }
        if cost > 0 {
            (self.debt, self.as_of) = (all + units, now);
        }
        let (judged, _) = self.at(rate, now);
        (1, left(rate, judged), 0)
    }
}

fn token(rate: Rate) -> u128 {
    rate.period().expect("a period").as_nanos()
}

fn drain(rate: Rate) -> u128 {
    u128::from(rate.count()) * 1000
}

fn capacity(rate: Rate) -> u128 {
    u128::from(rate.burst_size()) * token(rate)
}

fn left(rate: Rate, judged: u128) -> i64 {
    ((capacity(rate) - judged) / token(rate)) as i64
}

fn limits(texts: &[&str]) -> Vec<(Rate, LimitParams)> {
    let parse = |text: &&str| (text.parse().expect("a rate"), rate(text, Algorithm::Gcra));
    texts.iter().map(parse).collect()
}

fn asked(key: &str, numbers: LimitParams, cost: u64) -> StoreQuery {
    StoreQuery {
        key: key.into(),
        ..question(numbers, StoreOp::Decide, cost)
    }
}

const SETS: [&[&str]; 8] = [
    &["10/s", "1000/s"],
    &["10/m", "1000/m"],
    &["1000/m", "60/m"],
    &["10/s burst 100", "1000/s burst 3", "7/s burst 20"],
    &["999/s burst 50", "1000/s", "1/s burst 5"],
    &["100/h", "17/h burst 60", "3600/h"],
    &["5/s burst 1", "5/s burst 50"],
    &["1000000/s", "3/s", "999983/s burst 2000"],
];

#[tokio::test]
async fn limits_of_one_key_follow_the_rule_in_any_order() {
    let server = Server::start();
    let store = Store::patient(&server);
    let mut outcomes = [0; 3];
    for (round, texts) in (0..5).flat_map(|round| SETS.iter().map(move |set| (round, set))) {
        let limits = limits(texts);
        let mut random = Random::new(round * 100 + texts.len() as u64);
        let key = format!("{texts:?} {round}");
        let period = limits[0].0.period().expect("a period").as_micros() as u64;
        let (mut now, mut model, mut admitted) = (NOW, Level::default(), Vec::new());
        for step in 0..250 {
            let reach = [1, period / 1_000, period / 50, period / 5, 3 * period];
            let reach = reach[random.below(5) as usize];
            now += random.below(1 + reach);
            // Several concurrent queries, most of which share a call.
            let some: Vec<_> = (0..1 + random.below(5))
                .map(|_| {
                    let (rate, numbers) = limits[random.below(limits.len() as u64) as usize];
                    let cost = match random.below(8) {
                        0 => 0,
                        1 => random.below(2 * rate.burst_size() + 2),
                        2..4 => 1 + random.below(rate.burst_size()),
                        _ => 1,
                    };
                    (rate, numbers, cost)
                })
                .collect();
            let answers = join_all(some.iter().map(|(_, numbers, cost)| {
                store.ask(vec![asked(&key, *numbers, *cost)], Some(now))
            }));
            for ((rate, _, cost), answers) in some.iter().zip(answers.await) {
                let raw = answers.expect("an answer").replies[0];
                let expected = model.decide(*rate, now, *cost);
                let seen = (raw.outcome, raw.remaining, raw.wait);
                assert_eq!(seen, expected, "{key}: {cost} by {rate} at {now}, {step}");
                outcomes[raw.outcome as usize] += 1;
                if raw.outcome == 1 {
                    admitted.push((now, *cost, *rate));
                }
            }
        }
        windows::check(&admitted);
    }
    assert!(outcomes.iter().all(|seen| *seen > 500), "{outcomes:?}");
}

/// Makes one request after the other, by alternating limits, for this many steps. Returns how many passed.
async fn in_turn(
    store: &Store,
    limits: &[(Rate, LimitParams)],
    (steps, length): (u64, u64),
    number: impl Fn(u64) -> usize,
) -> u64 {
    let mut admitted = Vec::new();
    for step in 0..steps {
        let now = NOW + step * length / steps;
        let some: Vec<_> = (0..10)
            .map(|asks| limits[number(step * 10 + asks)])
            .collect();
        let answers = join_all(
            some.iter()
                .map(|(_, numbers)| store.ask(vec![asked("turns", *numbers, 1)], Some(now))),
        );
        for ((rate, _), answers) in some.iter().zip(answers.await) {
            let raw = answers.expect("an answer").replies[0];
            admitted.push((now, u64::from(raw.outcome == 1), *rate));
        }
    }
    admitted.retain(|(_, much, _)| *much > 0);
    // The number of measurements is the number of requests; checking every window would take long.
    admitted.len() as u64
}

#[tokio::test]
async fn two_rates_of_one_key_wipe_nothing() {
    let server = Server::start();
    let store = Store::patient(&server);
    let second = 1_000_000;
    // By two processes alternately; by one process that is reloaded every two seconds; by one tenant in two
    // tiers.
    for (texts, steps, length, turn) in [
        (["10/s", "1000/s"], 3_057, 3_057 * second / 1000, 1),
        (["60/m", "1000/m"], 1_800, 18 * second, 2_000),
        (["10/m", "600/m"], 2_100, 42 * second, 3_500),
    ] {
        server.command(&["FLUSHALL"]);
        let limits = limits(&texts);
        let [_, (fast, _)] = limits[..] else {
            panic!("two");
        };
        // The fast limit first.
        let passed = in_turn(&store, &limits, (steps, length), |ask| {
            1 - (ask / turn % 2) as usize
        });
        let most = capacity(fast) + drain(fast) * u128::from(length);
        let passed = passed.await;
        assert!(
            u128::from(passed) * token(fast) <= most,
            "{texts:?}: {passed} of {}",
            most / token(fast)
        );
        // Half of the time is the fast limit's.
        assert!(passed > fast.burst_size(), "{texts:?}: {passed}");
    }
}

#[tokio::test]
async fn a_smaller_limit_waits_no_longer_than_its_own_bucket_takes() {
    let server = Server::start();
    let store = Store::patient(&server);
    let limits = limits(&["1000/m", "10/m"]);
    let ask = async |number: usize, cost, at| {
        let asked = asked("k", limits[number].1, cost);
        let answers = store.ask(vec![asked], Some(at)).await.expect("an answer");
        answers.replies[0]
    };
    assert_eq!(ask(0, 1000, NOW).await.outcome, 1);
    let refused = ask(1, 1, NOW).await;
    assert_eq!((refused.outcome, refused.wait), (0, 6_000_000));
    // Denied requests don't restart the wait, and the reported wait is right.
    assert_eq!(ask(1, 1, NOW + 5_999_999).await.wait, 1);
    assert_eq!(ask(1, 1, NOW + 6_000_000).await.outcome, 1);
    // The whole debt is still owed.
    assert_eq!(ask(0, 0, NOW + 6_000_000).await.remaining, 0);
    let later = NOW + 66_000_000;
    assert_eq!(ask(1, 10, later).await.outcome, 1);
    assert_eq!(ask(1, 1, later).await.outcome, 0);
}

#[tokio::test]
async fn what_is_booked_ahead_counts_for_every_limit() {
    let server = Server::start();
    let store = Store::patient(&server);
    let limits = limits(&["10/s burst 1", "10/s burst 5", "5/s burst 1"]);
    let ask = async |number: usize, op, at| {
        let asked = StoreQuery {
            op,
            ..asked("k", limits[number].1, 1)
        };
        let answers = store.ask(vec![asked], Some(at)).await.expect("an answer");
        (answers.replies[0].outcome, answers.replies[0].wait)
    };
    let book = StoreOp::Reserve(10_000_000);
    for place in 0..4 {
        assert_eq!(ask(0, book, NOW).await, (1, place * 100_000));
    }
    // Four have been admitted, three of them in advance. A larger limit has room for one. A slower one waits
    // for the reservations, and then for its own.
    assert_eq!(ask(1, StoreOp::Decide, NOW).await, (1, 0));
    assert_eq!(ask(1, StoreOp::Decide, NOW).await, (0, 100_000));
    assert_eq!(ask(0, StoreOp::Decide, NOW).await, (0, 400_000));
    assert_eq!(ask(2, StoreOp::Decide, NOW).await, (0, 800_000));
    assert_eq!(ask(0, StoreOp::Decide, NOW + 399_999).await, (0, 1));
    assert_eq!(ask(0, StoreOp::Decide, NOW + 400_000).await, (1, 0));
}

#[tokio::test]
async fn what_passes_two_to_the_53_in_common_units_is_rounded_up_and_hardly_so() {
    let server = Server::start();
    let store = Store::patient(&server);
    // A token is of 86,400 units and of 86,400,000,000: more than 104,249 of them can't be expressed in both.
    let limits = limits(&["1000000/day", "999983/day burst 1000"]);
    let mut random = Random::new(11);
    let (mut now, mut model, mut turns) = (NOW, Level::default(), [0; 2]);
    let (fast, _) = limits[0];
    for step in 0..6_000 {
        let reach = [1_000, 1_000_000, 100_000_000][random.below(3) as usize];
        now += random.below(reach);
        let number = random.below(2) as usize;
        let (rate, numbers) = limits[number];
        let cost = match random.below(200) {
            0 => 1 + random.below(rate.burst_size()),
            _ => 1 + random.below(300),
        };
        let asked = asked("k", numbers, cost);
        let answers = store.ask(vec![asked], Some(now)).await.expect("an answer");
        let raw = answers.replies[0];
        // It admits no more than the rule does, and then follows what the rule does.
        let mut exact = model;
        let said = exact.decide(rate, now, cost);
        if raw.outcome == 1 {
            assert_eq!(said.0, 1, "{cost} by {rate} at {now}, step {step}");
            let is_large = model.debt / token(rate) > 104_250;
            turns[usize::from(is_large)] += 1;
            model = exact;
        }
    }
    assert!(turns.iter().all(|turns| *turns > 100), "{turns:?}");
    // The rounding of all requests together is less than a token.
    let owed = store.ask(vec![asked("k", limits[0].1, 0)], Some(now));
    let kept = owed.await.expect("an answer").replies[0].remaining;
    let (judged, _) = model.at(fast, now);
    assert!((0..=1).contains(&(left(fast, judged) - kept)), "{kept}");
}

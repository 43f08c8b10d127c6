//! Rates that change: with the call, or of the whole limiter.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::core::{Arithmetic, Gcra};
use tollgate::{KeyedLimiter, Level, Rate, Stack};

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

fn tier(rate: Rate) -> Gcra {
    Gcra::new(rate).expect("a rate that fits")
}

#[test]
fn an_upgraded_key_waits_until_what_it_owes_is_paid_back_at_the_new_rate() {
    let (limiter, clock) = limiter(Rate::per_hour(1).burst(10), 10);
    assert!(limiter.key("tenant").allow_n(10));
    let fast = tier(Rate::per_second(100).burst(4));
    let at_fast = limiter.key_at_rate("tenant", &fast);
    // A look stores nothing, so at the slow rate it goes on to owe ten hours.
    assert_eq!(at_fast.check_n(0).retry_after, SECOND * 6 / 100);
    assert_eq!(limiter.peek("tenant").reset_after, 36_000 * SECOND);
    // The first refusal does, and the next ones only see it.
    let wait = at_fast.check_n(1).retry_after;
    assert_eq!(wait, SECOND * 7 / 100);
    clock.advance(wait / 2);
    assert_eq!(at_fast.check_n(1).retry_after, wait - wait / 2);
    clock.advance(wait - wait / 2 - Duration::from_nanos(1));
    assert!(!at_fast.allow());
    clock.advance(Duration::from_nanos(1));
    assert!(at_fast.allow() && !at_fast.allow());
    // Four are owed now, whoever asks.
    assert_eq!(limiter.peek("tenant").remaining, 6);
}

#[test]
fn a_downgraded_key_waits_no_longer_than_the_old_rate_takes() {
    let (limiter, clock) = limiter(Rate::per_minute(1), 10);
    let fast = tier(Rate::per_second(100));
    assert!(limiter.key_at_rate("key", &fast).allow_n(100));
    let refused = limiter.check("key");
    assert_eq!(refused.retry_after, SECOND);
    // Its own bucket is full again a minute after the others are paid back.
    assert_eq!(refused.reset_after, 60 * SECOND + SECOND * 99 / 100);
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(!limiter.allow("key"));
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.allow("key"));
    assert_eq!(limiter.check("key").retry_after, 60 * SECOND);
    assert_eq!(limiter.key_at_rate("key", &fast).check_n(0).remaining, 99);
}

#[test]
fn operators_change_what_a_key_owes_by_whichever_rate_it_counts() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(100));
    let at_gold = limiter.key_at_rate("key", &gold);
    assert!(at_gold.allow_n(50));
    limiter.refund("key", 20);
    assert_eq!(at_gold.check_n(0).remaining, 70);
    // At most what a bucket of the limiter's own rate holds: thirty are owed already.
    limiter.penalize("key", 40).unwrap();
    assert_eq!(at_gold.check_n(0).remaining, 70);
    limiter.reset("key");
    assert_eq!(at_gold.check_n(0).remaining, 100);
    assert!(at_gold.allow_n(5));
    limiter.penalize("key", 40).unwrap();
    assert_eq!(at_gold.check_n(0).remaining, 90);
    limiter.block_for("key", SECOND).unwrap();
    assert_eq!(limiter.check("key").retry_after, SECOND);
    assert_eq!(at_gold.check_n(1).retry_after, SECOND);
    clock.advance(SECOND);
    assert!(at_gold.allow_n(100));
    assert_eq!(limiter.len(), 1);
    let mut seen = Vec::new();
    limiter.for_each_active(|key| seen.push(key.fingerprint));
    assert_eq!(seen, [limiter.fingerprint("key")]);
}

#[test]
fn what_is_booked_at_one_rate_is_given_back_while_the_key_counts_by_it() {
    let (limiter, _) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(10));
    let slot = limiter.key_at_rate("key", &gold).reserve(4).unwrap();
    // Another rate lets it pass meanwhile: the four stay spent.
    assert!(limiter.allow("key"));
    slot.cancel();
    assert_eq!(limiter.peek("key").remaining, 5);
    let slot = limiter.reserve("key", 4).unwrap();
    slot.cancel();
    assert_eq!(limiter.peek("key").remaining, 5);
}

#[test]
fn several_keys_at_other_rates_are_charged_together_or_not_at_all() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(10));
    assert!(limiter.key("a").allow_n(10));
    let keys = ["a", "b"].map(|key| (limiter.key_at_rate(key, &gold), 1));
    let refused = limiter.check_together(&keys);
    assert_eq!((refused.decider, refused.lost_race), (Some(0), false));
    assert_eq!(refused.decision.retry_after, SECOND / 10);
    // What it told comes true, though nobody asked by itself.
    clock.advance(SECOND / 10);
    assert!(limiter.check_together(&keys).decision.is_allowed());
    assert_eq!(limiter.peek("b").remaining, 9);
}

#[test]
fn a_stack_that_is_refused_at_a_faster_rate_tells_a_wait_that_comes_true() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let (gold, stack) = (tier(Rate::per_second(10)), Stack::new());
    for turn in 0..3 {
        let key = format!("key {turn}");
        let levels = |rate| [Level::new("key", limiter.key_at_rate(&key, rate))];
        let own = tier(Rate::per_hour(10));
        assert!((0..10).all(|_| stack.allow(&levels(&own)).is_some()));
        match turn {
            0 => assert!(stack.allow(&levels(&gold)).is_none()),
            1 => assert!(stack.hold(&levels(&gold), SECOND).is_err()),
            _ => {}
        }
        let told = stack.check(&levels(&gold)).decision().retry_after;
        assert_eq!(told, SECOND / 10);
        clock.advance(told);
        assert!(stack.allow(&levels(&gold)).is_some());
    }
}

#[test]
fn a_block_is_independent_of_the_rate() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    let hour = 3_600 * SECOND;
    limiter.block_for("key", hour).unwrap();
    let tiers = [
        tier(Rate::per_second(1_000_000)),
        tier(Rate::per_day(1)),
        tier(Rate::unlimited()),
        tier(Rate::zero()),
    ];
    for limit in &tiers {
        for _ in 0..3 {
            let decision = limiter.key_at_rate("key", limit).check_n(1);
            assert!(!decision.is_allowed());
            assert_eq!(decision.retry_after, hour);
        }
    }
    clock.advance(hour);
    assert!(limiter.key_at_rate("key", &tiers[2]).allow());
    assert!(limiter.allow("key"));
}

#[test]
fn a_block_holds_for_rates_that_count_nothing() {
    // At one rate, and asked at none.
    let (one, _) = limiter(Rate::per_second(1), 10);
    one.block_for("key", SECOND).unwrap();
    for none in [Rate::unlimited(), Rate::zero()] {
        let decision = one.key_at_rate("key", &tier(none)).check_n(1);
        assert_eq!(
            (decision.is_allowed(), decision.retry_after),
            (false, SECOND)
        );
    }
    // At none, and asked at one.
    let (one, clock) = limiter(Rate::unlimited(), 10);
    one.block_for("key", SECOND).unwrap();
    one.set_rate(Rate::per_second(1)).unwrap();
    assert_eq!(one.check("key").retry_after, SECOND);
    clock.advance(SECOND);
    assert!(one.allow("key") && !one.allow("key"));
    assert_eq!(one.len(), 1);
}

#[test]
fn extreme_rates_take_no_slot() {
    let (limiter, _) = limiter(Rate::per_second(1), 10);
    let (unlimited, zero) = (tier(Rate::unlimited()), tier(Rate::zero()));
    for key in 0..1_000 {
        assert!(limiter.key_at_rate(&key, &unlimited).allow_n(1_000));
        assert!(!limiter.key_at_rate(&key, &zero).allow());
    }
    assert!(limiter.is_empty());
}

#[test]
fn the_rate_of_all_keys_can_change_while_what_they_spent_stays_spent() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    assert!(limiter.key("key").allow_n(10));
    limiter.set_rate(Rate::per_second(20)).unwrap();
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert_eq!(limiter.peek("key").remaining, 10);
    assert_eq!(limiter.peek("new").remaining, 20);
    clock.advance(SECOND / 2);
    assert_eq!(limiter.peek("key").remaining, 15);
    let slow = Rate::new(1, Duration::from_secs(100 * 365 * 86_400));
    assert!(limiter.set_rate(slow).is_err());
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert_eq!(limiter.peek("key").remaining, 15);
}

#[test]
fn a_function_of_the_key_says_its_rate() {
    let clock = Manual::new();
    let fast = Gcra::new(Rate::per_second(5)).unwrap();
    let limiter = KeyedLimiter::builder(Rate::per_second(2), 100)
        .clock(clock.clone())
        .build()
        .unwrap()
        .rated_by(move |key: &u32| key.is_multiple_of(2).then_some(fast));
    let passed = |key: u32| (0..9).filter(|_| limiter.allow(&key)).count();
    assert_eq!([passed(1), passed(2)], [2, 5]);
    assert_eq!(limiter.check(&1).limit, 2);
    assert_eq!(limiter.check_n(&2, 0).limit, 5);
    clock.advance(Duration::from_millis(200));
    assert_eq!([passed(1), passed(2)], [0, 1]);
    let wait = limiter.reserve(&2, 1).unwrap().delay();
    assert_eq!(wait, Duration::from_millis(200));
    assert_eq!(limiter.limiter().len(), 2);
}

//! Rates that change: with the call, or of the whole limiter.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, CompositeLimiter, KeyedLimiter, Limit, Rate, Tier};

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

fn tier(rate: Rate) -> Tier {
    Tier::new(Algorithm::Gcra, rate).expect("a rate that fits")
}

#[test]
fn an_upgraded_key_waits_until_what_it_owes_is_paid_back_at_the_new_rate() {
    let (limiter, clock) = limiter(Rate::per_hour(1).burst(10), 10);
    assert!(limiter.key("tenant").allow_n(10));
    let fast = tier(Rate::per_second(100).burst(4));
    let at_fast = limiter.key("tenant").at(&fast).unwrap();
    // A look stores nothing, so at the slow rate it goes on to owe ten hours.
    assert_eq!(at_fast.check_n(0).wait_or_max(), SECOND * 6 / 100);
    assert_eq!(limiter.key("tenant").peek().reset_after, 36_000 * SECOND);
    // The first refusal does, and the next ones only see it.
    let wait = at_fast.check_n(1).wait_or_max();
    assert_eq!(wait, SECOND * 7 / 100);
    clock.advance(wait / 2);
    assert_eq!(at_fast.check_n(1).wait_or_max(), wait - wait / 2);
    clock.advance(wait - wait / 2 - Duration::from_nanos(1));
    assert!(!at_fast.allow());
    clock.advance(Duration::from_nanos(1));
    assert!(at_fast.allow() && !at_fast.allow());
    // Four are owed now, whoever asks.
    assert_eq!(limiter.key("tenant").peek().remaining, 6);
}

#[test]
fn a_downgraded_key_waits_no_longer_than_the_old_rate_takes() {
    let (limiter, clock) = limiter(Rate::per_minute(1), 10);
    let fast = tier(Rate::per_second(100));
    assert!(limiter.key("key").at(&fast).unwrap().allow_n(100));
    let refused = limiter.check("key");
    assert_eq!(refused.wait_or_max(), SECOND);
    // Its own bucket is full again a minute after the others are paid back.
    assert_eq!(refused.reset_after, 60 * SECOND + SECOND * 99 / 100);
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(!limiter.allow("key"));
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.allow("key"));
    assert_eq!(limiter.check("key").wait_or_max(), 60 * SECOND);
    assert_eq!(
        limiter.key("key").at(&fast).unwrap().check_n(0).remaining,
        99
    );
}

#[test]
fn operators_change_what_a_key_owes_by_whichever_rate_it_counts() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(100));
    let at_gold = limiter.key("key").at(&gold).unwrap();
    assert!(at_gold.allow_n(50));
    limiter.key("key").refund(20);
    assert_eq!(at_gold.check_n(0).remaining, 70);
    // At most what a bucket of the limiter's own rate holds: thirty are owed already.
    limiter.key("key").penalize(40).unwrap();
    assert_eq!(at_gold.check_n(0).remaining, 70);
    limiter.key("key").reset();
    assert_eq!(at_gold.check_n(0).remaining, 100);
    assert!(at_gold.allow_n(5));
    limiter.key("key").penalize(40).unwrap();
    assert_eq!(at_gold.check_n(0).remaining, 90);
    limiter.key("key").block_for(SECOND).unwrap();
    assert_eq!(limiter.check("key").wait_or_max(), SECOND);
    assert_eq!(at_gold.check_n(1).wait_or_max(), SECOND);
    clock.advance(SECOND);
    assert!(at_gold.allow_n(100));
    assert_eq!(limiter.len(), 1);
    let mut seen = Vec::new();
    limiter.for_each_active(|key| seen.push(key.key));
    assert_eq!(seen, [limiter.fingerprint("key")]);
}

/// Whether its entry still exists can't be known, so it must make no difference.
#[test]
fn a_key_that_owes_nothing_is_penalized_as_one_never_seen() {
    for is_seen in [true, false] {
        for is_blocked in [true, false] {
            let (limiter, clock) = limiter(Rate::per_second(2).burst(3), 10);
            if is_seen {
                assert!(limiter.allow("key"));
            }
            if is_seen && is_blocked {
                limiter.key("key").block_for(SECOND / 4).unwrap();
            }
            clock.advance(SECOND + Duration::from_millis(1));
            limiter.set_rate(Rate::per_second(3).burst(1)).unwrap();
            limiter.key("key").penalize(2).unwrap();
            let told = limiter.key("key").peek();
            assert_eq!(told.remaining, 0);
            clock.advance(Duration::from_millis(334));
            assert!(limiter.allow("key"), "seen {is_seen}, blocked {is_blocked}");
        }
    }
}

#[test]
fn what_is_booked_at_one_rate_is_given_back_while_the_key_counts_by_it() {
    let (limiter, _) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(10));
    let slot = limiter.key("key").at(&gold).unwrap().reserve(4).unwrap();
    // Another rate lets it pass meanwhile: the four stay spent.
    assert!(limiter.allow("key"));
    slot.cancel();
    assert_eq!(limiter.key("key").peek().remaining, 5);
    let slot = limiter.key("key").reserve(4).unwrap();
    slot.cancel();
    assert_eq!(limiter.key("key").peek().remaining, 5);
}

#[test]
fn several_keys_at_other_rates_are_charged_together_or_not_at_all() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let gold = tier(Rate::per_second(10));
    assert!(limiter.key("a").allow_n(10));
    let keys = ["a", "b"].map(|key| (limiter.key(key).at(&gold).unwrap(), 1));
    let refused = limiter.check_all(&keys);
    assert_eq!((refused.decided_by, refused.lost_race), (Some(0), false));
    assert_eq!(refused.decision.wait_or_max(), SECOND / 10);
    // What it told comes true, though nobody asked by itself.
    clock.advance(SECOND / 10);
    assert!(limiter.check_all(&keys).decision.is_allowed());
    assert_eq!(limiter.key("b").peek().remaining, 9);
}

#[test]
fn a_stack_that_is_refused_at_a_faster_rate_tells_a_wait_that_comes_true() {
    let (limiter, clock) = limiter(Rate::per_hour(10), 10);
    let (gold, stack) = (tier(Rate::per_second(10)), CompositeLimiter::new());
    for turn in 0..3 {
        let key = format!("key {turn}");
        let levels = |rate| [Limit::new("key", &limiter.key(&key).at(rate).unwrap())];
        let own = tier(Rate::per_hour(10));
        assert!((0..10).all(|_| stack.allow(&levels(&own)).is_some()));
        match turn {
            0 => assert!(stack.allow(&levels(&gold)).is_none()),
            1 => assert!(stack.hold(&levels(&gold), SECOND).is_err()),
            _ => {}
        }
        let told = stack.check(&levels(&gold)).decision().wait_or_max();
        assert_eq!(told, SECOND / 10);
        clock.advance(told);
        assert!(stack.allow(&levels(&gold)).is_some());
    }
}

#[test]
fn a_block_is_independent_of_the_rate() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    let hour = 3_600 * SECOND;
    limiter.key("key").block_for(hour).unwrap();
    let tiers = [
        tier(Rate::per_second(1_000_000)),
        tier(Rate::per_day(1)),
        tier(Rate::unlimited()),
        tier(Rate::zero()),
    ];
    for limit in &tiers {
        for _ in 0..3 {
            let decision = limiter.key("key").at(limit).unwrap().check_n(1);
            assert!(!decision.is_allowed());
            assert_eq!(decision.wait_or_max(), hour);
        }
    }
    clock.advance(hour);
    assert!(limiter.key("key").at(&tiers[2]).unwrap().allow());
    assert!(limiter.allow("key"));
}

#[test]
fn a_block_holds_for_rates_that_count_nothing() {
    // At one rate, and asked at none.
    let (one, _) = limiter(Rate::per_second(1), 10);
    one.key("key").block_for(SECOND).unwrap();
    for none in [Rate::unlimited(), Rate::zero()] {
        let decision = one.key("key").at(&tier(none)).unwrap().check_n(1);
        assert_eq!(
            (decision.is_allowed(), decision.wait_or_max()),
            (false, SECOND)
        );
    }
    // At none, and asked at one.
    let (one, clock) = limiter(Rate::unlimited(), 10);
    one.key("key").block_for(SECOND).unwrap();
    one.set_rate(Rate::per_second(1)).unwrap();
    assert_eq!(one.check("key").wait_or_max(), SECOND);
    clock.advance(SECOND);
    assert!(one.allow("key") && !one.allow("key"));
    assert_eq!(one.len(), 1);
}

#[test]
fn extreme_rates_take_no_slot() {
    let (limiter, _) = limiter(Rate::per_second(1), 10);
    let (unlimited, zero) = (tier(Rate::unlimited()), tier(Rate::zero()));
    for key in 0..1_000 {
        assert!(limiter.key(&key).at(&unlimited).unwrap().allow_n(1_000));
        assert!(!limiter.key(&key).at(&zero).unwrap().allow());
    }
    assert!(limiter.is_empty());
}

#[test]
fn the_rate_of_all_keys_can_change_while_what_they_spent_stays_spent() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    assert!(limiter.key("key").allow_n(10));
    limiter.set_rate(Rate::per_second(20)).unwrap();
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert_eq!(limiter.key("key").peek().remaining, 10);
    assert_eq!(limiter.key("new").peek().remaining, 20);
    clock.advance(SECOND / 2);
    assert_eq!(limiter.key("key").peek().remaining, 15);
    let slow = Rate::new(1, Duration::from_secs(100 * 365 * 86_400));
    assert!(limiter.set_rate(slow).is_err());
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert_eq!(limiter.key("key").peek().remaining, 15);
}

#[test]
fn a_function_of_the_key_says_its_rate() {
    let clock = Manual::new();
    let limiter = KeyedLimiter::builder(Rate::per_second(2), 100)
        .clock(clock.clone())
        .tier_of([tier(Rate::per_second(5))], |[fast], key: &u32| {
            key.is_multiple_of(2).then_some(fast)
        })
        .build()
        .unwrap();
    let passed = |key: u32| (0..9).filter(|_| limiter.allow(&key)).count();
    assert_eq!([passed(1), passed(2)], [2, 5]);
    assert_eq!(limiter.check(&1).limit, 2);
    assert_eq!(limiter.check_n(&2, 0).limit, 5);
    clock.advance(Duration::from_millis(200));
    assert_eq!([passed(1), passed(2)], [0, 1]);
    let wait = limiter.key(&2).reserve(1).unwrap().delay();
    assert_eq!(wait, Duration::from_millis(200));
    assert_eq!(limiter.len(), 2);
    let mut decisions = Vec::new();
    limiter.check_many(&[(1, 0), (2, 0)], &mut decisions);
    assert_eq!([decisions[0].limit, decisions[1].limit], [2, 5]);
}

#[test]
fn a_tier_of_another_algorithm_is_refused_when_it_is_given() {
    let log = Tier::new(Algorithm::SlidingLog, Rate::per_second(5)).unwrap();
    let text = "tier \"5/s\" was made for a sliding log, and this limiter counts by GCRA; \
                make the tier with the limiter's algorithm";
    let limiter = Arc::new(KeyedLimiter::new(Rate::per_second(1), 100));
    assert_eq!(limiter.key("key").at(&log).unwrap_err().to_string(), text);
    let owned = limiter.key_owned("key");
    assert_eq!(owned.at(&log).unwrap_err().to_string(), text);
    let builder = KeyedLimiter::builder(Rate::per_second(1), 100);
    let builder = builder.tier_of([log], |[log], _: &str| Some(log));
    assert_eq!(builder.build().unwrap_err().to_string(), text);
}

#[test]
fn a_handle_that_is_kept_follows_the_rate_of_its_limiter() {
    let limiter = KeyedLimiter::builder(Rate::per_second(2), 100).clock(Manual::new());
    let limiter = Arc::new(limiter.build().unwrap());
    let (kept, owned) = (limiter.key("key"), limiter.key_owned("other"));
    limiter.set_rate(Rate::per_second(9)).unwrap();
    assert_eq!((kept.check().limit, owned.check().limit), (9, 9));
    assert!(kept.allow_n(8) && owned.allow_n(8));
}

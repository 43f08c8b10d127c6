//! A wall clock that is set: new keys follow the new time immediately, known ones after a period at most, and each step
//! grants one period's quota at most.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::quota::{self, Durability};
use tollgate::{Quota, QuotaLimiter, Timestamp};
use tollgate_testkit::traffic::Random;

use crate::scratch::Scratch;

const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);
/// The first of June, noon.
const START: Timestamp = Timestamp::from_secs(1_717_243_200);

fn builder(quota: &Quota, now: Timestamp) -> quota::Builder<Manual> {
    bounded(quota, now, 1_000_000)
}

/// The same for so many keys.
fn bounded(quota: &Quota, now: Timestamp, capacity: usize) -> quota::Builder<Manual> {
    QuotaLimiter::builder(quota.clone(), capacity)
        .clock(Manual::starting_at(now))
        .flush_every(DAY)
}

fn quotas() -> [Quota; 4] {
    [
        Quota::per_hour(10),
        Quota::per_day(10),
        Quota::rolling(10, DAY).expect("a period"),
        Quota::per_month(10),
    ]
}

/// A year ahead for three minutes, in which keys come, some are charged again and others dropped.
fn ahead_for_three_minutes(limiter: &QuotaLimiter<Manual>) {
    assert!(limiter.check_n("before", 4).is_allowed());
    limiter.clock().advance(365 * DAY);
    for key in 0..500 {
        let _ = limiter.check_n(&format!("ahead-{key}"), 10);
    }
    let _ = limiter.check_n("known", 10);
    // Some are idle by a clock that is a little further, and dropped as others come.
    limiter.clock().advance(40 * DAY);
    for key in 0..500 {
        let _ = limiter.check_n(&format!("later-{key}"), 10);
    }
    limiter.clock().set(START + 3 * MINUTE);
}

fn holds_nobody_back(limiter: &QuotaLimiter<Manual>, quota: &Quota) {
    for key in 0..200 {
        let key = format!("new-{key}");
        assert_eq!(limiter.peek(&key).remaining, 10, "{quota}");
        let first = limiter.check_n(&key, 10);
        assert!(first.is_allowed(), "{quota}: {first:?}");
        let wait = limiter.check(&key).wait_or_max();
        assert!(wait <= 31 * DAY, "{quota}: {wait:?}");
    }
    limiter.reset("later-7");
    assert!(limiter.check_n("later-7", 10).is_allowed(), "{quota}");
    // Known ones have spent it in this period, and have it again in the next.
    let known = limiter.check_n("later-8", 10);
    assert!(
        !known.is_allowed() && known.wait_or_max() <= 32 * DAY,
        "{quota}: {known:?}"
    );
    assert_eq!(limiter.peek("later-8").wait_or_max(), Duration::ZERO);
    limiter.clock().advance(known.wait_or_max());
    assert!(limiter.check_n("later-8", 10).is_allowed(), "{quota}");
    assert!(limiter.check_n("before", 10).is_allowed(), "{quota}");
}

#[test]
fn a_clock_that_was_a_year_ahead_holds_nobody_back() {
    for quota in quotas() {
        let limiter = builder(&quota, START).build().unwrap();
        ahead_for_three_minutes(&limiter);
        holds_nobody_back(&limiter, &quota);
    }
}

#[test]
fn nor_after_a_restart() {
    for quota in quotas() {
        for durability in [Durability::Periodic, Durability::WriteAhead { block: 5 }] {
            let scratch = Scratch::new("ahead");
            let limiter = builder(&quota, START).durability(durability);
            let limiter = limiter.open(scratch.file()).unwrap();
            ahead_for_three_minutes(&limiter);
            drop(limiter);
            let again = builder(&quota, START + 3 * MINUTE).durability(durability);
            let again = again.open(scratch.file()).unwrap();
            holds_nobody_back(&again, &quota);
        }
    }
}

#[test]
fn keys_of_a_clock_that_was_ahead_make_room_within_a_period() {
    let limiter = bounded(&Quota::per_day(10), START, 100).build().unwrap();
    limiter.clock().advance(365 * DAY);
    for key in 0..100 {
        assert!(limiter.check(&format!("ahead-{key}")).is_allowed());
    }
    limiter.clock().set(START);
    let refused = limiter.check("new");
    assert!(
        !refused.is_allowed() && refused.wait_or_max() <= DAY,
        "{refused:?}"
    );
    limiter.clock().advance(refused.wait_or_max());
    assert!(limiter.check("new").is_allowed());
}

fn steps(quota: &Quota, seed: u64) {
    let mut random = Random::new(seed);
    let mut number = |end: u64| u32::try_from(random.below(end)).unwrap_or(0);
    let limiter = builder(quota, START).build().expect("what it can do");
    let (mut ran, mut offset, mut late) = (Duration::ZERO, 900 * DAY, Duration::ZERO);
    let (mut far_steps, mut passed) = (0, [0; 3]);
    for _ in 0..600 {
        ran += MINUTE * number(40);
        let far = DAY * (35 + number(300));
        match number(40) {
            0 => (offset, far_steps) = (offset + far, far_steps + 1),
            1 if offset > far + 50 * DAY => (offset, far_steps) = (offset - far, far_steps + 1),
            // A little behind, and then right again.
            2 => (offset, late) = (offset + late, Duration::ZERO),
            3 if late.is_zero() => {
                late = MINUTE * number(59);
                offset -= late;
            }
            _ => {}
        }
        let now = START + ran + offset;
        let (key, cost) = (number(3), u64::from(1 + number(3)));
        let allowed = limiter.check_at(now, &key.to_le_bytes(), cost);
        passed[key as usize] += if allowed.is_allowed() { cost } else { 0 };
        let _ = limiter.check_at(now, &format!("other-{}", number(300)), 1);
    }
    let shortest = quota
        .period_at(START)
        .map_or(DAY, |(start, end)| end - start);
    let periods = ran.as_secs().div_ceil(shortest.as_secs());
    let most = 10 * (1 + periods + far_steps);
    for passed in passed {
        assert!(passed <= most, "{quota} {seed}: {passed} of {most}");
    }
    let now = START + ran;
    assert!(
        limiter.check_at(now, "new", 10).is_allowed(),
        "{quota} {seed}"
    );
    for key in (0..3u32).map(u32::to_le_bytes) {
        let _ = limiter.check_at(now, &key, 1);
        let all = limiter.check_at(now + 32 * DAY, &key, 10);
        assert!(all.is_allowed(), "{quota} {seed}: {all:?}");
    }
}

#[test]
fn a_clock_that_is_set_grants_one_period_a_step_and_holds_nobody_back() {
    for quota in quotas() {
        for seed in 0..60 {
            steps(&quota, seed);
        }
    }
}

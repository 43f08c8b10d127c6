//! The verbs by key, what an operator does to one, and what is seen of all.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::core::{Arithmetic, Gcra};
use tollgate::{KeyedLimiter, Outcome, Rate, Refused};
use tollgate_testkit::traffic::Random;

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_look_charges_nothing() {
    let (limiter, _) = limiter(Rate::per_second(3), 10);
    for _ in 0..10 {
        assert_eq!(limiter.peek("key").remaining, 3);
        assert_eq!(limiter.check_n("key", 0).remaining, 3);
    }
    let _ = limiter.check_n("key", 2);
    assert_eq!(limiter.peek("key").remaining, 1);
    assert_eq!(limiter.peek("other").remaining, 3);
}

#[test]
fn a_reset_forgets_what_was_spent_and_any_block() {
    let (limiter, _) = limiter(Rate::per_second(3), 10);
    let _ = limiter.check_n("key", 3);
    limiter.reset("key");
    assert_eq!(limiter.peek("key").remaining, 3);
    limiter.block_for("key", SECOND).unwrap();
    limiter.reset("key");
    assert!(limiter.allow("key"));
    limiter.reset("never seen");
    assert_eq!(limiter.len(), 1);
}

#[test]
fn a_refund_is_a_gift_up_to_a_full_bucket_and_leaves_a_block() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    let _ = limiter.check_n("key", 8);
    limiter.refund("key", 5);
    assert_eq!(limiter.peek("key").remaining, 7);
    limiter.refund("key", 1_000);
    assert_eq!(limiter.peek("key").remaining, 10);
    limiter.refund("never seen", 5);
    assert_eq!(limiter.peek("never seen").remaining, 10);
    limiter.block_for("key", SECOND).unwrap();
    limiter.refund("key", u64::MAX);
    assert!(!limiter.allow("key"));
    clock.advance(SECOND);
    assert!(limiter.allow("key"));
}

#[test]
fn what_is_promised_on_a_gift_is_not_promised_again() {
    let (limiter, _) = limiter(Rate::per_second(1).burst(5), 100);
    assert!(limiter.key("a").allow_n(5));
    let first = limiter.reserve("a", 5).unwrap();
    limiter.refund("a", 5);
    // The gift lets the second act as early as the first, whose word it leaves as it was.
    let second = limiter.reserve("a", 5).unwrap();
    let five = Duration::from_secs(5);
    assert_eq!((first.delay(), second.delay()), (five, five));
    first.cancel();
    // All of the bucket at 5 s is the second's: ten would act at once.
    assert_eq!(limiter.reserve("a", 5).unwrap().delay(), 2 * five);
}

#[test]
fn a_fine_takes_tokens_at_most_until_the_key_is_empty() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    limiter.penalize("new", 4).unwrap();
    assert_eq!(limiter.peek("new").remaining, 6);
    limiter.penalize("new", u64::MAX).unwrap();
    assert_eq!(limiter.check("new").retry_after, SECOND / 10);
    clock.advance(SECOND);
    assert_eq!(limiter.peek("new").remaining, 10);
    limiter.penalize("nothing", 0).unwrap();
    assert_eq!(limiter.peek("nothing").remaining, 10);
    // What was booked ahead stays booked.
    std::mem::forget(limiter.key("booked").reserve(10).unwrap());
    std::mem::forget(limiter.key("booked").reserve(10).unwrap());
    limiter.penalize("booked", 5).unwrap();
    assert_eq!(limiter.check("booked").retry_after, SECOND + SECOND / 10);
    // A block isn't changed by a fine; one that is over is.
    limiter.block_for("blocked", SECOND).unwrap();
    limiter.penalize("blocked", 10).unwrap();
    assert_eq!(limiter.check("blocked").retry_after, SECOND);
    clock.advance(SECOND);
    limiter.penalize("blocked", 9).unwrap();
    assert_eq!(limiter.peek("blocked").remaining, 1);
}

#[test]
fn a_block_refuses_everything_until_it_is_over_and_is_never_shortened() {
    let (limiter, clock) = limiter(Rate::per_second(1_000), 10);
    limiter.block_for("key", 2 * SECOND).unwrap();
    limiter.block_for("key", SECOND).unwrap();
    let decision = limiter.check("key");
    assert_eq!(decision.outcome, Outcome::Denied);
    assert_eq!((decision.remaining, decision.limit), (0, 1_000));
    assert_eq!(decision.retry_after, 2 * SECOND);
    assert_eq!(decision.reset_after, 2 * SECOND);
    assert_eq!(limiter.peek("key").outcome, Outcome::Denied);
    clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert!(!limiter.allow("key"));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(limiter.check("key").remaining, 999);
    // As long as can be.
    limiter.block_for("key", Duration::MAX).unwrap();
    clock.advance(1_000 * 86_400 * SECOND);
    assert!(!limiter.allow("key"));
}

#[test]
fn a_block_forgives_nothing_that_was_spent() {
    let mut random = Random::new(11);
    for round in 0..200 {
        // Two keys that spent the same, one of which is then blocked for a while.
        let (limiter, clock) = limiter(Rate::per_hour(10), 10);
        let spent = 1 + random.below(10);
        assert!(limiter.key("free").allow_n(spent) && limiter.key("blocked").allow_n(spent));
        // No time is no block, and a second block adds nothing to what is owed.
        limiter.block_for("blocked", Duration::ZERO).unwrap();
        assert_eq!(limiter.peek("blocked"), limiter.peek("free"));
        let block = Duration::from_secs(1 + random.below(4_000));
        limiter.block_for("blocked", block / 2).unwrap();
        limiter.block_for("blocked", block).unwrap();
        clock.advance(block);
        let free = limiter.peek("free").remaining;
        let blocked = limiter.peek("blocked").remaining;
        assert!(
            blocked <= free,
            "round {round}: {blocked} left instead of {free}"
        );
        assert!(
            10 - blocked <= 2 * spent,
            "round {round}: {blocked} of {free}"
        );
        assert!(!limiter.key("blocked").allow_n(free + 1));
        clock.advance(Duration::from_secs(4 * 3_600));
        assert!(limiter.is_empty() && limiter.key("blocked").allow_n(10));
    }
}

#[test]
fn a_blocked_key_books_nothing_for_after_its_block() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    limiter.block_for("key", SECOND).unwrap();
    for _ in 0..3 {
        let refused = limiter.reserve("key", 1).unwrap_err();
        assert!(matches!(refused, Refused::Blocked(_)));
        assert_eq!(
            refused.to_string(),
            "rate limit: the key is blocked; retry after 1s"
        );
        assert!(limiter.acquire("key").wait_blocking().is_err());
    }
    clock.advance(SECOND);
    assert!(limiter.reserve("key", 1).unwrap().delay().is_zero());
    assert!(!limiter.allow("key"));
}

#[test]
fn a_reservation_by_key_is_given_back_by_cancelling_or_dropping_it_early() {
    let (limiter, clock) = limiter(Rate::per_second(10).burst(1), 10);
    let first = limiter.reserve("key", 1).unwrap();
    assert!(first.delay().is_zero());
    let second = limiter.reserve("key", 1).unwrap();
    assert_eq!(second.delay(), SECOND / 10);
    assert!(limiter.reserve("other", 1).unwrap().delay().is_zero());
    second.cancel();
    let again = limiter.reserve("key", 1).unwrap();
    assert_eq!(again.delay(), SECOND / 10);
    drop(again);
    assert_eq!(limiter.peek("key").retry_after, Duration::ZERO);
    assert_eq!(limiter.check("key").retry_after, SECOND / 10);
    // Its time has come: dropping it gives nothing back.
    let used = limiter.reserve("key", 1).unwrap();
    clock.advance(SECOND / 10);
    drop(used);
    assert!(!limiter.allow("key"));
    assert!(matches!(limiter.reserve("key", 2), Err(Refused::Never(_))));
}

#[test]
fn a_reservation_reaches_no_further_ahead_than_the_longest_wait() {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 10)
        .longest_wait(2 * SECOND)
        .clock(Manual::new())
        .build()
        .unwrap();
    for delay in 0..3u32 {
        let slot = limiter.reserve("key", 1).unwrap();
        assert_eq!(slot.delay(), delay * SECOND);
        std::mem::forget(slot);
    }
    let refused = limiter.reserve("key", 1).unwrap_err();
    assert!(matches!(refused, Refused::TooFarAhead(_)));
    assert_eq!(
        refused.to_string(),
        "rate limit: the wait of 3s is longer than reservations reach ahead; `acquire` waits as long as it takes"
    );
}

#[test]
fn many_at_once_are_decided_as_one_by_one() {
    let (batched, _) = limiter(Rate::per_second(5), 1_000);
    let (single, _) = limiter(Rate::per_second(5), 1_000);
    let mut random = Random::new(9);
    let mut decisions = vec![single.peek("left over")];
    for length in [0, 1, 15, 16, 17, 200, 1_000] {
        let draw = |_| (random.below(300), random.below(4));
        let requests: Vec<(u64, u64)> = (0..length).map(draw).collect();
        batched.check_many(&requests, &mut decisions);
        let expected = requests
            .iter()
            .map(|(key, cost)| single.check_n(key, *cost));
        assert_eq!(decisions, expected.collect::<Vec<_>>());
    }
    assert_eq!(batched.stats().allowed, single.stats().allowed);
    assert_eq!(batched.stats().denied, single.stats().denied);
}

#[test]
fn what_is_active_can_be_counted_and_visited() {
    let (limiter, clock) = limiter(Rate::per_second(10), 1_000);
    assert!(limiter.is_empty());
    for key in 0..500u64 {
        let _ = limiter.check_n(&key, 1 + key % 10);
    }
    limiter.block_for("blocked", 3 * SECOND).unwrap();
    assert_eq!(limiter.len(), 501);
    clock.advance(SECOND / 2);
    let mut seen = Vec::new();
    limiter.for_each_active(|active| seen.push(active));
    // Those who spent 5 or less are idle again.
    assert_eq!(seen.len(), 251);
    let of = |key: u64| {
        let fingerprint = limiter.fingerprint(&key);
        seen.iter().find(|active| active.fingerprint == fingerprint)
    };
    assert_eq!(of(3), None);
    let active = of(9).unwrap();
    assert_eq!((active.idle_after, active.blocked), (SECOND / 2, false));
    let blocked: Vec<_> = seen.iter().filter(|active| active.blocked).collect();
    assert_eq!(blocked.len(), 1);
    assert_eq!(blocked[0].idle_after, 5 * SECOND / 2);
    clock.advance(3 * SECOND);
    assert!(limiter.is_empty());
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.denied), (500, 0));
    assert!(stats.slots >= 501 && stats.moved > 0, "{stats:?}");
    assert_eq!(limiter.capacity(), 1_000);
    assert!(limiter.memory_bound() >= 16_000);
}

#[test]
fn whoever_visits_keys_may_ask_the_limiter() {
    let (limiter, _) = limiter(Rate::per_second(10), 40_000);
    (0..1_000u64).for_each(|key| assert!(limiter.allow(&key)));
    let mut new = 1_000u64;
    limiter.for_each_active(|_| {
        new += u64::from(new < 3_000);
        assert!(limiter.allow(&new) || new == 3_000);
        assert!(limiter.key("seen").allow_n(0));
    });
    assert!(new > 1_999 && limiter.len() > 1_999);
    limiter.for_each_active(|_| limiter.reset(&0u64));
}

#[test]
fn keys_of_every_kind_are_told_apart() {
    let (limiter, _) = limiter(Rate::per_second(1), 100);
    assert!(limiter.allow("a") && limiter.allow("b"));
    assert!(limiter.allow(&("a", "b")) && limiter.allow(&("ab", "")));
    assert!(limiter.allow(&1u64) && limiter.allow(&[1u8, 2]));
    assert!(!limiter.allow(&"a".to_owned()), "as the text it holds");
    assert_eq!(limiter.len(), 6);
}

#[test]
fn a_key_at_a_rate_of_its_own_has_that_limit() {
    let (limiter, _) = limiter(Rate::per_second(1), 10);
    let fast = Gcra::new(Rate::per_second(100)).unwrap();
    let decision = limiter.key_at_rate("key", &fast).check_n(60);
    assert_eq!((decision.limit, decision.remaining), (100, 40));
    assert!(limiter.key_at_rate("key", &fast).allow_n(40));
    assert!(!limiter.key_at_rate("key", &fast).allow());
}

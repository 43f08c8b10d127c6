//! The verbs by key, operators' changes of a key, and the view of all keys.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, KeyedLimiter, Outcome, Rate, RateDenied, Tier};
use tollgate_testkit::traffic::Random;

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_look_charges_nothing() {
    let (limiter, _) = limiter(Rate::per_second(3), 10);
    for _ in 0..10 {
        assert_eq!(limiter.key("key").peek().remaining, 3);
        assert_eq!(limiter.check_n("key", 0).remaining, 3);
    }
    let _ = limiter.check_n("key", 2);
    assert_eq!(limiter.key("key").peek().remaining, 1);
    assert_eq!(limiter.key("other").peek().remaining, 3);
}

#[test]
fn a_reset_forgets_what_was_spent_and_any_block() {
    let (limiter, _) = limiter(Rate::per_second(3), 10);
    let _ = limiter.check_n("key", 3);
    limiter.key("key").reset();
    assert_eq!(limiter.key("key").peek().remaining, 3);
    limiter.key("key").block_for(SECOND).unwrap();
    limiter.key("key").reset();
    assert!(limiter.allow("key"));
    limiter.key("never seen").reset();
    assert_eq!(limiter.len(), 1);
}

#[test]
fn a_refund_is_a_gift_up_to_a_full_bucket_and_leaves_a_block() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    let _ = limiter.check_n("key", 8);
    limiter.key("key").refund(5);
    assert_eq!(limiter.key("key").peek().remaining, 7);
    limiter.key("key").refund(1_000);
    assert_eq!(limiter.key("key").peek().remaining, 10);
    limiter.key("never seen").refund(5);
    assert_eq!(limiter.key("never seen").peek().remaining, 10);
    limiter.key("key").block_for(SECOND).unwrap();
    limiter.key("key").refund(u64::MAX);
    assert!(!limiter.allow("key"));
    clock.advance(SECOND);
    assert!(limiter.allow("key"));
}

#[test]
fn what_is_promised_on_a_gift_is_not_promised_again() {
    let (limiter, _) = limiter(Rate::per_second(1).burst(5), 100);
    assert!(limiter.key("a").allow_n(5));
    let first = limiter.key("a").reserve(5).unwrap();
    limiter.key("a").refund(5);
    // The gift lets the second act as early as the first, whose word it leaves as it was.
    let second = limiter.key("a").reserve(5).unwrap();
    let five = Duration::from_secs(5);
    assert_eq!((first.delay(), second.delay()), (five, five));
    first.cancel();
    // All of the bucket at 5 s is the second's: ten would act at once.
    assert_eq!(limiter.key("a").reserve(5).unwrap().delay(), 2 * five);
}

#[test]
fn a_fine_takes_tokens_at_most_until_the_key_is_empty() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    limiter.key("new").penalize(4).unwrap();
    assert_eq!(limiter.key("new").peek().remaining, 6);
    limiter.key("new").penalize(u64::MAX).unwrap();
    assert_eq!(limiter.check("new").wait_or_max(), SECOND / 10);
    clock.advance(SECOND);
    assert_eq!(limiter.key("new").peek().remaining, 10);
    limiter.key("nothing").penalize(0).unwrap();
    assert_eq!(limiter.key("nothing").peek().remaining, 10);
    // What was booked ahead stays booked.
    limiter.key("booked").reserve(10).unwrap().keep();
    limiter.key("booked").reserve(10).unwrap().keep();
    limiter.key("booked").penalize(5).unwrap();
    assert_eq!(limiter.check("booked").wait_or_max(), SECOND + SECOND / 10);
    // A block isn't changed by a fine; one that is over is.
    limiter.key("blocked").block_for(SECOND).unwrap();
    limiter.key("blocked").penalize(10).unwrap();
    assert_eq!(limiter.check("blocked").wait_or_max(), SECOND);
    clock.advance(SECOND);
    limiter.key("blocked").penalize(9).unwrap();
    assert_eq!(limiter.key("blocked").peek().remaining, 1);
}

#[test]
fn a_block_refuses_everything_until_it_is_over_and_is_never_shortened() {
    let (limiter, clock) = limiter(Rate::per_second(1_000), 10);
    limiter.key("key").block_for(2 * SECOND).unwrap();
    limiter.key("key").block_for(SECOND).unwrap();
    let decision = limiter.check("key");
    assert_eq!(decision.outcome, Outcome::Denied);
    assert_eq!((decision.remaining, decision.limit), (0, 1_000));
    assert_eq!(decision.wait_or_max(), 2 * SECOND);
    assert_eq!(decision.reset_after, 2 * SECOND);
    assert_eq!(limiter.key("key").peek().outcome, Outcome::Denied);
    clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert!(!limiter.allow("key"));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(limiter.check("key").remaining, 999);
    // As long as can be.
    limiter.key("key").block_for(Duration::MAX).unwrap();
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
        limiter.key("blocked").block_for(Duration::ZERO).unwrap();
        assert_eq!(limiter.key("blocked").peek(), limiter.key("free").peek());
        let block = Duration::from_secs(1 + random.below(4_000));
        limiter.key("blocked").block_for(block / 2).unwrap();
        limiter.key("blocked").block_for(block).unwrap();
        clock.advance(block);
        let free = limiter.key("free").peek().remaining;
        let blocked = limiter.key("blocked").peek().remaining;
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
    limiter.key("key").block_for(SECOND).unwrap();
    for _ in 0..3 {
        let refused = limiter.key("key").reserve(1).unwrap_err();
        assert!(matches!(refused, RateDenied::Blocked(_)));
        assert_eq!(
            refused.to_string(),
            "rate limit: the key is blocked; retry after 1s"
        );
        assert!(limiter.key("key").acquire().wait_blocking().is_err());
    }
    clock.advance(SECOND);
    assert!(limiter.key("key").reserve(1).unwrap().delay().is_zero());
    assert!(!limiter.allow("key"));
}

#[test]
fn a_reservation_by_key_is_given_back_by_cancelling_or_dropping_it_early() {
    let (limiter, clock) = limiter(Rate::per_second(10).burst(1), 10);
    let first = limiter.key("key").reserve(1).unwrap();
    assert!(first.delay().is_zero());
    let second = limiter.key("key").reserve(1).unwrap();
    assert_eq!(second.delay(), SECOND / 10);
    assert!(limiter.key("other").reserve(1).unwrap().delay().is_zero());
    second.cancel();
    let again = limiter.key("key").reserve(1).unwrap();
    assert_eq!(again.delay(), SECOND / 10);
    drop(again);
    assert_eq!(limiter.key("key").peek().wait_or_max(), Duration::ZERO);
    assert_eq!(limiter.check("key").wait_or_max(), SECOND / 10);
    // Its time has come: dropping it gives nothing back.
    let used = limiter.key("key").reserve(1).unwrap();
    clock.advance(SECOND / 10);
    drop(used);
    assert!(!limiter.allow("key"));
    assert!(matches!(
        limiter.key("key").reserve(2),
        Err(RateDenied::ExceedsBurst(_))
    ));
}

#[test]
fn a_reservation_reaches_no_further_ahead_than_the_longest_wait() {
    let limiter = KeyedLimiter::builder(Rate::per_second(1), 10)
        .longest_wait(2 * SECOND)
        .clock(Manual::new())
        .build()
        .unwrap();
    for delay in 0..3u32 {
        let slot = limiter.key("key").reserve(1).unwrap();
        assert_eq!(slot.delay(), delay * SECOND);
        slot.keep();
    }
    let refused = limiter.key("key").reserve(1).unwrap_err();
    assert!(matches!(refused, RateDenied::TooFarAhead(_)));
    assert_eq!(
        refused.to_string(),
        "rate limit: the wait of 3s is longer than a reservation may be made ahead; use `acquire`, which waits as long as it takes"
    );
}

#[test]
fn many_at_once_are_decided_as_one_by_one() {
    let (batched, _) = limiter(Rate::per_second(5), 1_000);
    let (single, _) = limiter(Rate::per_second(5), 1_000);
    let mut random = Random::new(9);
    let mut decisions = vec![single.key("left over").peek()];
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
    limiter.key("blocked").block_for(3 * SECOND).unwrap();
    assert_eq!(limiter.len(), 501);
    clock.advance(SECOND / 2);
    let mut seen = Vec::new();
    limiter.for_each_active(|active| seen.push(active));
    // Those who spent 5 or less are idle again.
    assert_eq!(seen.len(), 251);
    let of = |key: u64| {
        let fingerprint = limiter.fingerprint(&key);
        seen.iter().find(|active| active.key == fingerprint)
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
    limiter.for_each_active(|_| limiter.key(&0u64).reset());
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
    let fast = Tier::new(Algorithm::Gcra, Rate::per_second(100)).unwrap();
    let decision = limiter.key("key").at(&fast).unwrap().check_n(60);
    assert_eq!((decision.limit, decision.remaining), (100, 40));
    assert!(limiter.key("key").at(&fast).unwrap().allow_n(40));
    assert!(!limiter.key("key").at(&fast).unwrap().allow());
}

//! Ledgers on other clocks, and carried over to other limits.

use super::*;
use crate::{
    FixedWindow, Gcra, LeakyBucket, LimitLedger, Rate, SlidingCounter, SlidingLog, TokenBucket,
    WindowAlignment,
};

/// A ledger with past charges, at 100 s.
fn used<A: Arithmetic>(limit: &A) -> Ledger<A> {
    let mut ledger = Ledger::default();
    for (millis, cost) in [(98_300, 2), (99_100, 1), (99_600, 3), (99_900, 2)] {
        let _ = ledger.decide(limit, Timestamp::from_millis(millis), cost);
    }
    ledger
}

/// Shifts to another clock and follows both for two windows.
fn follow<A: Arithmetic>(limit: &A, to: Timestamp, judge: impl Fn(Decision, Decision)) {
    let from = Timestamp::from_secs(100);
    let here = used(limit);
    let mut there = here.clone();
    there.move_to_clock(limit, from, to);
    for millis in 0..2_000 {
        let later = |start: Timestamp| start + Duration::from_millis(millis);
        let look = |ledger: &Ledger<A>, now| ledger.clone().decide(limit, now, 0);
        judge(look(&here, later(from)), look(&there, later(to)));
    }
}

#[test]
fn a_shifted_state_answers_as_it_did() {
    let rate = Rate::per_second(5);
    let same = |was: Decision, is: Decision| assert_eq!(is, was);
    for secs in [1, 7, 1_000] {
        let to = Timestamp::from_secs(secs);
        follow(&Gcra::new(rate).unwrap(), to, same);
        follow(&TokenBucket::new(rate).unwrap(), to, same);
        follow(&LeakyBucket::new(rate).unwrap(), to, same);
        follow(&FixedWindow::new(rate).unwrap(), to, same);
        let from_first_hit = FixedWindow::new(rate)
            .unwrap()
            .with_alignment(WindowAlignment::FirstHit);
        follow(&from_first_hit, to, same);
        follow(&SlidingLog::new(rate).unwrap(), to, same);
    }
}

#[test]
fn a_shifted_estimate_starts_as_it_was_and_grants_no_more() {
    let limit = SlidingCounter::new(Rate::per_second(5)).unwrap();
    for millis in [0, 3_000, 3_300, 3_999] {
        let no_more = |was: Decision, is: Decision| assert!(is.remaining <= was.remaining);
        follow(&limit, Timestamp::from_millis(millis), no_more);
    }
    let (here, from) = (used(&limit), Timestamp::from_secs(100));
    let mut there = here.clone();
    there.move_to_clock(&limit, from, Timestamp::from_millis(3_300));
    let left = |ledger: &Ledger<_>, now| limit.remaining(ledger.state(), now);
    let (was, is) = (
        left(&here, from),
        left(&there, Timestamp::from_millis(3_300)),
    );
    assert_eq!(is, was);
}

#[test]
fn a_clock_that_can_not_show_the_past_grants_no_more() {
    let rate = Rate::per_second(5);
    let no_more = |was: Decision, is: Decision| {
        assert!(is.remaining <= was.remaining, "{was:?} {is:?}");
    };
    let from_first_hit = FixedWindow::new(rate)
        .unwrap()
        .with_alignment(WindowAlignment::FirstHit);
    follow(&from_first_hit, Timestamp::ZERO, no_more);
    follow(&SlidingLog::new(rate).unwrap(), Timestamp::ZERO, no_more);
}

#[test]
fn what_was_spent_stays_spent_through_any_other_limit() {
    fn spent<A: Arithmetic>() {
        let limit = |rate| A::new(rate).expect("a rate that fits");
        let slow = limit(Rate::per_hour(10));
        let others = [Rate::per_second(1), Rate::per_second(100).burst(1)];
        let now = Timestamp::from_secs(9);
        let mut ledger = Ledger::default();
        let _ = ledger.decide(&slow, now, 7);
        for other in others.map(limit) {
            ledger.migrate_spent(&slow, &other, now);
            ledger.forget_bookings(&other, now);
            ledger.migrate_spent(&other, &slow, now);
        }
        assert_eq!(ledger.decide(&slow, now, 0).remaining, 3);
    }
    spent::<Gcra>();
    spent::<TokenBucket>();
    spent::<LeakyBucket>();
}

#[test]
fn a_booking_further_ahead_than_a_faster_limit_is_empty_is_forgotten() {
    let limit = |rate| FixedWindow::new(rate).unwrap();
    let (slow, fast) = (limit(Rate::per_hour(1)), limit(Rate::per_second(5)));
    let now = Timestamp::from_secs(9);
    let mut ledger = Ledger::default();
    let _ = ledger.decide(&slow, now, 1);
    ledger.reserve(&slow, now, 1, Duration::MAX).unwrap();
    ledger.migrate_spent(&slow, &fast, now);
    let wait = |ledger: &Ledger<_>| ledger.clone().decide(&fast, now, 1).wait_or_max();
    assert_eq!(wait(&ledger), Duration::from_secs(3_591));
    ledger.forget_bookings(&fast, now);
    // One of the five of this second is spent, and nothing else holds it back.
    assert_eq!(ledger.decide(&fast, now, 4).remaining, 0);
}

/// What remains of a booking when a live change, a refund or a reset comes between: five of five are spent and five
/// more are booked, and then `between` happens.
fn left_after<A: Arithmetic>(between: impl Fn(&mut LimitLedger<A>, Timestamp)) -> [u64; 2] {
    let rate = Rate::per_second(1).burst(5);
    let limit = A::new(rate).or_else(|_| A::new(Rate::new(5, Duration::from_secs(5))));
    let mut book = LimitLedger::new(limit.expect("a rate that fits"));
    let now = Timestamp::from_secs(100);
    assert!(book.decide(now, 5).is_allowed());
    let booked = book
        .reserve(now, 5, Duration::MAX)
        .expect("the next five seconds");
    between(&mut book, now);
    // A window lets nothing pass before a booking.
    let later = now + Duration::from_secs(10);
    let before = book.peek(later, 0).remaining;
    book.cancel(now, &booked);
    [before, book.peek(later, 0).remaining]
}

#[test]
fn what_was_booked_before_a_change_a_gift_or_a_reset_stays_booked() {
    fn stays<A: Arithmetic>() {
        let same = |[before, after]: [u64; 2]| assert_eq!(after, before);
        let faster = || A::new(Rate::new(5, Duration::from_millis(500))).expect("a rate that fits");
        same(left_after::<A>(|book, now| book.set_limit(now, faster())));
        same(left_after::<A>(|book, now| book.refund(now, 1)));
        same(left_after::<A>(|book, now| {
            let (limit, ledger) = book.parts_mut();
            ledger.reset();
            // Another request spends the tokens that the reset freed.
            let booked = ledger.reserve(limit, now, 5, Duration::MAX);
            let again = ledger.reserve(limit, now, 5, Duration::MAX);
            assert!(booked.is_ok() && again.is_ok());
        }));
    }
    stays::<Gcra>();
    stays::<TokenBucket>();
    stays::<LeakyBucket>();
    stays::<FixedWindow>();
    stays::<SlidingLog>();
    stays::<SlidingCounter>();
}

#[test]
fn what_is_promised_after_a_faster_change_is_not_promised_again() {
    let limit = |count| TokenBucket::new(Rate::per_second(count).burst(5)).unwrap();
    let (mut book, now) = (LimitLedger::new(limit(1)), Timestamp::ZERO);
    assert!(book.decide(now, 5).is_allowed());
    let first = book.reserve(now, 5, Duration::MAX).unwrap();
    book.set_limit(now, limit(10));
    let second = book.reserve(now, 5, Duration::MAX).unwrap();
    assert_eq!(second.at(), Timestamp::from_secs(1));
    book.cancel(now, &first);
    // The second booking takes the whole bucket.
    assert!(!book.decide(second.at(), 1).is_allowed());
}

#[test]
fn what_is_promised_on_a_gift_is_not_promised_again() {
    let limit = TokenBucket::new(Rate::per_second(1).burst(5)).unwrap();
    let (mut book, now) = (LimitLedger::new(limit), Timestamp::ZERO);
    assert!(book.decide(now, 1).is_allowed());
    let first = book.reserve(now, 5, Duration::MAX).unwrap();
    book.refund(now, 1);
    let later = Timestamp::from_millis(1);
    let second = book.reserve(later, 2, Duration::MAX).unwrap();
    assert_eq!(second.at(), Timestamp::from_secs(2));
    book.cancel(later, &first);
    let third = book.reserve(later, 4, Duration::MAX).unwrap();
    // Six where the burst is five: no sooner than a second after the two.
    assert!(third.at() >= Timestamp::from_secs(3), "{}", third.at());
}

#[test]
fn what_was_counted_is_kept_through_a_limit_that_counts_nothing() {
    let now = Timestamp::from_millis(1_000_500);
    let limit = |rate: Rate| SlidingCounter::new(rate).unwrap();
    for between in [Rate::zero(), Rate::unlimited()] {
        let mut book = LimitLedger::new(limit(Rate::per_second(3)));
        assert!(book.decide(now, 2).is_allowed());
        book.set_limit(now, limit(Rate::per_minute(1)));
        book.set_limit(now, limit(between));
        book.set_limit(now, limit(Rate::per_second(3)));
        assert_eq!(book.decide(now, 0).remaining, 1, "{between}");
    }
}

//! The verbs of a quota limiter: charges and receipts, tiers, thresholds, caps, threads.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::WhenFull;
use tollgate::clock::Manual;
use tollgate::quota::{self, FileError, QuotaDenied};
use tollgate::{Clock, Outcome, Quota, QuotaLimiter, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

fn builder(quota: Quota) -> (quota::Builder<Manual>, Manual) {
    bounded(quota, 1_000_000)
}

/// The same for so many keys.
fn bounded(quota: Quota, capacity: usize) -> (quota::Builder<Manual>, Manual) {
    // 1 June 2024, a Saturday.
    let clock = Manual::starting_at(Timestamp::from_secs(1_717_200_000));
    (
        QuotaLimiter::builder(quota, capacity).clock(clock.clone()),
        clock,
    )
}

fn limiter(quota: Quota) -> (QuotaLimiter<Manual>, Manual) {
    let (builder, clock) = builder(quota);
    (builder.build().expect("what it can do"), clock)
}

#[test]
fn large_counts_do_not_overflow() {
    let (limiter, clock) = limiter(Quota::per_month(u64::MAX));
    assert_eq!(limiter.check_n("a", u64::MAX).remaining, 0);
    let refused = limiter.check_n("a", u64::MAX);
    assert_eq!(refused.outcome, Outcome::Denied);
    assert_eq!(refused.wait_or_max(), 30 * DAY);
    limiter.set_quota(&Quota::rolling(u64::MAX, 3 * DAY).expect("a period"));
    assert_eq!(limiter.check("a").outcome, Outcome::Denied);
    clock.advance(7 * DAY);
    assert!(limiter.check_n("a", u64::MAX - 1).is_allowed());
    clock.advance(DAY);
    assert_eq!(limiter.check_n("a", 1).remaining, 0);
    assert_eq!(limiter.check_n("a", 1).outcome, Outcome::Denied);
}

#[test]
fn zero_and_unlimited_are_quotas() {
    let (limiter, _) = limiter(Quota::per_day(0));
    assert_eq!(limiter.check("a").outcome, Outcome::Never);
    assert!(limiter.peek("a").is_allowed());
    limiter.set_quota(&Quota::unlimited());
    assert!(limiter.check_n("a", u64::MAX).is_allowed());
    assert_eq!(limiter.stats().keys, 0, "nothing is counted");
    let receipt = limiter.charge("a", 5).unwrap();
    assert_eq!(limiter.refund_receipt("a", receipt), 0);
}

#[test]
fn a_look_and_a_refusal_write_nothing() {
    let (limiter, clock) = limiter(Quota::per_day(10));
    assert!(limiter.peek_at(clock.now(), "a", None, 10).is_allowed());
    assert!(!limiter.peek_at(clock.now(), "a", None, 11).is_allowed());
    assert!(limiter.peek("a").is_allowed());
    assert_eq!(limiter.check_n("a", 11).outcome, Outcome::Never);
    assert_eq!(limiter.stats().keys, 0);
    let _ = limiter.check_n("a", 7);
    let before = limiter.peek("a");
    assert!(!limiter.check_n("a", 4).is_allowed());
    assert_eq!(limiter.peek("a"), before);
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.denied), (1, 2));
}

#[test]
fn a_receipt_gives_back_only_to_its_own_period() {
    let (limiter, clock) = limiter(Quota::per_day(10));
    let first = limiter.charge("a", 4).unwrap();
    assert_eq!(first.decision().remaining, 6);
    let second = limiter.charge("a", 5).unwrap();
    assert_eq!(limiter.refund_receipt("a", first), 4);
    assert_eq!(limiter.peek("a").remaining, 5);
    clock.advance(DAY);
    let _ = limiter.check_n("a", 9);
    assert_eq!(limiter.refund_receipt("a", second), 0, "its day is over");
    assert_eq!(limiter.peek("a").remaining, 1);
    // After a reset the charge isn't there any more, though the day is the same.
    let lost = limiter.charge("a", 1).unwrap();
    limiter.reset("a");
    let _ = limiter.check_n("a", 6);
    assert_eq!(limiter.refund_receipt("a", lost), 0);
    // It is after the period became another.
    let kept = limiter.charge("a", 1).unwrap();
    let _ = limiter.key("a").at(&Quota::per_month(10)).check_n(1);
    assert_eq!(limiter.refund_receipt("a", kept), 1);
    // A receipt is for the key that was charged.
    let other = limiter.charge("b", 3).unwrap();
    let _ = limiter.check_n("c", 3);
    assert_eq!(limiter.refund_receipt("c", other), 0);
}

#[test]
fn a_rolling_receipt_gives_back_to_its_part() {
    let (limiter, clock) = limiter(Quota::rolling(10, 60 * DAY).expect("a period"));
    let first = limiter.charge("a", 4).unwrap();
    clock.advance(30 * DAY);
    let second = limiter.charge("a", 6).unwrap();
    assert_eq!(limiter.refund_receipt("a", first), 4);
    assert_eq!(limiter.peek("a").remaining, 4);
    clock.advance(29 * DAY);
    let third = limiter.charge("a", 4).unwrap();
    // The part of the second runs out before that of the third.
    clock.advance(32 * DAY);
    assert_eq!(limiter.refund_receipt("a", second), 0);
    assert_eq!(limiter.refund_receipt("a", third), 4);
    assert_eq!(limiter.peek("a").remaining, 10);
}

#[test]
fn a_refund_gives_no_more_than_was_used() {
    let (limiter, _) = limiter(Quota::per_day(10));
    let _ = limiter.check_n("a", 6);
    limiter.refund("a", 2);
    assert_eq!(limiter.peek("a").remaining, 6);
    limiter.refund("a", 100);
    limiter.refund("nobody", 1);
    let left = ["a", "nobody"].map(|key| limiter.peek(key).remaining);
    assert_eq!(left, [10, 10]);
}

#[test]
fn tiers_overrides_and_live_changes_keep_what_was_used() {
    let (limiter, clock) = limiter(Quota::per_day(1_000));
    let _ = limiter.check_n("a", 900);
    limiter.set_quota(&Quota::per_day(500));
    let lowered = limiter.check("a");
    assert_eq!((lowered.limit, lowered.remaining), (500, 0));
    limiter.set_override("a", Quota::per_day(2_000)).unwrap();
    assert_eq!(limiter.quota_of("a"), Quota::per_day(2_000));
    assert_eq!(limiter.quota_of("b"), Quota::per_day(500));
    assert_eq!(limiter.check("a").remaining, 1_099);
    limiter.clear_override("a");
    assert!(!limiter.check("a").is_allowed());
    let enterprise = Quota::per_day(10_000_000);
    assert_eq!(
        limiter.key("a").at(&enterprise).check_n(99).remaining,
        9_999_000
    );
    // Another period: what still counts, counts as if charged when the latest was.
    let month = Quota::per_month(1_500);
    assert_eq!(
        limiter.peek_at(clock.now(), "a", Some(&month), 0).remaining,
        500
    );
    assert_eq!(limiter.key("a").at(&month).check_n(1).remaining, 499);
    clock.advance(DAY);
    assert_eq!(limiter.key("a").at(&month).check_n(0).remaining, 499);
    // And from the month back to a day, which is another.
    let day = Quota::per_day(1_500);
    assert_eq!(
        limiter.peek_at(clock.now(), "a", Some(&day), 0).remaining,
        1_500
    );
    let _ = limiter.key("a").at(&month).check_n(1);
    assert_eq!(limiter.key("a").at(&day).check_n(400).reset_after, DAY);
    // A wait that was told comes true, though nobody is charged meanwhile.
    let weekly = Quota::rolling(1_500, 7 * DAY).expect("a period");
    let mut wait = limiter.key("a").at(&weekly).check_n(1_000).wait_or_max();
    assert!(wait >= 7 * DAY && wait <= 8 * DAY, "{wait:?}");
    clock.advance(wait / 2);
    wait -= wait / 2;
    assert_eq!(
        limiter.key("a").at(&weekly).check_n(1_000).wait_or_max(),
        wait
    );
    clock.advance(wait);
    assert!(limiter.key("a").at(&weekly).check_n(1_000).is_allowed());
}

#[test]
fn a_clock_that_steps_back_grants_nothing() {
    let (limiter, clock) = limiter(Quota::per_day(10));
    let _ = limiter.check_n("a", 10);
    clock.advance(DAY);
    let _ = limiter.check_n("a", 4);
    clock.set(Timestamp::from_secs(1_717_200_000));
    // It stays in the day it has entered.
    let decision = limiter.check_n("a", 7);
    assert_eq!(decision.remaining, 6);
    assert_eq!(decision.wait_or_max(), 2 * DAY);
    assert!(limiter.check_n("a", 6).is_allowed());
    clock.advance(DAY);
    assert!(!limiter.check("a").is_allowed());
    clock.advance(DAY);
    assert!(limiter.check_n("a", 10).is_allowed());
}

#[test]
fn a_key_that_was_dropped_when_idle_does_not_start_in_the_past() {
    let (builder, clock) = bounded(Quota::per_day(10), 1);
    let limiter = builder.build().unwrap();
    let _ = limiter.check_n("a", 10);
    clock.advance(DAY);
    let _ = limiter.check_n("b", 1); // takes the place of "a", which is idle
    limiter.reset("b");
    clock.set(Timestamp::from_secs(1_717_200_000));
    // "a" gets the new day's quota, and the old one's no second time.
    let mut passed = 0;
    while limiter.check("a").is_allowed() {
        passed += 1;
    }
    assert_eq!(passed, 10);
    clock.advance(DAY);
    assert!(!limiter.check("a").is_allowed());
}

#[test]
fn thresholds_are_told_once_a_period() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let (builder, clock) = builder(Quota::per_day(10));
    let limiter = builder
        .on_threshold(&[100, 50, 80], move |event| {
            let key = String::from_utf8_lossy(event.key).into_owned();
            log.lock()
                .unwrap()
                .push((key, event.percent, event.used, event.limit));
        })
        .build()
        .unwrap();
    let take = || std::mem::take(&mut *told.lock().unwrap());
    let _ = limiter.check_n("a", 4);
    assert_eq!(take(), []);
    let receipt = limiter.charge("a", 4).unwrap();
    let said = |percent, used| ("a".to_owned(), percent, used, 10);
    assert_eq!(take(), [said(50, 8), said(80, 8)]);
    // Given back and charged again: it was told already.
    limiter.refund_receipt("a", receipt);
    let _ = limiter.check_n("a", 5);
    let _ = limiter.check_n("b", 1);
    assert_eq!(take(), []);
    // A refused charge reaches nothing.
    let _ = limiter.check_n("a", 2);
    assert_eq!(take(), []);
    let _ = limiter.check_n("a", 1);
    assert_eq!(take(), [said(100, 10)]);
    clock.advance(DAY);
    let _ = limiter.check_n("a", 10);
    assert_eq!(take(), [said(50, 10), said(80, 10), said(100, 10)]);
    // A raised quota has thresholds of its own.
    limiter.set_quota(&Quota::per_day(100));
    let _ = limiter.check_n("a", 45);
    assert_eq!(take(), [("a".to_owned(), 50, 55, 100)]);
}

#[test]
fn a_rolling_threshold_is_told_again_after_it_fell_below() {
    let told = Arc::new(Mutex::new(0));
    let log = Arc::clone(&told);
    let (builder, clock) = builder(Quota::rolling(10, 60 * DAY).expect("a period"));
    let limiter = builder
        .on_threshold(&[80], move |_| *log.lock().unwrap() += 1)
        .build()
        .unwrap();
    let _ = limiter.check_n("a", 5);
    clock.advance(30 * DAY);
    let _ = limiter.check_n("a", 4);
    assert_eq!(*told.lock().unwrap(), 1);
    clock.advance(31 * DAY); // the first five are gone
    let _ = limiter.check_n("a", 3);
    assert_eq!(*told.lock().unwrap(), 1);
    let _ = limiter.check_n("a", 1);
    assert_eq!(*told.lock().unwrap(), 2);
}

#[test]
fn at_the_cap_new_keys_wait_until_others_are_idle() {
    let (few, clock) = bounded(Quota::per_day(10), 100);
    let limiter = few.build().unwrap();
    for key in 0..100u32 {
        assert!(limiter.check(&key.to_le_bytes()).is_allowed());
    }
    let refused = limiter.charge("new", 1).unwrap_err();
    assert!(matches!(
        refused,
        QuotaDenied::TooManyKeys { capacity: 100, .. }
    ));
    assert_eq!(refused.decision().wait_or_max(), DAY);
    assert!(
        limiter.check(&7u32.to_le_bytes()).is_allowed(),
        "those that are there go on"
    );
    clock.advance(DAY);
    assert!(limiter.check("new").is_allowed());
    assert!(limiter.stats().keys <= 100);

    let (few, _) = bounded(Quota::per_day(10), 1);
    let limiter = few.at_cap(WhenFull::AdmitNew).build().unwrap();
    let _ = limiter.check("first");
    for _ in 0..50 {
        assert!(limiter.check("new").is_allowed());
    }
    assert_eq!(limiter.stats().keys, 1);
    limiter.set_override("a", Quota::per_day(1)).unwrap();
    limiter.set_override("a", Quota::per_day(2)).unwrap();
    assert!(limiter.set_override("b", Quota::per_day(1)).is_err());
}

#[test]
fn memory_stays_bounded_while_keys_come_and_go() {
    let (few, clock) = bounded(Quota::rolling(10, DAY).expect("a period"), 1_000);
    let limiter = few.build().unwrap();
    for key in 0..50_000u32 {
        clock.advance(DAY / 500);
        assert!(limiter.check(&key.to_le_bytes()).is_allowed(), "{key}");
        assert!(limiter.stats().keys <= 1_000);
    }
}

#[test]
fn threads_together_get_the_quota_and_no_more() {
    let (limiter, _) = limiter(Quota::per_day(10_000));
    let passed: Vec<u64> = thread::scope(|scope| {
        let spawn = |number: u64| {
            let limiter = &limiter;
            scope.spawn(move || {
                let mut passed = 0;
                for turn in 0..20_000 {
                    match limiter.charge("shared", 1 + (turn + number) % 3) {
                        Ok(receipt) if turn % 5 == 0 => {
                            limiter.refund_receipt("shared", receipt);
                        }
                        Ok(_) => passed += 1 + (turn + number) % 3,
                        Err(_) => {}
                    }
                }
                passed
            })
        };
        let threads: Vec<_> = (0..4).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let left = limiter.peek("shared").remaining;
    assert_eq!(passed.iter().sum::<u64>(), 10_000 - left);
    assert!(left < 3, "{left}");
}

#[test]
fn what_a_quota_cannot_do_at_its_cap_is_refused_when_it_is_built() {
    for (at_cap, name) in [
        (WhenFull::SharedBucket, "SharedBucket"),
        (WhenFull::EvictNearestIdle, "EvictNearestIdle"),
    ] {
        let text = format!(
            "a QuotaLimiter can't treat new keys at its cap as WhenFull::{name} says; \
             use DenyNew or AdmitNew"
        );
        let builder = || builder(Quota::per_day(10)).0.at_cap(at_cap);
        assert_eq!(builder().build().unwrap_err().to_string(), text);
        let opened = builder().open("never-made").unwrap_err();
        assert!(matches!(opened, FileError::Limit(_)));
        assert_eq!(opened.to_string(), text);
    }
}

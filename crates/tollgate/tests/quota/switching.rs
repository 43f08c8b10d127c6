//! A key whose quota changes to other periods and back: spent tokens stay spent until the end of their own period,
//! across restarts too.

use std::fs;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::clock::Manual;
use tollgate::{Outcome, Quota, QuotaLimiter, Timestamp};

use crate::scratch::Scratch;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3_600);
/// 1 June 2024.
const JUNE: Timestamp = Timestamp::from_secs(1_717_200_000);

fn limiter() -> (QuotaLimiter<Manual>, Manual) {
    let clock = Manual::starting_at(JUNE);
    let builder = QuotaLimiter::builder(Quota::per_day(1), 1_000_000);
    (
        builder
            .clock(clock.clone())
            .build()
            .expect("what it can do"),
        clock,
    )
}

#[test]
fn a_tenant_that_alternates_between_a_month_and_a_day_gets_each_once() {
    let (limiter, clock) = limiter();
    let (month, day) = (Quota::per_month(1_000), Quota::per_day(50));
    let (mut by_month, mut by_day) = (0, 0);
    for today in 0..30 {
        let mut spent_today = 0;
        for _ in 0..1_000 {
            let passed = [&month, &day].map(|quota| {
                let passed = limiter.key("tenant").at(quota).check_n(1).is_allowed();
                spent_today += u64::from(passed);
                // What passes by the day is among the first fifty of it.
                assert!(!passed || quota == &month || spent_today <= 50, "{today}");
                u64::from(passed)
            });
            by_month += passed[0];
            by_day += passed[1];
        }
        clock.advance(DAY);
    }
    // The first day has all of the month, half of the first fifty by the day; each other one fifty.
    assert_eq!((by_month, by_day), (975, 25 + 29 * 50));
    assert!(
        limiter.key("tenant").at(&month).check_n(1_000).is_allowed(),
        "July"
    );
}

#[test]
fn a_month_that_was_used_up_stays_so_whatever_comes_between() {
    let (limiter, clock) = limiter();
    let (month, hour) = (Quota::per_month(100), Quota::per_hour(100));
    assert!(limiter.key("tenant").at(&month).check_n(100).is_allowed());
    let mut by_hour = 0;
    for _ in 0..10 {
        while limiter.key("tenant").at(&hour).check_n(1).is_allowed() {
            by_hour += 1;
        }
        clock.advance(HOUR);
        let refused = limiter.key("tenant").at(&month).check_n(1);
        assert!(!refused.is_allowed());
    }
    // All of the first hundred may have been of the first hour.
    assert_eq!(by_hour, 9 * 100);
    let refused = limiter.key("tenant").at(&month).check_n(1);
    assert_eq!(refused.wait_or_max(), 30 * DAY - 10 * HOUR);
}

#[test]
fn a_receipt_gives_back_under_every_quota() {
    let (limiter, clock) = limiter();
    let (month, day) = (Quota::per_month(100), Quota::per_day(50));
    assert!(limiter.key("a").at(&day).check_n(1).is_allowed());
    let receipt = limiter.charge_at(JUNE, "a", Some(&month), 9).unwrap();
    assert!(limiter.key("a").at(&day).check_n(2).is_allowed());
    let left = |quota| limiter.peek_at(JUNE, "a", Some(quota), 0).remaining;
    assert_eq!((left(&month), left(&day)), (88, 38));
    assert_eq!(limiter.refund_receipt("a", receipt), 9);
    assert_eq!((left(&month), left(&day)), (97, 47));
    limiter.refund("a", 1);
    assert_eq!((left(&month), left(&day)), (98, 48));
    // Where its period is over, nothing is.
    let receipt = limiter.charge_at(JUNE, "a", Some(&month), 9).unwrap();
    clock.advance(DAY);
    assert!(limiter.key("a").at(&day).check_n(5).is_allowed());
    assert_eq!(limiter.refund_receipt("a", receipt), 9);
    let now = JUNE + DAY;
    let left = |quota| limiter.peek_at(now, "a", Some(quota), 0).remaining;
    assert_eq!((left(&month), left(&day)), (93, 45));
}

#[test]
fn more_periods_than_are_kept_apart_are_counted_on_the_safe_side() {
    let (limiter, clock) = limiter();
    let quotas = [
        Quota::per_month(100),
        Quota::per_week(1_000),
        Quota::per_day(1_000),
        Quota::rolling(1_000, 3 * DAY).expect("a period"),
        Quota::per_hour(1_000),
        Quota::rolling(1_000, HOUR).expect("a period"),
    ];
    assert!(limiter.key("a").at(&quotas[0]).check_n(100).is_allowed());
    for turn in 0..60 {
        let quota = &quotas[1 + turn % 5];
        let _ = limiter.key("a").at(quota).check_n(1);
        clock.advance(HOUR);
        assert!(
            !limiter.key("a").at(&quotas[0]).check_n(1).is_allowed(),
            "{turn}"
        );
    }
}

/// One step of a history: time passes, the store may be reopened, and a quota is charged a number of times.
#[derive(Clone, Copy, Debug)]
struct QuotaVisit {
    gap: Duration,
    reopened: bool,
    quota: usize,
    asks: u64,
    cost: u64,
}

/// What passed: when, how much, and under which quota.
#[derive(Clone, Copy, Debug)]
struct Passed {
    at: Timestamp,
    cost: u64,
    quota: usize,
}

/// Whether what passed at `then` counts at `now`, in whole.
fn counts(quota: &Quota, then: Timestamp, now: Timestamp) -> bool {
    match quota.period_at(now) {
        Some((start, _)) => then >= start,
        None => now - then < quota.rolling_period().expect("a rolling one"),
    }
}

fn holds(
    quotas: &[Quota],
    steps: &[QuotaVisit],
    scratch: Option<&Scratch>,
) -> Result<(), TestCaseError> {
    let open = |now| {
        let builder = QuotaLimiter::builder(Quota::per_day(1), 1_000_000)
            .clock(Manual::starting_at(now))
            .flush_every(DAY);
        match scratch {
            Some(scratch) => builder.open(scratch.file()).expect("a store that opens"),
            None => builder.build().expect("a policy that it has"),
        }
    };
    let mut now = JUNE;
    let mut limiter = open(now);
    let mut passed: Vec<Passed> = Vec::new();
    // When each was charged first.
    let mut first = vec![None; quotas.len()];
    for step in steps {
        now += step.gap;
        if let Some(scratch) = scratch.filter(|_| step.reopened) {
            limiter.flush().expect("a store that is saved");
            let killed = fs::read(scratch.file()).expect("a store");
            drop(limiter);
            if step.asks % 2 == 0 {
                // As a kill leaves it, with its batches.
                fs::write(scratch.file(), killed).expect("a store");
            }
            limiter = open(now);
        }
        let left = |quota: &Quota| passed.iter().any(|one| counts(quota, one.at, now));
        let mut charged = quotas
            .iter()
            .zip(&first)
            .filter(|(_, first)| first.is_some());
        if !charged.any(|(quota, _)| left(quota)) {
            first.fill(None);
        }
        let number = step.quota % quotas.len();
        let quota = &quotas[number];
        for _ in 0..step.asks {
            let charged = limiter.charge_at(now, "key", Some(quota), step.cost);
            match charged {
                Ok(receipt) => {
                    passed.push(Passed {
                        at: now,
                        cost: step.cost,
                        quota: number,
                    });
                    let first = *first[number].get_or_insert(now);
                    let known = |one: &&Passed| {
                        let lasted = counts(&quotas[one.quota], one.at, first);
                        counts(quota, one.at, now) && (one.at >= first || lasted)
                    };
                    let total: u64 = passed.iter().filter(known).map(|one| one.cost).sum();
                    prop_assert!(
                        total <= quota.count(),
                        "{total} of {quota} at {now}: {passed:?}"
                    );
                    let left = receipt.decision().remaining;
                    prop_assert!(
                        left <= quota.count() - total,
                        "{left} left after {total} of {quota} at {now}, first at {first}: {passed:?}"
                    );
                }
                Err(refused) if refused.decision().outcome == Outcome::Denied => {
                    let wait = refused.decision().wait_or_max();
                    let look = |at| limiter.peek_at(at, "key", Some(quota), step.cost);
                    prop_assert!(look(now + wait).is_allowed(), "{wait:?} at {now}");
                    let early = now + (wait - Duration::from_nanos(1));
                    prop_assert!(!look(early).is_allowed(), "{wait:?} at {now}");
                    break;
                }
                Err(_) => break,
            }
        }
    }
    Ok(())
}

fn quota() -> impl Strategy<Value = Quota> {
    let zoned = |quota: Quota| quota.in_zone("Europe/Zurich").expect("a zone");
    let kinds: Vec<fn(u64) -> Quota> = vec![
        Quota::per_hour,
        Quota::per_day,
        Quota::per_week,
        Quota::per_month,
        |count| Quota::rolling(count, HOUR).expect("a period"),
        |count| Quota::rolling(count, DAY).expect("a period"),
        |count| Quota::rolling(count, 7 * DAY).expect("a period"),
    ];
    let plain = (prop::sample::select(kinds), 1..60u64).prop_map(|(kind, count)| kind(count));
    prop_oneof![9 => plain, 1 => (1..60u64).prop_map(move |count| zoned(Quota::per_day(count)))]
}

fn steps() -> impl Strategy<Value = Vec<QuotaVisit>> {
    let gap = prop_oneof![
        3 => Just(Duration::ZERO),
        3 => (0..3_600u64).prop_map(Duration::from_secs),
        3 => (0..48 * 3_600u64).prop_map(Duration::from_secs),
        1 => (0..40u32).prop_map(|days| days * DAY),
    ];
    let asks = prop_oneof![3 => 1..5u64, 1 => 1..60u64];
    let step = (gap, prop::bool::weighted(0.1), 0..7usize, asks, 1..4u64);
    let step = step.prop_map(|(gap, reopened, quota, asks, cost)| QuotaVisit {
        gap,
        reopened,
        quota,
        asks,
        cost,
    });
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(crate::config(600))]

    #[test]
    fn no_period_of_any_quota_gets_more_under_it(
        quotas in prop::collection::vec(quota(), 2..7),
        steps in steps(),
    ) {
        holds(&quotas, &steps, None)?;
    }
}

proptest! {
    #![proptest_config(crate::config(60))]

    #[test]
    fn nor_across_restarts(
        quotas in prop::collection::vec(quota(), 2..7),
        steps in steps(),
    ) {
        let scratch = Scratch::new("switching");
        holds(&quotas, &steps, Some(&scratch))?;
    }
}

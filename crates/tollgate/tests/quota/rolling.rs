//! Rolling periods: never above the quota in any span, and not a 60th of the period too strict.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Quota, QuotaLimiter, Timestamp};

proptest! {
    #![proptest_config(crate::config(600))]

    #[test]
    fn no_span_gets_more_and_no_refusal_is_early(
        period in prop_oneof![1u64..500, 10_000u64..1_000_000],
        count in 1u64..50,
        steps in prop::collection::vec((0u64..1_000, 0u64..20, 0u8..10), 1..150),
    ) {
        let quota = Quota::rolling(count, Duration::from_nanos(period)).expect("a period");
        let limiter = QuotaLimiter::builder(quota, 1_000_000).clock(Manual::new()).build().unwrap();
        let part = period.div_ceil(60);
        // What was granted, at the times that the key has seen: they never go back.
        let mut granted: Vec<(u64, u64)> = Vec::new();
        let (mut now, mut seen) = (5_000_000u64, 0);
        let sum = |granted: &[(u64, u64)], after: u64| -> u64 {
            granted.iter().filter(|(at, _)| *at > after).map(|(_, cost)| cost).sum()
        };
        for (step, cost, back) in steps {
            let step = step * period / 900;
            now = if back == 0 { now - step } else { now + step };
            let at = Timestamp::from_nanos(now);
            let decision = limiter.check_at(at, "key", cost);
            let effective = seen.max(now);
            if decision.is_allowed() && cost > 0 {
                seen = effective;
                granted.push((effective, cost));
                prop_assert!(sum(&granted, effective - period) <= count);
            } else if cost > count {
                prop_assert_eq!(decision.wait_or_max(), Duration::MAX);
            } else if cost > 0 {
                prop_assert!(sum(&granted, effective - period - part) + cost > count);
                let retry = at + decision.wait_or_max();
                let before = Timestamp::from_nanos(retry.as_nanos() - 1);
                prop_assert!(limiter.peek_at(retry, "key", None, cost).is_allowed());
                prop_assert!(!limiter.peek_at(before, "key", None, cost).is_allowed());
            }
            // Remaining is what passes, and at the reset nothing is left.
            let left = limiter.peek_at(at, "key", None, 0);
            prop_assert!(limiter.peek_at(at, "key", None, left.remaining).is_allowed());
            prop_assert!(!limiter.peek_at(at, "key", None, left.remaining + 1).is_allowed());
            let reset = limiter.peek_at(at + left.reset_after, "key", None, 0);
            prop_assert_eq!((reset.remaining, reset.reset_after), (count, Duration::ZERO));
        }
    }

    #[test]
    fn cost_a_and_b_is_cost_a_then_b(
        period in 1u64..100_000, count in 1u64..100, first in 0u64..60, a in 0u64..60, b in 0u64..60,
        now in 0u64..1_000_000,
    ) {
        let quota = Quota::rolling(count, Duration::from_nanos(period)).expect("a period");
        let both: Vec<_> = [vec![a + b], vec![a, b]].into_iter().map(|costs| {
            let limiter = QuotaLimiter::builder(quota.clone(), 1_000_000).clock(Manual::new()).build().unwrap();
            let at = Timestamp::from_nanos(now);
            let _ = limiter.check_at(at, "key", first);
            let passed = costs.iter().all(|cost| limiter.check_at(at, "key", *cost).is_allowed());
            (passed, limiter.peek_at(at, "key", None, 0))
        }).collect();
        if both[0].0 {
            prop_assert_eq!(both[0], both[1]);
        }
    }
}

#[test]
fn thirty_days_come_back_within_twelve_hours_more() {
    let day = Duration::from_secs(86_400);
    let clock = Manual::starting_at(Timestamp::from_secs(1_700_000_000));
    let limiter = QuotaLimiter::builder(
        Quota::rolling(10_000_000, 30 * day).expect("a period"),
        1_000_000,
    )
    .clock(clock.clone())
    .build()
    .unwrap();
    assert!(limiter.check_n("key", 10_000_000).is_allowed());
    let wait = limiter.check("key").wait_or_max();
    assert!(wait > 30 * day && wait <= 30 * day + day / 2, "{wait:?}");
    clock.advance(30 * day - Duration::from_nanos(1));
    assert!(!limiter.check("key").is_allowed());
    clock.advance(day / 2);
    assert!(limiter.check_n("key", 10_000_000).is_allowed());
}

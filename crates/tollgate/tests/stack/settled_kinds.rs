//! What a settled, dropped or expired hold leaves charged of permits, plain costs and quotas.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, ConcurrencyLimiter, Limit, Limiter, Rate,
    concurrency::{CompletedCall, PermitObserver, PermitOutcome},
    stack::ReservationTerms,
};

use super::world::ALGORITHMS;

#[derive(Default)]
struct Endings(Mutex<Vec<PermitOutcome>>);

impl PermitObserver for Endings {
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        self.0.lock().expect("no panic").push(ended.ending);
        None
    }
}

#[test]
fn slots_are_held_until_the_hold_ends() {
    let (clock, told, stack) = (
        Manual::new(),
        Arc::new(Endings::default()),
        CompositeLimiter::new(),
    );
    let slots = ConcurrencyLimiter::builder(2)
        .observer(Arc::clone(&told))
        .clock(clock.clone())
        .build();
    let slots = Arc::new(slots);
    let limiter = Limiter::with_clock(Rate::per_second(10), clock.clone());
    let levels = [
        Limit::estimated("all", &limiter, 2),
        Limit::new("slots", &slots),
    ];
    let hold = || stack.hold(&levels, Duration::from_secs(1)).unwrap();
    let (one, two) = (hold(), hold());
    let refusal = stack
        .hold(&levels, Duration::from_secs(1))
        .expect_err("refused");
    assert_eq!(refusal.name, "slots");
    one.settle(1);
    assert_eq!(slots.peek().in_use, 1);
    two.cancel();
    assert_eq!(slots.peek().in_use, 0);
    // It came to nothing, so it tells nothing of the capacity.
    assert_eq!(*told.0.lock().expect("no panic"), [PermitOutcome::Success]);
    // Nor does one whose terms say that it did when it is dropped.
    let terms = ReservationTerms::for_at_most(Duration::from_secs(1)).refund_on_drop();
    drop(stack.hold(&levels, terms));
    assert_eq!(slots.peek().in_use, 0);
    assert_eq!(*told.0.lock().expect("no panic"), [PermitOutcome::Success]);
    // Over, but the request may still run: its slot isn't free before it ends.
    let late = hold();
    clock.advance(Duration::from_secs(5));
    assert_eq!(slots.peek().in_use, 1);
    drop(late);
    assert_eq!(slots.peek().in_use, 0);
    let late = hold();
    clock.advance(Duration::from_secs(5));
    late.settle(0);
    assert_eq!(
        *told.0.lock().expect("no panic"),
        [
            PermitOutcome::Success,
            PermitOutcome::Ignored,
            PermitOutcome::Success
        ]
    );
}

#[test]
fn a_plain_cost_beside_an_estimate_is_kept() {
    for algorithm in ALGORITHMS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let limiter = |algorithm| {
            let builder = Limiter::builder(Rate::per_hour(10)).algorithm(algorithm);
            builder
                .clock(clock.clone())
                .build()
                .expect("a rate that fits")
        };
        let (requests, tokens) = (limiter(algorithm), limiter(Algorithm::TokenBucket));
        let levels = [
            Limit::new("requests", &requests).cost(2),
            Limit::estimated("tokens", &tokens, 5),
        ];
        let hold = || stack.hold(&levels, Duration::from_secs(9)).unwrap();
        hold().settle(1);
        let left = || (requests.peek().remaining, tokens.peek().remaining);
        assert_eq!(left(), (8, 9), "{algorithm:?}");
        hold().settle(0);
        assert_eq!(left(), (6, 9), "{algorithm:?}");
        // It never happened.
        hold().cancel();
        assert_eq!(left(), (6, 9), "{algorithm:?}");
    }
}

#[cfg(feature = "quota")]
#[test]
fn a_quota_gives_back_to_its_period() {
    use tollgate::{Quota, QuotaLimiter};

    let (clock, stack) = (Manual::new(), CompositeLimiter::new());
    let quota = QuotaLimiter::builder(Quota::per_day(10), 10)
        .clock(clock.clone())
        .build()
        .unwrap();
    let key = quota.key("acme");
    let day = Duration::from_secs(86_400);
    let hold = |cost| {
        let levels = [Limit::estimated("daily", &key, cost)];
        stack.hold(&levels, 2 * day).unwrap()
    };
    let left = || quota.peek("acme").remaining;
    hold(6).settle(2);
    assert_eq!(left(), 8);
    hold(3).cancel();
    assert_eq!(left(), 8);
    // No debt: what is left is taken.
    hold(3).settle(20);
    assert_eq!(left(), 0);
    clock.advance(day);
    let (late, over) = (hold(4), hold(1));
    clock.advance(day);
    assert!(quota.check_n("acme", 3).is_allowed());
    late.settle(0);
    assert_eq!(left(), 7);
    clock.advance(day);
    drop(over);
    assert_eq!(left(), 10);
}

//! The three verbs on every algorithm, as timelines on a manual clock.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Limiter, Outcome, Rate, RateDenied, Timestamp, core::WindowAlignment,
    limiter::Switch,
};

const ALL: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

fn limiter(algorithm: Algorithm, rate: Rate) -> (Limiter<Manual>, Manual) {
    let clock = Manual::new();
    let limiter = Limiter::builder(rate)
        .algorithm(algorithm)
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    (limiter, clock)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn the_burst_passes_back_to_back_and_no_more() {
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(7));
        assert_eq!(
            (0..20).filter(|_| limiter.allow()).count(),
            7,
            "{algorithm:?}"
        );
        assert_eq!(limiter.peek().remaining, 0);
    }
}

#[test]
fn a_cost_above_the_burst_is_never() {
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(7));
        let decision = limiter.check_n(8);
        assert_eq!(decision.outcome, Outcome::Never, "{algorithm:?}");
        assert_eq!(decision.wait_or_max(), Duration::MAX);
        assert_eq!(decision.remaining, 7);
        assert!(matches!(
            limiter.reserve(8),
            Err(RateDenied::ExceedsBurst(_))
        ));
        let waited = limiter.acquire_n(8).wait_blocking();
        assert!(matches!(waited, Err(RateDenied::ExceedsBurst(_))));
    }
}

#[test]
fn zero_denies_all_and_unlimited_admits_any_cost() {
    for algorithm in ALL {
        let (zero, _clock) = limiter(algorithm, Rate::zero());
        assert_eq!(zero.check().outcome, Outcome::Never, "{algorithm:?}");
        assert!(zero.peek().is_allowed());
        assert_eq!(zero.peek().remaining, 0);

        let (unlimited, _clock) = limiter(algorithm, Rate::unlimited());
        for _ in 0..3 {
            let decision = unlimited.check_n(u64::MAX);
            assert!(decision.is_allowed(), "{algorithm:?}");
            assert_eq!(decision.remaining, u64::MAX);
            assert_eq!(decision.limit, u64::MAX);
        }
        assert_eq!(unlimited.reserve(u64::MAX).unwrap().delay(), Duration::ZERO);
    }
}

#[test]
fn a_token_bucket_of_rate_zero_spends_what_is_stored_once() {
    let (limiter, clock) = limiter(Algorithm::TokenBucket, Rate::zero().burst(3));
    assert!(limiter.allow_n(2));
    assert!(limiter.allow());
    clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(limiter.check().outcome, Outcome::Never);
    assert!(matches!(
        limiter.reserve(1),
        Err(RateDenied::ExceedsBurst(_))
    ));
}

#[test]
fn starting_empty_gives_nothing_at_first() {
    for algorithm in ALL {
        let clock = Manual::starting_at(Timestamp::from_secs(90));
        let limiter = Limiter::builder(Rate::per_second(4))
            .algorithm(algorithm)
            .start_empty()
            .clock(clock.clone())
            .build()
            .unwrap();
        let decision = limiter.check();
        assert_eq!(decision.outcome, Outcome::Denied, "{algorithm:?}");
        clock.advance(decision.wait_or_max());
        assert!(limiter.allow(), "{algorithm:?}");
    }
    let striped = Limiter::builder(Rate::per_second(4))
        .striped()
        .start_empty()
        .clock(Manual::new())
        .build()
        .unwrap();
    assert!(!striped.allow());
}

#[test]
fn reservations_act_in_order_and_no_check_slips_in_between() {
    for algorithm in ALL {
        let (limiter, clock) = limiter(algorithm, Rate::per_second(2));
        assert!(limiter.allow_n(2));
        let slots: Vec<_> = (0..2).map(|_| limiter.reserve(1).unwrap()).collect();
        let mut last = Timestamp::ZERO;
        for slot in &slots {
            assert!(slot.ready_at() > Timestamp::ZERO, "{algorithm:?}");
            assert!(slot.ready_at() >= last, "{algorithm:?}");
            last = slot.ready_at();
        }
        // Until the last slot acts, a check that would overtake it is refused, and told when.
        let decision = limiter.check();
        assert_eq!(decision.outcome, Outcome::Denied, "{algorithm:?}");
        assert!(decision.wait_or_max() >= last - Timestamp::ZERO);
        for slot in slots {
            clock.set(slot.ready_at());
            assert_eq!(slot.wait_blocking(), Duration::ZERO);
        }
    }
}

#[test]
fn cancelling_in_reverse_order_restores_everything() {
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(5));
        assert!(limiter.allow_n(3));
        let before = limiter.peek();
        let slots: Vec<_> = [2, 1, 2].map(|n| limiter.reserve(n).unwrap()).into();
        for slot in slots.into_iter().rev() {
            slot.cancel();
        }
        assert_eq!(limiter.peek(), before, "{algorithm:?}");
        assert!(limiter.allow_n(2), "{algorithm:?}");
    }
}

#[test]
fn dropping_gives_back_only_while_the_time_is_ahead() {
    for algorithm in ALL {
        let (limiter, clock) = limiter(algorithm, Rate::per_second(1));
        // Its time has come: looking at the delay and dropping the handle is no bypass.
        assert!(limiter.reserve(1).unwrap().delay().is_zero());
        assert!(!limiter.allow(), "{algorithm:?}");
        // Its time is ahead: all of it comes back.
        let before = limiter.peek();
        drop(limiter.reserve(1).unwrap());
        assert_eq!(limiter.peek(), before, "{algorithm:?}");
        let slot = limiter.reserve(1).unwrap();
        let act = slot.ready_at();
        clock.set(act);
        drop(slot);
        assert!(!limiter.allow(), "{algorithm:?}");
    }
}

#[test]
fn a_charge_that_drained_long_ago_gives_nothing_back() {
    // One a second, burst 10: 5 at 0 s, 1 at 20 s, then the 5 are cancelled: 9 pass, not 14.
    let (limiter, clock) = limiter(
        Algorithm::Gcra,
        Rate::every(Duration::from_secs(1)).burst(10),
    );
    let old = limiter.reserve(5).unwrap();
    clock.set(Timestamp::from_secs(20));
    assert!(limiter.allow());
    old.cancel();
    assert_eq!((0..20).filter(|_| limiter.allow()).count(), 9);
}

#[test]
fn a_token_bucket_gives_back_the_part_that_nothing_was_promised_on() {
    let (limiter, _clock) = limiter(Algorithm::TokenBucket, Rate::per_second(1).burst(10));
    assert!(limiter.allow_n(10));
    let big = limiter.reserve(10).unwrap();
    let small = limiter.reserve(3).unwrap();
    // The 3 were promised on top, so 7 of the 10 come back.
    big.cancel();
    assert_eq!(limiter.tokens(), -6.0);
    assert_eq!(small.delay(), Duration::from_secs(13));
}

#[test]
fn a_log_books_at_most_one_window_ahead() {
    let (limiter, _clock) = limiter(Algorithm::SlidingLog, Rate::per_second(2));
    let mut slots = Vec::new();
    let refused = loop {
        match limiter.reserve(1) {
            Ok(slot) => slots.push(slot),
            Err(refused) => break refused,
        }
    };
    assert_eq!(slots.len(), 4);
    assert!(matches!(refused, RateDenied::TooFarAhead(_)));
    assert_eq!(
        refused.to_string(),
        "rate limit: the wait of 2s is longer than a reservation may be made ahead; use `acquire`, which waits as long as it takes"
    );
}

#[test]
fn live_changes_keep_what_was_spent() {
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(10));
        assert!(limiter.allow_n(4));
        limiter.set_rate(Rate::per_second(8)).unwrap();
        let expect = match algorithm {
            // A token bucket keeps the tokens that are left, the others what was taken.
            Algorithm::TokenBucket => 6,
            _ => 4,
        };
        assert_eq!(limiter.peek().remaining, expect, "{algorithm:?}");
        limiter.set_rate(Rate::unlimited()).unwrap();
        assert!(limiter.allow_n(1_000_000));
        limiter.set_rate(Rate::zero()).unwrap();
        assert!(!limiter.allow(), "{algorithm:?}");
        assert_eq!(limiter.rate(), Rate::zero());
    }
}

#[test]
fn a_raised_burst_is_there_at_once_and_time_need_not_move() {
    let (limiter, _clock) = limiter(Algorithm::Gcra, Rate::per_second(10).burst(5));
    limiter.set_burst(8).unwrap();
    assert_eq!(limiter.peek().remaining, 8);
    assert!(limiter.allow_n(8));
    limiter.set_burst(2).unwrap();
    assert!(!limiter.allow());
    assert_eq!(limiter.rate(), Rate::per_second(10).burst(2));
}

#[test]
fn a_rate_that_cannot_be_represented_changes_nothing() {
    let (limiter, _clock) = limiter(Algorithm::Gcra, Rate::per_second(10));
    let error = limiter.set_rate(Rate::per_day(1).burst(1_000)).unwrap_err();
    assert!(error.to_string().contains("at most 730"), "{error}");
    assert_eq!(limiter.rate(), Rate::per_second(10));
    let (window, _clock) = self::limiter(ALL[3], Rate::per_second(10));
    assert!(window.set_burst(20).is_err());
    assert_eq!(window.rate(), Rate::per_second(10));
}

#[test]
fn bypass_lets_everything_pass_and_charges_nothing() {
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(3));
        assert!(limiter.allow());
        limiter.set_switch(Switch::Bypass);
        assert_eq!(limiter.switch(), Switch::Bypass);
        assert!((0..100).all(|_| limiter.allow()), "{algorithm:?}");
        assert!(limiter.reserve(1_000).unwrap().delay().is_zero());
        assert_eq!(limiter.check_n(9).remaining, u64::MAX);
        limiter.set_switch(Switch::Enforce);
        assert_eq!(limiter.peek().remaining, 2, "{algorithm:?}");
    }
}

#[test]
fn ten_a_second_burst_twenty_lets_forty_through_by_two_seconds() {
    let (limiter, clock) = limiter(Algorithm::Gcra, Rate::per_second(10).burst(20));
    assert!((0..10).all(|_| limiter.allow()));
    clock.set(Timestamp::from_secs(1));
    let acts: Vec<_> = (0..30)
        .map(|_| {
            let slot = limiter.reserve(1).unwrap();
            let act = slot.ready_at();
            slot.keep();
            act
        })
        .collect();
    assert_eq!(
        acts.iter()
            .filter(|at| **at <= Timestamp::from_secs(1))
            .count(),
        20
    );
    assert_eq!(acts[29], Timestamp::from_secs(2));
}

#[test]
fn a_clock_that_steps_back_grants_nothing() {
    for algorithm in ALL {
        let (limiter, clock) = limiter(algorithm, Rate::per_second(3));
        clock.set(Timestamp::from_secs(10));
        assert!(limiter.allow_n(3));
        clock.set(Timestamp::from_secs(2));
        assert!(!limiter.allow(), "{algorithm:?}");
        clock.set(Timestamp::from_secs(10));
        assert!(!limiter.allow(), "{algorithm:?}");
        // Two windows, because a sliding counter still weighs the one before in full after one.
        clock.advance(millis(2_000));
        assert!(limiter.allow(), "{algorithm:?}");
    }
}

#[test]
fn a_striped_limit_admits_its_burst_and_then_its_rate() {
    let clock = Manual::new();
    let limiter = Limiter::builder(Rate::per_second(1_000_000_000).burst(10_000))
        .stripes(4)
        .clock(clock.clone())
        .build()
        .unwrap();
    let passed = (0..20_000).filter(|_| limiter.allow()).count();
    assert!((9_000..=10_000).contains(&passed), "{passed}");
    assert!(!limiter.allow());
    clock.advance(Duration::from_micros(5));
    let later = (0..20_000).filter(|_| limiter.allow()).count();
    assert!((4_000..=5_000).contains(&later), "{later}");
    assert_eq!(limiter.check_n(10_001).outcome, Outcome::Never);
}

#[test]
fn a_time_before_the_limiter_was_made_waits_from_its_making() {
    for algorithm in ALL {
        let clock = Manual::starting_at(Timestamp::from_secs(100));
        let limiter = Limiter::builder(Rate::per_second(1))
            .algorithm(algorithm)
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        assert!(limiter.allow());
        clock.set(Timestamp::from_secs(50));
        let retry_after = limiter.check().wait_or_max();
        assert!(retry_after >= Duration::from_secs(51), "{algorithm:?}");
        let booked = limiter.reserve(1).map(|slot| slot.delay());
        assert_eq!(booked.unwrap_or(retry_after), retry_after, "{algorithm:?}");
        clock.advance(retry_after);
        assert!(limiter.allow(), "{algorithm:?}");
    }
}

#[test]
fn tokens_are_read_with_debt_and_fractions() {
    let (bucket, clock) = limiter(Algorithm::LeakyBucket, Rate::per_second(10).burst(5));
    assert!(bucket.allow_n(5));
    let slot = bucket.reserve(2).unwrap();
    assert_eq!(bucket.tokens(), -2.0);
    clock.advance(millis(250));
    assert_eq!(bucket.tokens(), 0.5);
    drop(slot);
    for algorithm in ALL {
        let (limiter, _clock) = limiter(algorithm, Rate::per_second(3));
        assert_eq!(limiter.tokens(), 3.0, "{algorithm:?}");
        limiter.set_switch(Switch::Bypass);
        assert_eq!(limiter.tokens(), f64::INFINITY, "{algorithm:?}");
    }
}

#[test]
fn a_rate_of_zero_for_a_while_forgets_nothing() {
    for algorithm in ALL {
        let (limiter, clock) = limiter(algorithm, Rate::per_minute(10));
        assert!(limiter.allow_n(10));
        limiter.set_rate(Rate::zero()).unwrap();
        clock.advance(millis(3_000));
        limiter.set_rate(Rate::per_minute(10)).unwrap();
        assert_eq!(limiter.peek().remaining, 0, "{algorithm:?}");
    }
}

#[test]
fn a_changed_burst_keeps_the_rate_that_another_thread_sets() {
    let (limiter, _clock) = limiter(Algorithm::Gcra, Rate::per_second(10));
    for _ in 0..200 {
        limiter.set_rate(Rate::per_second(10)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| limiter.set_rate(Rate::zero()).unwrap());
            scope.spawn(|| limiter.set_burst(7).unwrap());
        });
        assert!(limiter.rate().is_zero());
    }
}

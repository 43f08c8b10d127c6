//! Retries as tables of time, a storm of them, and throttling by what a backend accepts.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Clock, Rate, Timestamp};
use tollgate_adaptive::protect::{
    Backoff, ClientThrottle, Retry, RetryAdvice, RetryBudget, StopReason,
};

use crate::look;

/// Tries against errors, with each wait at its longest possible; returns when the tries were and why it stopped.
fn check(retry: &Retry<Manual>, clock: &Manual, advice: RetryAdvice) -> (Vec<u64>, StopReason) {
    let tries = Cell::new(Vec::new());
    let began = clock.now();
    let call = retry.call(
        || {
            let mut seen = tries.take();
            seen.push((clock.now() - began).as_millis().try_into().unwrap());
            tries.set(seen);
            async { Err::<(), _>("no") }
        },
        |_| advice,
    );
    let mut call = pin!(call);
    loop {
        if let Some(result) = look(call.as_mut()) {
            return (tries.take(), result.unwrap_err().why);
        }
        clock.advance(Duration::from_millis(1));
    }
}

#[test]
fn only_errors_that_are_named_are_tried_again() {
    let clock = Manual::new();
    let retry = Retry::with_clock(Backoff::new(), clock.clone());
    assert_eq!(
        check(&retry, &clock, RetryAdvice::Stop),
        (vec![0], StopReason::Advised)
    );
    let (tries, why) = check(&retry, &clock, RetryAdvice::Retry);
    assert_eq!((tries.len(), why), (3, StopReason::Tries));
    // Full jitter: anything up to a second, and then up to two.
    assert!(
        tries[1] <= 1_000 && tries[2] - tries[1] <= 2_000,
        "{tries:?}"
    );
}

#[test]
fn waits_are_anywhere_between_nothing_and_their_longest() {
    let clock = Manual::new();
    let retry = Retry::with_clock(Backoff::new().tries(2), clock.clone());
    let waits: Vec<u64> = (0..300)
        .map(|_| check(&retry, &clock, RetryAdvice::Retry).0[1])
        .collect();
    assert!(waits.iter().any(|wait| *wait < 50) && waits.iter().any(|wait| *wait > 950));
    let mean = waits.iter().sum::<u64>() / 300;
    assert!((450..550).contains(&mean), "{mean}");
}

#[test]
fn what_the_server_says_is_kept_to() {
    let clock = Manual::new();
    let retry = Retry::with_clock(Backoff::new(), clock.clone());
    let said = RetryAdvice::RetryAfter(Duration::from_secs(5));
    let (tries, _) = check(&retry, &clock, said);
    assert!(
        tries[1] >= 5_000 && tries[2] - tries[1] >= 5_000,
        "{tries:?}"
    );
}

#[test]
fn no_try_begins_after_the_deadline() {
    let clock = Manual::new();
    let retry = Retry::with_clock(Backoff::new(), clock.clone()).within(Duration::from_secs(4));
    let said = RetryAdvice::RetryAfter(Duration::from_secs(5));
    assert_eq!(check(&retry, &clock, said), (vec![0], StopReason::Deadline));
}

#[test]
fn jitter_follows_how_long_the_limit_takes_to_serve_all() {
    let backoff = Backoff::new().spread_for(2_000, Rate::per_second(100));
    let wait = |chance| {
        backoff
            .wait(1, Some(Duration::from_secs(1)), chance)
            .unwrap()
    };
    assert_eq!(
        (wait(0.0), wait(1.0)),
        (Duration::from_secs(1), Duration::from_secs(21))
    );
}

/// Ten thousand calls to a backend that fails all of them.
#[test]
fn with_a_budget_a_storm_stays_within_a_tenth_more_than_offered() {
    let clock = Manual::new();
    for (budget, expected) in [
        (None, 50_000),
        (Some(Arc::new(RetryBudget::percent(10))), 11_000),
    ] {
        let load = Cell::new(0_u32);
        let backoff = Backoff::new()
            .tries(5)
            .waits(Duration::ZERO, Duration::ZERO);
        let mut retry = Retry::with_clock(backoff, clock.clone());
        if let Some(budget) = budget {
            retry = retry.budget(budget);
        }
        for _ in 0..10_000 {
            let call = retry.call(
                || {
                    load.set(load.get() + 1);
                    async { Err::<(), _>(503) }
                },
                |_| RetryAdvice::Retry,
            );
            look(pin!(call)).unwrap().unwrap_err();
        }
        assert_eq!(load.get(), expected);
    }
}

#[test]
fn a_backend_that_accepts_half_sees_all_and_one_that_accepts_none_next_to_nothing() {
    let clock = Manual::starting_at(Timestamp::from_secs(1_000));
    let throttle = ClientThrottle::with_clock(2.0, clock.clone());
    let sent = |accepts: fn(u32) -> bool| {
        (0..10_000)
            .filter(|number| {
                clock.advance(Duration::from_millis(1));
                let Ok(attempt) = throttle.try_call() else {
                    return false;
                };
                if accepts(*number) {
                    attempt.accepted();
                } else {
                    attempt.rejected();
                }
                true
            })
            .count()
    };
    assert_eq!(sent(|_| true), 10_000);
    let half = sent(|number| number % 2 == 0);
    assert!(half > 9_900, "{half}");
    clock.advance(Duration::from_secs(300));
    let none = sent(|_| false);
    assert!(none < 50, "{none}");
    // It recovers by what gets through.
    clock.advance(Duration::from_secs(300));
    assert_eq!(sent(|_| true), 10_000);
}

#[test]
fn waits_at_the_extremes_are_within_what_was_chosen() {
    let longest = Duration::MAX;
    let endless = Backoff::new().tries(u32::MAX).waits(longest, longest);
    assert_eq!(endless.wait(1, None, 1.0), Some(longest));
    assert_eq!(
        endless.wait(u32::MAX - 1, Some(longest), 1.0),
        Some(longest)
    );
    let none = Backoff::new()
        .tries(u32::MAX)
        .waits(Duration::ZERO, Duration::from_secs(60));
    assert_eq!(none.wait(5_000, None, 1.0), Some(Duration::ZERO));
    let spread = Backoff::new().spread(longest);
    assert_eq!(spread.wait(1, None, 1.0), Some(longest));
    // A chance that isn't a number is no reason to hurry.
    let usual = Backoff::new();
    assert_eq!(usual.wait(1, None, f64::NAN), Some(Duration::from_secs(1)));
    assert_eq!(
        usual.wait(1, None, f64::INFINITY),
        Some(Duration::from_secs(1))
    );
    assert_eq!(usual.wait(1, None, -1.0), Some(Duration::ZERO));
}

#[test]
fn a_budget_at_the_extremes_neither_overflows_nor_gives_for_nothing() {
    for percent in [0, 1, 100, u8::MAX] {
        let budget = RetryBudget::percent(percent);
        assert!(!budget.try_retry(), "{percent} %");
        for _ in 0..200_000 {
            budget.called();
        }
        let saved = if percent == 0 {
            0
        } else {
            (10 * u64::from(percent)).max(100)
        };
        assert_eq!(budget.left(), saved, "{percent} %");
        let mut taken = 0;
        while budget.try_retry() {
            taken += 1;
        }
        assert_eq!(taken, saved, "{percent} %");
    }
}

/// What a retry takes of the budget comes back if nothing was sent, and is spent from the moment it is tried.
#[test]
fn a_retry_that_is_dropped_while_it_waits_costs_nothing() {
    let clock = Manual::new();
    let budget = Arc::new(RetryBudget::percent(100));
    let backoff = Backoff::new().waits(Duration::ZERO, Duration::ZERO);
    let retry = Retry::with_clock(backoff, clock.clone()).budget(Arc::clone(&budget));
    let tries = Cell::new(0);
    let call = || {
        tries.set(tries.get() + 1);
        let hangs = tries.get() == 2;
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Err::<(), _>("no")
        }
    };
    let later = |_: &_| RetryAdvice::RetryAfter(Duration::from_secs(1));
    {
        let mut waits = pin!(retry.call(call, later));
        assert!(look(waits.as_mut()).is_none());
        assert_eq!((tries.get(), budget.left()), (1, 0), "taken already");
    }
    assert_eq!(budget.left(), 1);
    tries.set(0);
    {
        let mut begun = pin!(retry.call(call, later));
        assert!(look(begun.as_mut()).is_none());
        clock.advance(Duration::from_secs(1));
        assert!(look(begun.as_mut()).is_none());
        assert_eq!((tries.get(), budget.left()), (2, 1));
    }
    assert_eq!(budget.left(), 1, "two calls, and one retry that was sent");
}

//! Protected calls beside other waiters for the same rate.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate::{Limiter, Rate, Timestamp};
use tollgate_adaptive::protect::{CallDenied, CallGuard};

use crate::look;

const START: Timestamp = Timestamp::from_secs(1_000);

/// How many pass. They leave the list, and so do those who have waited for so long.
fn passed_or_given_up<F: Future<Output = Result<(), CallDenied>>>(
    waiting: &mut Vec<(Timestamp, Pin<Box<F>>)>,
    now: Timestamp,
    patience: Duration,
) -> u64 {
    let mut count = 0;
    waiting.retain_mut(|(since, wait)| match look(wait.as_mut()) {
        Some(result) => {
            result.unwrap();
            count += 1;
            false
        }
        None => now - *since < patience,
    });
    count
}

#[test]
fn protected_calls_wait_as_everybody_does() {
    let clock = Manual::starting_at(START);
    let rate = Rate::per_second(50).burst(5);
    let limiter = Arc::new(Limiter::with_clock(rate, clock.clone()));
    let calls = CallGuard::new()
        .rate(Arc::clone(&limiter))
        .max_wait(Duration::from_secs(60));
    let (mut waiting, mut count) = (Vec::new(), 0);
    for tick in 0..500_u64 {
        let now = START + Duration::from_millis(10 * tick);
        clock.set(now);
        count += passed_or_given_up(&mut waiting, now, Duration::from_millis(100));
        while waiting.len() < 30 {
            let call = async {
                let entered = calls.enter().await;
                entered.map(|entered| entered.end(PermitOutcome::Success))
            };
            let mut wait = Box::pin(call);
            match look(wait.as_mut()) {
                Some(result) => {
                    result.unwrap();
                    count += 1;
                }
                None => waiting.push((now, wait)),
            }
        }
    }
    assert!((253..=255).contains(&count), "{count} of 254 pass");
    waiting.clear();
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn a_protected_call_that_is_denied_moves_nobody() {
    let clock = Manual::starting_at(START);
    let limiter = Arc::new(Limiter::with_clock(Rate::per_hour(4), clock.clone()));
    while limiter.check().is_allowed() {}
    let mut waiting: Vec<_> = (0..10)
        .map(|_| Box::pin(limiter.acquire().into_future()))
        .collect();
    for wait in &mut waiting {
        assert!(look(wait.as_mut()).is_none());
    }
    let calls = CallGuard::new().rate(Arc::clone(&limiter));
    let told = limiter.check().wait_or_max();
    for _ in 0..10 {
        let denied = look(pin!(calls.enter())).expect("no patience");
        denied.unwrap_err();
    }
    assert_eq!(limiter.check().wait_or_max(), told);
    limiter.set_rate(Rate::per_second(1000)).unwrap();
    clock.advance(Duration::from_millis(20));
    for wait in &mut waiting {
        look(wait.as_mut()).expect("its turn has come").unwrap();
    }
}

//! The order of breaker, rate and bulkhead, and refunds when a call doesn't take place.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate::{ConcurrencyLimiter, Limiter, Rate, RateDenied};
use tollgate_adaptive::breaker::{CircuitBreaker, CircuitState, Thresholds};
use tollgate_adaptive::protect::{CallDenied, CallError, CallGuard};

use crate::look;

struct Guarded {
    clock: Manual,
    breaker: Arc<CircuitBreaker<Manual>>,
    rate: Arc<Limiter<Manual>>,
    bulkhead: Arc<ConcurrencyLimiter<Manual>>,
    calls: CallGuard<Manual>,
}

fn guarded(rate: Rate, slots: u32, waiters: usize) -> Guarded {
    let clock = Manual::new();
    let terms = Thresholds {
        min_calls: 2,
        ..Thresholds::default()
    };
    let breaker = Arc::new(CircuitBreaker::with_clock(terms, clock.clone()));
    let rate = Arc::new(Limiter::with_clock(rate, clock.clone()));
    let bulkhead = ConcurrencyLimiter::builder(slots).max_waiters(waiters);
    let bulkhead = Arc::new(bulkhead.clock(clock.clone()).build());
    let calls = CallGuard::new()
        .breaker(Arc::clone(&breaker))
        .rate(Arc::clone(&rate))
        .bulkhead(Arc::clone(&bulkhead));
    Guarded {
        clock,
        breaker,
        rate,
        bulkhead,
        calls,
    }
}

#[test]
fn an_open_breaker_charges_nothing() {
    let all = guarded(Rate::per_second(10), 5, 0);
    for _ in 0..2 {
        look(pin!(all.calls.enter()))
            .unwrap()
            .unwrap()
            .end(PermitOutcome::Dropped);
    }
    assert_eq!(all.rate.peek().remaining, 8);
    let refused = look(pin!(all.calls.enter())).unwrap().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "not called: the circuit is open for 1s more"
    );
    assert_eq!(all.rate.peek().remaining, 8);
    assert_eq!(all.bulkhead.peek().in_use, 0);
}

#[test]
fn a_full_bulkhead_gives_the_token_back() {
    let all = guarded(Rate::per_second(10), 1, 0);
    let held = look(pin!(all.calls.enter())).unwrap().unwrap();
    let refused = look(pin!(all.calls.enter())).unwrap().unwrap_err();
    assert!(matches!(refused, CallDenied::Full(_)), "{refused}");
    assert_eq!(all.rate.peek().remaining, 9);
    drop(held);
    assert_eq!(all.bulkhead.peek().in_use, 0);
    assert_eq!(all.rate.peek().remaining, 9, "what was called is charged");
}

#[test]
fn a_wait_for_the_bulkhead_that_is_abandoned_gives_the_token_back() {
    let all = guarded(Rate::per_second(10), 1, 5);
    let held = look(pin!(all.calls.enter())).unwrap().unwrap();
    {
        let mut waits = pin!(all.calls.enter());
        assert!(look(waits.as_mut()).is_none());
        assert_eq!(all.rate.peek().remaining, 8);
    }
    assert_eq!(all.rate.peek().remaining, 9);
    assert_eq!(all.bulkhead.peek().waiting, 0);
    held.end(PermitOutcome::Success);
    assert!(look(pin!(all.calls.enter())).unwrap().is_ok());
}

#[test]
fn a_rate_is_waited_for_as_long_as_patience_lasts() {
    let mut all = guarded(Rate::per_second(10).burst(1), 5, 0);
    drop(look(pin!(all.calls.enter())).unwrap().unwrap());
    let refused = look(pin!(all.calls.enter())).unwrap().unwrap_err();
    assert!(matches!(refused, CallDenied::Rate(_)), "{refused}");
    all.calls = all.calls.max_wait(Duration::from_millis(100));
    {
        let mut waits = pin!(all.calls.enter());
        assert!(look(waits.as_mut()).is_none());
        all.clock.advance(Duration::from_millis(100));
        look(waits.as_mut())
            .unwrap()
            .unwrap()
            .end(PermitOutcome::Success);
    }
    // One that is given up while it waits leaves its turn to the next.
    let mut first = Box::pin(all.calls.enter());
    assert!(look(first.as_mut()).is_none());
    drop(first);
    all.clock.advance(Duration::from_millis(100));
    assert!(look(pin!(all.calls.enter())).unwrap().is_ok());
}

#[test]
fn a_call_that_is_dropped_frees_its_slot_and_its_probe() {
    let all = guarded(Rate::per_second(100), 1, 0);
    for _ in 0..2 {
        let failed = all.calls.call(
            || async { Err::<(), _>("down") },
            |_| PermitOutcome::Dropped,
        );
        assert_eq!(look(pin!(failed)).unwrap(), Err(CallError::Failed("down")));
    }
    assert_eq!(all.breaker.state(), CircuitState::Open);
    all.clock.advance(Duration::from_secs(1));
    {
        let call = all
            .calls
            .call(std::future::pending::<Result<(), &str>>, |_| {
                PermitOutcome::Success
            });
        let mut call = pin!(call);
        assert!(look(call.as_mut()).is_none());
        assert_eq!(all.bulkhead.peek().in_use, 1);
    }
    assert_eq!(all.bulkhead.peek().in_use, 0);
    // A probe that wasn't answered keeps it open; the next one closes it.
    assert_eq!(all.breaker.state(), CircuitState::Open);
    all.clock.advance(Duration::from_secs(1));
    let works = all
        .calls
        .call(|| async { Ok::<_, &str>(7) }, |_| PermitOutcome::Success);
    assert_eq!(look(pin!(works)).unwrap(), Ok(7));
    assert_eq!(all.breaker.state(), CircuitState::Closed);
}

#[test]
fn a_wait_for_the_bulkhead_is_no_slow_call() {
    let clock = Manual::new();
    let terms = Thresholds {
        min_calls: 1,
        slow_percent: 50,
        slow_after: Duration::from_millis(100),
        ..Thresholds::default()
    };
    let breaker = Arc::new(CircuitBreaker::with_clock(terms, clock.clone()));
    let bulkhead = ConcurrencyLimiter::builder(1).max_waiters(1);
    let bulkhead = Arc::new(bulkhead.clock(clock.clone()).build());
    let calls = CallGuard::new()
        .breaker(Arc::clone(&breaker))
        .bulkhead(bulkhead);
    let held = look(pin!(calls.enter())).unwrap().unwrap();
    let mut waits = pin!(calls.enter());
    assert!(look(waits.as_mut()).is_none());
    clock.advance(Duration::from_secs(5));
    drop(held);
    let entered = look(waits.as_mut()).unwrap().unwrap();
    clock.advance(Duration::from_millis(50));
    entered.end(PermitOutcome::Success);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[test]
fn a_breaker_that_opens_while_a_call_waits_stops_it() {
    let all = guarded(Rate::per_second(10), 2, 5);
    let first = look(pin!(all.calls.enter())).unwrap().unwrap();
    let second = look(pin!(all.calls.enter())).unwrap().unwrap();
    let mut waits = pin!(all.calls.enter());
    assert!(look(waits.as_mut()).is_none());
    first.end(PermitOutcome::Dropped);
    second.end(PermitOutcome::Dropped);
    assert_eq!(all.breaker.state(), CircuitState::Open);
    let refused = look(waits.as_mut()).unwrap().unwrap_err();
    assert!(matches!(refused, CallDenied::Open(_)), "{refused}");
    assert_eq!(all.rate.peek().remaining, 8, "it has its token back");
    assert_eq!(all.bulkhead.peek().in_use, 0, "and its slot");
}

#[test]
fn a_rate_that_refuses_says_when_to_come_back() {
    let all = guarded(Rate::per_second(10).burst(1), 5, 0);
    drop(look(pin!(all.calls.enter())).unwrap().unwrap());
    for _ in 0..3 {
        let refused = look(pin!(all.calls.enter())).unwrap().unwrap_err();
        let CallDenied::Rate(RateDenied::DeadlineExceeded(said)) = refused else {
            panic!("{refused}");
        };
        assert_eq!(said.wait_or_max(), Duration::from_millis(100));
    }
}

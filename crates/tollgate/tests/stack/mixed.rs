//! Holds beside waits, reservations, live changes and a clock that is set back, on every kind of limiter.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, Limit, Limiter, Rate, Timestamp, stack::CostReservation,
};

const MINUTE: Duration = Duration::from_secs(60);
const START: Timestamp = Timestamp::from_secs(1_000_000);

/// Ten a second, by each that keeps what is out from draining.
fn each(mut test: impl FnMut(&Limiter<Manual>, &Manual)) {
    let builders = [
        Limiter::builder(Rate::per_second(10)),
        Limiter::builder(Rate::per_second(10)).stripes(2),
        Limiter::builder(Rate::per_second(10)).algorithm(Algorithm::TokenBucket),
        Limiter::builder(Rate::per_second(10)).algorithm(Algorithm::LeakyBucket),
    ];
    for builder in builders {
        let clock = Manual::starting_at(START);
        let limiter = builder.clock(clock.clone()).build();
        test(&limiter.expect("a rate that fits"), &clock);
    }
}

fn hold(limiter: &Limiter<Manual>, cost: u64) -> Option<CostReservation<'_>> {
    let levels = [Limit::estimated("limit", limiter, cost)];
    CompositeLimiter::new().hold(&levels, MINUTE).ok()
}

/// Whether a wait has passed.
macro_rules! passed {
    ($wait:expr) => {{
        let mut ignore = Context::from_waker(Waker::noop());
        matches!($wait.as_mut().poll(&mut ignore), Poll::Ready(Ok(_)))
    }};
}

#[test]
fn those_who_wait_get_what_drains_beside_and_what_comes_back() {
    each(|limiter, clock| {
        let held = hold(limiter, 8).expect("ten left");
        assert!(limiter.allow_n(2));
        let mut two = pin!(limiter.acquire_n(2).into_future());
        let mut five = pin!(limiter.acquire_n(5).into_future());
        assert!(!passed!(two) && !passed!(five));
        // Nobody barges, not by a hold either.
        assert!(!limiter.allow() && hold(limiter, 1).is_none());
        clock.advance(Duration::from_millis(200));
        assert!(passed!(two) && !passed!(five));
        // Five can't be had while eight of ten are out, however long it takes.
        clock.advance(Duration::from_secs(5));
        assert!(!passed!(five) && !limiter.allow());
        held.settle(1);
        assert!(passed!(five));
        assert_eq!(limiter.peek().remaining, 4);
    });
}

#[test]
fn whoever_leaves_leaves_what_is_out_as_it_was() {
    each(|limiter, clock| {
        let held = hold(limiter, 8).expect("ten left");
        assert!(limiter.allow_n(2));
        {
            let mut three = pin!(limiter.acquire_n(3).into_future());
            assert!(!passed!(three));
            clock.advance(Duration::from_secs(1));
            assert!(!passed!(three));
        }
        assert_eq!(limiter.waiters(), 0);
        assert_eq!(limiter.peek().remaining, 2);
        let reserved = limiter.reserve(2).expect("beside what is out");
        assert!(reserved.delay().is_zero());
        let later = limiter.reserve(2).expect("beside what is out");
        assert_eq!(later.delay(), Duration::from_millis(200));
        later.cancel();
        held.cancel();
        assert_eq!(limiter.peek().remaining, 8);
    });
}

#[test]
fn a_live_change_keeps_what_is_out_and_lets_pass_who_has_room_then() {
    each(|limiter, clock| {
        let held = hold(limiter, 8).expect("ten left");
        let mut five = pin!(limiter.acquire_n(5).into_future());
        assert!(!passed!(five));
        clock.advance(Duration::from_secs(3));
        let change = |rate| limiter.set_rate(rate).expect("a rate that fits");
        change(Rate::per_second(20));
        // A token bucket keeps its tokens through a change, and fills up to what isn't out.
        clock.advance(Duration::from_secs(1));
        assert!(passed!(five), "{limiter:?}");
        clock.advance(Duration::from_secs(3));
        assert_eq!(limiter.peek().remaining, 12);
        change(Rate::per_second(5));
        assert_eq!(limiter.peek().remaining, 0);
        clock.advance(Duration::from_secs(3));
        // Eight of five: three are spent, and two of a smaller bucket are left.
        held.settle(3);
        assert_eq!(limiter.peek().remaining, 2);
    });
}

#[test]
fn a_clock_that_is_set_back_leaves_what_is_out_and_no_more() {
    each(|limiter, clock| {
        let held = hold(limiter, 8).expect("ten left");
        let over = hold(limiter, 2).expect("two left");
        clock.advance(Duration::from_secs(30));
        assert!(!limiter.allow());
        // By more than a day: whatever was charged at a time that is to come doesn't wait for it.
        clock.set(Timestamp::from_secs(500_000));
        assert!(!limiter.allow());
        held.settle(3);
        clock.advance(Duration::from_secs(2));
        assert_eq!(limiter.peek().remaining, 8);
        // What it had left of its minute.
        clock.advance(Duration::from_secs(29));
        assert_eq!(limiter.peek().remaining, 10);
        over.settle(0);
        assert_eq!(limiter.peek().remaining, 10);
    });
}

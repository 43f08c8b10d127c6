//! The public interface of lanes: what their builder rejects, deadlines, bounded queues, threads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{FairLimiter, Lanes, Outcome, Rate, RateDenied, Timestamp, lanes};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn error(builder: lanes::Builder) -> String {
    builder
        .build()
        .expect_err("lanes that do not fit")
        .to_string()
}

#[test]
fn what_does_not_fit_is_named() {
    let rate = Rate::per_second(100);
    let lanes = || Lanes::builder(rate);
    assert_eq!(error(lanes()), "0 lanes were given; give 1 to 64");
    assert_eq!(
        error(lanes().lane("a", 1).lane("a", 2)),
        "two lanes are called \"a\": give each a name of its own"
    );
    assert_eq!(
        error(lanes().lane("a", 0)),
        "lane \"a\" has a share of 0 and would starve: give it at least 1"
    );
    assert_eq!(
        error(lanes().lane("a", 60).lane("b", 41)),
        "the lanes' shares are 101 in sum, more than the 100 of the rate \"100/s\": \
         lower a share or raise the rate"
    );
    assert_eq!(
        error(Lanes::builder(rate.burst(1)).lane("a", 60).lane("b", 40)),
        "rate \"100/s burst 1\": its burst is too small for every lane to hold a token of its own; \
         use a burst of at least 2"
    );
    assert_eq!(
        error(Lanes::builder(Rate::unlimited()).lane("a", 60)),
        "rate \"unlimited\" has no period; give lanes a rate with one, such as 100/s"
    );
}

#[test]
fn a_decision_is_the_lanes_own() {
    let lanes = Lanes::builder(Rate::per_second(100).burst(10))
        .lane("high", 60)
        .lane("low", 40)
        .clock(Manual::new())
        .build()
        .unwrap();
    let low = lanes.lane("low").unwrap();
    assert_eq!(low.check_n(5).outcome, Outcome::Never);
    assert!(low.check_n(4).is_allowed());
    // The other lane is full, so what comes in is all there to be borrowed, 10 ms a token.
    assert_eq!(low.check().wait_or_max(), millis(10));
    let high = lanes.lane("high").unwrap();
    assert!(high.check_n(6).is_allowed());
    // Now both wait for their own: 25 ms a token in the lower.
    assert_eq!(low.check().wait_or_max(), millis(25));
    assert!(lanes.lane("none").is_none());
    let names: Vec<_> = lanes.iter().map(|lane| lane.name()).collect();
    assert_eq!(names, ["high", "low"]);
}

#[test]
fn threads_wait_in_their_lanes_within_bounds() {
    let clock = Manual::new();
    let lanes = Lanes::builder(Rate::per_second(2))
        .lane("high", 1)
        .lane("low", 1)
        .max_waiters_per_lane(2)
        .clock(clock.clone())
        .build();
    let lanes = Arc::new(lanes.unwrap());
    let start = |name: &'static str, waiting: usize| {
        let of_thread = Arc::clone(&lanes);
        let waiter = thread::spawn(move || of_thread.lane(name).unwrap().acquire().wait_blocking());
        while lanes.waiters() < waiting {
            thread::yield_now();
        }
        waiter
    };
    assert!(lanes.iter().all(|lane| lane.allow()));
    let waiters = [start("low", 1), start("low", 2), start("high", 3)];
    let low = lanes.lane("low").unwrap();
    let refused = low.acquire().wait_blocking().unwrap_err();
    assert!(matches!(refused, RateDenied::QueueFull(_)), "{refused}");
    // One is before it in its lane: its share serves it by 2 s.
    let refused = lanes.lane("high").unwrap().acquire().timeout(millis(900));
    assert!(matches!(
        refused.wait_blocking(),
        Err(RateDenied::DeadlineExceeded(_))
    ));
    clock.advance(Duration::from_secs(2));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Ok(Duration::from_secs(2)));
    }
    assert_eq!(lanes.waiters(), 0);
}

const DAY: Duration = Duration::from_secs(86_400);
/// A wall clock in 2026.
const START: Timestamp = Timestamp::from_secs(1_790_000_000);

#[test]
fn a_fair_limiter_goes_on_for_forty_years_of_any_clock() {
    let clock = Manual::starting_at(START);
    let builder = FairLimiter::builder(Rate::per_second(10));
    let limiter = builder.clock(clock.clone()).build().unwrap();
    let spend = || (0..30).filter(|_| limiter.allow("client")).count();
    for _ in 0..400 {
        assert_eq!(spend(), 10);
        clock.advance(Duration::from_millis(300));
        assert_eq!(spend(), 3);
        clock.advance(DAY * 36);
    }
}

#[test]
fn a_clock_that_was_far_ahead_holds_no_lane_and_no_client_back() {
    let clock = Manual::starting_at(START);
    let lanes = Lanes::builder(Rate::per_second(100));
    let lanes = lanes.lane("high", 60).lane("low", 40).clock(clock.clone());
    let lanes = lanes.build().unwrap();
    let fair = FairLimiter::builder(Rate::per_second(100));
    let fair = fair.clock(clock.clone()).build().unwrap();
    let high = lanes.lane("high").unwrap();
    let spend = || {
        let of_lane = (0..300).filter(|_| high.allow()).count();
        (of_lane, (0..300).filter(|_| fair.allow("client")).count())
    };
    for ahead in [DAY, 365 * DAY, 7_000 * DAY] {
        clock.set(START + ahead);
        assert!(spend() > (59, 99));
        clock.set(START);
        // What was spent while it was ahead is spent, and comes back by the time that it shows.
        assert_eq!(spend(), (0, 0), "{ahead:?}");
        clock.set(START + Duration::from_secs(1));
        assert!(spend() > (59, 99), "{ahead:?}");
        clock.set(START + Duration::from_secs(60));
    }
}

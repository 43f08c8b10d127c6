//! Reservations beside waiters: a waiter's booking is undone with the last reservation behind it, a cancelled
//! reservation leaves a gap that a waiter takes, and a live change moves waiters, never reservations.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, KeyedLimiter, Limiter, Rate, StoredKeyLimiter, Timestamp,
    wait::{AcquireFuture, LimitHandle},
};

use super::Polled;
use super::holder::{ALGORITHMS, Holder};

const START: Timestamp = Timestamp::from_secs(1_000);
const LONGEST: Duration = Duration::from_secs(86_400);

/// Something to do with every kind of limit.
trait Act {
    fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str);
}

/// Does it with every algorithm and every holder.
fn with_each(algorithms: &[Algorithm], rate: Rate, act: &impl Act) {
    for &algorithm in algorithms {
        let name = format!("{algorithm:?}");
        let clock = Manual::starting_at(START);
        let limiter = Limiter::builder(rate).algorithm(algorithm);
        let limiter = limiter.clock(clock.clone()).build();
        let limiter = limiter.expect("a rate that fits");
        act.on(&limiter, &clock, &name);
        let clock = Manual::starting_at(START);
        let exact = StoredKeyLimiter::<String>::builder(rate, 100).algorithm(algorithm);
        let exact = exact.longest_wait(LONGEST).clock(clock.clone()).build();
        let exact = exact.expect("a rate that fits");
        act.on(&exact, &clock, &format!("a key, {name}"));
    }
    let clock = Manual::starting_at(START);
    let keyed = KeyedLimiter::builder(rate, 100).longest_wait(LONGEST);
    let keyed = keyed.clock(clock.clone());
    let keyed = keyed.build().expect("a rate that fits");
    act.on(&keyed, &clock, "a hashed key");
}

/// Takes all that there is, and then so many wait.
fn waiters<H: Holder>(holder: &H, count: usize) -> Vec<Polled<AcquireFuture<H::Home<'_>>>> {
    while holder.check_at(START, 1).is_allowed() {}
    (0..count).map(|_| waiter(holder)).collect()
}

fn waiter<H: Holder>(holder: &H) -> Polled<AcquireFuture<H::Home<'_>>> {
    let mut wait = Polled::new(holder.acquire(1));
    assert!(wait.poll().is_none());
    wait
}

/// How many of them pass now; these are gone then.
fn passed<H: LimitHandle>(waiting: &mut Vec<Polled<AcquireFuture<H>>>) -> usize {
    let before = waiting.len();
    waiting.retain_mut(|wait| match wait.poll() {
        None => true,
        Some(result) => {
            result.expect("it has no deadline");
            false
        }
    });
    before - waiting.len()
}

/// When each of the others passes, from now on and in steps of this.
fn pass_times<H: LimitHandle>(
    waiting: &mut Vec<Polled<AcquireFuture<H>>>,
    clock: &Manual,
    step: Duration,
) -> Vec<Duration> {
    let (mut times, mut now) = (Vec::new(), START);
    while !waiting.is_empty() {
        times.extend(vec![now - START; passed(waiting)]);
        now += step;
        assert!(now - START < Duration::from_secs(100), "some never pass");
        clock.set(now);
    }
    times
}

#[test]
fn cancelling_the_last_reservation_unbooks_all_waiters() {
    struct Cancelled;
    impl Act for Cancelled {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = waiters(holder, 2);
            let told = holder.check_at(START, 1).wait_or_max();
            let first = holder.reserve_at(START, 1).expect("behind them");
            waiting.push(waiter(holder));
            let second = holder.reserve_at(START, 1).expect("behind them");
            first.cancel_at(START);
            second.cancel_at(START);
            // Whoever comes now is told what it would be without either.
            waiting.pop();
            assert_eq!(holder.check_at(START, 1).wait_or_max(), told, "{name}");
            waiting.clear();
            // Then nothing is charged at all, but what was spent at first.
            let mut twin = waiters(holder, 0);
            assert_eq!(passed(&mut twin), 0);
            let alone = holder.check_at(START, 1).wait_or_max();
            let next = holder.reserve_at(START, 1).expect("nobody waits");
            assert_eq!(next.ready_at() - START, alone, "{name}");
            clock.set(START);
        }
    }
    with_each(&ALGORITHMS, Rate::per_second(8), &Cancelled);
}

#[test]
fn a_cancelled_reservation_leaves_a_gap_that_the_next_waiter_takes() {
    struct Gap;
    impl Act for Gap {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = waiters(holder, 2);
            let first = holder.reserve_at(START, 1).expect("behind them");
            waiting.push(waiter(holder));
            let second = holder.reserve_at(START, 1).expect("behind them");
            let (gap, kept) = (first.ready_at(), second.ready_at());
            first.cancel_at(START);
            assert_eq!(second.ready_at(), kept, "{name}");
            let step = Duration::from_millis(100);
            let times = pass_times(&mut waiting, clock, step);
            assert_eq!(times.last().map(|last| START + *last), Some(gap), "{name}");
        }
    }
    let bit_by_bit = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    with_each(&bit_by_bit, Rate::per_second(2).burst(1), &Gap);
}

#[test]
fn a_gap_too_small_for_one_is_taken_by_another_behind_it() {
    let clock = Manual::starting_at(START);
    let rate = Rate::per_second(1).burst(2);
    let limiter = Limiter::with_clock(rate, clock.clone());
    assert!(limiter.allow_n(2));
    let mut first = Polled::new(limiter.acquire_n(2));
    assert!(first.poll().is_none());
    let gap = limiter.reserve(1).unwrap();
    let mut large = Polled::new(limiter.acquire_n(2));
    let mut small = Polled::new(limiter.acquire());
    assert!(large.poll().is_none() && small.poll().is_none());
    let last = limiter.reserve(1).unwrap();
    let at = |secs| START + Duration::from_secs(secs);
    assert_eq!((gap.ready_at(), last.ready_at()), (at(3), at(7)));
    gap.cancel();
    clock.set(at(2));
    assert!(first.poll().unwrap().is_ok() && small.poll().is_none());
    clock.set(at(3));
    assert!(large.poll().is_none() && small.poll().unwrap().is_ok());
    clock.set(at(5));
    assert!(large.poll().unwrap().is_ok());
    // What the small one had is left over, and a new one takes it.
    let mut new = Polled::new(limiter.acquire().timeout(Duration::from_secs(1)));
    assert!(new.poll().is_none());
    clock.set(at(6));
    assert!(new.poll().unwrap().is_ok());
    drop(last);
}

#[test]
fn two_overlapping_loops_of_reserve_and_cancel_burn_nothing() {
    struct Loops;
    impl Act for Loops {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = waiters(holder, 30);
            let mut live = holder.reserve_at(START, 1).expect("behind them");
            let act_at = live.ready_at();
            for turn in 0..500_u64 {
                let next = holder.reserve_at(START, 1).expect("behind them");
                live.cancel_at(START);
                live = next;
                // Some go, and others come, meanwhile.
                if turn % 7 == 0 {
                    waiting.remove(usize::try_from(turn % 29).expect("less than 30"));
                    waiting.push(waiter(holder));
                }
            }
            // It is behind them, or behind a gap that nobody needs.
            assert!(
                live.ready_at() <= act_at + Duration::from_millis(20),
                "{name}"
            );
            let mut now = START;
            let mut count = 0;
            while now < START + Duration::from_millis(700) {
                count += passed(&mut waiting);
                now += Duration::from_millis(10);
                clock.set(now);
            }
            assert!(count >= 29, "{name}: {count} of 30 pass");
        }
    }
    let bit_by_bit = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    with_each(&bit_by_bit, Rate::per_second(50).burst(5), &Loops);
}

#[test]
fn a_raised_rate_moves_waiters_and_no_reservation() {
    struct Raised;
    impl Act for Raised {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = waiters(holder, 10);
            let cancelled = holder.reserve_at(START, 1).expect("behind them");
            cancelled.cancel_at(START);
            let live = holder.reserve_at(START, 1).expect("behind them");
            let act_at = live.ready_at();
            holder.set_rate(Rate::per_second(1000).burst(4));
            let mut now = START;
            let mut count = 0;
            while now < START + Duration::from_secs(1) {
                now += Duration::from_millis(10);
                clock.set(now);
                count += passed(&mut waiting);
            }
            assert_eq!(count, 10, "{name}");
            assert_eq!(live.ready_at(), act_at, "{name}");
            // Newcomers don't stand behind what was booked at the old rate.
            assert!(holder.check_at(now, 1).is_allowed(), "{name}");
        }
    }
    let bit_by_bit = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    with_each(&bit_by_bit, Rate::per_hour(4), &Raised);
}

/// The bookings of a window are at times that no rate moves, so they are forgotten where they would hold everybody back.
#[test]
fn a_raised_rate_moves_waiters_of_windows_too() {
    struct Raised;
    impl Act for Raised {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = waiters(holder, 3);
            let live = holder.reserve_at(START, 1).expect("behind them");
            let act_at = live.ready_at();
            holder.set_rate(Rate::per_second(1000));
            clock.set(START + Duration::from_secs(2));
            assert_eq!(passed(&mut waiting), 3, "{name}");
            assert_eq!(live.ready_at(), act_at, "{name}");
            let newcomer = holder.check_at(START + Duration::from_secs(2), 1);
            assert!(newcomer.is_allowed(), "{name}: {newcomer:?}");
        }
    }
    with_each(&ALGORITHMS, Rate::per_hour(4), &Raised);
}

/// Two wait, and a reservation behind them is cancelled after a failed change: the wait of a newcomer then, and before
/// everything.
fn told_after_a_failed_change<H: Holder>(holder: &H, change: impl Fn() -> bool) -> [Duration; 2] {
    let waiting = waiters(holder, 2);
    let told = holder.check_at(START, 1).wait_or_max();
    let slot = holder.reserve_at(START, 1).expect("behind them");
    assert!(!change(), "no word counts as slowly");
    slot.cancel_at(START);
    let after = holder.check_at(START, 1).wait_or_max();
    drop(waiting);
    [told, after]
}

#[test]
fn a_rate_that_cannot_be_set_takes_nothing_from_reservations() {
    let (rate, too_slow) = (Rate::per_hour(4), Rate::per_day(1).burst(1_000));
    let clock = Manual::starting_at(START);
    let limiter = Limiter::with_clock(rate, clock.clone());
    let [told, after] = told_after_a_failed_change(&limiter, || limiter.set_rate(too_slow).is_ok());
    assert_eq!(after, told, "a limiter");
    let [told, after] = told_after_a_failed_change(&limiter, || limiter.set_burst(1 << 60).is_ok());
    assert_eq!(after, told, "its burst");
    let keyed = KeyedLimiter::builder(rate, 100).longest_wait(LONGEST);
    let keyed = keyed
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    let [told, after] = told_after_a_failed_change(&keyed, || keyed.set_rate(too_slow).is_ok());
    assert_eq!(after, told, "a hashed key");
    let exact = StoredKeyLimiter::<String>::builder(rate, 100).longest_wait(LONGEST);
    let exact = exact
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    let [told, after] = told_after_a_failed_change(&exact, || exact.set_rate(too_slow).is_ok());
    assert_eq!(after, told, "a key");
}

/// A refund is for the waiters, also if their permits are booked for a reservation behind them.
#[test]
fn a_refund_moves_booked_waiters_up() {
    fn pass_at_once<H: Holder>(holder: &H, reserves: bool, refund: impl Fn()) -> usize {
        let mut waiting = waiters(holder, 10);
        let slot = reserves.then(|| holder.reserve_at(START, 1).expect("behind them"));
        refund();
        let count = passed(&mut waiting);
        drop((waiting, slot));
        count
    }
    let rate = Rate::per_hour(4).burst(10);
    for (reserves, expected) in [(false, 5), (true, 4)] {
        let clock = Manual::starting_at(START);
        let keyed = KeyedLimiter::builder(rate, 100).longest_wait(LONGEST);
        let keyed = keyed
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let count = pass_at_once(&keyed, reserves, || keyed.key("ada").refund(5));
        assert_eq!(count, expected, "a hashed key");
        for algorithm in [
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
        ] {
            let exact = StoredKeyLimiter::<String>::builder(rate, 100).algorithm(algorithm);
            let exact = exact.longest_wait(LONGEST).clock(clock.clone());
            let exact = exact.build().expect("a rate that fits");
            let count = pass_at_once(&exact, reserves, || exact.key("ada").refund(5));
            assert_eq!(count, expected, "a key, {algorithm:?}");
        }
    }
}

#[test]
fn waiters_with_timeouts_pass_beside_somebody_who_reserves_and_cancels() {
    struct Beside;
    impl Act for Beside {
        fn on<H: Holder>(&self, holder: &H, clock: &Manual, name: &str) {
            let mut waiting = Vec::new();
            let mut count = 0;
            for tick in 0..500_u64 {
                let now = START + Duration::from_millis(10 * tick);
                clock.set(now);
                count += passed_or_given_up(&mut waiting, now, Duration::from_millis(100));
                while waiting.len() < 30 {
                    let mut wait = Polled::new(holder.acquire(1));
                    match wait.poll() {
                        Some(result) => {
                            result.expect("it has no deadline");
                            count += 1;
                        }
                        None => waiting.push((now, wait)),
                    }
                }
                let slot = holder.reserve_at(now, 1).expect("behind them");
                slot.cancel_at(now);
            }
            assert!(count >= 253, "{name}: {count} of 254 pass");
            assert!(count <= 255, "{name}: {count} of 254 pass");
        }
    }
    let bit_by_bit = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    with_each(&bit_by_bit, Rate::per_second(50).burst(5), &Beside);
}

/// How many pass; they are gone then, and so are those who have waited for so long.
fn passed_or_given_up<F: Future<Output = Result<T, E>>, T, E: std::fmt::Debug>(
    waiting: &mut Vec<(Timestamp, Polled<F>)>,
    now: Timestamp,
    patience: Duration,
) -> u64 {
    let mut count = 0;
    waiting.retain_mut(|(since, wait)| match wait.poll() {
        Some(result) => {
            result.expect("it has no deadline");
            count += 1;
            false
        }
        None => now - *since < patience,
    });
    count
}

#[test]
fn a_key_has_no_line_once_all_reservations_behind_its_waiters_have_ended() {
    let clock = Manual::starting_at(START);
    let builder = KeyedLimiter::builder(Rate::per_second(1).burst(1), 100);
    let keyed = builder.clock(clock.clone()).build().unwrap();
    let key = keyed.key("ada");
    assert!(key.allow());
    let mut wait = Polled::new(key.acquire());
    assert!(wait.poll().is_none());
    let used = key.reserve(1).unwrap();
    let kept = key.reserve(1).unwrap();
    clock.advance(Duration::from_secs(1));
    assert!(wait.poll().unwrap().is_ok());
    kept.keep();
    clock.advance(Duration::from_secs(1));
    assert_eq!(used.wait_blocking(), Duration::ZERO);
    // The kept one's time lies ahead, and nobody else gets it.
    assert!(!key.allow());
    clock.advance(Duration::from_secs(1));
    assert!(!key.allow());
    clock.advance(Duration::from_secs(1));
    assert!(key.allow());
}

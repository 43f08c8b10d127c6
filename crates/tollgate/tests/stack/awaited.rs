//! Estimates that are waited for: held from their grant on, however late the task notices, and never more than the
//! bound.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::clock::Manual;
use tollgate::stack::{CostReservation, ReservationTerms};
use tollgate::{Algorithm, CompositeLimiter, Limit, Rate, RateDenied, StoredKeyLimiter, WhenFull};

type Limiter = StoredKeyLimiter<String, Manual>;
type Held = Result<CostReservation<'static>, RateDenied>;

const LONG: Duration = Duration::from_secs(100_000);

fn limiter(algorithm: Algorithm, rate: Rate) -> (Arc<Limiter>, Manual) {
    let clock = Manual::new();
    let limiter = StoredKeyLimiter::builder(rate, 100)
        .algorithm(algorithm)
        .clock(clock.clone());
    (Arc::new(limiter.build().expect("a rate")), clock)
}

/// A wait for this cost of one key.
fn wait(limiter: &Arc<Limiter>, cost: u64, timeout: Duration) -> Waiter {
    let acquire = limiter.key_owned("key").acquire_n(cost).timeout(timeout);
    Waiter(Box::pin(acquire.hold(LONG)))
}

struct Waiter(Pin<Box<dyn Future<Output = Held> + Send>>);

impl Waiter {
    fn poll(&mut self) -> Option<Held> {
        let mut context = Context::from_waker(Waker::noop());
        match self.0.as_mut().poll(&mut context) {
            Poll::Ready(held) => Some(held),
            Poll::Pending => None,
        }
    }
}

#[test]
fn what_is_waited_for_is_out_from_its_turn_on() {
    let (limiter, clock) = limiter(Algorithm::TokenBucket, Rate::per_second(1).burst(10));
    let first = wait(&limiter, 10, LONG).poll().unwrap().unwrap();
    first.settle(10);
    let mut second = wait(&limiter, 5, LONG);
    assert!(second.poll().is_none());
    // Its turn comes after 5 s, and it is noticed after 9: meanwhile somebody else looks, and 4 are left.
    clock.advance(Duration::from_secs(9));
    assert_eq!(limiter.key("key").peek().remaining, 4);
    let second = second.poll().unwrap().unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        limiter.key("key").peek().remaining,
        5,
        "what is out doesn't drain"
    );
    second.settle(2);
    assert_eq!(limiter.key("key").peek().remaining, 8);
    clock.advance(Duration::from_secs(2));
    assert_eq!(limiter.key("key").peek().remaining, 10);
}

#[test]
fn who_goes_away_leaves_nothing_out() {
    let (limiter, clock) = limiter(Algorithm::TokenBucket, Rate::per_second(1).burst(2));
    assert!(limiter.key("key").allow_n(2));
    let mut gone: Vec<_> = (0..3).map(|_| wait(&limiter, 1, LONG)).collect();
    for one in &mut gone {
        assert!(one.poll().is_none());
    }
    // One of them leaves after its turn has come, unnoticed; one at its place in line; one notices, and cancels.
    clock.advance(Duration::from_millis(1_500));
    assert_eq!(limiter.key("key").peek().remaining, 0);
    drop(gone.remove(0));
    drop(gone.remove(1));
    let noticed = gone.remove(0).poll();
    noticed.expect("its turn").expect("a place").cancel();
    clock.advance(Duration::from_millis(500));
    assert_eq!(limiter.key("key").peek().remaining, 2);
}

#[test]
fn what_others_settle_is_had_at_once_and_a_wait_in_vain_ends_in_time() {
    let (limiter, clock) = limiter(Algorithm::TokenBucket, Rate::per_hour(1).burst(1));
    let held = wait(&limiter, 1, LONG).poll().unwrap().unwrap();
    let hour = Duration::from_secs(3_600);
    let mut patient = wait(&limiter, 1, hour);
    assert!(patient.poll().is_none());
    // Behind it there is no time left.
    assert!(wait(&limiter, 1, hour).poll().unwrap().is_err());
    held.settle(0);
    let held = patient.poll().expect("its turn").expect("a place");
    let mut vain = wait(&limiter, 1, hour);
    assert!(vain.poll().is_none());
    clock.advance(hour + Duration::from_nanos(1));
    let refused = vain.poll().expect("its end").expect_err("no place");
    assert!(
        matches!(refused, RateDenied::DeadlineExceeded(_)),
        "{refused:?}"
    );
    drop(held); // charged
    assert_eq!(limiter.key("key").peek().remaining, 0);
    let never = wait(&limiter, 2, hour).poll().unwrap().unwrap_err();
    assert!(matches!(never, RateDenied::ExceedsBurst(_)), "{never:?}");
}

#[test]
fn terms_say_what_a_drop_means() {
    let (limiter, _) = limiter(Algorithm::TokenBucket, Rate::per_hour(4));
    for (terms, left) in [
        (ReservationTerms::for_at_most(LONG), 3),
        (ReservationTerms::for_at_most(LONG).refund_on_drop(), 3),
    ] {
        let mut wait = Waiter(Box::pin(limiter.key_owned("key").acquire().hold(terms)));
        drop(wait.poll().unwrap().unwrap());
        assert_eq!(limiter.key("key").peek().remaining, left);
    }
}

/// A key without room shares one bucket with all such keys, in which nothing can be booked ahead and held.
#[test]
fn a_key_without_room_holds_what_is_there_and_does_not_wait() {
    for at_cap in [WhenFull::SharedBucket, WhenFull::DenyNew] {
        let clock = Manual::new();
        let limiter = StoredKeyLimiter::<String, _>::builder(Rate::per_hour(2), 2)
            .algorithm(Algorithm::TokenBucket)
            .at_cap(at_cap)
            .clock(clock.clone());
        let limiter = Arc::new(limiter.build().unwrap());
        for key in 0..50 {
            let _ = limiter.allow(&*key.to_string());
        }
        let hold = || wait(&limiter, 1, LONG).poll();
        let mut held = Vec::new();
        while let Some(Ok(hold)) = hold() {
            held.push(hold);
            assert!(held.len() <= 2);
        }
        assert!(matches!(hold(), Some(Err(_))), "{at_cap:?}");
        for hold in held {
            hold.settle(0);
        }
        clock.advance(Duration::from_secs(7_200));
        assert_eq!(limiter.key("key").peek().remaining, 2);
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Wait(u64, u64),
    /// Those who wait look whether it is their turn.
    Notice,
    Leave(usize),
    Check(u64),
    /// Holds without a wait.
    Hold(u64),
    /// Settles one of the open holds, of which so many in a hundred were spent.
    Settle(usize, u64),
    Drop(usize),
    Reserve(u64),
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let pass = prop_oneof![3 => Just(0), 3 => 1..200u64, 1 => 200..5_000u64];
    let act = prop_oneof![
        6 => (1..12u64, 0..9_000u64).prop_map(|(cost, timeout)| Act::Wait(cost, timeout)),
        4 => Just(Act::Notice),
        2 => (0..6usize).prop_map(Act::Leave),
        3 => (1..6u64).prop_map(Act::Check),
        2 => (1..6u64).prop_map(Act::Hold),
        5 => (0..6usize, 0..=100u64).prop_map(|(index, part)| Act::Settle(index, part)),
        1 => (0..6usize).prop_map(Act::Drop),
        1 => (1..4u64).prop_map(Act::Reserve),
    ];
    prop::collection::vec((pass, act), 1..70)
}

/// Tokens that were spent at some moment of a span of nanoseconds.
#[derive(Debug)]
struct Spent {
    tokens: u64,
    from: u64,
    to: u64,
}

fn is_within(rate: Rate, spent: &[Spent]) -> Result<(), TestCaseError> {
    const SECOND: u128 = 1_000_000_000;
    let times = spent.iter().flat_map(|one| [one.from, one.to]);
    let times: Vec<u64> = times.collect();
    for &from in &times {
        for &to in times.iter().filter(|to| **to >= from) {
            let met = spent.iter().filter(|one| one.from <= to && one.to >= from);
            let tokens: u64 = met.map(|one| one.tokens).sum();
            let span = u128::from(to + 1 - from);
            let bound = u128::from(rate.burst_size()) * SECOND + u128::from(rate.count()) * span;
            prop_assert!(
                u128::from(tokens) * SECOND <= bound,
                "{tokens} from {from} to {to}: {spent:?}"
            );
        }
    }
    Ok(())
}

fn run(algorithm: Algorithm, rate: Rate, acts: &[(u64, Act)]) -> Result<(), TestCaseError> {
    let (limiter, clock) = limiter(algorithm, rate);
    let (mut waiting, mut open): (Vec<(u64, Waiter)>, Vec<_>) = Default::default();
    let (mut spent, mut now) = (Vec::new(), 0);
    for &(pass, act) in acts {
        clock.advance(Duration::from_millis(pass));
        now += pass * 1_000_000;
        let at_once = |tokens| Spent {
            tokens,
            from: now,
            to: now,
        };
        match act {
            Act::Wait(cost, timeout) => {
                let mut waiter = wait(&limiter, cost, Duration::from_millis(timeout));
                match waiter.poll() {
                    None => waiting.push((cost, waiter)),
                    Some(Ok(hold)) => open.push((hold, cost, now)),
                    Some(Err(_)) => {}
                }
            }
            Act::Notice => {
                waiting.retain_mut(|(cost, waiter)| match waiter.poll() {
                    None => true,
                    Some(held) => {
                        open.extend(held.ok().map(|hold| (hold, *cost, now)));
                        false
                    }
                });
            }
            Act::Leave(index) if index < waiting.len() => drop(waiting.remove(index)),
            Act::Check(cost) if limiter.key("key").allow_n(cost) => spent.push(at_once(cost)),
            Act::Hold(cost) => {
                let levels = [Limit::estimated("", limiter.key_owned("key"), cost)];
                let hold = CompositeLimiter::new().hold(&levels, LONG).ok();
                open.extend(hold.map(|hold| (hold, cost, now)));
            }
            Act::Settle(index, part) if index < open.len() => {
                let (hold, cost, from) = open.remove(index);
                let tokens = cost * part / 100;
                hold.settle(tokens);
                let to = now;
                spent.push(Spent { tokens, from, to });
            }
            Act::Drop(index) if index < open.len() => {
                let (hold, tokens, from) = open.remove(index);
                drop(hold);
                let to = now;
                spent.push(Spent { tokens, from, to });
            }
            Act::Reserve(cost) => {
                if let Ok(slot) = limiter.key("key").reserve(cost) {
                    let at = now + u64::try_from(slot.delay().as_nanos()).expect("a while");
                    slot.keep();
                    let (tokens, from, to) = (cost, at, at);
                    spent.push(Spent { tokens, from, to });
                }
            }
            _ => {}
        }
    }
    for (_, tokens, from) in &open {
        let (tokens, from, to) = (*tokens, *from, now);
        spent.push(Spent { tokens, from, to });
    }
    is_within(rate, &spent)?;
    // Whatever happened, nothing stays out.
    drop(waiting);
    for (hold, ..) in open {
        hold.settle(0);
    }
    clock.advance(Duration::from_secs(1_000));
    prop_assert_eq!(limiter.key("key").peek().remaining, rate.burst_size());
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(1_000))]

    #[test]
    fn what_is_waited_for_never_adds_to_the_bound(
        algorithm in prop::sample::select(&[Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra][..]),
        count in 1..9u64,
        burst in 1..15u64,
        acts in acts(),
    ) {
        run(algorithm, Rate::per_second(count).burst(burst), &acts)?;
    }
}

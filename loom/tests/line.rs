//! A queue against its limit, over all interleavings: waiters that leave, wake-ups, refunds, and changes of the
//! limit while another waiter joins.
//!
//! Time goes no further than a model says, and a sleep beyond that ends only when the thread is unparked: a
//! missing wake-up shows as a deadlock.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use tollgate::{Clock, CompositeLimiter, KeyedLimiter, Limit, Limiter, Rate, Timestamp};

const SECOND: u64 = 1_000_000_000;

/// A clock that sleeps advance, up to a time.
struct ManualClock {
    nanos: AtomicU64,
    last: u64,
}

impl ManualClock {
    fn seconds(last: u64) -> Arc<Self> {
        Arc::new(Self {
            nanos: AtomicU64::new(0),
            last: last * SECOND,
        })
    }

    fn go_to(&self, at: u64) {
        self.nanos.fetch_max(at, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    fn park_until_woken(&self, at: Timestamp) {
        if at.as_nanos() > self.last {
            thread::park();
        } else {
            self.go_to(at.as_nanos());
        }
    }
}

type FairLimiter = Limiter<Arc<ManualClock>>;
type Keys = KeyedLimiter<Arc<ManualClock>>;

/// One token in a second, and the first is taken.
fn fair_limiter(last: u64) -> Arc<FairLimiter> {
    let line = Limiter::with_clock(Rate::per_second(1), ManualClock::seconds(last));
    assert!(line.allow());
    Arc::new(line)
}

fn keys(last: u64) -> Arc<Keys> {
    let builder = KeyedLimiter::builder(Rate::per_second(1), 8).clock(ManualClock::seconds(last));
    let keys = builder.build().unwrap();
    assert!(keys.allow(&1));
    Arc::new(keys)
}

/// Runs `model` over all interleavings with at most this many preemptions, which is where races show.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Runs `other` while this thread runs `own`.
fn run_both<T: Send + Sync + 'static>(shared: &Arc<T>, other: fn(&T), own: fn(&T)) {
    let theirs = Arc::clone(shared);
    let thread = thread::spawn(move || other(&theirs));
    own(shared);
    thread.join().unwrap();
}

/// Whether a waiter that polls once and then leaves has passed.
fn passes_at_once(line: &FairLimiter) -> bool {
    line.acquire().wait_for_polls(1) == Some(Ok(()))
}

fn has_passed(line: &FairLimiter) {
    assert!(line.acquire().wait_blocking().is_ok());
}

#[test]
fn whoever_is_behind_one_that_leaves_moves_up() {
    check(3, || {
        // No second token comes.
        let line = fair_limiter(1);
        run_both(&line, |line| assert!(!passes_at_once(line)), has_passed);
        assert_eq!(line.waiters(), 0);
        assert_eq!(line.check().wait_or_max().as_secs(), 1);
    });
}

#[test]
fn one_whose_turn_comes_while_it_leaves_passes_it_on() {
    check(2, || {
        let line = fair_limiter(1);
        let threads = [
            // A check grants the first waiter its token, which that one may not notice any more.
            |line: &FairLimiter| {
                line.clock().go_to(SECOND);
                line.allow()
            },
            |line: &FairLimiter| line.acquire().wait_for_polls(1) == Some(Ok(())),
        ]
        .map(|body| {
            let line = Arc::clone(&line);
            thread::spawn(move || body(&line))
        });
        let passed = threads.map(|thread| thread.join().unwrap());
        // One token came: one of them has it, or it is there yet.
        let passed = passed.into_iter().filter(|passed| *passed).count();
        assert_eq!(line.clock().now(), Timestamp::from_secs(1));
        assert_eq!(passed + usize::from(line.allow()), 1);
        assert_eq!(line.waiters(), 0);
    });
}

#[test]
fn a_change_is_not_missed_by_one_who_comes() {
    check(3, || {
        // No token ever comes by itself.
        let change = |line: &FairLimiter| line.set_rate(Rate::per_second(1).burst(2)).unwrap();
        run_both(&fair_limiter(0), change, has_passed);
    });
}

#[test]
fn a_cancelled_reservation_is_not_missed_by_one_who_comes() {
    check(3, || {
        let line = Limiter::with_clock(Rate::per_second(1), ManualClock::seconds(0));
        let line = Arc::new(line);
        let theirs = Arc::clone(&line);
        let slot = line.reserve(1).unwrap();
        let thread = thread::spawn(move || has_passed(&theirs));
        slot.cancel();
        thread.join().unwrap();
    });
}

#[test]
fn a_key_that_one_leaves_is_anothers_turn() {
    check(2, || {
        let keys = keys(1);
        run_both(
            &keys,
            |keys| assert!(keys.key(&1).acquire().wait_for_polls(1).is_none()),
            |keys| assert!(keys.key(&1).acquire().wait_blocking().is_ok()),
        );
        assert_eq!(keys.waiters(), 0);
        assert_eq!(keys.check(&1).wait_or_max().as_secs(), 1);
    });
}

#[test]
fn a_key_that_is_given_back_is_not_missed_by_one_who_comes() {
    check(2, || {
        let keys = keys(0);
        run_both(
            &keys,
            |keys| keys.key(&1).refund(1),
            |keys| assert!(keys.key(&1).acquire().wait_blocking().is_ok()),
        );
    });
}

#[test]
fn a_change_of_rate_is_not_missed_by_one_who_comes_to_a_key() {
    check(2, || {
        let keys = keys(0);
        run_both(
            &keys,
            |keys| keys.set_rate(Rate::per_second(1).burst(2)).unwrap(),
            |keys| assert!(keys.key(&1).acquire().wait_blocking().is_ok()),
        );
    });
}

/// Holds two tokens of two for a second, one of which is spent. Returns whether it could.
fn hold_two(line: &FairLimiter) -> bool {
    let levels = [Limit::estimated("two", line, 2)];
    let held = CompositeLimiter::new().hold(&levels, Duration::from_secs(9));
    line.clock().go_to(SECOND);
    let is_held = held.is_ok();
    if let Ok(hold) = held {
        hold.settle(1);
    }
    is_held
}

#[test]
fn a_check_never_passes_on_what_is_out() {
    check(3, || {
        let rate = Rate::per_second(1).burst(2);
        let line = Arc::new(Limiter::with_clock(rate, ManualClock::seconds(0)));
        let theirs = Arc::clone(&line);
        let thread = thread::spawn(move || hold_two(&theirs));
        // At no time, before, during or after the hold, does a second request pass: held tokens don't drain.
        let passed = u64::from(line.allow()) + u64::from(line.allow());
        if thread.join().unwrap() {
            assert!(passed <= 1, "{passed} passed beside two that were held");
            assert_eq!(line.peek().remaining, 1 - passed);
        } else {
            assert!(passed > 0);
        }
    });
}

#[test]
fn two_who_settle_give_back_what_they_did_not_spend() {
    check(2, || {
        let rate = Rate::per_second(1).burst(4);
        let line = Arc::new(Limiter::with_clock(rate, ManualClock::seconds(0)));
        let both = [0, 1].map(|_| {
            let line = Arc::clone(&line);
            thread::spawn(move || hold_two(&line))
        });
        let held = both.map(|thread| thread.join().unwrap());
        let held = held.into_iter().filter(|held| *held).count();
        // A request that read the clock before the hold was recorded for a second comes too early, and may be
        // denied. Nothing drains while tokens are held, and each request spent one.
        let left = line.peek().remaining;
        assert!(matches!((held, left), (1 | 2, 3) | (2, 2)), "{held} {left}");
    });
}

//! Every race on one limiter, over all interleavings: charge, reserve, cancel, live change, stripes.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Limiter, Rate, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(5);

type Shared = Arc<Limiter<Manual>>;

fn limiter(rate: Rate) -> Shared {
    Arc::new(Limiter::with_clock(rate, Manual::starting_at(NOW)))
}

/// A striped limit whose leases are an eighth of its burst.
fn one_stripe(burst: u64) -> Shared {
    let limiter = Limiter::builder(Rate::per_second(10_000_000).burst(burst))
        .stripes(1)
        .clock(Manual::starting_at(NOW))
        .build();
    Arc::new(limiter.unwrap())
}

fn passes(limiter: &Limiter<Manual>, cost: u64) -> u64 {
    cost * u64::from(limiter.check_at(NOW, cost).is_allowed())
}

/// Runs `model` over all interleavings with at most three preemptions, which is where races show.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Spawns one thread for each closure and adds up what they admitted.
fn admitted<const N: usize>(limiter: &Shared, bodies: [fn(&Limiter<Manual>) -> u64; N]) -> u64 {
    let threads = bodies.map(|body| {
        let limiter = Arc::clone(limiter);
        thread::spawn(move || body(&limiter))
    });
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum()
}

#[test]
fn threads_share_the_burst_exactly() {
    check(|| {
        let limiter = limiter(Rate::per_second(1).burst(2));
        let total = admitted(
            &limiter,
            [
                |l| passes(l, 1) + passes(l, 1),
                |l| passes(l, 1) + passes(l, 1),
            ],
        );
        assert_eq!(total, 2);
        assert_eq!(limiter.peek_at(NOW).remaining, 0);
    });
}

#[test]
fn weighted_costs_never_sum_above_the_burst() {
    check(|| {
        let limiter = limiter(Rate::per_second(1).burst(5));
        let total = admitted(
            &limiter,
            [|l| passes(l, 3), |l| passes(l, 2), |l| passes(l, 4)],
        );
        assert!(total <= 5, "{total}");
        assert_eq!(limiter.peek_at(NOW).remaining, 5 - total);
    });
}

#[test]
fn a_cancelled_slot_comes_back_only_if_nothing_was_built_on_it() {
    check(|| {
        let limiter = limiter(Rate::per_second(1).burst(2));
        let total = admitted(
            &limiter,
            [
                |l| {
                    l.reserve_at(NOW, 2).unwrap().cancel_at(NOW);
                    0
                },
                |l| passes(l, 1) + passes(l, 1),
            ],
        );
        // Whatever the order, the bucket and the admissions together never exceed the burst.
        let left = limiter.peek_at(NOW).remaining;
        assert!(total + left <= 2, "{total} + {left}");
    });
}

#[test]
fn reservations_act_one_interval_apart() {
    check(|| {
        let limiter = limiter(Rate::per_second(1));
        let threads = [(); 2].map(|()| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || {
                let slot = limiter.reserve_at(NOW, 1).unwrap();
                let at = slot.ready_at();
                slot.keep();
                at
            })
        });
        let mut acts = threads.map(|thread| thread.join().unwrap());
        acts.sort();
        assert_eq!(acts, [NOW, NOW + Duration::from_secs(1)]);
    });
}

#[test]
fn a_live_change_keeps_exactly_what_was_spent() {
    check(|| {
        let limiter = limiter(Rate::per_second(1).burst(3));
        let total = admitted(
            &limiter,
            [
                |l| {
                    l.set_rate_at(NOW, Rate::per_second(7).burst(3)).unwrap();
                    0
                },
                |l| passes(l, 1) + passes(l, 1),
            ],
        );
        assert_eq!(total, 2);
        assert_eq!(limiter.peek_at(NOW).remaining, 1);
    });
}

#[test]
fn a_check_never_sees_half_a_change() {
    check(|| {
        // Both rates deny a cost of 4; a mix of one's interval with the other's capacity would not.
        let limiter = limiter(Rate::per_second(1).burst(3));
        let total = admitted(
            &limiter,
            [
                |l| {
                    l.set_rate_at(NOW, Rate::per_second(1000).burst(3)).unwrap();
                    0
                },
                |l| passes(l, 4) + passes(l, 3),
            ],
        );
        assert_eq!(total, 3);
    });
}

#[test]
fn threads_on_one_stripe_stay_within_the_burst() {
    check(|| {
        let limiter = one_stripe(16);
        assert_eq!(passes(&limiter, 13), 13);
        let total = admitted(
            &limiter,
            [
                |l| passes(l, 1) + passes(l, 1),
                |l| passes(l, 1) + passes(l, 1),
            ],
        );
        assert!((1..=3).contains(&total), "{total}");
    });
}

#[test]
fn what_is_left_of_a_lease_is_spent_here_or_there_but_not_twice() {
    check(|| {
        let limiter = one_stripe(32);
        assert_eq!(passes(&limiter, 27), 27);
        // Takes a lease of 4 and leaves 3 of it in the stripe; 1 more is in the shared word.
        assert_eq!(passes(&limiter, 1), 1);
        let total = admitted(&limiter, [|l| passes(l, 1), |l| passes(l, 4)]);
        assert!(total == 1 || total == 4, "{total}");
    });
}

#[test]
fn stripes_hold_nothing_over_a_live_change() {
    check(|| {
        let limiter = one_stripe(16);
        assert_eq!(passes(&limiter, 14), 14);
        let total = admitted(
            &limiter,
            [
                |l| {
                    l.set_rate_at(NOW, Rate::zero()).unwrap();
                    0
                },
                |l| passes(l, 1),
            ],
        );
        assert!(total <= 1);
        // One late spender aside, nothing passes at a rate of zero.
        assert_eq!(passes(&limiter, 1), 0);
    });
}

#[test]
fn a_locked_bucket_restores_what_is_cancelled() {
    check(|| {
        let limiter = Limiter::builder(Rate::per_second(1).burst(2))
            .algorithm(Algorithm::TokenBucket)
            .clock(Manual::starting_at(NOW))
            .build()
            .unwrap();
        let limiter = Arc::new(limiter);
        let total = admitted(
            &limiter,
            [
                |l| {
                    l.reserve_at(NOW, 1).unwrap().cancel_at(NOW);
                    0
                },
                |l| passes(l, 1),
            ],
        );
        assert_eq!(total, 1);
        assert_eq!(limiter.peek_at(NOW).remaining, 1);
    });
}

#[test]
fn a_handle_on_the_cached_time_always_finds_somebody_who_keeps_it() {
    check(|| {
        let upkeep = Arc::new(tollgate::models::UpkeepState::new());
        assert!(upkeep.add_handle());
        upkeep.remove_handle();
        // The old thread ends because there are no handles, while a new one starts.
        let ending = {
            let upkeep = Arc::clone(&upkeep);
            thread::spawn(move || !upkeep.is_needed() && !upkeep.retire_or_continue())
        };
        let started = upkeep.add_handle();
        let ended = ending.join().unwrap();
        // Exactly one runs: the old thread if it did not end, or the new one.
        assert!(upkeep.is_running());
        assert_eq!(ended, started);
    });
}

/// A time after the limiter was made: within the four and a half years of its word, or after them, from day
/// 1,669 on.
fn day(days: u32) -> Timestamp {
    Timestamp::ZERO + days * Duration::from_secs(86_400)
}

/// One if a request passes at that time.
fn passes_on(limiter: &Limiter<Manual>, days: u32) -> u64 {
    u64::from(limiter.check_at(day(days), 1).is_allowed())
}

#[test]
fn a_word_that_is_charged_while_it_is_counted_anew_gives_what_it_has() {
    check(|| {
        // Three tokens that take 219 days each, two of them spent: before and after that day one is there.
        let every = 219 * Duration::from_secs(86_400);
        let limiter = limiter(Rate::every(every).burst(3));
        assert!(limiter.check_at(day(1_600), 2).is_allowed());
        let passed = admitted(
            &limiter,
            [
                |limiter| passes_on(limiter, 1_667) + passes_on(limiter, 1_667),
                |limiter| passes_on(limiter, 1_669),
            ],
        );
        assert_eq!(passed, 1);
        let left = limiter.check_at(day(1_669), 0);
        let reset_after = day(1_600 + 3 * 219) - day(1_669);
        assert_eq!((left.remaining, left.reset_after), (0, reset_after));
    });
}

//! Refunds of a hold that is settled, dropped or expired.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, Limit, Limiter, Rate, Timestamp, core::WindowAlignment,
    stack::ReservationTerms,
};

use super::subject::{Keeper, Subject};
use super::world::ALGORITHMS;

const BUCKETS: [Algorithm; 3] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

/// Where nothing that is out drains.
fn tracked() -> Vec<Keeper> {
    let exact = BUCKETS.map(Keeper::Exact);
    let single = BUCKETS.map(Keeper::Limiter);
    let striped = [Keeper::Striped];
    exact.into_iter().chain(single).chain(striped).collect()
}

fn ten(place: Keeper) -> Subject {
    Subject::new(place, Rate::per_second(10))
}

/// Every place that settles.
fn all_places() -> Vec<Keeper> {
    let exact = ALGORITHMS.map(Keeper::Exact);
    let single = ALGORITHMS.map(Keeper::Limiter);
    let striped = [Keeper::Striped];
    exact.into_iter().chain(single).chain(striped).collect()
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Check(u64),
    Hold(u64),
    Drop(usize),
}

/// Holds that are all dropped before they are over leave what plain requests alone would have.
fn nothing_happened(place: Keeper, acts: &[(u64, Act)]) -> Result<(), TestCaseError> {
    let (subject, twin) = (ten(place), ten(place));
    let mut open = Vec::new();
    for &(wait, act) in acts {
        subject.advance(wait);
        twin.advance(wait);
        match act {
            Act::Check(cost) => {
                if subject.check(cost).is_allowed() {
                    prop_assert!(twin.check(cost).is_allowed());
                }
            }
            Act::Hold(cost) => open.extend(subject.hold(cost, 1_000_000)),
            Act::Drop(index) if index < open.len() => drop(open.swap_remove(index)),
            Act::Drop(_) => {}
        }
    }
    drop(open);
    for _ in 0..40 {
        let (own, other) = (subject.check(0), twin.check(0));
        prop_assert_eq!(own.remaining, other.remaining, "{:?}", place);
        let (own, other) = (subject.check(1), twin.check(1));
        prop_assert_eq!(own.outcome, other.outcome, "{:?}", place);
        prop_assert_eq!(own.wait_or_max(), other.wait_or_max(), "{:?}", place);
        subject.advance(37);
        twin.advance(37);
    }
    Ok(())
}

/// Any rate at any time: nothing panics, and in the end nothing is owed.
fn in_the_end(place: Keeper, acts: &[(u64, Act, u8)]) -> Result<(), TestCaseError> {
    let subject = ten(place);
    let mut open = Vec::new();
    for &(wait, act, rate) in acts {
        subject.advance(wait);
        match rate {
            0 => subject.set_rate(Rate::zero()),
            1 => subject.set_rate(Rate::unlimited()),
            2 => subject.set_rate(Rate::per_second(3)),
            3 => subject.set_rate(Rate::per_hour(2)),
            _ => {}
        }
        match act {
            Act::Check(cost) => drop(subject.check(cost)),
            Act::Hold(cost) => open.extend(subject.hold(cost, 700)),
            Act::Drop(index) if index < open.len() => {
                open.swap_remove(index).settle(index as u64 * 5);
            }
            Act::Drop(_) => {}
        }
    }
    subject.set_rate(Rate::per_second(10));
    // The longest debt is of two bursts at two an hour, kept as time.
    subject.advance(1_000_000_000);
    prop_assert_eq!(subject.left(), 10, "{:?}", place);
    drop(open);
    prop_assert_eq!(subject.left(), 10, "{:?}", place);
    prop_assert!(subject.check(10).is_allowed());
    prop_assert!(!subject.check(1).is_allowed());
    Ok(())
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1..5u64).prop_map(Act::Check),
        (1..5u64).prop_map(Act::Hold),
        (0..4usize).prop_map(Act::Drop),
    ]
}

proptest! {
    #![proptest_config(crate::cases(600))]

    #[test]
    fn nothing_is_owed_for_ever(
        place in prop::sample::select(all_places()),
        acts in prop::collection::vec((0..900u64, acts(), 0..12u8), 1..40),
    ) {
        in_the_end(place, &acts)?;
    }

    #[test]
    fn what_is_dropped_was_never_taken(
        // A window that opens with its first hit opens with a held one too, once others built on it.
        place in prop::sample::select(all_places())
            .prop_filter("opens with a hit", |place| !matches!(
                place,
                Keeper::Limiter(Algorithm::FixedWindow(WindowAlignment::FirstHit))
                    | Keeper::Exact(Algorithm::FixedWindow(WindowAlignment::FirstHit))
            )),
        acts in prop::collection::vec(
            (
                prop_oneof![Just(0), 0..150u64, 0..3_000u64],
                acts(),
            ),
            1..40,
        ),
    ) {
        nothing_happened(place, &acts)?;
    }
}

#[test]
fn the_latest_hold_is_undone_exactly() {
    for place in all_places() {
        let (subject, twin) = (ten(place), ten(place));
        for one in [&subject, &twin] {
            let _ = one.check(2);
            // In the next window.
            one.advance(1_050);
        }
        let hold = subject.hold(4, 60_000);
        subject.advance(30);
        twin.advance(30);
        drop(hold);
        for _ in 0..40 {
            assert_eq!(subject.check(1), twin.check(1), "{place:?}");
            subject.advance(77);
            twin.advance(77);
        }
    }
}

#[test]
fn what_is_out_does_not_drain() {
    for place in tracked() {
        let subject = ten(place);
        let hold = subject.hold(4, 60_000).expect("a full bucket");
        assert_eq!(subject.left(), 6, "{place:?}");
        assert!(subject.check(6).is_allowed());
        subject.advance(59_999);
        assert_eq!(subject.left(), 6, "{place:?}");
        hold.settle(1);
        assert_eq!(subject.left(), 9, "{place:?}");
        // The one that was spent drains from now on.
        subject.advance(99);
        assert_eq!(subject.left(), 9, "{place:?}");
        subject.advance(1);
        assert_eq!(subject.left(), 10, "{place:?}");
    }
}

#[test]
fn a_look_ahead_leaves_what_is_out_as_it_was() {
    for place in tracked() {
        let subject = ten(place);
        let hold = subject.hold(4, 2_000).expect("a full bucket");
        let ahead = |secs: u128| subject.look_at(1_000_000_000 * (1_000 + secs));
        assert_eq!([ahead(1), ahead(2), ahead(3)], [6, 6, 10], "{place:?}");
        assert_eq!(subject.left(), 6, "{place:?}");
        hold.settle(1);
        assert_eq!(subject.left(), 9, "{place:?}");
    }
}

#[test]
fn what_is_over_was_spent() {
    for place in tracked() {
        for touched in [false, true] {
            let subject = ten(place);
            let hold = subject.hold(4, 60_000).expect("a full bucket");
            subject.advance(60_000);
            if touched {
                assert_eq!(subject.left(), 6);
            }
            // Too late, whatever it says.
            hold.settle(0);
            assert_eq!(subject.left(), 6, "{place:?}");
            subject.advance(200);
            assert_eq!(subject.left(), 8, "{place:?}");
            subject.advance(200);
            assert_eq!(subject.left(), 10, "{place:?}");
        }
    }
}

#[test]
fn a_hold_that_is_over_drains_from_then_on_though_nobody_looked() {
    for place in tracked() {
        let subject = ten(place);
        let first = subject.hold(4, 1_000).expect("a full bucket");
        let second = subject.hold(3, 2_000).expect("six left");
        // The first is over for 150 ms, and the second still out.
        subject.advance(1_150);
        assert_eq!(subject.left(), 4, "{place:?}");
        subject.advance(850 + 100);
        assert_eq!(subject.left(), 8, "{place:?}");
        drop((first, second));
        assert_eq!(subject.left(), 8, "{place:?}");
    }
}

#[test]
fn more_than_the_estimate_is_owed() {
    for place in tracked() {
        let subject = ten(place);
        let hold = subject.hold(4, 60_000).expect("a full bucket");
        hold.settle(7);
        assert_eq!(subject.left(), 3, "{place:?}");
        let hold = subject.hold(3, 60_000).expect("three left");
        hold.settle(5);
        assert_eq!(subject.left(), 0, "{place:?}");
        // Two of debt, and the one that is asked for.
        let wait = subject.check(1).wait_or_max();
        assert_eq!(wait, Duration::from_millis(300), "{place:?}");
        subject.advance(300);
        assert!(subject.check(1).is_allowed(), "{place:?}");
        // A burst of debt at most.
        subject.advance(100);
        let hold = subject.hold(1, 60_000).expect("one left");
        hold.settle(u64::MAX);
        let wait = subject.check(1).wait_or_max();
        assert_eq!(wait, Duration::from_millis(1_100), "{place:?}");
    }
}

/// It takes no estimate, but may stand beside one.
#[test]
fn a_key_of_one_word_gives_back_all_or_nothing() {
    let subject = ten(Keeper::Keyed);
    let hold = || subject.hold(4, 60_000).expect("four left");
    hold().cancel();
    assert_eq!(subject.left(), 10);
    hold().settle(1);
    assert_eq!(subject.left(), 6);
    // Not what others have built on.
    let early = hold();
    assert!(subject.check(1).is_allowed());
    early.cancel();
    assert_eq!(subject.left(), 1);
    // Over: all of it was spent.
    subject.advance(2_000);
    let late = subject.hold(10, 10).expect("ten left");
    subject.advance(10);
    late.cancel();
    assert_eq!(subject.left(), 0);
}

#[test]
fn a_hold_that_is_dropped_is_charged_unless_its_terms_say_otherwise() {
    let minute = ReservationTerms::for_at_most(Duration::from_secs(60));
    for place in all_places() {
        let subject = ten(place);
        let hold = |terms| subject.hold_on(4, terms).expect("four left");
        drop(hold(minute.refund_on_drop()));
        assert_eq!(subject.left(), 10, "{place:?}");
        drop(hold(minute));
        assert_eq!(subject.left(), 6, "{place:?}");
        hold(minute).cancel();
        assert_eq!(subject.left(), 6, "{place:?}");
        drop(hold(Duration::from_secs(60).into()));
        assert_eq!(subject.left(), 2, "{place:?}");
    }
}

#[test]
fn windows_and_logs_give_back_where_they_were_charged() {
    for single in [false, true] {
        let of = |algorithm| {
            let place = if single {
                Keeper::Limiter(algorithm)
            } else {
                Keeper::Exact(algorithm)
            };
            ten(place)
        };
        for align in [
            WindowAlignment::Boundary(Timestamp::ZERO),
            WindowAlignment::FirstHit,
        ] {
            let subject = of(Algorithm::FixedWindow(align));
            let early = subject.hold(6, 60_000).expect("ten left");
            let late = subject.hold(2, 60_000).expect("four left");
            subject.advance(500);
            early.settle(1);
            assert_eq!(subject.left(), 7);
            subject.advance(600);
            assert!(subject.check(4).is_allowed());
            // The window that it was counted in is over.
            late.settle(0);
            assert_eq!(subject.left(), 6);
        }
        let subject = of(Algorithm::SlidingLog);
        let hold = subject.hold(6, 60_000).expect("ten left");
        subject.advance(400);
        assert!(subject.check(3).is_allowed());
        hold.settle(2);
        assert_eq!(subject.left(), 5);
        let gone = subject.hold(5, 60_000).expect("five left");
        subject.advance(1_000);
        assert!(subject.check(4).is_allowed());
        drop(gone);
        assert_eq!(subject.left(), 6);

        let subject = of(Algorithm::SlidingCounter);
        let hold = subject.hold(8, 60_000).expect("ten left");
        subject.advance(1_500);
        // Half of the eight still count.
        assert_eq!(subject.left(), 6);
        assert!(subject.check(1).is_allowed());
        hold.settle(0);
        assert_eq!(subject.left(), 9);
        let hold = subject.hold(8, 60_000).expect("nine left");
        subject.advance(2_000);
        assert!(subject.check(1).is_allowed());
        drop(hold);
        assert_eq!(subject.left(), 9);
        // A window knows no debt: what is left of it is taken.
        subject.hold(1, 60_000).expect("nine left").settle(100);
        assert_eq!(subject.left(), 0);
    }
}

#[test]
fn a_booking_never_acts_on_what_is_out() {
    for place in tracked() {
        let subject = ten(place);
        let hold = subject.hold(8, 60_000).expect("ten left");
        assert!(subject.check(2).is_allowed());
        // Two can be had of what drains; for three some of what is out would have to come back.
        assert!(subject.reserve(3).is_none(), "{place:?}");
        // And for eleven nobody has to wait.
        assert!(subject.reserve(11).is_none(), "{place:?}");
        let slot = subject.reserve(2).expect("within what is not out");
        assert_eq!(slot.delay(), Duration::from_millis(200), "{place:?}");
        slot.cancel();
        hold.settle(8);
        let slot = subject.reserve(3).expect("nothing is out");
        assert_eq!(slot.delay(), Duration::from_millis(300), "{place:?}");
    }
}

#[test]
fn any_number_of_tokens_may_be_out() {
    for algorithm in ALGORITHMS {
        for place in [Keeper::Limiter(algorithm), Keeper::Exact(algorithm)] {
            let subject = Subject::new(place, Rate::unlimited());
            let holds = [u64::MAX, 5, u64::MAX].map(|cost| subject.hold(cost, 1_000));
            for hold in holds {
                hold.expect("no limit").settle(1);
            }
            assert_eq!(subject.left(), u64::MAX);
            let _over = subject.hold(u64::MAX, 1_000);
            let _too = subject.hold(u64::MAX, 1_000);
            subject.advance(2_000);
            assert!(subject.check(1).is_allowed());
        }
    }
}

#[test]
fn tokens_show_what_is_out() {
    for algorithm in ALGORITHMS {
        let clock = Manual::new();
        let builder = Limiter::builder(Rate::per_second(10)).algorithm(algorithm);
        let limiter = builder
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let stack = CompositeLimiter::new();
        let levels = [Limit::estimated("all", &limiter, 4)];
        let hold = stack.hold(&levels, Duration::from_secs(60));
        clock.advance(Duration::from_secs(5));
        let left = limiter.peek().remaining;
        assert!(
            (limiter.tokens().floor() - left as f64).abs() < 0.5,
            "{algorithm:?}"
        );
        drop(hold);
    }
}

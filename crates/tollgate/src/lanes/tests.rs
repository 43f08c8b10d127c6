//! Lanes on virtual time: guaranteed shares, lending, and the bound of all lanes together.

use proptest::prelude::*;
use tollgate_core::{Arithmetic, Bucket, Outcome, Rate, Timestamp, TokenBucket};
use tollgate_testkit::traffic::Random;

use super::lane_shares::LaneShares;
use crate::RateDenied;
use crate::wait_queue::Waiters as _;
use crate::wait_queue::shared_queue::{JoinOutcome, SharedQueue};

const SECOND: u64 = 1_000_000_000;

fn queue(total: Rate, lanes: &[(u64, u64)]) -> SharedQueue<LaneShares> {
    let rates = lanes
        .iter()
        .map(|(share, burst)| Rate::per_second(*share).burst(*burst));
    let shares = LaneShares::new(total, rates, 1_000, Timestamp::ZERO).unwrap();
    SharedQueue::new(shares, 10_000)
}

/// 60/40 of 100/s.
fn two() -> SharedQueue<LaneShares> {
    queue(Rate::per_second(100).burst(10), &[(60, 6), (40, 4)])
}

/// How many of `asks` requests a second pass in each lane within ten seconds, without waiting.
fn decided(mut queue: SharedQueue<LaneShares>, asks: &[u64]) -> Vec<u64> {
    let mut passed = vec![0; asks.len()];
    for milli in 0..10_000u64 {
        for (lane, asks) in (0..).zip(asks) {
            let due = (milli + 1) * asks / 1_000 - milli * asks / 1_000;
            let now = Timestamp::from_millis(milli);
            let allowed = (0..due).filter(|_| queue.allow(now, &lane, 1)).count();
            passed[lane as usize] += allowed as u64;
        }
    }
    passed
}

/// The same with waiters, never more than five in a lane.
fn queued(mut queue: SharedQueue<LaneShares>, asks: &[u64]) -> Vec<u64> {
    let mut passed = vec![0; asks.len()];
    let mut lane_of = std::collections::HashMap::new();
    for tenth in 0..100_000u64 {
        let now = Timestamp::from_micros(tenth * 100);
        queue.advance(now);
        for id in queue.take_finished() {
            assert_eq!(queue.outcome_of(id), Some(Ok(())));
            let lane: u32 = lane_of.remove(&id).unwrap();
            passed[lane as usize] += 1;
        }
        for (lane, asks) in (0..).zip(asks) {
            let due = (tenth + 1) * asks / 10_000 - tenth * asks / 10_000;
            for _ in 0..due {
                if queue.waiting_of(Some(lane)) == 5 {
                    break;
                }
                match queue.join(now, lane, 1, None).unwrap() {
                    JoinOutcome::Passed => passed[lane as usize] += 1,
                    JoinOutcome::Waiting(id) => {
                        lane_of.insert(id, lane);
                    }
                }
            }
        }
    }
    passed
}

fn about(got: &[u64], expected: &[u64]) {
    for (got_one, expected_one) in got.iter().zip(expected) {
        let slack = expected_one / 100 + 10;
        assert!(
            got_one.abs_diff(*expected_one) <= slack,
            "{got:?}, not {expected:?}"
        );
    }
}

#[test]
fn sixty_and_forty_of_a_hundred_in_all_mixes() {
    for form in [decided, queued] {
        // Both busy, one busy, the other busy, none.
        about(&form(two(), &[500, 500]), &[600, 400]);
        about(&form(two(), &[500, 0]), &[1_000, 0]);
        about(&form(two(), &[0, 500]), &[0, 1_000]);
        assert_eq!(form(two(), &[0, 0]), [0, 0]);
        // One uses a part of its share: the other gets the rest.
        about(&form(two(), &[20, 500]), &[200, 800]);
        about(&form(two(), &[500, 10]), &[900, 100]);
        // Both lanes within their shares: everything passes.
        assert_eq!(form(two(), &[60, 40]), [600, 400]);
    }
}

#[test]
fn what_is_left_goes_to_the_highest_lane_that_waits() {
    let three = || {
        queue(
            Rate::per_second(100).burst(10),
            &[(50, 5), (30, 3), (20, 2)],
        )
    };
    // The lowest is idle: its 20 go to the highest, not to both.
    about(&queued(three(), &[500, 500, 0]), &[700, 300, 0]);
    // The highest wants 10 of its 50: the other 40 go to the second; the third never starves.
    about(&queued(three(), &[10, 500, 500]), &[100, 700, 200]);
    about(&queued(three(), &[500, 500, 500]), &[500, 300, 200]);
    // The part that is guaranteed to no lane is lent as well.
    let loose = queue(Rate::per_second(100).burst(10), &[(30, 3), (20, 2)]);
    about(&queued(loose, &[500, 500]), &[800, 200]);
}

#[test]
fn a_flood_from_below_delays_nobody_above() {
    let mut queue = two();
    let mut random = Random::new(3);
    for milli in 0..20_000u64 {
        let now = Timestamp::from_millis(milli);
        for _ in 0..random.below(5) {
            queue.allow(now, &1, 1 + random.below(4));
        }
        // 50/s of its guaranteed 60.
        if milli % 20 == 0 {
            assert!(queue.allow(now, &0, 1), "at {now}");
        }
    }
}

#[test]
fn a_cost_above_its_lanes_burst_never_passes() {
    let mut queue = two();
    let decision = queue.check(Timestamp::ZERO, &1, 5);
    assert_eq!(decision.outcome, Outcome::Never);
    assert!(queue.check(Timestamp::ZERO, &1, 4).is_allowed());
}

#[test]
fn one_who_goes_without_noticing_hands_its_token_on_or_back() {
    let mut queue = queue(Rate::per_second(10).burst(2), &[(5, 1), (5, 1)]);
    let enter = |queue: &mut SharedQueue<LaneShares>, lane| {
        let now = Timestamp::ZERO;
        match queue.join(now, lane, 1, None).unwrap() {
            JoinOutcome::Waiting(id) => id,
            JoinOutcome::Passed => u32::MAX,
        }
    };
    assert_eq!(enter(&mut queue, 0), u32::MAX);
    let (first, second) = (enter(&mut queue, 0), enter(&mut queue, 0));
    let now = queue.next_at().unwrap();
    queue.advance(now);
    assert_eq!(queue.take_finished(), [first]);
    queue.leave(now, first);
    queue.advance(now);
    assert_eq!(queue.take_finished(), [second], "the next has it");
    queue.leave(now, second);
    assert!(
        queue.allow(now, &0, 1),
        "and nobody is left, so it came back"
    );
    assert!(!queue.allow(now, &0, 1));
}

proptest! {
    /// One lane keeps to its share and is never denied, whatever the others do, and all of them
    /// together keep to the rate.
    #[test]
    fn within_its_share_a_lane_always_passes(
        seed in any::<u64>(),
        shares in prop::collection::vec(1..50u64, 2..5),
        spare in 0..20u64,
        well_behaved in any::<prop::sample::Index>(),
        scale in 1..4u64,
    ) {
        let count = shares.iter().sum::<u64>() + spare;
        let lanes: Vec<_> = shares.iter().map(|share| (*share, share * scale)).collect();
        let total = Rate::per_second(count).burst(count * scale);
        let mut queue = queue(total, &lanes);
        let good = well_behaved.index(lanes.len());
        let (share, burst) = lanes[good];
        let own = TokenBucket::new(Rate::per_second(share).burst(burst)).unwrap();
        let mut bucket = Bucket::default();
        let mut random = Random::new(seed);
        let mut now = Timestamp::ZERO;
        let mut passed = Vec::new();
        for _ in 0..400 {
            now = now.plus_nanos(random.below(SECOND / count * 3));
            let lane = usize::try_from(random.below(shares.len() as u64)).unwrap();
            let cost = 1 + random.below(lanes[lane].1.min(4));
            let fits = lane != good || own.earliest(&bucket, now, cost) == Some(now);
            if !fits {
                continue;
            }
            let decision = queue.check(now, &u32::try_from(lane).unwrap(), cost);
            if lane == good {
                own.charge(&mut bucket, now, now, cost);
                prop_assert!(decision.is_allowed(), "lane {lane} of {lanes:?}, cost {cost}");
            }
            if decision.is_allowed() {
                passed.push((now, cost));
            }
        }
        for (first, (start, _)) in passed.iter().enumerate() {
            let mut sum = 0u128;
            for (end, cost) in &passed[first..] {
                sum += u128::from(*cost);
                let refilled = u128::from(end.nanos_since(*start)) * u128::from(count);
                let most = u128::from(count * scale) + refilled.div_ceil(u128::from(SECOND));
                prop_assert!(sum <= most);
            }
        }
    }

    /// A denial's `retry_after` is tight if no further request comes.
    #[test]
    fn retry_after_is_tight(seed in any::<u64>(), others in 0..40u64) {
        let fresh = || {
            let mut queue = queue(Rate::per_second(100).burst(20), &[(50, 10), (30, 6), (20, 4)]);
            let mut random = Random::new(seed);
            let mut now = Timestamp::ZERO;
            for _ in 0..others {
                now = now.plus_nanos(random.below(20_000_000));
                let lane = u32::try_from(random.below(3)).unwrap();
                queue.allow(now, &lane, 1 + random.below(4));
            }
            let lane = u32::try_from(random.below(3)).unwrap();
            (queue, now, lane, 1 + random.below(4))
        };
        let (mut first, now, lane, cost) = fresh();
        let decision = first.check(now, &lane, cost);
        if decision.outcome == Outcome::Denied {
            let at = now + decision.wait_or_max();
            let (mut early, ..) = fresh();
            let before = Timestamp::from_nanos(at.as_nanos() - 1);
            prop_assert!(!early.allow(before, &lane, cost));
            prop_assert!(first.allow(at, &lane, cost));
        }
    }

    /// A waiter that is admitted with a deadline passes by it if no further request comes, and the
    /// estimate for one that isn't is at least its real wait.
    #[test]
    fn what_one_is_told_to_expect_is_honest(seed in any::<u64>(), others in 1..60u64) {
        let fresh = || {
            let mut queue = queue(Rate::per_second(100).burst(20), &[(50, 10), (30, 6), (20, 4)]);
            let mut random = Random::new(seed);
            for _ in 0..others {
                let lane = u32::try_from(random.below(3)).unwrap();
                queue.join(Timestamp::ZERO, lane, 1 + random.below(4), None).unwrap();
            }
            let lane = u32::try_from(random.below(3)).unwrap();
            (queue, lane, 1 + random.below(4), random.below(SECOND))
        };
        // When it passes without a deadline.
        let passes = |queue: &mut SharedQueue<LaneShares>, id| loop {
            let now = queue.next_at().unwrap();
            queue.advance(now);
            if let Some(result) = queue.outcome_of(id) {
                return (result, now);
            }
        };
        let (mut queue, lane, cost, patience) = fresh();
        let really = match queue.join(Timestamp::ZERO, lane, cost, None) {
            Ok(JoinOutcome::Waiting(id)) => passes(&mut queue, id).1,
            other => {
                prop_assert_eq!(other, Ok(JoinOutcome::Passed));
                return Ok(());
            }
        };
        let (mut queue, ..) = fresh();
        let deadline = Timestamp::from_nanos(patience);
        match queue.join(Timestamp::ZERO, lane, cost, Some(deadline)) {
            Ok(JoinOutcome::Waiting(id)) => {
                let (result, at) = passes(&mut queue, id);
                prop_assert_eq!(result, Ok(()));
                prop_assert!(at <= deadline);
            }
            Err(RateDenied::DeadlineExceeded(decision)) => {
                let told = Timestamp::ZERO + decision.wait_or_max();
                prop_assert!(told >= really, "told {told}, was {really}");
                // Its own share alone, or a queue with all other lanes full: no worse than that.
                prop_assert!(told <= really.plus_nanos(SECOND), "told {told}, was {really}");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

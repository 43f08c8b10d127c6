//! Requests of several descriptors: which of them share a counter, their common charge, and the deciding one.

use std::time::Duration;

use tollgate::Outcome;
use tollgate_engine::engine::DescriptorDecision;
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};

use super::{Edge, Entries};

/// Each status, in short.
fn codes(verdict: &DescriptorDecision) -> Vec<StatusCode> {
    verdict.statuses.iter().map(|status| status.code).collect()
}

#[test]
fn hits_on_one_counter_add_up_within_a_request() {
    for (limit, most) in [(1, 0), (2, 1), (5, 2)] {
        let hour = format!("rate_limit: {{unit: hour, requests_per_unit: {limit}}}");
        let gcra = format!("rate_limit: {{rate: {limit}/h}}");
        let quota = format!("rate_limit: {{quota: {limit}/day}}");
        let shared = "value: \"/f/*\", share_threshold: true";
        for (what, entries) in [
            (hour.clone(), [("user", "ann"), ("user", "ann")]),
            (gcra, [("user", "ann"), ("user", "ann")]),
            (quota, [("user", "ann"), ("user", "ann")]),
            (
                format!("{shared}, {hour}"),
                [("user", "/f/a"), ("user", "/f/b")],
            ),
        ] {
            let edge = Edge::new(&format!("- {{key: user, {what}}}\n"));
            let twice: [Entries<'_>; 2] = [&entries[..1], &entries[1..]];
            assert_eq!(edge.passed(&twice), most, "{what}");
            let refused = edge.ask(&twice, 1);
            assert_eq!(codes(&refused), [StatusCode::OverLimit; 2], "{what}");
            // What is left is for one who names it once.
            let left = usize::try_from(limit).expect("a small number") - 2 * most;
            assert_eq!(edge.passed(&twice[..1]), left, "{what}");
        }
    }
}

#[test]
fn what_never_passes_together_is_told_so() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}\n");
    let ann: Entries<'_> = &[("user", "ann")];
    let refused = edge.ask(&[ann, ann], 1);
    assert_eq!(refused.retry_after, Duration::MAX);
    let outcomes = refused
        .statuses
        .iter()
        .map(|it| it.decision.map(|it| it.outcome));
    assert_eq!(outcomes.collect::<Vec<_>>(), [Some(Outcome::Never); 2]);
    // Who only looks, or gives back, adds nothing.
    let look = Descriptor {
        cost: Some(0),
        ..Descriptor::new(ann)
    };
    let back = Descriptor {
        refund: true,
        ..Descriptor::new(ann)
    };
    let request = [look, Descriptor::new(ann), back];
    assert!(
        edge.engine
            .decide_descriptors("edge", &request, 1)
            .denied()
            .is_none()
    );
    let again = edge.engine.decide_descriptors("edge", &request[..2], 1);
    assert_eq!(codes(&again), [StatusCode::Ok, StatusCode::OverLimit]);
}

#[test]
fn a_limit_in_shadow_that_is_met_twice_would_refuse_the_sum() {
    let edge = Edge::new(
        "- {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}\n",
    );
    let ann: Entries<'_> = &[("user", "ann")];
    let would = |verdict: DescriptorDecision| {
        assert!(verdict.denied().is_none());
        let each = verdict.statuses.iter().map(|status| status.would_deny);
        each.collect::<Vec<_>>()
    };
    assert_eq!(would(edge.ask(&[ann, ann], 1)), [false; 2]);
    assert_eq!(would(edge.ask(&[ann, ann], 1)), [true; 2]);
    assert_eq!(would(edge.ask(&[ann], 1)), [false]);
}

#[test]
fn a_limit_that_is_brought_along_adds_up_with_the_configured_one() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n");
    let ann: Entries<'_> = &[("user", "ann")];
    let asked = |requests| Descriptor {
        limit: Some((requests, Unit::Day)),
        ..Descriptor::new(ann)
    };
    let ask = |requests| {
        let both = [Descriptor::new(ann), asked(requests)];
        edge.engine.decide_descriptors("edge", &both, 1)
    };
    // Two at once: of five and of three, as far as the stricter one goes.
    assert!(ask(3).denied().is_none());
    let refused = ask(3);
    assert_eq!(codes(&refused), [StatusCode::Ok, StatusCode::OverLimit]);
    assert!(ask(9).denied().is_none());
    let refused = ask(9);
    assert_eq!(codes(&refused), [StatusCode::OverLimit, StatusCode::Ok]);
    assert!(edge.ask(&[ann], 1).denied().is_none());
    assert!(edge.ask(&[ann], 1).denied().is_some());
}

#[test]
fn who_only_looks_by_a_stricter_limit_refuses_nobody() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 3}}\n");
    let ann: Entries<'_> = &[("user", "ann")];
    let look = Descriptor {
        limit: Some((2, Unit::Day)),
        cost: Some(0),
        ..Descriptor::new(ann)
    };
    let request = [look, Descriptor::new(ann)];
    let ask = || edge.engine.decide_descriptors("edge", &request, 3);
    assert_eq!(codes(&ask()), [StatusCode::Ok; 2]);
    assert_eq!(codes(&ask()), [StatusCode::Ok, StatusCode::OverLimit]);
}

#[test]
fn what_passed_holds_its_slot_while_its_task_runs() {
    let edge = Edge::new("- {key: user, rate_limit: {concurrency: 1}}\n");
    let ann: Entries<'_> = &[("user", "ann")];
    let passed = edge.ask(&[ann], 1).allowed().expect("the first");
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let permits = passed.into_permits();
    let task = std::thread::spawn(move || {
        let _ = ends.recv();
        drop(permits);
    });
    // Each asks as `if` would, and drops what comes of it.
    let others = (0..10).filter(|_| edge.ask(&[ann], 1).allowed().is_some());
    assert_eq!(others.count(), 0);
    drop(end);
    task.join().expect("it ended");
    assert!(edge.ask(&[ann], 1).allowed().is_some());
}

#[test]
fn slots_are_one_a_request_however_often_they_are_named() {
    let edge = Edge::new("- {key: user, rate_limit: {concurrency: 1}}\n");
    let ann: Entries<'_> = &[("user", "ann")];
    for request in [&[ann][..], &[ann, ann]] {
        let runs = edge.ask(request, 1);
        assert!(runs.denied().is_none(), "{runs:?}");
        assert_eq!(
            codes(&edge.ask(request, 1)),
            vec![StatusCode::OverLimit; request.len()]
        );
        drop(runs);
    }
}

#[test]
fn each_refusal_tells_its_own_wait_and_the_request_the_longest() {
    let edge = Edge::new(
        "- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}\n\
         - {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}\n\
         - {key: c, rate_limit: {rate: 1/h}}\n",
    );
    let both: [Entries<'_>; 3] = [&[("a", "")], &[("b", "")], &[("c", "")]];
    assert!(edge.ask(&both, 1).denied().is_none());
    let waits = |verdict: &DescriptorDecision| {
        let each = verdict.statuses.iter().map(|it| it.decision);
        let each = each.map(|it| it.map_or(0, |it| it.wait_or_max().as_secs()));
        each.collect::<Vec<_>>()
    };
    let refused = edge.ask(&both[..2], 1);
    assert_eq!(
        (waits(&refused), refused.retry_after.as_secs()),
        (vec![1, 60], 60)
    );
    let refused = edge.ask(&both, 1);
    assert_eq!(
        (waits(&refused), refused.retry_after.as_secs()),
        (vec![1, 60, 3_600], 3_600)
    );
}

const QUOTAS: &str = "- {key: plain, rate_limit: {unit: second, requests_per_unit: 1}}\n\
     - {key: day, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
     - {key: week, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 2}}\n";

#[test]
fn under_quota_mode_a_request_waits_for_the_first_of_its_kind() {
    let plain: Entries<'_> = &[("plain", "")];
    let (day, week): (Entries<'_>, Entries<'_>) = (&[("day", "")], &[("week", "")]);
    let edge = Edge::new(QUOTAS);
    let waits = |request: &[Entries<'_>]| edge.ask(request, 1).retry_after.as_secs();
    assert_eq!(waits(&[plain, day, week]), 0);
    // The day is over, and the week is not: only the second is to be waited for.
    assert_eq!(waits(&[plain, day, week]), 1);
    // It would pass a second later, were it not for the day.
    assert_eq!(waits(&[plain, day]), 86_400);
    edge.clock.advance(Duration::from_secs(1));
    assert_eq!(waits(&[plain, day, week]), 0);
    edge.clock.advance(Duration::from_secs(1));
    assert_eq!(waits(&[plain, day, week]), 86_398);
}

#[test]
fn under_quota_mode_a_refusal_charges_nothing() {
    let plain: Entries<'_> = &[("plain", "")];
    let (day, week): (Entries<'_>, Entries<'_>) = (&[("day", "")], &[("week", "")]);
    let edge = Edge::new(QUOTAS);
    assert!(edge.ask(&[plain, day], 1).denied().is_none());
    edge.clock.advance(Duration::from_secs(1));
    let refused = edge.ask(&[plain, day], 1);
    assert_eq!(codes(&refused), [StatusCode::Ok, StatusCode::OverLimit]);
    assert!(
        edge.ask(&[plain], 1).denied().is_none(),
        "the second was charged"
    );
    // What refuses alone keeps the others from being charged, too.
    assert_eq!(
        codes(&edge.ask(&[plain, week], 1)),
        [StatusCode::OverLimit, StatusCode::Ok]
    );
    assert_eq!(edge.passed(&[week]), 2);
}

#[test]
fn very_long_lists_of_entries_count_to_their_end() {
    // The proxy's own limit, which no tree has to hold.
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n");
    let keys: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
    let mut entries: Vec<_> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    let mut pass = |place: usize, value| {
        entries[place].1 = value;
        let asked = [Descriptor {
            limit: Some((1, Unit::Day)),
            ..Descriptor::new(&entries)
        }];
        edge.engine
            .decide_descriptors("edge", &asked, 1)
            .denied()
            .is_none()
    };
    assert_eq!(
        [pass(99, "x"), pass(99, "y"), pass(99, "x"), pass(40, "y")],
        [true, true, false, true]
    );
}

#[test]
fn charging_each_still_counts_the_others_when_one_is_over() {
    let tree = "- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}\n\
         - {key: site, rate_limit: {unit: day, requests_per_unit: 7}}\n\
         - {key: slot, rate_limit: {concurrency: 1}}\n\
         - {key: tried, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 9}}\n";
    let (user, site): (Entries<'_>, Entries<'_>) = (&[("user", "ada")], &[("site", "x")]);
    let (slot, tried): (Entries<'_>, Entries<'_>) = (&[("slot", "")], &[("tried", "")]);
    let edge = Edge::charging("each", tree);
    for left in (2..7).rev() {
        let verdict = edge.ask(&[user, site, tried], 1);
        assert_eq!(verdict.denied().is_none(), left >= 5);
        let site = verdict.statuses[1].decision.map(|it| it.remaining);
        let tried = verdict.statuses[2].decision.map(|it| it.remaining);
        assert_eq!((site, tried), (Some(left), Some(left + 2)));
    }
    // What refuses is charged by no means, and who is refused holds no slot.
    let refused = edge.ask(&[site, user, slot], 3);
    let over = StatusCode::OverLimit;
    assert_eq!(codes(&refused), [over, over, StatusCode::Ok]);
    let runs = edge.ask(&[slot, site], 2);
    assert!(runs.denied().is_none());
    assert_eq!(codes(&edge.ask(&[slot, site], 1)), [over; 2]);
    drop(runs);
    // By default they are charged to all or to none.
    let edge = Edge::new(tree);
    assert_eq!(edge.passed(&[user, site]), 2);
    assert_eq!(edge.passed(&[site]), 5);
}

#[test]
fn charging_each_is_the_same_under_quota_mode() {
    let plain: Entries<'_> = &[("plain", "")];
    let (day, week): (Entries<'_>, Entries<'_>) = (&[("day", "")], &[("week", "")]);
    let edge = Edge::charging("each", QUOTAS);
    let over = StatusCode::OverLimit;
    assert!(edge.ask(&[plain, day], 1).denied().is_none());
    // The second is over, and the week is charged.
    assert_eq!(codes(&edge.ask(&[plain, week], 1)), [over, StatusCode::Ok]);
    edge.clock.advance(Duration::from_secs(1));
    // The day is over, and the second is charged.
    assert_eq!(codes(&edge.ask(&[plain, day], 1)), [StatusCode::Ok, over]);
    let refused = edge.ask(&[plain, day, week], 1);
    assert_eq!(codes(&refused), [over, over, StatusCode::Ok]);
    assert_eq!(refused.retry_after, Duration::from_secs(1));
    assert_eq!(codes(&edge.ask(&[week], 1)), [over]);
}

#[test]
fn a_refusal_names_the_one_to_wait_for() {
    let edge = Edge::new(
        "- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}\n\
         - {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}\n\
         - {key: c, rate_limit: {unit: minute, requests_per_unit: 9}}\n",
    );
    let request: [Entries<'_>; 4] = [&[("none", "")], &[("a", "")], &[("b", "")], &[("c", "")]];
    let decider = |request: &[Entries<'_>]| edge.ask(request, 1).decider;
    assert_eq!(decider(&request[..1]), None);
    // Both are used up; of one that passes, the one with the least left.
    assert_eq!(decider(&request), Some(1));
    assert_eq!(decider(&request), Some(2));
    assert_eq!(decider(&request[3..]), Some(0));
}

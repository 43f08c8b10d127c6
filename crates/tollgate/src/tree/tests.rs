//! A denial moves no token, and a demand expires after a second.

use std::time::Duration;

use tollgate_core::{Rate, Timestamp};
use tollgate_testkit::traffic::Random;

use super::lending::DEMAND_DURATION;
use super::{Class, ClassTree, Leaf};
use crate::clock::Manual;

/// Two branches with plain and keyed leaves, which may borrow or not.
fn grown(ceils: bool) -> (ClassTree<Manual>, Vec<Leaf>) {
    let tree = ClassTree::builder(Rate::per_second(100))
        .clock(Manual::new())
        .build()
        .unwrap();
    let class = |rate| {
        let class = Class::new(Rate::per_second(rate));
        if ceils {
            class.ceiling(Rate::per_second(90))
        } else {
            class
        }
    };
    let mut leaves = Vec::new();
    for (name, rate) in [("left", 60), ("right", 30)] {
        let branch = tree.add_branch(name, tree.root(), class(rate)).unwrap();
        let second = class(10).priority(1);
        leaves.push(tree.add_leaf("first", branch, class(10)).unwrap());
        leaves.push(tree.add_leaf("second", branch, second).unwrap());
        let keyed = tree.add_leaves("keyed", branch, class(3), 5).unwrap();
        leaves.extend((0..5).map(|key| tree.leaf(keyed, &key)));
    }
    (tree, leaves)
}

fn refusals_keep(ceils: bool) {
    let mut random = Random::new(3);
    let (tree, leaves) = grown(ceils);
    let (mut now, mut refused) = (Timestamp::ZERO, 0);
    // Every leaf exists, so that an evaluation doesn't make one.
    for leaf in &leaves {
        tree.peek_at(now, *leaf, 1);
    }
    for _ in 0..5_000 {
        now = now.plus_nanos(random.below(10_000_000));
        let leaf = leaves[usize::try_from(random.below(14)).unwrap()];
        let cost = 1 + random.below(15);
        let before = format!("{:?}", tree.lock());
        let forgotten = format!("{:?}", tree.lock().without_wants());
        if tree.allow_at(now, leaf, cost) {
            continue;
        }
        refused += 1;
        let after = format!("{:?}", tree.lock().without_wants());
        assert_eq!(after, forgotten);
        if !ceils {
            assert_eq!(format!("{:?}", tree.lock()), before);
        }
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn a_refusal_moves_no_token() {
    refusals_keep(true);
    refusals_keep(false);
}

#[test]
fn who_asks_without_taking_leaves_what_a_refused_request_would() {
    let mut random = Random::new(4);
    let (tree, leaves) = grown(true);
    let (mut now, mut refused) = (Timestamp::ZERO, 0);
    for leaf in &leaves {
        tree.peek_at(now, *leaf, 1);
    }
    for turn in 0..5_000 {
        now = now.plus_nanos(random.below(10_000_000));
        let leaf = leaves[usize::try_from(random.below(14)).unwrap()];
        let cost = 1 + random.below(15);
        let before = tree.lock().clone();
        let passes = if turn % 2 == 0 {
            tree.would_allow_at(now, leaf, cost)
        } else {
            let seen = tree.peek_at(now, leaf, cost);
            assert_eq!(tree.peek_with_demand_at(now, leaf, cost), seen);
            seen.is_allowed()
        };
        let asked = format!("{:?}", tree.lock());
        if passes {
            assert_eq!(asked, format!("{before:?}"));
        }
        *tree.lock() = before;
        assert_eq!(tree.allow_at(now, leaf, cost), passes);
        if !passes {
            refused += 1;
            assert_eq!(asked, format!("{:?}", tree.lock()));
        }
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn a_want_is_forgotten_after_a_second() {
    let (tree, leaves) = grown(true);
    let now = Timestamp::from_secs(10);
    while tree.allow_at(now, leaves[0], 1) {}
    for leaf in &leaves {
        let _ = tree.allow_at(now, *leaf, 30);
    }
    let left = |tree: &ClassTree<Manual>, now| {
        let left = leaves
            .iter()
            .map(|leaf| tree.peek_at(now, *leaf, 1).decision);
        left.collect::<Vec<_>>()
    };
    let times = || (0..1_100).map(|millis| now + Duration::from_millis(millis));
    let wanting: Vec<_> = times().map(|now| left(&tree, now)).collect();
    let without = tree.lock().without_wants();
    *tree.lock() = without;
    let forgotten: Vec<_> = times().map(|now| left(&tree, now)).collect();
    let after = usize::try_from(DEMAND_DURATION.as_millis()).unwrap();
    assert_ne!(wanting[..after], forgotten[..after]);
    assert_eq!(wanting[after..], forgotten[after..]);
}

//! Classes that are added, changed and removed under traffic.

use tollgate::clock::Manual;
use tollgate::{
    ClassTree, Outcome, Rate, Timestamp,
    tree::{Class, TreeError},
};

use crate::sim::{BOTH, Source, expect, run};

fn rate(count: u64) -> Rate {
    Rate::per_second(count)
}

#[test]
fn shares_follow_a_change_of_class() {
    for arrivals in BOTH {
        let tree = ClassTree::builder(rate(10_000))
            .clock(Manual::new())
            .build()
            .unwrap();
        let class = |weight| Class::new(rate(1_000)).ceiling(rate(10_000)).weight(weight);
        let [a, b] = ["a", "b"].map(|name| tree.add_leaf(name, tree.root(), class(1)).unwrap());
        let sources =
            |from, until| [a, b].map(|leaf| Source::new(leaf, 20_000).between(from, until));
        let got = run(&tree, arrivals, &sources(0.0, 6.0), 6.0);
        expect(&got, 1.0, 6.0, &[5_000.0, 5_000.0]);
        tree.set_class_at(Timestamp::from_secs(6), b, class(3))
            .unwrap();
        let got = run(&tree, arrivals, &sources(6.0, 12.0), 12.0);
        expect(&got, 8.0, 12.0, &[3_000.0, 7_000.0]);
        // Without a ceil it has its rate, and the other one the rest.
        tree.set_class_at(Timestamp::from_secs(12), b, Class::new(rate(1_000)))
            .unwrap();
        let got = run(&tree, arrivals, &sources(12.0, 18.0), 18.0);
        expect(&got, 14.0, 18.0, &[9_000.0, 1_000.0]);
        tree.set_class_at(
            Timestamp::from_secs(18),
            tree.root(),
            Class::new(rate(5_000)),
        )
        .unwrap();
        let got = run(&tree, arrivals, &sources(18.0, 24.0), 24.0);
        expect(&got, 20.0, 24.0, &[4_000.0, 1_000.0]);
    }
}

#[test]
fn keyed_leaves_follow_a_change_and_keep_what_they_have() {
    let tree = ClassTree::builder(rate(10_000))
        .clock(Manual::new())
        .build()
        .unwrap();
    let users = tree
        .add_leaves("user", tree.root(), Class::new(rate(10)), 100)
        .unwrap();
    let leaves: Vec<_> = (0..100).map(|user| tree.leaf(users, &user)).collect();
    let passed = |leaf, secs| {
        let now = Timestamp::from_secs(secs);
        (0..100).filter(|_| tree.allow_at(now, leaf, 1)).count()
    };
    assert!(leaves.iter().all(|leaf| passed(*leaf, 0) == 10));
    let class = Class::new(rate(20));
    tree.set_class_at(Timestamp::from_secs(0), users, class)
        .unwrap();
    assert_eq!(tree.class(users), Some(class));
    // Nothing was left, and a second at the new rate has passed since the change.
    assert!(leaves.iter().all(|leaf| passed(*leaf, 0) == 0));
    assert!(leaves.iter().all(|leaf| passed(*leaf, 1) == 20));
}

#[test]
fn what_was_removed_passes_nothing_and_its_share_is_free() {
    let tree = ClassTree::builder(rate(100))
        .clock(Manual::new())
        .build()
        .unwrap();
    let class = |promised| Class::new(rate(promised)).ceiling(rate(100));
    let branch = tree.add_branch("branch", tree.root(), class(40)).unwrap();
    let leaf = tree.add_leaf("leaf", branch, class(40)).unwrap();
    let users = tree
        .add_leaves("user", branch, Class::new(rate(1)), 10)
        .unwrap();
    let other = tree.add_leaf("other", tree.root(), class(10)).unwrap();
    let user = tree.leaf(users, "alice");
    let now = Timestamp::ZERO;
    assert!(tree.allow_at(now, user, 1));
    assert!(!tree.peek_at(now, other, 70).is_allowed());
    for node in [
        tollgate::tree::NodeId::from(leaf),
        users.into(),
        branch.into(),
    ] {
        tree.remove(node).unwrap();
        assert_eq!(tree.remove(node), Err(TreeError::NodeRemoved));
        assert_eq!(tree.path(node), None);
    }
    for gone in [leaf, user] {
        let ruling = tree.check_at(now, gone, 1);
        assert_eq!(ruling.decision.outcome, Outcome::Never);
        assert_eq!(ruling.node, gone.into());
    }
    assert_eq!(
        tree.add_leaf("x", branch, class(1)),
        Err(TreeError::NodeRemoved)
    );
    assert!(tree.peek_at(now, other, 89).is_allowed());
    // A new leaf in the same place is not the old one.
    let again = tree.add_leaf("again", tree.root(), class(1)).unwrap();
    assert_ne!(again, leaf);
    assert!(!tree.allow_at(now, leaf, 1));
}

//! The results of each verb, at given times.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    ClassTree, LimitError, Outcome, Rate, Timestamp,
    tree::{Class, TreeError},
};

use crate::sim::Manually;

fn tree(rate: Rate) -> Manually {
    let tree = ClassTree::builder(rate).clock(Manual::new()).build();
    tree.expect("a rate that fits")
}

fn rate(count: u64) -> Rate {
    Rate::per_second(count)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

#[test]
fn a_refusal_names_the_class_and_the_time() {
    let tree = tree(rate(100));
    let branch = tree
        .add_branch("search", tree.root(), Class::new(rate(20)))
        .unwrap();
    let leaf = tree
        .add_leaf("user", branch, Class::new(rate(10).burst(30)))
        .unwrap();
    let said = |cost| {
        let ruling = tree.check_at(at(0), leaf, cost);
        let decision = ruling.decision;
        let who = tree.path(ruling.node).unwrap();
        (
            decision.outcome,
            decision.remaining,
            decision.wait_or_max(),
            who,
        )
    };
    let millis = Duration::from_millis;
    let (search, user) = ("root/search", "root/search/user");
    assert_eq!(said(15), (Outcome::Allowed, 5, millis(0), user.into()));
    assert_eq!(said(6), (Outcome::Denied, 5, millis(50), search.into()));
    assert_eq!(said(5), (Outcome::Allowed, 0, millis(0), user.into()));
    assert_eq!(said(20), (Outcome::Denied, 0, millis(1_000), user.into()));
    assert_eq!(said(21), (Outcome::Never, 0, Duration::MAX, user.into()));
    assert_eq!(tree.peek_at(at(500), leaf, 0).decision.remaining, 10);
    assert_eq!(tree.peek_at(at(500), leaf, 0).decision.limit, 20);
}

#[test]
fn a_loan_leaves_what_others_may_claim() {
    let tree = tree(rate(100));
    let leaf = |name: &str, promised| {
        let class = Class::new(rate(promised)).ceiling(rate(100));
        tree.add_leaf(name, tree.root(), class).unwrap()
    };
    let (a, b) = (leaf("a", 30), leaf("b", 40));
    let passed = |leaf, millis| {
        (0..200)
            .filter(|_| tree.allow_at(at(millis), leaf, 1))
            .count()
    };
    // 30 of its own and 30 that nobody is promised, but for one in case that b has a part of a token.
    assert_eq!(passed(a, 0), 59);
    assert_eq!(passed(b, 0), 40);
    // b is quiet: what could be claimed fills up first, then a has it all.
    assert_eq!(passed(a, 1_000), 59);
    let second = |from: u64| {
        (1..=100)
            .map(|turn| passed(a, from + 10 * turn))
            .sum::<usize>()
    };
    assert_eq!((second(1_000), second(2_000)), (71, 100));
    assert_eq!(passed(b, 3_000), 40);
}

#[test]
fn what_is_given_back_at_once_is_as_if_never_taken() {
    let tree = tree(rate(100));
    let class = |promised| Class::new(rate(promised)).ceiling(rate(60));
    let branch = tree.add_branch("branch", tree.root(), class(10)).unwrap();
    let leaf = tree.add_leaf("leaf", branch, class(5)).unwrap();
    let left = || tree.peek_at(at(0), leaf, 0).decision;
    for cost in [1, 5, 10, 20, 60] {
        let before = left();
        let receipt = tree.charge_at(at(0), leaf, cost).unwrap();
        assert!(receipt.decision().is_allowed());
        assert!(left().remaining <= before.remaining - cost.min(before.remaining));
        tree.refund_at(at(0), receipt);
        assert_eq!(left(), before, "{cost}");
    }
    let all = tree.charge_at(at(0), leaf, 60).unwrap();
    let refused = tree.charge_at(at(0), leaf, 1).unwrap_err();
    assert_eq!(refused.decision.outcome, Outcome::Denied);
    // A second later it has been used: giving it back would be lending it twice.
    let later = left();
    tree.refund_at(at(1_000), all);
    assert_eq!(left(), later);
}

#[test]
fn a_look_changes_nothing() {
    let tree = tree(rate(10));
    let leaf = tree
        .add_leaf("leaf", tree.root(), Class::new(rate(5)))
        .unwrap();
    let users = tree
        .add_leaves("user", tree.root(), Class::new(rate(5)), 4)
        .unwrap();
    for _ in 0..10 {
        assert!(tree.peek_at(at(0), leaf, 5).is_allowed());
        assert!(tree.check_at(at(0), leaf, 0).is_allowed());
        let user = tree.leaf(users, "alice");
        assert_eq!(tree.peek_at(at(0), user, 3).decision.remaining, 5);
    }
    assert!(!tree.peek_at(at(0), leaf, 6).is_allowed());
}

#[test]
fn times_out_of_order_grant_nothing_extra() {
    let tree = tree(rate(10));
    let users = tree
        .add_leaves("user", tree.root(), Class::new(rate(5)), 1)
        .unwrap();
    let user = |name: &str| tree.leaf(users, name);
    assert!(tree.allow_at(at(5_000), user("alice"), 5));
    let early = tree.check_at(at(0), user("alice"), 1);
    assert_eq!(early.decision.wait_or_max(), Duration::from_millis(5_200));
    // Alice was idle at 6 s, so bob took her leaf; from then on nobody is before that.
    assert!(tree.allow_at(at(6_000), user("bob"), 5));
    let early = tree.check_at(at(5_500), user("bob"), 1);
    assert_eq!(early.decision.wait_or_max(), Duration::from_millis(700));
}

#[test]
fn more_keys_than_room_share_one_leaf_and_idle_ones_make_room() {
    let tree = tree(rate(1_000));
    let users = tree
        .add_leaves("user", tree.root(), Class::new(rate(2)), 10)
        .unwrap();
    let passed = |range: std::ops::Range<u32>, millis| {
        range
            .map(|user| tree.leaf(users, &user))
            .map(|leaf| {
                (0..5)
                    .filter(|_| tree.allow_at(at(millis), leaf, 1))
                    .count()
            })
            .sum::<usize>()
    };
    assert_eq!(passed(0..10, 0), 20);
    assert_eq!(tree.keys(users), 10);
    // Another hundred get what one would.
    assert_eq!(passed(10..110, 0), 2);
    assert_eq!(passed(0..10, 0), 0);
    assert_eq!(tree.keys(users), 10);
    assert_eq!(passed(200..210, 1_000), 20);
    assert_eq!(tree.keys(users), 10);
}

#[test]
fn errors_say_what_to_do() {
    let strict = ClassTree::builder(rate(10)).strict().build().unwrap();
    let class = Class::new(rate(1));
    let error = |class| {
        strict
            .add_leaf("a", strict.root(), class)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(class.ceiling(rate(2))),
        "class \"a\": a strict tree lends nothing; leave the ceil out, or build the tree without \
         strict()"
    );
    assert_eq!(
        error(class.priority(8)),
        "class \"a\": priority 8 is above 7; 0 is served first"
    );
    let out_of_range = Rate::new(100, Duration::from_nanos(1));
    assert!(matches!(
        strict.add_leaf("a", strict.root(), Class::new(out_of_range)),
        Err(TreeError::Rate {
            error: LimitError::OutOfRange { .. },
            ..
        })
    ));
    let tree = tree(rate(10));
    assert_eq!(
        tree.set_class(tree.root(), class.ceiling(rate(2)))
            .unwrap_err()
            .to_string(),
        "the root has nobody to borrow from; leave the ceil out and give it the whole rate"
    );
    let mut branch = tree.root();
    for level in 0..6 {
        branch = tree.add_branch(&level.to_string(), branch, class).unwrap();
    }
    assert!(tree.add_leaf("leaf", branch, class).is_ok());
    assert_eq!(
        tree.add_branch("7", branch, class).unwrap_err().to_string(),
        "class \"7\": a tree has at most 8 levels, from the root to a leaf"
    );
    assert_eq!(
        tree.remove(branch).unwrap_err().to_string(),
        "class \"5\" still has classes below it; remove those first"
    );
    assert_eq!(
        tree.remove(tree.root()).unwrap_err().to_string(),
        "the root can't be removed; drop the tree instead"
    );
}

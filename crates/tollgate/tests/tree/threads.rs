//! Real threads on one tree: never more than the bound in total.

use tollgate::clock::{Manual, Monotonic};
use tollgate::{ClassTree, Clock, Rate, tree::Class};
use tollgate_testkit::threads::run_together;

const THREADS: u32 = 4;

#[test]
fn at_one_instant_all_threads_share_the_root() {
    let rate = Rate::per_second;
    let tree = ClassTree::builder(rate(10_000))
        .clock(Manual::new())
        .build()
        .unwrap();
    let class = Class::new(rate(1_000)).ceiling(rate(10_000));
    let leaves = ["a", "b", "c", "d"].map(|name| tree.add_leaf(name, tree.root(), class).unwrap());
    let users = tree
        .add_leaves("user", tree.root(), Class::new(rate(2)), 64)
        .unwrap();
    let total = run_together(THREADS, |number| {
        let leaf = leaves[number as usize];
        let mut passed = 0;
        for call in 0..4_000 {
            passed += u64::from(tree.allow(leaf));
            passed += u64::from(tree.allow(tree.leaf(users, &(call % 64))));
            if call % 3 == 0
                && let Ok(receipt) = tree.charge(leaf, 2)
            {
                tree.refund(receipt);
            }
        }
        passed
    });
    let left = tree.peek(leaves[0], 0).decision.remaining;
    assert!(total + left <= 10_000, "{total} and {left}");
    // All have claimed what is theirs, so what is left is at most what borrowers leave each other.
    assert!(total >= 9_600, "{total}");
}

#[test]
fn over_time_threads_stay_within_the_bound() {
    let root = Rate::per_second(1_000_000).burst(1_000);
    let tree = ClassTree::builder(root).build().unwrap();
    let class = Class::new(Rate::per_second(100_000).burst(100)).ceiling(root);
    let leaves = ["a", "b", "c", "d"].map(|name| tree.add_leaf(name, tree.root(), class).unwrap());
    let clock = Monotonic::new();
    let start = clock.now();
    let total = run_together(THREADS, |number| {
        let leaf = leaves[number as usize];
        let passes = |call: u64| (call % 3 + 1) * u64::from(tree.allow_n(leaf, call % 3 + 1));
        (0..20_000).map(passes).sum()
    });
    let elapsed = (clock.now() - start).as_secs_f64();
    let bound = 1_000.0 + 1_000_000.0 * elapsed + 1.0;
    assert!((total as f64) <= bound, "{total} of {bound}");
    assert!(total >= 500, "{total}");
}

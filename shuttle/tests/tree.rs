//! A tree with requests, changes and refunds by several threads, on random schedules.
#![cfg(shuttle)]

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use tollgate::clock::Manual;
use tollgate::{
    ClassTree, Rate, Timestamp,
    tree::{Class, Leaf, LeafSet},
};

const NOW: Timestamp = Timestamp::from_secs(5);
const BURST: u64 = 40;

struct Model {
    tree: ClassTree<Manual>,
    leaves: [Leaf; 2],
    users: LeafSet,
}

impl Model {
    fn new() -> Self {
        let rate = |burst| Rate::per_second(100).burst(burst);
        let tree = ClassTree::builder(rate(BURST))
            .clock(Manual::starting_at(NOW))
            .build()
            .expect("a rate that fits");
        let class = Class::new(rate(8)).ceiling(rate(30));
        let branch = tree
            .add_branch("branch", tree.root(), class)
            .expect("a class that fits");
        let leaves = ["a", "b"].map(|name| {
            tree.add_leaf(name, branch, Class::new(rate(3)).ceiling(rate(20)))
                .expect("a class that fits")
        });
        let users = tree
            .add_leaves("user", tree.root(), Class::new(rate(2)), 2)
            .expect("a class that fits");
        Self {
            tree,
            leaves,
            users,
        }
    }

    fn passes(&self, leaf: Leaf, cost: u64) -> u64 {
        cost * u64::from(self.tree.allow_at(NOW, leaf, cost))
    }
}

fn model() {
    let model = Arc::new(Model::new());
    let bodies: [fn(&Model) -> u64; 3] = [
        |model| {
            let passed = model.passes(model.leaves[0], 3) + model.passes(model.leaves[0], 5);
            // Checked and charged, and another limit denied: the charge is refunded.
            if model.tree.would_allow_at(NOW, model.leaves[0], 4)
                && let Ok(receipt) = model.tree.charge_at(NOW, model.leaves[0], 4)
            {
                model.tree.refund_at(NOW, receipt);
            }
            passed + model.passes(model.leaves[0], 1)
        },
        |model| {
            let passed = model.passes(model.leaves[1], 9);
            if let Ok(receipt) = model.tree.charge_at(NOW, model.leaves[1], 7) {
                model.tree.refund_at(NOW, receipt);
            }
            passed + model.passes(model.leaves[1], 6)
        },
        |model| {
            let users = (0..4).map(|user| model.tree.leaf(model.users, &user));
            let passed = users.map(|user| model.passes(user, 2)).sum();
            let class = Class::new(Rate::per_second(50).burst(2));
            assert!(model.tree.set_class_at(NOW, model.users, class).is_ok());
            assert!(model.tree.remove(model.users).is_ok());
            passed
        },
    ];
    let threads = bodies.map(|body| {
        let model = Arc::clone(&model);
        thread::spawn(move || body(&model))
    });
    let mut through_branch = 0;
    let mut total = 0;
    for (number, thread) in threads.into_iter().enumerate() {
        let passed = thread.join().expect("no panic");
        total += passed;
        if number < 2 {
            through_branch += passed;
        } else {
            // Two with leaves of their own, and one that the others share.
            assert_eq!(passed, 6);
        }
    }
    // No refund is missing, and none was granted twice.
    let outside = model
        .tree
        .add_leaf(
            "last",
            model.tree.root(),
            Class::new(Rate::per_second(1).burst(100)),
        )
        .expect("a class that fits");
    let left = model.tree.peek_at(NOW, outside, 0).decision.remaining;
    assert_eq!(total + left, BURST);
    assert!((8..=30).contains(&through_branch), "{through_branch}");
}

#[test]
fn what_is_lent_and_given_back_adds_up() {
    const RUNS: usize = 5_000;
    Runner::new(PctScheduler::new_from_seed(7, 4, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
}

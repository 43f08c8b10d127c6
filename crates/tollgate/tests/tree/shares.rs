//! Promised rates are met and spare rate is shared, within 2 %, whatever other classes request.

use tollgate::clock::Manual;
use tollgate::{
    ClassTree, Rate, Timestamp,
    tree::{Class, Leaf, LeafSet},
};

use crate::sim::{Arrivals, BOTH, Manually, Run, Source, expect, run};

const ROOT: Rate = Rate::per_second(10_000);

fn tree() -> Manually {
    ClassTree::builder(ROOT)
        .clock(Manual::new())
        .build()
        .expect("it fits")
}

fn rate(count: u64) -> Rate {
    Rate::per_second(count)
}

/// The tree of the documentation: search 5,000 and upload 1,000, both up to the root's 10,000, and
/// a hundred users with 10 each of their own, who may borrow too.
struct Site {
    tree: Manually,
    search: Leaf,
    upload: Leaf,
    users: LeafSet,
}

fn site() -> Site {
    let tree = tree();
    let root = tree.root();
    let add = |name, promised| {
        let class = Class::new(rate(promised)).ceiling(ROOT);
        tree.add_leaf(name, root, class).expect("it fits")
    };
    let (search, upload) = (add("search", 5_000), add("upload", 1_000));
    let class = Class::new(rate(10)).ceiling(rate(100));
    let users = tree.add_leaves("user", root, class, 100).expect("it fits");
    Site {
        tree,
        search,
        upload,
        users,
    }
}

impl Site {
    fn users(&self, range: std::ops::Range<u32>) -> Vec<Leaf> {
        range
            .map(|user| self.tree.leaf(self.users, &user))
            .collect()
    }
}

/// Every bound of the run: the root's, and those of each source.
fn bounds(run: &Run, ceils: &[Option<Rate>]) {
    let all: Vec<_> = (0..ceils.len()).collect();
    assert!(run.keeps(ROOT, &all));
    for (source, ceil) in ceils.iter().enumerate() {
        assert!(
            ceil.is_none_or(|ceil| run.keeps(ceil, &[source])),
            "{source}"
        );
    }
}

#[test]
fn all_saturated_get_what_is_promised_and_share_the_rest_by_rate() {
    for arrivals in BOTH {
        let site = site();
        let sources = [
            Source::new(site.search, 15_000),
            Source::new(site.upload, 15_000),
            Source::over(site.users(0..100), 5_000),
        ];
        let got = run(&site.tree, arrivals, &sources, 12.0);
        // 3,000 are spare, for weights of 5,000, 1,000 and 100 × 10.
        let spare = |weight: f64| weight + 3_000.0 * weight / 7_000.0;
        expect(
            &got,
            2.0,
            12.0,
            &[spare(5_000.0), spare(1_000.0), spare(1_000.0)],
        );
        bounds(&got, &[Some(ROOT), Some(ROOT), None]);
    }
}

#[test]
fn what_search_leaves_idle_goes_to_upload_and_users() {
    for arrivals in BOTH {
        let site = site();
        let sources = [
            Source::new(site.upload, 15_000),
            Source::over(site.users(0..100), 8_000),
        ];
        let got = run(&site.tree, arrivals, &sources, 12.0);
        expect(&got, 2.0, 12.0, &[5_000.0, 5_000.0]);
        bounds(&got, &[Some(ROOT), None]);
    }
}

#[test]
fn what_upload_leaves_idle_goes_to_search_and_one_greedy_user_stops_at_his_ceil() {
    for arrivals in BOTH {
        let site = site();
        let sources = [
            Source::new(site.search, 20_000),
            Source::over(site.users(0..1), 5_000),
        ];
        let got = run(&site.tree, arrivals, &sources, 12.0);
        // The user's share of 4,990 spare by weight would be 10, in all 20.
        expect(&got, 2.0, 12.0, &[9_980.0, 20.0]);
        bounds(&got, &[Some(ROOT), Some(rate(100))]);

        let site = self::site();
        let sources = [Source::over(site.users(0..1), 5_000)];
        let got = run(&site.tree, arrivals, &sources, 12.0);
        expect(&got, 2.0, 12.0, &[100.0]);
        bounds(&got, &[Some(rate(100))]);
    }
}

#[test]
fn who_asks_for_less_than_its_share_gets_all_of_it() {
    for arrivals in BOTH {
        let site = site();
        let sources = [
            Source::new(site.search, 20_000),
            Source::new(site.upload, 1_300),
            Source::over(site.users(0..100), 1_200),
        ];
        let got = run(&site.tree, arrivals, &sources, 12.0);
        let asked = |source: usize, rate: f64| {
            if arrivals == Arrivals::Constant {
                rate
            } else {
                // As many as the random numbers made of it.
                let got = got.rate(source, 2.0, 12.0);
                assert!((got - rate).abs() < rate * 0.03, "{source}: {got}");
                got
            }
        };
        let (upload, users) = (asked(1, 1_300.0), asked(2, 1_200.0));
        expect(&got, 2.0, 12.0, &[10_000.0 - upload - users, upload, users]);
    }
}

#[test]
fn three_of_equal_priority_share_by_weight() {
    for arrivals in BOTH {
        let tree = tree();
        let leaf = |name: &str, weight| {
            let class = Class::new(rate(400)).ceiling(ROOT).weight(weight);
            tree.add_leaf(name, tree.root(), class).expect("it fits")
        };
        // The lightest asks the most.
        let sources = [
            Source::new(leaf("one", 1), 40_000),
            Source::new(leaf("two", 2), 20_000),
            Source::new(leaf("three", 3), 9_000),
        ];
        let got = run(&tree, arrivals, &sources, 12.0);
        let spare = 10_000.0 - 1_200.0;
        let share = |weight: f64| 400.0 + spare * weight / 6.0;
        expect(&got, 2.0, 12.0, &[share(1.0), share(2.0), share(3.0)]);
        bounds(&got, &[Some(ROOT); 3]);
    }
}

#[test]
fn spare_capacity_goes_to_the_lower_number_first() {
    for arrivals in BOTH {
        let tree = tree();
        let leaf = |name: &str, priority| {
            let ceil = rate(8_000).burst(1_000);
            let class = Class::new(rate(1_000)).ceiling(ceil).priority(priority);
            tree.add_leaf(name, tree.root(), class).expect("it fits")
        };
        let (first, second) = (leaf("first", 0), leaf("second", 1));
        // Both want all: the first takes up to its ceil, the second has its rate and what is left.
        let sources = [Source::new(first, 12_000), Source::new(second, 40_000)];
        let got = run(&tree, arrivals, &sources, 12.0);
        expect(&got, 2.0, 12.0, &[8_000.0, 2_000.0]);
        bounds(&got, &[Some(rate(8_000).burst(1_000)); 2]);
    }
    for arrivals in BOTH {
        let tree = tree();
        let leaf = |name: &str, priority| {
            let class = Class::new(rate(1_000)).ceiling(ROOT).priority(priority);
            tree.add_leaf(name, tree.root(), class).expect("it fits")
        };
        let sources = [
            Source::new(leaf("first", 0), 15_000),
            Source::new(leaf("second", 1), 40_000),
            Source::new(leaf("third", 2), 40_000),
        ];
        // The first would take everything; what is promised to the others is theirs all the same.
        let got = run(&tree, arrivals, &sources, 12.0);
        expect(&got, 2.0, 12.0, &[8_000.0, 1_000.0, 1_000.0]);
    }
    // The first asks for less than there is: it gets that, and the second the rest.
    let tree = tree();
    let leaf = |name: &str, priority| {
        let class = Class::new(rate(1_000)).ceiling(ROOT).priority(priority);
        tree.add_leaf(name, tree.root(), class).expect("it fits")
    };
    let sources = [
        Source::new(leaf("first", 0), 6_000),
        Source::new(leaf("second", 1), 40_000),
        Source::new(leaf("third", 7), 40_000),
    ];
    let got = run(&tree, Arrivals::Constant, &sources, 12.0);
    expect(&got, 2.0, 12.0, &[6_000.0, 3_000.0, 1_000.0]);
}

#[test]
fn demand_that_comes_and_goes_is_followed_within_a_second() {
    for arrivals in BOTH {
        let site = site();
        let sources = [
            Source::new(site.search, 15_000).between(4.0, 8.0),
            Source::new(site.upload, 15_000),
            Source::over(site.users(0..100), 8_000).between(0.0, 12.0),
        ];
        let got = run(&site.tree, arrivals, &sources, 16.0);
        expect(&got, 1.0, 4.0, &[0.0, 5_000.0, 5_000.0]);
        let by_weight = 10_000.0 / 7.0;
        expect(&got, 5.0, 8.0, &[5.0 * by_weight, by_weight, by_weight]);
        expect(&got, 9.0, 12.0, &[0.0, 5_000.0, 5_000.0]);
        expect(&got, 13.0, 16.0, &[0.0, 10_000.0, 0.0]);
        bounds(&got, &[None; 3]);
        // No second is lost while there is demand for it. In the second after search left, and after
        // the users did, what they were promised fills their own buckets.
        for second in (1..16).filter(|second| ![8, 12].contains(second)) {
            let start = f64::from(second);
            let total: f64 = (0..3).map(|s| got.rate(s, start, start + 1.0)).sum();
            assert!(total >= 9_800.0, "{arrivals:?} {second}: {total}");
        }
        let total: f64 = (0..3).map(|s| 16.0 * got.rate(s, 0.0, 16.0)).sum();
        assert!(total >= 0.98 * (160_000.0 - 6_000.0), "{total}");
    }
}

#[test]
fn what_is_lent_through_a_branch_is_shared_within_it_and_beside_it() {
    for arrivals in BOTH {
        let tree = tree();
        let class = |promised| Class::new(rate(promised)).ceiling(ROOT);
        let left = tree
            .add_branch("left", tree.root(), class(2_000))
            .expect("it fits");
        let right = tree
            .add_branch("right", tree.root(), class(1_000))
            .expect("it fits");
        let leaf = |name, parent, weight| {
            let class = Class::new(rate(100)).ceiling(ROOT).weight(weight);
            tree.add_leaf(name, parent, class).expect("it fits")
        };
        let sources = [
            Source::new(leaf("a", left, 3), 20_000),
            Source::new(leaf("b", left, 1), 40_000),
            Source::new(leaf("c", right, 1), 20_000),
        ];
        let got = run(&tree, arrivals, &sources, 12.0);
        // 7,000 are spare, 2 : 1 by rate; what the left has beyond 2 × 100 is 3 : 1 by weight.
        let (left, right) = (20_000.0 / 3.0, 10_000.0 / 3.0);
        let within = left - 200.0;
        expect(
            &got,
            2.0,
            12.0,
            &[100.0 + within * 0.75, 100.0 + within * 0.25, right],
        );
    }
}

#[test]
fn more_promised_than_there_is_goes_to_who_comes_first_up_to_its_rate() {
    for arrivals in BOTH {
        let tree = tree();
        let branch = tree
            .add_branch("branch", tree.root(), Class::new(rate(1_000)))
            .expect("it fits");
        let leaf = |name, promised| {
            let class = Class::new(rate(promised)).ceiling(ROOT);
            tree.add_leaf(name, branch, class).expect("it fits")
        };
        let outside = tree
            .add_leaf(
                "outside",
                tree.root(),
                Class::new(rate(3_000)).ceiling(ROOT),
            )
            .expect("it fits");
        let sources = [
            Source::new(leaf("a", 800), 3_000),
            Source::new(leaf("b", 800), 3_000),
            Source::new(outside, 20_000),
        ];
        let got = run(&tree, arrivals, &sources, 12.0);
        // Equal demand, equal luck; the branch can't borrow, and those outside don't suffer.
        let (a, b) = (got.rate(0, 2.0, 12.0), got.rate(1, 2.0, 12.0));
        assert!((a + b - 1_000.0).abs() < 20.0, "{a} + {b}");
        assert!(
            a <= 820.0 && b <= 820.0 && a >= 180.0 && b >= 180.0,
            "{a} {b}"
        );
        assert!(got.keeps(rate(1_000), &[0, 1]));
        assert!((got.rate(2, 2.0, 12.0) - 9_000.0).abs() < 180.0);
    }
}

#[test]
fn without_a_ceil_nobody_borrows() {
    for strict in [false, true] {
        let builder = ClassTree::builder(ROOT).clock(Manual::new());
        let builder = if strict { builder.strict() } else { builder };
        let tree = builder.build().expect("it fits");
        let search = tree
            .add_branch("search", tree.root(), Class::new(rate(5_000)))
            .expect("it fits");
        let users = tree
            .add_leaves("user", search, Class::new(rate(10)), 2_000)
            .expect("it fits");
        let upload = tree
            .add_leaf("upload", tree.root(), Class::new(rate(1_000)))
            .expect("it fits");
        let leaves = |range: std::ops::Range<u32>| {
            range
                .map(|user| tree.leaf(users, &user))
                .collect::<Vec<_>>()
        };
        let sources = [
            Source::over(leaves(0..1_000), 20_000),
            Source::over(leaves(1_000..1_001), 500),
            Source::new(upload, 20_000),
        ];
        let got = run(&tree, Arrivals::Poisson, &sources, 8.0);
        // A thousand users with 10 each want 10,000 of search's 5,000.
        let search = got.rate(0, 2.0, 8.0) + got.rate(1, 2.0, 8.0);
        assert!((search - 5_000.0).abs() < 50.0, "{search}");
        assert!(got.keeps(rate(5_000), &[0, 1]));
        assert!(got.keeps(rate(10), &[1]) && got.keeps(rate(1_000), &[2]));
        assert!((got.rate(2, 2.0, 8.0) - 1_000.0).abs() < 5.0);
    }
}

/// What each of two equals gets a second when the first wants 100 at once and looks before it takes, and
/// the second wants one at a time and is always there.
fn look_first(looks: impl Fn(&Manually, Timestamp, Leaf) -> bool) -> [f64; 2] {
    let tree = tree();
    let class = Class::new(rate(1).burst(1)).ceiling(ROOT).weight(1);
    let [a, b] = ["a", "b"].map(|name| tree.add_leaf(name, tree.root(), class).expect("it fits"));
    let mut passed = [0, 0];
    // 25,000 a second of the second; the first comes after a while, every 4 ms.
    for turn in 0..350_000_u64 {
        let now = Timestamp::from_micros(40 * turn);
        let counted = u32::from(turn >= 100_000);
        passed[1] += counted * u32::from(tree.allow_at(now, b, 1));
        if turn >= 50_000 && turn % 100 == 0 && looks(&tree, now, a) {
            let receipt = tree.charge_at(now, a, 100).expect("it was looked at");
            // Now and then another limit refuses after all, and it is asked for again.
            if turn % 700 == 0 {
                tree.refund_at(now, receipt);
            } else {
                passed[0] += counted * 100;
            }
        }
    }
    passed.map(|passed| f64::from(passed) / 10.0)
}

#[test]
fn who_asks_before_it_takes_gets_its_share_and_who_peeks_is_not_seen() {
    let got = look_first(|tree, now, leaf| tree.would_allow_at(now, leaf, 100));
    assert!(
        got.iter().all(|got| (got - 5_000.0).abs() <= 100.0),
        "{got:?}"
    );
    let asked = look_first(|tree, now, leaf| tree.peek_with_demand_at(now, leaf, 100).is_allowed());
    assert_eq!(asked, got);
    let [peeked, rest] = look_first(|tree, now, leaf| tree.peek_at(now, leaf, 100).is_allowed());
    assert!(peeked < 100.0 && rest > 9_900.0, "{peeked} {rest}");
}

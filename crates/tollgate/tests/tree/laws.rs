//! Random trees under random demand: bounds, promises, tight answers.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{
    ClassTree, Outcome, Rate, Timestamp,
    tree::{Branch, Class, Leaf},
};
use tollgate_testkit::traffic::Random;

use crate::sim::{Manually, stays_within};

/// One leaf, with the bounds of every class from it to the root by number.
struct Spot {
    leaf: Leaf,
    rate: Rate,
    above: Vec<usize>,
}

/// A random tree and the bound of each class: its ceil, or its rate if it can't borrow.
struct Wood {
    tree: Manually,
    spots: Vec<Spot>,
    bounds: Vec<Rate>,
}

/// What children get when a parent's count and burst are split among them.
fn split(random: &mut Random, whole: Rate, parts: u64, fits: bool) -> Rate {
    // Where it has to fit, bursts add up to three quarters at most.
    let (count, burst) = (whole.count() / parts, whole.burst_size() * 3 / 4 / parts);
    let less = |random: &mut Random, most: u64| most - random.below(most / 2 + 1);
    let scale = if fits { 1 } else { 1 + random.below(4) };
    let count = less(random, count) * scale;
    let period = whole.period().unwrap_or(Duration::from_secs(1));
    Rate::new(count.max(1), period).burst(less(random, burst) * scale)
}

fn grow(
    random: &mut Random,
    wood: &mut Wood,
    parent: Branch,
    whole: Rate,
    above: &[usize],
    fits: bool,
) {
    let children = 1 + random.below(4);
    for child in 0..children {
        let rate = split(random, whole, children, fits);
        let mut class = Class::new(rate);
        let mut bound = rate;
        if random.below(3) > 0 {
            let more = 1 + random.below(5);
            bound = Rate::new(rate.count() * more, rate.period().expect("it fits"));
            bound = bound.burst(rate.burst_size() + random.below(whole.burst_size() + 1));
            class = class.ceiling(bound);
        }
        if random.below(2) == 0 {
            class = class.priority(u8::try_from(random.below(8)).expect("it fits"));
        }
        if random.below(2) == 0 {
            class = class.weight(1 + u32::try_from(random.below(5)).expect("it fits"));
        }
        let name = child.to_string();
        let mut above = above.to_vec();
        above.push(wood.bounds.len());
        wood.bounds.push(bound);
        // A count below the number of children could not be split.
        if above.len() < 4 && rate.count() >= 8 && random.below(3) == 0 {
            let branch = wood.tree.add_branch(&name, parent, class).expect("it fits");
            grow(random, wood, branch, rate, &above, fits);
        } else if random.below(4) == 0 {
            // One key of a set; the set's capacity is one, so that it adds up.
            let leaves = wood
                .tree
                .add_leaves(&name, parent, class, 1)
                .expect("it fits");
            let leaf = wood.tree.leaf(leaves, "key");
            wood.spots.push(Spot { leaf, rate, above });
        } else {
            let leaf = wood.tree.add_leaf(&name, parent, class).expect("it fits");
            wood.spots.push(Spot { leaf, rate, above });
        }
    }
}

fn wood(random: &mut Random, fits: bool) -> Wood {
    let period = Duration::from_nanos(
        [1_000_000_000, 333_333_333, 60_000_000_000]
            [usize::try_from(random.below(3)).expect("it fits")],
    );
    let root = Rate::new(50 + random.below(5_000), period).burst(40 + random.below(4_000));
    let tree = ClassTree::builder(root)
        .clock(Manual::new())
        .build()
        .expect("it fits");
    let mut wood = Wood {
        tree,
        spots: Vec::new(),
        bounds: vec![root],
    };
    let top = wood.tree.root();
    grow(random, &mut wood, top, root, &[0], fits);
    wood
}

/// Runs random demand; every admitted hit by leaf. Steps are about a few tokens of the root.
fn drive(
    wood: &Wood,
    random: &mut Random,
    turns: u32,
    most: impl Fn(&Spot) -> u64,
    mut each: impl FnMut(Timestamp, usize, u64, bool),
) {
    let root = wood.bounds[0];
    let token =
        u64::try_from(root.period().expect("it fits").as_nanos()).expect("it fits") / root.count();
    let mut now = Timestamp::from_secs(1);
    let mut loud = 0;
    for turn in 0..turns {
        if turn % 50 == 0 {
            loud = usize::try_from(random.below(wood.spots.len() as u64)).expect("it fits");
        }
        now = match random.below(40) {
            0 => now.plus_nanos(token.saturating_mul(random.below(2_000))),
            1..=20 => now,
            _ => now.plus_nanos(random.below(2 * token)),
        };
        let spot = match random.below(2) {
            0 => loud,
            _ => usize::try_from(random.below(wood.spots.len() as u64)).expect("it fits"),
        };
        let cost = match random.below(8) {
            0 => random.below(most(&wood.spots[spot]) + 1),
            1 => 1 + random.below(5).min(most(&wood.spots[spot])),
            _ => 1,
        };
        let passed = wood.tree.allow_at(now, wood.spots[spot].leaf, cost);
        each(now, spot, cost, passed);
    }
}

/// Costs up to just beyond the burst.
fn any(spot: &Spot) -> u64 {
    spot.rate.burst_size() + 1
}

/// Looks at every answer on the way; how many denials there were, or the answer that was wrong.
fn tight(seed: u64, fits: bool) -> Result<u32, String> {
    let mut random = Random::new(seed);
    let wood = wood(&mut random, fits);
    let mut checked = 0;
    let mut broken = None;
    let tree = &wood.tree;
    drive(&wood, &mut random, 600, any, |now, spot, cost, _| {
        let leaf = wood.spots[spot].leaf;
        let decision = tree.peek_at(now, leaf, cost.max(1)).decision;
        let passes = |at, cost| tree.peek_at(at, leaf, cost).is_allowed();
        if decision.outcome == Outcome::Denied {
            checked += 1;
            let then = now + decision.wait_or_max();
            let before = Timestamp::from_nanos(then.as_nanos() - 1);
            if !passes(then, cost.max(1)) || passes(before, cost.max(1)) {
                broken.get_or_insert(("retry_after", now, spot, cost));
            }
        }
        let left = decision.remaining;
        if !passes(now, left) || passes(now, left + 1) {
            broken.get_or_insert(("remaining", now, spot, left));
        }
    });
    broken.map_or(Ok(checked), |broken| Err(format!("{broken:?}")))
}

#[test]
fn answers_of_many_denials_are_tight() {
    let denials = (0..20).map(|seed| tight(seed, seed % 2 == 0));
    let denials: Result<Vec<_>, _> = denials.collect();
    assert!(denials.unwrap().iter().sum::<u32>() > 500);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn no_class_passes_more_than_its_ceil_in_any_window(seed: u64, fits: bool) {
        let mut random = Random::new(seed);
        let wood = wood(&mut random, fits);
        let mut hits = vec![Vec::new(); wood.bounds.len()];
        drive(&wood, &mut random, 3_000, any, |now, spot, cost, passed| {
            if passed {
                for class in &wood.spots[spot].above {
                    hits[*class].push((now, cost));
                }
            }
        });
        for (bound, hits) in wood.bounds.iter().zip(&hits) {
            let period = bound.period().expect("it fits").as_nanos();
            let burst = bound.burst_size();
            prop_assert!(stays_within(bound.count(), period, burst, hits.iter().copied()));
        }
    }

    #[test]
    fn what_is_promised_is_met_where_it_adds_up(seed: u64) {
        let mut random = Random::new(seed);
        let wood = wood(&mut random, true);
        // What each leaf would have if it were alone: charged only with what it claims, that is
        // with what passes while it has the tokens.
        let meters: Vec<_> = wood
            .spots
            .iter()
            .map(|spot| tollgate::StoredKeyLimiter::<u8>::builder(spot.rate, 4)
                .algorithm(tollgate::Algorithm::TokenBucket)
                .clock(Manual::new())
                .build()
                .expect("it fits"))
            .collect();
        let mut refused = None;
        // Loans of more than a quarter of a burst may take what is promised: see the documentation.
        let small = |spot: &Spot| spot.rate.burst_size() / 5;
        drive(&wood, &mut random, 3_000, small, |now, spot, cost, passed| {
            let has = meters[spot].key(&0).check_at(now, 0).remaining >= cost;
            if has && passed {
                let _ = meters[spot].key(&0).check_at(now, cost);
            }
            if has && !passed {
                // Who borrowed up to its own ceil has had more than its rate.
                let leaf = wood.spots[spot].leaf;
                if wood.tree.peek_at(now, leaf, cost).node == leaf.into() {
                    return;
                }
                refused.get_or_insert((now, spot, cost));
            }
        });
        prop_assert!(refused.is_none(), "{refused:?} of {:?}", wood.bounds);
    }

    #[test]
    fn answers_are_tight(seed: u64, fits: bool) {
        prop_assert_eq!(tight(seed, fits).err(), None);
    }
}

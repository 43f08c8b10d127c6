//! A tree of a thousand leaves, with a target of a microsecond for each decision.

use std::hint::black_box;
use std::sync::Arc;

use tollgate::{
    ClassTree, Rate,
    tree::{Class, Leaf, LeafSet},
};

use super::limits::name_of;
use super::loop_on_this_thread;
use crate::report::{Line, Report};
use crate::runner::{MIN_CLEAN_ROUNDS, Measure, ROUNDS, median};
use crate::two_threads::ThreadPair;

/// The target for a decision, in nanoseconds.
const NANOS: f64 = 1_000.0;
const BRANCHES: u64 = 10;
const KEYS: u32 = 100;

/// A root, its branches, and the keys of each.
struct TreeFixture {
    tree: ClassTree,
    leaves: Vec<LeafSet>,
    names: Vec<String>,
}

impl TreeFixture {
    fn new(branch: Class, leaf: Class) -> Self {
        let tree = ClassTree::new(Rate::per_second(1_000_000_000));
        let leaves = (0..BRANCHES)
            .map(|number| {
                let branch = tree.add_branch(&format!("route {number}"), tree.root(), branch);
                let branch = branch.expect("a class that the tree can represent");
                let leaves = tree.add_leaves("user", branch, leaf, KEYS);
                leaves.expect("a class that the tree can represent")
            })
            .collect();
        let names = (0..KEYS).map(|key| format!("user:{key:011}")).collect();
        Self {
            tree,
            leaves,
            names,
        }
    }

    /// Every leaf stays within its guarantee.
    fn within_guarantee() -> Self {
        let branch = Class::new(Rate::per_second(100_000_000));
        Self::new(branch, Class::new(Rate::per_second(1_000_000)))
    }

    /// Every leaf borrows from a branch, which borrows from the root.
    fn borrowing_from_root() -> Self {
        let (little, much) = (Rate::per_second(1), Rate::per_second(1_000_000_000));
        let class = Class::new(little).ceiling(much);
        Self::new(class, class)
    }

    /// All limits are used up.
    fn drained() -> Self {
        let branch = Class::new(Rate::per_second(100_000_000));
        let wood = Self::new(branch, Class::new(Rate::per_hour(1)));
        for leaves in &wood.leaves {
            for name in &wood.names {
                let leaf = wood.tree.leaf(*leaves, name.as_str());
                assert!(wood.tree.allow(leaf), "a new key passes");
            }
        }
        wood
    }

    #[inline(always)]
    fn leaf(&self, step: u64) -> Leaf {
        let branch = usize::try_from(step % BRANCHES).unwrap_or(0);
        self.tree
            .leaf(self.leaves[branch], name_of(&self.names, step))
    }

    #[inline(always)]
    fn allow(&self, step: u64) -> bool {
        black_box(&self.tree).allow(self.leaf(step))
    }
}

pub(crate) fn run(report: &mut Report) {
    let wood = TreeFixture::within_guarantee();
    within(
        report,
        "tree-1000-allow-1t",
        &mut loop_on_this_thread(true, |step| wood.allow(step)),
    );
    let mut check = loop_on_this_thread(true, |step| {
        black_box(&black_box(&wood.tree).check(wood.leaf(step))).is_allowed()
    });
    within(report, "tree-1000-check-1t", &mut check);
    let wood = TreeFixture::borrowing_from_root();
    within(
        report,
        "tree-1000-borrow-1t",
        &mut loop_on_this_thread(true, |step| wood.allow(step)),
    );
    let wood = TreeFixture::drained();
    within(
        report,
        "tree-1000-refused-1t",
        &mut loop_on_this_thread(false, |step| wood.allow(step)),
    );
    let crew = ThreadPair::new();
    let wood = Arc::new(TreeFixture::within_guarantee());
    let mut both = crew.both(Arc::new(move |thread, calls| {
        let first = thread as u64 * 7;
        let steps = first..first + calls;
        steps
            .map(|step| u64::from(black_box(wood.allow(step))))
            .sum()
    }));
    within(report, "tree-1000-allow-2t", &mut both);
}

/// The median of a case relative to its target.
fn within(report: &mut Report, case: &str, ours: &mut dyn Measure) {
    let (mut clean, mut disturbed) = (Vec::new(), Vec::new());
    for _ in 0..2 * ROUNDS {
        let sample = ours.sample();
        let kept = if sample.switched {
            &mut disturbed
        } else {
            &mut clean
        };
        kept.push(sample.nanos);
    }
    disturbed.truncate(MIN_CLEAN_ROUNDS.saturating_sub(clean.len()));
    let kept = disturbed.len();
    clean.append(&mut disturbed);
    let nanos = median(clean);
    let mut line = Line::new(case, "target", (nanos, NANOS, "ns"), nanos / NANOS);
    line.disturbed = kept;
    report.add(line.target(Some(1.0)));
}

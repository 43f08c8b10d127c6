//! A node's share of a limit while the number of nodes changes: never more than the largest share passes.

use tollgate::{Algorithm, Quota, Rate, core::WindowAlignment};
use tollgate_engine::backend::StandaloneLimit;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Twenty an hour, in every way in which it can be counted, and after how long nothing of it is left.
fn limits() -> Vec<(LimitKind, Duration)> {
    let rate = |algorithm| LimitKind::Rate {
        rate: Rate::per_hour(20),
        algorithm,
    };
    let rolling = Quota::rolling(20, HOUR).expect("a period");
    vec![
        (rate(Algorithm::Gcra), 2 * HOUR),
        (rate(Algorithm::TokenBucket), 2 * HOUR),
        (rate(Algorithm::LeakyBucket), 2 * HOUR),
        (
            rate(Algorithm::FixedWindow(WindowAlignment::default())),
            2 * HOUR,
        ),
        (rate(Algorithm::SlidingCounter), 2 * HOUR),
        (rate(Algorithm::SlidingLog), 2 * HOUR),
        (LimitKind::Quota(rolling), 2 * HOUR),
        (LimitKind::Quota(Quota::per_hour(20)), 2 * HOUR),
    ]
}

/// A node and its limit.
struct Node {
    local: LocalLimits<Manual, Manual>,
    limit: StandaloneLimit,
    clock: Manual,
}

impl Node {
    fn new(kind: &LimitKind, nodes: u64) -> Self {
        let clock = Manual::starting_at(Timestamp::from_secs(36_000));
        let memory = Memory::builder().capacity(100).clock(clock.clone());
        let local = LocalLimits::new(memory.wall(clock.clone()).build());
        local.set_node_count(nodes);
        Self {
            local,
            limit: StandaloneLimit::new("a", kind.clone()).expect("a limit"),
            clock,
        }
    }

    /// How many of so many pass without the store.
    fn passed(&self, tries: usize) -> usize {
        let ada = StandaloneLimit::facts("ada");
        let passes = || self.local.decide(&[self.limit.check(&ada, 1)]).allowed;
        (0..tries).filter(|_| passes()).count()
    }

    /// The store lets so many pass, of all that it has.
    fn store_admits(&self, cost: u64) {
        let store = Node::new(self.limit.limit().kind(), 1);
        let ada = StandaloneLimit::facts("ada");
        let said = store
            .local
            .memory()
            .answer(&[store.limit.check(&ada, cost)]);
        assert!(said.allowed);
        let check = self.limit.check(&ada, cost);
        self.local.record_decision(&check, &said.decision);
    }
}

#[test]
fn a_part_that_shrinks_and_grows_again_is_not_had_twice() {
    for (kind, lasts) in limits() {
        let node = Node::new(&kind, 4);
        assert_eq!(node.passed(30), 10, "{kind:?}");
        for nodes in [8, 40, 8] {
            node.local.set_node_count(nodes);
            assert_eq!(node.passed(30), 0, "{kind:?} {nodes}");
            // What another request costs is noted in the small part.
            node.store_admits(2);
        }
        node.local.set_node_count(4);
        assert_eq!(node.passed(30), 0, "{kind:?}");
        // And then it is as large as it was; what it owes may have run out by the small part's rate until then.
        node.clock.advance(lasts);
        let passed = node.passed(30);
        assert!((1..=10).contains(&passed), "{kind:?}: {passed}");
        node.clock.advance(lasts);
        assert_eq!(node.passed(30), 10, "{kind:?}");
    }
}

#[test]
fn what_the_store_admitted_to_a_smaller_part_counts_in_a_larger_one() {
    for (kind, lasts) in limits() {
        let node = Node::new(&kind, 8);
        node.store_admits(20);
        assert_eq!(node.passed(30), 0, "{kind:?}");
        node.local.set_node_count(1);
        assert_eq!(node.passed(30), 0, "{kind:?}");
        node.clock.advance(lasts);
        assert_eq!(node.passed(30), 20, "{kind:?}");
    }
}

#[test]
fn a_part_that_changes_keeps_its_bound_in_every_window() {
    // Whatever the order: the fleet grows and shrinks every few minutes, under all the demand there is.
    for (kind, _) in limits() {
        let node = Node::new(&kind, 8);
        let mut passed = Vec::new();
        for minute in 0..360 {
            if minute % 7 == 0 {
                let nodes = [8, 4, 16, 4, 4, 40];
                node.local.set_node_count(nodes[minute / 7 % nodes.len()]);
            }
            passed.push(node.passed(30));
            node.clock.advance(Duration::from_secs(60));
        }
        for from in 0..passed.len() {
            let mut sum = 0;
            for (minutes, more) in passed[from..].iter().enumerate() {
                sum += more;
                // 10 at once and 10 an hour; windows that begin at fixed times have one count more.
                let most = 10 + 10 * (minutes / 60 + 1);
                assert!(
                    sum <= most,
                    "{kind:?}: {sum} of {most} in {minutes} minutes"
                );
            }
        }
    }
}

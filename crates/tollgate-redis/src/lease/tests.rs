//! Leases at given times: whatever the nodes do, no window sees more than the limit allows.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

mod changing;
mod estimates;
mod forgiven;

use std::collections::HashMap;
use std::time::Duration;

use tollgate::{Rate, Timestamp};
use tollgate_engine::backend::LimitKind;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use super::book::{Grant, LeaseBook, SpendOutcome};
use super::request::{LeaseReply, LeaseRequest};
use crate::query::{LimitForm, LimitParams, StoreOp, StoreQuery};
use crate::store::Store;
use crate::tests::windows;

const LIFE: u64 = 2_000_000;

fn numbers(rate: &str) -> LimitParams {
    let kind = LimitKind::Rate {
        rate: rate.parse().unwrap(),
        algorithm: tollgate::Algorithm::Gcra,
    };
    let form = LimitForm::new(&kind, Duration::ZERO).unwrap();
    form.params_at(0).unwrap()
}

/// A node as the store sees it.
#[derive(Clone, Copy, Debug)]
struct Node {
    holds: u64,
    until: u64,
    asked: u64,
    /// For how long it leases tokens.
    life: u64,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            holds: 0,
            until: 0,
            asked: 0,
            life: LIFE,
        }
    }
}

impl Node {
    /// Requests tokens as of a time.
    async fn ask(
        &mut self,
        store: &Store,
        numbers: &LimitParams,
        (node, now): (u64, u64),
        (returns, more, most): (u64, u64, u64),
    ) -> u64 {
        let said = self.say(numbers, node, now, (returns, more, most));
        let lent = carried_out(store, &said, now).await;
        assert!(lent.granted <= more && lent.kept <= said.holds);
        self.hear(&said, &lent);
        lent.granted
    }

    fn spend(&mut self, now: u64, most: u64) -> u64 {
        if now >= self.until {
            return 0;
        }
        let spent = self.holds.min(most);
        self.holds -= spent;
        spent
    }
}

fn check_windows(spent: &[(u64, u64)], rate: Rate) {
    let all = spent.iter().map(|(at, amount)| (*at, *amount, rate));
    windows::check(&all.collect::<Vec<_>>());
}

#[tokio::test]
async fn nodes_that_return_and_retake_hoard_nothing() {
    let server = Server::start();
    let store = Store::patient(&server);
    // If the burst were only reduced by what drains during a lease, they would get 3,000 of 1,100.
    let rate: Rate = "100/s burst 1000".parse().unwrap();
    let numbers = numbers("100/s burst 1000");
    let mut nodes = [Node::default(); 20];
    let mut now = 1_700_000_000_000_000;
    for _ in 0..100 {
        for (number, node) in nodes.iter_mut().enumerate() {
            let all = node.holds;
            let who = (number as u64 + 1, now);
            node.ask(&store, &numbers, who, (all, 50, 50)).await;
            let all = node.holds;
            node.ask(&store, &numbers, who, (all, 50, 50)).await;
        }
        now += LIFE - 1;
    }
    let held: u64 = nodes.iter().map(|node| node.holds).sum();
    assert_eq!(held, 1000, "all of it is out");
    let mut spent = Vec::new();
    for node in &mut nodes {
        spent.push((now - 1, node.spend(now - 1, u64::MAX)));
    }
    // And take whatever can be had right after.
    for (number, node) in nodes.iter_mut().enumerate() {
        let who = (number as u64 + 1, now);
        node.ask(&store, &numbers, who, (0, 50, 50)).await;
        spent.push((now, node.spend(now, u64::MAX)));
    }
    check_windows(&spent, rate);
    assert_eq!(spent.iter().map(|(_, amount)| amount).sum::<u64>(), 1000);
}

#[tokio::test]
async fn random_nodes_never_spend_more_than_the_limit() {
    let server = Server::start();
    for seed in 1..=20_u64 {
        let store = Store::patient(&server);
        server.command(&["FLUSHALL"]);
        let text = ["10/s burst 100", "1000/s burst 50", "7/s burst 7"][seed as usize % 3];
        let (rate, numbers) = (text.parse().unwrap(), numbers(text));
        let mut random = Random::new(seed);
        let mut below = |most| random.below(most);
        let mut nodes: HashMap<u64, Node> = HashMap::new();
        let (mut now, mut next, mut spent) = (1_700_000_000_000_000, 6, Vec::new());
        for _ in 0..600 {
            let reach = [10, 1_000, 100_000, 3_000_000][below(4) as usize];
            now += below(reach);
            let who = 1 + below(5);
            let number = next * 10 + who;
            let node = nodes.entry(number).or_default();
            match below(10) {
                // A node dies, and another one replaces it.
                0 => next += 1,
                1..5 => {
                    let wants = (below(20), below(40), 1 + below(60));
                    node.ask(&store, &numbers, (number, now), wants).await;
                }
                _ => spent.push((now, node.spend(now, below(30)))),
            }
        }
        check_windows(&spent, rate);
        assert!(spent.iter().any(|(_, amount)| *amount > 0), "{text}");
    }
}

#[tokio::test]
async fn what_a_dead_node_held_is_back_after_a_lease_life() {
    let server = Server::start();
    let store = Store::patient(&server);
    let numbers = numbers("100/s burst 100");
    let now = 1_700_000_000_000_000;
    let (mut dead, mut other) = (Node::default(), Node::default());
    assert_eq!(
        dead.ask(&store, &numbers, (1, now), (0, 100, 100)).await,
        100
    );
    // Leased tokens don't drain.
    let almost = now + LIFE - 1;
    assert_eq!(
        other
            .ask(&store, &numbers, (2, almost), (0, 100, 100))
            .await,
        0
    );
    // After the lease expires, they drain like anything that was spent.
    let half = now + LIFE + 500_000;
    assert_eq!(
        other.ask(&store, &numbers, (2, half), (0, 100, 100)).await,
        50
    );
    let all = now + LIFE + 1_000_000;
    assert_eq!(
        other.ask(&store, &numbers, (2, all), (0, 100, 100)).await,
        50
    );
}

#[tokio::test]
async fn a_store_that_lost_its_memory_learns_what_is_out() {
    let server = Server::start();
    let store = Store::patient(&server);
    let numbers = numbers("1/s burst 100");
    let now = 1_700_000_000_000_000;
    let (mut one, mut other) = (Node::default(), Node::default());
    one.ask(&store, &numbers, (1, now), (0, 60, 100)).await;
    server.command(&["FLUSHALL"]);
    // The node reports what it holds, and requests no more.
    one.ask(&store, &numbers, (1, now + 1), (0, 0, 100)).await;
    assert_eq!(one.holds, 60);
    assert_eq!(
        other
            .ask(&store, &numbers, (2, now + 2), (0, 100, 100))
            .await,
        40
    );
    // If other nodes were faster, it loses the tokens for which there is no room.
    server.command(&["FLUSHALL"]);
    let mut third = Node::default();
    assert_eq!(
        third
            .ask(&store, &numbers, (3, now + 3), (0, 70, 100))
            .await,
        70
    );
    one.ask(&store, &numbers, (1, now + 4), (0, 0, 100)).await;
    assert_eq!(one.holds, 30);
}

/// The store's reply to a node without tokens that requests this many, all of them or as many as there are.
async fn told(
    store: &Store,
    numbers: &LimitParams,
    (node, now): (u64, u64),
    (more, least): (u64, u64),
) -> LeaseReply {
    let asks = LeaseRequest {
        holder: node,
        more,
        most: more,
        least,
        ..LeaseRequest::anonymous(Duration::from_micros(LIFE))
    };
    let record = asks.encode(numbers);
    let reply = store.lease("lease".into(), record, Some(now)).await;
    LeaseReply::parse(&reply.unwrap()).unwrap()
}

#[tokio::test]
async fn what_is_not_enough_is_left_to_others() {
    let server = Server::start();
    let store = Store::patient(&server);
    let numbers = numbers("1/h burst 100");
    let now = 1_700_000_000_000_000;
    assert_eq!(told(&store, &numbers, (1, now), (60, 60)).await.granted, 60);
    assert_eq!(told(&store, &numbers, (2, now), (41, 41)).await.granted, 0);
    assert_eq!(told(&store, &numbers, (3, now), (60, 40)).await.granted, 40);
}

#[tokio::test]
async fn a_node_asks_again_when_the_first_of_the_others_leases_has_run_out() {
    let server = Server::start();
    let store = Store::patient(&server);
    let numbers = numbers("100/s burst 100");
    let now = 1_700_000_000_000_000;
    let micros = Duration::from_micros;
    told(&store, &numbers, (1, now), (30, 0)).await;
    told(&store, &numbers, (2, now + LIFE / 4), (30, 0)).await;
    // All tokens are out now, some of them at this node, whose own lease ends last.
    let half = now + LIFE / 2;
    let third = told(&store, &numbers, (3, half), (100, 0)).await;
    assert_eq!((third.granted, third.retry_after), (40, micros(LIFE / 2)));
    // Other nodes may return tokens before the bucket refills.
    let numbers = self::numbers("1/h burst 100");
    server.command(&["FLUSHALL"]);
    told(&store, &numbers, (1, now), (30, 0)).await;
    told(&store, &numbers, (2, now), (70, 0)).await;
    told(&store, &numbers, (2, now + 1), (0, 0)).await;
    let third = told(&store, &numbers, (3, half), (1, 0)).await;
    assert_eq!((third.granted, third.retry_after), (0, micros(LIFE / 2)));
    // No other node holds any, so the full delay is returned.
    let later = told(&store, &numbers, (3, now + LIFE), (1, 0)).await;
    assert!(later.retry_after > Duration::from_secs(3_000), "{later:?}");
}

/// A node's report, and its outcome.
#[derive(Clone, Debug)]
struct Said {
    record: Vec<u8>,
    holds: u64,
    before: u64,
}

impl Node {
    /// Reports what the node holds, after which it goes on spending.
    fn say(
        &mut self,
        numbers: &LimitParams,
        holder: u64,
        now: u64,
        wants: (u64, u64, u64),
    ) -> Said {
        let (returns, more, most) = wants;
        if now >= self.until {
            self.holds = 0;
        }
        let returns = returns.min(self.holds);
        self.holds -= returns;
        self.asked += 1;
        let asks = LeaseRequest {
            holder,
            number: self.asked,
            holds: self.holds,
            returns,
            more,
            most,
            ..LeaseRequest::anonymous(Duration::from_micros(self.life))
        };
        Said {
            record: asks.encode(numbers),
            holds: self.holds,
            before: now,
        }
    }

    fn hear(&mut self, said: &Said, lent: &LeaseReply) {
        let dropped = said.holds - lent.kept;
        self.holds = self.holds.saturating_sub(dropped) + lent.granted;
        self.until = said.before + self.life;
    }
}

async fn carried_out(store: &Store, said: &Said, now: u64) -> LeaseReply {
    let reply = store.lease("lease".into(), said.record.clone(), Some(now));
    LeaseReply::parse(&reply.await.unwrap()).unwrap()
}

#[tokio::test]
async fn calls_that_are_lost_late_or_doubled_grant_nothing() {
    let server = Server::start();
    for seed in 1..=40_u64 {
        let store = Store::patient(&server);
        server.command(&["FLUSHALL"]);
        let text = ["10/s burst 100", "1000/s burst 50", "1/s burst 200"][seed as usize % 3];
        let (rate, numbers) = (text.parse().unwrap(), numbers(text));
        let mut random = Random::new(seed);
        let mut below = |most| random.below(most);
        let mut nodes = [Node::default(); 4];
        let mut late: Vec<Said> = Vec::new();
        let (mut now, mut spent) = (1_700_000_000_000_000, Vec::new());
        for _ in 0..500 {
            let reach = [10, 1_000, 10_000, 300_000][below(4) as usize];
            now += below(reach);
            if below(20) == 0 {
                // All nodes spend what they hold, and whatever can be had.
                for (who, node) in nodes.iter_mut().enumerate() {
                    spent.push((now, node.spend(now, u64::MAX)));
                    let said = node.say(&numbers, who as u64 + 1, now, (0, 40, 40));
                    let lent = carried_out(&store, &said, now).await;
                    node.hear(&said, &lent);
                    spent.push((now, node.spend(now, u64::MAX)));
                }
            }
            let who = below(4) as usize;
            let node = &mut nodes[who];
            if below(2) == 0 {
                let most = [1, 5, 20, u64::MAX][below(4) as usize];
                spent.push((now, node.spend(now, most)));
                continue;
            }
            let wants = match below(3) {
                // Return all, return some, or request more.
                0 => (u64::MAX, 0, 40),
                1 => (below(20), 0, 40),
                _ => (0, 1 + below(40), 40),
            };
            let said = node.say(&numbers, who as u64 + 1, now, wants);
            // The node spends while it waits, and the query takes its time.
            spent.push((now, node.spend(now, below(10))));
            now += below(5_000);
            match below(8) {
                0 => {}
                1 => late.push(said),
                2 => drop(carried_out(&store, &said, now).await),
                3 => {
                    carried_out(&store, &said, now).await;
                    let again = carried_out(&store, &said, now + 1).await;
                    node.hear(&said, &again);
                }
                _ => {
                    let lent = carried_out(&store, &said, now).await;
                    node.hear(&said, &lent);
                }
            }
            if !late.is_empty() && below(3) == 0 {
                let late = late.swap_remove(below(late.len() as u64) as usize);
                carried_out(&store, &late, now).await;
            }
        }
        check_windows(&spent, rate);
        assert!(spent.iter().any(|(_, amount)| *amount > 0), "{text}");
    }
}

#[tokio::test]
async fn a_rate_that_changes_forgives_nothing_of_what_ran_out() {
    let server = Server::start();
    let store = Store::patient(&server);
    // A token is of 1,000 units and then of a million, of which 999 drain in a microsecond.
    let (before, after) = (numbers("1000/s burst 1000"), numbers("999/s burst 1000"));
    let now = 1_700_000_000_000_000;
    let (mut dead, mut other) = (Node::default(), Node::default());
    dead.ask(&store, &before, (1, now), (0, 1000, 1000)).await;
    // The lease expired a tenth of a second ago, and drains since.
    let later = now + LIFE + 100_000;
    let granted = other.ask(&store, &after, (2, later), (0, 1000, 1000)).await;
    assert_eq!(granted, 99);
}

#[tokio::test]
async fn what_never_comes_back_is_lent_once() {
    let server = Server::start();
    let store = Store::patient(&server);
    let kind = LimitKind::Rate {
        rate: Rate::zero().burst(3),
        algorithm: tollgate::Algorithm::TokenBucket,
    };
    let form = LimitForm::new(&kind, Duration::ZERO).unwrap();
    let numbers = form.params_at(0).unwrap();
    let now = 1_700_000_000_000_000;
    let mut node = Node::default();
    assert_eq!(node.ask(&store, &numbers, (1, now), (0, 5, 5)).await, 3);
    assert_eq!(node.spend(now, 3), 3);
    let later = now + 1_000 * LIFE;
    assert_eq!(node.ask(&store, &numbers, (1, later), (0, 5, 5)).await, 0);
    assert_eq!(server.command(&["PTTL", "lease"]).integer(), Some(-1));
}

#[test]
fn a_peek_is_never_refused() {
    let (book, second) = (LeaseBook::default(), Timestamp::from_secs(1));
    book.take(
        second,
        &Grant {
            more: 0,
            dropped: 0,
            expires_at: second + Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
            asked: 5,
            remaining: 0,
        },
        1,
        None,
    );
    assert!(matches!(book.spend(second, 1), SpendOutcome::Denied { .. }));
    assert!(matches!(book.spend(second, 0), SpendOutcome::Passed { .. }));
}

#[test]
fn what_was_had_and_is_spent_is_not_asked_for_again_at_once() {
    let (book, second) = (LeaseBook::default(), Timestamp::from_secs(1));
    let granted = |remaining| Grant {
        more: 5,
        dropped: 0,
        expires_at: second + Duration::from_secs(1),
        retry_after: Duration::from_secs(1),
        asked: 100,
        remaining,
    };
    // The store gave all it had: five, of which other requests spend four.
    assert_eq!(book.take(second, &granted(0), 1, None), Some((4, None)));
    assert!(matches!(book.spend(second, 5), SpendOutcome::Denied { .. }));
    for left in [3, 2, 1, 0] {
        assert!(
            matches!(book.spend(second, 1), SpendOutcome::Passed { left: now, .. } if now == left)
        );
    }
    assert!(matches!(
        book.spend(second, 1),
        SpendOutcome::Denied { left: 0, .. }
    ));
    // The store had some left for others, so a request for no more than those queries it.
    let book = LeaseBook::default();
    assert_eq!(book.take(second, &granted(3), 5, None), Some((0, None)));
    assert_eq!(book.spend(second, 3), SpendOutcome::Unknown);
    assert!(matches!(book.spend(second, 4), SpendOutcome::Denied { .. }));
}

#[tokio::test]
async fn leases_keep_no_questions_from_going_together() {
    let server = Server::start();
    let (store, numbers) = (Store::patient(&server), numbers("1000/s burst 1000"));
    let both = (0..64).map(async |number| {
        let said = Node::default().say(&numbers, 1, 0, (0, 1, 1));
        let asked = StoreQuery {
            key: format!("exact {number}").into(),
            op: StoreOp::Decide,
            params: numbers,
            cost: 1,
            holder: None,
        };
        let lease = store.lease(format!("leased {number}").into(), said.record, None);
        let (lent, answers) = tokio::join!(lease, store.ask(vec![asked], None));
        assert!(lent.is_ok() && answers.is_ok());
    });
    futures_util::future::join_all(both).await;
    let calls = store
        .stats()
        .calls
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(calls, 64 + 1);
}

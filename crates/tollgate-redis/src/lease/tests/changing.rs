//! Leases of one key by several limits, in any order, and of nodes with different lease durations.

use super::*;

/// A node, and the loosest limit by which it got its tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Lessor {
    node: Node,
    by: Option<Rate>,
}

impl Lessor {
    async fn ask(
        &mut self,
        store: &Store,
        (rate, numbers): &(Rate, LimitParams),
        (holder, now): (u64, u64),
        wants: (u64, u64, u64),
    ) -> u64 {
        if self.node.holds == 0 || now >= self.node.until {
            self.by = None;
        }
        let granted = self.node.ask(store, numbers, (holder, now), wants).await;
        if granted > 0 {
            self.by = Some(self.by.map_or(*rate, |by| windows::looser(by, *rate)));
        }
        granted
    }

    /// Spends tokens, and returns the limit by which it did.
    fn spend(&mut self, now: u64, most: u64) -> Option<windows::Admitted> {
        let spent = self.node.spend(now, most);
        (spent > 0).then(|| (now, spent, self.by.expect("a limit")))
    }
}

fn limits(texts: &[&str]) -> Vec<(Rate, LimitParams)> {
    let parse = |text: &&str| (text.parse().unwrap(), numbers(text));
    texts.iter().map(parse).collect()
}

const NOW: u64 = 1_700_000_000_000_000;

const SETS: [&[&str]; 7] = [
    &["10/m", "1000/m"],
    &["10/s burst 100", "1000/s burst 50"],
    &["1000/m", "60/m"],
    &["7/s burst 7", "100/s burst 3", "20/s burst 60"],
    &["999/s burst 50", "1000/s burst 200", "1/s burst 100"],
    &["5/s burst 5", "5/s burst 100"],
    // The debt of the first can't be expressed in the units of the second.
    &["50000000/d burst 5000000", "49999991/d burst 1000"],
];

#[tokio::test]
async fn random_nodes_by_random_limits_never_spend_more_than_the_loosest() {
    let server = Server::start();
    for seed in 1..=70_u64 {
        let store = Store::patient(&server);
        server.command(&["FLUSHALL"]);
        let limits = limits(SETS[seed as usize % SETS.len()]);
        let mut random = Random::new(seed);
        let mut below = |most| random.below(most);
        // A node may be one holder, whatever limit it uses, or one for each.
        let is_apart = below(2) == 0;
        // The size of a request.
        let many = limits.iter().map(|(rate, _)| rate.burst_size()).max();
        let much = many.unwrap() / 1_000 + 1;
        let mut nodes: HashMap<u64, Lessor> = HashMap::new();
        let (mut now, mut spent) = (NOW, Vec::new());
        for _ in 0..500 {
            let reach = [10, 1_000, 50_000, 1_000_000][below(4) as usize];
            now += below(reach);
            let (who, which) = (1 + below(3), below(limits.len() as u64));
            let holder = who * 10 + if is_apart { which } else { 0 };
            let lessor = nodes.entry(holder).or_default();
            lessor.node.life = [100_000, 1_000_000, 5_000_000][who as usize % 3];
            match below(8) {
                0..4 => {
                    let wants = match below(4) {
                        // Return all, return some, or request more.
                        0 => (u64::MAX, 0, 60 * much),
                        1 => (below(20 * much), below(10 * much), 60 * much),
                        _ => (0, 1 + below(60 * much), 60 * much),
                    };
                    let limit = &limits[which as usize];
                    spent.push((now, 0, limit.0));
                    lessor.ask(&store, limit, (holder, now), wants).await;
                }
                4..7 => spent.extend(lessor.spend(now, below(40 * much))),
                _ => {
                    // All held tokens at one instant, and whatever can be had.
                    for (holder, lessor) in &mut nodes {
                        spent.extend(lessor.spend(now, u64::MAX));
                        let limit = &limits[below(limits.len() as u64) as usize];
                        spent.push((now, 0, limit.0));
                        let wants = (0, 60 * much, 60 * much);
                        lessor.ask(&store, limit, (*holder, now), wants).await;
                        spent.extend(lessor.spend(now, u64::MAX));
                    }
                }
            }
        }
        windows::check(&spent);
        assert!(spent.len() > 50, "{}", spent.len());
        // Once all leases have expired, every limit gets tokens as soon as its `retry_after` says.
        now += 5_000_000;
        for (number, (_, numbers)) in (100..).zip(&limits) {
            let first = told(&store, numbers, (number, now), (1, 1)).await;
            if first.granted == 0 {
                now += u64::try_from(first.retry_after.as_micros()).unwrap();
                let again = told(&store, numbers, (number, now), (1, 1)).await;
                assert_eq!(again.granted, 1, "{seed}: {first:?}");
            }
        }
        // After a long quiet time, all tokens are free.
        let quiet = 100_000_000_000;
        now += quiet;
        for (number, (rate, numbers)) in (200..).zip(&limits) {
            let most = rate.burst_size();
            let all = told(&store, numbers, (number, now), (most, most)).await;
            assert_eq!(all.granted, most, "{seed}");
            now += quiet;
        }
    }
}

#[tokio::test]
async fn two_rates_of_one_leased_key_wipe_nothing() {
    let server = Server::start();
    let store = Store::patient(&server);
    let limits = limits(&["10/m", "1000/m"]);
    let mut nodes = [Lessor::default(); 2];
    let (mut spent, steps) = (Vec::new(), 500);
    // The two alternately, for five seconds, each by its own limit: 1,000 and 83.
    for step in 0..steps {
        let now = NOW + step * 5_000_000 / steps;
        for (who, node) in nodes.iter_mut().enumerate() {
            let limit = &limits[who];
            let most = limit.1.max_burst / 10;
            let who = (who as u64 + 1, now);
            node.ask(&store, limit, who, (0, most, most)).await;
            spent.extend(node.spend(now, u64::MAX));
        }
    }
    windows::check(&spent);
    let passed: u64 = spent.iter().map(|(_, much, _)| much).sum();
    assert!((1_000..=1_083).contains(&passed), "{passed}");
}

#[tokio::test]
async fn who_asks_in_vain_by_a_smaller_limit_loses_nothing() {
    let server = Server::start();
    let store = Store::patient(&server);
    let limits = limits(&["1000/m", "10/m"]);
    let [(_, large), (_, small)] = limits[..] else {
        panic!("two");
    };
    let mut node = Node::default();
    node.ask(&store, &large, (1, NOW), (0, 1000, 1000)).await;
    node.spend(NOW, 1000);
    node.ask(&store, &large, (1, NOW), (0, 0, 1000)).await;
    // A token every six seconds, however many requests come in between.
    for tenth in 0..60 {
        let asked = told(&store, &small, (2, NOW + tenth * 100_000), (1, 1)).await;
        let wait = Duration::from_micros(6_000_000 - tenth * 100_000);
        assert_eq!((asked.granted, asked.retry_after), (0, wait));
    }
    let now = NOW + 6_000_000;
    assert_eq!(told(&store, &small, (2, now), (1, 1)).await.granted, 1);
    // The wait of a larger request covers all of it, less what another node holds and may return.
    let asked = told(&store, &small, (3, now), (5, 5)).await;
    assert_eq!(asked.retry_after, Duration::from_secs(24));
    let asked = told(&store, &small, (3, now), (1, 1)).await;
    assert_eq!(
        asked.retry_after,
        Duration::from_micros(LIFE),
        "or returned"
    );
    let asked = told(&store, &small, (3, now + LIFE), (5, 5)).await;
    assert_eq!(asked.retry_after, Duration::from_secs(30));
}

#[tokio::test]
async fn a_lease_lives_as_long_as_its_taker_said() {
    let server = Server::start();
    let store = Store::patient(&server);
    let limit = limits(&["10/s burst 100"])[0];
    let [mut long, mut short] = [20_000_000, 100_000].map(|life| Lessor {
        node: Node {
            life,
            ..Node::default()
        },
        by: None,
    });
    long.ask(&store, &limit, (1, NOW), (0, 60, 60)).await;
    let mut spent = Vec::new();
    // The other node peeks for a while, and takes what there is in the end.
    for tenth in (1..100).chain([199]) {
        let (now, wants) = (NOW + tenth * 100_000, 100 * u64::from(tenth == 199));
        short.ask(&store, &limit, (2, now), (0, wants, 100)).await;
        spent.extend(short.spend(now, u64::MAX));
    }
    spent.extend(long.spend(NOW + 19_999_999, u64::MAX));
    windows::check(&spent);
    assert_eq!(spent.iter().map(|(_, much, _)| much).sum::<u64>(), 100);
    // On a clock that is behind, it lasts its duration again and no longer, whichever node sees it.
    server.command(&["FLUSHALL"]);
    let (_, numbers) = limits(&["1/m burst 100"])[0];
    long.node
        .ask(&store, &numbers, (1, NOW), (0, 100, 100))
        .await;
    let back = NOW - 3_600_000_000;
    for (at, expect) in [(0, 0), (19_999_999, 0), (20_000_000 + 60_000_000, 1)] {
        let asked = told(&store, &numbers, (2, back + at), (1, 1)).await;
        assert_eq!(asked.granted, expect, "{at}: {asked:?}");
    }
}

#[tokio::test]
async fn what_was_spent_elsewhere_is_owed_beside_what_is_out() {
    let server = Server::start();
    let store = Store::patient(&server);
    let numbers = numbers("1/m burst 100");
    let [price, ..] = numbers.values;
    let mut node = Node::default();
    node.ask(&store, &numbers, (1, NOW), (0, 30, 30)).await;
    // Another node has spent 50 without the store: reporting it once or twice is the same.
    let say = async |holder, spent: u64, more| {
        let asks = LeaseRequest {
            holder,
            more,
            most: 100,
            spent: spent * price,
            ..LeaseRequest::anonymous(Duration::from_micros(LIFE))
        };
        let reply = store.lease("lease".into(), asks.encode(&numbers), Some(NOW));
        LeaseReply::parse(&reply.await.unwrap()).unwrap().granted
    };
    for _ in 0..2 {
        assert_eq!(say(2, 50, 0).await, 0);
    }
    assert_eq!(say(2, 50, 100).await, 20);
    // What the first node held and spent isn't part of the report.
    node.spend(NOW, 30);
    node.ask(&store, &numbers, (1, NOW), (0, 0, 30)).await;
    assert_eq!(say(3, 80, 100).await, 0);
    assert_eq!(say(3, 100, 0).await, 0);
    // That is 120 with what has expired since: more than the burst, and it drains at the rate all the same.
    for minute in 1..=20 {
        // Leased tokens don't drain until the lease has expired.
        let later = NOW + minute * (LIFE + 60_000_000);
        let rest = told(&store, &numbers, (4, later), (100, 0)).await;
        assert_eq!(rest.granted, 1, "{minute}");
    }
}

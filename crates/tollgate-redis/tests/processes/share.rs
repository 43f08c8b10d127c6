//! The usable share of a limit: few leased tokens lie unused at idle nodes.

use std::time::Duration;

use tollgate::clock::{Clock, Wall};
use tollgate::{Rate, Timestamp};
use tollgate_testkit::redis::Server;

use crate::fleet::{Fleet, Node, Told, length};
use crate::node::{Does, Failure, HOLDS, LIFE, Role};

/// Of a limit whose demand is three times as high, nine tenths of it on one node.
fn uneven(name: &str, rate: &str, others: usize) -> Told {
    let per_second = rate.parse::<Rate>().expect("a rate").count();
    let server = Server::start();
    let demand = 3 * per_second;
    let each = demand / 10 / u64::try_from(others).expect("few");
    let mut nodes = vec![Does::Wants(each.max(1)); others + 1];
    nodes[0] = Does::Wants(demand * 9 / 10);
    let fleet = Fleet {
        name,
        url: &server.url(),
        rate,
        is_leased: true,
        failure: Failure::Never,
        nodes,
        // What lies in hands at the end weighs the less the longer it takes.
        length: 2 * length(),
    };
    fleet.run()
}

#[test]
fn nearly_all_of_a_limit_is_used_under_uneven_demand() {
    let told = uneven("uneven", "2000/s", 7);
    println!("{told}");
    assert!(told.share() >= 9_800, "{told}");
}

#[test]
fn what_a_killed_node_held_is_back_after_a_lease_life() {
    /// Most of the burst, so that the rest isn't enough for the other one.
    const HELD: u64 = 600;
    const WANTED: u64 = 950;
    /// For a busy machine: the other one asks again within this, and is answered.
    const MARGIN: Duration = Duration::from_secs(2);
    let server = Server::start();
    let role = Role {
        url: server.url(),
        rate: "2000/s burst 1000".parse().unwrap(),
        is_leased: true,
        tasks: 1,
        failure: Failure::Never,
        does: Does::Holds(HELD),
        file: String::new(),
    };
    let fills = Duration::from_millis(500);
    let mut node = Node::start(&role);
    let holds = node.says(HOLDS);
    node.kill();
    let killed = Wall.now();
    let (before, held) = holds.split_once(' ').unwrap();
    let before = Timestamp::from_nanos(before.parse().unwrap());
    assert!(held.parse::<u64>().unwrap() >= HELD);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let back = runtime.block_on(async {
        let (_redis, limiter) = role.limiter();
        let asking = async {
            while limiter.check_n("all", WANTED).await.denied().is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let longest = LIFE + fills + MARGIN;
        let back = tokio::time::timeout(longest, asking).await;
        assert!(
            back.is_ok(),
            "it wasn't back {longest:?} after the node was killed"
        );
        Wall.now()
    });
    println!("back {:?} after the end", back - killed);
    assert!(
        back - before >= LIFE,
        "until then it is out: {:?}",
        back - before
    );
}

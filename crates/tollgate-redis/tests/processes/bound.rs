//! Eight processes of four threads each ask for as much as they can.

use tollgate_testkit::redis::Server;

use crate::fleet::{Fleet, Told, length};
use crate::node::Does;

fn hammer(name: &str, rate: &str, is_leased: bool) -> Told {
    let server = Server::start();
    let fleet = Fleet {
        name,
        url: &server.url(),
        rate,
        is_leased,
        nodes: vec![Does::Hammers; 8],
        length: length(),
    };
    // It looks at every window.
    let told = fleet.run();
    // A busy machine gets less done, but all of the burst and more: the bound was put to the test.
    assert!(told.share() > 2_000, "{told:?}");
    told
}

#[test]
fn no_window_sees_more_when_each_decision_is_made_in_the_store() {
    println!("{}", hammer("hammer-exact", "200/s burst 100", false));
}

#[test]
fn no_window_sees_more_when_tokens_are_leased() {
    println!("{}", hammer("hammer-leased", "200/s burst 100", true));
}

/// Every node holds what it can, and that is all there is.
#[test]
fn no_window_sees_more_when_leases_are_single_tokens() {
    println!("{}", hammer("hammer-single", "500/s burst 8", true));
}

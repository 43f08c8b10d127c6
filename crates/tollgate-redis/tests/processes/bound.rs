//! Eight processes of four threads each ask for as much as they can.

use tollgate_testkit::redis::Server;

use crate::fleet::{Fleet, length};
use crate::node::Does;

fn hammer(name: &str, rate: &str, is_leased: bool) {
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
    println!(
        "{rate}, leased {is_leased}: {:?}, {} of 10,000",
        told.admitted,
        told.share()
    );
    // The limit was reached, so the bound was put to the test.
    assert!(told.share() > 5_000, "{told:?}");
}

#[test]
fn no_window_sees_more_when_each_decision_is_made_in_the_store() {
    hammer("hammer-exact", "2000/s burst 500", false);
}

#[test]
fn no_window_sees_more_when_tokens_are_leased() {
    hammer("hammer-leased", "2000/s burst 500", true);
}

/// Every node holds what it can, and that is all there is.
#[test]
fn no_window_sees_more_when_leases_are_single_tokens() {
    hammer("hammer-single", "500/s burst 8", true);
}

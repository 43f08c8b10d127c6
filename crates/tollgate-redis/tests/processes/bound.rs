//! Eight processes of four threads each request as much as they can.

use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_testkit::redis::Server;

use crate::fleet::{Fleet, Told, length};
use crate::node::{Does, Failure};

fn hammer(name: &str, rate: &str, is_leased: bool) -> Told {
    let server = Server::start();
    let fleet = Fleet {
        name,
        url: &server.url(),
        rate,
        is_leased,
        failure: Failure::Never,
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

/// Ends the busy threads, also if the test fails: they would keep it from ending.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The machine has twice as many busy threads as cores, beside the nodes: a healthy store is slow, and so are
/// they. What nodes then decide by themselves is told apart, and no window sees more; with `TOLLGATE_SOAK` it is little, too.
fn crowd(name: &str, is_leased: bool) -> Told {
    let server = Server::start();
    let fleet = Fleet {
        name,
        url: &server.url(),
        rate: "1000/s burst 1000",
        is_leased,
        failure: Failure::Local(8),
        nodes: vec![Does::Wants(400); 8],
        length: length(),
    };
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let over = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _over = Over(&over);
        // It looks at every window of what the store admitted.
        fleet.run()
    });
    // How much that is depends on what else the machine does, so it is claimed where somebody soaks a machine of its own;
    // the simulated world has starved nodes on virtual time.
    let is_soak = std::env::var_os("TOLLGATE_SOAK").is_some();
    let (local, all) = (told.local, told.all());
    assert!(!is_soak || local * 100 < all, "{local} of {all}");
    told
}

#[test]
fn no_window_sees_more_on_a_crowded_machine_when_each_decision_is_made_in_the_store() {
    println!("{}", crowd("crowd-exact", false));
}

#[test]
fn no_window_sees_more_on_a_crowded_machine_when_tokens_are_leased() {
    println!("{}", crowd("crowd-leased", true));
}

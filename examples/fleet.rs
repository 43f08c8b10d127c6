//! Three nodes share one limit through Redis, exactly and leased, and go on when it is gone.
//!
//! `cargo run --example fleet [redis://…]`; without a URL it starts its own server.

use std::time::Duration;

use tollgate::Rate;
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

type BoxError = Box<dyn std::error::Error>;

/// One token comes back each second.
const RATE: Rate = Rate::per_minute(60).burst(100);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1);
    let own = url.is_none().then(Server::start);
    let url = url
        .or_else(|| own.as_ref().map(Server::url))
        .unwrap_or_default();

    for is_leased in [false, true] {
        let nodes = [node(&url)?, node(&url)?, node(&url)?];
        let limiter = |node: &Redis| {
            let limiter = node.limiter("calls", RATE);
            let limiter = if is_leased { limiter.leased() } else { limiter };
            limiter.build()
        };
        let limiters = [
            limiter(&nodes[0])?,
            limiter(&nodes[1])?,
            limiter(&nodes[2])?,
        ];
        let mut admitted = [0; 3];
        for _ in 0..50 {
            for (limiter, admitted) in limiters.iter().zip(&mut admitted) {
                *admitted += u32::from(limiter.check("acme").await.allowed().is_some());
            }
        }
        let how = if is_leased { "leased" } else { "exact" };
        let trips: u64 = nodes.iter().map(|node| node.stats().round_trips).sum();
        let sum: u32 = admitted.iter().sum();
        println!("{how:>6}: 150 asked, {admitted:?} admitted, {sum} of 100, {trips} round trips");
        assert!(sum <= 102);
    }

    // Without a store each node has its share: 100 / 3 · 2.
    if let Some(server) = own {
        let node = node(&url)?;
        let limiter = node.limiter("calls", RATE).build()?;
        server.kill();
        let mut admitted = 0;
        for _ in 0..150 {
            admitted += u32::from(limiter.check("other").await.allowed().is_some());
        }
        let stats = node.stats().fallback;
        println!(
            "  gone: 150 asked, {admitted} admitted here, {} without the store",
            stats.local
        );
        assert!(node.is_fallback_active() && admitted <= 68);
    }
    Ok(())
}

fn node(url: &str) -> Result<Redis, BoxError> {
    let builder = Redis::builder(url)?.node_count(3);
    Ok(builder.timeout(Duration::from_millis(100)).build()?)
}

//! 100 a second in two priority lanes: 60 are guaranteed to interactive, 40 to batch, and each lane may use what the
//! other leaves.

use std::error::Error;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Lanes, Rate};

/// The requests that pass in each lane within ten seconds, at these rates.
fn count_passed(interactive: u64, batch: u64) -> Result<[u64; 2], Box<dyn Error>> {
    let clock = Manual::new();
    let lanes = Lanes::builder(Rate::per_second(100).burst(10))
        .lane("interactive", 60)
        .lane("batch", 40)
        .clock(clock.clone())
        .build()?;
    let mut passed = [0; 2];
    for milli in 0..10_000 {
        // Batch goes first, and gains nothing by it.
        for (lane, asks) in [(1, batch), (0, interactive)] {
            let name = ["interactive", "batch"][lane];
            let lane_of = lanes.lane(name).ok_or("no such lane")?;
            let now = (milli + 1) * asks / 1_000 - milli * asks / 1_000;
            for _ in 0..now {
                passed[lane] += u64::from(lane_of.allow());
            }
        }
        clock.advance(Duration::from_millis(1));
    }
    Ok(passed.map(|in_ten_seconds| in_ten_seconds / 10))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("asked for a second         passed a second");
    println!("interactive    batch       interactive    batch");
    let mixes = [
        ([500, 500], [60, 40]),
        ([500, 0], [100, 0]),
        ([0, 500], [0, 100]),
        ([0, 0], [0, 0]),
        ([20, 500], [20, 80]),
    ];
    for ([interactive, batch], expected) in mixes {
        let passed = count_passed(interactive, batch)?;
        println!(
            "{interactive:>11} {batch:>8} {:>17} {:>8}",
            passed[0], passed[1]
        );
        let off = |lane: usize| u64::abs_diff(passed[lane], expected[lane]);
        assert!(off(0) <= 1 && off(1) <= 1, "{passed:?}, not {expected:?}");
    }
    Ok(())
}

//! Proof of `KeyedLimiter`: equal to one state a key, no key forgotten while it is active, and every
//! verb by key.

mod changing;
mod flood;
mod growth;
mod laws;
mod oracle;
mod order;
mod policies;
mod rates;
mod recorded;
mod snapshot;
mod stats;
mod threads;
mod uptime;
mod verbs;
#[cfg(feature = "tokio")]
mod waiting;

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate, Timestamp, WhenFull};

/// Where the clocks of these tests start: away from zero, so that a forgotten anchor shows.
const BASE: Timestamp = Timestamp::from_secs(1_000_000);

/// A duration that is short enough in whole nanoseconds.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("less than 500 years")
}

/// An index from a small number.
fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index")
}

/// Whether the long versions are enabled.
fn soak() -> bool {
    std::env::var_os("TOLLGATE_SOAK").is_some()
}

/// A limiter and the clock that it reads.
fn limiter(rate: Rate, capacity: usize) -> (KeyedLimiter<Manual>, Manual) {
    with_policy(rate, capacity, WhenFull::default())
}

fn with_policy(rate: Rate, capacity: usize, at_cap: WhenFull) -> (KeyedLimiter<Manual>, Manual) {
    let clock = Manual::starting_at(BASE);
    let limiter = KeyedLimiter::builder(rate, capacity)
        .at_cap(at_cap)
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    (limiter, clock)
}

/// Charges new keys, from `from` on, until one finds the table full; returns how many found a place.
///
/// Others may still find one then, because each has its own few places: those are taken too, by
/// fines, which charge nothing else.
fn fill(limiter: &KeyedLimiter<Manual>, from: u64) -> u64 {
    let overflowed = || limiter.stats().overflowed;
    let (start, before) = (from, overflowed());
    let charged = (start..)
        .find(|key| {
            let _ = limiter.allow(key);
            overflowed() > before
        })
        .map_or(0, |last| last - start);
    let mut refused = 0;
    for number in 0u64.. {
        let fined = limiter.key(&("filler", number)).penalize(1);
        refused = if fined.is_ok() { 0 } else { refused + 1 };
        if refused == 2_000 {
            break;
        }
    }
    charged
}
